//! The two words before each payload, and the bodies of control records.
//!
//! ```text
//!          63                      32 31    25 24                       0
//! w0 COMMIT | sequence, low 32 bits  | flags  | payload length, bytes   |   0 = not committed
//!          63          48 47                                            0
//! w1 META   | user tag   | publish time, low 48 bits of the clock's ticks |
//! ```
//! Length takes 25 bits because the largest payload is exactly 2^24 bytes. Time takes 48 bits, so that a reader can compute an age of more
//! than a day even if a channel is slow: 2^48 ticks at 3 GHz are 26 hours. A time of 32 bits would wrap after 1.4 s without a message.

use super::geometry::{GRANULE, MAX_SEQUENCE, RECORD_HEADER, record_bytes};

/// The number of bits of the publish time in a record.
pub const TIME_BITS: u32 = 48;
/// The value of the time field of a record that has no time. A clock has this value during at most one tick in 26 hours. If a record gets
/// this value by chance, it counts as a record without a time.
pub const NO_TIME: u64 = 0;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;
const LENGTH_BITS: u32 = 25;
const LENGTH_MASK: u64 = (1 << LENGTH_BITS) - 1;

/// The kind of a record: bits 25 to 31 of its commit word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// A bit that is set in every committed record, so that no commit word is zero.
    pub const VALID: Self = Self(1);
    /// Filler up to the end of the ring. It has no sequence of its own.
    pub const PAD: Self = Self(1 << 1);
    /// A message, such as a snapshot, from which a reader can start without the messages before it.
    pub const KEY: Self = Self(1 << 2);
    /// A [`ControlRecord`]. It has no sequence of its own.
    pub const CONTROL: Self = Self(1 << 3);

    /// The flags of both values.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every bit of `other` is set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A commit word, with methods for its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit(u64);

impl Commit {
    /// Makes the word for a record of `length` payload bytes with `sequence`. Pads and control records have the sequence of the next
    /// message.
    #[inline]
    pub const fn new(sequence: u64, flags: Flags, length: u64) -> Self {
        debug_assert!(length <= LENGTH_MASK);
        Self(sequence << 32 | ((flags.0 | Flags::VALID.0) as u64) << LENGTH_BITS | length)
    }

    /// A word as found in shared memory.
    #[inline]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The word as it is stored.
    #[inline]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The record's flags.
    #[inline]
    pub const fn flags(self) -> Flags {
        Flags((self.0 >> LENGTH_BITS) as u8 & 0x7f)
    }

    /// The number of payload bytes. For a pad, the number of bytes after its first two words.
    #[inline]
    pub const fn length(self) -> u64 {
        self.0 & LENGTH_MASK
    }

    /// Low half of the sequence.
    #[inline]
    pub const fn sequence_low(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Bytes the record takes in the ring.
    #[inline]
    pub const fn record_bytes(self) -> u64 {
        record_bytes(self.length())
    }

    /// Whether this is the commit word of the message with `sequence`. One comparison covers all bits except the key flag and the length.
    #[inline]
    pub(crate) const fn is_message(self, sequence: u64) -> bool {
        let kind = Flags::VALID.and(Flags::PAD).and(Flags::CONTROL);
        let decides = (u32::MAX as u64) << 32 | (kind.0 as u64) << LENGTH_BITS;
        (self.0 ^ Self::new(sequence, Flags::VALID, 0).0) & decides == 0
    }

    /// Whether this word equals `expected`, if the key flag is ignored.
    #[inline]
    pub(crate) const fn is_like(self, expected: Self) -> bool {
        (self.0 ^ expected.0) & !((Flags::KEY.0 as u64) << LENGTH_BITS) == 0
    }

    /// Returns the commit word of the next sequence, with the length and flags of this word.
    #[inline]
    pub(crate) const fn next_alike(self) -> Self {
        Self(self.0.wrapping_add(1 << 32))
    }

    /// Whether this word can be the commit word of the next record, which begins `to_end` bytes before the end of the ring. If it cannot,
    /// the reader was lapped, or the ring is corrupt.
    #[inline]
    pub(crate) const fn is_plausible(self, next_sequence: u64, to_end: u64, max_message: u64) -> bool {
        let is_pad = self.flags().has(Flags::PAD);
        let fits = if is_pad { self.record_bytes() == to_end } else { self.record_bytes() <= to_end };
        let bounded = self.length() <= max_message
            || is_pad
            || (self.flags().has(Flags::CONTROL) && self.length() <= ControlRecord::BYTES);
        self.flags().has(Flags::VALID) && fits && bounded && self.sequence_low() == next_sequence as u32
    }
}

/// A meta word, with methods for its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta(u64);

impl Meta {
    /// Makes the word for a user tag and a publish time in clock ticks. The word keeps the low 48 bits of the time.
    #[inline]
    pub const fn new(tag: u16, time: u64) -> Self {
        Self((tag as u64) << TIME_BITS | (time & TIME_MASK))
    }

    /// A word as found in shared memory.
    #[inline]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The word as it is stored.
    #[inline]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The tag that the publisher chose.
    #[inline]
    pub const fn tag(self) -> u16 {
        (self.0 >> TIME_BITS) as u16
    }

    /// Low 48 bits of the publish time.
    #[inline]
    pub const fn time(self) -> u64 {
        self.0 & TIME_MASK
    }
}

/// Returns the ticks from a record's 48-bit time to `now`. If the publisher's clock is slightly ahead of the reader's, returns 0.
#[inline]
pub const fn ticks_since(now: u64, time: u64) -> u64 {
    let delta = now.wrapping_sub(time) & TIME_MASK;
    if delta > TIME_MASK / 2 { 0 } else { delta }
}

/// A record about the stream itself. Readers get it in order with the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlRecord {
    /// A new publisher began. The following records were published under this epoch.
    Epoch {
        /// The new epoch. It grows with each publisher.
        epoch: u64,
    },
    /// The publisher closed the channel in an orderly way. Further records follow only if another publisher opens it.
    End,
    /// Messages that never arrived at this host. The next message has the sequence after `to`.
    Gap {
        /// First missing sequence.
        from: u64,
        /// Last missing sequence, inclusive.
        to: u64,
    },
    /// The publisher on another host that feeds this channel through a bridge began a new session.
    Session {
        /// First eight bytes of the session's identity.
        high: u64,
        /// The last two bytes, in the low 16 bits.
        low: u64,
    },
    /// A kind that a later minor version added; readers skip it.
    Unknown {
        /// The kind found.
        kind: u64,
    },
}

impl ControlRecord {
    /// The number of payload bytes of each control record: its kind and two operands.
    pub const BYTES: u64 = 24;

    /// The payload words.
    pub const fn words(self) -> [u64; 3] {
        match self {
            Self::Epoch { epoch } => [1, epoch, 0],
            Self::End => [2, 0, 0],
            Self::Gap { from, to } => [3, from, to],
            Self::Session { high, low } => [4, high, low],
            Self::Unknown { kind } => [kind, 0, 0],
        }
    }

    /// Decodes payload words of a control record. Returns `None` for a gap whose ends are in the wrong order, or whose last sequence is too
    /// large.
    pub(crate) const fn from_words(words: [u64; 3]) -> Option<Self> {
        match words {
            [1, epoch, _] => Some(Self::Epoch { epoch }),
            [2, _, _] => Some(Self::End),
            [3, from, to] if from <= to && to < MAX_SEQUENCE => Some(Self::Gap { from, to }),
            [3, _, _] => None,
            [4, high, low] => Some(Self::Session { high, low }),
            [kind, _, _] => Some(Self::Unknown { kind }),
        }
    }

    /// Returns the sequence of the next message after this record. `sequence` is the sequence that the message would have without this
    /// record.
    pub const fn next_sequence(self, sequence: u64) -> u64 {
        if let Self::Gap { to, .. } = self { to + 1 } else { sequence }
    }
}

/// Encodes the ten bytes of a remote session's identity as two words: the first eight bytes, and the last two in the low 16 bits.
pub const fn session_words(identity: [u8; 10]) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j] = identity;
    [u64::from_le_bytes([a, b, c, d, e, f, g, h]), u16::from_le_bytes([i, j]) as u64]
}

/// Decodes the identity that [`session_words`] encoded. Only the low 16 bits of the second word belong to it.
pub const fn session_identity([high, low]: [u64; 2]) -> [u8; 10] {
    let [a, b, c, d, e, f, g, h] = high.to_le_bytes();
    let [i, j, ..] = low.to_le_bytes();
    [a, b, c, d, e, f, g, h, i, j]
}

const _: () = assert!(RECORD_HEADER + ControlRecord::BYTES <= GRANULE, "a control record is one granule");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::geometry::MAX_MESSAGE;

    #[test]
    fn commit_words_are_never_zero_and_carry_the_largest_message() {
        assert_ne!(Commit::new(0, Flags::VALID, 0).word(), 0);
        let c = Commit::new(0x1_2345_6789, Flags::KEY, MAX_MESSAGE);
        assert_eq!((c.sequence_low(), c.length()), (0x2345_6789, MAX_MESSAGE));
        assert!(c.flags().has(Flags::KEY) && c.flags().has(Flags::VALID) && !c.flags().has(Flags::PAD));
        assert_eq!(c.word(), 0x2345_6789_0b00_0000, "bytes are a promise to other languages");
    }

    #[test]
    fn a_header_that_leaves_the_ring_or_the_sequence_is_implausible() {
        let c = Commit::new(7, Flags::VALID, 100);
        assert!(c.is_plausible(7, 128, 100));
        assert!(!c.is_plausible(8, 128, 100), "sequence");
        assert!(!c.is_plausible(7, 64, 100), "end of ring");
        assert!(!c.is_plausible(7, 128, 99), "maximum message");
        assert!(!Commit::from_word(7 << 32 | 100).is_plausible(7, 128, 100), "not valid");
    }

    #[test]
    fn times_survive_wrap_and_small_clock_disagreement() {
        assert_eq!(ticks_since(5, TIME_MASK), 6);
        assert_eq!(ticks_since(1 << 60, (1 << 60) & TIME_MASK), 0);
        assert_eq!(ticks_since(100, 130), 0, "a reader's clock behind the publisher's");
        let m = Meta::new(0xbeef, 0xffff_1234_5678_9abc);
        assert_eq!((m.tag(), m.time()), (0xbeef, 0x1234_5678_9abc));
    }

    #[test]
    fn sessions_round_trip_whatever_else_their_second_word_says() {
        let identity = *b"EQTY00000Z";
        let [high, low] = session_words(identity);
        assert_eq!((high, low), (0x3030_3030_5954_5145, 0x5a30), "bytes are a promise to other languages");
        assert_eq!(session_identity([high, low]), identity);
        assert_eq!(session_identity([high, low | 1 << 63]), identity);
    }

    #[test]
    fn controls_round_trip_and_refuse_nonsense() {
        let session = ControlRecord::Session { high: 1, low: 2 };
        let gap = ControlRecord::Gap { from: 4, to: 9 };
        for c in [
            ControlRecord::Epoch { epoch: 9 },
            ControlRecord::End,
            gap,
            session,
            ControlRecord::Unknown { kind: 99 },
        ] {
            assert_eq!(ControlRecord::from_words(c.words()), Some(c));
        }
        assert_eq!(ControlRecord::from_words([3, 4, 3]), None, "gap ends before it starts");
        for to in [MAX_SEQUENCE, (1 << 62) - 1, u64::MAX] {
            assert_eq!(ControlRecord::from_words([3, 4, to]), None, "no sequence would be left after {to}");
        }
        assert!(ControlRecord::from_words([3, 4, MAX_SEQUENCE - 1]).is_some());
        assert_eq!((gap.next_sequence(4), session.next_sequence(4)), (10, 4));
    }
}
