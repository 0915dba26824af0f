//! Stores packets that arrived while earlier messages were missing, until the missing messages have arrived.
//!
//! The store has runs of consecutive messages, which are sorted by sequence and never overlap. Each run is in a buffer from a pool. The
//! packets arrive nearly sorted, so a deque with binary search is as fast as a tree.
//!
//! Two limits bound the store: the number of packets, and the bytes of all buffers, in use or in the pool. The store refuses packets that
//! do not fit, and the receiver requests them again.

use std::collections::VecDeque;
use std::ops::Range;

use super::wire::{Form, Messages};

/// Consecutive messages in the store.
#[derive(Debug)]
pub struct Run {
    first: u64,
    end: u64,
    blocks: Vec<u8>,
    form: Form,
}

impl Run {
    /// Returns the messages of the run.
    pub(crate) fn messages(&self) -> Messages<'_> {
        Messages::checked_before(self.first, self.end, &self.blocks, self.form)
    }

    /// Whether the bytes of the run's message are in the assembler of fragments, and not in the run.
    pub(super) fn is_apart(&self) -> bool {
        self.form == Form::Apart
    }
}

/// The stored runs. The number of packets and bytes is bounded.
#[derive(Debug)]
pub struct Store {
    runs: VecDeque<Run>,
    pool: Vec<Vec<u8>>,
    max_packets: usize,
    max_bytes: usize,
    /// The capacity of all buffers, in use or in the pool; never above `max_bytes`.
    reserved_bytes: usize,
    /// The capacity of the buffers in use.
    held_bytes: usize,
    held_messages: u64,
}

impl Store {
    /// Makes an empty store. Buffers are allocated when they are first needed, and then reused.
    pub(crate) fn new(max_packets: usize, max_bytes: usize) -> Store {
        Store {
            runs: VecDeque::with_capacity(max_packets),
            pool: Vec::with_capacity(max_packets),
            max_packets,
            max_bytes,
            reserved_bytes: 0,
            held_bytes: 0,
            held_messages: 0,
        }
    }

    /// Returns the first part of `first..end` that is not stored.
    pub(crate) fn next_missing(&self, first: u64, end: u64) -> Option<Range<u64>> {
        let mut at = first;
        for run in self.runs.range(self.runs.partition_point(|run| run.end <= first)..) {
            if at >= end || run.first > at {
                return (at < end).then(|| at..end.min(run.first));
            }
            at = run.end;
        }
        (at < end).then_some(at..end)
    }

    /// Stores a copy of `messages`. The store must not have any of them yet. Returns false if there is no room. With `spare`, a quarter of
    /// the store is reserved for repairs.
    pub(crate) fn insert(&mut self, messages: Messages<'_>, spare: bool) -> bool {
        let size = messages.blocks().len();
        let share = |limit: usize| if spare { limit - limit / 4 } else { limit };
        if self.runs.len() >= share(self.max_packets) || self.held_bytes + size > share(self.max_bytes) {
            return false;
        }
        let Some(mut blocks) = self.buffer(size) else {
            return false;
        };
        blocks.extend_from_slice(messages.blocks());
        self.held_bytes += blocks.capacity();
        let at = self.runs.partition_point(|run| run.first < messages.first());
        self.held_messages += messages.count();
        let (first, end, form) = (messages.first(), messages.end(), messages.form());
        self.runs.insert(at, Run { first, end, blocks, form });
        true
    }

    /// If the first run starts at or before `next`, removes it and returns it. Give the run back with [`Store::recycle`].
    pub(crate) fn take_ready(&mut self, next: u64) -> Option<Run> {
        if self.runs.front()?.first > next {
            return None;
        }
        let run = self.runs.pop_front()?;
        self.held_messages -= run.end - run.first;
        self.held_bytes -= run.blocks.capacity();
        Some(run)
    }

    /// Removes the messages from `sequence` on. Returns how many there were.
    pub(crate) fn truncate(&mut self, sequence: u64) -> u64 {
        let mut dropped = 0;
        while self.runs.back().is_some_and(|run| run.end > sequence) {
            let Some(mut run) = self.runs.pop_back() else { break };
            let kept = sequence.saturating_sub(run.first);
            dropped += run.end - run.first - kept;
            if kept > 0 {
                let bytes = run.messages().range(run.first..sequence).blocks().len();
                run.blocks.truncate(bytes);
                run.end = sequence;
                self.runs.push_back(run);
                break;
            }
            self.held_bytes -= run.blocks.capacity();
            self.recycle(run);
        }
        self.held_messages -= dropped;
        dropped
    }

    /// Returns a run's buffer to the pool.
    pub(crate) fn recycle(&mut self, run: Run) {
        let mut blocks = run.blocks;
        blocks.clear();
        self.pool.push(blocks);
    }

    // Returns an empty buffer for `size` bytes. Pooled buffers that are too small are freed when the limit is near.
    fn buffer(&mut self, size: usize) -> Option<Vec<u8>> {
        let pooled = self.pool.pop().unwrap_or_default();
        if pooled.capacity() >= size {
            return Some(pooled);
        }
        self.reserved_bytes -= pooled.capacity();
        drop(pooled);
        while self.reserved_bytes + size > self.max_bytes {
            self.reserved_bytes -= self.pool.pop()?.capacity();
        }
        let fresh = Vec::with_capacity(size);
        self.reserved_bytes += fresh.capacity();
        Some(fresh)
    }

    /// Returns how many more packets of `size` bytes fit.
    pub(crate) fn room(&self, size: usize) -> usize {
        let by_bytes = (self.max_bytes - self.held_bytes.min(self.max_bytes)) / size.max(1);
        by_bytes.min(self.max_packets - self.runs.len())
    }

    /// Whether the store is empty.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the number of stored packets and parts of packets.
    pub(crate) fn packets(&self) -> usize {
        self.runs.len()
    }

    /// Returns the number of stored messages.
    pub(crate) fn messages(&self) -> u64 {
        self.held_messages
    }

    /// Returns the bytes of all buffers, in use or in the pool.
    #[cfg(test)]
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(store: &mut Store, first: u64, end: u64) -> bool {
        let blocks: Vec<u8> = (first..end).flat_map(|n| [0, 1, n as u8]).collect();
        store.insert(Messages::checked_before(first, end, &blocks, Form::Blocks), false)
    }

    #[test]
    fn missing_parts_are_exactly_the_holes() {
        let mut store = Store::new(8, 1 << 16);
        assert!(insert(&mut store, 20, 30) && insert(&mut store, 5, 10) && insert(&mut store, 30, 31));
        assert_eq!(store.next_missing(1, 40), Some(1..5));
        assert_eq!(store.next_missing(5, 40), Some(10..20));
        assert_eq!(store.next_missing(22, 40), Some(31..40));
        assert_eq!(store.next_missing(22, 31), None);
        assert_eq!(store.next_missing(7, 8), None);
        assert_eq!(store.next_missing(12, 15), Some(12..15));
        assert_eq!(store.next_missing(15, 15), None);
    }

    #[test]
    fn runs_leave_in_order_and_only_when_due() {
        let mut store = Store::new(8, 1 << 16);
        assert!(insert(&mut store, 20, 22) && insert(&mut store, 5, 7));
        assert!(store.take_ready(4).is_none());
        let run = store.take_ready(6).unwrap();
        assert_eq!(run.messages().range(6..7).iter().collect::<Vec<_>>(), vec![(6, &[6u8][..])]);
        store.recycle(run);
        assert!(store.take_ready(7).is_none());
        assert_eq!((store.packets(), store.messages()), (1, 2));
    }

    #[test]
    fn what_is_dropped_from_a_sequence_on_is_missing_again() {
        let mut store = Store::new(8, 1 << 16);
        assert!(insert(&mut store, 20, 30) && insert(&mut store, 5, 10) && insert(&mut store, 40, 41));
        assert_eq!((store.truncate(24), store.packets(), store.messages()), (7, 2, 9));
        assert_eq!(store.next_missing(20, 50), Some(24..50));
        let (first, second) = (store.take_ready(5).unwrap(), store.take_ready(20).unwrap());
        let messages = [first.messages(), second.messages()].map(|messages| messages.iter().count());
        assert_eq!(messages, [5, 4]);
        [first, second].into_iter().for_each(|run| store.recycle(run));
        assert_eq!((store.messages(), store.held_bytes, store.truncate(1)), (0, 0, 0));
    }

    #[test]
    fn neither_bytes_nor_packets_outgrow_their_limit() {
        let mut store = Store::new(4, 1_000);
        assert_eq!((0..100).filter(|n| insert(&mut store, n * 10, n * 10 + 5)).count(), 4);
        let mut store = Store::new(1_000, 1_000);
        for n in 0..100 {
            insert(&mut store, n * 100, n * 100 + 30);
            assert!(store.reserved_bytes() <= 1_000);
        }
        let kept = store.packets();
        while let Some(run) = store.take_ready(u64::MAX) {
            store.recycle(run);
        }
        assert!(insert(&mut store, 1, 300), "pooled buffers make way for a larger one");
        assert!(kept >= 10 && store.reserved_bytes() <= 1_000);
    }
}
