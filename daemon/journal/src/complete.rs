//! The complete files of a recording. They are closed, so the recorder knows only their names.
//!
//! If another program removes such a file, nobody can read its messages, although they were called durable. So the names are compared with
//! the folder from time to time. Files that retention removes are not missing.

use rustix::fs::Dir;
use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The shortest time between two comparisons when files are completed.
const LOOK: Duration = Duration::from_secs(1);
/// A comparison takes at most this fraction of the time.
const FRACTION: u32 = 20;

#[derive(Debug, Default)]
pub(crate) struct Complete {
    names: Mutex<Names>,
    /// Held during a comparison, and while retention removes files. Take it before the other locks.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct Names {
    /// The files that were completed, without those that retention has removed.
    complete: BTreeSet<String>,
    /// A file that the last comparison did not find.
    missing: Option<String>,
    /// When the folder may be listed again.
    next: Option<Instant>,
}

impl Complete {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().expect("nobody panics while holding it")
    }

    /// Waits until no other thread compares or removes files, and keeps others away.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the same without waiting. Returns `None` if another thread compares or removes files.
    pub(crate) fn try_turn(&self) -> Option<MutexGuard<'_, ()>> {
        match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Adds a file that was completed. Compares all names with the folder, if the last comparison was long enough ago.
    pub(crate) fn add(&self, name: String, folder: &File) {
        let is_due = {
            let mut names = self.names();
            names.complete.insert(name);
            names.next.is_none_or(|next| Instant::now() >= next)
        };
        if is_due && let Some(_turn) = self.try_turn() {
            // A folder that cannot be listed now is listed later.
            let _ = self.compare(folder);
        }
    }

    /// Notes that retention has removed a file. The caller has the turn.
    pub(crate) fn remove(&self, name: &str) {
        self.names().complete.remove(name);
    }

    /// Returns a file that the last comparison did not find.
    pub(crate) fn missing(&self) -> Option<String> {
        self.names().missing.clone()
    }

    /// Compares all names with the folder.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn look(&self, folder: &File) -> io::Result<()> {
        let _turn = self.turn();
        self.compare(folder)
    }

    fn compare(&self, folder: &File) -> io::Result<()> {
        let begun = Instant::now();
        // A file that is completed meanwhile is not in the list of names yet.
        let complete = self.names().complete.clone();
        let entries = Dir::read_from(folder)?;
        let found = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let found = found.collect::<io::Result<HashSet<String>>>()?;
        let missing = complete.into_iter().find(|name| !found.contains(name));
        let mut names = self.names();
        names.missing = missing;
        names.next = Some(Instant::now() + LOOK.max(begun.elapsed() * FRACTION));
        Ok(())
    }
}
