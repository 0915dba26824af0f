//! The publisher's side of a board. The caller holds the channel's writer lock. The caller commits each message to the ring, and then
//! stores the message on the board.

use super::sync_points::{named, store, stored, through};
use super::{BoardCells, Head};
use crate::fault::mutant;
use crate::layout::board::{
    FORGOTTEN, HEAD_BASE, HEAD_BORN, HEAD_KEY, HEAD_META, HEAD_SEQUENCE, HEAD_TIME, HIGH, LIVE, Meta, NO_KEY,
    REFUSED, SINCE, THROUGH, TOO_LARGE,
};
use crate::ring::copy::Copier;
use crate::sync::{AtomicU64, Ordering};

/// A time has 48 bits, as in a record.
const TIME: u64 = (1 << 48) - 1;

/// A message to be stored on the board.
#[derive(Debug, Clone, Copy)]
pub(super) struct Posted<'a> {
    pub(super) sequence: u64,
    pub(super) payload: &'a [u8],
    pub(super) tag: u16,
    pub(super) key: bool,
    pub(super) time: u64,
}

/// Keeps a board up to date.
#[derive(Debug)]
pub struct BoardWriter {
    pub(super) cells: BoardCells,
    copier: Copier,
    /// Number of slots that have been used.
    pub(super) high: u32,
    /// The slots that have lost their key, by a removal or in a takeover. A new key gets the first of these slots if that slot lost its key
    /// in a takeover. Otherwise the key gets a slot that was never used. If no such slot is left, the key gets the first of these slots.
    pub(super) vacant: Vacant,
}

impl BoardWriter {
    pub(super) fn new(cells: BoardCells, high: u32) -> Self {
        let vacant = Vacant::new(cells.geometry.spec.keys as usize);
        Self { cells, copier: Copier::of_this_processor(), high, vacant }
    }

    /// Stores a message in the slot of its key, and counts the message in THROUGH. The message must be the last one that was committed to
    /// the ring. Wait-free; no allocation, lock or system call.
    ///
    /// Cost for a key that is on the board: the cache lines of an entry of the index, of the slot's head, of its value, and of THROUGH.
    #[inline(always)]
    pub fn post(&mut self, sequence: u64, payload: &[u8], tag: u16, key: bool, time: u64) {
        if mutant!("board_through_first") {
            through::publish(&self.cells.header, sequence);
        }
        self.put(Posted { sequence, payload, tag, key, time });
        through::publish(&self.cells.header, sequence);
    }

    #[inline(always)]
    pub(super) fn put(&mut self, message: Posted<'_>) {
        match self.cells.geometry.key_of(message.payload) {
            None => self.note(NO_KEY),
            Some(key) => {
                let identity = self.cells.geometry.identity(key);
                match self.cells.find(identity) {
                    Some(slot) => self.store(slot, message),
                    None => self.insert(identity, message),
                }
            }
        }
    }

    /// Raises THROUGH, the sequence up to which the board has all messages, to `last`. The caller knows that no missing message up to
    /// `last` will ever come.
    pub fn skip_to(&mut self, last: u64) {
        if last > self.cells.count(THROUGH) {
            through::publish(&self.cells.header, last);
        }
    }

    /// The sizes of the board and the layout of its keys.
    pub fn geometry(&self) -> &crate::layout::board::Geometry {
        &self.cells.geometry
    }

    /// A view of the board, like the view of a reader.
    pub fn view(&self) -> super::View {
        super::View::new(self.cells.clone())
    }

    #[inline(always)]
    fn store(&mut self, slot: u32, message: Posted<'_>) {
        let Self { cells, copier, .. } = self;
        let (Some(head), Some(value)) = (cells.head(slot), cells.value(slot)) else { return };
        let was = Meta::from_word(head[HEAD_META].load(Ordering::Relaxed));
        let meta = meta(cells, message);
        let even = store::begin(&head[0]);
        fill(cells, *copier, head, value, meta, message);
        stored::end(&head[0], even);
        if (was.word() | meta.word()) & (Meta::REMOVED.word() | Meta::TOO_LARGE.word()) != 0 {
            self.turned(slot, was, meta);
        }
    }

    /// Updates the list of free slots and the counts. Called after a message that is too large, that removes its key, or that brings a
    /// removed key back.
    #[cold]
    fn turned(&mut self, slot: u32, was: Meta, meta: Meta) {
        match (was.has(Meta::REMOVED), meta.has(Meta::REMOVED)) {
            (true, false) => {
                self.vacant.take(slot);
                self.add_live(1);
            }
            (false, true) => {
                self.vacant.put_last(slot);
                self.add_live(u64::MAX);
            }
            // The key was removed once more. Slots are given out in the order of their last removals.
            (true, true) => {
                self.vacant.take(slot);
                self.vacant.put_last(slot);
            }
            (false, false) => {}
        }
        if meta.has(Meta::TOO_LARGE) {
            self.note(TOO_LARGE);
        }
    }

    /// Stores the first message of a key.
    #[cold]
    fn insert(&mut self, identity: [u64; 2], message: Posted<'_>) {
        if self.cells.geometry.spec.is_removal(message.payload.len(), message.tag) {
            return; // there is nothing to remove
        }
        let Some(slot) = self.free_slot() else { return self.note(REFUSED) };
        let Self { cells, copier, .. } = self;
        let (Some(head), Some(value)) = (cells.head(slot), cells.value(slot)) else { return };
        let meta = meta(cells, message);
        let even = store::begin(&head[0]);
        // If this writer dies in between, its successor finds the new key's words only together with the words that are stored before them.
        head[HEAD_BASE].store((even / 2).wrapping_sub(1), Ordering::Relaxed);
        head[HEAD_BORN].store(message.sequence, Ordering::Relaxed);
        named::publish(head, identity);
        fill(cells, *copier, head, value, meta, message);
        stored::end(&head[0], even);
        if slot == self.high {
            self.high += 1;
            cells.header[HIGH].store(u64::from(self.high), Ordering::Release);
        }
        cells.add(identity, slot);
        self.add_live(1);
        if meta.has(Meta::TOO_LARGE) {
            self.note(TOO_LARGE);
        }
    }

    /// Takes a slot for a new key. No entry of the index names this slot.
    fn free_slot(&mut self) -> Option<u32> {
        let cells = &self.cells;
        let is_empty =
            |slot: u32| cells.head(slot).is_some_and(|head| Head::load(head).meta.has(Meta::EMPTY));
        if u64::from(self.high) < cells.geometry.spec.keys && !self.vacant.first().is_some_and(is_empty) {
            return Some(self.high);
        }
        let slot = self.vacant.take_first()?;
        let head = Head::load(cells.head(slot)?);
        if !head.meta.has(Meta::EMPTY) {
            // A reader that did not see the removal learns that the board has forgotten the removal.
            self.forget_up_to(head.sequence);
            cells.take_out(head.identity, slot);
        }
        Some(slot)
    }

    #[cold]
    fn note(&self, word: usize) {
        self.cells.set(word, self.cells.count(word).wrapping_add(1));
    }

    fn add_live(&self, by: u64) {
        self.cells.set(LIVE, self.cells.count(LIVE).wrapping_add(by));
    }

    /// Stores an entry of another board, with its count. No reader has seen this board yet.
    pub(super) fn import(&mut self, head: &Head, value: &[u8]) {
        let Self { cells, copier, .. } = self;
        if u64::from(self.high) >= cells.geometry.spec.keys {
            return match head.meta.has(Meta::REMOVED) {
                true => self.forget_up_to(head.sequence),
                false => self.note(REFUSED),
            };
        }
        let slot = self.high;
        let (Some(to), Some(words)) = (cells.head(slot), cells.value(slot)) else { return };
        let stores = head.count().max(1);
        to[0].store(stores << 1, Ordering::Relaxed);
        to[HEAD_BASE].store(stores.wrapping_sub(head.count()), Ordering::Relaxed);
        to[HEAD_BORN].store(head.born, Ordering::Relaxed);
        to[HEAD_KEY].store(head.identity[0], Ordering::Relaxed);
        to[HEAD_KEY + 1].store(head.identity[1], Ordering::Relaxed);
        to[HEAD_SEQUENCE].store(head.sequence, Ordering::Relaxed);
        to[HEAD_META].store(head.meta.word(), Ordering::Relaxed);
        to[HEAD_TIME].store(head.time, Ordering::Relaxed);
        copier.store(words, value);
        self.high += 1;
        cells.header[HIGH].store(u64::from(self.high), Ordering::Release);
        cells.add(head.identity, slot);
        if head.meta.has(Meta::REMOVED) {
            self.vacant.put_last(slot);
        } else {
            self.add_live(1);
        }
    }

    /// Announces that removals up to this sequence might be missing.
    pub(super) fn forget_up_to(&self, sequence: u64) {
        self.cells.set(FORGOTTEN, self.cells.count(FORGOTTEN).max(sequence));
    }

    /// Sets SINCE and THROUGH: the first and the last sequence of the messages that the board has.
    pub(super) fn span(&self, since: u64, last: u64) {
        self.cells.set(SINCE, since);
        through::publish(&self.cells.header, last);
    }
}

#[inline(always)]
fn meta(cells: &BoardCells, message: Posted<'_>) -> Meta {
    let Posted { payload, tag, key, .. } = message;
    let spec = &cells.geometry.spec;
    Meta::new(payload.len(), tag)
        .with(Meta::KEY, key)
        .with(Meta::REMOVED, spec.is_removal(payload.len(), tag))
        .with(Meta::TOO_LARGE, payload.len() as u64 > spec.value)
}

/// Stores the words that every message changes.
#[inline(always)]
fn fill(
    cells: &BoardCells,
    copier: Copier,
    head: &[AtomicU64; crate::layout::board::HEAD_WORDS],
    value: &[AtomicU64],
    meta: Meta,
    message: Posted<'_>,
) {
    head[HEAD_SEQUENCE].store(message.sequence, Ordering::Relaxed);
    head[HEAD_META].store(meta.word(), Ordering::Relaxed);
    head[HEAD_TIME].store(message.time & TIME, Ordering::Relaxed);
    copier.store(value, &message.payload[..cells.stored_bytes(meta)]);
}

/// A list of the slots without a key. New keys get slots in the order of the list. Each operation takes constant time, and allocates no
/// memory.
#[derive(Debug)]
pub(super) struct Vacant {
    /// For each slot in the list, the previous slot and the next slot. The last element represents both ends of the list.
    links: Box<[(u32, u32)]>,
}

/// The value in both links of a slot that is not in the list.
const APART: u32 = u32::MAX;

impl Vacant {
    fn new(slots: usize) -> Self {
        let mut links = vec![(APART, APART); slots + 1].into_boxed_slice();
        links[slots] = (slots as u32, slots as u32);
        Self { links }
    }

    fn end(&self) -> u32 {
        self.links.len() as u32 - 1
    }

    fn first(&self) -> Option<u32> {
        let first = self.links[self.end() as usize].1;
        (first != self.end()).then_some(first)
    }

    pub(super) fn take(&mut self, slot: u32) {
        let (before, after) = std::mem::replace(&mut self.links[slot as usize], (APART, APART));
        if before != APART && slot != self.end() {
            self.links[before as usize].1 = after;
            self.links[after as usize].0 = before;
        }
    }

    fn take_first(&mut self) -> Option<u32> {
        let first = self.first()?;
        self.take(first);
        Some(first)
    }

    pub(super) fn put_last(&mut self, slot: u32) {
        let end = self.end();
        self.put_between(self.links[end as usize].0, slot, end);
    }

    pub(super) fn put_first(&mut self, slot: u32) {
        let end = self.end();
        self.put_between(end, slot, self.links[end as usize].1);
    }

    fn put_between(&mut self, before: u32, slot: u32, after: u32) {
        if self.links[slot as usize].0 != APART {
            return;
        }
        self.links[slot as usize] = (before, after);
        self.links[before as usize].1 = slot;
        self.links[after as usize].0 = slot;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn vacant_slots_are_given_out_in_their_order() {
        let mut vacant = Vacant::new(4);
        assert_eq!(vacant.take_first(), None);
        [2, 0, 3].into_iter().for_each(|slot| vacant.put_last(slot));
        vacant.put_last(2);
        vacant.put_first(1);
        vacant.take(0);
        vacant.take(0);
        let given: Vec<u32> = std::iter::from_fn(|| vacant.take_first()).collect();
        assert_eq!(given, [1, 2, 3]);
        vacant.put_last(0);
        assert_eq!(vacant.first(), Some(0));
    }
}
