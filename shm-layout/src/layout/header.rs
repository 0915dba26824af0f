//! The header page: words that the creator writes once, and lines that change later.
//!
//! ```text
//! word  0  magic (stored last)      word 16  FRONTIER                       (128-byte pair)
//!       1  clock kind, version           32  STATE: epoch | state           (128-byte pair)
//!       2  capacity                      33         writer pid, diagnostic only
//!       3  granule                       48  LAZY:  messages published      (128-byte pair)
//!       4  chunk                         49         time of this update
//!       5  index entries                 50         last key sequence
//!       6  max message                   51         payload bytes published
//!       7  data offset                   64..512    channel, schema, labels: each u64 length, then bytes
//!       8  uuid (two words)               56         first sequence of the ring, 0 for 1
//!                                       58, 59     session of the remote stream that a bridge carries, 0 if none
//!                                       60         offset of the board, 0 if there is none
//!      10  stream id (two words)
//!      12  created, ns since 1970
//!      13  clock ticks per second
//!      14  schema id
//!      15  crc32c of words 1..15 and 64..512
//! ```
//! Each group of words that change has a pair of cache lines of its own, because adjacent-line prefetch loads 128 bytes together.

use super::geometry::{GRANULE, Geometry, HEADER_BYTES, WORD};
use super::stream::StreamId;
use crate::error::OpenError;

/// First word of every finished segment: "SHMCAST1" in memory order.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SHMCAST1");
/// Layout version of a segment without a board. A reader accepts every minor version of its major version.
pub const VERSION: (u16, u16) = (2, 0);
/// The least minor version in which the word [`BOARD`] has a meaning. A segment with a board has this version.
pub const MINOR_WITH_BOARD: u16 = 1;
/// Words of the header page.
pub const HEADER_WORDS: usize = (HEADER_BYTES / WORD) as usize;

/// Word index of the frontier: the end of the space that the writer can write to.
pub const FRONTIER: usize = 16;
/// Word index of epoch and state.
pub const STATE: usize = 32;
/// Word index of the writer's process id; diagnostic only.
pub const WRITER_PID: usize = 33;
/// Word index of the count of published messages. The count can lack the last 64 messages.
pub const LAZY_PUBLISHED: usize = 48;
/// Word index of the time of the last update of the lazy line, in ticks of the clock.
pub const LAZY_TIME: usize = 49;
/// Word index of the sequence of the last key message. The word is 0 if there was no key message.
pub const LAZY_KEY: usize = 50;
/// Word index of the count of payload bytes published.
pub const LAZY_BYTES: usize = 51;

/// Word index of the first sequence that this ring can have; 0 means 1. If a segment continues the channel of an earlier segment, its first
/// sequence follows the last sequence of the earlier segment. The word is written before any other process sees the segment.
pub const FIRST_SEQUENCE: usize = 56;
/// Word index of the first eight bytes of the session, a name of ten bytes. If a bridge fills this ring, this is the session of the remote
/// stream. The bridge reads the session after a restart. Readers learn of sessions from control records.
pub const SESSION: usize = 58;
/// Word index of the last two bytes of the session. These bytes are the low 16 bits of the word. Bit 63 is set if there is a session.
pub const SESSION_REST: usize = 59;
/// Word index of the board's offset. The offset is in bytes, and equals the end of the ring. In a segment without a board, the offset is 0.
/// The word is written before any other process sees the segment. Before minor version [`MINOR_WITH_BOARD`] the word is reserved.
pub const BOARD: usize = 60;
/// The bit that is set in the word [`SESSION_REST`] if there is a session.
pub const HAS_SESSION: u64 = 1 << 63;

const CHECKSUM: usize = 15;
const TEXT: usize = 64;
/// The number of bytes for channel name, schema name and labels together. The three words for their lengths are included.
pub const TEXT_BYTES: usize = (HEADER_WORDS - TEXT) * WORD as usize;

/// The stage in the life of a segment: the low byte of the state word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A publisher holds the segment, or died without closing it.
    Active,
    /// A new publisher repairs the ring of a dead publisher.
    Recovering,
    /// The last publisher closed the segment cleanly.
    Closed,
    /// Another segment has replaced this one. Publishers no longer write to it.
    Superseded,
}

impl State {
    /// Packs epoch and state into one word. So the epoch and the state that a reader sees always belong together.
    pub const fn pack(self, epoch: u64) -> u64 {
        epoch << 8
            | match self {
                Self::Active => 1,
                Self::Recovering => 2,
                Self::Closed => 3,
                Self::Superseded => 4,
            }
    }

    /// Unpacks a state word. Returns `None` for a state that this version does not know.
    pub(crate) const fn unpack(word: u64) -> Option<(u64, Self)> {
        let state = match word & 0xff {
            1 => Self::Active,
            2 => Self::Recovering,
            3 => Self::Closed,
            4 => Self::Superseded,
            _ => return None,
        };
        Some((word >> 8, state))
    }
}

/// The clock that stamps the messages of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockKind {
    /// CLOCK_MONOTONIC, in nanoseconds.
    Monotonic,
    /// The CPU's own counter, invariant and the same on every core: TSC on x86-64, CNTVCT on aarch64.
    Counter,
}

/// The immutable part of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Sizes.
    pub geometry: Geometry,
    /// Random identity of this segment.
    pub uuid: [u64; 2],
    /// The stream whose messages the segment has.
    pub stream: StreamId,
    /// The time at which the channel's present sequences began, in nanoseconds since 1970. If the sequences began in this segment, this is
    /// the time at which the segment was made. If they continue from an earlier segment, it is the time at which that segment was made.
    pub created_ns: u64,
    /// The clock that stamps messages.
    pub clock: ClockKind,
    /// The clock's ticks per second.
    pub clock_hz: u64,
    /// The application's own number for the message schema; 0 if unused.
    pub schema_id: u64,
    /// The channel's name.
    pub channel: String,
    /// The application's own name for the message schema; can be empty.
    pub schema: String,
    /// The operator's labels, as `key=value` lines.
    pub labels: String,
}

impl Header {
    /// Encodes a header page. Its magic number is zero, because the creator stores the magic number last, after all other words.
    ///
    /// # Errors
    /// [`OpenError::Field`] when names and labels together exceed [`TEXT_BYTES`].
    pub fn to_words(&self) -> Result<Box<[u64]>, OpenError> {
        self.to_words_of(VERSION.1)
    }

    /// Does the same as [`to_words`](Self::to_words), for another minor version.
    pub(crate) fn to_words_of(&self, minor: u16) -> Result<Box<[u64]>, OpenError> {
        let mut words = vec![0u64; HEADER_WORDS].into_boxed_slice();
        let g = &self.geometry;
        let clock = match self.clock {
            ClockKind::Monotonic => 0,
            ClockKind::Counter => 1,
        };
        words[1] = clock << 32 | u64::from(VERSION.0) << 16 | u64::from(minor);
        words[2] = g.capacity;
        words[3] = GRANULE;
        words[4] = g.chunk;
        words[5] = g.index_entries;
        words[6] = g.max_message;
        words[7] = g.data_offset;
        words[8..10].copy_from_slice(&self.uuid);
        words[10..12].copy_from_slice(&self.stream.to_words());
        words[12] = self.created_ns;
        words[13] = self.clock_hz;
        words[14] = self.schema_id;
        let mut at = TEXT;
        for text in [&self.channel, &self.schema, &self.labels] {
            let bytes = text.as_bytes();
            let end = at + 1 + bytes.len().div_ceil(8);
            if end > HEADER_WORDS {
                return Err(OpenError::Field {
                    what: "names and labels exceed 3.5 KiB together: shorten the labels",
                });
            }
            words[at] = bytes.len() as u64;
            for (word, piece) in words[at + 1..end].iter_mut().zip(bytes.chunks(8)) {
                let mut padded = [0; 8];
                padded[..piece.len()].copy_from_slice(piece);
                *word = u64::from_le_bytes(padded);
            }
            at = end;
        }
        words[CHECKSUM] = u64::from(checksum(&words));
        Ok(words)
    }

    /// Decodes a copy of a header page. Checks each field before it uses the field.
    ///
    /// # Errors
    /// [`OpenError`] that names the first field that is wrong. It is `Truncated` if `words` is shorter than a page.
    pub(crate) fn from_words(words: &[u64]) -> Result<Self, OpenError> {
        if words.len() < HEADER_WORDS {
            return Err(OpenError::Truncated { found: words.len() as u64 * WORD, needed: HEADER_BYTES });
        }
        if words[0] != MAGIC {
            return Err(OpenError::Foreign { found: words[0] });
        }
        let (found_major, found_minor) = ((words[1] >> 16) as u16, words[1] as u16);
        if found_major != VERSION.0 {
            return Err(OpenError::Version { found_major, found_minor, major: VERSION.0 });
        }
        let (found, computed) = (words[CHECKSUM] as u32, checksum(words));
        if words[CHECKSUM] != u64::from(computed) {
            return Err(OpenError::Checksum { found, computed });
        }
        if words[3] != GRANULE {
            return Err(OpenError::Field { what: "granule is not 64 B" });
        }
        let geometry = Geometry {
            capacity: words[2],
            chunk: words[4],
            index_entries: words[5],
            max_message: words[6],
            data_offset: words[7],
        };
        geometry.check()?;
        let clock = match words[1] >> 32 {
            0 => ClockKind::Monotonic,
            1 => ClockKind::Counter,
            _ => return Err(OpenError::Field { what: "unknown clock" }),
        };
        if !(1_000..=1_000_000_000_000).contains(&words[13]) {
            return Err(OpenError::Field { what: "clock rate is not between 1 kHz and 1 THz" });
        }
        let mut at = TEXT;
        Ok(Self {
            geometry,
            uuid: [words[8], words[9]],
            stream: StreamId::from_words([words[10], words[11]]),
            created_ns: words[12],
            clock,
            clock_hz: words[13],
            schema_id: words[14],
            channel: read_text(words, &mut at)?,
            schema: read_text(words, &mut at)?,
            labels: read_text(words, &mut at)?,
        })
    }
}

/// Returns the board's offset from the words of a checked header page; 0 if there is no board. The checksum of the page does not cover the
/// offset.
pub(crate) fn board_offset(words: &[u64]) -> u64 {
    let minor = words[1] as u16;
    if minor < MINOR_WITH_BOARD { 0 } else { words[BOARD] }
}

fn read_text(words: &[u64], at: &mut usize) -> Result<String, OpenError> {
    let bad = OpenError::Field { what: "a name leaves the header page or is not UTF-8" };
    let Some(&length) = words.get(*at) else { return Err(bad) };
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(TEXT_BYTES + 1);
    let Some(body) = words.get(*at + 1..*at + 1 + length.div_ceil(8)) else { return Err(bad) };
    *at += 1 + body.len();
    let mut bytes: Vec<u8> = body.iter().flat_map(|w| w.to_le_bytes()).collect();
    bytes.truncate(length);
    String::from_utf8(bytes).map_err(|_| bad)
}

/// The checksum over the words that never change: the words 1 to 14, and the names.
fn checksum(words: &[u64]) -> u32 {
    let fold =
        |crc, piece: &[u64]| piece.iter().fold(crc, |crc, w| crc32c::crc32c_append(crc, &w.to_le_bytes()));
    fold(fold(0, &words[1..CHECKSUM]), &words[TEXT..HEADER_WORDS])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Header {
        Header {
            geometry: Geometry::new(1 << 20, None).unwrap(),
            uuid: [1, 2],
            stream: StreamId::from_words([3, 5]),
            created_ns: 4,
            clock: ClockKind::Counter,
            clock_hz: 2_600_000_000,
            schema_id: 5,
            channel: "ticks".into(),
            schema: "itch-5.0".into(),
            labels: "venue=x".into(),
        }
    }

    fn finished() -> Box<[u64]> {
        let mut words = sample().to_words().unwrap();
        words[0] = MAGIC;
        words
    }

    #[test]
    fn a_header_round_trips() {
        assert_eq!(Header::from_words(&finished()).unwrap(), sample());
    }

    #[test]
    fn every_single_damaged_immutable_word_is_noticed() {
        for at in (0..16).chain(64..80) {
            let mut words = finished();
            words[at] ^= 1 << (at % 64);
            assert!(Header::from_words(&words).is_err(), "word {at}");
        }
    }

    #[test]
    fn an_unfinished_or_older_header_says_so() {
        let mut words = finished();
        words[0] = 0;
        assert!(matches!(Header::from_words(&words), Err(OpenError::Foreign { found: 0 })));
        words[0] = MAGIC;
        words[1] = 9 << 16;
        assert!(matches!(Header::from_words(&words), Err(OpenError::Version { found_major: 9, .. })));
        assert!(matches!(Header::from_words(&words[..7]), Err(OpenError::Truncated { .. })));
    }

    #[test]
    fn labels_that_do_not_fit_are_refused_at_creation() {
        let header = Header { labels: "x".repeat(TEXT_BYTES), ..sample() };
        assert!(matches!(header.to_words(), Err(OpenError::Field { .. })));
    }

    #[test]
    fn states_round_trip() {
        for state in [State::Active, State::Recovering, State::Closed, State::Superseded] {
            assert_eq!(State::unpack(state.pack(77)), Some((77, state)));
        }
        assert_eq!(State::unpack(0), None);
    }
}
