//! Sizes and marks of the packets of a bridge.

use std::net::SocketAddr;

/// The greatest number of bytes of an IP packet in an Ethernet frame.
pub(super) const ETHERNET_MTU: usize = 1_500;
/// The largest UDP payload that fits an Ethernet frame over IPv4, in bytes. Over IPv6 it is 20 bytes less: see
/// [`BridgeSpec::ethernet_payload_bytes`](super::BridgeSpec::ethernet_payload_bytes).
pub const ETHERNET_PAYLOAD_BYTES: usize = 1_472;

/// Returns how many bytes the headers of IP and UDP have in a packet to `address`.
pub fn header_bytes(address: &SocketAddr) -> usize {
    if address.is_ipv6() { 48 } else { 28 }
}

/// The marks of packets (DSCP and priority), by which networks and hosts treat packets differently. If a mark is `None`, the system chooses
/// it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks {
    /// The code point of the IP header, 0 to 63. By this number, switches and routers choose a queue.
    pub dscp: Option<u8>,
    /// The priority within this host, 0 to 6. By this number, the host's queueing discipline chooses a band.
    pub priority: Option<u8>,
}
