//! The parameters that decide how holes are repaired.

use super::super::{DEFAULT_PAYLOAD_BYTES, MICROSECOND_NS, MILLISECOND_NS};

/// The policy for missing messages that no server sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapPolicy {
    /// Later messages are not delivered until the missing messages arrive.
    Block,
    /// The messages of a hole are given up when one of these conditions is true:
    ///
    /// - Every server that is up says that it no longer has the messages.
    /// - No server has sent anything for `give_up_ns`.
    /// - Servers have answered other requests for `give_up_ns`, but not the requests for these messages.
    ///
    /// If `give_up_ns` is `u64::MAX`, only the first condition can be true.
    Skip {
        /// The time after which a message is given up, in nanoseconds.
        give_up_ns: u64,
    },
}

/// The parameters for the repair of holes.
#[derive(Debug, Clone, Copy)]
pub struct GapConfig {
    /// The time for which the receiver waits for late packets before a hole counts as a loss, in nanoseconds. If packets often arrive late,
    /// this time grows up to `hold_max_ns`.
    pub hold_ns: u64,
    /// The limit up to which the wait `hold_ns` can grow, in nanoseconds.
    pub hold_max_ns: u64,
    /// The shortest wait for an answer, in nanoseconds.
    pub timeout_min_ns: u64,
    /// The wait for an answer before a round trip has been measured, in nanoseconds.
    pub timeout_first_ns: u64,
    /// Each failure doubles the wait for an answer, up to this limit, in nanoseconds. If the measured round trip is long, the wait can be
    /// longer than this limit.
    pub timeout_max_ns: u64,
    /// The number of servers to ask, at most [`MAX_SERVERS`](super::super::MAX_SERVERS).
    pub servers: usize,
    /// The largest number of unanswered requests for confirmed messages at a time. So a receiver gets at most about this many answers in
    /// each round trip.
    pub max_requests: usize,
    /// The greatest number of holes in the list. If the list is full, packets that would make another hole are refused.
    pub max_holes: usize,
    /// The size of a server's largest datagram, in bytes.
    pub payload_bytes: usize,
    /// Whether a server might be of another make. The receiver assumes this until the server sends a control datagram of shmcast. A server
    /// of another make might label every packet of a long answer with the first packet's sequence, so each request asks only for messages
    /// that surely fit one packet.
    pub may_be_plain: bool,
    /// The policy for missing messages that no server sends.
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
