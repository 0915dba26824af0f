//! The pages of gates. A gate is for one reader: the publisher waits for this reader, up to a time limit.
//!
//! Each gate has a **gate page**, a file. The channel's owner makes the file, and one reader at a time locks the file and writes to it:
//! ```text
//! word 0  magic (stored last)      word 16  position that the reader has finished with
//!      1  version                       17  check of the position
//!      2  length of the name            18  sequence that the reader expects next; 2^64 - 1 if it has no place
//!      3  name of the gate              19  process id
//! ```
//! A position is valid only with the right check word, which is computed from the position and the identity of the segment. So a position
//! in another segment is invalid, and so is a mixture of two positions. A mixture is possible, because a publisher reads the page by a
//! system call, and no standard says that a system call copies whole words.
//!
//! The publisher writes its **figures** about all gates of a channel into one more file, for tools:
//! ```text
//! word 0  magic (stored last)      words 16 + 64 n ..  figures of gate n
//!      1  version                       0  length of the name       13  times held up
//!      2  number of gates               1  name                     14  longest wait, ns
//!      3  process id                    5  lag, bytes               15  all waits, ns
//!      4  segment uuid (two words)      6  wait, ns                 16  times dropped
//!                                       7  then: 0 drop, 1 refuse   17  messages refused
//!                                       8  state                    18  looks
//!                                       9  position, as known       19  impossible claims
//!                                      10  tail at the last look    20  refused tries
//!                                      11  holder's process id      32..  histogram of waits
//! ```
//! Every word is a claim of the process that wrote it: check it before use.

use super::geometry::WORD;

/// First word of every finished gate page: "SHMGATE1" in memory order.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SHMGATE1");
/// Layout version of both kinds of pages.
pub const VERSION: u64 = 1;
/// Longest name of a gate, in bytes.
pub const NAME_BYTES: usize = 31;
/// Words of a name, without its length.
pub const NAME_WORDS: usize = 4;
/// Word of the length of the name in bytes; the name follows.
pub const NAME: usize = 2;
/// The word of a position in the ring, in bytes since the ring began. The reader no longer needs the records before this position.
pub const POSITION: usize = 16;
/// Word of the check of the position.
pub const CHECK: usize = 17;
/// Word of the sequence that the reader expects next, for tools; [`NO_SEQUENCE`] while the reader has no place in the ring.
pub const SEQUENCE: usize = 18;
/// The sequence which says that the reader has no place in any ring. No message has this sequence.
///
/// The publisher of a new ring needs this value, because it cannot interpret the check word without the identity of the previous ring.
pub const NO_SEQUENCE: u64 = u64::MAX;
/// Word of the reader's process id, for tools and errors.
pub const PID: usize = 19;
/// Words of a gate page.
pub const WORDS: usize = if cfg!(loom) { PID + 1 } else { 512 };
/// Bytes of a gate page.
pub const BYTES: u64 = WORDS as u64 * WORD;

/// The greatest number of gates of a channel.
pub const MAX_GATES: usize = 15;

/// First word of every finished page of figures: "SHMGFIG1" in memory order.
pub const FIGURES_MAGIC: u64 = u64::from_le_bytes(*b"SHMGFIG1");
/// Word of the number of gates.
pub const COUNT: usize = 2;
/// Word of the publisher's process id.
pub const PUBLISHER: usize = 3;
/// The first of the two words with the identity of the segment to which the publisher writes.
pub const SEGMENT: usize = 4;
/// First word of the first gate's figures.
pub const FIRST: usize = 16;
/// Words of one gate's figures.
pub const FIGURE_WORDS: usize = 64;
/// Words of the page of figures.
pub const FIGURES_WORDS: usize = FIRST + MAX_GATES * FIGURE_WORDS + 48;
/// Bytes of the page of figures.
pub const FIGURES_BYTES: u64 = FIGURES_WORDS as u64 * WORD;
/// Buckets of the histogram of waits.
pub const BUCKETS: usize = 32;

const _: () = assert!(FIGURES_BYTES == 8192, "two pages");

/// The bucket of a wait. Bucket `n` counts the waits from 2^n to 2^(n+1) - 1 ns. Bucket 0 also counts waits of 0 ns. The last bucket has no
/// upper end.
pub const fn bucket(wait_ns: u64) -> usize {
    let bucket = if wait_ns == 0 { 0 } else { wait_ns.ilog2() as usize };
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

/// The largest wait in nanoseconds that bucket `bucket` counts.
pub const fn bucket_limit_ns(bucket: usize) -> u64 {
    (1 << (bucket + 1)) - 1
}

/// Returns the check word of a position: a product that also depends on the identity of the segment.
///
/// A torn read can mix the bytes of two positions, and of their check words. The mixed position is then rejected, unless the mixed check
/// word happens to be the right one for it.
#[inline(always)]
pub const fn check(position: u64, [high, low]: [u64; 2]) -> u64 {
    (position ^ low).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ high
}

/// The meaning of the position and the check word in a gate's page, for one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Said {
    /// The words give no position. The reader is between two stores, reads another segment, or has not begun.
    #[default]
    Nothing,
    /// The reader has no place in the segment: it reads the journal, or must first report a loss.
    NoPlace,
    /// The reader no longer needs the records before this position in the ring.
    Place(u64),
}

impl Said {
    /// Returns the position, if the page has one.
    pub const fn place(self) -> Option<u64> {
        match self {
            Self::Place(position) => Some(position),
            Self::Nothing | Self::NoPlace => None,
        }
    }
}

/// Returns the check word which says that the reader has no place in the segment. `position` is the position that the page has beside the
/// check word.
#[inline(always)]
pub(crate) const fn no_check(position: u64, segment: [u64; 2]) -> u64 {
    !check(position, segment)
}

/// Returns the meaning of a position and the check word `found` in a gate's page, for the segment with this identity.
#[inline]
pub const fn claim(position: u64, found: u64, segment: [u64; 2]) -> Said {
    let check = check(position, segment);
    if found == check {
        Said::Place(position)
    } else if found == !check {
        Said::NoPlace
    } else {
        Said::Nothing
    }
}

/// Encodes a name as words. The first word is the name's length.
///
/// # Panics
/// When the name is longer than [`NAME_BYTES`].
pub(crate) fn name_words(name: &str) -> [u64; 1 + NAME_WORDS] {
    assert!(name.len() <= NAME_BYTES, "a gate's name is checked before it is written");
    let mut bytes = [0; NAME_WORDS * WORD as usize];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    let mut words = [name.len() as u64; 1 + NAME_WORDS];
    for (word, bytes) in words[1..].iter_mut().zip(bytes.chunks_exact(WORD as usize)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    words
}

/// Decodes a name from words. The first word is the name's length. Returns `None` if the words are not a name.
pub(crate) fn name_of(words: &[u64]) -> Option<String> {
    let length = usize::try_from(*words.first()?).ok().filter(|length| *length <= NAME_BYTES)?;
    let bytes: Vec<u8> = words.get(1..=NAME_WORDS)?.iter().flat_map(|word| word.to_le_bytes()).collect();
    String::from_utf8(bytes[..length].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixture_of_two_positions_does_not_count() {
        let segment = [0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321];
        let pairs =
            [(0, 64), (0xff, 0x100), (0xffc0, 0x1_0000), (0xffff_ffc0, 0x1_0000_0000), (1 << 40, 1 << 41)];
        for (before, after) in pairs {
            let words = |position| [position, check(position, segment)];
            let [old, new] = [words(before), words(after)];
            // Each of the 16 bytes can come from the old pair or from the new pair.
            for torn in 0..1u32 << 16 {
                let mut mixed = [0; 2];
                for (at, word) in mixed.iter_mut().enumerate() {
                    for byte in 0..8 {
                        let from = if torn & 1 << (8 * at + byte) == 0 { old[at] } else { new[at] };
                        *word |= from & 0xff << (8 * byte);
                    }
                }
                let claimed = claim(mixed[0], mixed[1], segment);
                let is_one = matches!(claimed, Said::Place(p) if p == before || p == after);
                assert!(is_one || claimed == Said::Nothing, "{before} {after} {torn:x}: {claimed:?}");
            }
            assert_eq!(claim(before, old[1], segment), Said::Place(before));
            assert_eq!(claim(before, no_check(before, segment), segment), Said::NoPlace);
            assert_eq!(claim(after, no_check(before, segment), segment), Said::Nothing, "between two stores");
            for said in [old[1], no_check(before, segment)] {
                assert_eq!(claim(before, said, [1, 2]), Said::Nothing, "of another segment");
            }
        }
    }

    #[test]
    fn names_come_back_and_impossible_ones_do_not() {
        for name in ["", "risk", &"x".repeat(NAME_BYTES)] {
            assert_eq!(name_of(&name_words(name)).as_deref(), Some(name));
        }
        assert_eq!(name_of(&[32, 0, 0, 0, 0]), None);
        assert_eq!(name_of(&[u64::MAX, 0, 0, 0, 0]), None);
        assert_eq!(name_of(&[1, 0xff, 0, 0, 0]), None, "not text");
        assert_eq!(name_of(&[1]), None);
        assert_eq!(name_of(&[]), None);
    }

    #[test]
    fn every_wait_has_a_bucket() {
        for (wait_ns, expected) in [(0, 0), (1, 0), (2, 1), (1023, 9), (1024, 10), (u64::MAX, BUCKETS - 1)] {
            assert_eq!(bucket(wait_ns), expected);
        }
        for b in 0..BUCKETS - 1 {
            assert_eq!((bucket(bucket_limit_ns(b)), bucket(bucket_limit_ns(b) + 1)), (b, b + 1));
        }
    }
}
