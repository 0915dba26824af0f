//! The part of the receiving thread for native lines. It opens packets, and makes requests and control datagrams.

use shmcast::sys::datagrams::Datagram;
use std::sync::Arc;

use super::inlet::Inlet;
use crate::BridgeError;
use crate::native::{Codec, Keys, Part, control_in};
use crate::proto::control::CONTROL_MAX_BYTES;
use crate::proto::native::ask::{Entry, MAX_ENTRIES};
use crate::proto::native::container::Container;
use crate::proto::native::seal::{OpenerCounters, Unopened};
use crate::proto::receiver::{Origin, Receiver};
use crate::proto::session::Session;
use crate::proto::wire::Head;
use crate::spec::{BridgeSpec, Profile};

/// Greatest number of senders whose packets are opened at a time.
const MOST_SENDERS: usize = 64;

/// The state of a receiver of native lines.
pub(super) struct NativeReceiving {
    codec: Codec,
    keys: Arc<Keys>,
}

impl NativeReceiving {
    /// Makes the state of a receiver for this spec; `None` if its lines are plain.
    pub(super) fn of(spec: &BridgeSpec, keys: &Arc<Keys>) -> Result<Option<NativeReceiving>, BridgeError> {
        if spec.receive_profile() == Profile::Plain {
            return Ok(None);
        }
        let codec = Codec::new(spec, Part::Receiver, MOST_SENDERS, keys)?;
        Ok(Some(NativeReceiving { codec, keys: keys.clone() }))
    }

    /// Takes new keys, if there are any.
    pub(super) fn look(&mut self) {
        self.codec.look(&self.keys);
    }

    /// Returns the counters of packets that were not opened.
    pub(super) fn unopened(&self) -> &OpenerCounters {
        self.codec.counters()
    }

    /// Takes a packet of the feed, from a line or a server.
    pub(super) fn take(
        &mut self,
        now_ns: u64,
        origin: Origin,
        datagram: &[u8],
        receiver: &mut Receiver,
        inlet: &mut Inlet,
    ) {
        if let Ok((container, _)) = Container::parse(datagram)
            && let (Origin::Line(_) | Origin::Repair(_), head) = (origin, container.head())
            && receiver.is_old(container.session, &head)
        {
            return receiver.note_copy(now_ns, origin, &head);
        }
        match self.codec.open(now_ns, datagram) {
            Ok(opened) => {
                receiver.handle_datagram(now_ns, origin, opened, &mut |delivery| inlet.take(delivery))
            }
            Err(Unopened::Malformed(reason)) => receiver.count_malformed(reason),
            Err(Unopened::Replayed) => {
                if let Ok((container, _)) = Container::parse(datagram) {
                    receiver.note_copy(now_ns, origin, &container.head());
                }
            }
            Err(Unopened::Forged | Unopened::Unknown) => {}
        }
    }

    /// Unpacks the control datagram of a server into `out` and returns its size; `None` if there is none, or if it is not sound.
    pub(super) fn control(
        &mut self,
        now_ns: u64,
        datagram: &Datagram<'_>,
        out: &mut [u8; CONTROL_MAX_BYTES],
    ) -> Option<usize> {
        control_in(self.codec.open(now_ns, datagram.bytes).ok()?, out)
    }

    /// Makes a packet with a control datagram inside.
    pub(super) fn wrap(&mut self, control: &[u8]) -> Option<&[u8]> {
        self.codec.control(control)
    }

    /// Returns the next request, as the server's index and the packet.
    pub(super) fn poll_ask(&mut self, now_ns: u64, receiver: &mut Receiver) -> Option<(usize, &[u8])> {
        let mut entries = [Entry { first: 0, count: 0, offset: 0, bytes: 0 }; MAX_ENTRIES];
        let (server, session, count): (usize, Session, usize) = receiver.poll_ask(now_ns, &mut entries)?;
        Some((server, self.codec.ask(session, &entries[..count])?))
    }
}

/// Returns the beginning of a packet of the feed, if it is sound.
pub(super) fn head_of(is_native: bool, datagram: &[u8]) -> Option<Head> {
    match is_native {
        true => Container::parse(datagram).ok().map(|(container, _)| container.head()),
        false => Head::of(datagram),
    }
}

/// Whether a packet of a server contains a control datagram.
pub(super) fn is_control(datagram: &[u8]) -> bool {
    use crate::proto::native::container::Kind;
    Container::parse(datagram).is_ok_and(|(container, _)| matches!(container.kind, Kind::Control(_)))
}

/// Takes a packet of the feed, native or plain, from a line or a server.
pub(super) fn take(
    native: Option<&mut NativeReceiving>,
    now_ns: u64,
    origin: Origin,
    datagram: &[u8],
    (receiver, inlet): (&mut Receiver, &mut Inlet),
) {
    match native {
        Some(native) => native.take(now_ns, origin, datagram, receiver, inlet),
        None => receiver.handle_datagram(now_ns, origin, datagram, &mut |delivery| inlet.take(delivery)),
    }
}

/// Returns the packet that carries a control datagram: on plain lines the datagram itself.
pub(super) fn packet_of<'a>(native: Option<&'a mut NativeReceiving>, control: &'a [u8]) -> &'a [u8] {
    match native {
        Some(native) => native.wrap(control).unwrap_or(&[]),
        None => control,
    }
}
