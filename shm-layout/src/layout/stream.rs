//! The identity of a stream.

use std::fmt;

/// The identity of a stream. A stream is all messages of a channel since its sequences last began at 1. A channel gets a new stream only
/// when its sequences begin at 1 again. The stream remains the same when a new publisher or a new generation of a strict channel begins,
/// when the daemon restarts and, with a journal, when the host reboots.
///
/// Two channels have the same stream if and only if [`is`](Self::is) returns true for their ids.
///
/// ```
/// use shmcast_layout::layout::stream::StreamId;
/// let id = StreamId::from_words([0x0123_4567_89ab_cdef, 0xf]);
/// assert_eq!(id.to_string(), "0123456789abcdef000000000000000f");
/// assert_eq!(StreamId::from_bytes(id.to_bytes()), id);
/// assert!(id.is(id) && !id.is(StreamId::from_words([1, 2])));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct StreamId([u64; 2]);

impl StreamId {
    /// Makes an id from 16 bytes: random bytes for a new id, or the bytes of a stored id.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        let all = u128::from_be_bytes(bytes);
        Self([(all >> 64) as u64, all as u64])
    }

    /// The id as bytes, in the form that journals and packets use.
    pub const fn to_bytes(self) -> [u8; 16] {
        ((self.0[0] as u128) << 64 | self.0[1] as u128).to_be_bytes()
    }

    /// Makes the id from two words of a segment's header or a charter.
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self(words)
    }

    /// The id as two words, in the form that headers and charters use.
    pub const fn to_words(self) -> [u64; 2] {
        self.0
    }

    /// Parses an id in its displayed form: 32 lowercase hexadecimal digits. Returns `None` for any other text.
    ///
    /// ```
    /// use shmcast_layout::layout::stream::StreamId;
    /// let id = StreamId::from_words([0x0123_4567_89ab_cdef, 0xf]);
    /// assert_eq!(StreamId::parse(&id.to_string()), Some(id));
    /// assert_eq!(StreamId::parse("0123456789ABCDEF000000000000000F"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        let is_shown = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let id = u128::from_str_radix(text, 16).ok().filter(|_| is_shown)?;
        Some(Self::from_bytes(id.to_be_bytes()))
    }

    /// Whether both ids mean the same stream.
    pub fn is(self, other: Self) -> bool {
        self == other
    }
}

/// The bytes in hexadecimal digits.
impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.0[0], self.0[1])
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamId({self})")
    }
}
