//! The reader's side of a board: reads one slot or one key. Another process writes the board. So the reader limits each length and each
//! slot number before it uses them, and limits each loop.

use super::sync_points::{moved, named, store, stored, through};
use super::{BoardCells, Head};
use crate::layout::board::{
    FORGOTTEN, Geometry, HEAD_VERSION, HIGH, LIVE, Meta, NO_KEY, REFUSED, SINCE, TOO_LARGE,
};
use crate::ring::copy::Copier;
use crate::sync::Ordering;

/// The number of attempts to read a slot that is in the middle of a store. A store takes some nanoseconds. If a publisher stopped in a
/// store, a reader without this limit would try for ever.
const LOOKS: u32 = if cfg!(loom) { 2 } else { 256 };
/// The limits of [`View::tenure_of`]: its attempts, and in each attempt the entries of the index and the slots that it reads. No search in
/// a sound index needs so many: the index is at most half full, and hardly ever has more than one slot for a fingerprint.
const TENURE_LOOKS: u32 = if cfg!(loom) { 2 } else { 16 };
const TENURE_ENTRIES: u64 = 4096;
const TENURE_CANDIDATES: usize = 16;
/// The largest number of slots that one search reads, of those that the index names.
const CANDIDATES: usize = 4096;
/// Number of attempts to copy a value that changes during the copy.
const COPIES: u32 = if cfg!(loom) { 2 } else { 16 };

/// A view of a board. It never writes to the board.
#[derive(Debug, Clone)]
pub struct View {
    cells: BoardCells,
    copier: Copier,
}

/// The result of reading a slot.
#[derive(Debug, Clone, Copy)]
pub(super) enum Look {
    /// The slot's message is in the buffer.
    Stored(Head),
    /// The slot changes faster than its value can be copied. The slot's head is whole, and it belongs to a store that began during the
    /// call.
    Changing(Head),
    /// A publisher is in the middle of a store, or was stopped there. The words of the head may belong to different stores. The buffer has
    /// the bytes of a key, which may be another key than that of the head.
    Busy(Head),
}

/// The result of a search for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The board has the key. The buffer has `bytes` bytes of the key's value.
    Found {
        /// The slot's head.
        head: Head,
        /// The number of the message's bytes in the buffer. If the message [is not whole](Meta::is_whole), the buffer lacks some of its
        /// bytes.
        bytes: usize,
    },
    /// The board does not have this key.
    None,
    /// A publisher has begun to store into the key's slot, and has not finished. The key's newest message is in the ring.
    Busy,
}

/// The result of a search for the first message that a slot counts for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenure {
    /// A slot has had the key since this sequence, even if the key was removed meanwhile.
    Since(u64),
    /// No slot has the key.
    None,
    /// The key's slot is in the middle of a store, or the search took too long.
    Unknown,
}

/// The counts in a board's header. Another process might have written them: check each before use.
///
/// A publisher that dies between a store and its count can make `refused`, `too_large` and `no_key` wrong by one: the next publisher counts
/// the message twice or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// The sequence up to which every message is on the board.
    pub through: u64,
    /// The board is complete from this sequence on. If the newest message of a key is older, the board can lack that message.
    pub since: u64,
    /// Number of keys.
    pub live: u64,
    /// The number of messages that were left out because there was no room for their keys.
    pub refused: u64,
    /// The number of messages that were left out because they were larger than the limit for values.
    pub too_large: u64,
    /// Number of messages that were left out because they were too short to have a key.
    pub no_key: u64,
}

impl View {
    pub(super) fn new(cells: BoardCells) -> Self {
        Self { cells, copier: Copier::of_this_processor() }
    }

    /// Makes a view of the board with these parts. The lengths of the parts match the board's geometry.
    pub fn of(cells: BoardCells) -> Self {
        Self::new(cells)
    }

    /// The sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.cells.geometry
    }

    /// Loads the sequence up to which every message is on the board. An acquire fence orders this load before the caller's later loads of
    /// slots.
    pub fn through(&self) -> u64 {
        through::see(&self.cells.header)
    }

    /// The counts in the board's header now.
    pub fn counters(&self) -> Counters {
        let count = |word| self.cells.count(word);
        Counters {
            through: self.through(),
            since: count(SINCE),
            live: count(LIVE).min(self.cells.geometry.spec.keys),
            refused: count(REFUSED),
            too_large: count(TOO_LARGE),
            no_key: count(NO_KEY),
        }
    }

    /// Whether the board has refused a message, because it had no room for the message's key.
    pub fn has_refused(&self) -> bool {
        self.cells.count(REFUSED) != 0
    }

    /// The highest sequence of a removal that the board no longer knows.
    pub fn forgotten(&self) -> u64 {
        self.cells.count(FORGOTTEN)
    }

    /// Number of slots that have been used.
    pub(super) fn high(&self) -> u32 {
        self.cells.count(HIGH).min(self.cells.geometry.spec.keys) as u32
    }

    /// Loads a slot's version, without any order to other loads.
    #[inline(always)]
    pub(super) fn version(&self, slot: u32) -> u64 {
        self.cells.head(slot).map_or(0, |head| head[HEAD_VERSION].load(Ordering::Relaxed))
    }

    /// Loads the sequence up to which all messages are on the board. After that, checks the slot's version. Returns `None` if the slot no
    /// longer has this version.
    pub(super) fn through_before(&self, slot: u32, version: u64) -> Option<u64> {
        let through = self.through();
        (self.version(slot) == version).then_some(through)
    }

    /// Copies the head of a slot. Copies the slot's value to the start of `out`, which has room for the largest value.
    #[inline(always)]
    pub(super) fn look(&self, slot: u32, out: &mut [u8]) -> Look {
        let (Some(head), Some(value)) = (self.cells.head(slot), self.cells.value(slot)) else {
            return Look::Stored(Head::default());
        };
        let mut first = None;
        let mut busy = Head::default();
        let mut copies = 0;
        for _ in 0..LOOKS {
            let version = stored::see(&head[HEAD_VERSION]);
            let seen = Head { version, ..Head::load(head) };
            if seen.is_busy() {
                busy = seen;
                std::hint::spin_loop();
                continue;
            }
            let began_before = *first.get_or_insert(version) == version;
            // The slot's head is one cache line, which can be read faster than it changes.
            let is_whole = !began_before && store::is_unchanged(&head[HEAD_VERSION], version);
            let bytes = self.cells.stored_bytes(seen.meta).min(out.len());
            self.copier.load(value, &mut out[..bytes]);
            if store::is_unchanged(&head[HEAD_VERSION], version) {
                return Look::Stored(seen);
            }
            copies += 1;
            if is_whole && copies >= COPIES {
                return Look::Changing(seen);
            }
        }
        // The publisher can be about to give the slot to another key. It first stores the number from which that key's messages are
        // counted, and then the words of the key.
        busy.identity = named::see(head);
        // A store to the same key changes no byte of the key. The caller compares the key with the words that identify it.
        let bytes = (self.cells.geometry.spec.key_end as usize).min(out.len());
        self.copier.load(value, &mut out[..bytes]);
        Look::Busy(Head { version: busy.version | 1, identity: busy.identity, ..Head::load(head) })
    }

    /// Number of bytes of a copied value in its buffer.
    #[inline(always)]
    pub(super) fn stored_bytes(&self, meta: Meta) -> usize {
        self.cells.stored_bytes(meta)
    }

    /// Searches for a key. Copies its value to the start of `out`, which has room for the largest value. Wait-free: the number of reads is
    /// bounded, whatever the board holds.
    ///
    /// Cost: an entry of the index, the slot's head, and the lines of its value.
    pub fn get(&self, key: &[u8], out: &mut [u8]) -> Lookup {
        if key.len() != self.cells.geometry.spec.key().len() {
            return Lookup::None;
        }
        let identity = self.cells.geometry.identity(key);
        let fingerprint = self.cells.geometry.fingerprint(identity);
        // A sound index has hardly ever more than one slot for a fingerprint. If the index names too many slots, all slots are searched
        // without the index.
        let mut candidates = CANDIDATES;
        for _ in 0..LOOKS {
            let version = moved::see(&self.cells.header);
            for slot in self.cells.candidates(fingerprint).take(candidates) {
                candidates -= 1;
                if let Some(found) = self.found(slot, identity, out) {
                    return found;
                }
            }
            if candidates == 0 {
                break;
            }
            if version.is_some_and(|version| moved::is_unchanged(&self.cells.header, version)) {
                return Lookup::None;
            }
        }
        // The index is being changed, or its publisher died while it changed the index. The head of each slot names the slot's key.
        let found = (0..self.high()).find_map(|slot| self.found(slot, identity, out));
        found.unwrap_or(Lookup::None)
    }

    /// The number of messages of a key whose slot is in the middle of a store. The number includes the message of this store. Another
    /// process wrote this count: check it before use.
    pub fn count_of(&self, key: &[u8]) -> Option<u64> {
        let identity = self.cells.geometry.identity(key);
        let heads = self.cells.candidates(self.cells.geometry.fingerprint(identity));
        let mut heads = heads.filter_map(|slot| self.cells.head(slot)).map(Head::load);
        heads.find(|head| head.identity == identity).map(|head| head.count())
    }

    /// Searches for the sequence of a key's first message since the key got its slot. Finds the slot of a removed key, too, until another
    /// key gets the slot. Copies no value. The number of reads is bounded, whatever the board holds.
    ///
    /// If a caller has loaded [`through`](Self::through) before, the answer takes all messages up to that sequence into account.
    pub fn tenure_of(&self, key: &[u8]) -> Tenure {
        let identity = self.cells.geometry.identity(key);
        let fingerprint = self.cells.geometry.fingerprint(identity);
        for _ in 0..TENURE_LOOKS {
            let version = moved::see(&self.cells.header);
            let slots = self.cells.candidates_within(fingerprint, TENURE_ENTRIES);
            for slot in slots.take(TENURE_CANDIDATES) {
                match self.look(slot, &mut []) {
                    Look::Stored(head) | Look::Changing(head)
                        if head.identity == identity && !head.meta.has(Meta::EMPTY) =>
                    {
                        return Tenure::Since(head.born);
                    }
                    Look::Busy(head) if head.identity == identity => return Tenure::Unknown,
                    _ => {}
                }
            }
            if version.is_some_and(|version| moved::is_unchanged(&self.cells.header, version)) {
                return Tenure::None;
            }
        }
        Tenure::Unknown
    }

    /// The slot's message, if the slot belongs to this key.
    fn found(&self, slot: u32, identity: [u64; 2], out: &mut [u8]) -> Option<Lookup> {
        match self.look(slot, out) {
            Look::Stored(head) if head.identity == identity && !head.meta.has(Meta::EMPTY) => {
                let bytes = self.cells.stored_bytes(head.meta).min(out.len());
                Some(if head.is_live() { Lookup::Found { head, bytes } } else { Lookup::None })
            }
            Look::Stored(_) => None,
            Look::Busy(head) | Look::Changing(head) => (head.identity == identity).then_some(Lookup::Busy),
        }
    }
}
