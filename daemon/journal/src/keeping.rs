//! Which files of a journal are kept.

use crate::directory::{open_directory, remove};
use crate::holds::{holds_of, lock_holds};
use rustix::fs::fstatvfs;
use rustix::io::Errno;
use shmcast::StreamId;
use shmcast::journal::format::SPARE;
use shmcast::journal::{FileInfo, Journal, Streams};
use std::fs::File;
use std::io;
use std::time::Duration;

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
    /// Removes the oldest files in a journal's directory, those of the oldest stream first, until the rest is within the limits. Only files
    /// to which nothing is added any more are removed, and of the stream `own`, which is recorded, never the last one. The rest of a stream
    /// is one piece. Files that are [held](crate::hold) stay, unless there is too little room. `trimmed` is added to, also if this
    /// fails; `streams` must be refreshed if a file is gone.
    ///
    /// # Errors
    /// The system's error, at the first file that cannot be removed.
    pub fn trim(
        &self,
        streams: &Streams,
        own: Option<StreamId>,
        wall_ns: u64,
        trimmed: &mut Trimmed,
    ) -> io::Result<()> {
        if *self == Self::default() {
            return Ok(());
        }
        let directory = open_directory(streams.path())?;
        // Whoever notes a hold waits until this is over, and so sees what is left.
        let _lock = lock_holds(&directory)?;
        let bytes = streams.journals().iter().flat_map(Journal::files).map(|file| file.bytes).sum();
        let mut excess = Excess { keep: self, wall_ns, bytes, lacking: self.lacking(&directory)?, trimmed };
        for (at, journal) in streams.journals().iter().enumerate() {
            let is_own = own.is_none() || journal.stream() == own;
            // The time at which the last file of a stream was over.
            let later = streams.journals()[at + 1..].iter().find_map(|later| later.files().first());
            excess.trim(journal, is_own || journal.is_recording(), later.map(|file| file.header.wall_ns))?;
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

/// The files and bytes that are to go.
struct Excess<'a> {
    keep: &'a Keep,
    wall_ns: u64,
    /// Bytes of all files that are left.
    bytes: u64,
    /// Bytes that the file system lacks.
    lacking: u64,
    trimmed: &'a mut Trimmed,
}

impl Excess<'_> {
    /// Removes files of a stream. Of one that `is_recorded` the last file stays; that of another one was over at `over_ns`.
    fn trim(&mut self, journal: &Journal, is_recorded: bool, over_ns: Option<u64>) -> io::Result<()> {
        let folder = open_directory(journal.path())?;
        let holds = holds_of(&folder)?;
        let files = journal.files();
        for (at, file) in files.iter().enumerate() {
            let next = files.get(at + 1);
            let is_over = !is_recorded || next.is_some_and(|next| is_over(file, next));
            let end = next.map_or(u64::MAX, |next| next.header.sequence);
            let since = next.map(|next| next.header.wall_ns).or(over_ns).unwrap_or(self.wall_ns);
            let held: Vec<_> = holds.iter().filter(|hold| hold.from < end).collect();
            if !is_over || !self.is_to_go(since, !held.is_empty()) {
                return Ok(());
            }
            remove(&folder, &file.name)?;
            for hold in held {
                if !self.trimmed.broken.contains(&hold.name) {
                    self.trimmed.broken.push(hold.name.clone());
                }
            }
            self.bytes -= file.bytes;
            // A reader that has the file open keeps its room for a while. That costs no second file.
            self.lacking = self.lacking.saturating_sub(file.bytes);
            self.trimmed.gone.push(file.name.clone());
        }
        // A folder without a file may be one that a recorder is about to lock.
        if is_recorded || files.is_empty() { Ok(()) } else { remove_folder(journal, &folder) }
    }

    /// Whether a file is to go that was over at this time.
    fn is_to_go(&self, since_ns: u64, is_held: bool) -> bool {
        let is_too_much = self.keep.bytes.is_some_and(|most| self.bytes > most);
        let age = Duration::from_nanos(self.wall_ns.saturating_sub(since_ns));
        let is_too_old = self.keep.age.is_some_and(|most| age > most);
        self.lacking > 0 || ((is_too_much || is_too_old) && !is_held)
    }
}

/// Removes the folder of a stream of which no file is left, unless something else lies in it.
fn remove_folder(journal: &Journal, folder: &File) -> io::Result<()> {
    if !journal.problems().is_empty() {
        return Ok(());
    }
    remove(folder, SPARE)?;
    remove(folder, "lock")?;
    match rustix::fs::rmdir(journal.path()) {
        Err(error) if error != Errno::NOTEMPTY && error != Errno::NOENT => Err(error.into()),
        _ => Ok(()),
    }
}

/// Whether nothing is added to a file any more. One that was given up stays without a trailer until the next recovery: a sealed one behind
/// it has what it had not written.
fn is_over(file: &FileInfo, next: &FileInfo) -> bool {
    file.trailer.is_some() || (file.is_given_up() && next.trailer.is_some())
}
