//! Which files of a journal are kept.

use crate::core::Io;
use crate::directory::{Directory, open_directory, remove, sync_parent};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use shmcast::journal::Journal;
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
}

impl Keep {
    /// Removes the oldest files of a journal, until the rest is within the limits. Only files that are sealed, or that were given up after
    /// an error of the disk, are removed, and never the last one, so that the rest is one piece. The result is the names of the files
    /// that are gone; `journal` must be refreshed then.
    ///
    /// # Errors
    /// The system's error, at the first file that cannot be removed.
    pub fn trim(&self, journal: &Journal, wall_ns: u64) -> io::Result<Vec<String>> {
        let files = journal.files();
        let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
        let handle = open_directory(journal.path())?;
        let mut gone = Vec::new();
        for (file, next) in files.iter().zip(files.iter().skip(1)) {
            let is_too_much = self.bytes.is_some_and(|most| bytes > most);
            let age = Duration::from_nanos(wall_ns.saturating_sub(next.header.wall_ns));
            let is_too_old = self.age.is_some_and(|most| age > most);
            // A file that was given up stays without a trailer until the next recovery. A sealed one behind it has what it had not written.
            let is_over = file.trailer.is_some() || (file.is_given_up() && next.trailer.is_some());
            if !is_over || !(is_too_much || is_too_old) {
                break;
            }
            remove(&handle, &file.name)?;
            bytes -= file.bytes;
            gone.push(file.name.clone());
        }
        Ok(gone)
    }
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
