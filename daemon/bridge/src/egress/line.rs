//! One line of an egress: a socket, its destination, and whether it has room.

use shmcast::sys::datagrams;
use std::net::{SocketAddr, UdpSocket};

use crate::proto::link::Link;
use crate::socket;
use crate::spec::{BridgeSpec, LinkSpeed};
use crate::status::SendCounters;

/// A socket and its destination.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) socket: UdpSocket,
    pub(super) from: Option<SocketAddr>,
    pub(super) to: SocketAddr,
    /// Whether the socket is connected to `to`, so that the kernel need not look up the route for each
    /// datagram.
    pub(super) is_connected: bool,
    /// Whether its buffer had no room lately. The bridge does not wait for the line until there is room
    /// again.
    pub(super) is_paused: bool,
}

impl Line {
    pub(super) fn to(
        to: SocketAddr,
        from: Option<SocketAddr>,
        socket: UdpSocket,
        is_connected: bool,
    ) -> Self {
        Self { socket, from, to, is_connected, is_paused: false }
    }

    pub(super) fn send<'a>(
        &mut self,
        to: Option<SocketAddr>,
        datagrams: impl Iterator<Item = &'a [u8]>,
        counters: &mut SendCounters,
    ) {
        let sent = datagrams::send(&self.socket, to, datagrams);
        counters.datagrams_sent += sent.sent;
        counters.datagrams_refused += sent.refused;
        let is_full = sent.error == Some(nix::errno::Errno::EAGAIN);
        if is_full != self.is_paused {
            self.is_paused = is_full;
            counters.pauses += u64::from(is_full);
            // If the system refuses that, each batch waits in vain, as the first did.
            let _ = self.socket.set_nonblocking(is_full);
        }
    }
}

/// The link that the packets leave by: the one that the spec states, or the slowest whose interface states its speed.
pub(super) fn link_of(spec: &BridgeSpec, lines: &[Line]) -> Option<Link> {
    match spec.link {
        LinkSpeed::Of(link) => Some(link),
        LinkSpeed::None => None,
        LinkSpeed::Auto => {
            let links = lines.iter().filter_map(|line| socket::link_of(&line.socket, line.from?.ip()));
            links.min_by_key(Link::bits_per_second)
        }
    }
}
