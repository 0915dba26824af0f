//! Waits for the recorder before a publisher continues after a long gap. The recorder writes a reserve into the journal, and the channel's
//! sequences must not pass this reserve.

use super::ending::reserve_in;
use super::{Journal, JournalError};
use rustix::fs::OFlags;
use shmcast_layout::journal::RESERVE;
use shmcast_layout::layout::geometry::MAX_SEQUENCE;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest time that a publisher waits for a recorder. The publisher checks after each `PAUSE`.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// Waits until the journal of a stream has a reserve beyond `next` that is safe from a power cut. A recorder writes this reserve.
///
/// # Errors
/// [`JournalError::Unreserved`] if the recorder does not write such a reserve within some seconds.
pub(crate) fn wait_for_reserve(path: &Path, next: u64) -> Result<(), JournalError> {
    let least = next.saturating_add(RESERVE / 4).min(MAX_SEQUENCE - 1);
    let until = Instant::now() + PATIENCE;
    let mut journal = Journal::unlisted(path)?;
    loop {
        match noted(&mut journal, least) {
            Ok(reserve) if reserve >= least => return Ok(()),
            Ok(_) => {}
            // A file can be renamed or removed between two checks.
            Err(JournalError::Os { source, .. }) if source.kind() == ErrorKind::NotFound => {}
            Err(other) => return Err(other),
        }
        if Instant::now() >= until {
            return Err(JournalError::Unreserved { path: path.to_owned(), next });
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns the greatest reserve (a sequence that no publisher passes) that is safe from a power cut. Reads the last file only if no file
/// header has a reserve of at least `least`.
fn noted(journal: &mut Journal, least: u64) -> Result<u64, JournalError> {
    journal.refresh()?;
    let reserve = journal.files().iter().map(|file| file.header.reserve).max().unwrap_or(0);
    let Some(last) = journal.files().last().filter(|_| reserve < least).cloned() else { return Ok(reserve) };
    // After this sync, all bytes that are read below are safe from a power cut, even bytes that another program has written.
    let synced = journal.folder().file(&last.name, OFlags::RDONLY).and_then(|file| file.sync_all());
    synced.map_err(JournalError::os("sync", journal.path_of(&last)))?;
    Ok(reserve.max(reserve_in(journal.open_file(&last)?, &journal.path_of(&last))?))
}
