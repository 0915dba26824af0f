//! The rig's gate, which makes a publisher wait for its slowest receiver.
//!
//! A publisher that sends without pauses and never waits loses messages in its ring. In real programs, the work that produces messages
//! limits the rate. In the rig, the gate limits the rate. Each receiver has a cache line in shared memory. In each lap of the ring, the
//! receiver writes this line 16 times, and the publisher reads it 16 times.

use shmcast_layout::mem::Map;
use shmcast_layout::ring::cells::Cells;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

/// The distance between the counts of two receivers, in words. The distance is two cache lines, because processors prefetch lines in pairs.
const STRIDE: usize = 16;

/// One end of a gate: the publisher's end, or a receiver's end.
#[derive(Debug)]
pub struct Gate {
    cells: Cells,
    receivers: usize,
    /// The greatest number of messages that can be on their way.
    window: u64,
    /// The next sequence at which the publisher reads the gate, or the receiver reports.
    next: u64,
    retries: u64,
}

impl Gate {
    /// Opens a gate in the file at `path`, for `receivers` receivers and a ring of `messages` messages. Creates the file if it does not
    /// exist.
    ///
    /// # Errors
    /// The system's error, if the file cannot be made or mapped.
    pub fn open(path: &Path, receivers: usize, messages: u64) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let words = (receivers * STRIDE) as u64;
        file.set_len(words * 8)?;
        let cells = Map::read_write(&file, words * 8)?.cells(0, words);
        Ok(Self { cells, receivers, window: messages / 2, next: 1, retries: 0 })
    }

    fn step(&self) -> u64 {
        (self.window / 8).max(1)
    }

    /// For the publisher: waits until it can send `sequence` without overtaking a receiver.
    #[inline]
    pub fn wait(&mut self, sequence: u64) {
        if sequence >= self.next {
            self.wait_slowly(sequence);
        }
    }

    /// For the publisher: returns whether it can send `sequence` without overtaking a receiver. Does not wait.
    #[inline]
    pub fn lets(&mut self, sequence: u64) -> bool {
        sequence < self.next || self.looks(sequence)
    }

    #[cold]
    fn looks(&mut self, sequence: u64) -> bool {
        let next = sequence + self.step();
        let consumed = (0..self.receivers).map(|i| self.cells[i * STRIDE].load(Ordering::Acquire)).min();
        let is_open = next <= consumed.unwrap_or(u64::MAX).saturating_add(self.window);
        if is_open {
            self.next = next;
        } else {
            self.retries += 1;
        }
        is_open
    }

    /// Returns the next sequence at which this end must use the gate.
    pub fn due(&self) -> u64 {
        self.next
    }

    /// Returns how often the publisher read the gate and could not send.
    pub fn retries(&self) -> u64 {
        self.retries
    }

    #[cold]
    fn wait_slowly(&mut self, sequence: u64) {
        for again in 1_u64.. {
            if self.lets(sequence) {
                return;
            }
            if again.is_multiple_of(1 << 14) {
                std::thread::yield_now(); // the slowest receiver may be waiting for this CPU
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Returns the sequence that receiver `me` reported last. The receiver has all messages up to this sequence.
    #[cfg(test)]
    pub fn passed(&self, me: usize) -> u64 {
        self.cells[me * STRIDE].load(Ordering::Acquire)
    }

    /// For a receiver: reports that receiver `me` has all messages up to `sequence`.
    #[inline]
    pub fn pass(&mut self, me: usize, sequence: u64) {
        if sequence >= self.next {
            self.next = sequence + self.step();
            self.cells[me * STRIDE].store(sequence, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_publisher_waits_for_the_slowest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gate");
        let mut publisher = Gate::open(&path, 2, 64).unwrap();
        let mut receivers = [Gate::open(&path, 2, 64).unwrap(), Gate::open(&path, 2, 64).unwrap()];
        for sequence in 1..=28 {
            publisher.wait(sequence);
        }
        assert_eq!(publisher.retries(), 0);
        let waiting = std::thread::spawn(move || {
            publisher.wait(40);
            publisher.retries()
        });
        (1..=40).for_each(|s| receivers[0].pass(0, s));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waiting.is_finished());
        (1..=40).for_each(|s| receivers[1].pass(1, s));
        assert!(waiting.join().unwrap() > 0);
    }
}
