//! Faults that a special build contains, to prove that the tests find each of them. The environment variable [`VARIABLE`] names the fault
//! to activate.
//!
//! - [`fault!`](crate::fault!) puts back a bug that was fixed, for the random tests, in a build with `RUSTFLAGS="--cfg shmcast_faults"`.
//! - `mutant!` removes a memory ordering of the protocol, for the model checker, in a build with `RUSTFLAGS="--cfg loom"`.
//!
//! In ordinary builds both macros are the constant `false`.

/// The environment variable that names the fault to plant, or the memory ordering to remove.
pub const VARIABLE: &str = "SHMCAST_FAULT";

/// Whether the fault that has this name is put back. In ordinary builds this is the constant `false`.
///
/// ```
/// assert!(!shmcast_layout::fault!("no_such_fault"));
/// ```
#[macro_export]
macro_rules! fault {
    ($name:literal) => {
        cfg!(shmcast_faults) && $crate::fault::is_chosen($name)
    };
}

/// Whether the environment variable [`VARIABLE`] names this memory ordering. If so, the code leaves the ordering out. In ordinary builds
/// this is the constant `false`.
macro_rules! mutant {
    ($name:literal) => {
        cfg!(loom) && $crate::fault::is_chosen($name)
    };
}
pub(crate) use mutant;

/// Whether [`VARIABLE`] names this fault. Reads the environment once.
pub fn is_chosen(name: &str) -> bool {
    use std::sync::OnceLock;
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var(VARIABLE).ok()).as_deref() == Some(name)
}
