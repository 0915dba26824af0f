//! The native profile of a line, for shmcast's own receivers. Messages keep their tag, key flag and publish time. They can be larger than a
//! packet, and can be sealed.
//!
//! Every native packet is a valid MoldUDP64 packet with one message, so that captures and Wireshark accept it:
//! ```text
//! at  size
//!  0  10+8+2   session; sequence of the first message (of a fragment: of its message; else the next expected); count, always 1
//! 20  2        length of the rest
//! 22  1+1      version 1; kind: 1 data, 2 fragment, 4 pulse, 5 ask, 32 + n: control kind n
//! 24  1+1+2    flags: 1 sealed, 2 repair, 8 from a receiver; key ID, 0 = none; number of messages
//! 28  8        sender: random at each start
//! 36  8        number of the packet among those of its sender, from 1; all but live data and fragments have bit 63 set
//! 44           body; if sealed: ciphertext, then 16 bytes of tag
//! ```
//! All numbers are big-endian. The module `container` reads and writes these fields. The modules `records`, `fragments`, `pulse` and `ask`
//! read and write the bodies. The native and the plain profile use the same state machines, and differ only in the form of the packets.

pub mod ask;
pub mod container;
pub mod fragments;
pub mod keys;
pub mod pulse;
pub mod records;
pub mod seal;
pub mod window;

use super::bytes::{Reader, Writer};
use super::session::Session;
use super::wire::{Body, Downstream, Malformed};
use container::{Container, Kind};
use pulse::Pulse;

/// Checks a whole unsealed packet of a feed: data, a fragment or a pulse. Returns the packet. If the packet is a pulse, also returns the
/// pulse, and the returned packet is a heartbeat or an end.
///
/// # Errors
/// [`Malformed`] if the parts of the packet contradict each other. Use no part of such a packet.
pub fn parse(datagram: &[u8]) -> Result<(Downstream<'_>, Option<Pulse>), Malformed> {
    let (container, body) = Container::parse(datagram)?;
    let Container { session, sequence, .. } = container;
    if container.is_sealed {
        return Err(Malformed::Native);
    }
    let (body, pulse) = match container.kind {
        Kind::Data => (Body::Messages(records::parse(&container, body)?), None),
        Kind::Fragment => (Body::Fragment(fragments::parse(&container, body)?), None),
        Kind::Pulse => {
            let pulse = Pulse::parse(body).filter(|pulse| pulse.next == sequence).ok_or(Malformed::Native)?;
            (if pulse.has_ended { Body::End } else { Body::Heartbeat }, Some(pulse))
        }
        Kind::Ask | Kind::Control(_) => return Err(Malformed::Native),
    };
    Ok((Downstream { session, sequence, body }, pulse))
}

/// Checks the body of a data packet or of a fragment, without the packet around it. The first message of the body has the sequence `first`.
/// `messages` is the number of messages, which is 1 for a fragment.
///
/// # Errors
/// [`Malformed`] if the body is not valid, or if the kind is neither data nor a fragment.
pub fn parse_body(kind: Kind, (first, messages): (u64, u16), body: &[u8]) -> Result<Body<'_>, Malformed> {
    first.checked_add(u64::from(messages)).ok_or(Malformed::SequenceOverflow)?;
    let container = Container {
        session: Session::from_bytes([0; 10]),
        sequence: first,
        kind,
        is_sealed: false,
        is_repair: false,
        is_from_receiver: false,
        key: 0,
        messages,
        sender: 0,
        number: 0,
    };
    match kind {
        Kind::Data => Ok(Body::Messages(records::parse(&container, body)?)),
        Kind::Fragment => Ok(Body::Fragment(fragments::parse(&container, body)?)),
        Kind::Pulse | Kind::Ask | Kind::Control(_) => Err(Malformed::Native),
    }
}
