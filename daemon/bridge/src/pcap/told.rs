//! What captures tell: datagrams, and counts of packets.

use std::net::SocketAddr;

/// One UDP datagram of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// When it was captured, in nanoseconds since 1970. A packet without its own time has that of the packet
    /// before.
    pub time_ns: u64,
    /// The sender's address.
    pub source: SocketAddr,
    /// The receiver's address.
    pub destination: SocketAddr,
    /// The UDP payload.
    pub payload: &'a [u8],
}

/// The counters of a capture. `packets` is `datagrams` plus all skipped packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaptureCounters {
    /// Packets read.
    pub packets: u64,
    /// UDP datagrams handed out.
    pub datagrams: u64,
    /// Whether the file ends within a packet, as it does when its writer was killed.
    pub cut_off: bool,
    pub(super) skipped: [u64; Skipped::COUNT],
}

impl CaptureCounters {
    /// How many packets were left out for `reason`.
    pub fn skipped(&self, reason: Skipped) -> u64 {
        self.skipped[reason as usize]
    }
}

/// The reason that a packet of a capture gave no payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Skipped {
    /// The packet is ARP, TCP or any other than UDP.
    #[error("not UDP")]
    NotUdp,
    /// The datagram goes to another port than those asked for.
    #[error("to another port")]
    OtherPort,
    /// A fragment of an IP packet: its datagram is in several frames.
    #[error("a fragment of an IP packet, which is not put together again")]
    Fragment,
    /// The capture holds less of the frame than its headers say was sent.
    #[error("cut short by the capture: capture whole packets (tcpdump -s 0)")]
    Truncated,
    /// The headers contradict each other.
    #[error("damaged headers")]
    Malformed,
    /// The frames of this interface are of a kind that is not understood here.
    #[error("a link layer other than Ethernet, Linux cooked, raw IP and loopback")]
    LinkType,
}

impl Skipped {
    /// How many reasons there are.
    pub const COUNT: usize = 6;
    /// Every reason, in counter order.
    pub const ALL: [Skipped; Skipped::COUNT] = [
        Skipped::NotUdp,
        Skipped::OtherPort,
        Skipped::Fragment,
        Skipped::Truncated,
        Skipped::Malformed,
        Skipped::LinkType,
    ];
}

/// Counters of the packets that were handed over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Captured {
    /// Packets in the file.
    pub packets: u64,
    /// Packets that are not in the file, because the writer was behind, the file could not be written, or
    /// they were too large.
    pub dropped: u64,
}
