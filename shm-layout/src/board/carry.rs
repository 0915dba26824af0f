//! Carrying a board over to the segment in which its channel continues.
//!
//! A daemon ends a segment while its publisher may still be at work. The new board must have what is valid of the old one: the messages below
//! the cut. So the slots are copied before the cut is decided, and what the ring has between the copy and the cut is merged afterwards. A
//! slot that is copied after the cut may hold a void message, and no longer the valid one before it.

use super::failures::JoinError;
use super::join::Snapshot;
use super::view::View;
use super::writer::BoardWriter;
use super::{BoardCells, Head};
use crate::layout::board::{Meta, SINCE};
use crate::ring::locate::LocateError;
use crate::ring::reader::Reader;

/// Most copies that are made after the cut, if the ring was overwritten too soon.
const TRIES: u32 = 64;

/// A copy of a board, for the next segment.
#[derive(Debug)]
pub struct Carry {
    snapshot: Snapshot,
    /// The message up to which the copy has everything; `None` if no copy could be made yet.
    through: Option<u64>,
    /// The sequence from which on the board has the newest message of each key.
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

    /// Merges the valid messages of the ring: those below the cut. `reader` is a reader of the same segment, and `buffer` has room for its
    /// largest message.
    pub fn finish(&mut self, reader: &mut Reader, below: u64, buffer: &mut [u8]) {
        let mut through = self.through;
        for _ in 0..TRIES {
            if let Some(through) = through
                && let Ok(end) = self.merge(reader, through, below, buffer)
            {
                if end < below {
                    // The cut lies above what was there, and valid messages may still come to the old segment.
                    self.since = below;
                }
                return;
            }
            through = self.snapshot.copy();
            self.snapshot.hide_from(below);
        }
        // The ring is overwritten faster than this. The next segment's board begins empty, and says so.
        self.snapshot.clear();
        self.since = below;
    }

    fn merge(
        &mut self,
        reader: &mut Reader,
        through: u64,
        below: u64,
        buffer: &mut [u8],
    ) -> Result<u64, JoinError> {
        if through.saturating_add(1) >= below {
            return Ok(below);
        }
        let place = reader.locator().seek(through + 1).map_err(|e| match e {
            LocateError::Corrupt(corrupt) => JoinError::Corrupt(corrupt),
            _ => JoinError::TooFast,
        })?;
        reader.jump(place);
        self.snapshot.merge_up_to(reader, below, buffer)
    }

    /// Puts the copy on a new board, which no other process has seen and which begins with the message after the cut. If the keys of the two
    /// boards are other bytes, the new one begins empty.
    pub fn put_on(&self, cells: BoardCells, below: u64) {
        let spec = cells.geometry.spec;
        let mut writer = BoardWriter::new(cells.clone(), 0);
        let is_same = spec.key() == self.snapshot.view().geometry().spec.key();
        let mut all: Vec<_> =
            self.snapshot.all().filter(|listed| is_same && listed.message.sequence < below).collect();
        // What was removed comes last, for boards with less room, and in the order of the removals.
        all.sort_unstable_by_key(|listed| (listed.is_removed, listed.message.sequence));
        for listed in all {
            let Some(key) = self.snapshot.key(&listed) else { continue };
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
        writer.span(if is_same { self.since } else { below }, below.saturating_sub(1));
        debug_assert!(cells.count(SINCE) <= below);
    }
}
