//! The memory to which a subscriber copies messages.

use crate::publisher::TOUCHED_BYTES;
use shmcast_layout::layout::geometry::{RECORD_HEADER, record_bytes};
use shmcast_layout::layout::header::Header;
use shmcast_layout::ring::reader::RUN;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The memory to which records are copied. Payloads begin 16 bytes after the start of a cache line, so that programs
/// can read messages of fixed layout in place.
#[derive(Debug, Default)]
pub(super) struct Buffer(Box<[Line]>);

#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Buffer {
    /// Returns the size of the buffer in bytes. It has room for the largest record, and for a run of small records that are copied
    /// together. Records are copied as whole cache lines.
    pub(super) fn room_for(header: &Header) -> usize {
        record_bytes(header.geometry.max_message).max(RUN) as usize
    }

    /// Makes a buffer of this many bytes.
    pub(super) fn with_room(bytes: usize) -> Self {
        let lines = bytes / size_of::<Line>();
        let mut lines = <[Line]>::new_box_zeroed_with_elems(lines).expect("room for one message");
        // The kernel provides zeroed pages only at their first use. The next line touches the pages that messages of common sizes
        // need.
        lines.iter_mut().take(TOUCHED_BYTES / size_of::<Line>()).for_each(|line| line.0[0] = 0xff);
        Self(lines)
    }

    /// Makes room for a payload that is larger than any in the ring, such as one from the journal.
    pub(super) fn make_room(&mut self, payload: usize) {
        let needed = record_bytes(payload as u64) as usize;
        if needed > self.bytes() {
            *self = Self::with_room(needed);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    #[inline]
    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    #[inline]
    pub(super) fn payload(&self) -> &[u8] {
        &self.as_bytes()[RECORD_HEADER as usize..]
    }

    #[inline]
    pub(super) fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.records()[RECORD_HEADER as usize..]
    }

    #[inline]
    pub(super) fn records(&mut self) -> &mut [u8] {
        self.0.as_mut_bytes()
    }
}
