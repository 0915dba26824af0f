//! The results of captures: datagrams, and counts of packets.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

/// One UDP datagram of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The time of the capture, in nanoseconds since 1970. `None` if the capture does not record it. These times can jump and go backwards.
    pub time_ns: Option<u64>,
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
    /// UDP datagrams that were returned to the caller.
    pub datagrams: u64,
    /// Whether the file ends in the middle of a packet. This happens if its writer was killed.
    pub cut_off: bool,
    pub(super) skipped: [u64; Skipped::COUNT],
}

impl CaptureCounters {
    /// Returns the number of packets that were left out for `reason`.
    pub fn skipped(&self, reason: Skipped) -> u64 {
        self.skipped[reason as usize]
    }

    /// Returns how many packets could not be read. Some of them might belong to the feed.
    pub fn unread(&self) -> u64 {
        let unread = [Skipped::Fragment, Skipped::Truncated, Skipped::Malformed, Skipped::LinkType];
        unread.into_iter().map(|reason| self.skipped(reason)).sum()
    }
}

/// The protocol of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// UDP to this port.
    Udp(u16),
    /// The protocol with this number in an IP packet.
    Ip(u8),
    /// The protocol with this number in an Ethernet frame.
    Ether(u16),
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protocol::Udp(port) => write!(f, "UDP to port {port}"),
            Protocol::Ip(1 | 58) => f.write_str("ICMP"),
            Protocol::Ip(2) => f.write_str("IGMP"),
            Protocol::Ip(6) => f.write_str("TCP"),
            Protocol::Ip(number) => write!(f, "IP protocol {number}"),
            Protocol::Ether(0x0806) => f.write_str("ARP"),
            Protocol::Ether(number) => write!(f, "Ethernet type {number:#06x}"),
        }
    }
}

/// The number of packets of each protocol in a capture, as far as their headers were captured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Protocols(pub(super) BTreeMap<Protocol, u64>);

impl Protocols {
    /// Each protocol with its number of packets, the most frequent first.
    pub fn by_packets(&self) -> Vec<(Protocol, u64)> {
        let mut all: Vec<_> = self.0.iter().map(|(protocol, packets)| (*protocol, *packets)).collect();
        all.sort_by_key(|(_, packets)| std::cmp::Reverse(*packets));
        all
    }
}

impl fmt::Display for Protocols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMED: usize = 6;
        let all = self.by_packets();
        for (at, (protocol, packets)) in all.iter().take(NAMED).enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{protocol} ({packets})")?;
        }
        match all.len() {
            0 => f.write_str("nothing that has a name"),
            1..=NAMED => Ok(()),
            more => write!(f, " and {} others", more - NAMED),
        }
    }
}

/// The reason why a packet of a capture was skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Skipped {
    /// The packet is not UDP, but for example ARP or TCP.
    #[error("not UDP")]
    NotUdp,
    /// The datagram goes to a port that was not asked for.
    #[error("to another port")]
    OtherPort,
    /// The frame has only a fragment of an IP packet.
    #[error("a fragment of an IP packet, which is not put together again")]
    Fragment,
    /// The capture has only the beginning of the frame.
    #[error("cut short by the capture: capture whole packets (tcpdump -s 0)")]
    Truncated,
    /// The headers contradict each other.
    #[error("damaged headers")]
    Malformed,
    /// The link layer of the packet's interface is not supported.
    #[error("a link layer other than Ethernet, Linux cooked, raw IP and loopback")]
    LinkType,
}

impl Skipped {
    /// The number of reasons.
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

/// Counts of the packets that were passed to a capture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Captured {
    /// Packets in the file.
    pub packets: u64,
    /// Packets that are not in the file. The writer could not keep up, the file could not be written, or the packet was too large.
    pub dropped: u64,
}
