//! The synchronization points of the ring: each release, each acquire that belongs to it, and the mutant that removes one of them.
//!
//! The documentation of the module `ring` says what each pair guarantees. `writer/`, `reader/`, `locate.rs` and `bound.rs` call these
//! functions. Those files themselves contain no fence, and no ordering but `Relaxed`. The functions are inlined. On x86-64 they are plain
//! loads and stores. On aarch64 each SYNC POINT takes one additional `dmb` or `stlr`.
//!
//! A mutant weakens one function, only in builds for the model (`fault.rs`). The model must detect each mutant (`tests/loom.rs`).

use crate::fault::mutant;
use crate::layout::header::{FRONTIER, LAZY_PUBLISHED, STATE};
use crate::layout::record::Commit;
use crate::ring::cells::{Cells, Page};
use crate::sync::{AtomicU64, Ordering, fence};

#[inline(always)]
fn release(is_weakened: bool) -> Ordering {
    if is_weakened { Ordering::Relaxed } else { Ordering::Release }
}

/// The writer first stores the payload and the zero after the record, and then the commit word. A reader that sees the commit word also
/// sees the payload and the zero.
pub(super) mod commit {
    use super::*;

    /// Makes a record visible.
    #[inline(always)]
    pub(in crate::ring) fn publish(word: &AtomicU64, commit: Commit) {
        word.store(commit.word(), release(mutant!("relaxed_commit"))); // SYNC POINT: commit
    }

    /// Loads the commit word. Later loads then see the record. Returns `None` while there is no committed record.
    #[inline(always)]
    pub(in crate::ring) fn see(word: &AtomicU64) -> Option<Commit> {
        let commit = peek(word);
        if commit.word() == 0 {
            return None;
        }
        if !mutant!("no_commit_fence") {
            fence(Ordering::Acquire); // SYNC POINT: commit
        }
        Some(commit)
    }

    /// Does the same as [`see`], but also returns a commit word that is zero. A walk from record to record ends at such a word.
    #[inline]
    pub(in crate::ring) fn see_on_walk(word: &AtomicU64) -> Commit {
        let commit = peek(word);
        if !mutant!("no_walk_commit_fence") {
            fence(Ordering::Acquire); // SYNC POINT: commit
        }
        commit
    }

    /// Loads only the commit word. Later loads need not see the record yet.
    #[inline(always)]
    pub(in crate::ring) fn peek(word: &AtomicU64) -> Commit {
        Commit::from_word(word.load(Ordering::Relaxed))
    }
}

/// Before the writer stores any byte below a frontier, it announces the frontier. A frontier is the end of the space that the writer can
/// write to. A reader that has loaded such a byte sees at least that frontier afterwards.
pub(super) mod window {
    use super::*;

    /// Announces that the writer will store to granules below `frontier`. Stores before this call can become visible after the
    /// announcement.
    #[inline]
    pub(in crate::ring) fn announce(header: &Page, frontier: u64) {
        header.word::<FRONTIER>().store(frontier, Ordering::Relaxed);
        if !mutant!("no_frontier_fence") {
            fence(Ordering::Release); // SYNC POINT: window
        }
    }

    /// Does the same as [`announce`] for a successor that is about to clean a dead writer's granules.
    #[inline]
    pub(in crate::ring) fn announce_on_takeover(header: &Page, frontier: u64) {
        if mutant!("takeover_without_frontier") {
            return;
        }
        header.word::<FRONTIER>().store(frontier, Ordering::Relaxed);
        if !mutant!("takeover_without_fence") {
            fence(Ordering::Release); // SYNC POINT: window
        }
    }

    /// Loads the frontier, after all loads before this call.
    #[inline(always)]
    pub(in crate::ring) fn frontier_after_loads(header: &Page) -> u64 {
        if !mutant!("no_window_fence") {
            fence(Ordering::Acquire); // SYNC POINT: window
        }
        frontier(header)
    }

    /// Does the same as [`frontier_after_loads`] for a walk.
    #[inline]
    pub(in crate::ring) fn frontier_after_walk(header: &Page) -> u64 {
        if !mutant!("no_walk_window_fence") {
            fence(Ordering::Acquire); // SYNC POINT: window
        }
        frontier(header)
    }

    /// Loads the frontier, before all loads after this call.
    #[inline]
    pub(in crate::ring) fn frontier_before_loads(header: &Page) -> u64 {
        let frontier = frontier(header);
        fence(Ordering::Acquire); // SYNC POINT: window
        frontier
    }

    /// Loads the frontier, without any order to other loads.
    #[inline(always)]
    pub(in crate::ring) fn frontier(header: &Page) -> u64 {
        header.word::<FRONTIER>().load(Ordering::Relaxed)
    }
}

/// The writer stores the zeros at a position, and then the index entry with this position. A joiner that loads the entry, and then a word
/// at this position, sees the zeros.
pub(super) mod index {
    use super::*;

    /// Stores the position for the record of `sequence`. The record itself might not exist yet.
    #[inline(always)]
    pub(in crate::ring) fn publish(index: &Cells, sequence: u64, position: u64) {
        index.wrapped(sequence).store(position, release(mutant!("relaxed_index"))); // SYNC POINT: index
    }

    /// Loads the position from entry number `entry`. Call `follow` before the first load at this position.
    #[inline]
    pub(in crate::ring) fn peek(index: &Cells, entry: usize) -> u64 {
        index[entry].load(Ordering::Relaxed)
    }

    /// Call this between the load of an entry and the first load at the entry's position. It keeps the two loads in this order.
    #[inline]
    pub(in crate::ring) fn follow() {
        if !mutant!("no_index_fence") {
            fence(Ordering::Acquire); // SYNC POINT: index
        }
    }
}

/// The writer stores the index entries of all messages and of the next sequence, and then counts the messages in the lazy line, a cache
/// line that it updates rarely. A reader that sees the count sees these entries and the records.
pub(super) mod lazy {
    use super::*;

    /// The number of messages between two updates of the lazy line. A joiner walks over at most this many messages, each with at most one
    /// pad before it. The number is smaller than the number of index entries. So the writer does not reuse the entry to which the lazy line
    /// points.
    pub(in crate::ring) const EVERY: u64 = if cfg!(loom) { 2 } else { 64 };

    /// Stores that all messages up to `published` are published.
    #[inline]
    pub(in crate::ring) fn publish(header: &Page, published: u64) {
        header.word::<LAZY_PUBLISHED>().store(published, release(mutant!("relaxed_lazy"))); // SYNC POINT: lazy
    }

    /// Loads the count of messages. Later loads then see the index entries of all counted messages and of the next message.
    #[inline]
    pub(in crate::ring) fn see(header: &Page) -> u64 {
        let published = peek(header);
        if !mutant!("no_lazy_fence") {
            fence(Ordering::Acquire); // SYNC POINT: lazy
        }
        published
    }

    /// Loads the count of messages, for a reader that copies many records together. Later loads then see the counted records.
    #[inline(always)]
    pub(in crate::ring) fn see_for_run(header: &Page) -> u64 {
        let published = peek(header);
        if !mutant!("no_run_fence") {
            fence(Ordering::Acquire); // SYNC POINT: lazy
        }
        published
    }

    /// Loads the count, without any order to other loads.
    #[inline(always)]
    pub(in crate::ring) fn peek(header: &Page) -> u64 {
        header.word::<LAZY_PUBLISHED>().load(Ordering::Relaxed)
    }
}

/// The writer stores everything that it publishes, and then the state that ends a segment. A reader that sees the state sees all records of
/// the writer.
pub(super) mod close {
    use super::*;

    /// Ends the segment.
    #[inline]
    pub(in crate::ring) fn publish(header: &Page, state: u64) {
        header.word::<STATE>().store(state, release(mutant!("relaxed_close"))); // SYNC POINT: close
    }

    /// Loads the state word. Later loads then see everything that was published before the state was stored.
    #[inline]
    pub(in crate::ring) fn see(header: &Page) -> u64 {
        let state = header.word::<STATE>().load(Ordering::Relaxed);
        if !mutant!("no_close_fence") {
            fence(Ordering::Acquire); // SYNC POINT: close
        }
        state
    }
}
