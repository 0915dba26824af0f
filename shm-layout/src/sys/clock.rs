//! The greatest possible error of the host's clock, as the program that sets the clock has reported it to the kernel.

use nix::libc;
use std::io;

/// Returns the greatest possible error of the clock, in nanoseconds; `None` if no program synchronises the clock.
///
/// The figure is an upper limit, and grows while no program corrects the clock. The true error is much smaller in most cases. Cost: one
/// system call.
///
/// # Errors
/// The error of `adjtimex`. A service manager's filter of system calls often refuses it with `EPERM`, because the same call can set the
/// clock.
///
/// ```
/// match shmcast_layout::sys::clock::error_ns() {
///     Ok(Some(error_ns)) => println!("the clock is right to {error_ns} ns"),
///     Ok(None) => println!("nobody keeps the clock"),
///     Err(e) => println!("how good the clock is, is unknown: {e}"),
/// }
/// ```
pub fn error_ns() -> io::Result<Option<u64>> {
    // SAFETY: all fields of the struct are integers, and integers can be zero.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is valid and ours alone. With `modes` at zero the call only writes into it.
    let result = unsafe { libc::adjtimex(&mut state) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let is_kept = state.status & libc::STA_UNSYNC == 0;
    Ok(is_kept.then(|| u64::try_from(state.maxerror).unwrap_or(0).saturating_mul(1_000)))
}
