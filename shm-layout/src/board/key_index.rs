//! The index from keys to slots. It uses open addressing without tombstones: when an entry is removed, later entries move up to close the
//! gap.

use super::sync_points::moved;
use super::{BoardCells, Head};
use crate::layout::board::{Entry, HEAD_KEY, Meta};
use crate::sync::Ordering;

impl BoardCells {
    /// The number of the entry that a search for the fingerprint reads at step number `step`. The caller takes the result modulo the number
    /// of entries.
    #[inline(always)]
    fn entry_at(&self, fingerprint: u32, step: u64) -> u64 {
        u64::from(fingerprint).wrapping_add(step)
    }

    #[inline(always)]
    fn entry(&self, number: u64) -> Option<Entry> {
        Entry::from_word(self.index.wrapped(number).load(Ordering::Relaxed))
    }

    /// The slots that the index has for a fingerprint, in the order of the search. The search ends at the first free entry, or after it has
    /// read every entry once.
    #[inline(always)]
    pub(super) fn candidates(&self, fingerprint: u32) -> impl Iterator<Item = u32> + '_ {
        self.candidates_within(fingerprint, self.geometry.entries)
    }

    /// Does the same as [`candidates`](Self::candidates), but reads at most `most` entries.
    #[inline(always)]
    pub(super) fn candidates_within(&self, fingerprint: u32, most: u64) -> impl Iterator<Item = u32> + '_ {
        let steps = 0..most.min(self.geometry.entries);
        let entries = steps.map_while(move |step| self.entry(self.entry_at(fingerprint, step)));
        entries.filter(move |entry| entry.fingerprint == fingerprint).map(|entry| entry.slot)
    }

    /// Searches for the slot of a key. Only the writer calls this, and only the writer changes the index.
    #[inline(always)]
    pub(super) fn find(&self, identity: [u64; 2]) -> Option<u32> {
        let is_it = |slot: &u32| {
            self.head(*slot).is_some_and(|head| {
                head[HEAD_KEY].load(Ordering::Relaxed) == identity[0]
                    && head[HEAD_KEY + 1].load(Ordering::Relaxed) == identity[1]
            })
        };
        self.candidates(self.geometry.fingerprint(identity)).find(is_it)
    }

    /// Stores an entry for `slot` in the first free entry of the search. There is always a free entry, because there are twice as many
    /// entries as slots.
    pub(super) fn add(&self, identity: [u64; 2], slot: u32) {
        let fingerprint = self.geometry.fingerprint(identity);
        let places = (0..self.geometry.entries).map(|step| self.entry_at(fingerprint, step));
        for number in places {
            if self.entry(number).is_none() {
                // A reader that misses the entry still finds the message in the ring, because THROUGH does not count the message yet.
                return self
                    .index
                    .wrapped(number)
                    .store(Entry { fingerprint, slot }.word(), Ordering::Release);
            }
        }
    }

    /// Removes the entry of a slot, and moves later entries up to close the gap.
    pub(super) fn take_out(&self, identity: [u64; 2], slot: u32) {
        let fingerprint = self.geometry.fingerprint(identity);
        let place = (0..self.geometry.entries)
            .map(|step| self.entry_at(fingerprint, step))
            .map_while(|number| self.entry(number).map(|entry| (number, entry)))
            .find(|(_, entry)| *entry == Entry { fingerprint, slot });
        let Some((mut gap, _)) = place else { return };
        moved::begin(&self.header);
        let mask = self.geometry.entries - 1;
        let mut number = gap;
        for _ in 1..self.geometry.entries {
            number = number.wrapping_add(1);
            let Some(entry) = self.entry(number) else { break };
            // An entry can move back into the gap unless its search begins after the gap.
            let from_home = number.wrapping_sub(u64::from(entry.fingerprint)) & mask;
            if from_home >= number.wrapping_sub(gap) & mask {
                self.index.wrapped(gap).store(entry.word(), Ordering::Relaxed);
                gap = number;
            }
        }
        self.index.wrapped(gap).store(0, Ordering::Relaxed);
        moved::end(&self.header);
    }

    /// Builds the whole index again from the heads of the slots. A publisher that died can have left the index half changed.
    pub(super) fn rebuild(&self, high: u32) {
        moved::begin(&self.header);
        for number in 0..self.geometry.entries {
            self.index.wrapped(number).store(0, Ordering::Relaxed);
        }
        for slot in 0..high {
            let Some(head) = self.head(slot).map(Head::load) else { break };
            if !head.meta.has(Meta::EMPTY) {
                self.add(head.identity, slot);
            }
        }
        moved::end(&self.header);
    }
}
