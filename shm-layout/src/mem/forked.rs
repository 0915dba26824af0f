//! A forked child process, for tests. The child shares the files that its parent has opened, and has a copy of its parent's memory.

use nix::libc;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A forked child process. The parent must wait for it.
#[derive(Debug)]
#[must_use = "a child that is not waited for stays a zombie"]
pub struct Forked(libc::pid_t);

/// Forks a child that runs `part` and then ends immediately. The child runs no destructors of the parent's values. After a panic the child
/// ends with an error.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] if the process has several threads. Otherwise the system's error.
pub fn fork(part: impl FnOnce()) -> io::Result<Forked> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "only a process of one thread can be forked here",
        ));
    }
    // SAFETY: the process has no thread but this one. So no other thread holds a lock that the child, which has only this thread, could
    // wait for.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let is_well = catch_unwind(AssertUnwindSafe(part)).is_ok();
            // SAFETY: the call ends the process immediately, and the parent owns all that is left behind.
            unsafe { libc::_exit(i32::from(!is_well)) }
        }
        pid => Ok(Forked(pid)),
    }
}

impl Forked {
    /// Waits until the child ends. Returns whether it ended without a panic.
    ///
    /// # Errors
    /// The error of `waitpid`.
    pub fn wait(self) -> io::Result<bool> {
        let mut status = 0;
        // SAFETY: the call writes one integer, into `status`, and gets no other memory of ours.
        if unsafe { libc::waitpid(self.0, &raw mut status, 0) } != self.0 {
            return Err(io::Error::last_os_error());
        }
        Ok(status == 0)
    }
}
