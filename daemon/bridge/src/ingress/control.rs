//! Handles the datagrams of servers: repairs for this receiver or for all receivers, answers without messages, and messages about leases.

use shmcast::sys::datagrams::Datagram;
use std::net::SocketAddr;

use super::inlet::Inlet;
use super::native::{self, NativeReceiving};
use super::port::Role;
use crate::proto::MICROSECOND_NS;
use crate::proto::control::{CONTROL_MAX_BYTES, ControlDatagram, is_control};
use crate::proto::lease_client::LeaseClient;
use crate::proto::native::container::{Container, Kind};
use crate::proto::receiver::Receiver;
use crate::proto::wire::Malformed;

/// Whether this datagram came from a server and not from the sender of a line. Native repairs for all receivers count as packets of a line,
/// because they arrive on a line.
pub(super) fn is_from_server(role: Role, datagram: &Datagram<'_>, is_native: bool) -> bool {
    match role {
        Role::Servers | Role::Unicast | Role::Repairs => true,
        Role::Line(_) => {
            is_native
                && Container::parse(datagram.bytes).is_ok_and(|(container, _)| {
                    container.is_repair || matches!(container.kind, Kind::Control(_))
                })
        }
    }
}

/// Returns the index of the server that sent a datagram. Counts the datagram as unexpected if no server sent it.
pub(super) fn server_of(servers: &[SocketAddr], datagram: &Datagram<'_>, inlet: &mut Inlet) -> Option<usize> {
    let server = servers.iter().position(|server| *server == datagram.from);
    inlet.counters.host.datagrams_unexpected += u64::from(server.is_none());
    server
}

/// Handles a server's datagram if it is a control datagram. Returns false if it is a repair. In both cases, the datagram shows that the
/// lease at this server is alive.
#[inline]
pub(super) fn take_word(
    now_ns: u64,
    server: usize,
    datagram: &Datagram<'_>,
    mut lease: Option<&mut LeaseClient>,
    native: Option<&mut NativeReceiving>,
    (receiver, inlet): (&mut Receiver, &mut Inlet),
) -> bool {
    if let Some(lease) = &mut lease {
        lease.note_traffic(now_ns);
    }
    match native {
        Some(native) => {
            if !native::is_control(datagram.bytes) {
                return false;
            }
            let mut control = [0; CONTROL_MAX_BYTES];
            if let Some(size) = native.control(now_ns, datagram, &mut control) {
                handle_control(now_ns, server, &control[..size], lease, receiver, inlet);
            }
        }
        None => {
            if !is_control(datagram.bytes) {
                return false;
            }
            handle_control(now_ns, server, datagram.bytes, lease, receiver, inlet);
        }
    }
    true
}

/// Handles a control datagram of a server.
fn handle_control(
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
        (Ok(ControlDatagram::Pause { session, wait_us }), _) => {
            receiver.handle_pause(now_ns, server, (session, u64::from(wait_us) * MICROSECOND_NS));
        }
        (Ok(control), Some(lease)) => {
            receiver.note_alive(now_ns, server);
            lease.handle_control(now_ns, &control);
            if let Some(rtt_ns) = lease.rtt_ns() {
                receiver.note_rtt(server, rtt_ns);
            }
            if let Some((place, group)) = lease.place() {
                receiver.note_place(server, place, group);
            }
        }
        (Ok(_), None) => inlet.counters.host.datagrams_unexpected += 1,
        (Err(_), _) => receiver.count_malformed(Malformed::Control),
    }
}
