//! The reasons why a channel is not recorded.

use crate::Progress;
use crate::core::{NEXT_FILE, RecoverError};
use shmcast::journal::JournalError;
use shmcast::{LocateError, RecvError};
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// An error of the disk that does not end the recording.
#[derive(Debug, Error)]
#[error("{what}: {error}: it {}", self.then())]
pub struct DiskError {
    /// The operation that failed.
    pub what: &'static str,
    /// The system's error.
    pub error: io::Error,
}

impl DiskError {
    /// Returns the text about the recorder's reaction to the error.
    fn then(&self) -> &'static str {
        if self.what == NEXT_FILE { "is tried again" } else { "goes on in another file" }
    }
}

/// The reason why a channel could not be recorded, or why its recording ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Another recorder writes to the directory.
    #[error("{}: another recorder writes there: end it, or give another directory", path.display())]
    Busy {
        /// The journal's directory.
        path: PathBuf,
    },
    /// The system refused a call.
    #[error("{}: {source}", path.display())]
    Os {
        /// The journal's directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The journal could not be repaired after a crash.
    #[error("{}: {source}", path.display())]
    Recover {
        /// The journal's directory.
        path: PathBuf,
        /// The error of the repair.
        source: RecoverError,
    },
    /// The directory cannot be read, or has the journal of another channel, or has files outside of the streams' folders.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The journal has later sequences than the channel, although the journal and the channel have the same stream. The ring might be an
    /// older copy.
    #[error(
        "{}: the journal is at sequence {journal}, and the channel, of the same stream, at {channel}: it would give sequences again that \
         the journal has: begin the channel anew, or move this journal away", path.display()
    )]
    Behind {
        /// The journal's directory.
        path: PathBuf,
        /// The journal's next sequence.
        journal: u64,
        /// The channel's next sequence.
        channel: u64,
    },
    /// The directory, or a file in it, was removed or moved during the recording.
    #[error(
        "{}: {what} was removed or moved while it was recorded to: what was recorded cannot be read there any more; put it back, or begin \
         another recording",
        path.display()
    )]
    Moved {
        /// The journal's directory.
        path: PathBuf,
        /// The directory or file that has lost its name.
        what: String,
    },
    /// The channel was restarted during the recording. The journal has the whole previous stream.
    #[error(
        "the channel began anew, and its sequences count from 1: the new stream is to be recorded in a folder of its own"
    )]
    Restarted,
    /// The channel cannot be read any more.
    #[error(transparent)]
    Receive(#[from] RecvError),
    /// The recorder found no position in the ring at which to continue.
    #[error(transparent)]
    Locate(#[from] LocateError),
    /// The disk did not accept the last messages. They stay unrecorded, unless a later recorder still finds them in the ring.
    #[error("{}: the disk takes nothing: {lost} messages of the ring are not recorded{}", path.display(), because(last.as_ref()))]
    Unwritten {
        /// The journal's directory.
        path: PathBuf,
        /// The number of messages that were read but not written, or that are still in the ring. Skipped sequences do not count.
        lost: u64,
        /// Whether the channel was restarted meanwhile. If so, no later recorder finds these messages.
        is_over: bool,
        /// The last error of the disk that was not reported yet, with the name of the failed operation.
        last: Option<(&'static str, io::Error)>,
        /// The progress at the end.
        progress: Box<Progress>,
    },
}

fn because(last: Option<&(&'static str, io::Error)>) -> String {
    last.map_or_else(String::new, |(what, error)| format!(" ({what}: {error})"))
}

impl RecordError {
    /// Whether the channel was restarted. If so, the new stream needs a separate folder. The journal has all of the previous stream, except
    /// after [`Unwritten`](Self::Unwritten).
    pub fn is_restart(&self) -> bool {
        matches!(
            self,
            Self::Restarted | Self::Receive(RecvError::Superseded) | Self::Unwritten { is_over: true, .. }
        )
    }

    /// Whether the journal lacks messages that the recorder had read.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Unwritten { .. } | Self::Moved { .. })
    }

    /// Whether the system refused a thread or memory for now, so that another attempt might succeed soon.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Os { source, .. } if source.kind() == io::ErrorKind::WouldBlock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An earlier mistake: if no next file could be made, the text said that the recording goes on in another file.
    #[test]
    fn an_error_of_the_disk_says_what_the_recorder_does() {
        let told = |what| DiskError { what, error: io::Error::other("full") }.to_string();
        assert_eq!(told(NEXT_FILE), "make the next file: full: it is tried again");
        assert_eq!(told("write"), "write: full: it goes on in another file");
    }
}
