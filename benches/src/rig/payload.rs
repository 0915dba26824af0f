//! Messages that a receiver can check. Each message has a number, the time of its send, and a body that the number determines. So a mixture
//! of two messages does not pass the check.
//!
//! ```text
//! word 0 sequence | word 1 ticks at the send | word 2 both of them mixed | body: one of 13 patterns, by sequence
//! ```
//!
//! Bodies are made once, before the round, because it takes longer to make a body than to send it through a ring. Consecutive messages
//! differ in every word. No number of slots is a multiple of 13, so each slot gets all bodies in turn.

use std::ops::Range;

/// The head of a message: its number, its time stamp, and a check word that is computed from both.
type Head = [[u8; 8]; 3];
/// The size of the smallest payload: a head without a body.
pub const MIN_SIZE: usize = size_of::<Head>();
/// The number of different bodies.
const BODIES: usize = 13;
/// The size of a cache line in bytes.
const LINE: usize = 64;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(sequence: u64, sent: u64) -> u64 {
    (sequence ^ sent.rotate_left(32)).wrapping_mul(STEP)
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// Whether two bodies are the same. Short bodies are compared without a call into the C library, because the call would take longer than
/// some rings need for the whole message.
#[inline]
fn is_same(a: &[u8], b: &[u8]) -> bool {
    if a.len() > 64 || !a.len().is_multiple_of(8) {
        return a == b;
    }
    a.chunks_exact(8).zip(b.chunks_exact(8)).all(|(a, b)| word(a) == word(b))
}

/// Makes memory in which `bytes` zeros begin at the start of a cache line. Returns the memory, and the index of this start.
pub(crate) fn zeros_from_a_line(bytes: usize) -> (Vec<u8>, usize) {
    let zeros = vec![0; bytes + LINE];
    let first = zeros.as_ptr().align_offset(LINE);
    (zeros, first)
}

/// Prepared messages of one size. They are contiguous, and each begins at the start of a cache line. Their memory is a separate block, so
/// that its position does not depend on the program's heap.
#[derive(Debug)]
pub struct Payloads {
    bytes: Vec<u8>,
    /// The index of the first message in `bytes`, and the distance from one message to the next.
    first: usize,
    stride: usize,
    size: usize,
}

impl Payloads {
    /// Makes all bodies for messages of `size` bytes.
    ///
    /// # Panics
    /// When the size is below [`MIN_SIZE`]. The program checks sizes before this call.
    pub fn new(size: usize) -> Self {
        assert!(size >= MIN_SIZE, "{size} B cannot carry number, stamp and proof");
        let stride = size.next_multiple_of(LINE);
        let (mut bytes, first) = zeros_from_a_line(BODIES * stride);
        let byte =
            |body: usize, i: usize| (i as u64 / 8 + 1).wrapping_mul(STEP).to_le_bytes()[i % 8] ^ body as u8;
        for (body, message) in bytes[first..].chunks_exact_mut(stride).take(BODIES).enumerate() {
            message.iter_mut().enumerate().for_each(|(i, to)| *to = byte(body, i));
        }
        Self { bytes, first, stride, size }
    }

    /// Returns the range in `bytes` of the message for `sequence`.
    #[inline]
    fn place(&self, sequence: u64) -> Range<usize> {
        let at = self.first + (sequence % BODIES as u64) as usize * self.stride;
        at..at + self.size
    }

    /// Returns the bytes of message number `sequence`, which contain this number and the send time.
    #[inline]
    pub fn stamped(&mut self, sequence: u64, sent: u64) -> &[u8] {
        let place = self.place(sequence);
        let message = &mut self.bytes[place];
        let (words, _) = message.as_chunks_mut();
        let head: &mut Head = words.first_chunk_mut().expect("no message is smaller");
        *head = [sequence, sent, mix(sequence, sent)].map(u64::to_le_bytes);
        message
    }

    /// Returns the sequence and the send time of a message, or `None` if any byte of the message is wrong.
    #[inline(always)]
    pub fn check(&self, payload: &[u8]) -> Option<(u64, u64)> {
        if payload.len() != self.size {
            return None;
        }
        let head: &Head = payload.as_chunks().0.first_chunk()?;
        let [sequence, sent, proof] = head.map(u64::from_le_bytes);
        let right = proof == mix(sequence, sent)
            && is_same(&payload[MIN_SIZE..], &self.bytes[self.place(sequence)][MIN_SIZE..]);
        right.then_some((sequence, sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_byte_anywhere_is_seen() {
        for size in [24, 25, 32, 100, 256] {
            let mut payloads = Payloads::new(size);
            let mut message = payloads.stamped(41, 12345).to_vec();
            assert_eq!(payloads.check(&message), Some((41, 12345)));
            assert_eq!(payloads.check(&message[1..]), None);
            for i in 0..size {
                message[i] ^= 0x10;
                assert_eq!(payloads.check(&message), None, "byte {i} of {size}");
                message[i] ^= 0x10;
            }
        }
    }

    #[test]
    fn messages_torn_at_any_word_are_seen() {
        let mut payloads = Payloads::new(256);
        for later in [8, 15, 7 + 4096, 7 + 1024 * 3] {
            let a = payloads.stamped(7, 100).to_vec();
            let b = payloads.stamped(later, 200).to_vec();
            for cut in (8..256).step_by(8) {
                let torn = [&a[..cut], &b[cut..]].concat();
                assert_eq!(payloads.check(&torn), None, "7 and {later}, cut at {cut}");
            }
        }
    }
}
