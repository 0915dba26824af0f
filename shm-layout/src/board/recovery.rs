//! Takes a board over from an earlier publisher. A dead publisher can have left one slot half stored. This module repairs that slot, and
//! then stores the ring's messages that the board lacks.

use super::sync_points::{store, stored};
use super::writer::{BoardWriter, Posted};
use super::{BoardCells, Head};
use crate::layout::board::{
    FORGOTTEN, HEAD_BORN, HEAD_META, HEAD_SEQUENCE, HEAD_VERSION, HIGH, LIVE, Meta, SINCE, THROUGH,
};
use crate::layout::geometry::MAX_SEQUENCE;
use crate::ring::locate::{LocateError, Place};
use crate::ring::reader::{Poll, Reader};
use crate::sync::Ordering;

/// The result of a takeover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Replayed {
    /// Number of the ring's messages that were stored on the board.
    pub messages: u64,
    /// Whether messages are lost to the board: the board lacked them, and the ring no longer had them. If so, older values on the board
    /// count as unknown.
    pub has_hole: bool,
}

impl BoardWriter {
    /// Takes a board over. The caller holds the channel's writer lock, has taken the ring over, and has published nothing yet. `reader`
    /// reads the ring, and `buffer` has room for its largest message.
    ///
    /// Cost: reads the head of each slot, and builds the index again.
    ///
    /// # Errors
    /// [`LocateError::Corrupt`] when another program wrote to the ring.
    pub(crate) fn take_over(
        cells: BoardCells,
        mut reader: Reader,
        buffer: &mut [u8],
    ) -> Result<(Self, Replayed), LocateError> {
        let locator = reader.locator();
        let (first, next) = (locator.start().sequence, locator.tail()?.sequence);
        let high = cells.count(HIGH).min(cells.geometry.spec.keys) as u32;
        let mut writer = Self::new(cells, high);
        let mut replayed = Replayed::default();
        let due = writer.cells.count(THROUGH).saturating_add(1).max(first).min(MAX_SEQUENCE);
        let place = match locator.seek(due) {
            Ok(place) if due <= next => place,
            Err(LocateError::Corrupt(corrupt)) => return Err(corrupt.into()),
            _ => {
                replayed.has_hole = true;
                let oldest = locator.oldest()?;
                writer.forget_all_before(oldest);
                oldest
            }
        };
        let mut busy = writer.survey();
        reader.jump(place);
        while reader.place().sequence < next {
            let before = reader.place();
            match reader.poll(buffer) {
                Poll::Message(copied) if copied.sequence >= due || replayed.has_hole => {
                    let payload = &buffer[..copied.length];
                    let (sequence, tag, key, time) = (copied.sequence, copied.tag, copied.key, copied.time);
                    writer.replay(Posted { sequence, payload, tag, key, time }, &mut busy);
                    replayed.messages += 1;
                }
                Poll::Message(_) | Poll::Control(_) => {}
                Poll::Empty if reader.place() != before => {}
                Poll::Corrupt(corrupt) => return Err(corrupt.into()),
                // No other process writes to the ring, so no message is overwritten meanwhile.
                _ => break,
            }
        }
        writer.settle(&mut busy, None);
        writer.skip_to(next - 1);
        Ok((writer, replayed))
    }

    /// Reads the head of each slot, builds the index again, and lists the free slots in the order in which their keys were removed. Returns
    /// the slot that a dead publisher left in the middle of a store, if there is one.
    fn survey(&mut self) -> Option<u32> {
        let heads = (0..self.high).filter_map(|slot| Some((slot, Head::load(self.cells.head(slot)?))));
        let heads: Vec<(u32, Head)> = heads.collect();
        self.cells.rebuild(self.high);
        self.cells.set(LIVE, heads.iter().filter(|(_, head)| head.is_live()).count() as u64);
        let is_vacant = |head: &Head| head.meta.has(Meta::REMOVED) || head.meta.has(Meta::EMPTY);
        let mut vacant: Vec<(bool, u64, u32)> = heads
            .iter()
            .filter(|(_, head)| is_vacant(head))
            .map(|(slot, head)| (!head.meta.has(Meta::EMPTY), head.sequence, *slot))
            .collect();
        vacant.sort_unstable();
        vacant.into_iter().for_each(|(_, _, slot)| self.vacant.put_last(slot));
        heads.iter().find(|(_, head)| head.is_busy()).map(|(slot, _)| *slot)
    }

    /// Stores a message from the ring on the board, unless the dead publisher had already stored it.
    fn replay(&mut self, message: Posted<'_>, busy: &mut Option<u32>) {
        let Some(key) = self.cells.geometry.key_of(message.payload) else { return self.put(message) };
        let identity = self.cells.geometry.identity(key);
        self.settle(busy, Some(identity));
        let there = self.cells.find(identity).and_then(|slot| self.cells.head(slot)).map(Head::load);
        if !there.is_some_and(|head| !head.is_busy() && head.sequence >= message.sequence) {
            self.put(message);
        }
    }

    /// Handles the slot that the dead publisher left in the middle of a store. `first` is the key of the first message that the board
    /// lacks. If the slot names this key, the caller stores the message again, which makes the slot whole. Otherwise the slot was about to
    /// get another key, and this function clears the slot.
    fn settle(&mut self, busy: &mut Option<u32>, first: Option<[u64; 2]>) {
        let Some(slot) = busy.take() else { return };
        let Some(head) = self.cells.head(slot) else { return };
        let found = Head::load(head);
        if first == Some(found.identity) {
            return; // the store that comes now makes it whole
        }
        if found.is_live() {
            self.cells.set(LIVE, self.cells.count(LIVE).wrapping_sub(1));
        }
        self.cells.take_out(found.identity, slot);
        self.cells.set(FORGOTTEN, self.cells.count(FORGOTTEN).max(self.cells.count(THROUGH)));
        let even = store::begin(&head[HEAD_VERSION]);
        head[HEAD_META].store(Meta::EMPTY.word(), Ordering::Relaxed);
        stored::end(&head[HEAD_VERSION], even);
        self.vacant.take(slot);
        self.vacant.put_first(slot);
    }

    /// Marks the newest message of each key as unknown. Call this if messages before `oldest` were published without this board.
    fn forget_all_before(&mut self, oldest: Place) {
        for slot in 0..self.high {
            let Some(head) = self.cells.head(slot) else { continue };
            let was = Head::load(head);
            if was.meta.has(Meta::EMPTY) {
                continue;
            }
            let even = store::begin(&head[HEAD_VERSION]);
            head[crate::layout::board::HEAD_BASE].store(even / 2, Ordering::Relaxed);
            head[HEAD_BORN].store(oldest.sequence, Ordering::Relaxed);
            head[HEAD_SEQUENCE].store(oldest.sequence.saturating_sub(1), Ordering::Relaxed);
            head[HEAD_META].store(Meta::default().with(Meta::UNKNOWN, true).word(), Ordering::Relaxed);
            stored::end(&head[HEAD_VERSION], even);
        }
        self.cells.set(SINCE, oldest.sequence);
        // A reader that joins meanwhile must not believe that the board has all messages up to the old count.
        super::sync_points::through::publish(&self.cells.header, oldest.sequence.saturating_sub(1));
    }
}
