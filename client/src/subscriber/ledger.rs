//! Counts the messages of each key that a conflating reader got. Such a reader may skip old messages of a key. From the counts, the ledger
//! computes how many messages were left out.
//!
//! When the reader takes a message from the board, the ledger notes the board's count of the key's messages. It then counts the messages of
//! this key that the reader receives from the ring. When the reader next reads the board, the ledger's count is lower than the board's by
//! the number of messages that were left out.
//!
//! All memory is allocated when the reader opens.

use crate::message::RecvError;
use shmcast_layout::board::{Listed, Snapshot};
use shmcast_layout::layout::board::{Geometry, secret_hash};
use shmcast_layout::layout::record::NO_TIME;
use shmcast_layout::ring::reader::Copied;
use std::hash::{BuildHasher as _, RandomState};

/// One key.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    identity: [u64; 2],
    /// The sequence of the key's first message since the key got its slot on the board.
    born: u64,
    /// The number of the key's messages that this reader got or reported as left out. The count starts at `born`.
    given: u64,
    /// The sequence of the key's first message after the key was last removed. The board may have forgotten the key in between.
    again: u64,
    /// The number of messages of `given` from the message `again` on.
    given_again: u64,
    /// The sequence of the key's last message that this reader got, or that it reported as left out.
    last: u64,
    is_removed: bool,
}

#[derive(Debug)]
pub(super) struct Ledger {
    rows: Vec<Row>,
    /// The bytes of each row's key.
    keys: Vec<u8>,
    key_bytes: usize,
    /// The index from a key's identity to its row, plus 1.
    index: Box<[u32]>,
    most: usize,
    /// The secret of the index's hash function.
    secret: u64,
    /// The next row in the search for keys that the board has forgotten.
    forgotten: usize,
}

impl Ledger {
    /// Makes a ledger for twice as many keys as the snapshot can have.
    pub(super) fn for_board(snapshot: &Snapshot) -> Self {
        let most = 2 * snapshot.most_keys();
        let key_bytes = snapshot.view().geometry().spec.key().len();
        Self {
            rows: Vec::with_capacity(most),
            keys: Vec::with_capacity(most * key_bytes),
            key_bytes,
            index: vec![0; (2 * most).next_power_of_two()].into_boxed_slice(),
            most,
            secret: RandomState::new().hash_one(0),
            forgotten: 0,
        }
    }

    fn place_of(&self, identity: [u64; 2]) -> (usize, Option<usize>) {
        let mask = self.index.len() - 1;
        let mut at = secret_hash(self.secret, identity) as usize & mask;
        loop {
            match self.index[at] {
                0 => return (at, None),
                row if self.rows[row as usize - 1].identity == identity => {
                    return (at, Some(row as usize - 1));
                }
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// Counts a message that the reader received from the ring. Returns false if there is no room for its key.
    pub(super) fn note(&mut self, geometry: &Geometry, copied: Copied, payload: &[u8]) -> bool {
        let Some(key) = geometry.key_of(payload) else { return true };
        let identity = geometry.identity(key);
        let is_removal = geometry.spec.is_removal(copied.length, copied.tag);
        let (at, there) = self.place_of(identity);
        let Some(row) = there else {
            if is_removal {
                return true; // the board did not have it
            }
            let sequence = copied.sequence;
            let row = Row {
                identity,
                born: sequence,
                given: 1,
                again: sequence,
                given_again: 1,
                last: sequence,
                is_removed: false,
            };
            return self.add(at, row, key);
        };
        let row = &mut self.rows[row];
        (row.given, row.last) = (row.given + 1, copied.sequence);
        if row.is_removed && !is_removal {
            (row.again, row.given_again) = (copied.sequence, 0);
        }
        row.given_again += 1;
        row.is_removed = is_removal;
        true
    }

    fn add(&mut self, at: usize, row: Row, key: &[u8]) -> bool {
        if self.rows.len() == self.most {
            return false;
        }
        self.rows.push(row);
        self.keys.extend_from_slice(key);
        self.index[at] = self.rows.len() as u32;
        true
    }

    /// The number of messages of this key that the reader got or reported as left out. The count starts at the same message as the board's
    /// count.
    pub(super) fn given(&self, listed: &Listed) -> u64 {
        let Some(row) = self.place_of(listed.identity).1.map(|row| self.rows[row]) else {
            return 0;
        };
        if row.born == listed.born {
            row.given
        } else if row.again == listed.born {
            row.given_again
        } else {
            0 // the board forgot the key, and it came back among the messages that were left out
        }
    }

    /// Begins the search for keys that the board has forgotten.
    pub(super) fn seek_forgotten(&mut self) {
        self.forgotten = 0;
    }

    /// Returns a removal message for the next key that the reader knows and the board has forgotten. The payload is the key, with zeros
    /// before it.
    pub(super) fn next_forgotten(
        &mut self,
        snapshot: &Snapshot,
        out: &mut [u8],
    ) -> Result<Option<Copied>, RecvError> {
        let spec = snapshot.view().geometry().spec;
        let sequence = snapshot.view().forgotten();
        while let Some(row) = self.rows.get(self.forgotten) {
            // A key that never had room on the board is not there either. If no removal was forgotten since its last message, the key was
            // not removed.
            if row.is_removed || sequence <= row.last || snapshot.has(row.identity) {
                self.forgotten += 1;
                continue;
            }
            let (needed, available) = (spec.key_end as usize, out.len());
            let Some(to) = out.get_mut(..needed) else {
                return Err(RecvError::TooSmall { needed, available });
            };
            let key = &self.keys[self.forgotten * self.key_bytes..][..self.key_bytes];
            to.fill(0);
            to[spec.key()].copy_from_slice(key);
            self.forgotten += 1;
            let tag = spec.remove_tag.unwrap_or_default();
            return Ok(Some(Copied { length: needed, sequence, tag, key: false, time: NO_TIME }));
        }
        Ok(None)
    }

    /// Forgets all keys.
    pub(super) fn forget(&mut self) {
        self.rows.clear();
        self.keys.clear();
        self.index.fill(0);
    }

    /// Computes the hashes of all keys again, because each segment has a seed of its own.
    pub(super) fn rekey(&mut self, geometry: &Geometry) {
        self.index.fill(0);
        for row in 0..self.rows.len() {
            let identity = geometry.identity(&self.keys[row * self.key_bytes..][..self.key_bytes]);
            let (at, _) = self.place_of(identity);
            self.rows[row].identity = identity;
            self.index[at] = row as u32 + 1;
        }
    }

    /// Takes the counts from a snapshot after a join.
    pub(super) fn take_from(&mut self, snapshot: &Snapshot) {
        self.forget();
        for listed in snapshot.all() {
            let (at, there) = self.place_of(listed.identity);
            let Some(key) = snapshot.key(&listed).filter(|_| there.is_none()) else { continue };
            let Listed { identity, born, count, is_removed, .. } = listed;
            let last = listed.message.sequence;
            // If a key is removed, forgotten by the board, and comes back, its count begins again.
            let row = Row { identity, born, given: count, again: born, given_again: count, last, is_removed };
            self.add(at, row, key);
        }
    }
}
