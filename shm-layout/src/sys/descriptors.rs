//! Copies of descriptors that this program knows only by their numbers, such as those in `/proc/self/fd`.

use nix::libc;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Duplicates a descriptor of this process. The copy shares the offset and the flags of the open file. Programs that this process starts do
/// not get the copy.
///
/// # Errors
/// The error of `fcntl`: no such descriptor is open, or descriptors are short.
///
/// ```
/// use shmcast_layout::sys::descriptors::duplicate;
/// assert!(duplicate(2).is_ok());
/// assert!(duplicate(-1).is_err());
/// ```
pub fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the command takes an integer and no memory of ours. A number that is no open descriptor is an error and harms nothing.
    match unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel has just made this descriptor, and nothing else has it.
        copy => Ok(unsafe { OwnedFd::from_raw_fd(copy) }),
    }
}
