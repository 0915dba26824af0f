//! The end of a journal, and the start of a ring that continues after it. If a channel's memory is gone, for example after a reboot, the
//! channel's sequences continue after its journal. If the journal ends with a clean record, which says that the stream ended, the next
//! sequence follows the journal's last sequence. Otherwise the next sequence follows the journal's reserve, which is a sequence that no
//! publisher has passed.
//!
//! Before any process sees the new ring, a file is added to the journal and synced. The file says which ring comes next, which sequences
//! are left out, and what the new reserve is. So a reader of the journal finds the ring, and no sequence is used twice.

use super::cursor::{Cursor, Step};
use super::header::{boot, header_of, salt};
use super::list::{Journal, Opened, PRIVATE, lock_of};
use super::spare::{lock_or_read, name_spare, spare_of};
use super::streams::{Streams, folder_of};
use super::{Cause, JournalControl, JournalError, Loss};
use crate::clock::Clock;
use crate::directory::Folder;
use crate::error::is_absent;
use crate::lock::Held;
use rustix::fs::{Mode, OFlags};
use shmcast_layout::journal::{
    Codec, Composer, ControlRecord, FileHeader, FormatError, FrameBuilder, FrameFlags, FrameHeader,
    FrameKind, RESERVE, RecordBody, Records, SPARE, file_name, parse_file_name,
};
use shmcast_layout::layout::geometry::MAX_SEQUENCE;
use shmcast_layout::layout::header::Header;
use shmcast_layout::layout::stream::StreamId;
use shmcast_layout::mem::check_size_limit;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The end of a journal to which no recorder writes. As long as this value lives, no recorder can begin to write to the journal.
///
/// ```no_run
/// let ending = shmcast::journal::Ending::of("/var/lib/shmcast/ticks", "ticks", None)?;
/// println!("the channel goes on at sequence {}", ending.next_sequence()?);
/// # Ok::<(), shmcast::journal::JournalError>(())
/// ```
#[derive(Debug)]
pub struct Ending {
    journal: Journal,
    /// The lock, or the reason why this user cannot write to the journal.
    lock: Result<Held, JournalError>,
    /// The header of the last file.
    last: FileHeader,
    next_number: u64,
    /// Salt and chain of the last file, if it is sealed.
    previous: (u64, u32),
    due: u64,
    said: LastRecords,
}

/// The reserve, the epoch and the clean end that the last records of a journal name.
#[derive(Debug, Clone, Copy, Default)]
struct LastRecords {
    reserve: u64,
    epoch: u64,
    /// The next sequence, if the last record is a clean record, which says that the stream ended.
    clean: Option<u64>,
}

impl Ending {
    /// Reads the end of a journal of `channel` in the directory at `path`, and takes the journal's lock. Reads the journal of `stream`, or
    /// the newest journal if `stream` is `None`. The records of a recorder that was killed count too. If this user can only read the
    /// journal, this call succeeds, and only [`begin`](Self::begin) and [`reopen`](Self::reopen) fail.
    ///
    /// Cost: the call reads the headers of all files. If the last file is not sealed, the call reads this file as a whole, at the speed of
    /// the disk.
    ///
    /// # Errors
    /// [`JournalError::Empty`] if there is no journal. [`JournalError::Busy`] while a recorder writes there.
    /// [`JournalError::OtherChannel`], [`JournalError::Foreign`], and other errors for files that cannot be read.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::journal::{Ending, JournalError};
    /// assert!(matches!(Ending::of(dir.path(), "ticks", None), Err(JournalError::Empty { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(path: impl AsRef<Path>, channel: &str, stream: Option<StreamId>) -> Result<Self, JournalError> {
        let path = path.as_ref();
        let empty = || JournalError::Empty { path: path.to_owned() };
        let streams = match Streams::open(path) {
            Err(JournalError::Os { source, .. }) if is_absent(&source) => return Err(empty()),
            opened => opened?,
        };
        streams.check_channel(channel)?;
        let mut journal = None;
        for own in streams.into_journals() {
            let is_sought = stream.is_none_or(|stream| own.stream().is_some_and(|own| own.is(stream)));
            // A directory without a journal is left out, so that no lock file is made in it.
            if is_sought && has_journal(own.folder())? {
                // A file that cannot be read might be the newest.
                if own.files().is_empty() {
                    check_problems(&own)?;
                }
                journal = Some(own);
            }
        }
        let mut journal = journal.ok_or_else(empty)?;
        let path = journal.path().to_owned();
        let lock = lock_or_read(journal.folder())?;
        let unnamed = match &lock {
            Ok(_) => name_spare(journal.folder()).map(|()| None)?,
            Err(_) => spare_of(journal.folder())?,
        };
        journal.refresh()?;
        let names = journal.folder().names().map_err(JournalError::os("list", &path))?;
        let named = names.iter().filter_map(|name| parse_file_name(name.to_str()?)).max().unwrap_or(0);
        check_problems(&journal)?;
        let last = journal.files().last().ok_or_else(|| JournalError::Empty { path: path.clone() })?.clone();
        // The files are synced first, so that nothing that is read here is lost later. If the sync reports the error of an earlier write,
        // the calls below read the contents of the disk.
        for file in journal.files().iter().filter(|file| file.trailer.is_none()) {
            let _ = journal.folder().file(&file.name, OFlags::RDONLY).and_then(|file| file.sync_all());
        }
        let opened = journal.open_file(&last)?;
        let previous = opened.trailer.map_or((0, 0), |trailer| (opened.header.salt, trailer.chain));
        let (mut due, mut said) = last_words(opened, &journal.path_of(&last))?;
        if let Some(unnamed) = unnamed {
            let header = unnamed.header.clone();
            let (unnamed_due, later) = last_words(unnamed, &path.join(SPARE))?;
            due = due.max(unnamed_due);
            let reserve = said.reserve.max(later.reserve).max(header.reserve);
            said = LastRecords { reserve, epoch: said.epoch.max(later.epoch).max(header.epoch), clean: None };
        }
        let headers = || journal.files().iter().map(|file| &file.header);
        said.reserve = said.reserve.max(headers().map(|header| header.reserve).max().unwrap_or(0));
        let next_number = headers().map(|header| header.file).max().unwrap_or(0).max(named) + 1;
        Ok(Self { last: last.header.clone(), journal, lock, next_number, previous, due, said })
    }

    /// The sequence that comes after the last sequence in the journal.
    ///
    /// ```no_run
    /// # let ending = shmcast::journal::Ending::of("/var/lib/shmcast/ticks", "ticks", None)?;
    /// println!("the last sequence is {}", ending.due() - 1);
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub const fn due(&self) -> u64 {
        self.due
    }

    /// Whether the journal ends with a clean record, which says that nothing was published after the journal's end.
    ///
    /// ```no_run
    /// # let ending = shmcast::journal::Ending::of("/var/lib/shmcast/ticks", "ticks", None)?;
    /// assert!(ending.is_clean(), "the channel was not closed before the recorder ended");
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn is_clean(&self) -> bool {
        self.said.clean == Some(self.due)
    }

    /// The sequence at which the channel continues if its ring is gone. No message can have had this sequence or a later one.
    ///
    /// # Errors
    /// [`JournalError::UsedUp`]
    ///
    /// ```no_run
    /// # let ending = shmcast::journal::Ending::of("/var/lib/shmcast/ticks", "ticks", None)?;
    /// assert!(ending.next_sequence()? >= ending.due());
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn next_sequence(&self) -> Result<u64, JournalError> {
        let next = if self.is_clean() { self.due } else { self.due.max(self.said.reserve + 1) };
        let used_up = || JournalError::UsedUp { path: self.journal.path().to_owned() };
        (next < MAX_SEQUENCE - 1).then_some(next).ok_or_else(used_up)
    }

    /// The last epoch in the journal. The next publisher's epoch is greater.
    ///
    /// ```no_run
    /// # let ending = shmcast::journal::Ending::of("/var/lib/shmcast/ticks", "ticks", None)?;
    /// println!("{} publishers so far", ending.epoch());
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn epoch(&self) -> u64 {
        self.said.epoch.max(self.last.epoch)
    }

    /// Writes to the end of the journal that the channel continues at sequence `first` in a new ring. `ring` is the header of the new ring,
    /// which no other process has seen yet. The written file names the left-out sequences, the ring, and the next reserve. When the call
    /// returns, this file is safe from a power cut.
    ///
    /// # Errors
    /// [`JournalError::Os`]. After this error, the end of the journal is unchanged.
    ///
    /// # Panics
    /// If `first` is below [`due`](Self::due), or the ring is of another stream than the journal.
    ///
    /// ```no_run
    /// # fn f(ending: shmcast::journal::Ending, ring: &shmcast::Header) -> Result<(), shmcast::journal::JournalError> {
    /// let first = ending.next_sequence()?;
    /// ending.begin(ring, first)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn begin(self, ring: &Header, first: u64) -> Result<(), JournalError> {
        assert!(first >= self.due, "a ring begins behind the journal");
        assert!(self.stream().is(ring.stream), "the ring was made for the stream of the journal");
        let own = header_of(ring).map_err(JournalError::os("make a header for", self.journal.path()))?;
        // The epoch of the ring's first publisher. The journal gets this epoch now, because the ring can be lost before a recorder has seen
        // it.
        let epoch = self.epoch().saturating_add(1);
        let header = FileHeader { epoch, ..own };
        self.write(header, first..first, Some(Clock::of_segment(ring).now()))
    }

    /// Writes to the end of the journal that the channel continues in its existing ring at sequence `next`. When the call returns, the
    /// written file is safe from a power cut. Without this call, the journal would say that the stream has ended, or have too small a
    /// reserve, until a recorder writes.
    ///
    /// # Errors
    /// [`JournalError::Os`]. After this error, the end of the journal is unchanged.
    ///
    /// ```no_run
    /// let ending = shmcast::journal::Ending::of("/var/lib/shmcast/ticks", "ticks", None)?;
    /// if ending.is_clean() {
    ///     let next = ending.due();
    ///     ending.reopen(next)?;
    /// }
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn reopen(self, next: u64) -> Result<(), JournalError> {
        let boot_id = boot().map_err(JournalError::os("read the boot id for", self.journal.path()))?;
        let header = FileHeader { boot_id, epoch: self.epoch(), ..self.last.clone() };
        let due = self.due;
        self.write(header, due..next.max(due), None)
    }

    /// The stream that the journal keeps.
    ///
    /// ```no_run
    /// # let ending = shmcast::journal::Ending::of("/var/lib/shmcast/ticks", "ticks", None)?;
    /// println!("{}", ending.stream());
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn stream(&self) -> StreamId {
        self.last.stream
    }

    /// Whether [`reopen`](Self::reopen) must be called before a ring continues: the stream has ended, or the reserve is near `next`.
    pub(crate) fn needs_reopening(&self, next: u64) -> bool {
        self.is_clean() || next.saturating_add(RESERVE / 2) > self.said.reserve
    }

    /// Writes the journal's next file. A recorder continues at `sequences.start`. The next message gets `sequences.end`.
    fn write(
        self,
        header: FileHeader,
        sequences: Range<u64>,
        ticks: Option<u64>,
    ) -> Result<(), JournalError> {
        let header = FileHeader {
            file: self.next_number,
            sequence: self.due,
            previous_salt: self.previous.0,
            previous_chain: self.previous.1,
            ..header
        };
        let _held = self.lock?;
        add_file(self.journal.folder(), header, sequences, ticks)
    }
}

/// Begins a journal in the directory at `path`. The directory is made if it does not exist. `ring` is the header of the channel's first
/// ring, which no other process has seen. When the call returns, the journal is safe from a power cut.
/// # Errors
/// [`JournalError::Os`], for example if there is a journal already. [`JournalError::Busy`] while a recorder writes there.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("ticks.journal");
/// # let publisher = shmcast::Publisher::builder("ticks").dir(dir.path()).capacity(1 << 20).open()?;
/// # let ring = publisher.header();
/// shmcast::journal::create(&path, ring)?;
/// let ending = shmcast::journal::Ending::of(&path, "ticks", None)?;
/// assert_eq!((ending.due(), ending.next_sequence()?), (1, (1 << 32) + 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn create(path: impl AsRef<Path>, ring: &Header) -> Result<(), JournalError> {
    create_for(path.as_ref(), ring, 1..1)
}

/// Does the same as [`create`]. A recorder begins at `sequences.start`. The next message gets `sequences.end`.
pub(crate) fn create_for(path: &Path, ring: &Header, sequences: Range<u64>) -> Result<(), JournalError> {
    let (folder, file) = make_folder(path, ring.stream)?;
    let os = |what| JournalError::os(what, folder.path());
    let _lock = lock_of(&folder)?;
    if has_journal(&folder)? {
        return Err(os("begin a journal in")(io::ErrorKind::AlreadyExists.into()));
    }
    let header = header_of(ring).map_err(os("make a header for"))?;
    let header = FileHeader { file, sequence: sequences.start, epoch: 1, ..header };
    add_file(&folder, header, sequences, Some(Clock::of_segment(ring).now()))
}

/// Adds one sealed file. The file notes these sequences as lost: from `header.sequence` to the one before `sequences.start`. A recorder
/// continues at `sequences.start`. The next message gets `sequences.end`. The caller holds the lock. `ticks` is the time on the ring's
/// clock.
fn add_file(
    folder: &Folder,
    header: FileHeader,
    sequences: Range<u64>,
    ticks: Option<u64>,
) -> Result<(), JournalError> {
    let Range { start: first, end: next } = sequences;
    let path = folder.path();
    let os = |what| JournalError::os(what, path);
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let reserve = next.saturating_add(RESERVE).min(MAX_SEQUENCE - 1);
    let salt = salt().map_err(os("make a salt for"))?;
    let header = FileHeader { salt, wall_ns: wall, reserve, ..header };
    let due = header.sequence;
    let mut frame = FrameBuilder::new(Vec::new(), due, wall);
    let time = ticks.unwrap_or(0);
    if let Some(ticks) = ticks {
        frame.control(JournalControl::Clock { wall_ns: wall, ticks, step_ns: 0 }, time);
    }
    if first > due {
        let loss = Loss { from: due, to: first - 1, cause: Cause::Reserve };
        frame.control(JournalControl::Loss(loss), time);
    }
    let ring = header.ring.uuid;
    frame.control(JournalControl::Source { ring, generation: 0, epoch: header.epoch, first }, time);
    frame.control(JournalControl::Reserve { sequence: reserve }, time);
    let (draft, mut body) = frame.close();
    let name = file_name(header.file, due);
    let begun = Composer::begin(&header);
    let (mut composer, page) =
        begun.map_err(|source| JournalError::Format { path: path.join(&name), source })?;
    let frame = composer.place(&draft, due - 1).encode();
    body[..frame.len()].copy_from_slice(&frame);
    let end = composer.seal(first - 1);
    put(folder, &name, &[&page, &body, &end]).map_err(os("note the new ring in"))
}

/// Opens or makes the journal's directory at `path` and the folder of a stream in it, and syncs their names to the disk. Also returns the
/// number for the stream's first file, if the stream has no file yet.
fn make_folder(path: &Path, stream: StreamId) -> Result<(Folder, u64), JournalError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = folder_of(path, stream);
    for (path, parent) in [(path, parent), (folder.as_path(), path)] {
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) => {
                let synced = Folder::named(parent).and_then(|parent| parent.sync());
                synced.map_err(JournalError::os("name", path))?;
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(JournalError::os("make the directory", path)(e.into())),
        }
    }
    // `open` refuses a directory whose journal files are not in the folders of their streams.
    let first = Streams::open(path)?.first_number();
    let folder = Folder::named(&folder).map_err(JournalError::os("open the directory", folder))?;
    Ok((folder, first))
}

/// Whether there is a file of a journal, finished or not.
fn has_journal(folder: &Folder) -> Result<bool, JournalError> {
    let names = folder.names().map_err(JournalError::os("list", folder.path()))?;
    let is_file = |name: &str| name == SPARE || parse_file_name(name).is_some();
    Ok(names.iter().any(|name| name.to_str().is_some_and(is_file)))
}

/// Returns an error if this build cannot read a file of the journal. A file without a whole header is ignored, because it was never synced.
fn check_problems(journal: &Journal) -> Result<(), JournalError> {
    let own = journal.files().first().map(|file| file.header.stream);
    for problem in journal.problems() {
        let path = journal.folder().path_of(&problem.name);
        match journal.open_name(&problem.name).map_err(JournalError::os("read", &path))? {
            Ok(opened) if Some(opened.header.stream) != own => return Err(JournalError::Foreign { path }),
            Err(source) if own.is_none() || matches!(source, FormatError::Version { .. }) => {
                return Err(JournalError::Format { path, source });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the greatest reserve (a sequence that no publisher passes) in a file's records.
pub(super) fn reserve_in(opened: Opened, path: &Path) -> Result<u64, JournalError> {
    last_words(opened, path).map(|(_, said)| said.reserve)
}

/// Returns the next sequence after a file, and the reserve, epoch and clean end in the file's last records.
fn last_words(opened: Opened, path: &Path) -> Result<(u64, LastRecords), JournalError> {
    let Opened { file, header, chain, trailer, .. } = opened;
    let os = || JournalError::os("read", path);
    let mut cursor = Cursor::new(file, chain, &header, trailer);
    let mut said = LastRecords::default();
    let mut due = header.sequence;
    // The footer has the offsets of all control records, unless there were too many.
    let footer = cursor.footer().map_err(os())?.filter(|footer| !footer.controls_left_out);
    if let (Some(footer), Some(trailer)) = (footer, trailer) {
        let mut places: Vec<u64> = footer.controls.iter().map(|control| control.offset).collect();
        places.dedup();
        for place in places {
            if let Some((frame, body)) = cursor.read_at(place, FrameKind::Data).map_err(os())? {
                said.listen(&frame, body, path, place)?;
            }
        }
        return Ok((trailer.next, said));
    }
    loop {
        match cursor.next(due).map_err(os())? {
            Step::Frame(frame) if frame.kind == FrameKind::Data => {
                let at = cursor.at();
                due = said.listen(&frame, cursor.body(&frame), path, at)?.max(due);
            }
            Step::Frame(_) => {}
            Step::End | Step::Sealed => break,
        }
    }
    Ok((trailer.map_or(due, |trailer| trailer.next.max(due)), said))
}

impl LastRecords {
    /// Reads the control records of a frame. Returns the next sequence after the frame.
    fn listen(
        &mut self,
        frame: &FrameHeader,
        body: &[u8],
        path: &Path,
        offset: u64,
    ) -> Result<u64, JournalError> {
        if frame.codec != Codec::Raw {
            return Err(JournalError::codec(path, offset, frame.codec));
        }
        if !frame.flags.has(FrameFlags::CONTROL) {
            self.clean = None;
            return Ok(frame.sequence + u64::from(frame.messages));
        }
        let mut records = Records::new(frame, body);
        for record in records.by_ref() {
            let source = |source| JournalError::Format { path: path.to_owned(), source };
            match record.map_err(source)?.body {
                RecordBody::Control(JournalControl::Clock { .. }) => {}
                RecordBody::Control(JournalControl::Clean { next }) => self.clean = Some(next),
                RecordBody::Control(control) => {
                    self.clean = None;
                    match control {
                        JournalControl::Reserve { sequence } => self.reserve = self.reserve.max(sequence),
                        JournalControl::Source { epoch, .. }
                        | JournalControl::Ring(ControlRecord::Epoch { epoch }) => {
                            self.epoch = self.epoch.max(epoch);
                        }
                        _ => {}
                    }
                }
                RecordBody::Message { .. } => self.clean = None,
            }
        }
        Ok(records.due())
    }
}

/// Writes a whole file. The file gets its final name only when its content is safe from a power cut.
fn put(folder: &Folder, name: &str, parts: &[&[u8]]) -> io::Result<()> {
    let _ = folder.unlink(SPARE);
    let mut file = folder.create(SPARE, PRIVATE)?;
    let written = write_all(&mut file, parts).and_then(|()| folder.rename(SPARE, name));
    written.inspect_err(|_| drop(folder.unlink(SPARE)))?;
    folder.sync()
}

fn write_all(file: &mut File, parts: &[&[u8]]) -> io::Result<()> {
    check_size_limit(parts.iter().map(|part| part.len() as u64).sum())?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.sync_all()
}
