//! A hold keeps files of a journal, regardless of their age and size.
//!
//! The hold is a file `NAME.hold` in the folder of a stream. It contains the first sequence to keep, and keeps only files of this stream.
//! Outside the folders of streams, such a file has no effect.

use crate::directory::{open_directory, remove};
use crate::names::is_named;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, openat, renameat, statat};
use rustix::io::Errno;
use rustix::process::geteuid;
use shmcast::StreamId;
use shmcast::journal::folder_of;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The file that a process locks while it writes a hold or removes files.
const LOCK: &str = "holds.lock";
/// The longest wait for this lock.
const PATIENCE: Duration = Duration::from_secs(2);
/// The pause between two attempts to take the lock.
const PAUSE: Duration = Duration::from_millis(5);
/// The ending of a hold's file name.
const ENDING: &str = ".hold";
/// Longest name of a hold in bytes.
const MOST_NAME: usize = 64;
/// The largest number of bytes that are read from a hold's file. A hold's file is shorter: it contains one number and a newline.
const MOST_BYTES: u64 = 64;

/// A hold: a note that files of a stream must be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionHold {
    /// The name of the hold.
    pub name: String,
    /// The first sequence to keep. Files with this sequence or a later one stay. 0 if the hold cannot be read, so that all files stay.
    pub from: u64,
}

/// Keeps the files that have the sequence `from` or a later one, until the hold is [released](release). Applies only to files of `stream`
/// in the journal's directory at `path`. Replaces a hold of the same name.
///
/// After this call, [`Keep::bytes`](crate::Keep::bytes) and [`Keep::age`](crate::Keep::age) do not remove any of these files.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if the name is not valid. A valid name has 1 to 64 letters, digits, `.`, `_` and `-`, and does not begin
/// with a `.`. All other errors are those of the system.
pub fn hold(path: &Path, stream: StreamId, name: &str, from: u64) -> io::Result<()> {
    let file_name = file_name(name)?;
    let _lock = lock_holds(&open_directory(path)?)?;
    let directory = open_directory(&folder_of(path, stream))?;
    let unfinished = format!(".{file_name}.tmp");
    remove(&directory, &unfinished)?;
    // The file is readable for all users, because the recorder might run as another user. The directory's mode keeps other users out.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&directory, &unfinished, flags, Mode::from_raw_mode(0o644))?;
    let mut file = File::from(file);
    writeln!(file, "{from}").and_then(|()| file.sync_all())?;
    renameat(&directory, &unfinished, &directory, &file_name)?;
    directory.sync_all()
}

/// Removes a hold. Returns whether it existed.
///
/// # Errors
/// The same errors as for [`hold`].
pub fn release(path: &Path, stream: StreamId, name: &str) -> io::Result<bool> {
    let file_name = file_name(name)?;
    let _lock = lock_holds(&open_directory(path)?)?;
    let directory = open_directory(&folder_of(path, stream))?;
    let is_there = holds_of(&directory)?.iter().any(|hold| hold.name == name);
    remove(&directory, &file_name)?;
    directory.sync_all()?;
    Ok(is_there)
}

/// The holds in the folder of a stream, by name.
///
/// # Errors
/// The system's error.
pub fn holds(folder: &Path) -> io::Result<Vec<RetentionHold>> {
    holds_of(&open_directory(folder)?)
}

pub(crate) fn holds_of(directory: &File) -> io::Result<Vec<RetentionHold>> {
    let mut holds = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().ok().and_then(|name| name.strip_suffix(ENDING)) else {
            continue;
        };
        if check(name).is_ok() {
            holds.push(RetentionHold { name: name.to_owned(), from: read(directory, name).unwrap_or(0) });
        }
    }
    holds.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(holds)
}

/// Takes the lock for writing holds and removing files. Only one process at a time has this lock. Dropping the result frees it.
///
/// The lock is on a file that only the directory's owner and root can open. The directory itself is not locked, because any user who can
/// read a directory can lock it.
pub(crate) fn lock_holds(directory: &File) -> io::Result<File> {
    let until = Instant::now() + PATIENCE;
    loop {
        let lock = lock_file(directory)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_named(&lock, statat(directory, LOCK, AtFlags::SYMLINK_NOFOLLOW))? => {
                return Ok(lock);
            }
            Ok(()) => continue,
            Err(Errno::WOULDBLOCK) if Instant::now() < until => sleep(PAUSE),
            Err(Errno::WOULDBLOCK) => {
                let why = format!("another process has had {LOCK} locked for {} s", PATIENCE.as_secs());
                return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// Opens the lock's file. A missing file is created, and gets the directory's owner.
fn lock_file(directory: &File) -> io::Result<File> {
    let (flags, mode) = (OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    match openat(directory, LOCK, flags, Mode::empty()) {
        Ok(lock) => return Ok(lock.into()),
        Err(Errno::NOENT) => {}
        Err(e) => return Err(e.into()),
    }
    let lock = match openat(directory, LOCK, flags | OFlags::CREATE | OFlags::EXCL, mode) {
        Ok(lock) => lock,
        Err(Errno::EXIST) => return lock_file(directory),
        Err(e) => return Err(e.into()),
    };
    let owner = directory.metadata()?;
    if owner.uid() != geteuid().as_raw() {
        std::os::unix::fs::fchown(&lock, Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok(lock.into())
}

fn read(directory: &File, name: &str) -> Option<u64> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(directory, format!("{name}{ENDING}"), flags, Mode::empty()).ok()?;
    let mut text = String::new();
    File::from(file).take(MOST_BYTES).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn file_name(name: &str) -> io::Result<String> {
    check(name).map(|()| format!("{name}{ENDING}"))
}

fn check(name: &str) -> io::Result<()> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=MOST_NAME).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_fine) {
        return Ok(());
    }
    let why = format!(
        "{name:?} is no name of a hold: give 1 to {MOST_NAME} letters, digits, . _ and -, no . first"
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}
