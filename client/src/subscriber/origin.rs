//! The source of messages that the ring no longer has.

use crate::attach::connect::Client;
use crate::journal::{Files, Journal, JournalError, PATIENCE_FOR_DAEMON, Reader};
use crate::wait::Wait;
use shmcast_layout::layout::record::ControlRecord;
use shmcast_layout::layout::stream::StreamId;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Environment variable with the path of a directory. The directory has journals of those channels that are files. The journal of channel
/// `ticks` is the subdirectory `ticks`.
const JOURNALS_VARIABLE: &str = "SHMCAST_JOURNALS";

/// If the recorder makes no progress for this time, the caller gets an error.
pub(super) const STALL: Duration = Duration::from_secs(2);
/// Pause before the next search for a journal that was not found.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest wait for a recorder to begin the journal of a new stream.
const NAMED_WITHIN: Duration = Duration::from_millis(500);
/// Pause before the next search for the journal of a new stream.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The source of messages that the ring no longer has; see [`SubscriberBuilder::history`](crate::SubscriberBuilder::history).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum History {
    /// The journal that the channel's daemon keeps. If the channel is a file and `$SHMCAST_JOURNALS` is set, the journal is a subdirectory
    /// of the directory that this variable names. The named directory must exist. The subdirectory has the channel's name, and can be
    /// absent. Root, this user or the channel's owner must own the subdirectory.
    #[default]
    Auto,
    /// No source: overwritten messages are lost.
    Never,
    /// The journal in this directory, which must exist.
    Dir(PathBuf),
    /// The journal in this directory. While the directory does not exist, there is no journal. Use this for a reader, such as a bridge,
    /// that must start even if the file system of the journal is not mounted.
    DirIfThere(PathBuf),
}

/// The source of the journal, and its reader.
#[derive(Debug)]
pub(super) struct Past {
    origin: Origin,
    pub(super) reader: Option<Reader>,
    /// The caller's wait strategy. It is restored when the subscriber returns to the ring.
    pub(super) wait: Wait,
    pub(super) waits_since: Option<Instant>,
    /// Whether the reader has reached the end of the journal after the recorder had ended.
    pub(super) is_final: bool,
    /// Until this time, the subscriber does not search for the journal again.
    again_at: Option<Instant>,
    /// Until this time, the subscriber does not wait for a journal that cannot be read, because it has just waited for one.
    hasty_until: Option<Instant>,
    /// The time since which it is unknown whether there is a journal, because no daemon answers, or descriptors are short.
    undecided_since: Option<Instant>,
    /// Until this time, the reader does not ask for its next file again, because it is unknown after the last answer whether there is a
    /// next file.
    pub(super) asks_again_at: Option<Instant>,
    /// The time since which the daemon has answered each request with the error that it could not read the journal.
    pub(super) failed_since: Option<Instant>,
    /// During a search for the journal: the sequence that the subscriber needs, and the time at which the search began.
    sought: Option<(u64, Instant)>,
    pub(super) told: Told,
    /// During a batch: the uuid of the ring to which the batch's messages belong.
    pub(super) batch_ring: Option<[u64; 2]>,
}

/// The control records that were reported since the last message. The ring and the journal can have the same record, which must be reported
/// only once. The memory is allocated in advance, because a subscriber that reads the ring must not allocate.
#[derive(Debug)]
pub(super) struct Told {
    due: u64,
    from_here: Vec<ControlRecord>,
    from_there: Vec<ControlRecord>,
}

impl Told {
    /// Greatest number of records that are remembered.
    const MOST: usize = 64;

    fn new() -> Self {
        let room = || Vec::with_capacity(Self::MOST);
        Self { due: 0, from_here: room(), from_there: room() }
    }

    /// Forgets all records.
    pub(super) fn clear(&mut self) {
        self.from_here.clear();
        self.from_there.clear();
    }

    /// Notes that all remembered records were reported from the other source. Called when the reader changes between the ring and the
    /// journal.
    pub(super) fn go_over(&mut self) {
        self.from_there.append(&mut self.from_here);
    }

    /// Whether to report a control record that was just read. Returns false if the reader has reported the record from its other source
    /// (the ring or the journal). Otherwise remembers the record as reported. `due` is the sequence of the next message.
    pub(super) fn note(&mut self, due: u64, control: ControlRecord) -> bool {
        if self.due != due {
            self.clear();
            self.due = due;
        }
        if let Some(at) = self.from_there.iter().position(|told| *told == control) {
            // The record stays remembered, because the reader can change back to the source that it left.
            self.from_there.remove(at);
            self.from_here.push(control);
            return false;
        }
        if self.from_here.len() + self.from_there.len() < Self::MOST {
            self.from_here.push(control);
        }
        true
    }
}

#[derive(Debug, Clone)]
pub(super) enum Origin {
    /// A directory.
    Directory {
        path: PathBuf,
        /// The users that are allowed to own the directory; `None` if any user is.
        owners: Option<Vec<u32>>,
        /// Whether a directory that does not exist is an error.
        must_exist: bool,
    },
    Daemon(Client, String),
}

/// The reason why the subscriber found no journal.
pub(super) enum Missing {
    /// The journal might be available soon: its recorder might be about to begin it, or its daemon might be about to answer.
    NotYet,
    /// There is no journal of this stream.
    None,
    /// Whether there is a journal is unknown.
    Unknown(JournalError),
}

impl From<JournalError> for Missing {
    fn from(e: JournalError) -> Self {
        if e.is_none() { Self::None } else { Self::Unknown(e) }
    }
}

impl Origin {
    /// Returns the files of a stream; `None` if no trusted user owns their folder.
    pub(super) fn files(&self, stream: StreamId) -> Result<Option<Files>, JournalError> {
        let files = match self {
            Self::Daemon(client, channel) => Files::of_daemon(client, channel),
            Self::Directory { path, owners, .. } => {
                let journal = Journal::open_for(path, stream)?;
                let owner = journal.owner().ok();
                let is_trusted =
                    owners.as_ref().is_none_or(|users| owner.is_some_and(|uid| users.contains(&uid)));
                if !is_trusted {
                    return Ok(None);
                }
                Files::of_directory(journal)
            }
        };
        Ok(Some(files.of_stream(stream)))
    }
}

impl Origin {
    /// Makes the origin of a directory that this user gave.
    pub(super) const fn named(path: PathBuf, must_exist: bool) -> Self {
        Self::Directory { path, owners: None, must_exist }
    }

    /// The journal of the channel `name` in the directory that the environment names; `None` if the environment names none. Users whose
    /// files are trusted are root, this user and `owner`.
    ///
    /// # Errors
    /// [`JournalError::Os`] if the named directory does not exist. The journal in it can be absent.
    pub(super) fn of_environment(name: &str, owner: u32) -> Result<Option<Self>, JournalError> {
        let Some(dir) = std::env::var_os(JOURNALS_VARIABLE).filter(|dir| !dir.is_empty()) else {
            return Ok(None);
        };
        let dir = PathBuf::from(dir);
        let is_dir = std::fs::metadata(&dir).map(|found| found.is_dir());
        let found = is_dir.and_then(|is| if is { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) });
        if let Err(source) = found {
            return Err(JournalError::Os {
                what: "open the directory of SHMCAST_JOURNALS,",
                path: dir,
                source,
            });
        }
        let trusted = vec![0, nix::unistd::geteuid().as_raw(), owner];
        Ok(Some(Self::Directory { path: dir.join(name), owners: Some(trusted), must_exist: false }))
    }

    /// Returns an error if the directory must exist and cannot be read. An empty directory is no error.
    pub(super) fn check(&self) -> Result<(), JournalError> {
        match self {
            Self::Directory { path, must_exist: true, .. } => {
                Journal::open(path).map(drop).or_else(|e| if e.is_none() { Ok(()) } else { Err(e) })
            }
            _ => Ok(()),
        }
    }
}

impl Past {
    pub(super) fn new(origin: Origin) -> Self {
        Self {
            origin,
            reader: None,
            wait: Wait::default(),
            waits_since: None,
            is_final: false,
            again_at: None,
            hasty_until: None,
            undecided_since: None,
            asks_again_at: None,
            failed_since: None,
            sought: None,
            told: Told::new(),
            batch_ring: None,
        }
    }

    pub(super) fn into_origin(self) -> Origin {
        self.origin
    }

    /// Called when the channel restarts. Forgets the journal of the stream before the restart.
    pub(super) fn forget(&mut self) {
        (self.reader, self.again_at, self.hasty_until, self.sought) = (None, None, None, None);
        self.undecided_since = None;
        self.told.clear();
    }

    /// Delays the next search for the journal, because there is no journal of this stream.
    pub(super) fn rest(&mut self) {
        self.rest_for(AGAIN);
    }

    /// Delays the next search for the journal, because its recorder has ended. A recorder that starts again continues the journal.
    pub(super) fn rest_briefly(&mut self) {
        self.rest_for(AGAIN / 10);
    }

    fn rest_for(&mut self, pause: Duration) {
        (self.again_at, self.hasty_until, self.sought) = (Some(Instant::now() + pause), None, None);
        self.undecided_since = None;
    }

    /// Makes the next loss begin another search for the journal. Called after a search that could not find out whether there is a journal.
    /// If the next search fails in the same way within a second, it returns its error without a wait.
    fn hasten(&mut self) {
        let now = Instant::now();
        self.again_at = Some(now + LOOK_AGAIN);
        self.hasty_until = self.hasty_until.filter(|_| self.is_hasty(now)).or(Some(now + AGAIN));
    }

    /// Whether a search that cannot find out if there is a journal returns its error without a wait. This is so for a second after an
    /// earlier search has waited in vain.
    fn is_hasty(&self, now: Instant) -> bool {
        self.hasty_until.is_some_and(|until| now < until)
    }

    /// Whether a later answer might decide if the journal has a message. If a daemon cannot read the journal for longer than
    /// [`PATIENCE_FOR_DAEMON`], the cause is not a short lack of descriptors, and the result is false.
    pub(super) fn leaves_open(&mut self, error: &JournalError) -> bool {
        if !error.is_failure() {
            self.failed_since = None;
            return error.is_undecided();
        }
        self.failed_since.get_or_insert_with(Instant::now).elapsed() < PATIENCE_FOR_DAEMON
    }

    /// Whether the last search could not find out if there is a journal.
    pub(super) const fn is_undecided(&self) -> bool {
        self.undecided_since.is_some()
    }

    /// Whether a reader that is being opened still waits for a daemon.
    fn is_waited_for(&self) -> bool {
        self.undecided_since.is_some_and(|since| since.elapsed() < PATIENCE_FOR_DAEMON)
    }

    /// Opens the journal of this stream, and waits for it. Returns `None` if there is no journal. Returns an error if it is still unknown
    /// after the wait whether there is a journal.
    pub(super) fn open_and_wait(
        &mut self,
        stream: StreamId,
        due: u64,
        open: impl Fn(Files) -> Result<Reader, JournalError>,
    ) -> Result<Option<Reader>, JournalError> {
        loop {
            match self.open(stream, due, &open) {
                Ok(reader) => return Ok(Some(reader)),
                Err(Missing::NotYet) => std::thread::sleep(LOOK_AGAIN),
                Err(Missing::None) => return Ok(None),
                // The next round asks again a daemon that is busy, or that could not read the journal.
                Err(Missing::Unknown(e)) if (e.is_absence() || e.is_failure()) && self.is_waited_for() => {}
                Err(Missing::Unknown(e)) => return Err(e),
            }
        }
    }

    /// Opens the journal of this stream. After [`Missing::NotYet`], the caller calls this function again later. There are two reasons for
    /// `NotYet`:
    ///
    /// - The daemon has just died, and the next daemon is about to start.
    /// - The stream has just begun. The recorder begins the stream's journal some milliseconds later.
    pub(super) fn open(
        &mut self,
        stream: StreamId,
        due: u64,
        open: impl Fn(Files) -> Result<Reader, JournalError>,
    ) -> Result<Reader, Missing> {
        let now = Instant::now();
        let is_hasty = self.is_hasty(now);
        if self.again_at.is_some_and(|at| now < at) {
            return Err(if self.sought.is_some() || is_hasty { Missing::NotYet } else { Missing::None });
        }
        let begun = self.sought.filter(|(sought, _)| *sought == due).map_or(now, |(_, begun)| begun);
        let missing = match self.look(stream, due, open) {
            Ok(reader) => {
                (self.sought, self.again_at, self.undecided_since, self.hasty_until) =
                    (None, None, None, None);
                self.failed_since = None;
                return Ok(reader);
            }
            Err(missing) => missing,
        };
        let is_undecided = matches!(&missing, Missing::Unknown(e) if self.leaves_open(e));
        self.undecided_since = if is_undecided { self.undecided_since.or(Some(begun)) } else { None };
        (self.sought, self.again_at) = (None, None);
        let patience = match missing {
            Missing::NotYet => NAMED_WITHIN,
            // A daemon that does not answer might be restarting, and descriptors might soon be free.
            Missing::Unknown(_) if is_hasty && !is_undecided => Duration::ZERO,
            Missing::Unknown(_) => STALL,
            Missing::None => Duration::ZERO,
        };
        // The search itself can take long, for example if the process was stopped meanwhile. So the time at which this search began counts,
        // and at least one search begins after the patience has passed.
        if now - begun < patience {
            // The daemon reports each refusal as an event, so the pause after a refusal is longer.
            let is_refused = matches!(&missing, Missing::Unknown(e) if e.is_failure());
            let pause = if is_refused { AGAIN } else { LOOK_AGAIN };
            (self.sought, self.again_at) = (Some((due, begun)), Some(Instant::now() + pause));
            return Err(Missing::NotYet);
        }
        match missing {
            _ if is_undecided => {}
            Missing::Unknown(_) => self.hasten(),
            _ => self.rest(),
        }
        Err(match missing {
            Missing::NotYet => Missing::None,
            missing => missing,
        })
    }

    /// Searches for the journal once.
    fn look(
        &self,
        stream: StreamId,
        due: u64,
        open: impl Fn(Files) -> Result<Reader, JournalError>,
    ) -> Result<Reader, Missing> {
        let files = match self.origin.files(stream) {
            Err(e)
                if e.is_not_found() && !matches!(self.origin, Origin::Directory { must_exist: true, .. }) =>
            {
                return Err(Missing::None);
            }
            files => files?,
        };
        let mut files = files.ok_or(Missing::None)?;
        match files.has_stream(due)? {
            true => Ok(open(files)?),
            false if files.is_recording() => Err(Missing::NotYet),
            false => Err(Missing::None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An earlier mistake: a reader gave up a journal that it could not read, and did not search for it again for a second. Messages that
    /// the reader missed in that second were lost, although the journal had them.
    #[test]
    fn a_journal_that_could_not_be_read_is_looked_for_at_the_next_loss() {
        let dir = tempfile::tempdir().unwrap();
        let mut past = Past::new(Origin::named(dir.path().join("away"), true));
        let open = |past: &mut Past| past.open(StreamId::default(), 7, |files| Reader::open(files, 7));
        past.sought = Some((7, Instant::now() - STALL));
        assert!(matches!(open(&mut past), Err(Missing::Unknown(_))));
        let far = Instant::now() + 100 * AGAIN;
        assert!(past.again_at.is_some() && past.hasty_until.is_some());
        (past.again_at, past.hasty_until) = (Some(far), Some(far));
        assert!(matches!(open(&mut past), Err(Missing::NotYet)), "a pause is no answer");
        past.again_at = None;
        assert!(matches!(open(&mut past), Err(Missing::Unknown(_))), "it was waited for a moment ago");
        assert_eq!(past.hasty_until, Some(far));
        (past.again_at, past.hasty_until) = (None, None);
        assert!(matches!(open(&mut past), Err(Missing::NotYet)), "it is waited for again");
        past.rest();
        assert!(matches!(open(&mut past), Err(Missing::None)));
    }
}
