//! Which files of a journal are kept.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, openat, renameat_with, unlinkat};
use rustix::io::Errno;
use shmcast::journal::Journal;
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
}

impl Keep {
    /// Removes the oldest files of a journal, until what is left is within the limits. Only whole files that are sealed are removed, and
    /// never the last one, so that the rest is one piece. Returns the names of what is gone; `journal` must be refreshed then.
    ///
    /// # Errors
    /// Of the system, at the first file that cannot be removed.
    pub fn trim(&self, journal: &Journal, wall_ns: u64) -> io::Result<Vec<String>> {
        let files = journal.files();
        let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
        let handle = directory(journal.path())?;
        let mut gone = Vec::new();
        for (file, next) in files.iter().zip(files.iter().skip(1)) {
            let is_too_much = self.bytes.is_some_and(|most| bytes > most);
            let age = Duration::from_nanos(wall_ns.saturating_sub(next.header.wall_ns));
            let is_too_old = self.age.is_some_and(|most| age > most);
            if file.trailer.is_none() || !(is_too_much || is_too_old) {
                break;
            }
            remove(&handle, &file.name)?;
            bytes -= file.bytes;
            gone.push(file.name.clone());
        }
        Ok(gone)
    }
}

fn directory(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?.into())
}

fn remove(directory: &File, name: &str) -> io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Gives the journal at `path` another name, the first of `path.1`, `path.2` and so on that is free, and returns it. A reader that has
/// it open goes on in it.
///
/// # Errors
/// Of the system; [`io::ErrorKind::WouldBlock`] while a recorder writes there.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    // No recorder begins there while it is renamed.
    let _lock = crate::directory::Directory::lock(path)?;
    let aside = |number| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    for free in (1..MOST_ASIDE).map(aside) {
        match renameat_with(CWD, path, CWD, &free, RenameFlags::NOREPLACE) {
            Ok(()) => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                directory(parent.unwrap_or(Path::new(".")))?.sync_all()?;
                return Ok(free);
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other(format!("{}.1 to .{MOST_ASIDE} exist: remove some", path.display())))
}
