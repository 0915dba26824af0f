//! Readers and boards of a channel, as tools show them.

use super::Process;
use serde::{Deserialize, Serialize};

/// The board of a channel, in the form that tools show. All counts come from publishers, so a faulty publisher can make them wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoardStatus {
    /// Number of keys on the board.
    pub keys: u64,
    /// Number of keys for which the board has room.
    pub room: u64,
    /// Bytes of the largest message on the board.
    pub value_bytes: u64,
    /// The bytes of the key in each payload: the offset of the key's first byte, and the offset after the key's last byte.
    pub key: [u64; 2],
    /// The sequence up to which all messages are on the board.
    pub through: u64,
    /// The board can lack only messages before this sequence. So if a key's newest message is older, the board might not have it.
    pub since: u64,
    /// The number of messages that are not on the board because there was no room for their keys.
    pub refused: u64,
    /// Number of messages that were too large for the board.
    pub too_large: u64,
    /// Number of messages that were too short to have a key.
    pub no_key: u64,
}

/// A reader, in the form that tools show. All fields except the process come from the reader itself, so a faulty reader can make them
/// wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReaderStatus {
    /// The process.
    #[serde(flatten)]
    pub process: Process,
    /// The role: `reader`, `recorder` or `bridge`.
    pub role: String,
    /// The sequence that the reader expects next.
    pub next_sequence: u64,
    /// Published messages that the reader has not read.
    pub lag: Option<u64>,
    /// Messages received.
    pub received: u64,
    /// Number of times that the publisher overtook the reader.
    pub lapped: u64,
    /// Messages that the reader missed.
    pub missed: u64,
    /// The number of messages that the reader skipped, because it got newer messages of the same keys from the board.
    #[serde(default, skip_serializing_if = "is_none_left_out")]
    pub conflated: u64,
    /// The sequence with which the reader began.
    pub started_at: u64,
    /// The latencies that the reader recorded; `None` if it records no latencies.
    pub latency_ns: Option<LatencyStatus>,
}

/// Percentiles in nanoseconds. A percentile of latencies is at most 6.25 % higher than the true value. A percentile of a gate's waits is at
/// most twice the true value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyStatus {
    /// The median.
    pub p50: u64,
    /// The value that 99 % of the measured values do not exceed.
    pub p99: u64,
    /// The value that 99.9 % of the measured values do not exceed.
    pub p999: u64,
    /// The largest measured value.
    pub max: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_none_left_out(count: &u64) -> bool {
    *count == 0
}
