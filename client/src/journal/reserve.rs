//! Waits for a recorder: before a publisher goes on behind a long gap, the journal says how far its sequences may have gone.

use super::ending::reserve_in;
use super::{Journal, JournalError};
use rustix::fs::OFlags;
use shmcast_layout::journal::RESERVE;
use shmcast_layout::layout::geometry::MAX_SEQUENCE;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a publisher waits for a recorder, and how often it looks.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until a reserve beyond `next` is safe from a power cut, in a journal that a recorder writes. It looks into the last file only
/// if no header says so.
///
/// # Errors
/// [`JournalError::Unreserved`] if the recorder does not note one within some seconds.
pub(crate) fn wait_for_reserve(path: &Path, next: u64) -> Result<(), JournalError> {
    let least = next.saturating_add(RESERVE / 4).min(MAX_SEQUENCE - 1);
    let until = Instant::now() + PATIENCE;
    let mut journal = Journal::unlisted(path)?;
    loop {
        journal.refresh()?;
        let noted = journal.files().iter().map(|file| file.header.reserve).max().unwrap_or(0);
        if noted >= least {
            return Ok(());
        }
        if let Some(last) = journal.files().last().cloned() {
            // What is read is safe then: another program's writes are in the same file.
            let synced = journal.folder().file(&last.name, OFlags::RDONLY).and_then(|file| file.sync_all());
            synced.map_err(JournalError::os("sync", journal.path_of(&last)))?;
            if reserve_in(journal.open_file(&last)?, &journal.path_of(&last))? >= least {
                return Ok(());
            }
        }
        if Instant::now() >= until {
            return Err(JournalError::Unreserved { path: path.to_owned(), next });
        }
        std::thread::sleep(PAUSE);
    }
}
