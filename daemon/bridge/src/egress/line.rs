//! One line of an egress: a socket, its destination, and whether it has room.

use shmcast::sys::datagrams;
use std::net::{SocketAddr, UdpSocket};

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
