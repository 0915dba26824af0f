//! Joins (merges) a board with its ring. The result has the newest message of each key, and the place from which the ring has every later
//! message.

use super::Head;
use super::failures::{Failures, JoinError, PASSES};
use super::view::{Look, View};
use crate::error::Corrupt;
use crate::layout::board::{Meta, secret_hash};
use crate::layout::record::ControlRecord;
use crate::ring::locate::{LocateError, Place};
use crate::ring::reader::{Copied, Poll, Reader};
use std::hash::{BuildHasher as _, RandomState};

/// Number of attempts to copy one slot in one pass.
const SLOT_TRIES: u32 = if cfg!(loom) { 1 } else { 64 };
/// The version of a row that contains a message from the ring. No slot has this version, so the next join copies the slot again.
const TO_COPY: u64 = u64::MAX;
/// The version of a row whose slot changed faster than it could be copied. This version is odd, like that of a slot in the middle of a
/// store. No slot has this version.
const CHANGED: u64 = TO_COPY - 2;
/// The smallest number of rows for new keys. The ring has messages of these keys, but the board does not have them yet.
const MORE_KEYS: u64 = if cfg!(loom) { 2 } else { 1024 };

/// The result of a join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    /// The place from which the reader continues in the ring: right after the newest message that was merged.
    pub place: Place,
    /// The epoch in the last epoch record that was merged; 0 if there was none.
    pub epoch: u64,
    /// Number of passes of the join.
    pub passes: u32,
}

/// One message of the snapshot.
#[derive(Debug, Clone, Copy)]
pub struct Listed {
    /// The message. Its payload is the row's value.
    pub message: Copied,
    /// Number of the row.
    pub row: usize,
    /// The number of messages of the key since the key got its slot. It includes this message.
    pub count: u64,
    /// The sequence of the key's first message since the key got its slot.
    pub born: u64,
    /// The sequence of the last message in the ring with which the key came back after a removal; `born` if the join read no such message.
    /// The board might have forgotten the key before this message. If so, the board counts the key's messages from this message on.
    pub again: u64,
    /// The number of the key's messages from the message `again` on.
    pub count_again: u64,
    /// Whether the message removed its key.
    pub is_removed: bool,
    /// Whether the row has the whole message.
    pub is_whole: bool,
    /// The words that identify the key.
    pub identity: [u64; 2],
}

/// The counts of the messages in the last result of [`Snapshot::list_since`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bridged {
    /// The number of listed messages.
    pub listed: usize,
    /// The number of listed messages plus the number of older messages that they replace.
    pub messages: u64,
}

/// A row is the copy of a slot, or a key that is in the ring but not on the board yet.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    /// The version of the slot when it was copied. The next join copies the slot again if its version has changed.
    version: u64,
    head: Head,
    count: u64,
    /// The sequence of the message with which the key came back after a removal, and the key's count before this message. Both are 0 if the
    /// key did not come back.
    again: u64,
    before_again: u64,
    /// Number of older messages of the key that the listed message replaces.
    left_out: u64,
}

impl Row {
    fn has_key(&self) -> bool {
        self.head.sequence != 0 && !self.head.meta.has(Meta::EMPTY)
    }
}

/// A reader's own copy of a board, merged with the ring. All memory is allocated when this value is made.
#[derive(Debug)]
pub struct Snapshot {
    view: View,
    /// The slots, and after them the keys that only the ring had.
    rows: Box<[Row]>,
    values: Box<[u8]>,
    stride: usize,
    slots: usize,
    /// Number of slots that had been used when the board was copied.
    high: usize,
    /// Number of rows in use for keys that only the ring had.
    more: usize,
    /// A hash index with open addressing. It maps the two words that identify a key to the number of the key's row, plus 1.
    index: Box<[u32]>,
    /// The secret of the index's hash function.
    secret: u64,
    /// The sequence and the row of each listed message, in the order of the sequences.
    order: Vec<(u64, u32)>,
}

impl Snapshot {
    /// Allocates the memory for copies of this board: about 110 bytes a key, and the values.
    pub fn new(view: View) -> Self {
        let spec = view.geometry().spec;
        let slots = spec.keys as usize;
        let rows = slots + MORE_KEYS.max(spec.keys / 4).min(1 << 20) as usize;
        let stride = view.geometry().stride() as usize;
        Self {
            rows: vec![Row::default(); rows].into_boxed_slice(),
            values: vec![0; rows * stride].into_boxed_slice(),
            stride,
            slots,
            high: 0,
            more: 0,
            index: vec![0; (2 * rows).next_power_of_two()].into_boxed_slice(),
            secret: RandomState::new().hash_one(0),
            order: Vec::with_capacity(rows),
            view,
        }
    }

    /// The board.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The payload of a row.
    pub fn value(&self, listed: &Listed) -> &[u8] {
        self.values
            .get(listed.row * self.stride..)
            .map_or(&[], |value| &value[..listed.message.length.min(self.stride)])
    }

    /// Copies the slots that changed since the last join. Then merges the ring's messages into the copies, up to the newest message.
    /// `reader` reads the ring of the same segment, and `buffer` has room for its largest message.
    ///
    /// Makes no system call, and allocates nothing. The number of passes is bounded.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(&mut self, reader: &mut Reader, buffer: &mut [u8]) -> Result<Joined, JoinError> {
        let locator = reader.locator();
        let mut failures = Failures::default();
        for pass in 1..=PASSES {
            let Some(through) = self.copy() else { continue };
            let place = match locator.seek(through.saturating_add(1)) {
                Ok(place) => place,
                Err(LocateError::Corrupt(corrupt)) => return Err(corrupt.into()),
                Err(LocateError::NotYet { .. }) => {
                    failures.ahead += 1;
                    continue;
                }
                Err(_) => {
                    failures.note_gone(through);
                    continue;
                }
            };
            let tail = match locator.tail() {
                Ok(tail) => tail.sequence,
                Err(LocateError::Corrupt(corrupt)) => return Err(corrupt.into()),
                Err(_) => continue,
            };
            if self.index_rows() >= tail {
                failures.ahead += 1;
                continue;
            }
            reader.jump(place);
            match self.merge(reader, tail, buffer) {
                Ok(Some(epoch)) => {
                    self.drop_unresolved();
                    return Ok(Joined { place: reader.place(), epoch, passes: pass });
                }
                Ok(None) => {}
                Err(corrupt) => return Err(corrupt.into()),
            }
        }
        Err(failures.reason())
    }

    /// Copies the slots that changed since the last copy. Returns a sequence. For each message up to and including this sequence, the
    /// copies have the message itself or a newer message of its key. Returns `None` if a slot could not be copied.
    pub(super) fn copy(&mut self) -> Option<u64> {
        let through = self.view.through();
        self.copy_changed().then_some(through)
    }

    /// Merges the ring's messages from the reader's place to the tail, but only messages below `end`. Returns the sequence after the last
    /// merged message, and whether a copy was dropped. A copy is dropped if its slot was in the middle of a store whose message the ring
    /// does not have.
    pub(super) fn merge_up_to(
        &mut self,
        reader: &mut Reader,
        end: u64,
        buffer: &mut [u8],
    ) -> Result<(u64, bool), JoinError> {
        self.index_rows();
        let tail = match reader.locator().tail() {
            Ok(tail) => tail.sequence.min(end),
            Err(LocateError::Corrupt(corrupt)) => return Err(corrupt.into()),
            Err(_) => return Err(JoinError::TooFast),
        };
        match self.merge(reader, tail, buffer)? {
            Some(_) => Ok((tail, self.drop_unresolved())),
            None => Err(JoinError::TooFast),
        }
    }

    /// Drops the copies of messages at or above `end`. These messages are not valid, and the board no longer has the valid messages that
    /// they replaced. Returns whether a copy was dropped.
    pub(super) fn drop_from(&mut self, end: u64) -> bool {
        let mut has_dropped = false;
        for row in self.rows[..self.high].iter_mut().filter(|row| row.head.sequence >= end) {
            (*row, has_dropped) = (Row::default(), true);
        }
        has_dropped
    }

    /// Forgets all copies.
    pub(super) fn clear(&mut self) {
        self.rows.fill(Row::default());
        (self.high, self.more) = (0, 0);
    }

    /// Copies each slot whose version differs from the version of its copy. Returns false if a slot could not be copied.
    fn copy_changed(&mut self) -> bool {
        self.more = 0;
        self.high = self.slots.min(self.view.high() as usize);
        for (slot, row) in self.rows[..self.high].iter_mut().enumerate() {
            if row.version == self.view.version(slot as u32) {
                continue;
            }
            let value = &mut self.values[slot * self.stride..][..self.stride];
            match copy_slot(&self.view, slot as u32, value) {
                Some(copy) => *row = copy,
                None => return false,
            }
        }
        true
    }

    /// Reads the ring's messages below the sequence `end`. For each message, replaces the copy of its key. Returns the last epoch that it
    /// found. Returns `None` if the publisher overwrote messages during the call, or if there are more new keys than rows for them.
    fn merge(&mut self, reader: &mut Reader, end: u64, buffer: &mut [u8]) -> Result<Option<u64>, Corrupt> {
        let mut epoch = 0;
        while reader.place().sequence < end {
            let before = reader.place();
            match reader.poll(buffer) {
                Poll::Message(copied) => {
                    if !self.take(copied, &buffer[..copied.length]) {
                        return Ok(None);
                    }
                }
                Poll::Control(ControlRecord::Epoch { epoch: found }) => epoch = found,
                Poll::Control(_) => {}
                Poll::Empty if reader.place() != before => {}
                Poll::Corrupt(corrupt) => return Err(corrupt),
                // The reader was overtaken, or the segment was replaced.
                _ => return Ok(None),
            }
        }
        Ok(Some(epoch))
    }

    /// Builds the private index of all copies. Returns the highest sequence among them.
    fn index_rows(&mut self) -> u64 {
        self.index.fill(0);
        let mut newest = 0;
        for row in 0..self.high {
            let Row { head, .. } = self.rows[row];
            if !self.rows[row].has_key() {
                continue;
            }
            newest = newest.max(head.sequence);
            let (at, there) = self.place_of(head.identity);
            // If a key was removed and came back in another slot, both slots can have a copy of the key. The newer copy is the right one.
            let older = match there {
                Some(there) if self.rows[there].head.sequence < head.sequence => Some(there),
                Some(_) => Some(row),
                None => None,
            };
            if older != Some(row) {
                self.index[at] = row as u32 + 1;
            }
            if let Some(older) = older {
                self.rows[older] = Row::default();
            }
        }
        newest
    }

    /// The entry of a key in the private index, and the row to which the entry leads. The search always ends, because the index has at
    /// least twice as many entries as there are rows.
    fn place_of(&self, identity: [u64; 2]) -> (usize, Option<usize>) {
        let mask = self.index.len() - 1;
        let mut at = secret_hash(self.secret, identity) as usize & mask;
        loop {
            match self.index[at] {
                0 => return (at, None),
                row if self.rows[row as usize - 1].head.identity == identity => {
                    return (at, Some(row as usize - 1));
                }
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// Stores a message from the ring in the row of its key. Returns false if the key is new and there is no free row.
    fn take(&mut self, copied: Copied, payload: &[u8]) -> bool {
        let geometry = *self.view.geometry();
        let Some(key) = geometry.key_of(payload) else { return true };
        let identity = geometry.identity(key);
        let (at, there) = self.place_of(identity);
        let is_removal = geometry.spec.is_removal(copied.length, copied.tag);
        let row = match there {
            Some(row) => row,
            // The board does not know the key, so there is nothing to remove.
            None if is_removal => return true,
            None => {
                let row = self.slots + self.more;
                if row >= self.rows.len() {
                    return false;
                }
                self.more += 1;
                self.index[at] = row as u32 + 1;
                self.rows[row] = Row::default();
                self.rows[row].head.identity = identity;
                self.rows[row].head.born = copied.sequence;
                row
            }
        };
        let Row { head, count, version, again, before_again, .. } = &mut self.rows[row];
        if copied.sequence <= head.sequence {
            return true;
        }
        if head.meta.has(Meta::REMOVED) && !is_removal {
            (*again, *before_again) = (copied.sequence, *count);
        }
        // The slot is to be copied again by the next join.
        *version = TO_COPY;
        *count = count.wrapping_add(1);
        head.sequence = copied.sequence;
        head.time = copied.time;
        head.meta = Meta::new(copied.length, copied.tag)
            .with(Meta::KEY, copied.key)
            .with(Meta::REMOVED, is_removal)
            .with(Meta::TOO_LARGE, copied.length as u64 > geometry.spec.value);
        let bytes = self.view.stored_bytes(head.meta);
        self.values[row * self.stride..][..bytes].copy_from_slice(&payload[..bytes]);
        true
    }

    /// Clears each row whose slot was in the middle of a store, if the ring had no message of the row's key. The publisher was about to
    /// give such a slot to another key. Returns whether a row was cleared.
    fn drop_unresolved(&mut self) -> bool {
        let mut has_dropped = false;
        for row in &mut self.rows[..self.high] {
            if row.version & 1 == 1 && row.version != TO_COPY {
                (*row, has_dropped) = (Row::default(), true);
            }
        }
        has_dropped
    }

    /// Lists the messages from the sequence `from` on, in the order of their sequences. Leaves out messages that are not whole, and with
    /// `only_live` also messages that removed their key. [`listed`](Self::listed) then returns each listed message by its number in the
    /// list, from 0.
    ///
    /// Returns two counts: the listed messages, and the messages that were left out because they are not whole.
    pub fn list(&mut self, from: u64, only_live: bool) -> (usize, u64) {
        self.order.clear();
        let mut not_whole = 0;
        for row in (0..self.high).chain(self.slots..self.slots + self.more) {
            let Row { head, .. } = self.rows[row];
            let is_listed = self.rows[row].has_key()
                && head.sequence >= from
                && !(only_live && head.meta.has(Meta::REMOVED));
            if is_listed && head.meta.is_whole() {
                self.order.push((head.sequence, row as u32));
            } else if is_listed {
                not_whole += 1;
            }
        }
        self.order.sort_unstable();
        (self.order.len(), not_whole)
    }

    /// Lists the newest message of each key, even if the message is not whole. Leaves out keys that were removed. [`listed`](Self::listed)
    /// then returns each listed message by its number in the list, from 0. Returns how many messages are listed.
    pub fn list_all_live(&mut self) -> usize {
        self.order.clear();
        for row in (0..self.high).chain(self.slots..self.slots + self.more) {
            let Row { head, .. } = self.rows[row];
            if self.rows[row].has_key() && !head.meta.has(Meta::REMOVED) {
                self.order.push((head.sequence, row as u32));
            }
        }
        self.order.sort_unstable();
        self.order.len()
    }

    /// Lists messages as [`list`](Self::list) does, and also lists removals. For each listed message, counts the older messages of the same
    /// key that the reader does not know. `given` returns the number of messages of this key that the reader knows.
    pub fn list_since(&mut self, from: u64, given: impl Fn(&Listed) -> u64) -> Bridged {
        let (listed, _) = self.list(from, false);
        let mut bridged = Bridged { listed, messages: 0 };
        for number in 0..listed {
            let Some(listed) = self.listed(number) else { break };
            let left_out = listed.count.saturating_sub(given(&listed)).saturating_sub(1);
            self.rows[listed.row].left_out = left_out;
            bridged.messages = bridged.messages.saturating_add(left_out).saturating_add(1);
        }
        bridged
    }

    /// Returns message number `number` of the last list.
    pub fn listed(&self, number: usize) -> Option<Listed> {
        self.order.get(number).map(|(_, row)| self.row(*row as usize))
    }

    /// Returns how many older messages a message of the last [`list_since`](Self::list_since) replaces. `number` is the number of the
    /// message in that list.
    pub fn left_out(&self, number: usize) -> u64 {
        self.order.get(number).map_or(0, |(_, row)| self.rows[*row as usize].left_out)
    }

    fn row(&self, row: usize) -> Listed {
        let Row { head, count, again, before_again, .. } = self.rows[row];
        let message = Copied {
            length: self.view.stored_bytes(head.meta),
            sequence: head.sequence,
            tag: head.meta.tag(),
            key: head.meta.has(Meta::KEY),
            time: head.time,
        };
        let (born, identity, is_removed) = (head.born, head.identity, head.meta.has(Meta::REMOVED));
        let is_whole = head.meta.is_whole();
        let again = if again == 0 { born } else { again };
        let count_again = count.saturating_sub(before_again);
        Listed { message, row, count, born, again, count_again, is_removed, is_whole, identity }
    }

    /// Iterates over the copies of all keys. The copies include removed keys, and keys whose message is not whole.
    pub fn all(&self) -> impl Iterator<Item = Listed> + '_ {
        let rows = (0..self.high).chain(self.slots..self.slots + self.more);
        rows.filter(|row| self.rows[*row].has_key()).map(|row| self.row(row))
    }

    /// The key of a copy. `None` if a publisher was about to give the slot to another key, because the copied bytes may then be neither
    /// key.
    pub fn key(&self, listed: &Listed) -> Option<&[u8]> {
        let geometry = self.view.geometry();
        let key = self.values.get(listed.row * self.stride..)?.get(geometry.spec.key())?;
        (listed.is_whole || geometry.identity(key) == listed.identity).then_some(key)
    }

    /// Whether there is a copy of this key.
    pub fn has(&self, identity: [u64; 2]) -> bool {
        self.place_of(identity).1.is_some()
    }

    /// Number of keys that a snapshot can have at most.
    pub fn most_keys(&self) -> usize {
        self.rows.len()
    }
}

/// Copies one slot. If a publisher is in the middle of a store, the copy has no value, and the reader finds the message in the ring
/// instead. Returns `None` if the slot changed during every attempt.
fn copy_slot(view: &View, slot: u32, value: &mut [u8]) -> Option<Row> {
    for _ in 0..SLOT_TRIES {
        let (version, head, last) = match view.look(slot, value) {
            Look::Stored(head) => {
                return Some(Row { version: head.version, head, count: head.count(), ..Row::default() });
            }
            // The caller loaded a THROUGH below this message. So the merge leaves out only the messages before this message.
            Look::Changing(head) => (CHANGED, head, head.sequence.saturating_sub(1)),
            Look::Busy(head) => {
                // The version did not change meanwhile. So the key has no message between `through` and the message that is being stored.
                // The merge finds that message in the ring.
                let Some(through) = view.through_before(slot, head.version) else { continue };
                (head.version, head, through)
            }
        };
        let meta = Meta::default().with(Meta::UNKNOWN, true);
        let count = head.count().wrapping_sub(1);
        return Some(Row { version, head: Head { sequence: last, meta, ..head }, count, ..Row::default() });
    }
    None
}
