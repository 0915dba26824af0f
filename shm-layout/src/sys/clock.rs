//! How far the host's clock may be from the true time, as the kernel was told by the program that keeps it.

use nix::libc;

/// The most that the clock is wrong, in nanoseconds; `None` if nobody synchronises it, or the kernel does not say.
///
/// The figure grows while no program corrects the clock, and is an upper limit: the true error is much smaller in most
/// cases. One system call.
///
/// ```
/// match shmcast_layout::sys::clock::error_ns() {
///     Some(error_ns) => println!("the clock is right to {error_ns} ns"),
///     None => println!("nobody keeps the clock"),
/// }
/// ```
pub fn error_ns() -> Option<u64> {
    // SAFETY: all fields of the struct are integers, and integers may be zero.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is valid and ours alone. With `modes` at zero the call only writes into it.
    let result = unsafe { libc::adjtimex(&mut state) };
    let is_kept = result >= 0 && state.status & libc::STA_UNSYNC == 0;
    is_kept.then(|| u64::try_from(state.maxerror).unwrap_or(0).saturating_mul(1_000))
}
