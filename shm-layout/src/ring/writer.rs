//! The writing end: one at a time, never waiting, never reading what a reader wrote.
//!
//! Relies on the caller to hold the channel's writer lock: two writers on one ring are outside of the protocol.

use crate::error::{Corrupt, OutOfSequences, TooLarge, WriteError};
use crate::layout::geometry::{AHEAD, GRANULE, Geometry, MAX_SEQUENCE, RECORD_HEADER, WORD, record_bytes};
use crate::layout::header::{
    FRONTIER, HAS_SESSION, LAZY_BYTES, LAZY_KEY, LAZY_PUBLISHED, LAZY_TIME, SESSION, SESSION_REST, STATE,
    State, WRITER_PID,
};
use crate::layout::record::{Commit, Control, Flags, Meta, session_words};
use crate::ring::cells::{Cells, RingCells};
use crate::ring::copy::{self, Copier};
use crate::ring::locate::{Found, LocateError, Locator, Miss, Place};
use crate::sync::{Ordering, fence};
use std::mem::offset_of;
use thiserror::Error;

/// Messages between two updates of the lazy line; joiners walk little farther than this, for at most a pad stands before
/// each. Fewer than index entries, so that no entry is reused while the lazy line names it.
pub(crate) const LAZY_EVERY: u64 = if cfg!(loom) { 2 } else { 64 };
const LINE_WORDS: usize = (GRANULE / WORD) as usize;
/// The state word has no room for more.
const MAX_EPOCH: u64 = u64::MAX >> 8;
/// Records up to this size, in bytes, are followed by cleaning ahead. For larger ones it costs more than it hides: each of
/// their lines would be fetched twice, for the zero and for the payload.
const SMALL: u64 = 8 * GRANULE;
/// Granules are cleaned ahead when so many bytes of them can be.
const AT_ONCE: u64 = AHEAD / 4 / GRANULE * GRANULE;
// A small record finds clean what it needs: itself, and the granule behind it.
const _: () = assert!(cfg!(loom) || SMALL + GRANULE <= AHEAD - AT_ONCE);
/// Payload bytes that share the first line with the record's header.
const INLINE: usize = (GRANULE - RECORD_HEADER) as usize;

// The release sides of the protocol, each of which one mutant takes away.
const COMMIT: Ordering = if cfg!(mutant = "relaxed_commit") { Ordering::Relaxed } else { Ordering::Release };
const INDEX: Ordering = if cfg!(mutant = "relaxed_index") { Ordering::Relaxed } else { Ordering::Release };
const LAZY: Ordering = if cfg!(mutant = "relaxed_lazy") { Ordering::Relaxed } else { Ordering::Release };
const CLOSED: Ordering = if cfg!(mutant = "relaxed_close") { Ordering::Relaxed } else { Ordering::Release };

/// Why a ring cannot be written to. It was left as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TakeError {
    /// Its readers have been told that nothing more comes here.
    #[error("the segment was given up for another: open the channel again")]
    Superseded,
    /// The place to go on from could not be found.
    #[error(transparent)]
    Locate(#[from] LocateError),
}

impl From<Miss> for TakeError {
    fn from(miss: Miss) -> Self {
        match miss {
            Miss::Corrupt(corrupt) => corrupt.into(),
            // Nobody else writes: a place that lies outside of the ring is no writer's doing.
            Miss::Overrun => Corrupt { position: 0, sequence: 0, word: 0 }.into(),
        }
    }
}

impl From<Corrupt> for TakeError {
    fn from(corrupt: Corrupt) -> Self {
        Self::Locate(corrupt.into())
    }
}

/// Where a successor goes on.
struct Tail {
    place: Place,
    /// The gap that was committed last, if the lazy line does not count it yet: its position and first sequence.
    gap: Option<Place>,
    last_key: u64,
    bytes: u64,
}

/// Writes records into a ring.
///
/// The first two lines of it are all that most messages need, a copy of one of the geometry's figures among them: who
/// publishes now and then finds none of it in the caches, and waits for each.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Writer {
    data: Cells,
    /// Where the next record goes.
    tail: u64,
    /// The sequence of the next message.
    next: u64,
    /// Commit words are zero from the tail up to here; never beyond the frontier.
    clean: u64,
    /// What FRONTIER holds.
    frontier: u64,
    /// Payloads are shorter than this: by one than the largest message, or 0 once no sequence is left.
    limit: u32,
    copier: Copier,
    // The second line.
    index: Cells,
    header: Cells,
    bytes: u64,
    last_key: u64,
    // What is rarely asked for.
    geometry: Geometry,
    epoch: u64,
}

const _: () = assert!(offset_of!(Writer, geometry) == 128, "two lines before it");

impl Writer {
    /// Takes a ring that the caller holds the writer lock of: a new one, one that was closed, or one whose writer died.
    ///
    /// The epoch grows by one; unless the ring is new, readers find an epoch record in the stream. Costs a walk over
    /// at most some 128 records and a chunk's worth of stores.
    ///
    /// # Errors
    /// [`TakeError::Superseded`], or [`LocateError::Corrupt`] when the walk meets what no writer of ours leaves; the ring
    /// is then left as it was.
    pub fn take(cells: RingCells, geometry: Geometry, pid: u32, time: u64) -> Result<Self, TakeError> {
        let old_epoch = match cells.header[STATE].load(Ordering::Relaxed) {
            0 => 0,
            word => match State::unpack(word) {
                Some((_, State::Superseded)) => return Err(TakeError::Superseded),
                Some((epoch, _)) if epoch < MAX_EPOCH => epoch,
                _ => return Err(Corrupt { position: 0, sequence: 0, word }.into()),
            },
        };
        let tail = walk(&cells, geometry)?;
        let RingCells { header, index, data } = cells;
        let mut writer = Self {
            limit: geometry.max_message as u32 + 1, // at most `MAX_MESSAGE` and 1
            geometry,
            tail: tail.place.position,
            next: tail.place.sequence,
            clean: 0,
            frontier: header[FRONTIER].load(Ordering::Relaxed),
            epoch: old_epoch + 1,
            copier: Copier::of_this_processor(),
            last_key: tail.last_key,
            bytes: tail.bytes,
            header,
            index,
            data,
        };
        writer.header[STATE].store(State::Recovering.pack(writer.epoch), Ordering::Relaxed);
        writer.header[WRITER_PID].store(u64::from(pid), Ordering::Relaxed);
        if let Some(gap) = tail.gap {
            // In the dead writer's order: the lazy line moves on before the entry that it names may be the tail's.
            writer.index_gap(gap, writer.next);
            writer.update_lazy(time);
        }
        writer.store_index(tail.place);
        writer.update_lazy(time);
        writer.repair();
        if old_epoch > 0 {
            writer.control(Control::Epoch { epoch: writer.epoch }, time);
        }
        // Readers act on no state but those that end a segment; the others inform.
        writer.header[STATE].store(State::Active.pack(writer.epoch), Ordering::Relaxed);
        Ok(writer)
    }

    /// Makes whatever a dead writer left above the tail harmless; the argument is in the module's paper.
    fn repair(&mut self) {
        let target = (self.tail + AHEAD).max(self.frontier).next_multiple_of(self.geometry.chunk);
        if !cfg!(mutant = "takeover_without_frontier") {
            self.frontier = target;
            self.header[FRONTIER].store(self.frontier, Ordering::Relaxed);
            if !cfg!(mutant = "takeover_without_fence") {
                fence(Ordering::Release); // SYNC POINT: window
            }
        }
        self.clean = self.tail;
        if cfg!(mutant = "takeover_without_clean") {
            self.clean = target;
        } else {
            self.zero_until(target);
        }
    }

    /// Publishes one message and returns its sequence. Wait-free; no allocation, lock or system call.
    ///
    /// `time` is in ticks of the segment's clock. Cost: the stores of the record's lines, one zero a granule, one
    /// index entry; once a chunk one store that every reader will fetch.
    ///
    /// # Errors
    /// [`WriteError`]; nothing is published then.
    #[inline(always)]
    pub fn publish(&mut self, payload: &[u8], tag: u16, key: bool, time: u64) -> Result<u64, WriteError> {
        self.record(payload, tag, key, || time)
    }

    /// As [`publish`](Self::publish), and reads the clock itself: for a small message at the last moment, while its
    /// lines come from the readers' cores, so that the reading adds nothing to the latency; for a larger one first, so
    /// that the age of a message includes all of its copying.
    ///
    /// # Errors
    /// [`WriteError`]; nothing is published then.
    #[inline]
    pub fn publish_timed(
        &mut self,
        payload: &[u8],
        tag: u16,
        key: bool,
        now: impl Fn() -> u64,
    ) -> Result<u64, WriteError> {
        if payload.len() <= INLINE {
            copy::fetch_to_store(self.data.word_at(self.tail));
        }
        self.record(payload, tag, key, now)
    }

    #[inline(always)]
    fn record(
        &mut self,
        payload: &[u8],
        tag: u16,
        key: bool,
        now: impl Fn() -> u64,
    ) -> Result<u64, WriteError> {
        let length = payload.len() as u64;
        if length >= u64::from(self.limit) {
            return Err(self.refusal(length));
        }
        let bytes = record_bytes(length);
        let is_small = bytes <= SMALL;
        let early = if is_small { None } else { Some(now()) };
        let record = match self.data.run_at(self.tail, bytes) {
            // After small records both things that `prepare` does have been done ahead.
            Some(record) if self.tail + bytes + GRANULE <= self.clean => record,
            _ => {
                self.make_room(bytes);
                self.data.run_at(self.tail, bytes).expect("there is room now")
            }
        };
        let line = record.first_chunk::<LINE_WORDS>().expect("a whole line");
        let [commit, meta, inline @ ..] = line;
        // The line that readers poll comes last and in one burst, so that they cannot take it away half way.
        let first = self.copier.store_rest::<INLINE>(&record[(RECORD_HEADER / WORD) as usize..], payload);
        let time = early.unwrap_or_else(now);
        meta.store(Meta::new(tag, time).word(), Ordering::Relaxed);
        copy::store_inline(inline, first);
        let sequence = self.next;
        let flags = if key { Flags::KEY } else { Flags::VALID };
        commit.store(Commit::new(sequence, flags, length).word(), COMMIT); // SYNC POINT: commit
        self.tail += bytes;
        self.next = sequence + 1;
        self.bytes = self.bytes.wrapping_add(length);
        if key {
            self.last_key = sequence;
        }
        self.committed();
        // Readers that lost their place look for key messages in the lazy line.
        if key || self.next.is_multiple_of(LAZY_EVERY) {
            self.update_lazy(time);
        }
        if is_small {
            self.clean_ahead();
        }
        Ok(sequence)
    }

    /// Why a payload of so many bytes cannot be published.
    #[cold]
    fn refusal(&self, length: u64) -> WriteError {
        match self.limit {
            0 => OutOfSequences { sequence: self.next }.into(),
            _ => TooLarge { length, max_message: self.geometry.max_message }.into(),
        }
    }

    /// Says in the stream that messages up to `to` will never come; the next message has sequence `to + 1`.
    /// Does nothing when `to` lies behind.
    ///
    /// # Errors
    /// [`OutOfSequences`] when `to` is [`MAX_SEQUENCE`] or more; nothing is said then.
    pub fn gap(&mut self, to: u64, time: u64) -> Result<(), OutOfSequences> {
        if to >= MAX_SEQUENCE && !crate::fault!("gaps_to_any_sequence") {
            return Err(OutOfSequences { sequence: to });
        }
        if to >= self.next {
            self.control(Control::Gap { from: self.next, to }, time);
        }
        Ok(())
    }

    /// Says in the stream that the remote publisher began a new session, whose identity is ten bytes long.
    pub fn session(&mut self, identity: [u8; 10], time: u64) {
        let [high, low] = session_words(identity);
        // Noted only once it was said: a successor of one that dies in between says it again.
        self.header[SESSION_REST].store(0, Ordering::Relaxed);
        self.control(Control::Session { high, low }, time);
        self.header[SESSION].store(high, Ordering::Relaxed);
        self.header[SESSION_REST].store(low | HAS_SESSION, Ordering::Relaxed);
    }

    /// Ends the stream: readers get everything published so far and then the end. Nothing may be published after it.
    pub fn close(&mut self, time: u64) {
        self.control(Control::End, time);
        self.header[WRITER_PID].store(0, Ordering::Relaxed);
        self.header[STATE].store(State::Closed.pack(self.epoch), CLOSED); // SYNC POINT: close
    }

    /// The sequence of the next message.
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Where the next record goes, in bytes since the ring began.
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// This writer's incarnation, from 1.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The sizes of the ring.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Writes a control record.
    #[cold]
    fn control(&mut self, control: Control, time: u64) {
        self.make_room(GRANULE);
        let place = Place { position: self.tail, sequence: self.next };
        let next = control.next_sequence(self.next);
        let is_gap = next > self.next;
        if is_gap {
            // A gap may reuse any entry of the index, also the one that the lazy line names; then it names the gap
            // itself, which is where a walk must start, whichever side of the gap the lazy line is on.
            self.update_lazy(time);
        }
        let record = self.data.run_at(self.tail, GRANULE).expect("there is room now");
        record[1].store(Meta::new(0, time).word(), Ordering::Relaxed);
        for (word, value) in record[2..].iter().zip(control.words()) {
            word.store(value, Ordering::Relaxed);
        }
        record[0].store(Commit::new(self.next, Flags::CONTROL, Control::BYTES).word(), COMMIT); // SYNC POINT: commit
        self.tail += GRANULE;
        self.next = next;
        if is_gap {
            self.index_gap(place, next);
            if !cfg!(mutant = "lazy_after_gap_entry") {
                self.update_lazy(time);
            }
        }
        self.committed();
        self.update_lazy(time);
    }

    /// Prepares `bytes` contiguous bytes at the tail, mostly for records that are not small.
    #[inline(never)]
    fn make_room(&mut self, bytes: u64) {
        if self.data.run_at(self.tail, bytes).is_none() {
            self.pad();
        }
        self.prepare(self.tail + bytes);
    }

    /// Fills the rest of the ring, because records never cross its end.
    #[cold]
    fn pad(&mut self) {
        let capacity = self.data.bytes();
        let to_end = capacity - (self.tail & (capacity - 1));
        self.prepare(self.tail + to_end);
        let commit = Commit::new(self.next, Flags::PAD, to_end - RECORD_HEADER);
        self.data.word_at(self.tail).store(commit.word(), COMMIT);
        self.tail += to_end;
        self.committed();
    }

    /// Announces everything up to `end`, where the record to come will end, and makes sure that the commit word there is
    /// zero. The store of that zero comes first of all, so that its cache miss passes while the payload's do.
    fn prepare(&mut self, end: u64) {
        let need = end + GRANULE;
        // What lies inside the record gets payload: nobody looks for a commit word there.
        self.clean = self.clean.max(end);
        if cfg!(mutant = "no_clean_ahead") {
            self.clean = need;
        }
        self.clean_until(need);
    }

    /// Cleans what the next records will need. After the commit, because stores become visible in their order on x86-64:
    /// before it, the readers would wait for these cache misses. Several at a time, which is less code a message.
    #[inline(always)]
    fn clean_ahead(&mut self) {
        if self.clean < self.tail + AHEAD - AT_ONCE {
            self.clean_until(self.tail + AHEAD);
        }
    }

    /// Announces everything up to `need` and zeroes the commit words before it that are not clean yet.
    #[inline]
    fn clean_until(&mut self, need: u64) {
        if need > self.frontier {
            self.advance_frontier(need);
        }
        self.zero_until(need);
    }

    #[cold]
    fn advance_frontier(&mut self, need: u64) {
        self.count_for_joiners();
        let frontier = need.next_multiple_of(self.geometry.chunk);
        self.frontier = frontier;
        if cfg!(mutant = "frontier_after_data") {
            return;
        }
        self.header[FRONTIER].store(frontier, Ordering::Relaxed);
        if !cfg!(mutant = "no_frontier_fence") {
            fence(Ordering::Release); // SYNC POINT: window
        }
    }

    #[inline]
    fn zero_until(&mut self, end: u64) {
        if self.clean < end {
            self.data.zero_each(self.clean, end, GRANULE);
            self.clean = end;
        }
    }

    /// Notes where the next sequence will stand.
    #[inline]
    fn committed(&self) {
        if cfg!(mutant = "frontier_after_data") {
            self.header[FRONTIER].store(self.frontier, Ordering::Relaxed);
        }
        self.store_index(Place { position: self.tail, sequence: self.next });
    }

    #[inline]
    fn store_index(&self, place: Place) {
        self.index.wrapped(place.sequence).store(place.position, INDEX); // SYNC POINT: index
    }

    /// Tells joiners how far the stream has come. Rare, and kept out of the way of what is done for each message.
    #[cold]
    #[inline(never)]
    fn update_lazy(&mut self, time: u64) {
        // The update after this one comes before the sequences are used up.
        if self.next > MAX_SEQUENCE - LAZY_EVERY {
            self.limit = 0;
        }
        self.header[LAZY_TIME].store(time, Ordering::Relaxed);
        self.count_for_joiners();
    }

    /// The lazy line but for the time.
    #[inline]
    fn count_for_joiners(&self) {
        let header = &self.header;
        header[LAZY_KEY].store(self.last_key, Ordering::Relaxed);
        header[LAZY_BYTES].store(self.bytes, Ordering::Relaxed);
        header[LAZY_PUBLISHED].store(self.next - 1, LAZY); // SYNC POINT: lazy
    }

    /// Points the sequences after `gap.sequence` up to and including `next` at the gap record, as far as the index
    /// reaches.
    fn index_gap(&self, gap: Place, next: u64) {
        let reachable = next.saturating_sub(self.geometry.index_entries - 1);
        for sequence in reachable.max(gap.sequence + 1)..=next {
            self.store_index(Place { position: gap.position, sequence });
        }
    }
}

/// Finds the tail of a ring that nobody writes to, from the lazy line on, which a record must confirm: the sequences would
/// jump to where a forged one says.
fn walk(cells: &RingCells, geometry: Geometry) -> Result<Tail, TakeError> {
    let lazy = |word: usize| cells.header[word].load(Ordering::Relaxed);
    let locator = Locator::new(cells.clone(), geometry);
    let hint = locator.hint()?;
    if matches!(locator.inspect(hint)?, Found::Nothing) && !crate::fault!("any_count_is_gone_on_from") {
        locator.confirm(hint)?;
    }
    let mut tail = Tail { place: hint, gap: None, last_key: lazy(LAZY_KEY), bytes: lazy(LAZY_BYTES) };
    let mut steps = 0;
    while let Found::Record { commit, sequence, after } = locator.inspect(tail.place)? {
        // The lazy line follows at least every so many messages, and each gap at once.
        if steps > 2 * LAZY_EVERY || tail.gap.is_some() {
            return Err(Corrupt { position: tail.place.position, sequence, word: commit.word() }.into());
        }
        steps += 1;
        if commit.flags().has(Flags::CONTROL) {
            let is_new_gap = after.sequence > tail.place.sequence;
            tail.gap = is_new_gap.then_some(Place { sequence, ..tail.place });
        } else if after.sequence > sequence {
            tail.bytes = tail.bytes.wrapping_add(commit.length());
            if commit.flags().has(Flags::KEY) {
                tail.last_key = sequence;
            }
        }
        tail.place = after;
    }
    Ok(tail)
}
