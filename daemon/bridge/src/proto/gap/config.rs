//! How holes are mended: the numbers, their meaning and their defaults.

use super::super::{DEFAULT_PAYLOAD_BYTES, MICROSECOND_NS, MILLISECOND_NS};

/// The policy for messages that nobody sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapPolicy {
    /// Nothing after them is delivered until they come.
    Block,
    /// They are given up when every server says that they are gone; when no server has said anything for this
    /// long; or when they have been asked for this long of servers that answer others and not these. With
    /// `u64::MAX` they are given up only when the servers say that they are gone.
    Skip {
        /// How long to keep asking, in nanoseconds.
        give_up_ns: u64,
    },
}

/// How holes are mended.
#[derive(Debug, Clone, Copy)]
pub struct GapConfig {
    /// How long a hole may be mere reordering. If lines are often late, this grows up to `hold_max_ns`.
    pub hold_ns: u64,
    /// The longest that reordering can stretch the hold.
    pub hold_max_ns: u64,
    /// The shortest time to wait for an answer.
    pub timeout_min_ns: u64,
    /// The time to wait for an answer while no round trip has been measured.
    pub timeout_first_ns: u64,
    /// The longest wait that doubling leads to. If the measured round trip is longer, it counts in full.
    pub timeout_max_ns: u64,
    /// How many servers there are to ask, at most [`MAX_SERVERS`](super::super::MAX_SERVERS).
    pub servers: usize,
    /// The most requests unanswered at a time, to a server that answers them. A receiver catches up at the
    /// rate of this many answers in a round trip.
    pub max_requests: usize,
    /// The most holes that are tracked. Early packets that would make another hole are refused.
    pub max_holes: usize,
    /// The largest datagram that a server answers with, in bytes.
    pub payload_bytes: usize,
    /// Whether a server may be of another make, until it sends a control datagram of ours. Such a server may
    /// label every packet of a long answer with the sequence of the first. It is asked for no more than one
    /// packet surely holds.
    pub may_be_plain: bool,
    /// The policy for messages that nobody sends.
    pub policy: GapPolicy,
}

impl Default for GapConfig {
    fn default() -> GapConfig {
        GapConfig {
            hold_ns: 50 * MICROSECOND_NS,
            hold_max_ns: 200 * MICROSECOND_NS,
            timeout_min_ns: 200 * MICROSECOND_NS,
            timeout_first_ns: MILLISECOND_NS,
            timeout_max_ns: 50 * MILLISECOND_NS,
            servers: 1,
            max_requests: 256,
            max_holes: 1_024,
            payload_bytes: DEFAULT_PAYLOAD_BYTES,
            may_be_plain: false,
            policy: GapPolicy::Skip { give_up_ns: 5_000 * MILLISECOND_NS },
        }
    }
}
