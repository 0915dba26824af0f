//! Control datagrams of servers.

use super::inlet::Inlet;
use crate::proto::control::ControlDatagram;
use crate::proto::lease_client::LeaseClient;
use crate::proto::receiver::Receiver;

/// Takes a control datagram of a server.
pub(super) fn handle_control(
    now_ns: u64,
    server: usize,
    datagram: &[u8],
    lease: Option<&mut LeaseClient>,
    receiver: &mut Receiver,
    inlet: &mut Inlet,
) {
    match (ControlDatagram::parse(datagram), lease) {
        (Ok(ControlDatagram::Gone { session, first, oldest }), _) => {
            receiver
                .handle_gone(now_ns, server, (session, first, oldest), &mut |delivery| inlet.take(delivery));
        }
        (Ok(ControlDatagram::Held { session, first, next, .. }), _) => {
            receiver
                .handle_held(now_ns, server, (session, first, next), &mut |delivery| inlet.take(delivery));
        }
        (Ok(ControlDatagram::Later { session, first }), _) => {
            receiver.handle_later(now_ns, server, (session, first))
        }
        (Ok(control), Some(lease)) => {
            receiver.note_alive(now_ns, server);
            lease.handle_control(now_ns, &control);
            if let Some(rtt_ns) = lease.rtt_ns() {
                receiver.note_rtt(server, rtt_ns);
            }
        }
        (Ok(_), None) => inlet.counters.datagrams_unexpected += 1,
        (Err(_), _) => inlet.counters.malformed.control += 1,
    }
}
