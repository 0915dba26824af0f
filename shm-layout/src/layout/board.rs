//! A board: the last message of each key. The board follows the ring in the same file.
//!
//! ```text
//! offset of the board = data offset + capacity of the segment
//!
//!        0 .. 4096              header
//!     4096 .. + 8 * entries     index: from a key to its slot
//!          .. + 64 * keys       heads: one line a slot
//!          .. + stride * keys   values: the payload of the slot's message
//! ```
//! The creator decides the sizes once. Other processes then find them in the header, and `Geometry::from_words` checks them.

use super::geometry::{GRANULE, HEADER_BYTES, MAX_MESSAGE, WORD};
use crate::error::OpenError;
use std::ops::Range;
use thiserror::Error;

/// First word of every finished board: "SHMBORD1" in memory order.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SHMBORD1");
/// Layout version of the board: the major version in bits 16 to 31, the minor version in bits 0 to 15.
pub const VERSION: u64 = 1 << 16;
/// Most keys that a board can have.
pub const MAX_KEYS: u64 = 1 << 24;
/// Longest key in bytes.
pub const MAX_KEY_BYTES: u64 = 256;
/// Most bytes of all values together.
pub const MAX_VALUES: u64 = 16 << 30;

/// Words of the header page.
pub const HEADER_WORDS: usize = (HEADER_BYTES / WORD) as usize;
/// The number of words that the creator of the board writes. The last of them is the checksum over the others.
const FIXED_WORDS: usize = 16;
const CHECKSUM: usize = FIXED_WORDS - 1;
/// The bit that is set in the word `remove_tag` if there is a tag that removes keys.
const HAS_TAG: u64 = 1 << 16;

/// Word of the header with the sequence up to which every message is on the board.
pub const THROUGH: usize = 16;
/// Word of the sequence from which on the board is complete. If the newest message of a key is older, the board can lack that message.
pub const SINCE: usize = 32;
/// Word of the number of slots that have ever been used.
pub const HIGH: usize = 33;
/// Word of the number of keys on the board.
pub const LIVE: usize = 34;
/// Word of the number of messages whose key found no room.
pub const REFUSED: usize = 35;
/// Word of the number of messages that were larger than a value can be.
pub const TOO_LARGE: usize = 36;
/// Word of the number of messages that were too short to have a key.
pub const NO_KEY: usize = 37;
/// Word of the highest sequence of a removal that the board has forgotten; 0 if it has forgotten none. The board forgets a key's removal
/// when it gives the key's slot to another key.
pub const FORGOTTEN: usize = 38;
/// Word of the version of the index. The version is odd while entries of the index move.
pub const INDEX_VERSION: usize = 39;

/// Words of a slot's head.
pub const HEAD_WORDS: usize = (GRANULE / WORD) as usize;
/// Word of a head with its version: twice the number of messages that were stored in this slot. While a message is being stored, the
/// version is greater by 1, and so it is odd.
pub const HEAD_VERSION: usize = 0;
/// Word of the sequence of the slot's message.
pub const HEAD_SEQUENCE: usize = 1;
/// Word of the number of messages that this slot had stored before the first message of its present key.
pub const HEAD_BASE: usize = 2;
/// Word of the message's length, flags and tag; see [`Meta`].
pub const HEAD_META: usize = 3;
/// Word of the time of the message.
pub const HEAD_TIME: usize = 4;
/// Word of the sequence of the first message of the present key.
pub const HEAD_BORN: usize = 5;
/// The first of the two words that identify the key, as [`Geometry::identity`] computes them.
pub const HEAD_KEY: usize = 6;

/// The reason why a board cannot have these sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BoardError {
    /// The number of keys is out of range.
    #[error("a board has 1 to {MAX_KEYS} keys, not {keys}")]
    Keys {
        /// The requested number.
        keys: u64,
    },
    /// The bytes of the payload that are the key are out of range.
    #[error("a key has 1 to {MAX_KEY_BYTES} bytes of the payload's first {MAX_MESSAGE}, not {start}..{end}")]
    Key {
        /// First byte.
        start: u64,
        /// The byte after the last.
        end: u64,
    },
    /// The size of a value is out of range. A value is a copy of the payload from the first byte on, and it must include the key.
    #[error(
        "a value has {least} to {MAX_MESSAGE} B, not {value}: it is the payload up to there, key included"
    )]
    Value {
        /// The requested size.
        value: u64,
        /// The end of the key.
        least: u64,
    },
    /// All values together take too much memory.
    #[error("{keys} values of {value} B take more than {MAX_VALUES} B: ask for fewer or smaller ones")]
    Memory {
        /// Number of keys.
        keys: u64,
        /// Bytes of a value.
        value: u64,
    },
}

/// The properties of a board: its sizes and its keys. They are decided when the channel is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Spec {
    /// Number of keys for which there is room.
    pub keys: u64,
    /// Bytes of the largest message that is stored.
    pub value: u64,
    /// First byte of the key in the payload.
    pub key_start: u64,
    /// The byte after the last byte of the key.
    pub key_end: u64,
    /// A message with this tag removes its key.
    pub remove_tag: Option<u16>,
}

impl Spec {
    /// The bytes of the payload that are the key.
    pub fn key(&self) -> Range<usize> {
        self.key_start as usize..self.key_end as usize
    }

    /// Refuses sizes that no board can have.
    ///
    /// # Errors
    /// [`BoardError`] that names the first size out of range.
    pub(crate) fn check(&self) -> Result<(), BoardError> {
        let Self { keys, value, key_start: start, key_end: end, .. } = *self;
        if !(1..=MAX_KEYS).contains(&keys) {
            return Err(BoardError::Keys { keys });
        }
        if start >= end || end - start > MAX_KEY_BYTES || end > MAX_MESSAGE {
            return Err(BoardError::Key { start, end });
        }
        if !(end..=MAX_MESSAGE).contains(&value) {
            return Err(BoardError::Value { value, least: end });
        }
        if keys * value.next_multiple_of(GRANULE) > MAX_VALUES {
            return Err(BoardError::Memory { keys, value });
        }
        Ok(())
    }

    /// Whether a message removes its key. A message does so if its payload ends directly after the key, or if it has the tag
    /// [`remove_tag`](Self::remove_tag).
    #[inline]
    pub fn is_removal(&self, length: usize, tag: u16) -> bool {
        length as u64 == self.key_end || self.remove_tag == Some(tag)
    }
}

/// The sizes of a board, and the offsets of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// The sizes and keys for which the board was made.
    pub spec: Spec,
    /// Entries of the index: a power of two, at least twice the number of keys.
    pub entries: u64,
    /// A random number in the hash of keys. A program that only sends messages does not know this number, so it cannot choose keys whose
    /// hashes collide.
    pub seed: u64,
}

impl Geometry {
    /// The sizes for a board.
    ///
    /// # Errors
    /// [`BoardError`].
    pub fn new(spec: Spec, seed: u64) -> Result<Self, BoardError> {
        spec.check()?;
        Ok(Self { spec, entries: (2 * spec.keys).next_power_of_two(), seed })
    }

    /// Offset of the index.
    pub(crate) const fn index_offset(&self) -> u64 {
        HEADER_BYTES
    }

    /// Offset of the heads, on a cache line.
    pub(crate) const fn heads_offset(&self) -> u64 {
        (self.index_offset() + self.entries * WORD).next_multiple_of(GRANULE)
    }

    /// Offset of the values, on a cache line.
    pub(crate) const fn values_offset(&self) -> u64 {
        self.heads_offset() + self.spec.keys * GRANULE
    }

    /// Bytes from one value to the next: whole cache lines.
    pub const fn stride(&self) -> u64 {
        self.spec.value.next_multiple_of(GRANULE)
    }

    /// Bytes of the whole board.
    pub const fn bytes(&self) -> u64 {
        (self.values_offset() + self.spec.keys * self.stride()).next_multiple_of(HEADER_BYTES)
    }

    /// The immutable words of the header.
    pub(crate) fn to_words(self) -> [u64; FIXED_WORDS] {
        let Spec { keys, value, key_start, key_end, remove_tag } = self.spec;
        let mut words = [0; FIXED_WORDS];
        let tag = remove_tag.map_or(0, |tag| HAS_TAG | u64::from(tag));
        words[..9].copy_from_slice(&[
            MAGIC,
            VERSION,
            keys,
            value,
            key_start,
            key_end,
            tag,
            self.entries,
            self.seed,
        ]);
        words[CHECKSUM] = checksum(&words);
        words
    }

    /// Decodes the first words of a header. Another process wrote them, so they are checked first.
    ///
    /// # Errors
    /// [`OpenError`] that names the first wrong value.
    pub(crate) fn from_words(words: &[u64]) -> Result<Self, OpenError> {
        let damaged = |what| OpenError::Field { what };
        let words: &[u64; FIXED_WORDS] = words.first_chunk().ok_or(damaged("the board's header"))?;
        if words[0] != MAGIC {
            return Err(OpenError::Foreign { found: words[0] });
        }
        if words[1] >> 16 != VERSION >> 16 {
            return Err(damaged("the board has another version: use the same release on both sides"));
        }
        if words[CHECKSUM] != checksum(words) {
            return Err(damaged("the board's checksum"));
        }
        let [_, _, keys, value, key_start, key_end, tag, entries, seed, ..] = *words;
        let remove_tag = (tag & HAS_TAG != 0).then_some(tag as u16);
        let spec = Spec { keys, value, key_start, key_end, remove_tag };
        let geometry = Self::new(spec, seed).map_err(|_| damaged("the board's sizes"))?;
        if geometry.entries != entries {
            return Err(damaged("the board's index"));
        }
        Ok(geometry)
    }

    /// The key of a payload; `None` if the payload is too short to have one.
    #[inline(always)]
    pub fn key_of<'a>(&self, payload: &'a [u8]) -> Option<&'a [u8]> {
        payload.get(self.spec.key())
    }

    /// Two words that identify a key. If a key has at most 16 bytes, the words are the key's bytes, padded with zeros. If a key is longer,
    /// the words are two hashes of its bytes. All keys of a board have the same length.
    #[inline(always)]
    pub fn identity(&self, key: &[u8]) -> [u64; 2] {
        if key.len() <= 8 {
            return [load_word(key), 0];
        }
        if key.len() <= 16 {
            let (first, rest) = key.split_at(8);
            return [load_word(first), load_word(rest)];
        }
        [hash(self.seed, key), hash(!self.seed, key)]
    }

    /// The fingerprint of a key in the index. The search for the key begins at the entry with this number, modulo the number of entries.
    #[inline(always)]
    pub(crate) const fn fingerprint(&self, [first, second]: [u64; 2]) -> u32 {
        (mix(mix(self.seed, first), second) >> 32) as u32
    }
}

/// A hash of the identity of a key, for a reader's private table. Only the reader knows `secret`. A process that writes the segment knows
/// the seed in the segment. If the hash used only this seed, the process could choose keys whose hashes collide.
#[inline(always)]
pub const fn secret_hash(secret: u64, [first, second]: [u64; 2]) -> u64 {
    mix(mix(secret, first), second)
}

fn checksum(words: &[u64; FIXED_WORDS]) -> u64 {
    let crc = words[1..CHECKSUM].iter().fold(0, |crc, w| crc32c::crc32c_append(crc, &w.to_le_bytes()));
    u64::from(crc)
}

/// Up to eight bytes as a little-endian word.
#[inline(always)]
fn load_word(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(word) => u64::from_le_bytes(*word),
        None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// Multiplies two words, and combines both halves of the product into one word.
#[inline(always)]
const fn mix(before: u64, word: u64) -> u64 {
    let product = (before ^ word) as u128 * 0x9e37_79b9_7f4a_7c15;
    product as u64 ^ (product >> 64) as u64
}

fn hash(seed: u64, key: &[u8]) -> u64 {
    key.chunks(8).fold(seed, |before, piece| mix(before, load_word(piece)))
}

const LENGTH: u64 = (1 << 25) - 1;

/// The properties of a slot's message, in one word: length in bits 0 to 24, flags in bits 32 to 36, tag from bit 48 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta(u64);

impl Meta {
    /// The message is a key message: a reader can start at it, without the messages before it.
    pub const KEY: Self = Self(1 << 32);
    /// The message removed its key.
    pub const REMOVED: Self = Self(1 << 33);
    /// The message is larger than a value can be. The value has the message's bytes up to the end of the key.
    pub const TOO_LARGE: Self = Self(1 << 34);
    /// The newest message of the key is unknown, because a publisher that does not update the board published messages.
    pub const UNKNOWN: Self = Self(1 << 35);
    /// The slot has no key.
    pub const EMPTY: Self = Self(1 << 36);

    /// A message of this length and tag.
    #[inline(always)]
    pub const fn new(length: usize, tag: u16) -> Self {
        Self(length as u64 & LENGTH | (tag as u64) << 48)
    }

    /// These properties, also with `flag` if `is_set`.
    #[inline(always)]
    pub const fn with(self, flag: Self, is_set: bool) -> Self {
        if is_set { Self(self.0 | flag.0) } else { self }
    }

    /// Whether a flag is set.
    #[inline(always)]
    pub const fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    /// The payload's length in bytes, as it was published.
    #[inline(always)]
    pub const fn length(self) -> usize {
        (self.0 & LENGTH) as usize
    }

    /// The tag.
    #[inline(always)]
    pub const fn tag(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The word.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The meaning of a word.
    #[inline(always)]
    pub(crate) const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Whether the slot has its whole message.
    #[inline(always)]
    pub const fn is_whole(self) -> bool {
        self.0 & (Self::TOO_LARGE.0 | Self::UNKNOWN.0 | Self::EMPTY.0) == 0
    }
}

/// An entry of the index: the fingerprint of a key, and its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// See `Geometry::fingerprint`.
    pub fingerprint: u32,
    /// Number of the slot.
    pub slot: u32,
}

impl Entry {
    /// Encodes the entry as a word. The result is never 0, because 0 marks a free entry.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        (self.fingerprint as u64) << 32 | (self.slot as u64 + 1)
    }

    /// The meaning of a word; `None` if there is no entry.
    #[inline(always)]
    pub(crate) const fn from_word(word: u64) -> Option<Self> {
        match word as u32 {
            0 => None,
            slot => Some(Self { fingerprint: (word >> 32) as u32, slot: slot - 1 }),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SPEC: Spec = Spec { keys: 10_000, value: 256, key_start: 0, key_end: 8, remove_tag: None };

    #[test]
    fn sizes_round_trip_and_those_of_no_creator_are_refused() {
        for spec in [SPEC, Spec { key_start: 3, key_end: 40, remove_tag: Some(0xffff), value: 40, keys: 1 }] {
            let geometry = Geometry::new(spec, 77).unwrap();
            assert_eq!(Geometry::from_words(&geometry.to_words()).unwrap(), geometry);
            for word in 0..FIXED_WORDS {
                let mut words = geometry.to_words();
                words[word] ^= 1 << 20;
                assert!(Geometry::from_words(&words).is_err(), "word {word}");
            }
        }
        for bad in [
            Spec { keys: 0, ..SPEC },
            Spec { keys: MAX_KEYS + 1, ..SPEC },
            Spec { key_start: 8, ..SPEC },
            Spec { key_start: 9, ..SPEC },
            Spec { key_end: MAX_KEY_BYTES + 1, value: 1 << 10, ..SPEC },
            Spec { key_start: MAX_MESSAGE, key_end: MAX_MESSAGE + 1, value: MAX_MESSAGE + 1, ..SPEC },
            Spec { value: 7, ..SPEC },
            Spec { value: MAX_MESSAGE + 1, ..SPEC },
            Spec { keys: MAX_KEYS, value: 4096, ..SPEC },
            Spec {
                keys: u64::MAX,
                value: u64::MAX,
                key_start: u64::MAX - 1,
                key_end: u64::MAX,
                remove_tag: None,
            },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn parts_begin_on_lines_and_follow_each_other() {
        let geometry = Geometry::new(SPEC, 1).unwrap();
        assert_eq!(geometry.entries, 32_768);
        assert_eq!(geometry.heads_offset(), 4096 + 8 * 32_768);
        assert_eq!(geometry.values_offset(), geometry.heads_offset() + 64 * 10_000);
        assert_eq!(geometry.bytes() % 4096, 0);
        let tiny = Geometry::new(Spec { keys: 1, value: 8, ..SPEC }, 1).unwrap();
        assert_eq!((tiny.entries, tiny.heads_offset() % 64, tiny.stride()), (2, 0, 64));
    }

    #[test]
    fn words_hold_what_they_were_made_of() {
        let meta = Meta::new(256, 0xfedc).with(Meta::REMOVED, true).with(Meta::KEY, false);
        let meta = Meta::from_word(meta.word());
        assert_eq!((meta.length(), meta.tag()), (256, 0xfedc));
        assert!(meta.has(Meta::REMOVED) && !meta.has(Meta::KEY) && meta.is_whole());
        let entry = Entry { fingerprint: u32::MAX, slot: 0 };
        assert_eq!(Entry::from_word(entry.word()), Some(entry));
        assert_eq!(Entry::from_word(0), None);
    }

    /// The words that identify some keys. Programs in other languages must compute the same words. `SPEC.md` quotes these examples.
    #[test]
    fn a_key_is_identified_by_these_words() {
        let geometry = Geometry::new(Spec { keys: 4, key_end: 24, ..SPEC }, 0x0123_4567_89ab_cdef).unwrap();
        assert_eq!(geometry.identity(b"EUR"), [0x0052_5545, 0]);
        assert_eq!(geometry.identity(b"EURUSD-SPOT"), [0x532d_4453_5552_5545, 0x0054_4f50]);
        assert_eq!(geometry.fingerprint([0x0052_5545, 0]), 0xf8ed_909c);
        let long = geometry.identity(b"a key of twenty-four by.");
        assert_eq!(long, [0x3973_25ea_5d22_50b8, 0x1d5f_710c_59e4_aec2]);
    }
}
