//! The configuration of a receiver, the origins of its datagrams, and its deliveries.

use super::super::gap::GapConfig;
use super::super::session::Session;
use super::super::wire::Meta;
use super::{Follow, Join};
use std::ops::Range;

/// The configuration of a receiver.
#[derive(Debug, Clone, Copy)]
pub struct ReceiverConfig {
    /// The sessions to follow.
    pub follow: Follow,
    /// The message to start at.
    pub join: Join,
    /// The number of lines of the feed, 1 to [`MAX_LINES`](crate::proto::MAX_LINES).
    pub lines: usize,
    /// The greatest number of early packets in the store.
    pub max_early_packets: usize,
    /// The greatest number of bytes of early packets in the store.
    pub max_early_bytes: usize,
    /// The limit for packets that are ahead of the feed, in messages. A packet beyond the limit is believed only after further packets have
    /// confirmed it. If the feed delivered more than `max_jump` messages in the last 250 ms, the number of delivered messages is the limit.
    pub max_jump: u64,
    /// Whether each packet is believed without a second packet that confirms it. Set this only for packets of a capture file, because
    /// nobody can forge packets into a file while it is read.
    pub trusts: bool,
    /// The configuration of the repair of holes.
    pub gaps: GapConfig,
    /// Whether the lines are native.
    pub is_native: bool,
    /// The limit for the bytes of stored messages that are larger than a packet and not delivered yet.
    pub reassembly_bytes: usize,
    /// The seed of the random delays of requests. It should be random.
    pub seed: u64,
}

/// The default limit for the bytes of messages that arrive in fragments before the receiver can deliver them.
pub const REASSEMBLY_BYTES: usize = 32 << 20;

impl ReceiverConfig {
    /// Returns the default configuration for this choice of sessions.
    pub fn following(follow: Follow) -> ReceiverConfig {
        ReceiverConfig {
            follow,
            join: Join::FirstSeen,
            lines: 1,
            max_early_packets: 4_096,
            max_early_bytes: 8 << 20,
            max_jump: 1 << 16,
            trusts: false,
            gaps: GapConfig::default(),
            is_native: false,
            reassembly_bytes: REASSEMBLY_BYTES,
            seed: 0,
        }
    }
}

/// The line or server that sent a datagram. The index is that of the line or server in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A line of the feed.
    Line(usize),
    /// A retransmission server that answered a request of this receiver.
    Server(usize),
    /// A retransmission server that sent a repair for all receivers.
    Repair(usize),
}

/// The deliveries of a receiver. They come in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery<'a> {
    /// From here on, the receiver follows this session.
    NewSession {
        /// The session's name.
        session: Session,
        /// The first sequence that will be delivered, or reported as a gap.
        next: u64,
        /// The session that was followed before, and the sequence after the last message that was delivered from it.
        previous: Option<(Session, u64)>,
    },
    /// One message.
    Message {
        /// The publisher's sequence.
        sequence: u64,
        /// The message's bytes, borrowed for the time of the call.
        data: &'a [u8],
        /// The message's marks. On a plain line, messages have no marks.
        meta: Meta,
    },
    /// These messages will never arrive.
    Gap {
        /// The sequences of the missing messages.
        missing: Range<u64>,
    },
    /// The session has ended, and all of its messages were delivered or reported as gaps.
    End {
        /// The session's name.
        session: Session,
        /// The sequence after the session's last message.
        next: u64,
    },
}
