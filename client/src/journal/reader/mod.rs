//! Reads a journal in order, across its files.

use super::cursor::{Cursor, Step};
use super::entry::Entry;
use super::files::{Files, Picked};
use super::index::Known;
use super::list::Opened;
use super::{Cause, JournalControl, JournalError, Loss};
use crate::message::Message;
use shmcast_layout::fault;
use shmcast_layout::journal::{Codec, FileHeader, FrameHeader, FrameKind, RecordBody, Records, wall_ns};
use shmcast_layout::layout::record::{ControlRecord, NO_TIME};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Pause between two checks for new data at the end of a journal.
const PAUSE: Duration = Duration::from_micros(200);

/// Reads a journal in order. It returns each sequence once, in a message, a gap or a loss.
///
/// The reader uses `pread` and reads 1 MiB ahead. It allocates 1 MiB, or the size of the largest frame of the files if this is more (32 MiB
/// at most).
///
/// The reader checks checksums, salts, numbers, chains and sequences before it returns anything. For bytes that fail a check, it returns
/// [`Entry::Lost`] with exactly the missing sequences. If retention removed old files before this reader reached them, the reader reports
/// their messages as lost with [`Cause::Cut`].
#[derive(Debug)]
pub struct Reader {
    pub(super) files: Files,
    pub(super) cursor: Option<Cursor>,
    pub(super) path: PathBuf,
    pub(super) hint: Option<u64>,
    pub(super) known: Known,
    /// Number and salt of the file.
    file: (u64, u64),
    header: Option<Box<FileHeader>>,
    /// The sequence at which the next file begins, if it is known.
    pub(super) limit: Option<u64>,
    pub(super) due: u64,
    /// The next sequence according to the frames that were read. During a seek, this sequence is below `due`.
    pub(super) due_in_file: u64,
    frame: Option<InFrame>,
    /// The sequence and the place before the entry that was returned last.
    before: Option<(u64, InFrame)>,
    /// Whether the reader has read the file's last frame.
    is_over: bool,
    /// Two readings of the same moment: the wall clock in nanoseconds, and the ring's clock in ticks.
    pub(super) clock: Option<(u64, u64)>,
    /// Until this time, the reader does not check for new data.
    rest_until: Option<Instant>,
    looked_for_files: Option<Instant>,
    /// Whether the reader has found a later file, and now reads the rest of the current one.
    is_last_look: bool,
    /// The sequence at which the reader continued after retention had removed earlier messages.
    trimmed: Option<u64>,
}

/// A place in a frame.
#[derive(Debug, Clone, Copy)]
struct InFrame {
    header: FrameHeader,
    /// The number of bytes in the frame's body after the records that were read.
    left: usize,
    messages: u32,
    due: u64,
}

impl Reader {
    pub(super) fn nowhere(files: Files) -> Self {
        Self {
            files,
            cursor: None,
            path: PathBuf::new(),
            hint: None,
            known: Known::default(),
            file: (0, 0),
            header: None,
            limit: None,
            due: 1,
            due_in_file: 1,
            frame: None,
            before: None,
            is_over: false,
            clock: None,
            rest_until: None,
            looked_for_files: None,
            is_last_look: false,
            trimmed: None,
        }
    }

    /// The sequence of the next entry.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// assert_eq!(journal.read_from(7)?.due(), 7);
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn due(&self) -> u64 {
        self.due
    }

    /// Converts a record's `time` to wall-clock time, in nanoseconds since 1970; `None` if the record has no time. The error is at most the
    /// adjustment of the clock between two of the journal's clock records, which are a second apart.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// let mut reader = journal.read_from(1)?;
    /// if let Some(shmcast::journal::Entry::Message(message)) = reader.next()? {
    ///     let time = message.time;
    ///     println!("{:?}", reader.wall_ns(time));
    /// }
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn wall_ns(&self, time: u64) -> Option<u64> {
        wall_ns(self.clock?, self.header()?.ring.clock_hz, time)
    }

    /// The wall-clock time of a message, in nanoseconds since 1970. For a message without a time of its own, the result is the time of the
    /// journal's last clock record before the message, at most a second earlier. `None` if the journal has neither a clock record nor a
    /// time before the message.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// let mut reader = journal.read_from(1)?;
    /// if let Some(shmcast::journal::Entry::Message(message)) = reader.next()? {
    ///     let time = message.time;
    ///     println!("{:?}", reader.about_ns(time));
    /// }
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn about_ns(&self, time: u64) -> Option<u64> {
        self.wall_ns(time).or_else(|| Some(self.clock.filter(|_| time == NO_TIME)?.0))
    }

    /// The header of the file that had the last entry. The header describes the ring from which the entry was recorded, the ring's clock,
    /// and the schema of the ring's messages. Each ring begins a new file. Before the first entry, this is the header of the first file, or
    /// `None` if there is no file.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// println!("{:?}", journal.read_from(1)?.header().map(|header| header.schema_id));
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn header(&self) -> Option<&FileHeader> {
        self.header.as_deref()
    }

    /// Whether a recorder runs. If so, more entries can follow after the end.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// println!("{}", journal.read_from(1)?.is_recording());
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn is_recording(&self) -> bool {
        self.files.is_recording()
    }

    /// Whether the reader is between two frames: the current frame has no more records.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.frame.is_none_or(|frame| frame.left == 0)
    }

    /// Whether retention removed files while this reader was reading, and this sequence is the first that remained.
    pub(crate) fn was_trimmed_to(&self, sequence: u64) -> bool {
        self.trimmed == Some(sequence)
    }

    /// The pause between two searches for the next file.
    pub(crate) fn pause(&self) -> Duration {
        self.files.pause()
    }

    /// Makes the next read check for new data at the end of the journal, even if the last check was recent.
    pub(crate) fn look_now(&mut self) {
        (self.rest_until, self.looked_for_files) = (None, None);
    }

    /// Returns a function that reads the next bytes into the kernel's page cache. Call that function on a thread that can block. Returns
    /// `None` if the bytes are in memory already.
    #[cfg(feature = "tokio")]
    pub(crate) fn read_ahead(&self) -> Option<impl FnOnce() + Send + 'static> {
        self.cursor.as_ref().filter(|_| self.is_between_frames())?.read_ahead()
    }

    /// Continues at the start of a file.
    pub(super) fn enter(&mut self, picked: Picked, due: u64) {
        let Picked { opened: Opened { file, header, chain, trailer, .. }, path, hint, limit } = picked;
        // Control records can lie between the last message of a sealed file and the first message of the next file. So a sealed file is
        // read to its end.
        let ends_there = |limit: &u64| trailer.is_some_and(|trailer| trailer.next == *limit);
        let limit =
            limit.filter(|limit| !ends_there(limit) || fault!("the_last_records_of_a_file_are_ignored"));
        let mut cursor = Cursor::new(file, chain, &header, trailer);
        cursor.set_growing(trailer.is_none() && limit.is_none() && self.files.is_recording());
        self.cursor = Some(cursor);
        (self.path, self.hint, self.limit) = (path, hint, limit);
        self.file = (header.file, header.salt);
        // A clock record is valid for all messages of its ring, also in later files.
        if self.header().is_none_or(|before| before.ring.uuid != header.ring.uuid) {
            self.clock = None;
        }
        if self.known.file != header.file {
            self.known = Known::of(header.file, header.sequence);
        }
        self.due_in_file = header.sequence;
        self.header = Some(Box::new(header));
        self.begin_in_file(due);
    }

    /// Leaves the current frame, and continues with the sequence `due`.
    pub(super) fn begin_in_file(&mut self, due: u64) {
        self.due = due;
        (self.frame, self.before, self.is_over, self.rest_until) = (None, None, false, None);
        self.is_last_look = false;
    }

    /// Moves back by one entry, if the last returned entry was a record of the current frame.
    pub(crate) fn unread(&mut self) {
        if let Some((due, frame)) = self.before.take() {
            (self.due, self.frame) = (due, Some(frame));
        }
    }

    /// Returns the next entry, or `None` at the present end of the journal. Later calls return entries that were written meanwhile. The
    /// call never waits for a recorder, but can wait for a disk.
    ///
    /// # Errors
    /// [`JournalError`] if a file cannot be opened or read at all. The reader keeps its place.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// let mut reader = journal.read_from(1)?;
    /// while let Some(entry) = reader.next()? {
    ///     println!("{entry:?}");
    /// }
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    // The result borrows from the reader, so the reader cannot be an iterator.
    #[expect(clippy::should_implement_trait, reason = "an iterator could not lend its items")]
    pub fn next(&mut self) -> Result<Option<Entry<'_>>, JournalError> {
        loop {
            if self.limit.is_some_and(|limit| self.due >= limit) {
                self.frame = None;
                match self.go_on()? {
                    Some(Some(loss)) => return Ok(Some(Entry::Lost(loss))),
                    Some(None) => continue,
                    None => return Ok(None),
                }
            }
            if let Some(frame) = self.frame
                && let Some((entry, next)) = self.record(frame)
            {
                return Ok(Some(self.lend(entry, next)));
            }
            self.frame = None;
            match self.advance()? {
                Some(Some(loss)) => return Ok(Some(Entry::Lost(loss))),
                Some(None) => {}
                None => return Ok(None),
            }
        }
    }

    /// Takes the frame's next record that is not below the wanted sequence. Returns `None` at the frame's end.
    fn record(&mut self, mut frame: InFrame) -> Option<(RecordHead, InFrame)> {
        loop {
            let cursor = self.cursor.as_ref()?;
            let body = cursor.body(&frame.header);
            let rest = body.len().checked_sub(frame.left).and_then(|from| body.get(from..))?;
            let mut records = Records::resume(rest, frame.due, frame.messages);
            // A record can be wrong although the frame's checksum is right. Then the records after it are skipped, and the next frame's
            // sequence shows which messages are missing.
            let record = records.next()?.ok()?;
            let before = frame;
            (frame.left, frame.messages, frame.due) =
                (records.bytes_left(), records.messages_left(), records.due());
            self.due_in_file = frame.due;
            let is_message = matches!(record.body, RecordBody::Message { .. });
            let is_past = if is_message || frame.due > record.sequence {
                frame.due <= self.due
            } else {
                record.sequence < self.due
            };
            let taken = match record.body {
                RecordBody::Message { payload, tag, key } => {
                    let at = body.len() - before.left + 16;
                    RecordHead::Message { at, length: payload.len(), tag, key, time: record.time }
                }
                RecordBody::Control(control) => RecordHead::Control { control, time: record.time },
            };
            self.note_clock(&taken, &frame.header);
            if !is_past {
                self.before = Some((self.due, before));
                return Some((taken, frame));
            }
        }
    }

    fn note_clock(&mut self, taken: &RecordHead, header: &FrameHeader) {
        match *taken {
            RecordHead::Control { control: JournalControl::Clock { wall_ns, ticks, .. }, .. } => {
                self.clock = Some((wall_ns, ticks));
            }
            RecordHead::Message { time, .. } | RecordHead::Control { time, .. } => {
                if self.clock.is_none() && time != NO_TIME {
                    self.clock = Some((header.time_ns, time));
                }
            }
        }
    }

    /// Moves past a record, and returns it as an entry.
    fn lend(&mut self, taken: RecordHead, next: InFrame) -> Entry<'_> {
        let sequence = self.due;
        self.frame = Some(next);
        match taken {
            RecordHead::Control { control, time } => {
                if let Some((_, behind)) = control.skipped() {
                    self.due = behind;
                }
                // A reader can begin in the middle of a gap or loss.
                match control {
                    JournalControl::Loss(loss) => Entry::Lost(Loss { from: sequence, ..loss }),
                    JournalControl::Ring(ControlRecord::Gap { to, .. }) => {
                        let gap = ControlRecord::Gap { from: sequence, to };
                        Entry::Control { sequence, time, control: JournalControl::Ring(gap) }
                    }
                    control => Entry::Control { sequence, time, control },
                }
            }
            RecordHead::Message { at, length, tag, key, time } => {
                self.due = sequence + 1;
                let body = self.cursor.as_ref().map_or(&[][..], |cursor| cursor.body(&next.header));
                let payload = body.get(at..at + length).unwrap_or_default();
                Entry::Message(Message { payload, sequence, tag, key, time, conflated: None })
            }
        }
    }

    /// Moves to the next frame. If messages are missing before that frame, returns their loss. The outer `None` means that nothing more has
    /// been written.
    fn advance(&mut self) -> Result<Option<Option<Loss>>, JournalError> {
        if self.rest_until.is_some_and(|until| Instant::now() < until) {
            return Ok(None);
        }
        let os = |path: &PathBuf| JournalError::os("read", path.clone());
        let (due, is_over) = (self.due_in_file, self.is_over);
        let Some(cursor) = self.cursor.as_mut() else { return self.go_on() };
        let step = if is_over { Step::Sealed } else { cursor.next(due).map_err(os(&self.path))? };
        match step {
            Step::Frame(header) if header.kind == FrameKind::Data && header.codec != Codec::Raw => {
                Err(JournalError::codec(&self.path, cursor.at(), header.codec))
            }
            Step::Frame(header) => {
                self.rest_until = None;
                self.before = None;
                if header.kind == FrameKind::Data {
                    let (left, messages) = (header.length as usize, header.messages);
                    self.frame = Some(InFrame { header, left, messages, due: header.sequence });
                }
                self.is_over = header.kind == FrameKind::Footer;
                self.missing(header.sequence).map(Some)
            }
            Step::Sealed => {
                let next = cursor.trailer().map_or(self.due, |trailer| trailer.next);
                self.is_over = true;
                match self.missing(next)? {
                    Some(loss) => Ok(Some(Some(loss))),
                    None => self.go_on(),
                }
            }
            Step::End => self.wait_or_go_on(),
        }
    }

    /// Returns the loss before `sequence`, the next sequence that was found. Returns `None` if nothing is missing.
    fn missing(&mut self, sequence: u64) -> Result<Option<Loss>, JournalError> {
        let next = self.limit.map_or(sequence, |limit| limit.min(sequence));
        if next <= self.due {
            return Ok(None);
        }
        let from = std::mem::replace(&mut self.due, next);
        let cause = self.cause_of(from)?;
        Ok(Some(Loss { from, to: next - 1, cause }))
    }

    /// Returns the cause that the footer names for the missing messages. If the footer names no cause, the frames were damaged on the disk.
    fn cause_of(&mut self, from: u64) -> Result<Cause, JournalError> {
        let Some(cursor) = self.cursor.as_mut() else { return Ok(Cause::Damaged) };
        // If the footer is not in memory, reading it replaces the current frame, so the frame is read again.
        let at = cursor.at();
        let footer = cursor.footer().map_err(JournalError::os("read", &self.path))?;
        let holes = footer.map(|footer| footer.holes).unwrap_or_default();
        let _ = cursor.read_at(at, FrameKind::Data);
        let hole = holes.iter().find(|hole| (hole.from..=hole.to).contains(&from));
        Ok(hole.map_or(Cause::Damaged, |hole| hole.cause))
    }

    /// Handles the end of a file that is not sealed.
    fn wait_or_go_on(&mut self) -> Result<Option<Option<Loss>>, JournalError> {
        let now = Instant::now();
        let pause = self.files.pause();
        let is_recording = self.files.is_recording();
        if is_recording && self.looked_for_files.is_some_and(|looked| now.duration_since(looked) < pause) {
            self.rest_until = Some(now + PAUSE);
            return Ok(None);
        }
        self.looked_for_files = Some(now);
        let Some(picked) = self.pick_next()? else {
            self.rest_until = is_recording.then(|| now + PAUSE);
            if let Some(cursor) = &mut self.cursor {
                cursor.set_growing(is_recording);
            }
            return Ok(None);
        };
        // The recorder could have completed this file between the last look at it and the finding of the next file. So this file is read
        // again.
        if !std::mem::replace(&mut self.is_last_look, true) {
            self.look_now();
            if let Some(cursor) = &mut self.cursor {
                cursor.set_growing(false);
            }
            return Ok(Some(None));
        }
        Ok(Some(self.go_to_next(picked)))
    }

    /// Continues in the next file, if there is one.
    fn go_on(&mut self) -> Result<Option<Option<Loss>>, JournalError> {
        Ok(self.pick_next()?.map(|picked| self.go_to_next(picked)))
    }

    /// Picks the next file. Returns `None` if there is none.
    fn pick_next(&mut self) -> Result<Option<Picked>, JournalError> {
        let end = self.cursor.as_ref().and_then(|cursor| cursor.trailer()).map(|trailer| trailer.next);
        let picked = self.files.pick_after(self.file, self.due, end)?;
        if picked.is_none() {
            self.rest_until = Some(Instant::now() + self.files.pause());
        }
        Ok(picked)
    }

    /// Continues at the start of the next file. Returns the loss of the messages between the files, if there are any.
    fn go_to_next(&mut self, picked: Picked) -> Option<Loss> {
        let first = picked.opened.header.sequence;
        let is_oldest = self.files.is_oldest(picked.opened.header.file) && !fault!("retention_is_damage");
        self.enter(picked, self.due);
        if first <= self.due {
            return None;
        }
        let from = std::mem::replace(&mut self.due, first);
        self.trimmed = is_oldest.then_some(first);
        let cause = if is_oldest { Cause::Cut } else { Cause::Damaged };
        Some(Loss { from, to: first - 1, cause })
    }
}

#[cfg(test)]
mod tests;

/// A record without its bytes.
#[derive(Debug, Clone, Copy)]
enum RecordHead {
    /// A message whose payload begins at `at` in the frame's body.
    Message {
        at: usize,
        length: usize,
        tag: u16,
        key: bool,
        time: u64,
    },
    Control {
        control: JournalControl,
        time: u64,
    },
}
