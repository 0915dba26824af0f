//! The reader's side of a ring. A ring has any number of readers. Each reader has a read-only map, and the writer knows of no reader.

mod batch;
mod records;

use crate::error::Corrupt;
use crate::fault::mutant;
use crate::layout::geometry::{GRANULE, Geometry, RECORD_HEADER, WORD};
use crate::layout::header::{LAZY_KEY, STATE, State};
use crate::layout::record::{Commit, ControlRecord, Flags, Meta};
use crate::ring::cells::{Cells, Page, RingCells};
use crate::ring::copy::Copier;
use crate::ring::locate::{LocateError, Locator, Place};
use crate::ring::sync_points::{close, commit, lazy, window};
use crate::sync::Ordering;
use std::mem::offset_of;

pub use batch::{Flow, RUN};
pub use records::{Taken, put_header};

/// The number of empty polls after which the reader checks again for a lap and for the end.
#[cfg(not(loom))]
const LOOK_EVERY: u8 = 64;
#[cfg(loom)]
const LOOK_EVERY: u8 = 1;

const HEADER: usize = RECORD_HEADER as usize;

/// The result of one poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poll {
    /// Nothing new.
    Empty,
    /// A message; its payload is in the buffer.
    Message(Copied),
    /// A control record, in its order among the messages.
    Control(ControlRecord),
    /// The writer overtook this reader. Nothing was consumed. [`Reader::resume`] moves the reader to a place that is not overwritten.
    Lapped,
    /// The buffer is too small for the next message. Nothing was consumed.
    TooSmall {
        /// Bytes the message needs.
        needed: usize,
    },
    /// Another segment has replaced this one. Publishers write nothing more to it.
    Superseded,
    /// Another program wrote to the segment. Nothing was consumed.
    Corrupt(Corrupt),
}

/// The result of [`Reader::glance`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Glance {
    /// Nothing new.
    Nothing,
    /// A message; its payload is in the buffer.
    Message(Copied),
    /// There is something other than a message, or a check for a lap or for the end is due. Nothing was consumed. Call [`Reader::poll`] to
    /// get the result.
    Other,
}

/// A message that was copied out of the ring and verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Payload bytes.
    pub length: usize,
    /// The sequence.
    pub sequence: u64,
    /// The tag that the publisher chose.
    pub tag: u16,
    /// Whether this is a key message, from which a reader can start without the messages before it.
    pub key: bool,
    /// Publish time: low 48 bits of the segment's clock, in ticks.
    pub time: u64,
}

/// The place where a lapped reader continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Resume {
    /// The reader continues at the oldest message that will not be overwritten immediately. It loses as few messages as possible, but is
    /// soon lapped again.
    #[default]
    Oldest,
    /// The reader continues at the next message to come. It loses all messages that are published and not yet read, but is lapped again
    /// only after it has fallen behind by the whole ring.
    Latest,
    /// The reader continues at the last key message. If that message is overwritten, or if there was no key message, the reader continues
    /// as with [`Oldest`](Self::Oldest).
    Key,
}

/// Reads records from a ring.
///
/// A message needs only the second cache line of this struct and the start of the third. The owner can place fields of its own in the rest
/// of the third line. If there are many readers, none of these lines is in the caches, and a reader waits for each one.
#[derive(Debug)]
#[repr(C)]
pub struct Reader {
    // Cold fields.
    index: Cells,
    geometry: Geometry,
    // The second cache line.
    data: Cells,
    header: Page,
    /// The place of the next record.
    place: Place,
    // The third cache line.
    /// A copy of the geometry's field. With this copy, taking a message does not touch the geometry's cache line.
    max_message: u32,
    copier: Copier,
    empties: u8,
    /// Whether the reader has already returned the end of the stream of the current epoch.
    ended: bool,
    /// The number of published messages that this reader last loaded from the lazy line. The writer updates that line rarely. The number
    /// only grows.
    published: u64,
}

const _: () =
    assert!(offset_of!(Reader, data) == 64 && offset_of!(Reader, max_message) == 128, "whole lines");

impl Reader {
    /// A reader that starts at `place`, which a [`Locator`] of the same ring found.
    pub fn new(cells: RingCells, geometry: Geometry, place: Place) -> Self {
        let RingCells { header, index, data } = cells;
        let max_message = geometry.max_message as u32; // at most `MAX_MESSAGE`
        let copier = Copier::of_this_processor();
        Self {
            index,
            geometry,
            data,
            header,
            place,
            max_message,
            copier,
            empties: 0,
            ended: false,
            published: 0,
        }
    }

    /// Polls for the next record, and copies a message's payload to the start of `out`. Wait-free; no allocation, lock or system call.
    ///
    /// Cost for a reader that has caught up: an empty poll, or a message of up to 48 bytes, takes one cache line. A longer message takes
    /// `ceil((16 + length) / 64)` lines. Once a chunk, one more line is read.
    #[inline(always)]
    pub fn poll(&mut self, out: &mut [u8]) -> Poll {
        match look_at::<false>(&self.data, &self.header, self.max_message, self.copier, self.place, out) {
            Found::Nothing => self.empty().unwrap_or_else(|| self.poll_again(out)),
            Found::Message(copied, after) => {
                self.place = after;
                Poll::Message(copied)
            }
            Found::Other(commit) => self.poll_other(commit, out),
        }
    }

    /// Does the same as [`poll`](Self::poll), but copies whole records, and returns only the two common results in full.
    ///
    /// The payload begins 16 bytes after the start of `out`, as it does in its record. The copy has no branch on the length, so it can
    /// change further bytes of `out`, up to the end of the record's last line. The copy is fastest if `out` is 64-byte aligned. If the
    /// record does not fit in `out`, the result is [`Glance::Other`].
    #[inline(always)]
    pub fn glance(&mut self, out: &mut [u8]) -> Glance {
        self.glance_at::<true>(out)
    }

    /// Does the same as [`glance`](Self::glance), but copies only the payload, to the start of `out`. The result is [`Glance::Other`] if
    /// the payload does not fit in `out`.
    #[inline(always)]
    pub fn glance_into(&mut self, out: &mut [u8]) -> Glance {
        self.glance_at::<false>(out)
    }

    #[inline(always)]
    fn glance_at<const WHOLE: bool>(&mut self, out: &mut [u8]) -> Glance {
        match look_at::<WHOLE>(&self.data, &self.header, self.max_message, self.copier, self.place, out) {
            Found::Nothing if self.is_look_due() => Glance::Other,
            Found::Nothing => {
                self.empties = self.empties.wrapping_add(1);
                Glance::Nothing
            }
            Found::Message(copied, after) => {
                self.place = after;
                Glance::Message(copied)
            }
            Found::Other(_) => Glance::Other,
        }
    }

    /// Handles a commit word in two cases: the word is not that of a message, or its message could not be taken.
    #[cold]
    fn poll_other(&mut self, commit: Commit, out: &mut [u8]) -> Poll {
        let Geometry { capacity, max_message, .. } = self.geometry;
        let offset = self.place.position & (capacity - 1);
        if !commit.is_plausible(self.place.sequence, capacity - offset, max_message) {
            return self.implausible(commit);
        }
        if commit.flags().has(Flags::PAD) || commit.flags().has(Flags::CONTROL) {
            return self.poll_control(commit, (offset / WORD) as usize, out);
        }
        if !self.in_window(commit.record_bytes()) {
            return self.outside(commit);
        }
        match commit.length() as usize {
            needed if needed > out.len() => Poll::TooSmall { needed },
            // A message was committed after the first look. The next poll takes it.
            _ => Poll::Empty,
        }
    }

    /// Calls `rest` repeatedly until a record is committed at this reader's place, or until `rest` returns true. Returns whether there is a
    /// record, which [`poll`](Self::poll) then returns.
    ///
    /// Touches only one word of the ring. If a hundred processes share a CPU, a process finds none of its lines in the cache when it runs
    /// again, and waits for each line that it touches.
    #[inline(always)]
    pub fn rest_until_due(&self, mut rest: impl FnMut() -> bool) -> bool {
        let word = self.data.word_at(self.place.position);
        loop {
            let is_enough = rest();
            if word.load(Ordering::Relaxed) != 0 {
                return true;
            }
            if is_enough {
                return false;
            }
        }
    }

    #[inline(always)]
    fn in_window(&self, bytes: u64) -> bool {
        is_in_window(&self.data, &self.header, self.place.position, bytes)
    }

    #[inline(always)]
    fn empty(&mut self) -> Option<Poll> {
        let is_look_due = self.is_look_due();
        self.empties = self.empties.wrapping_add(1);
        if is_look_due { self.look() } else { Some(Poll::Empty) }
    }

    /// Whether the next empty poll must call [`look`](Self::look), which checks for a lap and for the end.
    #[inline(always)]
    fn is_look_due(&self) -> bool {
        self.empties.wrapping_add(1).is_multiple_of(LOOK_EVERY)
    }

    /// Checks whether the writer has overtaken this reader, or has closed or replaced the segment. An empty poll does not notice these
    /// events. Returns `None` if this reader's next record has been committed. The next [`poll`](Self::poll) then returns the record.
    ///
    /// Each 64th empty poll calls this function. Call this function also before a long sleep.
    #[cold]
    pub fn look(&mut self) -> Option<Poll> {
        if mutant!("window_before_close") && !self.in_window(0) {
            return Some(self.outside(Commit::from_word(0)));
        }
        let state = State::unpack(close::see(&self.header)).map(|(_, state)| state);
        // Records that were committed before the segment was closed or given up come first.
        let commit = commit::peek(self.data.word_at(self.place.position));
        if commit.word() != 0 {
            return crate::fault!("what_is_there_is_nothing").then_some(Poll::Empty);
        }
        // The window is checked last, because the zero word can belong to a later lap. In that case the stream has not ended.
        if !mutant!("window_before_close") && !self.in_window(0) {
            return Some(self.outside(commit));
        }
        Some(match state {
            Some(State::Superseded) => Poll::Superseded,
            // A reader that joined or resumed after the end record gets the end here. All other readers read the end in the stream.
            Some(State::Closed) if !self.ended => {
                self.ended = true;
                Poll::Control(ControlRecord::End)
            }
            _ => Poll::Empty,
        })
    }

    #[cold]
    fn poll_control(&mut self, commit: Commit, at: usize, out: &mut [u8]) -> Poll {
        let is_pad = commit.flags().has(Flags::PAD);
        let record = &self.data[at..at + (GRANULE / WORD) as usize];
        let control = ControlRecord::from_words([2, 3, 4].map(|i: usize| record[i].load(Ordering::Relaxed)));
        if !self.in_window(commit.record_bytes()) {
            return self.outside(commit);
        }
        let control = match control {
            _ if is_pad => None,
            Some(ControlRecord::Unknown { .. }) => None,
            Some(ControlRecord::Gap { from, .. }) if from != self.place.sequence => {
                return self.corrupt(commit);
            }
            Some(control) => Some(control),
            None => return self.corrupt(commit),
        };
        self.place.position += commit.record_bytes();
        match control {
            Some(control) => {
                self.ended = control == ControlRecord::End;
                self.place.sequence = control.next_sequence(self.place.sequence);
                Poll::Control(control)
            }
            // The record after the pad is at the ring's start. No writer pads a whole ring. So this recursion ends immediately, whatever
            // the bytes are.
            None if is_pad && commit.record_bytes() < self.geometry.capacity => self.poll_again(out),
            None => Poll::Empty,
        }
    }

    /// Polls once more. This is necessary after a pad, or if a record was committed during a poll that found nothing.
    #[cold]
    fn poll_again(&mut self, out: &mut [u8]) -> Poll {
        self.poll(out)
    }

    #[cold]
    fn implausible(&mut self, commit: Commit) -> Poll {
        if self.in_window(0) { self.corrupt(commit) } else { self.outside(commit) }
    }

    /// Returns the reason why the record at this reader's place is not in the valid part of the ring. If the writer has overwritten the
    /// place, this reader was lapped. If the record is beyond the frontier (the end of the space that the writer can write to), no correct
    /// writer can have committed it.
    #[cold]
    fn outside(&self, commit: Commit) -> Poll {
        let frontier = window::frontier(&self.header);
        let ahead = frontier.wrapping_sub(self.place.position);
        if self.place.position <= frontier && ahead > self.geometry.capacity {
            Poll::Lapped
        } else {
            self.corrupt(commit)
        }
    }

    #[cold]
    fn corrupt(&self, commit: Commit) -> Poll {
        let Place { position, sequence } = self.place;
        Poll::Corrupt(Corrupt { position, sequence, word: commit.word() })
    }

    /// Continues at another place after a lap. Returns exactly how many sequences were skipped.
    ///
    /// # Errors
    /// [`LocateError`] when no place was found. The reader stays at its place.
    pub fn resume(&mut self, policy: Resume) -> Result<u64, LocateError> {
        let locator = self.locator();
        let place = match policy {
            Resume::Oldest => locator.oldest()?,
            Resume::Latest => locator.tail()?,
            Resume::Key => match self.header[LAZY_KEY].load(Ordering::Relaxed) {
                key if key > self.place.sequence => locator.seek(key).or_else(|_| locator.oldest())?,
                _ => locator.oldest()?,
            },
        };
        // A search that ended at an overwritten place can return a place before this reader's place. A reader never goes back, because it
        // would deliver messages twice. The reader stays at its place, and is still lapped.
        let Some(missed) = place.sequence.checked_sub(self.place.sequence) else { return Ok(0) };
        self.jump(place);
        Ok(missed)
    }

    /// Moves to a place that a [`Locator`] of this ring found.
    pub fn jump(&mut self, place: Place) {
        self.place = place;
        self.ended = false;
    }

    /// A locator over the same ring.
    pub fn locator(&self) -> Locator {
        let (header, index, data) = (self.header.clone(), self.index.clone(), self.data.clone());
        Locator::new(RingCells { header, index, data }, self.geometry)
    }

    /// The place where the next record is expected.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The number of messages that are published and not yet read. It can be up to 64 too low.
    pub fn lag(&self) -> u64 {
        let published = lazy::peek(&self.header);
        published.saturating_add(1).saturating_sub(self.place.sequence)
    }

    /// Number of bytes that the writer can write from now on without overwriting `place`. The result is 0 if the writer has possibly
    /// overwritten the place already.
    pub fn spare(&self, place: Place) -> u64 {
        let ahead = window::frontier(&self.header).wrapping_sub(place.position);
        self.geometry.capacity.saturating_sub(ahead)
    }

    /// Number of bytes from this reader's place to the frontier, the end of the space that the writer can write to. The frontier is up to a
    /// chunk and some granules beyond the newest message.
    pub fn bytes_behind(&self) -> u64 {
        window::frontier(&self.header).wrapping_sub(self.place.position)
    }

    /// Whether the frontier, the end of the space that the writer can write to, is more than half a ring ahead of this reader.
    pub fn is_far_behind(&self) -> bool {
        let frontier = window::frontier(&self.header);
        frontier.wrapping_sub(self.place.position) > self.geometry.capacity / 2
    }

    /// Whether the last control record that this reader read is the end.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Epoch and state of the segment. `None` when another program wrote an invalid state there.
    pub fn state(&self) -> Option<(u64, State)> {
        State::unpack(self.header[STATE].load(Ordering::Relaxed))
    }
}

/// The result of reading a place.
enum Found {
    /// Nothing yet.
    Nothing,
    /// A message that was copied out, and the place after it.
    Message(Copied, Place),
    /// Any other record, or a message that cannot be taken.
    Other(Commit),
}

/// Copies the message at `place` to the start of `out`, if there is one. With `WHOLE`, copies the whole record except its header: each byte
/// gets the same offset in `out` that it has in the record. The function takes the place as an argument, so that a loop over messages keeps
/// the place in registers.
#[inline(always)]
fn look_at<const WHOLE: bool>(
    data: &Cells,
    header: &Page,
    max_message: u32,
    copier: Copier,
    place: Place,
    out: &mut [u8],
) -> Found {
    let Place { position, sequence } = place;
    let Some(commit) = commit::see(data.word_at(position)) else { return Found::Nothing };
    if !is_due(commit, sequence, max_message) {
        return Found::Other(commit);
    }
    let (length, bytes) = (commit.length() as usize, commit.record_bytes());
    // No record crosses the end of the ring.
    let Some(record) = data.run_at(position, bytes) else { return Found::Other(commit) };
    let meta = record[1].load(Ordering::Relaxed);
    let payload = &record[HEADER / WORD as usize..];
    let to = if WHOLE { HEADER..bytes as usize } else { 0..length };
    let Some(out) = out.get_mut(to) else { return Found::Other(commit) };
    if WHOLE {
        copier.load_lines(payload, out);
    } else {
        copier.load(payload, out);
    }
    if !is_in_window(data, header, position, bytes) {
        return Found::Other(commit);
    }
    let (copied, after) = message(commit, meta, place);
    Found::Message(copied, after)
}

/// Whether this commit word is that of the message `sequence`, and its length is within this ring's limit.
#[inline(always)]
fn is_due(commit: Commit, sequence: u64, max_message: u32) -> bool {
    commit.is_message(sequence) && commit.length() <= u64::from(max_message)
}

/// Returns the message at `place` with this header, and the place after the message.
#[inline(always)]
fn message(commit: Commit, meta: u64, place: Place) -> (Copied, Place) {
    let (Place { position, sequence }, meta) = (place, Meta::from_word(meta));
    let (length, key) = (commit.length() as usize, commit.flags().has(Flags::KEY));
    let after = Place { position: position + commit.record_bytes(), sequence: sequence.wrapping_add(1) };
    (Copied { length, sequence, tag: meta.tag(), key, time: meta.time() }, after)
}

/// Whether the record ends below the frontier, and the writer cannot have overwritten any byte since the commit word was loaded. Computes
/// `bytes <= frontier - position <= capacity` with one comparison.
#[inline(always)]
fn is_in_window(data: &Cells, header: &Page, position: u64, bytes: u64) -> bool {
    if mutant!("no_window_check") {
        return true;
    }
    let frontier = window::frontier_after_loads(header);
    frontier.wrapping_sub(position).wrapping_sub(bytes) <= data.bytes() - bytes
}
