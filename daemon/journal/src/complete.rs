//! The names of a recording's complete files. The recorder has closed these files, and knows only their names.
//!
//! Another program might remove such a file, and with it messages that were reported as durable. So the recorder compares the names with
//! the folder from time to time. A file that retention removes does not count as missing.

use rustix::fs::Dir;
use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The shortest time from one comparison of names to the next.
const LOOK: Duration = Duration::from_secs(1);
/// Comparisons of names take at most a share of `1 / FRACTION` of the time.
const FRACTION: u32 = 20;

#[derive(Debug, Default)]
pub(crate) struct Complete {
    names: Mutex<Names>,
    /// This lock is held during a comparison, and while retention removes files. Take it before the other locks.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct Names {
    /// The files that were completed, without those that retention has removed.
    complete: BTreeSet<String>,
    /// A file that the last comparison did not find.
    missing: Option<String>,
    /// The earliest time of the next comparison.
    next: Option<Instant>,
}

impl Complete {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().expect("nobody panics while holding it")
    }

    /// Waits for the turn, which one thread has at a time. Only the thread with the turn compares names or removes files.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the turn to compare names or remove files, without waiting. Returns `None` if another thread has the turn.
    pub(crate) fn try_turn(&self) -> Option<MutexGuard<'_, ()>> {
        match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Adds the name of a completed file. Then compares all names with the folder, if the last comparison was long enough ago.
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

    /// Notes that retention has removed a file. The caller must have the turn.
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
        // This copy does not have files that are completed during the comparison.
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
