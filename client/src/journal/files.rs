//! The source of the files of a journal: a directory, or the daemon that owns the channel.

use super::JournalError;
use super::list::{Journal, Opened};
use crate::attach::connect::{Client, Conversation};
use shmcast_layout::control::{History, Request, Response};
use shmcast_layout::layout::stream::StreamId;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait of a lapped reader for a daemon's answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Time for which a reader repeats a request to a daemon that has too many requests.
const CROWDED: Duration = Duration::from_millis(1500);

/// The time for which a reader that is being opened waits for the return of a daemon that does not answer.
pub(crate) const PATIENCE_FOR_DAEMON: Duration = Duration::from_secs(10);

/// Pause between two searches for the next file in a directory.
const PAUSE_FOR_FILES: Duration = Duration::from_millis(20);
/// Pause between two searches for the next file, if each search is a request to a daemon.
const PAUSE_FOR_DAEMON: Duration = Duration::from_secs(1);

/// The files of one stream.
#[derive(Debug)]
pub(crate) struct Files {
    place: Place,
    /// The stream that is read. Files of another stream are an error. If the caller gave no stream, the stream of the first file is read.
    stream: Option<StreamId>,
}

/// The source of the files.
#[derive(Debug)]
enum Place {
    /// In a directory that this process can read.
    Directory(Journal),
    /// A daemon, which lends one file after the other.
    Daemon {
        client: Client,
        channel: String,
        /// Whether a recorder was appending to the journal when the daemon last answered.
        recording: bool,
    },
}

/// The file to read.
pub(super) struct Picked {
    pub(super) opened: Opened,
    pub(super) path: PathBuf,
    /// The offset at which the search should begin, if a daemon gave such an offset.
    pub(super) hint: Option<u64>,
    /// The sequence at which the file ends, because a later file begins there.
    pub(super) limit: Option<u64>,
}

/// The message that a reader requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The message with this sequence.
    Sequence(u64),
    /// The first message of this time or later, in nanoseconds of the wall clock since 1970.
    Time(u64),
}

/// A file of a journal that can be passed to another process.
#[derive(Debug)]
pub struct Lent {
    /// The file, opened for reading only. No other reader shares this open file.
    pub file: Arc<File>,
    /// The number.
    pub number: u64,
    /// The sequence due at the file's first frame.
    pub first: u64,
}

impl Journal {
    /// Opens the file that has the wanted message, to lend it to a reader in another process. Call [refresh](Self::refresh) before, so that
    /// the list has newer files.
    ///
    /// If the message is older than all files, this opens the oldest file. If the message is not recorded yet, it opens the newest file.
    /// Returns `None` if there is no file.
    ///
    /// `read` is the salt of a file that the reader has read to its end. Then a later file is lent, if there is one. A sequence instead of
    /// the salt would not be enough, because several files can begin with the same sequence.
    ///
    /// # Errors
    /// [`JournalError`] if the directory or the file cannot be read.
    ///
    /// ```no_run
    /// use shmcast::journal::{Journal, Wanted};
    /// let mut journal = Journal::open("/var/lib/shmcast/ticks")?;
    /// if let Some(lent) = journal.lend(Wanted::Sequence(4711), None)? {
    ///     println!("file {} begins at {}", lent.number, lent.first);
    /// }
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn lend(&mut self, wanted: Wanted, read: Option<u64>) -> Result<Option<Lent>, JournalError> {
        let read = self.files().iter().find(|file| Some(file.header.salt) == read);
        let read = read.map_or(0, |file| file.header.file);
        let picked = match self.pick(wanted, read)? {
            None if read > 0 => self.pick(wanted, 0)?,
            picked => picked,
        };
        Ok(picked.map(|Picked { opened: Opened { file, header, .. }, .. }| Lent {
            file,
            number: header.file,
            first: header.sequence,
        }))
    }

    /// Picks a file whose number is above `after`. If retention removed the file after the list was made, refreshes the list and tries
    /// again.
    fn pick(&mut self, wanted: Wanted, after: u64) -> Result<Option<Picked>, JournalError> {
        match pick_listed(self, wanted, after) {
            Err(JournalError::Os { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                self.refresh()?;
                pick_listed(self, wanted, after)
            }
            picked => picked,
        }
    }
}

impl Files {
    /// Reads the files in a directory.
    pub(crate) const fn of_directory(journal: Journal) -> Self {
        Self { place: Place::Directory(journal), stream: None }
    }

    /// Reads the files of a channel that the daemon lends.
    pub(crate) fn of_daemon(client: &Client, channel: &str) -> Self {
        let (client, channel) = (client.clone(), channel.to_owned());
        let place = Place::Daemon { client, channel, recording: false };
        Self { place, stream: None }
    }

    /// Restricts the files to those of one stream.
    pub(crate) fn of_stream(self, stream: StreamId) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// Picks the newest file that begins at or before the wanted message. If no file begins so early, picks the oldest file. Returns `None`
    /// if there is no file.
    pub(super) fn pick(&mut self, wanted: Wanted) -> Result<Option<Picked>, JournalError> {
        let picked = match &mut self.place {
            Place::Directory(journal) => journal.pick(wanted, 0)?,
            Place::Daemon { .. } => Some(self.ask(wanted, None)?),
        };
        self.check(picked)
    }

    /// Picks the file that comes after the file with this number and salt, which has no more messages. The next sequence is `due`.
    pub(super) fn pick_after(
        &mut self,
        (number, salt): (u64, u64),
        due: u64,
        end: Option<u64>,
    ) -> Result<Option<Picked>, JournalError> {
        let picked = if let Place::Directory(journal) = &mut self.place {
            journal.refresh()?;
            pick_listed(journal, Wanted::Sequence(due), number)?
        } else {
            let wanted = Wanted::Sequence(end.unwrap_or(due).max(due));
            match self.ask(wanted, Some(salt)) {
                // The daemon might be restarting, and the next daemon continues the journal. So the reader waits.
                Err(e) if e.is_absence() && self.is_recording() => return Ok(None),
                // Numbers cannot be compared here, because the daemon might record to another directory now.
                asked => Some(asked?).filter(|picked| picked.opened.header.salt != salt),
            }
        };
        self.check(picked)
    }

    /// Whether the journal has a file of the stream. To find out, this function opens the newest file that begins at the sequence `due` or
    /// before. If no file begins so early, it opens the oldest file.
    pub(crate) fn has_stream(&mut self, due: u64) -> Result<bool, JournalError> {
        match self.pick(Wanted::Sequence(due)) {
            Err(JournalError::OtherStream { .. }) => Ok(false),
            picked => Ok(picked?.is_some()),
        }
    }

    /// Returns an error if the file belongs to another stream than the files before it.
    fn check(&mut self, picked: Option<Picked>) -> Result<Option<Picked>, JournalError> {
        let Some(picked) = picked else { return Ok(None) };
        let found = picked.opened.header.stream;
        let wanted = *self.stream.get_or_insert(found);
        if !wanted.is(found) {
            return Err(JournalError::OtherStream { path: picked.path, found, wanted });
        }
        Ok(Some(picked))
    }

    /// Sends the request to the daemon. If the daemon answers that it has too many requests, this function pauses and sends the request
    /// again. The pause differs between readers.
    fn ask(&mut self, wanted: Wanted, read: Option<u64>) -> Result<Picked, JournalError> {
        let begun = Instant::now();
        loop {
            match self.ask_once(wanted, read) {
                Err(e) if e.is_crowded() && begun.elapsed() < CROWDED => {
                    let turn = begun.elapsed().subsec_nanos() % 100;
                    std::thread::sleep(Duration::from_millis(50 + u64::from(turn)));
                }
                asked => return asked,
            }
        }
    }

    fn ask_once(&mut self, wanted: Wanted, read: Option<u64>) -> Result<Picked, JournalError> {
        let Place::Daemon { client, channel, recording } = &mut self.place else {
            unreachable!("only a daemon is asked");
        };
        let (sequence, time_ns) = match wanted {
            Wanted::Sequence(sequence) => (Some(sequence), None),
            Wanted::Time(time_ns) => (None, Some(time_ns)),
        };
        let mut conversation = Conversation::open_within(client.socket(), PATIENCE)?;
        let stream = self.stream.map(|stream| stream.to_string());
        let request = Request::History { channel: channel.clone(), stream, sequence, time_ns, read };
        let (reply, [file]) = conversation.attach(&request, &[])?;
        let Response::History(History { file: number, offset, recording: is_recording, .. }) = reply else {
            return Err(conversation.confused(&reply).into());
        };
        *recording = is_recording;
        let path = PathBuf::from(format!("journal:{channel}:{number}"));
        let opened = Opened::new(file)
            .map_err(JournalError::os("read", &path))?
            .map_err(|source| JournalError::Format { path: path.clone(), source })?;
        Ok(Picked { opened, path, hint: Some(offset), limit: None })
    }

    /// Whether the file with this number is the oldest that still exists. If so, a reader that wants earlier messages has lost them.
    pub(super) fn is_oldest(&self, number: u64) -> bool {
        match &self.place {
            Place::Directory(journal) => {
                journal.files().first().is_some_and(|file| file.header.file == number)
            }
            // A daemon lends the file that has the wanted message. It lends a file that begins later only if this file is the oldest.
            Place::Daemon { .. } => true,
        }
    }

    /// Whether a recorder might append to the journal now.
    pub(crate) fn is_recording(&self) -> bool {
        match &self.place {
            Place::Directory(journal) => journal.is_recording(),
            Place::Daemon { recording, .. } => *recording,
        }
    }

    /// The pause between two searches for the next file, while the last file has not ended.
    pub(super) fn pause(&self) -> Duration {
        match &self.place {
            Place::Directory(_) => PAUSE_FOR_FILES,
            Place::Daemon { .. } => PAUSE_FOR_DAEMON,
        }
    }
}

/// Picks one of the listed files whose numbers are above `after`.
fn pick_listed(journal: &Journal, wanted: Wanted, after: u64) -> Result<Option<Picked>, JournalError> {
    let files = journal.files();
    let first = files.partition_point(|file| file.header.file <= after);
    let later = &files[first..];
    let mut at = match wanted {
        Wanted::Sequence(sequence) => {
            later.iter().rposition(|file| file.header.sequence <= sequence).unwrap_or(0)
        }
        // No index has the times of the messages in a file's last frame. So the message can be in the file before the one that was found.
        Wanted::Time(time_ns) => {
            let may_have = |ns: Option<u64>| ns.is_none_or(|greatest| greatest >= time_ns);
            let first =
                later.iter().position(|file| may_have(file.trailer.map(|trailer| trailer.greatest_ns)));
            first.unwrap_or(later.len()).saturating_sub(1)
        }
    };
    // Several files can begin with the same sequence, if the earlier ones have control records and no messages. The earliest comes next.
    while after > 0 && at > 0 && later[at - 1].header.sequence == later[at].header.sequence {
        at -= 1;
    }
    let Some(file) = later.get(at) else { return Ok(None) };
    let opened = journal.open_file(file)?;
    let limit = journal.limit_of(first + at);
    Ok(Some(Picked { opened, path: journal.path_of(file), hint: None, limit }))
}
