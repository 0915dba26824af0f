//! The synchronization points of the board. Each pair has a release and the acquire that belongs to it. All pairs except `moved` have
//! mutants that remove one of the two. The documentation of the module `board` says what each pair guarantees.

use crate::fault::mutant;
use crate::layout::board::{HEAD_KEY, HEAD_WORDS, INDEX_VERSION, THROUGH};
use crate::ring::cells::Cells;
use crate::sync::{AtomicU64, Ordering, fence};

#[inline(always)]
fn release(is_weakened: bool) -> Ordering {
    if is_weakened { Ordering::Relaxed } else { Ordering::Release }
}

/// The writer first makes a slot's version odd, and then stores the other words of the slot. A reader that has loaded a word of this store
/// then finds that the version has changed.
pub(super) mod store {
    use super::*;

    /// Begins a store. Returns the version that the slot will have after the store.
    #[inline(always)]
    pub(in crate::board) fn begin(version: &AtomicU64) -> u64 {
        let odd = version.load(Ordering::Relaxed) | 1;
        if !mutant!("board_never_odd") {
            version.store(odd, release(mutant!("board_relaxed_odd"))); // SYNC POINT: stored
        }
        if !mutant!("board_no_store_fence") {
            fence(Ordering::Release); // SYNC POINT: store
        }
        odd.wrapping_add(1)
    }

    /// Whether no store has begun since the version `seen` was loaded. Call it after all loads of the slot's words.
    #[inline(always)]
    pub(in crate::board) fn is_unchanged(version: &AtomicU64, seen: u64) -> bool {
        if !mutant!("board_no_recheck_fence") {
            fence(Ordering::Acquire); // SYNC POINT: store
        }
        mutant!("board_no_recheck") || version.load(Ordering::Relaxed) == seen
    }
}

/// The writer first stores all words, and then makes the version even. A reader that loads this version also loads these words.
pub(super) mod stored {
    use super::*;

    /// Ends a store.
    #[inline(always)]
    pub(in crate::board) fn end(version: &AtomicU64, even: u64) {
        version.store(even, release(mutant!("board_relaxed_stored"))); // SYNC POINT: stored
    }

    /// Loads the version. An acquire fence orders this load before the caller's later loads of the slot's words.
    #[inline(always)]
    pub(in crate::board) fn see(version: &AtomicU64) -> u64 {
        let seen = version.load(Ordering::Relaxed);
        if !mutant!("board_no_stored_fence") {
            fence(Ordering::Acquire); // SYNC POINT: stored
        }
        seen
    }
}

/// A store can give a slot to a new key. The writer first stores the number from which the new key's messages are counted, and then the
/// words of the key. So a reader that loads these words also loads the right number.
pub(super) mod named {
    use super::*;

    /// Gives the slot to a key.
    #[inline(always)]
    pub(in crate::board) fn publish(head: &[AtomicU64; HEAD_WORDS], identity: [u64; 2]) {
        for (word, value) in head[HEAD_KEY..].iter().zip(identity) {
            word.store(value, release(mutant!("board_relaxed_name"))); // SYNC POINT: named
        }
    }

    /// Loads the words of the key. An acquire fence orders these loads before the caller's later loads of the slot's other words.
    #[inline(always)]
    pub(in crate::board) fn see(head: &[AtomicU64; HEAD_WORDS]) -> [u64; 2] {
        let identity = [HEAD_KEY, HEAD_KEY + 1].map(|word| head[word].load(Ordering::Relaxed));
        if !mutant!("board_no_name_fence") {
            fence(Ordering::Acquire); // SYNC POINT: named
        }
        identity
    }
}

/// The writer stores a message on the board, and then counts the message in THROUGH.
pub(super) mod through {
    use super::*;

    /// Announces that all messages up to `sequence` are on the board.
    #[inline(always)]
    pub(in crate::board) fn publish(header: &Cells, sequence: u64) {
        header[THROUGH].store(sequence, release(mutant!("board_relaxed_through"))); // SYNC POINT: through
    }

    /// Loads the sequence up to which all messages are on the board. An acquire fence orders this load before the caller's later loads of
    /// slots.
    #[inline(always)]
    pub(in crate::board) fn see(header: &Cells) -> u64 {
        let sequence = header[THROUGH].load(Ordering::Relaxed);
        if !mutant!("board_no_through_fence") {
            fence(Ordering::Acquire); // SYNC POINT: through
        }
        sequence
    }
}

/// Before the writer moves existing entries, it makes the version of the index odd.
pub(super) mod moved {
    use super::*;

    /// Announces that entries move.
    pub(in crate::board) fn begin(header: &Cells) {
        let odd = header[INDEX_VERSION].load(Ordering::Relaxed) | 1;
        header[INDEX_VERSION].store(odd, Ordering::Relaxed);
        fence(Ordering::Release); // SYNC POINT: moved
    }

    /// Announces that no entry moves any more.
    pub(in crate::board) fn end(header: &Cells) {
        let even = (header[INDEX_VERSION].load(Ordering::Relaxed) | 1).wrapping_add(1);
        header[INDEX_VERSION].store(even, Ordering::Release); // SYNC POINT: moved
    }

    /// Loads the version of the index. An acquire fence orders this load before the caller's later loads of entries. Returns `None` while
    /// entries move.
    pub(in crate::board) fn see(header: &Cells) -> Option<u64> {
        let version = header[INDEX_VERSION].load(Ordering::Relaxed);
        fence(Ordering::Acquire); // SYNC POINT: moved
        (version & 1 == 0).then_some(version)
    }

    /// Whether all entries are still where they were when the version `seen` was loaded. Call it after all loads of entries.
    pub(in crate::board) fn is_unchanged(header: &Cells, seen: u64) -> bool {
        fence(Ordering::Acquire); // SYNC POINT: moved
        header[INDEX_VERSION].load(Ordering::Relaxed) == seen
    }
}
