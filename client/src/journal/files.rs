//! Where the files of a journal come from, a directory or the daemon that owns the channel, and the rings that they name.

use super::cursor::Cursor;
use super::list::{Journal, Opened};
use super::{JournalControl, JournalError};
use crate::attach::connect::{Client, Conversation};
use shmcast_layout::control::{History, Request, Response};
use shmcast_layout::journal::{FileHeader, FrameFlags, FrameKind, RecordBody, Records};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a daemon may take to answer a reader that was lapped.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long a daemon that has too many requests is asked again.
const CROWDED: Duration = Duration::from_millis(1500);

/// How long a daemon that does not answer is taken for one that comes back.
pub(crate) const PATIENCE_FOR_DAEMON: Duration = Duration::from_secs(10);

/// Pause between two looks for the next file.
const PAUSE_FOR_FILES: Duration = Duration::from_millis(20);
/// The same, where a daemon has to be asked.
const PAUSE_FOR_DAEMON: Duration = Duration::from_secs(1);

/// The files of one journal.
#[derive(Debug)]
pub(crate) enum Files {
    /// In a directory that this process may read.
    Directory(Journal),
    /// Of a daemon, which lends one after the other.
    Daemon {
        client: Client,
        channel: String,
        /// Whether a recorder appended when the daemon last answered.
        recording: bool,
        /// When it last answered.
        answered: Option<Instant>,
    },
}

/// The file to read.
pub(super) struct Picked {
    pub(super) opened: Opened,
    pub(super) path: PathBuf,
    /// A place from which to look, as the daemon says.
    pub(super) hint: Option<u64>,
    /// The sequence at which it ends, because a later file begins there.
    pub(super) limit: Option<u64>,
}

/// The message that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The one with this sequence.
    Sequence(u64),
    /// The first of this time or later, in nanoseconds of the wall clock since 1970.
    Time(u64),
}

/// The identity of a journal, and rings that it was recorded from.
pub(crate) type Identity = ([u8; 16], Vec<[u64; 2]>);

/// A message that only the newest file can have.
const NEWEST: Wanted = Wanted::Sequence(shmcast_layout::layout::geometry::MAX_SEQUENCE - 1);

/// A file of a journal that another process may be given.
#[derive(Debug)]
pub struct Lent {
    /// It was opened anew, and for reading only.
    pub file: Arc<File>,
    /// Its number.
    pub number: u64,
    /// The sequence due at its first frame.
    pub first: u64,
}

impl Journal {
    /// Opens the file that has what is wanted, to be lent to a reader in another process. If nothing that old is kept, it is the
    /// oldest file; if it is not recorded yet, the newest. `None` if there is no file. [Refresh](Self::refresh) the list before, to see
    /// files that came since.
    ///
    /// # Errors
    /// [`JournalError`] if the directory or the file cannot be read.
    ///
    /// ```no_run
    /// use shmcast::journal::{Journal, Wanted};
    /// let mut journal = Journal::open("/var/lib/shmcast/ticks")?;
    /// if let Some(lent) = journal.lend(Wanted::Sequence(4711))? {
    ///     println!("file {} begins at {}", lent.number, lent.first);
    /// }
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn lend(&mut self, wanted: Wanted) -> Result<Option<Lent>, JournalError> {
        let picked = self.pick(wanted)?;
        Ok(picked.map(|Picked { opened: Opened { file, header, .. }, .. }| Lent {
            file,
            number: header.file,
            first: header.sequence,
        }))
    }

    /// Picks among all files. Retention may have removed a file between the look at the list and the file.
    fn pick(&mut self, wanted: Wanted) -> Result<Option<Picked>, JournalError> {
        match pick_listed(self, wanted, 0) {
            Err(JournalError::Os { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                self.refresh()?;
                pick_listed(self, wanted, 0)
            }
            picked => picked,
        }
    }
}

impl Files {
    /// The files that the daemon lends of a channel.
    pub(crate) fn of_daemon(client: &Client, channel: &str) -> Self {
        Self::Daemon { client: client.clone(), channel: channel.to_owned(), recording: false, answered: None }
    }

    /// The newest file that begins at or before what is wanted, or the oldest if none does. `None` if there is no file.
    pub(super) fn pick(&mut self, wanted: Wanted) -> Result<Option<Picked>, JournalError> {
        match self {
            Self::Directory(journal) => journal.pick(wanted),
            Self::Daemon { .. } => self.ask(wanted).map(Some),
        }
    }

    /// The file in which the journal goes on behind file `number`, which has nothing more at sequence `due`.
    pub(super) fn pick_after(
        &mut self,
        number: u64,
        due: u64,
        end: Option<u64>,
    ) -> Result<Option<Picked>, JournalError> {
        if let Self::Directory(journal) = self {
            journal.refresh()?;
            return pick_listed(journal, Wanted::Sequence(due), number);
        }
        let wanted = Wanted::Sequence(end.unwrap_or(due).max(due));
        match self.ask(wanted) {
            Err(e) if e.is_absence() && self.is_waited_for() => Ok(None),
            asked => Ok(Some(asked?).filter(|picked| picked.opened.header.file > number)),
        }
    }

    /// Asks the daemon. One that has too many requests is asked again, after a pause that others do not share.
    fn ask(&mut self, wanted: Wanted) -> Result<Picked, JournalError> {
        let begun = Instant::now();
        loop {
            match self.ask_once(wanted) {
                Err(e) if e.is_crowded() && begun.elapsed() < CROWDED => {
                    let turn = begun.elapsed().subsec_nanos() % 100;
                    std::thread::sleep(Duration::from_millis(50 + u64::from(turn)));
                }
                asked => return asked,
            }
        }
    }

    fn ask_once(&mut self, wanted: Wanted) -> Result<Picked, JournalError> {
        let Self::Daemon { client, channel, recording, answered } = self else {
            unreachable!("only a daemon is asked");
        };
        let (sequence, time_ns) = match wanted {
            Wanted::Sequence(sequence) => (Some(sequence), None),
            Wanted::Time(time_ns) => (None, Some(time_ns)),
        };
        let mut conversation = Conversation::open_within(client.socket(), PATIENCE)?;
        let request = Request::History { channel: channel.clone(), sequence, time_ns };
        let (reply, [file]) = conversation.attach(&request, &[])?;
        let Response::History(History { file: number, offset, recording: is_recording, .. }) = reply else {
            return Err(conversation.confused(&reply).into());
        };
        (*recording, *answered) = (is_recording, Some(Instant::now()));
        let path = PathBuf::from(format!("journal:{channel}:{number}"));
        let opened = Opened::new(file)
            .map_err(JournalError::os("read", &path))?
            .map_err(|source| JournalError::Format { path: path.clone(), source })?;
        Ok(Picked { opened, path, hint: Some(offset), limit: None })
    }

    /// Whether a daemon that does not answer may be one that is started again: its next recorder goes on with the journal.
    fn is_waited_for(&mut self) -> bool {
        let Self::Daemon { recording, answered, .. } = self else { return false };
        let is_gone = answered.is_none_or(|answered| answered.elapsed() >= PATIENCE_FOR_DAEMON);
        *recording &= !is_gone;
        *recording
    }

    /// Whether no older file is kept than this one, in which a reader goes on that wants what comes before it.
    pub(super) fn is_oldest(&self, number: u64) -> bool {
        match self {
            Self::Directory(journal) => {
                journal.files().first().is_some_and(|file| file.header.file == number)
            }
            // It lends the file that has what is wanted, or else the oldest.
            Self::Daemon { .. } => true,
        }
    }

    /// Whether somebody may append to the journal now.
    pub(crate) fn is_recording(&self) -> bool {
        match self {
            Self::Directory(journal) => journal.is_recording(),
            Self::Daemon { recording, .. } => *recording,
        }
    }

    /// The pause between two looks for the next file, if the last one has not ended.
    pub(super) fn pause(&self) -> Duration {
        match self {
            Self::Directory(_) => PAUSE_FOR_FILES,
            Self::Daemon { .. } => PAUSE_FOR_DAEMON,
        }
    }

    /// The journal's identity, and the rings that its files begin in: of a daemon's, those of the file with the sequence `due` and of
    /// the newest one. `None` if there is no file.
    pub(crate) fn identity(&mut self, due: u64) -> Result<Option<Identity>, JournalError> {
        let of = |header: &FileHeader| (header.journal, header.ring.uuid);
        let files: Vec<_> = match self {
            Self::Directory(journal) => journal.files().iter().map(|file| of(&file.header)).collect(),
            Self::Daemon { .. } => {
                let around = of(&self.ask(Wanted::Sequence(due))?.opened.header);
                vec![around, of(&self.ask(NEWEST)?.opened.header)]
            }
        };
        let Some((identity, _)) = files.last().copied() else { return Ok(None) };
        let mut rings: Vec<_> =
            files.into_iter().filter(|(of, _)| *of == identity).map(|(_, ring)| ring).collect();
        rings.dedup();
        Ok(Some((identity, rings)))
    }

    /// Whether the journal names this ring as one that it was recorded from.
    pub(crate) fn names_ring(&mut self, ring: [u64; 2], due: u64) -> Result<bool, JournalError> {
        let has = |opened: Opened| names_ring(opened, ring);
        match self {
            Self::Directory(journal) => {
                let files = journal.files();
                if files.iter().any(|file| file.header.ring.uuid == ring) {
                    return Ok(true);
                }
                // A ring that came later within a file is in a record of it.
                for file in files.to_vec().iter().rev().take(2) {
                    if has(journal.open_file(file)?)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Self::Daemon { .. } => {
                let picked = self.ask(Wanted::Sequence(due))?;
                if picked.opened.header.ring.uuid == ring || has(picked.opened)? {
                    return Ok(true);
                }
                let newest = self.ask(NEWEST)?;
                Ok(newest.opened.header.ring.uuid == ring || has(newest.opened)?)
            }
        }
    }
}

/// Picks among the listed files with a number above `after`.
fn pick_listed(journal: &Journal, wanted: Wanted, after: u64) -> Result<Option<Picked>, JournalError> {
    let files = journal.files();
    let first = files.partition_point(|file| file.header.file <= after);
    let later = &files[first..];
    let is_before = |at: &usize| {
        let file = &later[*at];
        match wanted {
            Wanted::Sequence(sequence) => file.header.sequence <= sequence,
            Wanted::Time(time_ns) => {
                let least = file.trailer.map_or(0, |trailer| trailer.least_ns);
                (if least > 0 { least } else { file.header.wall_ns }) <= time_ns
            }
        }
    };
    let mut at = (0..later.len()).rev().find(is_before).unwrap_or(0);
    // A file without messages, before one that begins with the same sequence, has control records all the same.
    while after > 0 && at > 0 && later[at - 1].header.sequence == later[at].header.sequence {
        at -= 1;
    }
    let Some(file) = later.get(at) else { return Ok(None) };
    let opened = journal.open_file(file)?;
    let limit = journal.limit_of(first + at);
    Ok(Some(Picked { opened, path: journal.path_of(file), hint: None, limit }))
}

/// Whether a source record in the file names the ring.
fn names_ring(opened: Opened, ring: [u64; 2]) -> Result<bool, JournalError> {
    let Opened { file, header, chain, trailer, .. } = opened;
    let mut cursor = Cursor::new(file, chain, &header, trailer);
    let os = || JournalError::os("read", PathBuf::from(format!("journal file {}", header.file)));
    // The footer has the places of all source records, unless there were too many records.
    if let Some(footer) = cursor.footer().map_err(os())?.filter(|footer| !footer.controls_left_out) {
        let sources = footer.controls.iter().filter(|control| control.kind == JournalControl::SOURCE);
        for source in sources {
            if frame_names(&mut cursor, source.offset, ring).map_err(os())? {
                return Ok(true);
            }
        }
        return Ok(false);
    }
    while let Some(frame) = cursor.skim().map_err(os())? {
        let has_controls = frame.kind == FrameKind::Data && frame.flags.has(FrameFlags::CONTROL);
        let at = cursor.at();
        if has_controls && frame_names(&mut cursor, at, ring).map_err(os())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a source record of the frame at `offset` names the ring.
fn frame_names(cursor: &mut Cursor, offset: u64, ring: [u64; 2]) -> io::Result<bool> {
    let Some((frame, body)) = cursor.read_at(offset, FrameKind::Data)? else { return Ok(false) };
    Ok(Records::new(&frame, body).flatten().any(|record| {
        matches!(record.body, RecordBody::Control(JournalControl::Source { ring: named, .. }) if named == ring)
    }))
}
