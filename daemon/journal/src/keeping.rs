//! Which files of a journal are kept.

use crate::core::Io;
use crate::directory::{Directory, open_directory, remove, sync_parent};
use crate::holds::{RetentionHold, holds_of, lock_holds};
use rustix::fs::{CWD, RenameFlags, fstatvfs, renameat_with};
use rustix::io::Errno;
use shmcast::journal::{FileInfo, Journal};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most journals of one name that are kept aside.
const MOST_ASIDE: u32 = 10_000;

/// How much of a journal is kept. By default: everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keep {
    /// Most bytes of all files together.
    pub bytes: Option<u64>,
    /// Longest time after which a file goes, from the time at which the next one was begun.
    pub age: Option<Duration>,
    /// Least bytes that stay free on the file system.
    pub free: Option<u64>,
}

/// The files that were removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trimmed {
    /// Names of the files that are gone, oldest first.
    pub gone: Vec<String>,
    /// Names of the holds whose files had to go, since the file system had too little room.
    pub broken: Vec<String>,
}

impl Keep {
    /// Removes the oldest files of a journal, until the rest is within the limits. Only files that are sealed, or that were given up after
    /// an error of the disk, are removed, and never the last one, so that the rest is one piece. Files that are [held](crate::hold) stay,
    /// unless there is too little room. `trimmed` is added to, also if this fails; `journal` must be refreshed if a file is gone.
    ///
    /// # Errors
    /// The system's error, at the first file that cannot be removed.
    pub fn trim(&self, journal: &Journal, wall_ns: u64, trimmed: &mut Trimmed) -> io::Result<()> {
        if *self == Self::default() {
            return Ok(());
        }
        let files = journal.files();
        let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
        let handle = open_directory(journal.path())?;
        // Whoever notes a hold waits until this is over, and so sees what is left.
        let _lock = lock_holds(&handle)?;
        let holds = holds_of(&handle)?;
        let mut lacking = self.lacking(&handle)?;
        for (file, next) in files.iter().zip(files.iter().skip(1)) {
            let is_too_much = self.bytes.is_some_and(|most| bytes > most);
            let age = Duration::from_nanos(wall_ns.saturating_sub(next.header.wall_ns));
            let is_too_old = self.age.is_some_and(|most| age > most);
            let held = || holds.iter().filter(|hold| hold.from < next.header.sequence);
            let may_go = lacking > 0 || ((is_too_much || is_too_old) && held().next().is_none());
            if !may_go || !is_over(file, next) {
                break;
            }
            remove(&handle, &file.name)?;
            let name = |hold: &RetentionHold| hold.name.clone();
            trimmed
                .broken
                .extend(held().map(name).filter(|name| !trimmed.broken.contains(name)).collect::<Vec<_>>());
            bytes -= file.bytes;
            // A reader that has the file open keeps its room for a while. That costs no second file.
            lacking = lacking.saturating_sub(file.bytes);
            trimmed.gone.push(file.name.clone());
        }
        Ok(())
    }

    /// Bytes that the file system lacks of what should be free.
    fn lacking(&self, directory: &File) -> io::Result<u64> {
        let Some(least) = self.free else { return Ok(0) };
        let room = fstatvfs(directory)?;
        Ok(least.saturating_sub(room.f_bavail.saturating_mul(room.f_frsize)))
    }
}

/// Whether nothing is added to a file any more. One that was given up stays without a trailer until the next recovery: a sealed one behind
/// it has what it had not written.
fn is_over(file: &FileInfo, next: &FileInfo) -> bool {
    file.trailer.is_some() || (file.is_given_up() && next.trailer.is_some())
}

/// Gives the journal at `path` another name, the first of `path.1`, `path.2` and so on that is free, and returns it. A reader that has
/// it open goes on in it.
///
/// # Errors
/// The system's error; [`io::ErrorKind::WouldBlock`] while a recorder writes there.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    // No recorder begins there while it is renamed.
    let _lock = Directory::lock(path, Io::Buffered)?;
    let aside = |number| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    for free in (1..MOST_ASIDE).map(aside) {
        match renameat_with(CWD, path, CWD, &free, RenameFlags::NOREPLACE) {
            Ok(()) => {
                sync_parent(path)?;
                return Ok(free);
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other(format!("{}.1 to .{MOST_ASIDE} exist: remove some", path.display())))
}
