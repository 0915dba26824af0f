//! The ideal ring: the least work that one writer and many readers can do with shared memory. Other transports are compared with this
//! bound.
//!
//! - Each message has a slot of fixed size, with a sequence word at its front.
//! - The ring has no messages of variable length, no lapping check, no bounds check, no index and no takeover.
//! - A reader that falls a ring behind reads garbage and hangs, so no program should use this ring.
//!
//! The ideal ring copies payloads by shmcast's own routine, so that it differs from shmcast's ring only in the protocol.
//!
//! ```text
//! slot, a multiple of 64 bytes:   | sequence word | payload words ... |
//! ```

use shmcast_layout::mem::{Map, Preparation, prepare};
use shmcast_layout::ring::cells::Cells;
use shmcast_layout::ring::copy::{self, Copier};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The number of words in a cache line.
const LINE_WORDS: usize = 8;
/// The number of payload bytes in a message's first cache line. The line also holds the sequence word.
const INLINE: usize = (LINE_WORDS - 1) * 8;

/// Sizes of an ideal ring. Both ends must use the same sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The number of payload bytes of every message.
    pub size: usize,
    /// The number of slots, which is a power of two.
    pub slots: usize,
}

impl Shape {
    /// Returns the shape of a ring of about `bytes` bytes, for payloads of `size` bytes.
    pub fn of_bytes(size: usize, bytes: usize) -> Self {
        let slots = bytes / (Self { size, slots: 1 }.slot_words() * 8);
        Self { size, slots: (slots.max(2) + 1).next_power_of_two() / 2 }
    }

    fn slot_words(&self) -> usize {
        (1 + self.size.div_ceil(8)).next_multiple_of(LINE_WORDS)
    }

    fn words(&self) -> usize {
        self.slots * self.slot_words()
    }
}

/// The memory of a ring, and the position of one end.
#[derive(Debug)]
struct End {
    cells: Cells,
    shape: Shape,
    copier: Copier,
    /// The sequence of the next message.
    next: u64,
}

impl End {
    fn new(map: &Map, shape: Shape) -> Self {
        let cells = map.cells(0, shape.words() as u64);
        Self { cells, shape, copier: Copier::of_this_processor(), next: 1 }
    }

    /// Returns the slot of the next message.
    #[inline(always)]
    fn slot(&self) -> &[AtomicU64] {
        let words = self.shape.slot_words();
        let at = (self.next as usize & (self.shape.slots - 1)) * words;
        &self.cells[at..at + words]
    }
}

/// The writing end.
#[derive(Debug)]
pub struct IdealWriter(End);

impl IdealWriter {
    /// Makes a ring in a new file at `path`.
    ///
    /// # Errors
    /// The system's error, if the file cannot be made or mapped.
    pub fn create(path: &Path, shape: Shape) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        let bytes = shape.words() as u64 * 8;
        file.set_len(bytes)?;
        let map = Map::read_write(&file, bytes)?;
        let _ = prepare(&map, Preparation::FULL); // a refused step makes the ring slower, not wrong
        Ok(Self(End::new(&map, shape)))
    }

    /// Publishes one message of exactly the shape's size.
    ///
    /// # Panics
    /// When the payload has another size.
    #[inline]
    pub fn publish(&mut self, payload: &[u8]) {
        let Self(end) = self;
        assert_eq!(payload.len(), end.shape.size);
        let slot = end.slot();
        // As in shmcast's ring, the cache line that readers poll is written last and in one burst.
        let [sequence, inline @ ..] = slot.first_chunk::<LINE_WORDS>().expect("a slot is whole lines");
        let first = end.copier.store_rest::<INLINE>(&slot[1..], payload);
        copy::store_inline(inline, first);
        sequence.store(end.next, Ordering::Release);
        end.next += 1;
    }
}

/// The reading end.
#[derive(Debug)]
pub struct IdealReader(End);

impl IdealReader {
    /// Attaches to the ring at `path` and waits for its first message.
    ///
    /// # Errors
    /// The system's error, if the file cannot be opened or mapped.
    pub fn open(path: &Path, shape: Shape) -> io::Result<Self> {
        let map = Map::read_only(&File::open(path)?, shape.words() as u64 * 8)?;
        let _ = prepare(&map, Preparation { prefault: true, ..Preparation::NONE });
        Ok(Self(End::new(&map, shape)))
    }

    /// Copies the next message to the start of `out`. Returns false if there is no next message yet.
    ///
    /// # Panics
    /// When `out` is smaller than the shape's size.
    #[inline]
    pub fn poll(&mut self, out: &mut [u8]) -> bool {
        let Self(end) = self;
        let slot = end.slot();
        if slot[0].load(Ordering::Relaxed) != end.next {
            return false;
        }
        fence(Ordering::Acquire);
        end.copier.load(&slot[1..], &mut out[..end.shape.size]);
        end.next += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_across_the_wrap() {
        let dir = tempfile::tempdir().unwrap();
        let shape = Shape::of_bytes(100, 4096);
        assert_eq!((shape.slots, shape.slot_words()), (32, 16));
        let mut writer = IdealWriter::create(&dir.path().join("ring"), shape).unwrap();
        let mut reader = IdealReader::open(&dir.path().join("ring"), shape).unwrap();
        let mut out = [0; 100];
        assert!(!reader.poll(&mut out));
        for i in 0..100u8 {
            writer.publish(&[i; 100]);
            assert!(reader.poll(&mut out));
            assert_eq!(out, [i; 100]);
        }
        assert!(!reader.poll(&mut out));
    }
}
