//! Copies a board into the segment in which its channel continues.
//!
//! A daemon ends a segment while the segment's publisher can still write to it. The daemon decides a sequence, the cut. Messages below the
//! cut are valid, and the new board must have the valid messages of the old board.
//!
//! [`Carry::begin`] copies the slots before the daemon decides the cut. [`Carry::finish`] then merges the messages that the ring received
//! between the copy and the cut. The slots are copied so early because the publisher can still store messages after the cut. Such a message
//! would replace a valid one in its slot.

use super::failures::JoinError;
use super::join::Snapshot;
use super::view::View;
use super::writer::BoardWriter;
use super::{BoardCells, Head};
use crate::layout::board::{Meta, SINCE};
use crate::ring::locate::LocateError;
use crate::ring::reader::Reader;

/// Largest number of attempts to merge the ring into a copy. Each attempt after the first needs a new copy.
const TRIES: u32 = 64;

/// A copy of a board, for the next segment.
#[derive(Debug)]
pub struct Carry {
    snapshot: Snapshot,
    /// The sequence up to which the copy has every message. `None` if no copy could be made yet.
    through: Option<u64>,
    /// The sequence from which on the copy is complete. If the newest message of a key is older, the copy can lack that message.
    since: u64,
}

impl Carry {
    /// Copies the board before the cut is decided.
    pub fn begin(view: View) -> Self {
        let since = view.counters().since;
        let mut snapshot = Snapshot::new(view);
        let through = snapshot.copy();
        Self { snapshot, through, since }
    }

    /// Merges the ring's valid messages into the copy: the messages whose sequences are less than `below`. `reader` reads the same segment,
    /// and `buffer` has room for its largest message.
    pub(crate) fn finish(&mut self, reader: &mut Reader, below: u64, buffer: &mut [u8]) {
        let mut through = self.through;
        for attempt in 0..TRIES {
            if let Some(through) = through
                && let Ok((end, has_dropped)) = self.merge(reader, through, below, buffer)
            {
                // If the cut lies above the ring's last message, valid messages can still be published in the old segment. If the copy was
                // made after the cut, a dropped slot can have been in the middle of a store of an invalid message.
                if end < below || has_dropped && attempt > 0 {
                    self.since = below;
                }
                return;
            }
            through = self.snapshot.copy();
            if self.snapshot.drop_from(below) {
                self.since = below;
            }
        }
        // The ring is overwritten faster than the board can be copied. The next segment's board begins empty, and its SINCE is the cut.
        self.snapshot.clear();
        self.since = below;
    }

    fn merge(
        &mut self,
        reader: &mut Reader,
        through: u64,
        below: u64,
        buffer: &mut [u8],
    ) -> Result<(u64, bool), JoinError> {
        if through.saturating_add(1) >= below {
            return Ok((below, false));
        }
        let place = reader.locator().seek(through + 1).map_err(|e| match e {
            LocateError::Corrupt(corrupt) => JoinError::Corrupt(corrupt),
            _ => JoinError::TooFast,
        })?;
        reader.jump(place);
        self.snapshot.merge_up_to(reader, below, buffer)
    }

    /// Writes the copy to a new board, which no other process has seen. The next message of the new board has the sequence `below`. If the
    /// two boards take their keys from different bytes of the payload, the new board begins empty.
    pub(crate) fn put_on(&self, cells: BoardCells, below: u64) {
        let spec = cells.geometry.spec;
        let mut writer = BoardWriter::new(cells.clone(), 0);
        let is_same = spec.key() == self.snapshot.view().geometry().spec.key();
        let mut all: Vec<_> =
            self.snapshot.all().filter(|listed| is_same && listed.message.sequence < below).collect();
        // Keys that had a slot come before keys that only the ring has, so that they keep a slot: a full board had refused some of the
        // other keys. Removals come last, in the order of their sequences, because a smaller board might not have room for all of them.
        let slots = self.snapshot.view().geometry().spec.keys;
        all.sort_unstable_by_key(|listed| {
            (listed.is_removed, listed.row as u64 >= slots, listed.message.sequence)
        });
        let mut since = self.since;
        for listed in all {
            let Some(key) = self.snapshot.key(&listed) else {
                since = below;
                continue;
            };
            let value = self.snapshot.value(&listed);
            let length = listed.message.length;
            let is_known = listed.is_whole;
            let meta = Meta::new(length, listed.message.tag)
                .with(Meta::KEY, listed.message.key)
                .with(Meta::REMOVED, listed.is_removed)
                .with(Meta::UNKNOWN, !is_known)
                .with(Meta::TOO_LARGE, is_known && length as u64 > spec.value);
            let stored = cells.stored_bytes(meta).min(value.len());
            let head = Head {
                version: listed.count.wrapping_mul(2),
                sequence: listed.message.sequence,
                base: 0,
                meta,
                time: listed.message.time,
                born: listed.born,
                identity: cells.geometry.identity(key),
            };
            writer.import(&head, &value[..stored]);
        }
        if is_same {
            writer.forget_up_to(self.snapshot.view().forgotten().min(below.saturating_sub(1)));
        }
        writer.span(if is_same { since } else { below }, below.saturating_sub(1));
        debug_assert!(cells.count(SINCE) <= below);
    }
}
