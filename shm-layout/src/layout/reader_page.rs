//! The reader page: a small file in which one subscriber tells tools facts about itself.
//!
//! ```text
//! word 0  magic (stored last)     word  8  position          word 16  polls' clock at the last look, ticks
//!      1  version                       9  next sequence          32..  latency histogram, one count a bucket
//!      2  process id                   10  messages received
//!      3  sequence it started from     11  times lapped
//!      4  segment uuid (two words)     12  messages missed
//!      6  role                        13  messages left out, because newer ones of their keys came from the board
//! ```
//! Only that subscriber writes the page, with relaxed stores. The publisher never reads it. Tools do not trust the page: a false word can
//! mislead an operator, but no program.

use super::geometry::WORD;

/// First word of every finished page: "SHMREAD1" in memory order.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SHMREAD1");
/// Layout version of the page.
pub const VERSION: u64 = 1;
/// Word of the subscriber's process id.
pub const PID: usize = 2;
/// Word of the sequence the subscriber started from.
pub const STARTED_AT: usize = 3;
/// The first of the two words of the identity of the segment that the reader reads.
pub const SEGMENT: usize = 4;
/// Word of the purpose for which the subscriber reads: a [`Role`].
pub const ROLE: usize = 6;
/// Word of the position of the next record that the subscriber expects.
pub const POSITION: usize = 8;
/// Word of the sequence of the next message that the subscriber expects.
pub const SEQUENCE: usize = 9;
/// Word of the count of messages received.
pub const RECEIVED: usize = 10;
/// Word of the count of laps.
pub const LAPPED: usize = 11;
/// Word of the count of messages missed.
pub const MISSED: usize = 12;
/// The word with the count of messages that a conflating reader skipped because it got newer messages of the same keys.
pub const CONFLATED: usize = 13;
/// The word with the time of the reader's last poll, in ticks of the clock.
pub const HEARTBEAT: usize = 16;
/// Word that says whether a parked subscriber sleeps: 0 while the subscriber is awake. During a sleep, the word is the position that the
/// subscriber waits for, plus an odd number below 64. The position is a multiple of 64, and the odd number changes with each sleep.
pub const ASLEEP: usize = 17;
/// First word of the latency histogram.
pub const HISTOGRAM: usize = 32;

/// Buckets of the latency histogram.
pub const BUCKETS: usize = 480;
/// Words of the page.
pub const WORDS: usize = HISTOGRAM + BUCKETS;
/// Bytes of the page.
pub const BYTES: u64 = WORDS as u64 * WORD;

/// The purpose for which a subscriber reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// A program that uses the messages.
    #[default]
    Reader,
    /// A recorder, which writes the messages to a journal.
    Recorder,
    /// A bridge, which sends the messages to other hosts.
    Bridge,
}

impl Role {
    const ALL: [Self; 3] = [Self::Reader, Self::Recorder, Self::Bridge];

    /// Returns the role with this number. Any unknown number means [`Role::Reader`].
    pub(crate) fn of_word(word: u64) -> Self {
        Self::ALL.into_iter().find(|role| *role as u64 == word).unwrap_or_default()
    }

    /// The word that tools show.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Recorder => "recorder",
            Self::Bridge => "bridge",
        }
    }
}

const SUB_BITS: u32 = 4;

/// The bucket of a latency in nanoseconds. Each latency below 32 ns has a bucket of its own. From 32 ns on, each octave has 16 buckets, so
/// a bucket is at most 6.25 % wide. The last bucket begins at 4 s and has no upper end.
pub const fn bucket(latency_ns: u64) -> usize {
    if latency_ns < 1 << (SUB_BITS + 1) {
        return latency_ns as usize;
    }
    let octave = latency_ns.ilog2() - SUB_BITS;
    let sub = (latency_ns >> octave) & ((1 << SUB_BITS) - 1);
    let bucket = ((octave + 1) << SUB_BITS) as usize + sub as usize;
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

/// The largest latency in nanoseconds that bucket `bucket` counts.
pub const fn bucket_limit_ns(bucket: usize) -> u64 {
    if bucket < 1 << (SUB_BITS + 1) {
        return bucket as u64;
    }
    let octave = (bucket >> SUB_BITS) as u32 - 1;
    let sub = (bucket & ((1 << SUB_BITS) - 1)) as u64;
    (((1 << SUB_BITS) + sub + 1) << octave) - 1
}

const _: () = assert!(BYTES == 4096, "one page");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_every_latency_without_hole_or_overlap() {
        for b in 1..BUCKETS - 1 {
            let (low, high) = (bucket_limit_ns(b - 1) + 1, bucket_limit_ns(b));
            assert_eq!((bucket(low), bucket(high)), (b, b));
            assert!((high - low) * 16 <= low, "bucket {b} is wider than 6.25 %");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert!(bucket_limit_ns(BUCKETS - 1) > 4_000_000_000);
    }
}
