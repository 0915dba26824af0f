//! Counts the messages of each key that a conflating reader got. Such a reader can skip old messages of a key. From the counts, the ledger
//! computes how many messages were left out.
//!
//! When the reader takes a message from the board, the ledger stores the board's count of the key's messages. It then counts the messages
//! of this key that the reader receives from the ring. When the reader next reads the board, the ledger's count is lower than the board's
//! count by the number of messages that were left out.
//!
//! A full board refuses the messages of new keys, and does not count them. So if the board has refused a message, the ledger searches the
//! board for the slot of each key that it has not seen there. The slot names the first message that the board counts.
//!
//! All memory is allocated when the reader opens.

use crate::message::RecvError;
use shmcast_layout::board::{Listed, Snapshot, Tenure, View};
use shmcast_layout::fault;
use shmcast_layout::layout::board::secret_hash;
use shmcast_layout::layout::record::NO_TIME;
use shmcast_layout::ring::reader::Copied;
use std::hash::{BuildHasher as _, RandomState};

/// The counts of one key.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    identity: [u64; 2],
    /// The sequence of the key's first message since the key got its slot on the board; 0 if the board does not count the messages that
    /// this reader got.
    born: u64,
    /// The number of the key's messages that this reader got or reported as left out. The count starts at `born`.
    given: u64,
    /// The sequence of the key's first message after the key was last removed. The board can have forgotten the key between the removal and
    /// this message.
    again: u64,
    /// The number of messages of `given` from the message `again` on.
    given_again: u64,
    /// The sequence of the key's last message that this reader got, or that it reported as left out.
    last: u64,
    is_removed: bool,
    /// Whether the board is known to have had the key when the message `last` came.
    is_there: bool,
}

impl Row {
    /// Makes the row count the key's messages from the message `last` on, as the board does.
    fn begin_at_last(&mut self) {
        (self.born, self.given, self.again, self.given_again) = (self.last, 1, self.last, 1);
    }

    /// Finds out from which message on the board counts the key's messages. The row counts the message `last` already. `has_moved` has the
    /// same meaning as in [`Ledger`].
    #[cold]
    fn locate(&mut self, view: &View, key: &[u8], has_moved: bool) {
        let through = view.through();
        if !has_moved && !view.has_refused() {
            // The board has had room for each message that it was given.
            self.is_there = self.again != self.last || through >= self.last;
            return;
        }
        match view.tenure_of(key) {
            // The board is just storing the message `last`, or a later one.
            Tenure::Unknown if self.born == 0 => self.begin_at_last(),
            Tenure::Unknown => {}
            Tenure::Since(born) if born == self.born || born == self.again => self.is_there = true,
            Tenure::Since(born) if born == self.last => {
                self.begin_at_last();
                self.is_there = true;
            }
            // The board does not have the message `last` yet. If the board refuses this message, the check after the key's next message
            // shows it.
            Tenure::None if through < self.last => self.begin_at_last(),
            // The board refused the last message, or has forgotten the key since.
            Tenure::None | Tenure::Since(_) => {
                (self.born, self.given, self.again, self.given_again) = (0, 0, 0, 0);
            }
        }
    }
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
    /// The highest sequence of a removal that the board had forgotten at the last join.
    forgotten_up_to: u64,
    /// Whether the board has had each key that this reader knows at some time, because the board has refused no message.
    has_had_all: bool,
    /// Whether the reader has received a loss since the last join. The board has counted the lost messages, and the ledger has not.
    has_lost: bool,
    /// Whether the channel has moved to another segment since the last join. Then it is not known whether the earlier board refused
    /// messages.
    has_moved: bool,
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
            forgotten_up_to: 0,
            has_had_all: false,
            has_lost: false,
            has_moved: false,
        }
    }

    /// Makes a ledger for the board of the segment in which the channel continues.
    pub(super) fn after_move(snapshot: &Snapshot) -> Self {
        Self { has_moved: true, ..Self::for_board(snapshot) }
    }

    /// Whether the board possibly had no room for a message that this reader received.
    fn may_refuse(&self, view: &View) -> bool {
        self.has_moved || view.has_refused()
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
    pub(super) fn note(&mut self, view: &View, copied: Copied, payload: &[u8]) -> bool {
        let geometry = view.geometry();
        let Some(key) = geometry.key_of(payload) else { return true };
        let identity = geometry.identity(key);
        let is_removal = geometry.spec.is_removal(copied.length, copied.tag);
        let sequence = copied.sequence;
        let (at, there) = self.place_of(identity);
        let Some(row) = there else {
            if is_removal {
                return true; // the board did not have it
            }
            let mut row = Row { identity, last: sequence, ..Row::default() };
            row.begin_at_last();
            row.locate(view, key, self.has_moved);
            return self.add(at, row, key);
        };
        let row = &mut self.rows[row];
        if row.is_removed && !is_removal {
            (row.again, row.given_again, row.is_there) = (sequence, 0, false);
        }
        (row.last, row.is_removed) = (sequence, is_removal);
        (row.given, row.given_again) = (row.given + 1, row.given_again + 1);
        if !row.is_there {
            row.locate(view, key, self.has_moved);
        }
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
    ///
    /// After a loss, the board has counted messages that this reader did not get, and the ledger has not counted them. Then the result
    /// makes the number of left-out messages 0, because the caller counts all missing messages as missed.
    pub(super) fn given(&self, listed: &Listed) -> u64 {
        if self.has_lost {
            return listed.count.saturating_sub(1);
        }
        let Some(row) = self.place_of(listed.identity).1.map(|row| self.rows[row]) else {
            return 0;
        };
        if fault!("received_messages_count_as_left_out") {
            0
        } else if row.born == listed.born {
            row.given
        } else if row.again == listed.born {
            row.given_again
        } else {
            0 // the board forgot the key, and the key came back in a message that was left out
        }
    }

    /// Notes that the reader has received a loss.
    pub(super) fn note_loss(&mut self) {
        self.has_lost = true;
    }

    /// Begins the search for keys that the board has forgotten. Call this function after a join, and before the daemon's verdict on the
    /// join is read. `next` is the sequence after the join.
    pub(super) fn seek_forgotten(&mut self, view: &View, next: u64) {
        self.forgotten = 0;
        self.forgotten_up_to = view.forgotten().min(next.saturating_sub(1));
        self.has_had_all = !self.may_refuse(view);
    }

    /// Returns a removal message for the next key that the reader knows and the board has forgotten. The payload is the key, with zeros
    /// before it.
    pub(super) fn next_forgotten(
        &mut self,
        snapshot: &Snapshot,
        out: &mut [u8],
    ) -> Result<Option<Copied>, RecvError> {
        let spec = snapshot.view().geometry().spec;
        let sequence = self.forgotten_up_to;
        while let Some(row) = self.rows.get(self.forgotten) {
            // A key that the board lacks counts as removed only if two things are true: the key had been on the board, and the board has
            // forgotten a removal after the key's last message.
            let was_there = row.is_there || self.has_had_all;
            if !was_there || row.is_removed || sequence <= row.last || snapshot.has(row.identity) {
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
        self.has_lost = false;
    }

    /// Takes over the counts from the time before the channel moved to another segment. Computes the hashes of all keys again, because each
    /// segment has a seed of its own. `slots` is the number of slots of the earlier board, whose keys are the same bytes of the payload.
    pub(super) fn take_over(&mut self, old: &Self, slots: u64, now: &View) {
        self.has_lost = old.has_lost;
        self.most = self.most.max(old.rows.len());
        // The index has more entries than there can be keys, because a search in the index ends at a free entry.
        let entries = (2 * self.most).next_power_of_two();
        if entries > self.index.len() {
            self.index = vec![0; entries].into_boxed_slice();
        }
        let (geometry, since) = (now.geometry(), now.counters().since);
        for (number, row) in old.rows.iter().enumerate() {
            let key = &old.keys[number * old.key_bytes..][..old.key_bytes];
            let identity = geometry.identity(key);
            // A smaller board can have lacked room for the key. If the board lacks messages before `since`, it can lack the key.
            let is_there = row.is_there && geometry.spec.keys >= slots && row.last >= since;
            if let (at, None) = self.place_of(identity) {
                self.add(at, Row { identity, is_there, ..*row }, key);
            }
        }
    }

    /// Takes the counts from a snapshot after a join.
    pub(super) fn take_from(&mut self, snapshot: &Snapshot) {
        self.forget();
        self.has_moved = false;
        let slots = snapshot.view().geometry().spec.keys;
        for listed in snapshot.all() {
            let (at, there) = self.place_of(listed.identity);
            let Some(key) = snapshot.key(&listed).filter(|_| there.is_none()) else { continue };
            let Listed { identity, born, count, again, count_again, is_removed, .. } = listed;
            let last = listed.message.sequence;
            // The board had the key before its removal, and might have had no slot for the key when the key came back.
            let is_there = (listed.row as u64) < slots && again == born;
            let row = Row {
                identity,
                born,
                given: count,
                again,
                given_again: count_again,
                last,
                is_removed,
                is_there,
            };
            self.add(at, row, key);
        }
    }
}
