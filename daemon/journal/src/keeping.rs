//! Removes the oldest files of a journal according to limits (retention).

use crate::directory::{at, open_directory, remove};
use crate::holds::{RetentionHold, holds_of, lock_holds};
use rustix::fs::{OFlags, fstatvfs};
use rustix::io::Errno;
use shmcast::StreamId;
use shmcast::journal::format::SPARE;
use shmcast::journal::{FileInfo, Journal, Streams};
use shmcast::sys::lease::is_open_elsewhere;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// One lock for each file system. With it, threads trim journals on the same file system one after another, and each measures the free
/// space after the files of the previous journal were removed.
static TURNS: Mutex<BTreeMap<u64, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());

/// The limits for the files of a journal that are kept. By default, all files are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keep {
    /// The greatest number of bytes that all files together may have.
    pub bytes: Option<u64>,
    /// The longest time for which a complete file is kept, counted from the beginning of the next file.
    pub age: Option<Duration>,
    /// The least number of bytes that must stay free on the file system.
    pub free: Option<u64>,
}

/// The files that were removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trimmed {
    /// Names of the files that are gone, oldest first.
    pub gone: Vec<String>,
    /// Names of the holds whose files were removed nevertheless, because the file system had too little free space.
    pub broken: Vec<String>,
    /// The number of bytes that must still become free to reach the required free space.
    pub lacking: u64,
    /// The number of files that stay although too little space is free. Removing these files would free little or nothing, because
    /// processes have them open, or because they have other names.
    pub vain: usize,
}

impl Keep {
    /// Removes the oldest files in a journal's directory until the rest is within the limits. Files of the oldest stream go first.
    ///
    /// - Only complete files are removed. The last file of the stream `own`, which is being recorded, always stays.
    /// - In each stream, the oldest files go first, so the remaining files have no holes between them.
    /// - Files that are [held](crate::hold) stay, unless there is too little free space.
    /// - The removal of a file that a process has open frees no space at once. To gain space, open files are removed only together with
    ///   newer files whose removal frees space. Together, the open files must not be larger than these newer files, or than the missing
    ///   space. So readers that keep files open do not cause the removal of the whole journal.
    ///
    /// Adds the removed files to `trimmed`, even if this call fails. Refresh `streams` if a file was removed.
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
        let turn = self.free.map(|_| turn_at(&directory)).transpose()?;
        let _turn = turn.as_ref().map(|turn| turn.lock().unwrap_or_else(PoisonError::into_inner));
        // While this lock is held, a process that writes a hold waits. After that, it sees the remaining files.
        let _lock = lock_holds(&directory)?;
        let bytes = streams.journals().iter().flat_map(Journal::files).map(|file| file.bytes).sum();
        let lacking = self.lacking(&directory)?;
        let mut excess = Excess { keep: self, wall_ns, bytes, lacking, is_vain: false, trimmed };
        let mut done = Ok(());
        for (at, journal) in streams.journals().iter().enumerate() {
            let is_own = own.is_none() || journal.stream() == own;
            // The last file of a stream was complete when the next stream's first file began.
            let later = streams.journals()[at + 1..].iter().find_map(|later| later.files().first());
            let over = later.map(|file| file.header.wall_ns);
            done = done.and_then(|()| excess.trim(journal, is_own || journal.is_recording(), over));
        }
        excess.trimmed.lacking = excess.lacking;
        done
    }

    /// Returns how many bytes must become free to reach the required free space.
    fn lacking(&self, directory: &File) -> io::Result<u64> {
        let Some(least) = self.free else { return Ok(0) };
        let room = fstatvfs(directory)?;
        Ok(least.saturating_sub(room.f_bavail.saturating_mul(room.f_frsize)))
    }
}

/// Returns the lock for the file system of a directory.
fn turn_at(directory: &File) -> io::Result<Arc<Mutex<()>>> {
    let device = directory.metadata()?.dev();
    Ok(TURNS.lock().unwrap_or_else(PoisonError::into_inner).entry(device).or_default().clone())
}

/// The state of a removal: the limits, and the bytes that must still be removed.
struct Excess<'a> {
    keep: &'a Keep,
    wall_ns: u64,
    /// The size of all remaining files together, in bytes.
    bytes: u64,
    /// The number of bytes that must still become free to reach the required free space.
    lacking: u64,
    /// Whether a removal freed no space on a file system that does not show which files are open.
    is_vain: bool,
    trimmed: &'a mut Trimmed,
}

/// The space that the removal of a file frees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gives {
    Room,
    Nothing,
    /// Unknown, because the file system does not report whether a file is open.
    Unknown,
}

impl Excess<'_> {
    /// Removes files of a stream, oldest first. If `is_recorded`, the last file stays, because it is being written. Otherwise the last
    /// file, which was complete at `over_ns`, can also be removed.
    fn trim(&mut self, journal: &Journal, is_recorded: bool, over_ns: Option<u64>) -> io::Result<()> {
        let folder = open_directory(journal.path())?;
        let holds = holds_of(&folder)?;
        let files = journal.files();
        // All files below index `kept` are removed. The files `kept..at` have `bytes` bytes, but their removal would free only `gain`
        // bytes.
        let (mut kept, mut at, mut bytes, mut gain) = (0, 0, 0, 0);
        while let Some(file) = files.get(at) {
            let next = files.get(at + 1);
            let is_over = !is_recorded || next.is_some() && is_over(file, &files[at + 1..]);
            let since = over_at(&files[at..], over_ns, self.wall_ns);
            let is_due = self.is_due(since, held(&holds, next).next().is_some());
            if !is_over || !(is_due || self.lacking > 0) {
                break;
            }
            let gives = if self.lacking > 0 { self.gives(&folder, file)? } else { Gives::Room };
            at += 1;
            bytes += file.bytes;
            if gives != Gives::Nothing {
                gain += file.bytes;
            }
            if !is_due && (gives == Gives::Nothing || bytes - gain > gain.max(self.lacking)) {
                if gain >= self.lacking {
                    break;
                }
                continue;
            }
            for file in &files[kept..at] {
                remove(&folder, &file.name)?;
                kept += 1;
                self.bytes -= file.bytes;
                self.trimmed.gone.push(file.name.clone());
                for hold in held(&holds, files.get(kept)) {
                    if !self.trimmed.broken.contains(&hold.name) {
                        self.trimmed.broken.push(hold.name.clone());
                    }
                }
            }
            if gives == Gives::Unknown {
                let before = std::mem::replace(&mut self.lacking, self.keep.lacking(&folder)?);
                self.is_vain = self.lacking >= before;
            } else {
                self.lacking = self.lacking.saturating_sub(gain);
            }
            (bytes, gain) = (0, 0);
        }
        self.trimmed.vain += at - kept;
        // A folder without files stays, because a recorder might be about to lock it.
        let is_over = !is_recorded && !files.is_empty() && kept == files.len();
        if is_over { remove_folder(journal, &folder) } else { Ok(()) }
    }

    /// Whether the limit of bytes or the limit of age requires the removal of a file that was complete at `since_ns`. These limits never
    /// require the removal of a held file.
    fn is_due(&self, since_ns: u64, is_held: bool) -> bool {
        let is_too_much = self.keep.bytes.is_some_and(|most| self.bytes > most);
        let age = Duration::from_nanos(self.wall_ns.saturating_sub(since_ns));
        let is_too_old = self.keep.age.is_some_and(|most| age > most);
        (is_too_much || is_too_old) && !is_held
    }

    fn gives(&self, folder: &File, file: &FileInfo) -> io::Result<Gives> {
        let open = match at(folder, &file.name, OFlags::RDONLY) {
            Ok(open) => open,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Gives::Nothing),
            Err(error) => return Err(error),
        };
        let has_other_names = open.metadata()?.nlink() > 1;
        Ok(match is_open_elsewhere(&open) {
            Ok(is_open) if is_open || has_other_names => Gives::Nothing,
            Ok(_) => Gives::Room,
            Err(_) if has_other_names || self.is_vain => Gives::Nothing,
            Err(_) => Gives::Unknown,
        })
    }
}

/// Returns the holds that keep the file before `next`.
fn held<'a>(
    holds: &'a [RetentionHold],
    next: Option<&Arc<FileInfo>>,
) -> impl Iterator<Item = &'a RetentionHold> {
    let end = next.map_or(u64::MAX, |next| next.header.sequence);
    holds.iter().filter(move |hold| hold.from < end)
}

/// Removes the folder of a stream that has no files any more, unless the folder has other contents.
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

/// Returns the time at which the first of `files` was complete. This is the time at which the second file began, or `last_ns` if there is no
/// second file.
///
/// If the clock was set back, these times can be later than the present time `wall_ns`. A later time is ignored: the beginning of the next
/// file is tried, then of the file after that, and so on, and `last_ns` at the end. If no time is left, the result is `wall_ns`. The result
/// is at least the beginning of the first file, if that beginning is not later than `wall_ns`.
fn over_at(files: &[Arc<FileInfo>], last_ns: Option<u64>, wall_ns: u64) -> u64 {
    let has_been = |ns: &u64| *ns <= wall_ns;
    let later = files.iter().skip(1).map(|file| file.header.wall_ns).chain(last_ns);
    let begun = files.first().map(|file| file.header.wall_ns).filter(has_been).unwrap_or(0);
    later.into_iter().find(has_been).unwrap_or(wall_ns).max(begun)
}

/// Whether a file is complete: it has a trailer, or it was abandoned and a later file is sealed (finished). An abandoned file gets its
/// trailer only at the next recovery, but the later files have all records that it lacks. Several files in a row can be abandoned.
fn is_over(file: &FileInfo, later: &[Arc<FileInfo>]) -> bool {
    file.trailer.is_some() || (file.is_given_up() && later.iter().any(|later| later.trailer.is_some()))
}
