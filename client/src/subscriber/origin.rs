//! Where a subscriber finds what the ring has no more.

use crate::attach::connect::Client;
use crate::journal::{Files, Journal, JournalError, PATIENCE_FOR_DAEMON, Reader};
use crate::wait::Wait;
use shmcast_layout::layout::record::ControlRecord;
use shmcast_layout::layout::stream::StreamId;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Environment variable that names a directory with journals of channels that are files: that of channel `ticks` is `ticks` in
/// it.
pub(super) const JOURNALS_VARIABLE: &str = "SHMCAST_JOURNALS";

/// How long the recorder may stand still before the caller is told.
pub(super) const STALL: Duration = Duration::from_secs(2);
/// Pause before a journal that could not be had is looked for again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a recorder may take to begin the journal of a new stream.
const NAMED_WITHIN: Duration = Duration::from_millis(500);
/// Pause before the next look for it.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Where a subscriber finds what the ring has no more; see [`SubscriberBuilder::history`](crate::SubscriberBuilder::history).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum History {
    /// The journal that the channel's daemon keeps. Of a channel that is a file: the directory of its name in
    /// `$SHMCAST_JOURNALS`, if that is set, and if root, this user or the channel's owner owns it.
    #[default]
    Auto,
    /// Nowhere: what was overwritten is lost.
    Never,
    /// The journal in this directory.
    Dir(PathBuf),
}

/// Where the journal is, and the reader of it.
#[derive(Debug)]
pub(super) struct Past {
    origin: Origin,
    pub(super) reader: Option<Reader>,
    /// The caller's strategy, to be put back.
    pub(super) wait: Wait,
    pub(super) waits_since: Option<Instant>,
    /// Whether the journal was read to its end after its recorder had gone.
    pub(super) is_final: bool,
    /// A journal that could not be had is not looked for before this.
    again_at: Option<Instant>,
    /// The time since which no daemon answers.
    absent_since: Option<Instant>,
    /// The sequence for which the journal is looked for, and since when.
    sought: Option<(u64, Instant)>,
    pub(super) told: Told,
}

/// The control records that were told at the sequence due, so that none is told again from the other source. Its memory is
/// allocated once: live readers come here as well.
#[derive(Debug)]
pub(super) struct Told {
    due: u64,
    from_here: Vec<ControlRecord>,
    from_there: Vec<ControlRecord>,
}

impl Told {
    /// Most records that are remembered.
    const MOST: usize = 64;

    fn new() -> Self {
        let room = || Vec::with_capacity(Self::MOST);
        Self { due: 0, from_here: room(), from_there: room() }
    }

    /// Nothing was told.
    pub(super) fn clear(&mut self) {
        self.from_here.clear();
        self.from_there.clear();
    }

    /// Notes that the reader goes over to the other source.
    pub(super) fn go_over(&mut self) {
        self.from_there.append(&mut self.from_here);
    }

    /// Whether a control record, which was just read, is news.
    pub(super) fn note(&mut self, due: u64, control: ControlRecord) -> bool {
        if self.due != due {
            self.clear();
            self.due = due;
        }
        if let Some(at) = self.from_there.iter().position(|told| *told == control) {
            // It has been told, and may have to be known when the reader goes back.
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
    /// A directory, and the users of whom one must own it, unless this user named it.
    Directory(PathBuf, Option<Vec<u32>>),
    Daemon(Client, String),
}

/// The reason why a look for the journal gave no reader.
pub(super) enum Missing {
    /// It may be there soon: its recorder may be about to begin it, or whoever has it to answer.
    NotYet,
    /// There is none of this stream.
    None,
    /// It cannot be said what there is.
    Unknown(JournalError),
}

impl From<JournalError> for Missing {
    fn from(e: JournalError) -> Self {
        if e.is_none() { Self::None } else { Self::Unknown(e) }
    }
}

impl Origin {
    /// The files of a stream; `None` if nobody whom this process trusts owns the folder that they lie in.
    pub(super) fn files(&self, stream: StreamId) -> Result<Option<Files>, JournalError> {
        let files = match self {
            Self::Daemon(client, channel) => Files::of_daemon(client, channel),
            Self::Directory(path, owners) => {
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
    /// Whether the user named the directory.
    const fn is_named(&self) -> bool {
        matches!(self, Self::Directory(_, None))
    }

    /// Refuses a directory that the user named and that cannot be read. It need not have a file yet.
    pub(super) fn check(&self) -> Result<(), JournalError> {
        match self {
            Self::Directory(path, None) => {
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
            absent_since: None,
            sought: None,
            told: Told::new(),
        }
    }

    pub(super) fn into_origin(self) -> Origin {
        self.origin
    }

    /// Called when the channel begins anew: the journal so far is that of another stream.
    pub(super) fn forget(&mut self) {
        (self.reader, self.again_at, self.sought) = (None, None, None);
        self.told.clear();
    }

    /// The journal is not looked for for a while.
    pub(super) fn rest(&mut self) {
        (self.again_at, self.sought) = (Some(Instant::now() + AGAIN), None);
    }

    /// Whether the daemon that lends the journal may be one that is started again.
    pub(super) fn is_waited_for(&self) -> bool {
        self.absent_since.is_some_and(|since| since.elapsed() < PATIENCE_FOR_DAEMON)
    }

    /// Opens the journal, if it is that of this stream, and waits for it. An error if it cannot be said what there is.
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
                // A daemon that has much to do is asked again.
                Err(Missing::Unknown(e)) if e.is_absence() && self.is_waited_for() => {}
                Err(Missing::Unknown(e)) => return Err(e),
            }
        }
    }

    /// Opens the journal, if it is that of this stream. A daemon that has just died is waited for, and so is a recorder, which begins the
    /// journal of a stream that has just begun within some milliseconds: then the caller asks again later.
    pub(super) fn open(
        &mut self,
        stream: StreamId,
        due: u64,
        open: impl Fn(Files) -> Result<Reader, JournalError>,
    ) -> Result<Reader, Missing> {
        let now = Instant::now();
        if self.again_at.is_some_and(|at| now < at) {
            return Err(if self.sought.is_some() { Missing::NotYet } else { Missing::None });
        }
        let begun = self.sought.filter(|(sought, _)| *sought == due).map_or(now, |(_, begun)| begun);
        let missing = match self.look(stream, due, open) {
            Ok(reader) => {
                (self.sought, self.again_at, self.absent_since) = (None, None, None);
                return Ok(reader);
            }
            Err(missing) => missing,
        };
        let is_absent = matches!(&missing, Missing::Unknown(e) if e.is_absence());
        self.absent_since = if is_absent { self.absent_since.or(Some(begun)) } else { None };
        (self.sought, self.again_at) = (None, None);
        let patience = match missing {
            Missing::NotYet => NAMED_WITHIN,
            Missing::Unknown(_) => STALL,
            Missing::None => Duration::ZERO,
        };
        // The look itself may have taken long, such as in a process that was stopped: then another one decides.
        if now - begun < patience {
            (self.sought, self.again_at) = (Some((due, begun)), Some(Instant::now() + LOOK_AGAIN));
            return Err(Missing::NotYet);
        }
        if !self.is_waited_for() {
            self.rest();
        }
        Err(match missing {
            Missing::NotYet => Missing::None,
            missing => missing,
        })
    }

    /// One look at the journal.
    fn look(
        &self,
        stream: StreamId,
        due: u64,
        open: impl Fn(Files) -> Result<Reader, JournalError>,
    ) -> Result<Reader, Missing> {
        let files = match self.origin.files(stream) {
            // The default directory may lack. Only a directory that the user named must be there.
            Err(e) if e.is_not_found() && !self.origin.is_named() => return Err(Missing::None),
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
