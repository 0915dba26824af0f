//! The reading end: any number, each through a read-only map, none known to the writer.

use crate::error::Corrupt;
use crate::layout::geometry::{GRANULE, Geometry, RECORD_HEADER, WORD};
use crate::layout::header::{FRONTIER, LAZY_KEY, LAZY_PUBLISHED, STATE, State};
use crate::layout::record::{Commit, Control, Flags, Meta};
use crate::ring::cells::{Cells, RingCells};
use crate::ring::copy::Copier;
use crate::ring::locate::{LocateError, Locator, Place};
use crate::sync::{AtomicU64, Ordering, fence};
use std::mem::offset_of;
use std::ops::ControlFlow;

/// Empty polls between two looks at frontier and state.
#[cfg(not(loom))]
const LOOK_EVERY: u8 = 64;
#[cfg(loom)]
const LOOK_EVERY: u8 = 1;

/// Bytes that are copied at once, of small records that are known to be there.
pub const RUN: u64 = if cfg!(loom) { 2 } else { 32 } * GRANULE;
/// The largest record that is copied so.
const RUN_RECORD: u64 = if cfg!(loom) { 1 } else { 8 } * GRANULE;
/// Who knows of so few messages to come asks again what has been published.
const KNOWN: i64 = if cfg!(loom) { 1 } else { 192 };
const HEADER: usize = RECORD_HEADER as usize;

/// What one poll found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poll {
    /// Nothing new.
    Empty,
    /// A message; its payload is in the buffer.
    Message(Copied),
    /// Something the stream says of itself, in order.
    Control(Control),
    /// The writer overtook this reader. Nothing was consumed: [`Reader::resume`] decides where to go on.
    Lapped,
    /// The buffer is too small for the next message. Nothing was consumed.
    TooSmall {
        /// Bytes the message needs.
        needed: usize,
    },
    /// This segment has been replaced by another; nothing more will be published here.
    Superseded,
    /// Another program wrote to the segment. Nothing was consumed.
    Corrupt(Corrupt),
}

/// What one glance found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Glance {
    /// Nothing new.
    Nothing,
    /// A message; its payload is in the buffer.
    Message(Copied),
    /// Nothing was consumed: there is more to look at than a glance does, or something else than a message.
    /// [`Reader::poll`] tells.
    Other,
}

/// A message that was copied out of the ring and verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Payload bytes.
    pub length: usize,
    /// Its sequence.
    pub sequence: u64,
    /// The publisher's own mark.
    pub tag: u16,
    /// Whether a reader may start afresh from it.
    pub key: bool,
    /// Publish time: low 48 bits of the segment's clock, in ticks.
    pub time: u64,
}

/// Where a reader that lost its place goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Resume {
    /// At the oldest message that will not be overwritten at once: loses least, and is soonest lapped again.
    #[default]
    Oldest,
    /// At the next message to come: loses most, and has all the ring ahead of it.
    Latest,
    /// At the last key message, or at the oldest if that is overwritten or none was published.
    Key,
}

/// The answer of a closure that messages are handed to: `()` asks for all of them, a [`ControlFlow`] may stop.
pub trait Flow {
    /// Whether the closure wants no more.
    fn stops(self) -> bool;
}

impl Flow for () {
    #[inline(always)]
    fn stops(self) -> bool {
        false
    }
}

impl Flow for ControlFlow<()> {
    #[inline(always)]
    fn stops(self) -> bool {
        self.is_break()
    }
}

/// Reads records from a ring.
///
/// What each message needs is one line, the second, and the start of the next, to which the owner may add what it needs:
/// one reader among many finds nothing of its own in the caches, and waits for each line.
#[derive(Debug)]
#[repr(C)]
pub struct Reader {
    // What is rarely asked for.
    index: Cells,
    geometry: Geometry,
    // The second line.
    data: Cells,
    header: Cells,
    /// Of the next record.
    place: Place,
    // The third.
    /// As in the geometry, of which a message needs no more.
    max_message: u32,
    copier: Copier,
    empties: u8,
    /// Whether the end of the current epoch's stream has been handed out.
    ended: bool,
    /// How many messages the lazy line was last seen to count; it never counts fewer.
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

    /// Looks for the next record and copies a message's payload to the start of `out`. Wait-free; no allocation, lock
    /// or system call.
    ///
    /// Cost when caught up: one cache line for an empty poll or a message of up to 48 bytes, `ceil((16 + length) / 64)`
    /// lines for a longer one; the frontier's line once a chunk.
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

    /// As [`poll`](Self::poll), for a buffer of whole records, and with no answer to what is rare: the payload goes to where
    /// it stands in its record, 16 bytes behind the start of `out`, and what surrounds it in the buffer may change, up to the
    /// record's last line. Saves the branches that depend on the length, and code; no piece that is copied crosses a line, if
    /// `out` begins one. Says [`Glance::Other`] of a record that does not fit.
    #[inline(always)]
    pub fn glance(&mut self, out: &mut [u8]) -> Glance {
        match look_at::<true>(&self.data, &self.header, self.max_message, self.copier, self.place, out) {
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

    /// Takes messages for as long as there are any whose records fit in `out`, up to `most` of them: copies them there, where
    /// what surrounds them may change, and hands each to `each`, which may stop it. Returns how many were handed out, the
    /// one at which `each` stopped among them; [`poll`](Self::poll) tells what else it was that ended them.
    ///
    /// Small messages that the writer has left behind are copied many at once, if `out` has room for [`RUN`] bytes. Of these,
    /// whoever panics in `each` and goes on gets those again that came before.
    ///
    /// Cost of a message: as of `poll`, less what it takes to leave and to come back; of one among many, the lines of its
    /// record and a look at its header.
    #[inline(always)]
    pub fn take<F: Flow>(
        &mut self,
        most: usize,
        out: &mut [u8],
        mut each: impl FnMut(Copied, &[u8]) -> F,
    ) -> usize {
        // The writer waits for that line when it next stores to it, so that nobody looks at it more often than he must.
        if self.known() <= KNOWN {
            self.published = self.header[LAZY_PUBLISHED].load(Ordering::Relaxed);
            if !cfg!(mutant = "no_run_fence") {
                fence(Ordering::Acquire); // SYNC POINT: lazy
            }
        }
        let mut taken = 0;
        let mut are_small = true;
        while taken < most {
            // Whatever its size, a record is at least a granule. A gap is one, too, and counts for many: what is copied from
            // behind it is never looked at.
            if are_small && self.known() >= (RUN / GRANULE) as i64 {
                let (in_run, is_over) = self.take_run(most - taken, out, &mut each);
                taken += in_run;
                if is_over {
                    return taken;
                }
                if in_run > 0 {
                    continue;
                }
                are_small = false;
            }
            let Found::Message(copied, after) =
                look_at::<true>(&self.data, &self.header, self.max_message, self.copier, self.place, out)
            else {
                break;
            };
            self.place = after;
            taken += 1;
            if each(copied, &out[HEADER..HEADER + copied.length]).stops() {
                break;
            }
        }
        taken
    }

    /// How many messages from the next on are known to have been published, those of gaps among them; none or fewer when the
    /// last look at the lazy line was too long ago.
    #[inline(always)]
    fn known(&self) -> i64 {
        self.published.wrapping_add(1).wrapping_sub(self.place.sequence) as i64
    }

    /// As [`take`](Self::take), of small records that are copied together. The caller knows that there are [`RUN`] bytes of
    /// records that were published before it looked. None when the first is not small, or no message, or when not all of
    /// them can be had. Says as well whether `each` stopped.
    #[inline(always)]
    fn take_run<F: Flow>(
        &mut self,
        most: usize,
        out: &mut [u8],
        mut each: impl FnMut(Copied, &[u8]) -> F,
    ) -> (usize, bool) {
        let Self { max_message, copier, mut place, .. } = *self;
        let Place { position, sequence: first } = place;
        let Some(record) = self.data.run_at(position, RUN) else { return (0, false) };
        let bytes = Commit::from_word(record[0].load(Ordering::Relaxed)).record_bytes();
        if bytes > RUN_RECORD {
            return (0, false);
        }
        // Records are often of one size: then this is a number of them.
        let run = (RUN as u32 - RUN as u32 % bytes as u32) as usize;
        let Some(out) = out.get_mut(..run) else { return (0, false) };
        copier.load_records(&record[..run / WORD as usize], out);
        if !is_in_window(&self.data, &self.header, position, run as u64) {
            return (0, false);
        }
        let mut rest = &*out;
        let mut is_over = false;
        while !is_over && place.sequence != first.wrapping_add(most as u64) {
            let Some(header) = rest.first_chunk::<HEADER>() else { break };
            let [commit, meta] =
                [0, 8].map(|i| u64::from_ne_bytes(header[i..i + 8].try_into().expect("a word")));
            let commit = Commit::from_word(commit);
            if !is_due(commit, place.sequence, max_message) {
                break;
            }
            let Some((record, others)) = rest.split_at_checked(commit.record_bytes() as usize) else { break };
            let (copied, after) = message(commit, meta, place);
            is_over = each(copied, &record[HEADER..HEADER + copied.length]).stops();
            (rest, place) = (others, after);
        }
        self.place = place;
        (place.sequence.wrapping_sub(first) as usize, is_over)
    }

    /// What is there is no message that can be had: says what it is.
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
            // Outside of the window before and inside now: no writer moves its frontier back. It will be one or the other.
            _ => Poll::Empty,
        }
    }

    /// Rests for as long as nothing is committed where the next record will stand, and until `rest` says that it is enough;
    /// false if there still is nothing then. [`poll`](Self::poll) tells what is there.
    ///
    /// Touches one word of the ring and nothing else: a process that gets its CPU back among a hundred others finds none of
    /// its own lines in the cache.
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

    /// Whether the next empty poll looks at more.
    #[inline(always)]
    fn is_look_due(&self) -> bool {
        self.empties.wrapping_add(1).is_multiple_of(LOOK_EVERY)
    }

    /// Looks at what an empty poll does not: whether the writer has overtaken this reader, or left the segment. `None` if
    /// something has been committed where the next record stands: [`poll`](Self::poll) tells what.
    /// Every so many empty polls this happens by itself; call it before a long sleep.
    #[cold]
    pub fn look(&mut self) -> Option<Poll> {
        if cfg!(mutant = "window_before_close") && !self.in_window(0) {
            return Some(self.outside(Commit::from_word(0)));
        }
        let state = self.state().map(|(_, state)| state);
        if !cfg!(mutant = "no_close_fence") {
            fence(Ordering::Acquire); // SYNC POINT: close
        }
        // What was committed before the segment was closed or given up still comes first.
        let commit = Commit::from_word(self.data.word_at(self.place.position).load(Ordering::Relaxed));
        if commit.word() != 0 {
            return crate::fault!("what_is_there_is_nothing").then_some(Poll::Empty);
        }
        // The window comes last: the zero may be one that cleans a later lap, and then there is more to say than that
        // the stream ended.
        if !cfg!(mutant = "window_before_close") && !self.in_window(0) {
            return Some(self.outside(commit));
        }
        Some(match state {
            Some(State::Superseded) => Poll::Superseded,
            // Only for one who joined or resumed behind the end record; all others read it in the stream.
            Some(State::Closed) if !self.ended => {
                self.ended = true;
                Poll::Control(Control::End)
            }
            _ => Poll::Empty,
        })
    }

    #[cold]
    fn poll_control(&mut self, commit: Commit, at: usize, out: &mut [u8]) -> Poll {
        let is_pad = commit.flags().has(Flags::PAD);
        let record = &self.data[at..at + (GRANULE / WORD) as usize];
        let control = Control::from_words([2, 3, 4].map(|i: usize| record[i].load(Ordering::Relaxed)));
        if !self.in_window(commit.record_bytes()) {
            return self.outside(commit);
        }
        let control = match control {
            _ if is_pad => None,
            Some(Control::Unknown { .. }) => None,
            Some(Control::Gap { from, .. }) if from != self.place.sequence => return self.corrupt(commit),
            Some(control) => Some(control),
            None => return self.corrupt(commit),
        };
        self.place.position += commit.record_bytes();
        match control {
            Some(control) => {
                self.ended = control == Control::End;
                self.place.sequence = control.next_sequence(self.place.sequence);
                Poll::Control(control)
            }
            // A pad is followed by the record it made room for, at the ring's start. No writer pads a whole ring, so
            // this recursion ends at once whatever the bytes say.
            None if is_pad && commit.record_bytes() < self.geometry.capacity => self.poll_again(out),
            None => Poll::Empty,
        }
    }

    /// What a pad made room for, or what came while a poll found nothing.
    #[cold]
    fn poll_again(&mut self, out: &mut [u8]) -> Poll {
        self.poll(out)
    }

    #[cold]
    fn implausible(&mut self, commit: Commit) -> Poll {
        if self.in_window(0) { self.corrupt(commit) } else { self.outside(commit) }
    }

    /// Outside of the window on the near side is a lap; beyond the frontier nothing can have been committed.
    #[cold]
    fn outside(&self, commit: Commit) -> Poll {
        let frontier = self.header[FRONTIER].load(Ordering::Relaxed);
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

    /// Goes on at another place after a lap. Returns how many sequences were skipped, exactly.
    ///
    /// # Errors
    /// [`LocateError`] when no place was found; the reader stays where it was.
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
        // A search that settled for a place that was overwritten may name one behind this reader's, which is no better. Never
        // go back and deliver twice: the reader stays, and is still lapped.
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

    /// Where the next record is expected.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Messages known to be published and not yet read; up to a few behind the truth.
    pub fn lag(&self) -> u64 {
        let published = self.header[LAZY_PUBLISHED].load(Ordering::Relaxed);
        published.saturating_add(1).saturating_sub(self.place.sequence)
    }

    /// Whether the writer has announced half of the ring beyond this reader: high time to read on.
    pub fn is_far_behind(&self) -> bool {
        let frontier = self.header[FRONTIER].load(Ordering::Relaxed);
        frontier.wrapping_sub(self.place.position) > self.geometry.capacity / 2
    }

    /// Epoch and state of the segment; `None` when another program wrote nonsense there.
    pub fn state(&self) -> Option<(u64, State)> {
        State::unpack(self.header[STATE].load(Ordering::Relaxed))
    }
}

/// What stands at a place.
enum Found {
    /// Nothing yet.
    Nothing,
    /// A message, which was copied out, and the place after it.
    Message(Copied, Place),
    /// Anything else, or a message that cannot be had.
    Other(Commit),
}

/// Copies the message at `place` to the start of `out`, if that is what there is; with `WHOLE`, to where it stands in its
/// record, to the end of the last line. Takes the place and not the reader, so that a loop over messages keeps it in
/// registers.
#[inline(always)]
fn look_at<const WHOLE: bool>(
    data: &Cells,
    header: &Cells,
    max_message: u32,
    copier: Copier,
    place: Place,
    out: &mut [u8],
) -> Found {
    let Place { position, sequence } = place;
    let commit = Commit::from_word(data.word_at(position).load(Ordering::Relaxed));
    if commit.word() == 0 {
        return Found::Nothing;
    }
    if !cfg!(mutant = "no_commit_fence") {
        fence(Ordering::Acquire); // SYNC POINT: commit
    }
    if !is_due(commit, sequence, max_message) {
        return Found::Other(commit);
    }
    let (length, bytes) = (commit.length() as usize, commit.record_bytes());
    // A record that would cross the end of the ring is as little there as one that does not fit in `out`.
    let Some(record) = data.run_at(position, bytes) else { return Found::Other(commit) };
    let meta = record[1].load(Ordering::Relaxed);
    let payload = &record[HEADER / WORD as usize..];
    let to = if WHOLE { HEADER..bytes as usize } else { 0..length };
    let Some(out) = out.get_mut(to) else { return Found::Other(commit) };
    if WHOLE {
        copier.load_lines(payload, out);
    } else {
        load_exactly(copier, payload, out);
    }
    if !is_in_window(data, header, position, bytes) {
        return Found::Other(commit);
    }
    let (copied, after) = message(commit, meta, place);
    Found::Message(copied, after)
}

/// Whether this is the message with `sequence`, and none that is too long.
#[inline(always)]
fn is_due(commit: Commit, sequence: u64, max_message: u32) -> bool {
    commit.is_message(sequence) && commit.length() <= u64::from(max_message)
}

/// The message whose header this is, at `place`, and the place after it.
#[inline(always)]
fn message(commit: Commit, meta: u64, place: Place) -> (Copied, Place) {
    let (Place { position, sequence }, meta) = (place, Meta::from_word(meta));
    let (length, key) = (commit.length() as usize, commit.flags().has(Flags::KEY));
    let after = Place { position: position + commit.record_bytes(), sequence: sequence.wrapping_add(1) };
    (Copied { length, sequence, tag: meta.tag(), key, time: meta.time() }, after)
}

/// For those who mind what stands behind the message, or have no room there.
#[inline(never)]
fn load_exactly(copier: Copier, payload: &[AtomicU64], out: &mut [u8]) {
    copier.load(payload, out);
}

/// Whether nothing read since the commit word can have been overwritten, and the record ends where the writer may
/// have written: `bytes <= frontier - position <= capacity`, in one comparison.
#[inline(always)]
fn is_in_window(data: &Cells, header: &Cells, position: u64, bytes: u64) -> bool {
    if cfg!(mutant = "no_window_check") {
        return true;
    }
    if !cfg!(mutant = "no_window_fence") {
        fence(Ordering::Acquire); // SYNC POINT: window
    }
    let frontier = header[FRONTIER].load(Ordering::Relaxed);
    frontier.wrapping_sub(position).wrapping_sub(bytes) <= data.bytes() - bytes
}
