//! The files of a journal that the daemon lends to readers.

use super::Recording;
use shmcast::StreamId;
use shmcast::journal::{JournalError, Lent, Streams, Wanted};
use std::sync::{MutexGuard, PoisonError};

/// A reader's request for a file.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// The stream; the newest stream if `None`.
    pub stream: Option<StreamId>,
    /// The message that the reader wants.
    pub wanted: Wanted,
    /// The salt of the file that the reader has read to its end.
    pub read: Option<u64>,
}

/// A file for a reader.
#[derive(Debug)]
pub struct Loan {
    /// The lent file.
    pub lent: Lent,
    /// Whether a recorder appends to the journal, or is about to.
    pub is_recording: bool,
}

impl Recording {
    /// Calls `run` with the lists of files as they were at the last `refresh`, or with newer lists. Returns `None` if the directory does
    /// not exist yet.
    pub(super) fn with_files<T>(
        &self,
        run: impl FnOnce(&mut Streams) -> Result<T, JournalError>,
    ) -> Result<Option<T>, JournalError> {
        let mut files = self.files();
        if files.is_none() {
            match Streams::open(&self.config.dir) {
                Ok(streams) => *files = Some(streams),
                Err(JournalError::Os { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
        }
        files.as_mut().map(run).transpose()
    }

    fn files(&self) -> MutexGuard<'_, Option<Streams>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the lists of files, because the journal's path might now lead to another directory.
    pub(super) fn forget_files(&self) {
        *self.files() = None;
    }

    pub(super) fn lend(&self, Asked { stream, wanted, read }: Asked) -> Result<Option<Loan>, JournalError> {
        let (recorded, may_record) = {
            let state = self.state();
            (state.stream, state.why.is_none())
        };
        let loan = self.with_files(|streams| {
            let Some(journal) = streams.find(stream)? else { return Ok(None) };
            // The directory might have the journal of another channel, which these readers might not be allowed to read.
            if journal.files().iter().any(|file| file.header.channel != self.channel) {
                return Ok(None);
            }
            // If nothing is recorded yet, a recorder is starting. The recorder will continue the journal, or report what is lost.
            let is_recording = may_record && (recorded.is_none() || recorded == journal.stream());
            Ok(journal.lend(wanted, read)?.map(|lent| Loan { lent, is_recording }))
        });
        Ok(loan?.flatten())
    }
}
