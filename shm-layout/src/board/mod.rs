//! The board: the last message of each key, beside the ring that carries all of them.
//!
//! # The idea
//! The publisher commits a message to the ring. It then stores the message into the slot of the message's key. Last, it stores the
//! message's sequence in one word, THROUGH. A reader joins the board to the ring: it loads THROUGH as `t`, copies the slots, and reads the
//! ring from `t + 1` on. The publisher never waits for a reader, and reads nothing that a reader wrote.
//!
//! # The pairs
//! Each release has one acquire. `sync_points.rs` holds both ends.
//!
//! | SYNC POINT | writer | reader | gives |
//! |---|---|---|---|
//! | store | version odd, `fence(Release)`, the slot's words | the slot's words, `fence(Acquire)`, version | a reader refuses a copy with a word of a later store |
//! | stored | the slot's words, `version.store(Release)` (the odd version is also stored with `Release`) | version, `fence(Acquire)`, the slot's words | a reader sees all words of the store that the version names, and the ring has the stored message, even if the store has only begun |
//! | named | the count of a key's messages, `key.store(Release)` | key, `fence(Acquire)`, the count | in the middle of a store, the count belongs to the key that the slot names |
//! | through | the slot's version, `THROUGH.store(Release)` | THROUGH, `fence(Acquire)`, the slots | a reader sees every message up to the loaded sequence, or a newer message of the same key |
//! | moved | index version odd, `fence(Release)`, entries | entries, `fence(Acquire)`, index version | a reader repeats a search that might have missed a moving entry |
//!
//! # Why nothing is missing and nothing comes twice
//! *Definitions.* `t` is the value that the reader loaded from THROUGH before it copied the slots. `M` is the highest sequence among the
//! copies, or `t` if that is higher. `T >= M` is the sequence up to which the reader merges the ring's messages, `t + 1 ..= T`, into the
//! copies. The reader hands out one message for each key, then the ring from `T + 1` on.
//!
//! *Claim.* For each key that has room on the board, the reader hands out the newest message at or below `T`. Then it hands out every
//! message above `T`, once.
//!
//! *Proof.*
//! 1. Let `m <= t` be the newest message of a key at or below `t`. By *through* the reader sees the store of `m`, a later store of the same
//!    key, or a later removal of the key. By *store* and *stored* the copy is one whole store.
//! 2. The slot can be in the middle of a store when the reader copies it. The message that is being stored was committed to the ring, and
//!    is not yet counted in THROUGH: its sequence is above `t`. If the publisher stopped in the middle of the store, the reader gives up on
//!    the slot after some attempts. It then finds the message in the ring above `t`, because it reads the tail afterwards, and the tail
//!    includes the message.
//! 3. Every copy has a sequence of at most `M <= T`, and the ring's messages above `t` and up to `T` replace older copies of their keys. So
//!    the reader hands out the newest message at or below `T`.
//! 4. The ring's messages above `T` are newer than every copy, so none comes twice. The reader reads them in the ring, which reports every
//!    loss. ∎
//!
//! If the publisher overwrites `t + 1` in the ring before the reader reads it, the reader begins again with the slots that changed
//! meanwhile. Each pass takes less time, because fewer slots changed.
//!
//! # After a crash
//! A publisher can die after it commits a message to the ring and before it stores THROUGH. The next publisher holds the kernel's lock.
//! Before its first message, it copies the ring's messages above THROUGH to the board. It skips a message whose slot already has this
//! sequence or a later one.
//!
//! A slot whose version is odd belongs to the first message above THROUGH. If the slot already names that message's key, the next publisher
//! stores the message once more, which makes the slot whole. If the slot names another key, the dead publisher was about to give the slot
//! to a new key, and the next publisher clears the slot.
//!
//! Each mutant (`fault.rs`) breaks one of these orderings alone. The model in `ring/loom_model/board.rs` must detect each of them.

mod carry;
mod failures;
mod join;
mod key_index;
mod recovery;
mod sync_points;
mod view;
mod writer;

use crate::layout::board::{
    Geometry, HEAD_BASE, HEAD_BORN, HEAD_KEY, HEAD_META, HEAD_SEQUENCE, HEAD_TIME, HEAD_VERSION, HEAD_WORDS,
    Meta, SINCE, THROUGH,
};
use crate::layout::geometry::WORD;
use crate::ring::cells::Cells;
use crate::sync::{AtomicU64, Ordering};

pub use carry::Carry;
pub use failures::JoinError;
pub use join::{Bridged, Joined, Listed, Snapshot};
pub use recovery::Replayed;
pub use view::{Counters, Lookup, Tenure, View};
pub use writer::BoardWriter;

/// The parts of a board.
#[derive(Debug, Clone)]
pub struct BoardCells {
    /// The sizes, which were checked.
    pub geometry: Geometry,
    /// The header page.
    pub header: Cells,
    /// The index.
    pub index: Cells,
    /// The heads of the slots.
    pub heads: Cells,
    /// The values of the slots.
    pub values: Cells,
}

impl BoardCells {
    #[inline(always)]
    fn head(&self, slot: u32) -> Option<&[AtomicU64; HEAD_WORDS]> {
        let at = slot as usize * HEAD_WORDS;
        self.heads.get(at..at + HEAD_WORDS)?.first_chunk()
    }

    #[inline(always)]
    fn value(&self, slot: u32) -> Option<&[AtomicU64]> {
        let words = (self.geometry.stride() / WORD) as usize;
        let at = slot as usize * words;
        self.values.get(at..at + words)
    }

    /// Number of bytes of a message that its slot stores.
    #[inline(always)]
    fn stored_bytes(&self, meta: Meta) -> usize {
        let spec = &self.geometry.spec;
        if meta.has(Meta::UNKNOWN) {
            return spec.key_end as usize;
        }
        let most = if meta.is_whole() { spec.value } else { spec.key_end };
        meta.length().min(most as usize)
    }

    /// Initializes a new board whose first message will be `first`. No other process has seen this board.
    pub(crate) fn begin_at(&self, first: u64) {
        self.set(SINCE, first);
        self.set(THROUGH, first.saturating_sub(1));
    }

    #[inline(always)]
    fn count(&self, word: usize) -> u64 {
        self.header[word].load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn set(&self, word: usize, value: u64) {
        self.header[word].store(value, Ordering::Relaxed);
    }
}

/// The head of a slot. Another process might have written it: check each field before use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// The slot's version. It never has the same value twice.
    pub version: u64,
    /// The sequence of the key's newest message.
    pub sequence: u64,
    /// The number of messages that this slot stored for earlier keys, before the first message of this key.
    base: u64,
    /// Length, flags and tag.
    pub meta: Meta,
    /// The publish time: low 48 bits of the channel's clock.
    pub time: u64,
    /// The sequence of the key's first message since the key got this slot.
    pub born: u64,
    /// The words that identify the key.
    pub identity: [u64; 2],
}

impl Head {
    #[inline(always)]
    fn load(words: &[AtomicU64; HEAD_WORDS]) -> Self {
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        Self {
            version: word(HEAD_VERSION),
            sequence: word(HEAD_SEQUENCE),
            base: word(HEAD_BASE),
            meta: Meta::from_word(word(HEAD_META)),
            time: word(HEAD_TIME),
            born: word(HEAD_BORN),
            identity: [word(HEAD_KEY), word(HEAD_KEY + 1)],
        }
    }

    /// The number of messages of this key since the key got its slot. It includes this message.
    #[inline(always)]
    pub fn count(&self) -> u64 {
        self.version.div_ceil(2).wrapping_sub(self.base)
    }

    /// Whether the slot is in the middle of a store.
    #[inline(always)]
    fn is_busy(&self) -> bool {
        self.version & 1 == 1
    }

    /// Whether the slot has a key that was not removed.
    #[inline(always)]
    pub(crate) fn is_live(&self) -> bool {
        self.version != 0 && !self.meta.has(Meta::REMOVED) && !self.meta.has(Meta::EMPTY)
    }
}
