//! The names of a recording's complete files. The recorder has closed these files, so it can check only whether their names still exist.
//!
//! Another program might remove such a file, and with it messages that were reported as durable. So the recorder compares the names with
//! the folder from time to time. A file that retention removes does not count as missing.

use rustix::fs::Dir;
use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The shortest time from one comparison of names to the next one.
const LOOK: Duration = Duration::from_secs(1);
/// After a comparison of names, the next one waits for at least `FRACTION` times the duration of the comparison.
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
    /// The name of a complete file that the last comparison did not find in the folder.
    missing: Option<String>,
    /// The earliest time of the next comparison.
    next: Option<Instant>,
}

impl Complete {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().expect("nobody panics while holding it")
    }

    /// Waits for the turn: the lock that a thread must hold while it compares names or removes files.
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
            // If the folder cannot be listed now, a later call lists it.
            let _ = self.compare(folder);
        }
    }

    /// Notes that retention has removed a file. The caller must have the turn.
    pub(crate) fn remove(&self, name: &str) {
        self.names().complete.remove(name);
    }

    /// Returns the name of a complete file that the last comparison did not find; `None` if it found all.
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
        // Names that are added during the comparison are not in this copy, so they cannot count as missing.
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
