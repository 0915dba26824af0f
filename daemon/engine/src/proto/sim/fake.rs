//! A log in memory for the simulation. It has the three calls of a log, and can have every fault that a log can have.

use super::super::block::{BlockId, HEAD_BYTES, Kind, parse, stamp};
use super::super::seal::Opener;
use super::super::writer::{Append, Last, Trouble};
use fastrand::Rng;
use shmcast_bridge::proto::native::keys::Keyring;
use std::ops::Range;

/// One entry of the log.
#[derive(Debug, Clone)]
struct Entry {
    number: u64,
    /// The block's name.
    id: BlockId,
    block: Vec<u8>,
    /// Whether somebody has changed the entry.
    is_changed: bool,
}

/// A log in memory.
#[derive(Debug, Default)]
pub(super) struct Log {
    entries: Vec<Entry>,
    last: u64,
    /// Whether the last entry was ever removed. Its name can then no longer be read.
    is_nameless: bool,
    /// The first and the last number of the entries that the readers' copy lacks at the moment.
    hidden: Option<(u64, u64)>,
}

impl Log {
    /// Somebody removes the log and creates it again.
    pub(super) fn remake(&mut self) {
        *self = Log { is_nameless: self.is_nameless, ..Log::default() };
    }

    /// Stores a block if the log's last entry has the number and the name that the append names.
    pub(super) fn append_if(&mut self, append: &Append) -> Result<u64, Trouble> {
        // No entry has the number `u64::MAX`. An append with this number is stored after any entry.
        if append.after != self.last && append.after != u64::MAX {
            return Err(Trouble::Refused);
        }
        let id = self.entries.last().map(|entry| entry.id);
        if append.behind.is_some_and(|behind| id != Some(behind)) {
            return Err(Trouble::Refused);
        }
        self.last += 1;
        let (number, id, block) = (self.last, append.id, append.block.to_vec());
        self.entries.push(Entry { number, id, block, is_changed: false });
        Ok(self.last)
    }

    /// Checks the place of the last block, and returns the problem if there is one. If the last block names a previous block, that block
    /// must be the entry before it, and both must have the same key. If the entry before it is damaged or changed, nothing is checked.
    pub(super) fn misplaced(&self) -> Option<&'static str> {
        let [.., before, last] = &self.entries[..] else { return None };
        let is_untouched = !self.is_nameless && !before.is_changed && before.number + 1 == last.number;
        let (Ok((before, _)), Ok((last, _))) = (parse(&before.block), parse(&last.block)) else {
            return None;
        };
        match is_untouched {
            true if last.before != before.crc && last.before != 0 => {
                Some("a block stands behind another one than it was built for")
            }
            true if last.key != before.key => Some("a block stands behind one that its writer cannot open"),
            _ => None,
        }
    }

    /// Returns the end of the log.
    pub(super) fn last(&self, keys: Option<Keyring>) -> Last {
        let (mut opener, mut last) = (Opener::new(keys, false), Last::new(self.last));
        for entry in self.entries.iter().rev() {
            if last.look((entry.number, Some(entry.id)), &entry.block, &mut opener) {
                break;
            }
        }
        last
    }

    /// Returns the first entry at or after a number.
    pub(super) fn read(&self, from: u64) -> Option<(u64, Vec<u8>)> {
        let is_hidden =
            |entry: &&Entry| self.hidden.is_some_and(|(from, to)| (from..=to).contains(&entry.number));
        let entry = self.entries.iter().find(|entry| entry.number >= from && !is_hidden(entry))?;
        Some((entry.number, entry.block.clone()))
    }

    /// Returns the leader's first entry at or after a number.
    pub(super) fn read_leader(&self, from: u64) -> Option<(u64, Vec<u8>)> {
        let entry = self.entries.iter().find(|entry| entry.number >= from)?;
        Some((entry.number, entry.block.clone()))
    }

    /// From now on, the readers' copy lacks some of the newest entries, but not the last one.
    pub(super) fn hide(&mut self, rng: &mut Rng) {
        let to = self.last.saturating_sub(1);
        self.hidden = Some((to.saturating_sub(rng.u64(..12)), to));
    }

    /// Whether the readers' copy lacks entries.
    pub(super) fn is_hidden(&self) -> bool {
        self.hidden.is_some()
    }

    /// From now on, the readers' copy has all entries again.
    pub(super) fn show(&mut self) {
        self.hidden = None;
    }

    /// Whether the log has a message with one of these sequences.
    pub(super) fn has_any(&self, sequences: &Range<u64>) -> bool {
        let has = |entry: &Entry| match parse(&entry.block) {
            Ok((head, _)) => {
                head.kind == Kind::Data && head.first < sequences.end && head.end() > sequences.start
            }
            Err(_) => false,
        };
        self.entries.iter().any(has)
    }

    /// Returns the numbers of the first and the last entry.
    pub(super) fn bounds(&self) -> (u64, u64) {
        (self.entries.first().map_or(self.last + 1, |entry| entry.number), self.last)
    }

    /// Loses some of the newest entries. Returns the sequence after those that are left.
    pub(super) fn lose_tail(&mut self, rng: &mut Rng, keys: Option<Keyring>) -> u64 {
        let keep = self.entries.len() - rng.usize(..=self.entries.len().min(6));
        self.entries.truncate(keep);
        self.last = self.entries.last().map_or(0, |entry| entry.number);
        self.last(keys).head.map_or(1, |head| head.end())
    }

    /// Loses some of the oldest entries, as retention does.
    pub(super) fn lose_front(&mut self, rng: &mut Rng) {
        let gone = rng.usize(..=self.entries.len() / 2);
        self.entries.drain(..gone);
    }

    /// Exchanges two neighbouring entries.
    pub(super) fn swap(&mut self, rng: &mut Rng) {
        if self.entries.len() > 1 {
            let at = rng.usize(1..self.entries.len());
            let (before, after) = self.entries.split_at_mut(at);
            std::mem::swap(&mut before[at - 1].block, &mut after[0].block);
            (before[at - 1].is_changed, after[0].is_changed) = (true, true);
        }
    }

    /// Drops one entry, flips one of its bits, or puts another entry in its place. In a sealed log, the function can also forge an entry:
    /// with another body or without a seal, and with a correct checksum.
    pub(super) fn damage(&mut self, rng: &mut Rng, is_sealed: bool) {
        let Some(at) = (!self.entries.is_empty()).then(|| rng.usize(..self.entries.len())) else { return };
        self.entries[at].is_changed = true;
        match rng.u8(..if is_sealed { 5 } else { 3 }) {
            0 => {
                self.is_nameless |= at + 1 == self.entries.len();
                self.entries.remove(at);
            }
            1 => {
                let block = &mut self.entries[at].block;
                let bit = rng.usize(..8 * block.len());
                block[bit / 8] ^= 1 << (bit % 8);
            }
            2 => {
                let other = rng.choice(&self.entries).map(|entry| entry.block.clone());
                self.entries[at].block = other.unwrap_or_default();
            }
            3 => {
                let block = &mut self.entries[at].block;
                let at = rng.usize(HEAD_BYTES..block.len());
                block[at] ^= 1;
                stamp(block);
            }
            _ => {
                let block = &mut self.entries[at].block;
                block[34..36].fill(0);
                stamp(block);
            }
        }
    }
}
