//! Repeats appends that were in flight when an error occurred.

use super::super::mutant::{Mutant, is};
use super::{Append, Flight, Resume, Writer};

impl Writer {
    /// Finds the blocks that were in flight at the error and are not in the log. If they still follow the log's last block, moves them back
    /// into the window, so that they are appended again.
    pub(super) fn go_on(&mut self, now_ns: u64) {
        let (sequence, crc) = self.newest;
        let mut kept = std::mem::take(&mut self.kept);
        while let Some(flight) = kept.front().filter(|flight| flight.sequence <= sequence) {
            let is_last = (flight.sequence, flight.crcs.1) == (sequence, crc);
            if flight.sequence == sequence && !is_last {
                return;
            }
            kept.pop_front();
        }
        let fits = |flight: &Flight| flight.sequence == sequence + 1 && flight.crcs.0 == crc;
        if !kept.front().is_some_and(fits) || is(Mutant::GoesOn) {
            return;
        }
        kept.iter_mut().for_each(|flight| flight.at_ns = now_ns);
        if let Some(first) = kept.front_mut() {
            first.behind = self.newest_id;
        }
        if let Some(last) = kept.back() {
            (self.newest, self.newest_id) = ((last.sequence, last.crcs.1), Some(last.id));
            self.resume = Some(Resume::At(last.end));
        }
        (self.window, self.is_again) = (kept, true);
    }

    /// Returns the blocks to append again, unchanged. Call this after each [`handle_last`](Self::handle_last).
    pub fn take_again(&mut self) -> Vec<Append> {
        if !std::mem::take(&mut self.is_again) {
            return Vec::new();
        }
        let mut stores_after = self.stores_after.take();
        let append = |flight: &Flight| Append {
            round: self.round,
            at_ns: flight.at_ns,
            after: stores_after.take().unwrap_or(flight.sequence - 1),
            behind: flight.behind,
            id: flight.id,
            block: flight.block.clone(),
        };
        self.window.iter().map(append).collect()
    }
}
