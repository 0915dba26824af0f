//! Takes many messages in one call, as whole records: header and payload stay together as in the ring.

use super::batch::{KNOWN, RUN, RUN_RECORD};
use super::{Copied, Found, HEADER, Reader, is_due, is_in_window, look_at};
use crate::layout::geometry::{GRANULE, WORD};
use crate::layout::record::{Commit, Flags, Meta};
use crate::ring::locate::Place;
use crate::ring::sync_points::{commit, lazy};

/// Records that were copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Taken {
    /// The number of records. Each record is a message.
    pub messages: usize,
    /// The size of all records together in bytes, a multiple of 64. There is no space between the records.
    pub bytes: usize,
}

/// Writes the header of a message. The payload was already copied to the bytes after the header.
///
/// # Panics
/// When `record` has no room for a header.
pub fn put_header(record: &mut [u8], copied: &Copied) {
    let flags = if copied.key { Flags::KEY } else { Flags::VALID };
    let commit = Commit::new(copied.sequence, flags, copied.length as u64).word();
    record[..8].copy_from_slice(&commit.to_le_bytes());
    record[8..HEADER].copy_from_slice(&Meta::new(copied.tag, copied.time).word().to_le_bytes());
}

impl Reader {
    /// Copies up to `most` messages as whole records to `out`, one after the other. This call stops if there is no message, or if a record
    /// does not fit in the free part of `out`. Call [`poll`](Self::poll) to find out why this call stopped.
    ///
    /// This call can overwrite the bytes of `out` after the last record. `out` should be 64-byte aligned. A run of small messages is copied
    /// together if the reader is far enough behind, and if `out` still has room for about [`RUN`] bytes.
    ///
    /// Cost of a message in a run: the lines of its record, and a comparison of its commit word.
    #[inline]
    pub fn poll_records(&mut self, most: usize, out: &mut [u8]) -> Taken {
        if self.known() <= KNOWN {
            self.published = lazy::see_for_run(&self.header);
        }
        let mut taken = Taken::default();
        let mut are_small = true;
        while taken.messages < most {
            let rest = &mut out[taken.bytes..];
            if are_small && self.known() >= (RUN / GRANULE) as i64 {
                let run = self.take_run(most - taken.messages, rest);
                taken.messages += run.messages;
                taken.bytes += run.bytes;
                if run.messages > 0 {
                    continue;
                }
                are_small = false;
            }
            let Found::Message(copied, after) =
                look_at::<true>(&self.data, &self.header, self.max_message, self.copier, self.place, rest)
            else {
                break;
            };
            put_header(rest, &copied);
            taken.messages += 1;
            taken.bytes += (after.position - self.place.position) as usize;
            self.place = after;
        }
        taken
    }

    /// Does the same as [`poll_records`](Self::poll_records) for a run of small records, which it copies together. The caller knows that
    /// [`RUN`] bytes of records were published. Takes no message in these cases:
    ///
    /// - The first record is not small, or is not the next message.
    /// - `out` is too small.
    /// - The run crosses the end of the ring.
    /// - The run does not end below the frontier, or the writer has possibly overwritten it.
    #[inline(always)]
    fn take_run(&mut self, most: usize, out: &mut [u8]) -> Taken {
        let Self { max_message, copier, place: Place { position, sequence }, .. } = *self;
        let nothing = Taken::default();
        let Some(record) = self.data.run_at(position, RUN) else { return nothing };
        let bytes = commit::peek(&record[0]).record_bytes();
        if bytes > RUN_RECORD {
            return nothing;
        }
        // Records often have the same size. Then these bytes are whole records.
        let run = (RUN - RUN % bytes) as usize;
        let Some(out) = out.get_mut(..run) else { return nothing };
        copier.load_records(&record[..run / WORD as usize], out);
        if !is_in_window(&self.data, &self.header, position, run as u64) {
            return nothing;
        }
        let mut taken = nothing;
        // `stride` is the size of the last record. `expected` is the commit word of the next record, if both records have the same size. No
        // message has the word 0.
        let (mut stride, mut expected) = (GRANULE as usize, Commit::from_word(0));
        while taken.messages < most
            && let Some(record) = out.get(taken.bytes..taken.bytes + stride)
        {
            let word = record.first_chunk().expect("a granule at least");
            let found = Commit::from_word(u64::from_le_bytes(*word));
            // While the size stays the same, the place of the next record depends on no load, so the processor checks several records in
            // parallel.
            if taken.messages == 0 || !found.is_like(expected) {
                let due = sequence.wrapping_add(taken.messages as u64);
                stride = found.record_bytes() as usize;
                if !is_due(found, due, max_message) || taken.bytes + stride > run {
                    break;
                }
                expected = found;
            }
            taken.messages += 1;
            taken.bytes += stride;
            expected = expected.next_alike();
        }
        self.place.position += taken.bytes as u64;
        self.place.sequence = sequence.wrapping_add(taken.messages as u64);
        taken
    }
}
