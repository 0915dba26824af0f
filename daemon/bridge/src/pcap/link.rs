//! Finds the UDP datagram in a captured frame. It parses link layers, VLAN tags, IP and UDP.

use etherparse::err::packet::SliceError;
use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, TransportSlice, UdpHeader, ip_number};
use std::net::{IpAddr, SocketAddr};

use super::results::{Protocol, Skipped};

/// Source, destination and payload of one UDP datagram.
pub(super) type Found<'a> = (SocketAddr, SocketAddr, &'a [u8]);

// The numbers of link layers in capture files: https://www.tcpdump.org/linktypes.html
const NULL: i32 = 0;
const ETHERNET: i32 = 1;
const RAW_BSD: i32 = 12;
const RAW_OPENBSD: i32 = 14;
pub(super) const RAW: i32 = 101;
const LOOP: i32 = 108;
const LINUX_SLL: i32 = 113;
const IPV4: i32 = 228;
const IPV6: i32 = 229;
const LINUX_SLL2: i32 = 276;

/// Returns the UDP datagram in a frame. The frame had `sent` bytes on the wire.
pub(super) fn datagram(link_type: i32, frame: &[u8], sent: usize) -> Result<Found<'_>, Skipped> {
    let unclear = if sent > frame.len() { Skipped::Truncated } else { Skipped::Malformed };
    udp(&sliced(link_type, frame, unclear)?, unclear)
}

/// Returns the protocol of a frame, as far as its headers were captured. Of a fragmented packet, only the first fragment has the port.
pub(super) fn protocol(link_type: i32, frame: &[u8]) -> Option<Protocol> {
    let packet = sliced(link_type, frame, Skipped::Malformed).ok()?;
    if let Some(TransportSlice::Udp(udp)) = &packet.transport {
        return Some(Protocol::Udp(udp.destination_port()));
    }
    if let Some(content) = packet.net.as_ref().and_then(LaxNetSlice::ip_payload_ref) {
        let first = content.payload.first_chunk::<4>().filter(|_| content.fragmented && !is_later(&packet));
        return Some(match (content.ip_number, first) {
            (ip_number::UDP, Some([_, _, high, low])) => Protocol::Udp(u16::from_be_bytes([*high, *low])),
            (number, _) => Protocol::Ip(number.0),
        });
    }
    match &packet.net {
        Some(LaxNetSlice::Arp(_)) => Some(Protocol::Ether(EtherType::ARP.0)),
        _ => packet.ether_payload().map(|payload| Protocol::Ether(payload.ether_type.0)),
    }
}

// Whether the packet is a fragment, but not the first one. Only the first fragment has the header of the datagram.
fn is_later(packet: &LaxSlicedPacket<'_>) -> bool {
    match &packet.net {
        Some(LaxNetSlice::Ipv4(ip)) => ip.header().fragments_offset().value() > 0,
        _ => true,
    }
}

fn sliced(link_type: i32, frame: &[u8], unclear: Skipped) -> Result<LaxSlicedPacket<'_>, Skipped> {
    let after = |bytes: usize| frame.get(bytes..).ok_or(unclear);
    // A cooked header, which Linux uses for captures of all interfaces, has an Ethernet protocol number at its start or end.
    let cooked = |bytes: usize, protocol_at: usize| {
        let payload = after(bytes)?;
        let protocol = u16::from_be_bytes([frame[protocol_at], frame[protocol_at + 1]]);
        Ok(LaxSlicedPacket::from_ether_type(EtherType(protocol), payload))
    };
    let ip = |packet| LaxSlicedPacket::from_ip(packet).map_err(|_| unclear);
    Ok(match link_type {
        ETHERNET => LaxSlicedPacket::from_ethernet(frame).map_err(|_| unclear)?,
        LINUX_SLL => cooked(16, 14)?,
        LINUX_SLL2 => cooked(20, 0)?,
        // Skips the address family, four bytes in the byte order of the capturing host. The IP version has the same information.
        NULL | LOOP => ip(after(4)?)?,
        RAW | RAW_BSD | RAW_OPENBSD | IPV4 | IPV6 => ip(frame)?,
        _ => return Err(Skipped::LinkType),
    })
}

fn udp<'a>(packet: &LaxSlicedPacket<'a>, unclear: Skipped) -> Result<Found<'a>, Skipped> {
    let (source, destination): (IpAddr, IpAddr) = match &packet.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        Some(LaxNetSlice::Arp(_)) => return Err(Skipped::NotUdp),
        // After an error, the protocol is not known. Without an error, the protocol is not UDP.
        None if packet.stop_err.is_some() => return Err(unclear),
        None => return Err(Skipped::NotUdp),
    };
    let content = packet.net.as_ref().and_then(LaxNetSlice::ip_payload_ref).ok_or(unclear)?;
    if content.ip_number == ip_number::UDP && content.fragmented {
        return Err(Skipped::Fragment);
    }
    let udp = match &packet.transport {
        Some(TransportSlice::Udp(udp)) => udp,
        Some(_) => return Err(Skipped::NotUdp),
        None if content.ip_number == ip_number::UDP => return Err(shortage(content.incomplete, unclear)),
        None => {
            return Err(match &packet.stop_err {
                // The headers were cut off. A UDP header might follow the missing extension headers.
                Some((SliceError::Len(_), _)) => shortage(content.incomplete, unclear),
                _ => Skipped::NotUdp,
            });
        }
    };
    // Length 0 means a jumbogram, whose payload is all remaining bytes. Ethernet's padding is cut off already.
    let length = usize::from(udp.length());
    if content.incomplete || (length != 0 && length > udp.slice().len()) {
        return Err(shortage(content.incomplete, unclear));
    }
    if length != 0 && length < UdpHeader::LEN {
        return Err(Skipped::Malformed);
    }
    let source = SocketAddr::new(source, udp.source_port());
    Ok((source, SocketAddr::new(destination, udp.destination_port()), udp.payload()))
}

// If the IP header gives a greater length than the captured bytes have, the packet was cut off, even if the capture says that the frame is
// complete.
fn shortage(incomplete: bool, unclear: Skipped) -> Skipped {
    if incomplete { Skipped::Truncated } else { unclear }
}
