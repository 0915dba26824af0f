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

    /// Whether a recorder is starting, or is recording. Even before the recorder has its first file, it can have taken messages from the
    /// ring. The result is false while the recorder waits for the channel's previous recorder: it has then taken no messages, and the wait
    /// can be long.
    pub(super) fn may_record(&self) -> bool {
        let state = self.state();
        !state.is_waiting && matches!(state.name(), "starting" | "recording")
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
            // If no stream is recorded yet, a recorder is starting, and will continue the journal or report the lost messages. If the
            // reader's stream is recorded, the journal might be of an earlier stream, because the recorder has no file of the new stream
            // yet.
            let is_recorded = recorded == journal.stream() || recorded == stream;
            let is_recording = may_record && (recorded.is_none() || is_recorded);
            Ok(journal.lend(wanted, read)?.map(|lent| Loan { lent, is_recording }))
        });
        Ok(loan?.flatten())
    }
}

#[cfg(test)]
mod tests {
    //! Tests for earlier mistakes: readers gave up the journal of a recorder that had no file yet, and lost messages that it recorded.

    use super::*;
    use crate::config::Config;
    use crate::server::events::Events;
    use crate::server::journals::{Journals, Recorders};
    use shmcast_testkit::wait_until;
    use std::sync::mpsc::channel;
    use std::thread::spawn;

    #[test]
    fn a_recorder_without_a_file_is_waited_for() {
        let room = tempfile::tempdir().unwrap();
        let dir = room.path().join("journal");
        let open = |name: &str| {
            shmcast::Publisher::builder(name).dir(room.path()).capacity(64 << 10).open().unwrap()
        };
        let text =
            format!("[[channel]]\nname = \"a\"\ncapacity = \"64KiB\"\njournal = {{ dir = {dir:?} }}\n");
        let config = Config::parse(&text, "test").unwrap();
        let recording = Recording::new("a", config.channels[0].journal.as_ref().unwrap());
        let ask = |stream: StreamId| {
            let asked = Asked { stream: Some(stream), wanted: Wanted::Sequence(7), read: None };
            recording.lend(asked).unwrap().map(|loan| loan.is_recording)
        };
        let earlier = open("a");
        let [earlier_stream, new] = [earlier.header().stream, open("b").header().stream];
        assert_eq!((ask(new), recording.may_record()), (None, true));
        std::fs::create_dir(&dir).unwrap();
        shmcast::journal::create(&dir, earlier.header()).unwrap();
        assert_eq!(ask(new), Some(true));
        recording.state().stream = Some(earlier_stream);
        assert_eq!(ask(new), Some(true), "the recorder might be about to change to the new stream");
        recording.state().stream = Some(new);
        assert_eq!(ask(new), Some(true), "the recorder has just begun the new stream");
        assert_eq!(ask(earlier_stream), Some(false));
        recording.fail(&Events::new(1, 0), "no space");
        assert_eq!((ask(new), recording.may_record()), (Some(false), false));
    }

    /// An earlier mistake: readers waited seconds for a recorder that could not start yet, and then failed.
    #[test]
    fn a_recorder_that_waits_for_the_one_before_is_not_waited_for() {
        let room = tempfile::tempdir().unwrap();
        let dir = room.path().join("journal");
        let text =
            format!("[[channel]]\nname = \"a\"\ncapacity = \"64KiB\"\njournal = {{ dir = {dir:?} }}\n");
        let config = Config::parse(&text, "test").unwrap();
        let journals = Journals::default();
        let events = Events::new(1, 0);
        let mut recorders = Recorders::new(journals.clone(), events, room.path().join("no daemon"));
        let (ends, is_ended) = channel::<()>();
        recorders.leaving.insert("a".to_owned(), spawn(move || assert!(is_ended.recv().is_err())));
        recorders.apply(&config.channels);
        let state = || journals.status("a").unwrap().state;
        assert_eq!((&state()[..], journals.may_record("a")), ("starting", false));
        drop(ends);
        wait_until("the next recorder's attempt", || state() == "failed");
        assert!(!journals.find("a").unwrap().state().is_waiting);
        recorders.stop(|_| None);
    }
}
