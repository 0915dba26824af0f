//! Open-file-description locks. An open file holds the lock. The kernel releases the lock when the last descriptor of the file closes,
//! however the process ends. So the kernel decides whether a process lives, and no program guesses it from a process id or a timeout.

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use shmcast_layout::fault;
use shmcast_layout::layout::header::State;
use shmcast_layout::sys::fork::{self, ParentsOnly};
use std::fs::File;
use std::io;
use std::sync::atomic::{Ordering, fence};

fn whole_file() -> libc::flock {
    libc::flock { l_type: libc::F_WRLCK as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 }
}

/// Takes the exclusive lock. Returns false if another open file holds the lock.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&whole_file())) {
        Ok(_) => Ok(true),
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// A lock that [`try_lock`] took. Dropping this value releases the lock immediately, even if a daemon or a child process has a duplicate of
/// the descriptor.
///
/// The lock belongs to the process that took it. A forked child has a copy of this value without the lock's file, and dropping the copy
/// changes nothing.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) file: ParentsOnly<File>,
    owner: Owner,
}

impl Held {
    pub(crate) fn new(file: File) -> Self {
        Self { file: ParentsOnly::new(file), owner: Owner::this_process() }
    }

    /// Whether this value is a copy that `fork` made. Costs one load.
    #[inline(always)]
    pub(crate) fn is_copied(&self) -> bool {
        self.owner.is_copied()
    }

    /// Whether this value is a copy in a child process. Costs one system call.
    pub(crate) fn is_a_childs(&self) -> bool {
        !self.owner.is_this_process()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_a_childs() {
            return;
        }
        let lock = libc::flock { l_type: libc::F_UNLCK as _, ..whole_file() };
        // Unlocking a held lock cannot fail. If it failed, the lock would be released when the last duplicate is closed.
        let _ = fcntl(&*self.file, FcntlArg::F_OFD_SETLK(&lock));
    }
}

/// Identifies the process that made an object which other processes see. A forked child has a copy of the object, and must not undo what
/// the parent made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    pid: u32,
    /// The value of [`fork::count`] in the process that made this value. A forked child has a higher count.
    forks: u32,
}

impl Owner {
    pub(crate) fn this_process() -> Self {
        Self { pid: std::process::id(), forks: fork::watch() }
    }

    /// Whether this process is the owner. Detects even a child that was made without the C library. Costs one system call.
    pub(crate) fn is_this_process(self) -> bool {
        self.pid == std::process::id() || fault!("children_act_for_their_parent")
    }

    /// Whether this process was forked from the owner. Costs one load.
    #[inline(always)]
    pub(crate) fn is_copied(self) -> bool {
        self.forks != fork::count() && !fault!("children_act_for_their_parent")
    }
}

/// Whether another open file holds the lock. This call does not take the lock, so a read-only descriptor is enough.
pub(crate) fn is_locked(file: &File) -> io::Result<bool> {
    let mut lock = whole_file();
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}

/// Returns the epoch and the last state of a publisher that died. A publisher has died if no process holds `lock`, and no publisher has
/// closed the channel. `state` reads the state of the lock's segment.
///
/// A publisher takes the lock before it touches the segment's state, and closes the channel before it releases the lock. So the state is
/// read before and after the check of the lock. If both values are equal, the state did not change during the check.
pub(crate) fn dead_publisher(lock: &File, state: impl Fn() -> Option<(u64, State)>) -> Option<(u64, State)> {
    let before = state();
    let Some((_, State::Active | State::Recovering)) = before else { return None };
    fence(Ordering::Acquire);
    // A lock whose state is unknown proves nothing.
    if is_locked(lock).unwrap_or(true) {
        return None;
    }
    fence(Ordering::Acquire);
    before.filter(|_| state() == before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn one_who_closes_or_comes_while_it_is_looked_for_has_not_died() {
        let active = Some((7, State::Active));
        let file = tempfile::NamedTempFile::new().unwrap();
        let look = |states: [Option<(u64, State)>; 2]| {
            let turn = Cell::new(0);
            dead_publisher(file.as_file(), || states[turn.replace(1)])
        };
        assert_eq!(look([active; 2]), active);
        for then in [Some((7, State::Closed)), Some((8, State::Recovering)), Some((8, State::Active)), None] {
            assert_eq!(look([active, then]), None, "{then:?}");
        }
        for state in [Some((7, State::Closed)), Some((7, State::Superseded)), None] {
            assert_eq!(look([state; 2]), None, "{state:?}");
        }
        assert_eq!(look([Some((7, State::Recovering)); 2]), Some((7, State::Recovering)));
        // This is another open file, like that of another process.
        let holder = file.reopen().unwrap();
        assert!(try_lock(&holder).unwrap());
        assert_eq!(look([active; 2]), None);
    }
}
