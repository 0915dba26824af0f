//! Sizes and offsets of a segment, and their rules.
//!
//! The creator decides the geometry once and writes it into the header. Another process must not trust the header: it calls
//! `Geometry::check` before it uses any offset that is computed from the header.

use thiserror::Error;

/// Bytes of one granule: one cache line. Every record starts on a granule boundary.
pub const GRANULE: u64 = 64;
/// Bytes of one shared word. All shared memory is read and written in whole words.
pub const WORD: u64 = 8;
/// Bytes before the payload of a record: the commit word and the meta word.
pub const RECORD_HEADER: u64 = 16;
/// Bytes of the header page at the start of a segment.
pub const HEADER_BYTES: u64 = 4096;
/// Smallest ring, in bytes.
pub const MIN_CAPACITY: u64 = 64 << 10;
/// Largest ring, in bytes.
pub const MAX_CAPACITY: u64 = 16 << 30;
/// Largest payload of one message in any ring, in bytes.
pub const MAX_MESSAGE: u64 = 16 << 20;
/// Bytes of a huge page on x86-64 and, with 4 KiB pages, on aarch64.
pub const HUGE_PAGE: u64 = 2 << 20;
/// The limit of positions: each position is less than this. With this limit, sums of positions and sizes cannot overflow. A ring with 1 GB
/// a second reaches the limit in 146 years. A larger position means that the ring is damaged.
pub const MAX_COUNT: u64 = 1 << 62;
/// The limit of sequences: each message's sequence is less than this, and the sequence of the next message can be equal to it. With this
/// limit, a sequence fits in 48 bits. A channel that publishes a million messages a second reaches the limit in 8 years. A larger sequence
/// means that the ring is damaged.
pub const MAX_SEQUENCE: u64 = (1 << 48) - 1;
/// The distance in bytes, ahead of the tail, up to which the writer zeroes commit words after it has committed a record.
///
/// The distance is large enough for two things: the cache misses of these stores are over before the writer needs the granule, and readers'
/// prefetchers do not take the granule back. It is small enough that the lines are still in the writer's cache when the writer reaches
/// them.
#[cfg(not(loom))]
pub const AHEAD: u64 = 32 * GRANULE;
/// In the build for the model checker, this distance is one granule, the smallest possible distance. This keeps the model small.
#[cfg(loom)]
pub const AHEAD: u64 = GRANULE;

/// The sizes and offsets of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the data ring; a power of two, [`MIN_CAPACITY`] to [`MAX_CAPACITY`].
    pub capacity: u64,
    /// The step in bytes by which the frontier (the end of the space that the writer can write to) moves; a power of two, at most an eighth
    /// of the capacity.
    pub chunk: u64,
    /// The number of entries of the sequence index; a power of two. There is one entry for each granule, so that the index finds every
    /// message in the ring.
    pub index_entries: u64,
    /// Largest payload in bytes; at most an eighth of the capacity.
    pub max_message: u64,
    /// Byte offset of the data ring in the segment; a multiple of the page size.
    pub data_offset: u64,
}

impl Geometry {
    /// Sizes for a ring of `capacity` bytes. `max_message` defaults to the largest that the ring allows.
    ///
    /// # Errors
    /// [`GeometryError`] when the capacity is not a power of two, or is out of range, or when `max_message` exceeds the limit.
    pub fn new(capacity: u64, max_message: Option<u64>) -> Result<Self, GeometryError> {
        if !capacity.is_power_of_two() || !(MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity) {
            return Err(GeometryError::Capacity { capacity });
        }
        let chunk = (64 << 10).max(capacity / 64).min(capacity / 8);
        let index_entries = capacity / GRANULE;
        let data_offset = HEADER_BYTES + index_entries * WORD;
        let limit = Self::message_limit(capacity);
        let geometry =
            Self { capacity, chunk, index_entries, max_message: max_message.unwrap_or(limit), data_offset };
        geometry.check()?;
        Ok(geometry)
    }

    /// The sizes of a ring that is too small for real use. A model checker can reach every state of such a ring.
    #[cfg(loom)]
    pub(crate) fn tiny(granules: u64) -> Self {
        let capacity = granules * GRANULE;
        Self {
            capacity,
            chunk: GRANULE,
            index_entries: granules,
            max_message: 2 * GRANULE - RECORD_HEADER,
            data_offset: HEADER_BYTES + granules * WORD,
        }
    }

    /// The largest payload that a ring of `capacity` bytes allows: an eighth of the capacity, at most [`MAX_MESSAGE`].
    pub(crate) const fn message_limit(capacity: u64) -> u64 {
        if capacity / 8 < MAX_MESSAGE { capacity / 8 } else { MAX_MESSAGE }
    }

    /// Bytes of the whole segment: header page, index and data. A size of at least one huge page is rounded up to whole huge pages, because
    /// kernels align a map to huge pages only if it has such a size.
    pub const fn segment_bytes(&self) -> u64 {
        self.bytes_with(0)
    }

    /// The offset after the ring. If the segment has a board, the board begins there.
    pub const fn end(&self) -> u64 {
        self.data_offset + self.capacity
    }

    /// Bytes of a whole segment with a board of `board` bytes after its ring.
    pub const fn bytes_with(&self, board: u64) -> u64 {
        let bytes = self.end() + board;
        if bytes < HUGE_PAGE { bytes } else { bytes.next_multiple_of(HUGE_PAGE) }
    }

    /// Checks the sizes. With sizes that it accepts, no computed value can overflow or leave the map. It accepts all sizes that
    /// [`Geometry::new`] makes.
    ///
    /// # Errors
    /// [`GeometryError`] that names the first field that is out of range.
    pub(crate) fn check(&self) -> Result<(), GeometryError> {
        let Self { capacity, chunk, index_entries, max_message, data_offset } = *self;
        if !capacity.is_power_of_two() || !(MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity) {
            return Err(GeometryError::Capacity { capacity });
        }
        if !chunk.is_power_of_two() || !(GRANULE..=capacity / 8).contains(&chunk) {
            return Err(GeometryError::Chunk { chunk, capacity });
        }
        if index_entries != capacity / GRANULE {
            return Err(GeometryError::Index { index_entries, capacity });
        }
        let limit = Self::message_limit(capacity);
        if max_message > limit {
            return Err(GeometryError::MaxMessage { max_message, limit, capacity });
        }
        if data_offset != HEADER_BYTES + index_entries * WORD {
            return Err(GeometryError::DataOffset { data_offset });
        }
        Ok(())
    }
}

/// Bytes that a record with `payload` bytes takes in the ring: header and payload, rounded up to granules.
///
/// `payload` must be at most [`MAX_MESSAGE`] plus a granule, so that the sum cannot overflow.
pub const fn record_bytes(payload: u64) -> u64 {
    (RECORD_HEADER + payload + GRANULE - 1) & !(GRANULE - 1)
}

/// A size that is out of its range.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// The capacity is not a power of two, or is out of range.
    #[error(
        "capacity {capacity} B: must be a power of two from {MIN_CAPACITY} B (64 KiB) to {MAX_CAPACITY} B (16 GiB)"
    )]
    Capacity {
        /// The capacity that was requested or found.
        capacity: u64,
    },
    /// The chunk is not a power of two in the range from a granule to an eighth of the ring.
    #[error("frontier chunk of {chunk} B does not fit a ring of {capacity} B")]
    Chunk {
        /// The chunk found.
        chunk: u64,
        /// The capacity of the ring.
        capacity: u64,
    },
    /// The index does not have one entry for each granule.
    #[error("{index_entries} index entries do not fit a ring of {capacity} B (one for each 64 B)")]
    Index {
        /// The entries found.
        index_entries: u64,
        /// The capacity of the ring.
        capacity: u64,
    },
    /// The largest message is larger than the ring allows.
    #[error(
        "messages of {max_message} B do not fit a ring of {capacity} B (at most {limit} B): raise the capacity"
    )]
    MaxMessage {
        /// The size that was requested or found.
        max_message: u64,
        /// The largest that fits.
        limit: u64,
        /// The capacity of the ring.
        capacity: u64,
    },
    /// The data does not begin right after the index.
    #[error("data offset {data_offset} is not where this layout puts it")]
    DataOffset {
        /// The offset found.
        data_offset: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capacity_in_range_makes_a_geometry_that_checks() {
        let mut capacity = MIN_CAPACITY;
        while capacity <= MAX_CAPACITY {
            let g = Geometry::new(capacity, None).unwrap();
            assert_eq!(g.data_offset % 4096, 0, "the ring starts on a page");
            // A reader at the tail must never be overtaken by the very next record.
            assert!(record_bytes(g.max_message) + AHEAD + g.chunk < capacity / 2);
            capacity *= 2;
        }
    }

    #[test]
    fn capacities_out_of_range_are_refused() {
        for capacity in [0, 1, 4096, MIN_CAPACITY / 2, MIN_CAPACITY + 1, 3 << 20, MAX_CAPACITY * 2, u64::MAX]
        {
            assert_eq!(Geometry::new(capacity, None), Err(GeometryError::Capacity { capacity }));
        }
        let limit = MIN_CAPACITY / 8;
        assert!(Geometry::new(MIN_CAPACITY, Some(limit)).is_ok());
        assert!(Geometry::new(MIN_CAPACITY, Some(limit + 1)).is_err());
    }

    #[test]
    fn a_record_takes_whole_granules() {
        for (payload, bytes) in [(0, 64), (48, 64), (49, 128), (112, 128), (113, 192), (1024, 1088)] {
            assert_eq!(record_bytes(payload), bytes, "payload {payload}");
        }
    }
}
