//! Distinguishes the kinds of datagrams in a capture.

use crate::proto::control::is_control;
use crate::proto::native;
use crate::proto::native::container::{Container, Kind};
use crate::proto::session::Session;
use crate::proto::wire::{Body, Downstream, Malformed, Request};

/// The fields of a packet that decide how it is handled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) session: Session,
    pub(super) is_native: bool,
    /// The first message, and the sequence after the last one. If the packet has no message, both fields are the next expected sequence.
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) is_end: bool,
}

/// The kind of a datagram.
#[derive(Debug)]
pub(super) enum Parsed {
    Packet(Head),
    /// A control datagram between the sender and a receiver of a bridge.
    Control,
    /// A receiver's request for messages.
    Request,
    /// A native packet that cannot be opened without keys.
    Sealed,
    Malformed(Malformed),
}

impl Parsed {
    /// Classifies a datagram. `is_native` says whether the session's packets are native, or returns `None` if this is not known. Without
    /// this knowledge, a native packet could be taken for a plain packet, because it is also a valid plain packet.
    pub(super) fn of(datagram: &[u8], is_native: impl Fn(Session) -> Option<bool>) -> Parsed {
        if is_control(datagram) {
            return Parsed::Control;
        }
        if Request::parse(datagram).is_ok() {
            return Parsed::Request;
        }
        let plain = Downstream::parse(datagram);
        let known = plain.as_ref().ok().and_then(|plain| is_native(plain.session));
        match plain {
            Err(reason) => Parsed::Malformed(reason),
            Ok(plain) if known == Some(false) => Parsed::Packet(head_of(&plain, false)),
            Ok(plain) => match Container::parse(datagram) {
                Err(_) if known.is_none() => Parsed::Packet(head_of(&plain, false)),
                Err(reason) => Parsed::Malformed(reason),
                Ok((Container { kind: Kind::Ask | Kind::Control(_), .. }, _)) => Parsed::Control,
                Ok((container, _)) if container.is_sealed => Parsed::Sealed,
                Ok(_) => match native::parse(datagram) {
                    Ok((packet, _)) => Parsed::Packet(head_of(&packet, true)),
                    Err(reason) => Parsed::Malformed(reason),
                },
            },
        }
    }
}

fn head_of(packet: &Downstream<'_>, is_native: bool) -> Head {
    let end = match packet.body {
        Body::Fragment(_) => packet.sequence.saturating_add(1),
        _ => packet.end(),
    };
    let is_end = matches!(packet.body, Body::End);
    Head { session: packet.session, is_native, first: packet.sequence, end, is_end }
}
