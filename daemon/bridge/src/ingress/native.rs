//! The part of the receiving thread that only native lines need. It opens packets, and makes requests and control datagrams.

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

/// The greatest number of senders whose packets can be opened at a time.
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

    /// Takes over the shared keys if they have changed.
    pub(super) fn look(&mut self) {
        self.codec.look(&self.keys);
    }

    /// Returns the counters of packets that were not opened.
    pub(super) fn unopened(&self) -> &OpenerCounters {
        self.codec.counters()
    }

    /// Opens a packet of the feed and passes it to `receiver`. The packet came from a line or a server.
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

    /// Copies the control datagram of a server out of its packet into `out`, and returns its size. Returns `None` if the packet cannot be
    /// opened or has no valid control datagram.
    pub(super) fn control(
        &mut self,
        now_ns: u64,
        datagram: &Datagram<'_>,
        out: &mut [u8; CONTROL_MAX_BYTES],
    ) -> Option<usize> {
        control_in(self.codec.open(now_ns, datagram.bytes).ok()?, out)
    }

    /// Makes a packet that contains a control datagram.
    pub(super) fn wrap(&mut self, control: &[u8]) -> Option<&[u8]> {
        self.codec.control(control)
    }

    /// Returns the next request: the index of the server, and the packet.
    pub(super) fn poll_ask(&mut self, now_ns: u64, receiver: &mut Receiver) -> Option<(usize, &[u8])> {
        let mut entries = [Entry { first: 0, count: 0, offset: 0, bytes: 0 }; MAX_ENTRIES];
        let (server, session, count): (usize, Session, usize) = receiver.poll_ask(now_ns, &mut entries)?;
        Some((server, self.codec.ask(session, &entries[..count])?))
    }
}

/// Returns the first fields of a packet of the feed, if the packet is valid.
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

/// Passes a packet of the feed to `receiver`. The packet is native or plain, and came from a line or a server.
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

/// Wraps a control datagram in a packet that can be sent. Plain lines need no wrapper: there the result is the datagram itself. The result
/// is empty if no packet can be made.
pub(super) fn packet_of<'a>(native: Option<&'a mut NativeReceiving>, control: &'a [u8]) -> &'a [u8] {
    match native {
        Some(native) => native.wrap(control).unwrap_or(&[]),
        None => control,
    }
}
