//! One line of an egress: its socket, its destination, and a flag that says whether the socket has room.

use shmcast::sys::datagrams::{self, Segments};
use std::net::{SocketAddr, UdpSocket};

use crate::proto::link::Link;
use crate::socket::{self, Marks, RefusedSettings, SocketError};
use crate::spec::{BridgeSpec, LineSpec, LinkSpeed, SendSpec};
use crate::status::SendCounters;

/// Opens the socket of a line, and connects it if there is a route. The kernel looks up the route of each datagram of an unconnected
/// socket.
pub(super) fn open_connected(
    line: &LineSpec,
    marks: Marks,
    send: &SendSpec,
    refusals: &mut RefusedSettings,
) -> Result<UdpSocket, SocketError> {
    let socket = socket::open_sender(line, send.ttl, send.loopback)?;
    socket::mark(&socket, marks, format_args!("line {}", line.group), refusals);
    // Without a route, the socket cannot be connected. Then each datagram gets the address, and each send reports the error.
    let _ = socket.connect(line.group);
    Ok(socket)
}

/// A socket and its destination.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) socket: UdpSocket,
    pub(super) from: Option<SocketAddr>,
    pub(super) to: SocketAddr,
    /// The number in the spec; `None` for the line of the leases.
    pub(super) at: Option<usize>,
    /// Whether the socket is connected to `to`, so that the kernel need not look up the route for each
    /// datagram.
    pub(super) is_connected: bool,
    /// Whether the socket's buffer was full lately. The bridge sends nothing more on this line until the buffer has room again.
    pub(super) is_paused: bool,
    /// Whether consecutive packets of equal length are sent in one call.
    pub(super) segments: Segments,
}

impl Line {
    /// Opens a line of the spec.
    pub(super) fn open(
        (at, line): (usize, &LineSpec),
        marks: Marks,
        send: &SendSpec,
        refusals: &mut RefusedSettings,
    ) -> Result<Line, SocketError> {
        let socket = open_connected(line, marks, send, refusals)?;
        let mut opened = Line { at: Some(at), ..Line::to(line.group, None, socket, false) };
        opened.note_addresses();
        Ok(opened)
    }

    /// Replaces the socket by one that was opened again.
    pub(super) fn renew(&mut self, socket: UdpSocket) {
        (self.socket, self.is_paused, self.segments) = (socket, false, Segments::On);
        self.note_addresses();
    }

    fn note_addresses(&mut self) {
        self.from = self.socket.local_addr().ok();
        self.is_connected = self.socket.peer_addr().is_ok();
    }

    pub(super) fn to(
        to: SocketAddr,
        from: Option<SocketAddr>,
        socket: UdpSocket,
        is_connected: bool,
    ) -> Self {
        let segments = Segments::On;
        Self { socket, from, to, at: None, is_connected, is_paused: false, segments }
    }

    pub(super) fn send<'a>(
        &mut self,
        to: Option<SocketAddr>,
        datagrams: impl Iterator<Item = &'a [u8]>,
        counters: &mut SendCounters,
    ) {
        let were_taken = self.segments == Segments::On;
        let sent = datagrams::send_segmented(&self.socket, to, datagrams, &mut self.segments);
        if let Segments::Refused(error) = self.segments
            && were_taken
        {
            counters.segments_refused += 1;
            counters.segments_error = error as u64;
        }
        counters.datagrams_sent += sent.sent;
        counters.datagrams_segmented += sent.segmented;
        counters.datagrams_refused += sent.refused;
        let is_full = sent.error == Some(nix::errno::Errno::EAGAIN);
        if is_full != self.is_paused {
            self.is_paused = is_full;
            counters.pauses += u64::from(is_full);
            // If the system refuses to change the socket's mode, each batch still waits until the socket has room.
            let _ = self.socket.set_nonblocking(is_full);
        }
    }
}

/// Returns the link over which the packets are sent. If the spec gives no link, returns the slowest of the interfaces that report their
/// speed.
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
