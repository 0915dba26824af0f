//! The configuration of a receiver, where its datagrams come from, and what it hands out.

use super::super::gap::GapConfig;
use super::super::session::Session;
use super::super::wire::Meta;
use super::{Follow, Join};

/// The configuration of a receiver.
#[derive(Debug, Clone, Copy)]
pub struct ReceiverConfig {
    /// Which sessions to follow.
    pub follow: Follow,
    /// Where to start.
    pub join: Join,
    /// How many lines carry the feed, 1 to [`MAX_LINES`](crate::proto::MAX_LINES).
    pub lines: usize,
    /// Greatest number of early packets kept.
    pub max_early_packets: usize,
    /// Greatest number of bytes kept for early packets.
    pub max_early_bytes: usize,
    /// A packet that is further ahead than this many messages is believed only when other packets confirm it. If the feed delivers more
    /// messages in 250 ms, that number counts instead.
    pub max_jump: u64,
    /// Whether every packet is believed at once. This is for captures: nobody can forge packets into them while they are read.
    pub trusts: bool,
    /// How holes are closed.
    pub gaps: GapConfig,
    /// Whether the lines are native ones.
    pub is_native: bool,
    /// Greatest number of bytes of messages larger than a packet that are kept before they are due.
    pub reassembly_bytes: usize,
    /// Seeds the random delays while others ask; it should be random.
    pub seed: u64,
}

/// The default limit for bytes of early messages that are kept in fragments.
pub const REASSEMBLY_BYTES: usize = 32 << 20;

impl ReceiverConfig {
    /// The defaults for following one channel.
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

/// Which line or server sent a datagram. Indices are those of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A line of the feed.
    Line(usize),
    /// A retransmission server, on the socket that requests are sent from.
    Server(usize),
    /// A retransmission server, as a repair for all receivers.
    Repair(usize),
}

/// The deliveries of a receiver, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery<'a> {
    /// A session is followed from here on.
    NewSession {
        /// Its name.
        session: Session,
        /// The first sequence that will be delivered, or reported as a gap.
        next: u64,
        /// The session followed before, and the sequence after the last of its messages that was delivered.
        previous: Option<(Session, u64)>,
    },
    /// One message.
    Message {
        /// The publisher's sequence.
        sequence: u64,
        /// Its bytes, lent for the time of the call.
        data: &'a [u8],
        /// Its marks; on a plain line it has none.
        meta: Meta,
    },
    /// These messages will never arrive.
    Gap {
        /// The first missing sequence.
        from: u64,
        /// The sequence after the last missing one.
        to: u64,
    },
    /// The session is over and all of it was delivered.
    End {
        /// Its name.
        session: Session,
        /// The sequence after its last message.
        next: u64,
    },
}
