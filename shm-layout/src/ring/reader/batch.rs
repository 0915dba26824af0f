//! Takes many messages in one call, and copies small messages together.

use super::{Copied, Found, HEADER, Reader, is_due, is_in_window, look_at, message};
use crate::layout::geometry::{GRANULE, WORD};
use crate::layout::record::Commit;
use crate::ring::locate::Place;
use crate::ring::sync_points::{commit, lazy};
use std::ops::ControlFlow;

/// The number of bytes that [`Reader::poll_batch`] copies together if it knows that these bytes are published small records.
pub const RUN: u64 = if cfg!(loom) { 2 } else { 32 } * GRANULE;
/// The largest size in bytes of the first record of a run. A run is a number of records that are copied together.
pub(super) const RUN_RECORD: u64 = if cfg!(loom) { 1 } else { 8 } * GRANULE;
/// If the reader knows of at most this many published messages, it loads `LAZY_PUBLISHED` again.
pub(super) const KNOWN: i64 = if cfg!(loom) { 1 } else { 192 };

/// The result of a closure that receives messages. With `()`, the closure always gets the next message. With a [`ControlFlow`], the closure
/// can ask for no more messages.
pub trait Flow {
    /// Whether the closure wants no more messages.
    fn stops(self) -> bool;
}

impl Flow for () {
    #[inline(always)]
    fn stops(self) -> bool {
        false
    }
}

impl Flow for ControlFlow<()> {
    #[inline(always)]
    fn stops(self) -> bool {
        self.is_break()
    }
}

impl Reader {
    /// Copies up to `most` messages to `out`, one after the other. Calls `each` with each message, and returns the number of these calls.
    /// Stops early for one of three reasons: `each` ends the loop, there is no message, or a record does not fit in `out`. Call
    /// [`poll`](Self::poll) afterwards to learn the reason.
    ///
    /// The call can also overwrite bytes of `out` that belong to no payload. If `out` has room for [`RUN`] bytes, and the reader is far
    /// enough behind, a run of small messages is copied together. If `each` panics on a message of a run and the caller continues, the
    /// messages of that run are passed again.
    ///
    /// A message costs as much as with `poll`, less the cost of a function call. A message in a run costs the cache lines of its record,
    /// and a check of its header.
    #[inline(always)]
    pub fn poll_batch<F: Flow>(
        &mut self,
        most: usize,
        out: &mut [u8],
        mut each: impl FnMut(Copied, &[u8]) -> F,
    ) -> usize {
        // After a reader has loaded this line, the writer's next store to the line must wait. So readers load it as seldom as possible.
        if self.known() <= KNOWN {
            self.published = lazy::see_for_run(&self.header);
        }
        let mut taken = 0;
        let mut are_small = true;
        while taken < most {
            // A record is at least one granule, so `RUN / GRANULE` known messages have at least [`RUN`] bytes. A gap is one granule and
            // counts for many messages, so a run with a gap can include bytes that are not published. These follow the gap, and are never
            // read.
            if are_small && self.known() >= (RUN / GRANULE) as i64 {
                let (in_run, is_over) = self.poll_run(most - taken, out, &mut each);
                taken += in_run;
                if is_over {
                    return taken;
                }
                if in_run > 0 {
                    continue;
                }
                are_small = false;
            }
            let Found::Message(copied, after) =
                look_at::<true>(&self.data, &self.header, self.max_message, self.copier, self.place, out)
            else {
                break;
            };
            self.place = after;
            taken += 1;
            if each(copied, &out[HEADER..HEADER + copied.length]).stops() {
                break;
            }
        }
        taken
    }

    /// The number of messages that the reader knows to be published, from its next message on. Sequences in gaps count too. The number
    /// comes from the lazy line, which has the writer's count of messages. If the reader loaded that line too long ago, the number is 0 or
    /// negative.
    #[inline(always)]
    pub(super) fn known(&self) -> i64 {
        self.published.wrapping_add(1).wrapping_sub(self.place.sequence) as i64
    }

    /// Does the same as [`poll_batch`](Self::poll_batch) for a run of small records, which it copies together. Returns the number of
    /// messages, and whether `each` stopped. The caller must know that at least `RUN / GRANULE` sequences are published, counted from the
    /// next one.
    ///
    /// Takes no message in these cases:
    ///
    /// - The first record is not small, or is not the next message.
    /// - `out` is too small.
    /// - The run crosses the end of the ring.
    /// - The run does not end below the frontier, or the writer has possibly overwritten it.
    #[inline(always)]
    fn poll_run<F: Flow>(
        &mut self,
        most: usize,
        out: &mut [u8],
        mut each: impl FnMut(Copied, &[u8]) -> F,
    ) -> (usize, bool) {
        let Self { max_message, copier, mut place, .. } = *self;
        let Place { position, sequence: first } = place;
        let Some(record) = self.data.run_at(position, RUN) else { return (0, false) };
        let bytes = commit::peek(&record[0]).record_bytes();
        if bytes > RUN_RECORD {
            return (0, false);
        }
        // Records often have the same size. Then these bytes are whole records.
        let run = (RUN as u32 - RUN as u32 % bytes as u32) as usize;
        let Some(out) = out.get_mut(..run) else { return (0, false) };
        copier.load_records(&record[..run / WORD as usize], out);
        if !is_in_window(&self.data, &self.header, position, run as u64) {
            return (0, false);
        }
        let mut rest = &*out;
        let mut is_over = false;
        while !is_over && place.sequence != first.wrapping_add(most as u64) {
            let Some(header) = rest.first_chunk::<HEADER>() else { break };
            let [commit, meta] =
                [0, 8].map(|i| u64::from_ne_bytes(header[i..i + 8].try_into().expect("a word")));
            let commit = Commit::from_word(commit);
            if !is_due(commit, place.sequence, max_message) {
                break;
            }
            let Some((record, others)) = rest.split_at_checked(commit.record_bytes() as usize) else { break };
            let (copied, after) = message(commit, meta, place);
            is_over = each(copied, &record[HEADER..HEADER + copied.length]).stops();
            (rest, place) = (others, after);
        }
        self.place = place;
        (place.sequence.wrapping_sub(first) as usize, is_over)
    }
}
