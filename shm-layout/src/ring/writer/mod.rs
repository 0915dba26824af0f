//! The writer's side of a ring. The writer never waits, and it never reads what a reader wrote. It stays below a bound that its caller
//! sets.
//!
//! The caller holds the channel's writer lock, because the protocol allows only one writer on a ring.

mod takeover;

use crate::error::{BeyondBound, Corrupt, OutOfSequences, TooLarge, WriteError};
use crate::fault::mutant;
use crate::layout::geometry::{AHEAD, GRANULE, Geometry, MAX_SEQUENCE, RECORD_HEADER, WORD, record_bytes};
use crate::layout::header::{
    FRONTIER, HAS_SESSION, LAZY_BYTES, LAZY_KEY, LAZY_TIME, SESSION, SESSION_REST, STATE, State, WRITER_PID,
};
use crate::layout::record::{Commit, ControlRecord, Flags, Meta, session_words};
use crate::ring::cells::{Cells, Page, RingCells};
use crate::ring::copy::{self, Copier};
use crate::ring::locate::Place;
use crate::ring::sync_points::{close, commit, index, lazy, window};
use crate::sync::Ordering;
use std::mem::offset_of;
use takeover::walk;

pub use takeover::TakeOverError;

const LINE_WORDS: usize = (GRANULE / WORD) as usize;
/// The largest epoch that fits in the state word.
const MAX_EPOCH: u64 = u64::MAX >> 8;
/// After a record of at most this many bytes, the writer zeroes commit words ahead of the tail. After a larger record it does not, because
/// it would then fetch each line of the next record twice: once for the zero and once for the payload.
const SMALL: u64 = 8 * GRANULE;
/// The least number of bytes that the writer cleans ahead at a time.
const AT_ONCE: u64 = AHEAD / 4 / GRANULE * GRANULE;
// A small record needs clean granules for itself and the granule after it. These granules are always clean.
const _: () = assert!(cfg!(loom) || SMALL + GRANULE <= AHEAD - AT_ONCE);
/// Number of payload bytes that share the first cache line with the record's header.
const INLINE: usize = (GRANULE - RECORD_HEADER) as usize;

/// Writes records into a ring.
///
/// Most messages need only the first two cache lines of this struct. For this reason the struct has a copy of `max_message` there. If
/// messages are rare, none of these lines is in the caches, and the publisher waits for each line that it touches.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Writer {
    data: Cells,
    /// The position of the next record.
    tail: u64,
    /// The sequence of the next message.
    next: u64,
    /// The commit words from the tail up to this position are zero. This position is never beyond the frontier.
    clean: u64,
    /// The end of the space that the writer can write to, as the word FRONTIER announces it.
    frontier: u64,
    /// The largest payload plus 1, so each payload is shorter than this. 0 when no sequence is left.
    limit: u32,
    copier: Copier,
    // The second cache line.
    index: Cells,
    header: Page,
    bytes: u64,
    last_key: u64,
    // Cold fields.
    geometry: Geometry,
    epoch: u64,
    /// The bound of the frontier, the end of the space that the writer can write to; `u64::MAX` if there are no gates. Only the code that
    /// moves the frontier checks the bound, once a chunk.
    bound: u64,
}

const _: () = assert!(offset_of!(Writer, geometry) == 128, "two lines before it");

impl Writer {
    /// Takes over a ring that is new, that was closed, or whose writer died. The caller holds the ring's writer lock.
    ///
    /// The epoch grows by one. Unless the ring is new, readers find an epoch record in the stream. Cost: a walk over at most about 128
    /// records, and the stores for one chunk.
    ///
    /// # Errors
    /// [`TakeOverError::Superseded`]; or [`TakeOverError::Locate`] if the walk finds bytes that no correct writer leaves. The ring is then
    /// unchanged.
    pub(crate) fn take_over(
        cells: RingCells,
        geometry: Geometry,
        pid: u32,
        time: u64,
    ) -> Result<Self, TakeOverError> {
        let old_epoch = match cells.header[STATE].load(Ordering::Relaxed) {
            0 => 0,
            word => match State::unpack(word) {
                Some((_, State::Superseded)) => return Err(TakeOverError::Superseded),
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
            bound: u64::MAX,
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
            // The dead writer would have continued in this order: the entries of the gap, the lazy line, and last the entry of the next
            // sequence. In this order, the entry that the lazy line names always leads to the gap or to the tail.
            writer.index_gap(gap, writer.next);
            writer.update_lazy(time);
        }
        writer.store_index(tail.place);
        writer.update_lazy(time);
        writer.repair();
        if old_epoch > 0 {
            writer.control(ControlRecord::Epoch { epoch: writer.epoch }, time);
        }
        // Readers act only on the states that end a segment. This state only informs tools.
        writer.header[STATE].store(State::Active.pack(writer.epoch), Ordering::Relaxed);
        Ok(writer)
    }

    /// Cleans the granules above the tail, so that records of a dead writer there do no harm. `ring/mod.rs` has the argument.
    fn repair(&mut self) {
        let target = (self.tail + AHEAD).max(self.frontier).next_multiple_of(self.geometry.chunk);
        if !mutant!("takeover_without_frontier") {
            self.frontier = target;
        }
        window::announce_on_takeover(&self.header, self.frontier);
        self.clean = self.tail;
        if mutant!("takeover_without_clean") {
            self.clean = target;
        } else {
            self.zero_until(target);
        }
    }

    /// Publishes one message and returns its sequence. Wait-free; no allocation, lock or system call.
    ///
    /// `time` is in ticks of the segment's clock. Cost: the stores to the record's lines, one zero per granule, and one index entry. Once a
    /// chunk there is one store to a line that every reader then fetches.
    ///
    /// # Errors
    /// [`WriteError`]; nothing is published then.
    #[inline(always)]
    pub fn publish(&mut self, payload: &[u8], tag: u16, key: bool, time: u64) -> Result<u64, WriteError> {
        self.record(payload, tag, key, || time)
    }

    /// Does the same as [`publish`](Self::publish), but reads the clock itself. For a small message, it reads the clock last, while it
    /// waits for the record's lines from the readers' cores. So reading the clock adds no latency. For a larger message, it reads the clock
    /// first, so that the age of the message includes all of its copying.
    ///
    /// # Errors
    /// [`WriteError`]; nothing is published then.
    #[inline(always)]
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
            // The record before this one was small. After it, the writer already prepared the granules that this record needs.
            Some(record) if self.tail + bytes + GRANULE <= self.clean => record,
            _ => {
                self.make_room(bytes)?;
                self.data.run_at(self.tail, bytes).expect("there is room now")
            }
        };
        let line = record.first_chunk::<LINE_WORDS>().expect("a whole line");
        let [word, meta, inline @ ..] = line;
        // Readers poll the first line. This line is stored last and in one burst, so that no reader fetches it half-written.
        let first = self.copier.store_rest::<INLINE>(&record[(RECORD_HEADER / WORD) as usize..], payload);
        let time = early.unwrap_or_else(now);
        meta.store(Meta::new(tag, time).word(), Ordering::Relaxed);
        copy::store_inline(inline, first);
        let sequence = self.next;
        let flags = if key { Flags::KEY } else { Flags::VALID };
        commit::publish(word, Commit::new(sequence, flags, length));
        self.tail += bytes;
        self.next = sequence + 1;
        self.bytes = self.bytes.wrapping_add(length);
        if key {
            self.last_key = sequence;
        }
        self.committed();
        // The lazy line is updated for each key message, because readers that lost their place find key messages there.
        if key || self.next.is_multiple_of(lazy::EVERY) {
            self.update_lazy(time);
        }
        if is_small {
            self.clean_ahead();
        }
        Ok(sequence)
    }

    /// Returns the reason why a payload of `length` bytes cannot be published.
    #[cold]
    fn refusal(&self, length: u64) -> WriteError {
        match self.limit {
            0 => OutOfSequences { sequence: self.next }.into(),
            _ => TooLarge { length, max_message: self.geometry.max_message }.into(),
        }
    }

    /// Publishes a gap record: messages up to and including `last` will never come, and the next message has the sequence `last + 1`. Does
    /// nothing when `last` is below the next sequence.
    ///
    /// # Errors
    /// [`OutOfSequences`] when `last` is [`MAX_SEQUENCE`] or more. Then nothing is published.
    pub fn gap(&mut self, last: u64, time: u64) -> Result<(), OutOfSequences> {
        if last >= MAX_SEQUENCE && !crate::fault!("gaps_to_any_sequence") {
            return Err(OutOfSequences { sequence: last });
        }
        if last >= self.next {
            self.control(ControlRecord::Gap { from: self.next, to: last }, time);
        }
        Ok(())
    }

    /// Publishes a session record, which says that the publisher on another host began a new session. The identity of a session is ten
    /// bytes long.
    pub fn session(&mut self, identity: [u8; 10], time: u64) {
        let [high, low] = session_words(identity);
        // The session is stored in the header after the session record is published. If this writer dies in between, its successor
        // publishes the record again.
        self.header[SESSION_REST].store(0, Ordering::Relaxed);
        self.control(ControlRecord::Session { high, low }, time);
        self.header[SESSION].store(high, Ordering::Relaxed);
        self.header[SESSION_REST].store(low | HAS_SESSION, Ordering::Relaxed);
    }

    /// Ends the stream. Readers get everything published so far, and then the end. The caller must publish nothing after this.
    pub fn close(&mut self, time: u64) {
        self.control(ControlRecord::End, time);
        self.header[WRITER_PID].store(0, Ordering::Relaxed);
        close::publish(&self.header, State::Closed.pack(self.epoch));
    }

    /// The sequence of the next message.
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// The position up to which this writer might already be writing. Everything more than one capacity below this position can already be
    /// overwritten.
    pub fn frontier(&self) -> u64 {
        self.frontier
    }

    /// Sets a bound for the frontier, the position up to which the writer is allowed to write. The default, `u64::MAX`, is no bound. A
    /// bound below the frontier keeps the frontier unchanged.
    ///
    /// If a message needs a frontier beyond the bound, the writer refuses the message with [`WriteError::BeyondBound`]. It never refuses a
    /// control record. If the bound is too low for a control record, the writer raises the bound.
    pub fn set_bound(&mut self, bound: u64) {
        self.bound = bound;
    }

    /// Returns the end of the space (the frontier) that the next control record needs, if this end is beyond the bound.
    pub fn control_beyond_bound(&self) -> Option<BeyondBound> {
        let frontier = self.frontier_for(GRANULE);
        self.is_beyond_bound(frontier).then_some(BeyondBound { frontier })
    }

    /// The position of the next record, in bytes since the ring began.
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// The epoch of this writer: 1 for the first.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The sizes of the ring.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Writes a control record. It is never refused: if the bound is too low, this function raises the bound.
    #[cold]
    fn control(&mut self, control: ControlRecord, time: u64) {
        self.bound = self.bound.max(self.frontier_for(GRANULE));
        self.make_room(GRANULE).expect("the bound was raised");
        let place = Place { position: self.tail, sequence: self.next };
        let next = control.next_sequence(self.next);
        let is_gap = next > self.next;
        if is_gap {
            // A gap can reuse any entry of the index, and also the entry that the lazy line (the count of messages) names. That entry then
            // names the gap record. A walk can start there, whether or not the lazy line counts the gap already.
            self.update_lazy(time);
        }
        let record = self.data.run_at(self.tail, GRANULE).expect("there is room now");
        record[1].store(Meta::new(0, time).word(), Ordering::Relaxed);
        for (word, value) in record[2..].iter().zip(control.words()) {
            word.store(value, Ordering::Relaxed);
        }
        commit::publish(&record[0], Commit::new(self.next, Flags::CONTROL, ControlRecord::BYTES));
        self.tail += GRANULE;
        self.next = next;
        if is_gap {
            self.index_gap(place, next);
            if !mutant!("lazy_after_gap_entry") {
                self.update_lazy(time);
            }
        }
        self.committed();
        self.update_lazy(time);
    }

    /// Prepares `bytes` contiguous bytes at the tail. Most small records do not need this call. If the record needs a frontier beyond the
    /// bound, this call refuses the record before it stores anything.
    #[inline(never)]
    fn make_room(&mut self, bytes: u64) -> Result<(), BeyondBound> {
        let frontier = self.frontier_for(bytes);
        if self.is_beyond_bound(frontier) && !mutant!("records_pass_the_bound") {
            return Err(BeyondBound { frontier });
        }
        if self.data.run_at(self.tail, bytes).is_none() {
            self.pad();
        }
        self.prepare(self.tail + bytes);
        Ok(())
    }

    /// Returns the frontier that must be announced before a record of this many bytes can be stored at the tail. If there must be a pad
    /// before the record, the pad is included.
    fn frontier_for(&self, bytes: u64) -> u64 {
        let pad = if self.data.run_at(self.tail, bytes).is_some() { 0 } else { self.to_end() };
        self.frontier_above(self.tail + pad + bytes + GRANULE)
    }

    /// Returns the frontier that the writer must announce before it stores anything below `need`.
    #[inline]
    fn frontier_above(&self, need: u64) -> u64 {
        if need > self.frontier { need.next_multiple_of(self.geometry.chunk) } else { self.frontier }
    }

    /// Whether the writer may not announce this frontier, because it lies beyond the bound.
    #[inline]
    fn is_beyond_bound(&self, frontier: u64) -> bool {
        frontier > self.frontier.max(self.bound) && !mutant!("bound_is_ignored")
    }

    /// Bytes from the tail to the end of the ring.
    fn to_end(&self) -> u64 {
        let capacity = self.data.bytes();
        capacity - (self.tail & (capacity - 1))
    }

    /// Fills the rest of the ring with a pad, because no record crosses the end of the ring.
    #[cold]
    fn pad(&mut self) {
        let to_end = self.to_end();
        self.prepare(self.tail + to_end);
        let commit = Commit::new(self.next, Flags::PAD, to_end - RECORD_HEADER);
        commit::publish(self.data.word_at(self.tail), commit);
        self.tail += to_end;
        self.committed();
    }

    /// Announces a frontier up to `end`, where the next record will end, and zeroes the commit word there. This zero is stored before the
    /// payload, so that the cache misses of both overlap.
    fn prepare(&mut self, end: u64) {
        let need = end + GRANULE;
        // The granules inside the record get payload: no reader looks for a commit word there.
        self.clean = self.clean.max(end);
        if mutant!("no_clean_ahead") {
            self.clean = need;
        }
        self.clean_until(need);
    }

    /// Zeroes commit words that the next records will need. Several granules are cleaned at a time, so that most messages execute less
    /// code. If the bound does not allow this, this call cleans nothing, and `prepare` cleans for the next record.
    ///
    /// Call this after the commit. On x86-64, stores become visible in program order, so readers would otherwise wait for the cache misses
    /// of these stores.
    #[inline(always)]
    fn clean_ahead(&mut self) {
        if self.clean < self.tail + AHEAD - AT_ONCE {
            self.clean_until(self.tail + AHEAD);
        }
    }

    /// Announces a frontier up to `need`, and zeroes the commit words below `need` that are not zero yet. Does nothing if this needs a
    /// frontier beyond the bound.
    #[inline]
    fn clean_until(&mut self, need: u64) {
        if need > self.frontier && !self.advance_frontier(need) {
            return;
        }
        self.zero_until(need);
    }

    /// Moves the frontier. Returns false, and stores nothing, if the frontier would go beyond the bound.
    #[cold]
    fn advance_frontier(&mut self, need: u64) -> bool {
        let frontier = self.frontier_above(need);
        if self.is_beyond_bound(frontier) {
            return false;
        }
        self.count_for_joiners();
        self.frontier = frontier;
        if !mutant!("frontier_after_data") {
            window::announce(&self.header, frontier);
        }
        true
    }

    #[inline]
    fn zero_until(&mut self, end: u64) {
        if self.clean < end {
            self.data.zero_each(self.clean, end, GRANULE);
            self.clean = end;
        }
    }

    /// Updates the index after a commit. The entry of the next sequence then has the position of the tail.
    #[inline]
    fn committed(&self) {
        if mutant!("frontier_after_data") {
            self.header[FRONTIER].store(self.frontier, Ordering::Relaxed);
        }
        self.store_index(Place { position: self.tail, sequence: self.next });
    }

    #[inline]
    fn store_index(&self, place: Place) {
        index::publish(&self.index, place.sequence, place.position);
    }

    /// Updates the lazy line, from which readers that join learn the number of messages. This function is not inlined, because it is not
    /// called for most messages.
    #[cold]
    #[inline(never)]
    fn update_lazy(&mut self, time: u64) {
        // Sequences would run out before the next update, so all further messages are refused.
        if self.next > MAX_SEQUENCE - lazy::EVERY {
            self.limit = 0;
        }
        self.header[LAZY_TIME].store(time, Ordering::Relaxed);
        self.count_for_joiners();
    }

    /// Updates all words of the lazy line except its time.
    #[inline]
    fn count_for_joiners(&self) {
        let header = &self.header;
        header[LAZY_KEY].store(self.last_key, Ordering::Relaxed);
        header[LAZY_BYTES].store(self.bytes, Ordering::Relaxed);
        lazy::publish(header, self.next - 1);
    }

    /// Stores the position of the gap record in the index entries of the sequences `gap.sequence + 1..=next`. If several of these sequences
    /// share an index entry, the entry is stored once.
    fn index_gap(&self, gap: Place, next: u64) {
        let reachable = next.saturating_sub(self.geometry.index_entries - 1);
        for sequence in reachable.max(gap.sequence + 1)..=next {
            self.store_index(Place { position: gap.position, sequence });
        }
    }
}
