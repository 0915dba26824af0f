//! A log in memory with the three calls, and with all the faults that a log can have.

use super::super::block::{HEAD_BYTES, stamp};
use super::super::seal::Opener;
use super::super::writer::{Last, Trouble};
use fastrand::Rng;
use shmcast_bridge::proto::native::keys::Keyring;

/// A log.
#[derive(Debug, Default)]
pub(super) struct Log {
    entries: Vec<(u64, Vec<u8>)>,
    last: u64,
}

impl Log {
    /// Stores a block if the last entry has this number.
    pub(super) fn append_if(&mut self, after: u64, block: Vec<u8>) -> Result<u64, Trouble> {
        // The number of no entry stands for any.
        if after != self.last && after != u64::MAX {
            return Err(Trouble::Refused);
        }
        self.last += 1;
        self.entries.push((self.last, block));
        Ok(self.last)
    }

    /// The end of the log.
    pub(super) fn last(&self, keys: Option<Keyring>) -> Last {
        let mut opener = Opener::new(keys, false);
        let head = self.entries.iter().rev().find_map(|(_, block)| opener.head(block).ok());
        Last { sequence: self.last, head }
    }

    /// The first entry at or behind a number.
    pub(super) fn read(&self, from: u64) -> Option<(u64, Vec<u8>)> {
        self.entries.iter().find(|(number, _)| *number >= from).cloned()
    }

    /// The numbers of the first and the last entry.
    pub(super) fn bounds(&self) -> (u64, u64) {
        (self.entries.first().map_or(self.last + 1, |(number, _)| *number), self.last)
    }

    /// Loses some of the newest entries. Returns the sequence that comes after those that are left.
    pub(super) fn lose_tail(&mut self, rng: &mut Rng, keys: Option<Keyring>) -> u64 {
        let keep = self.entries.len() - rng.usize(..=self.entries.len().min(6));
        self.entries.truncate(keep);
        self.last = self.entries.last().map_or(0, |(number, _)| *number);
        self.last(keys).head.map_or(1, |head| head.end())
    }

    /// Loses some of the oldest entries, as retention does.
    pub(super) fn lose_front(&mut self, rng: &mut Rng) {
        let gone = rng.usize(..=self.entries.len() / 2);
        self.entries.drain(..gone);
    }

    /// Exchanges two neighbours.
    pub(super) fn swap(&mut self, rng: &mut Rng) {
        if self.entries.len() > 1 {
            let at = rng.usize(1..self.entries.len());
            let (before, after) = self.entries.split_at_mut(at);
            std::mem::swap(&mut before[at - 1].1, &mut after[0].1);
        }
    }

    /// Drops one entry, or flips one of its bits, or has another in its place. Of a sealed log, it may forge one: with another
    /// body, or without a seal, and with a right checksum.
    pub(super) fn damage(&mut self, rng: &mut Rng, keys: Option<Keyring>) {
        let Some(at) = (!self.entries.is_empty()).then(|| rng.usize(..self.entries.len())) else { return };
        match rng.u8(..if keys.is_some() { 5 } else { 3 }) {
            0 => drop(self.entries.remove(at)),
            1 => {
                let block = &mut self.entries[at].1;
                let bit = rng.usize(..8 * block.len());
                block[bit / 8] ^= 1 << (bit % 8);
            }
            2 => {
                let other = rng.choice(&self.entries).map(|(_, block)| block.clone());
                self.entries[at].1 = other.unwrap_or_default();
            }
            3 => {
                let block = &mut self.entries[at].1;
                let at = rng.usize(HEAD_BYTES..block.len());
                block[at] ^= 1;
                stamp(block);
            }
            _ => {
                let block = &mut self.entries[at].1;
                block[34..36].fill(0);
                stamp(block);
            }
        }
    }
}
