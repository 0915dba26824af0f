//! Sizes and marks of the packets of a bridge.

use std::net::SocketAddr;

/// Bytes of IP in an Ethernet frame.
pub(super) const ETHERNET_MTU: usize = 1_500;
/// Largest UDP payload that fits an Ethernet frame over IPv4. Over IPv6 it is 20 bytes less: see
/// [`BridgeSpec::ethernet_payload_bytes`](super::BridgeSpec::ethernet_payload_bytes).
pub const ETHERNET_PAYLOAD_BYTES: usize = 1_472;

/// Bytes of the headers of IP and UDP that a packet to `address` has.
pub fn header_bytes(address: &SocketAddr) -> usize {
    if address.is_ipv6() { 48 } else { 28 }
}

/// The marks by which networks and hosts distinguish packets. The system chooses those that are `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks {
    /// The code point of the IP header, 0 to 63, by which switches and routers choose a queue.
    pub dscp: Option<u8>,
    /// The priority within this host, 0 to 6, by which its queueing discipline chooses a band.
    pub priority: Option<u8>,
}
