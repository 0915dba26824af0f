//! The synchronization points of the ring: each release, each acquire that answers it, and the mutant that takes one of
//! them away.
//!
//! The module's paper (`ring/mod.rs`) says what each pair gives. `writer/`, `reader/`, `locate.rs` and `bound.rs` call
//! these functions and contain no fence and no ordering but `Relaxed`. The functions are inlined: on x86-64 each is a plain
//! load or store, on aarch64 one `dmb` or `stlr` more.
//!
//! A mutant weakens one function, in builds for the model alone (`fault.rs`). The model must notice it (`tests/loom.rs`).

use crate::fault::mutant;
use crate::layout::header::{FRONTIER, LAZY_PUBLISHED, STATE};
use crate::layout::record::Commit;
use crate::ring::cells::{Cells, Page};
use crate::sync::{AtomicU64, Ordering, fence};

#[inline(always)]
fn release(is_weakened: bool) -> Ordering {
    if is_weakened { Ordering::Relaxed } else { Ordering::Release }
}

/// The writer stores a commit word after the payload and after the zero after the record. A reader that sees the commit
/// word sees both.
pub(super) mod commit {
    use super::*;

    /// Makes a record visible.
    #[inline(always)]
    pub(in crate::ring) fn publish(word: &AtomicU64, commit: Commit) {
        word.store(commit.word(), release(mutant!("relaxed_commit"))); // SYNC POINT: commit
    }

    /// The commit word, and with it the record; `None` while nothing is committed there.
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

    /// As [`see`], for a walk, which also looks at words that are zero.
    #[inline]
    pub(in crate::ring) fn see_on_walk(word: &AtomicU64) -> Commit {
        let commit = peek(word);
        if !mutant!("no_walk_commit_fence") {
            fence(Ordering::Acquire); // SYNC POINT: commit
        }
        commit
    }

    /// The commit word alone, which says nothing about the record yet.
    #[inline(always)]
    pub(in crate::ring) fn peek(word: &AtomicU64) -> Commit {
        Commit::from_word(word.load(Ordering::Relaxed))
    }
}

/// The writer announces a frontier before it stores anything below it. A reader that has loaded such bytes sees at least
/// that frontier afterwards.
pub(super) mod window {
    use super::*;

    /// Announces that the writer will store to granules below `frontier`. Stores before this call may come later.
    #[inline]
    pub(in crate::ring) fn announce(header: &Page, frontier: u64) {
        header.word::<FRONTIER>().store(frontier, Ordering::Relaxed);
        if !mutant!("no_frontier_fence") {
            fence(Ordering::Release); // SYNC POINT: window
        }
    }

    /// As [`announce`], by a successor that is about to clean what a dead writer left.
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

    /// The frontier after all loads before this call.
    #[inline(always)]
    pub(in crate::ring) fn frontier_after_loads(header: &Page) -> u64 {
        if !mutant!("no_window_fence") {
            fence(Ordering::Acquire); // SYNC POINT: window
        }
        frontier(header)
    }

    /// As [`frontier_after_loads`], for a walk.
    #[inline]
    pub(in crate::ring) fn frontier_after_walk(header: &Page) -> u64 {
        if !mutant!("no_walk_window_fence") {
            fence(Ordering::Acquire); // SYNC POINT: window
        }
        frontier(header)
    }

    /// The frontier before all loads that come after this call.
    #[inline]
    pub(in crate::ring) fn frontier_before_loads(header: &Page) -> u64 {
        let frontier = frontier(header);
        fence(Ordering::Acquire); // SYNC POINT: window
        frontier
    }

    /// A frontier of now, in no order with other loads.
    #[inline(always)]
    pub(in crate::ring) fn frontier(header: &Page) -> u64 {
        header.word::<FRONTIER>().load(Ordering::Relaxed)
    }
}

/// The writer stores an index entry after the zeros at the place that it names. A joiner that follows the entry sees them.
pub(super) mod index {
    use super::*;

    /// Says where the record of `sequence` is, or will be.
    #[inline(always)]
    pub(in crate::ring) fn publish(index: &Cells, sequence: u64, position: u64) {
        index.wrapped(sequence).store(position, release(mutant!("relaxed_index"))); // SYNC POINT: index
    }

    /// The position in entry number `entry`, which claims nothing yet about what stands there.
    #[inline]
    pub(in crate::ring) fn peek(index: &Cells, entry: usize) -> u64 {
        index[entry].load(Ordering::Relaxed)
    }

    /// To be called between a load of an entry and the first load at the place that it names.
    #[inline]
    pub(in crate::ring) fn follow() {
        if !mutant!("no_index_fence") {
            fence(Ordering::Acquire); // SYNC POINT: index
        }
    }
}

/// The writer counts messages on the lazy line after it has stored the index entries of all of them and of the next. A reader that
/// sees the count sees these entries and the records.
pub(super) mod lazy {
    use super::*;

    /// Messages between two updates of the lazy line. A joiner walks over at most so many messages, each with at most one pad
    /// before it. The number is smaller than the number of index entries, so that no entry is reused while the lazy line names it.
    pub(in crate::ring) const EVERY: u64 = if cfg!(loom) { 2 } else { 64 };

    /// Counts all messages up to `published`.
    #[inline]
    pub(in crate::ring) fn publish(header: &Page, published: u64) {
        header.word::<LAZY_PUBLISHED>().store(published, release(mutant!("relaxed_lazy"))); // SYNC POINT: lazy
    }

    /// The count, and with it the index entries.
    #[inline]
    pub(in crate::ring) fn see(header: &Page) -> u64 {
        let published = peek(header);
        if !mutant!("no_lazy_fence") {
            fence(Ordering::Acquire); // SYNC POINT: lazy
        }
        published
    }

    /// Loads the count, for a reader that copies many records at once. What it counts is visible then.
    #[inline(always)]
    pub(in crate::ring) fn see_for_run(header: &Page) -> u64 {
        let published = peek(header);
        if !mutant!("no_run_fence") {
            fence(Ordering::Acquire); // SYNC POINT: lazy
        }
        published
    }

    /// A count of now, in no order with other loads.
    #[inline(always)]
    pub(in crate::ring) fn peek(header: &Page) -> u64 {
        header.word::<LAZY_PUBLISHED>().load(Ordering::Relaxed)
    }
}

/// The writer stores the state that ends a segment after everything that it published. A reader that sees the state sees
/// all of that.
pub(super) mod close {
    use super::*;

    /// Ends the segment.
    #[inline]
    pub(in crate::ring) fn publish(header: &Page, state: u64) {
        header.word::<STATE>().store(state, release(mutant!("relaxed_close"))); // SYNC POINT: close
    }

    /// The state word, and with it everything that was published before it.
    #[inline]
    pub(in crate::ring) fn see(header: &Page) -> u64 {
        let state = header.word::<STATE>().load(Ordering::Relaxed);
        if !mutant!("no_close_fence") {
            fence(Ordering::Acquire); // SYNC POINT: close
        }
        state
    }
}
