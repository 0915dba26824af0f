//! How holes are repaired: the parameters, their meaning and their defaults.

use super::super::{DEFAULT_PAYLOAD_BYTES, MICROSECOND_NS, MILLISECOND_NS};

/// What happens to messages that nobody sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapPolicy {
    /// Nothing after them is delivered until they arrive.
    Block,
    /// They are given up when one of these holds: every server says that they are gone; no server has answered anything for this long;
    /// servers have answered other requests for this long, but not the ones for these messages. With `u64::MAX`, only the first of these
    /// counts.
    Skip {
        /// How long to keep asking, in nanoseconds.
        give_up_ns: u64,
    },
}

/// How holes are repaired.
#[derive(Debug, Clone, Copy)]
pub struct GapConfig {
    /// How long a hole may be mere reordering. If the lines often deliver late, this grows up to `hold_max_ns`.
    pub hold_ns: u64,
    /// The longest hold to which reordering can lead.
    pub hold_max_ns: u64,
    /// The shortest time to wait for an answer.
    pub timeout_min_ns: u64,
    /// The time to wait for an answer while no round trip has been measured.
    pub timeout_first_ns: u64,
    /// The longest wait that doubling leads to. If the measured round trip is longer, it counts in full.
    pub timeout_max_ns: u64,
    /// How many servers there are to ask, at most [`MAX_SERVERS`](super::super::MAX_SERVERS).
    pub servers: usize,
    /// Greatest number of unanswered requests at a time, to a server that answers them. A receiver catches up at the rate of this many
    /// answers per round trip.
    pub max_requests: usize,
    /// Greatest number of holes that are tracked. Early packets that would make another hole are refused.
    pub max_holes: usize,
    /// The size of the largest datagram that a server answers with, in bytes.
    pub payload_bytes: usize,
    /// Whether a server may be of another make, until it sends a shmcast control datagram. Such a server may label every packet of a long
    /// answer with the sequence of the first. So it is asked for no more than what surely fits one packet.
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
