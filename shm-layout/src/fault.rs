//! Mended faults that a build can put back one at a time, to prove that the random tests find them.
//!
//! Ordinary builds contain none of this: [`fault!`](crate::fault!) is the constant `false`. A build with
//! `RUSTFLAGS="--cfg shmcast_faults"` contains all of them, and the environment variable [`VARIABLE`] chooses one by its name.

/// Environment variable that names the fault to put back, in a build with `--cfg shmcast_faults`.
pub const VARIABLE: &str = "SHMCAST_FAULT";

/// Whether the fault of this name is put back. In ordinary builds this is the constant `false`.
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

/// Whether [`VARIABLE`] names this fault. Reads the environment once.
pub fn is_chosen(name: &str) -> bool {
    use std::sync::OnceLock;
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var(VARIABLE).ok()).as_deref() == Some(name)
}
