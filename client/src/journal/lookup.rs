//! Finds places in a journal, by sequence and by time.

use super::JournalError;
use super::cursor::Cursor;
use super::entry::Entry;
use super::files::{Files, Picked, Wanted};
use super::list::{Journal, Opened};
use super::reader::Reader;
use shmcast_layout::journal::{
    Codec, FrameFlags, FrameKind, IndexEntry, JournalControl, RecordBody, Records,
};
use shmcast_layout::layout::geometry::MAX_SEQUENCE;
use std::io;

/// The number of bytes of a file in which the reader searches for a clock record, which gives messages their times.
const CLOCK_WITHIN: u64 = 128 << 10;

impl Journal {
    /// Opens a reader whose first entry is at `sequence`, or later. No [`Entry::Lost`] reports sequences before the journal's oldest
    /// sequence; see [`first_sequence`](Self::first_sequence).
    ///
    /// Cost: two reads in a sealed file, one of the footer and one of the frame. In a file that is not sealed, it reads the headers of all
    /// earlier frames.
    ///
    /// # Errors
    /// [`JournalError`] if a file cannot be read.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// let mut reader = journal.read_from(4711)?;
    /// println!("{:?}", reader.next()?);
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn read_from(self, sequence: u64) -> Result<Reader, JournalError> {
        Reader::open(Files::of_directory(self), sequence)
    }

    /// Opens a reader at a wall-clock time, in nanoseconds since 1970. The reader begins with the first message of the stream that has this
    /// time or a later time. If the clock was set back, messages with earlier times can follow, but no message with this time or a later
    /// time is left out. A message without a time of its own has the time [of the last clock record](Reader::about_ns) before it.
    ///
    /// Cost: the same as for [`read_from`](Self::read_from).
    ///
    /// # Errors
    /// [`JournalError`] if a file cannot be read.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// let mut reader = journal.read_since(1_764_000_000_000_000_000)?;
    /// println!("{:?}", reader.next()?);
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn read_since(self, time_ns: u64) -> Result<Reader, JournalError> {
        Reader::open_at_time(Files::of_directory(self), time_ns)
    }
}

impl Reader {
    pub(crate) fn open(files: Files, sequence: u64) -> Result<Self, JournalError> {
        let mut reader = Self::nowhere(files);
        reader.seek(sequence)?;
        Ok(reader)
    }

    /// Opens a reader at `sequence` for a program that has received the previous message. Control records between the two messages can be
    /// at the end of the previous file. The reader also returns these records.
    pub(crate) fn open_behind(files: Files, sequence: u64) -> Result<Self, JournalError> {
        let mut reader = Self::open(files, sequence.saturating_sub(1).max(1))?;
        reader.due = reader.due.max(sequence);
        Ok(reader)
    }

    pub(crate) fn open_at_time(files: Files, time_ns: u64) -> Result<Self, JournalError> {
        let mut reader = Self::nowhere(files);
        let Some(picked) = reader.files.pick(Wanted::Time(time_ns))? else { return Ok(reader) };
        let first = picked.opened.header.sequence;
        reader.enter(picked, first);
        let mut sought = 0;
        loop {
            if reader.known.file != sought {
                sought = reader.known.file;
                reader.begin_in_file(reader.due);
                reader.go_to_frame(|entry| entry.time_ns < time_ns)?;
                reader.due = reader.due.max(reader.due_in_file);
            }
            let is_there = match reader.next()? {
                None => return Ok(reader),
                Some(Entry::Message(m)) => {
                    let time = m.time;
                    reader.about_ns(time).is_none_or(|wall| wall >= time_ns)
                }
                Some(_) => false,
            };
            if is_there {
                reader.unread();
                return Ok(reader);
            }
        }
    }

    /// Opens a reader at the last key message, or at the oldest entry if there is no key message.
    pub(crate) fn open_at_last_key(files: Files) -> Result<Self, JournalError> {
        let mut reader = Self::nowhere(files);
        let (mut wanted, mut before) = (MAX_SEQUENCE - 1, None);
        while let Some(Picked { opened, path, limit, .. }) = reader.files.pick(Wanted::Sequence(wanted))? {
            let Opened { file, header, chain, trailer, .. } = opened;
            // If the wanted sequence is before the oldest file, each pick returns the oldest file. So the loop ends here.
            if before.is_some_and(|before| header.file >= before) {
                break;
            }
            before = Some(header.file);
            let mut cursor = Cursor::new(file, chain, &header, trailer);
            let key =
                last_key(&mut cursor, limit.unwrap_or(u64::MAX)).map_err(JournalError::os("read", path))?;
            if let Some(key) = key {
                reader.seek(key)?;
                return Ok(reader);
            }
            if header.sequence <= 1 {
                break;
            }
            wanted = header.sequence - 1;
        }
        reader.seek(1)?;
        Ok(reader)
    }

    /// Moves to `sequence`, or to the oldest later sequence that is kept. [`due`](Self::due) returns the new sequence. The reader remembers
    /// the frames of its current file, so that the next seek into this file reads only one frame.
    ///
    /// # Errors
    /// [`JournalError`] if a file cannot be read. The reader then has no place, and the next seek searches all files.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// let mut reader = journal.read_from(1)?;
    /// for sequence in [4711, 815] {
    ///     reader.seek(sequence)?;
    ///     println!("{:?}", reader.next()?);
    /// }
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn seek(&mut self, sequence: u64) -> Result<(), JournalError> {
        if self.is_in_file(sequence) {
            self.begin_in_file(sequence);
        } else {
            (self.due, self.cursor) = (sequence, None);
            let Some(picked) = self.files.pick(Wanted::Sequence(sequence))? else { return Ok(()) };
            let first = picked.opened.header.sequence;
            self.enter(picked, sequence.max(first));
        }
        self.go_to_frame(|entry| entry.sequence < sequence)
    }

    /// Moves to the last frame in the file that satisfies `is_before`. If no frame satisfies it, moves to the first frame.
    fn go_to_frame(&mut self, is_before: impl Fn(&IndexEntry) -> bool) -> Result<(), JournalError> {
        let cursor = self.cursor.as_mut().expect("a file was entered");
        let start = self.known.place(cursor, self.hint, is_before);
        let start = start.map_err(JournalError::os("read", &self.path))?;
        let (offset, due) = start.map_or(self.known.start(), |entry| (entry.offset, entry.sequence));
        cursor.jump(offset);
        self.due_in_file = due;
        self.look_for_clock()
    }

    /// Whether the open file has the sequence, according to its known frames.
    fn is_in_file(&self, sequence: u64) -> bool {
        let Some(cursor) = &self.cursor else { return false };
        let behind = cursor.trailer().map_or(self.known.seen, |trailer| trailer.next);
        let end = self.limit.map_or(behind, |limit| limit.min(behind));
        (self.known.first..end).contains(&sequence)
    }

    /// Searches for the next clock record from the current frame on. The record's time is also used for the messages before the clock
    /// record. Recorders write a clock record in each 64 KiB. If there is no further clock record, the first record of the frame gets the
    /// time that the index has for the frame.
    fn look_for_clock(&mut self) -> Result<(), JournalError> {
        let Some(cursor) = &mut self.cursor else { return Ok(()) };
        let path = &self.path;
        self.clock = None;
        let start = cursor.offset();
        let mut at = start;
        while at - start < CLOCK_WITHIN {
            let frame = cursor.read_at(at, FrameKind::Data).map_err(JournalError::os("read", path))?;
            let Some((header, body)) = frame.filter(|(header, _)| header.codec == Codec::Raw) else { break };
            let clock = Records::new(&header, body).find_map(|record| match record.ok()?.body {
                RecordBody::Control(JournalControl::Clock { wall_ns, ticks, step_ns }) => {
                    Some((wall_ns.wrapping_add_signed(step_ns.wrapping_neg()), ticks))
                }
                _ => None,
            });
            if clock.is_some() {
                self.clock = clock;
                break;
            }
            at += header.frame_bytes() as u64;
        }
        Ok(())
    }
}

/// Returns the last key message in a file, among the key messages with a sequence below `limit`.
fn last_key(cursor: &mut Cursor, limit: u64) -> io::Result<Option<u64>> {
    if let Some(footer) = cursor.footer()? {
        let below = footer.keys.partition_point(|key| key.sequence < limit);
        if below > 0 || !footer.keys_left_out {
            return Ok(below.checked_sub(1).map(|at| footer.keys[at].sequence));
        }
    }
    let mut places = Vec::new();
    while let Some(header) = cursor.skim()? {
        if header.kind == FrameKind::Data && header.flags.has(FrameFlags::KEY) && header.sequence < limit {
            places.push(cursor.at());
        }
    }
    for place in places.into_iter().rev() {
        let Some((header, body)) = cursor.read_at(place, FrameKind::Data)? else { continue };
        let keys = Records::new(&header, body).map_while(Result::ok).filter(|record| {
            matches!(record.body, RecordBody::Message { key: true, .. }) && record.sequence < limit
        });
        if let Some(record) = keys.last() {
            return Ok(Some(record.sequence));
        }
    }
    Ok(None)
}
