//! One line of an egress: its socket, its destination, and a flag that says whether the socket has room.

use shmcast::sys::datagrams::{self, Segments};
use std::net::{SocketAddr, UdpSocket};

use crate::pcap::Tap;
use crate::proto::link::Link;
use crate::socket::{self, Marks, RefusedSettings, SocketError};
use crate::spec::{BridgeSpec, LineSpec, LinkSpeed, SendSpec};
use crate::status::SendCounters;
use crate::thread::wall_ns;

/// Opens the socket of a line. Connects the socket if there is a route, so that the kernel need not look up the route for each datagram.
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
    /// The line's number in the spec; `None` for the line of the leases.
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

    /// Replaces the line's socket by a newly opened socket.
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
            // If the system refuses to make the socket non-blocking, each batch waits until the socket has room.
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

/// Sends datagrams on all lines, and to all leases. Gives the capture a copy of each.
pub(super) fn send_to_all<'a, D: Iterator<Item = &'a [u8]>>(
    (lines, mut leases, live, tap): (&mut [Line], Option<&mut Line>, &[SocketAddr], Option<&Tap>),
    counters: &mut SendCounters,
    datagrams: impl Fn() -> D,
) {
    for line in &mut *lines {
        let to = (!line.is_connected).then_some(line.to);
        line.send(to, datagrams(), counters);
    }
    if let Some(leases) = &mut leases {
        live.iter().for_each(|to| leases.send(Some(*to), datagrams(), counters));
    }
    if let Some(tap) = tap {
        let now_ns = wall_ns();
        let routes = lines
            .iter()
            .map(|line| (line.from, line.to))
            .chain(leases.iter().flat_map(|leases| live.iter().map(|to| (leases.from, *to))));
        for (from, to) in routes {
            let from = from.unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
            datagrams().for_each(|datagram| tap.record(now_ns, from, to, datagram));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmcast::sys::datagrams::Segments;
    use std::net::UdpSocket;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;
    use std::sync::mpsc::channel;
    use std::time::Duration;
    use zerocopy::FromZeros;

    fn line(socket: UdpSocket) -> Line {
        crate::socket::set_patience(&socket).unwrap();
        let to = "127.0.0.1:9".parse().unwrap();
        // A Unix socket does not support segments.
        Line { segments: Segments::Off, ..Line::to(to, None, socket, true) }
    }

    /// The paused line of this test is a Unix socket, because its queue is short and easy to fill. A send to a full Unix socket waits, as a
    /// send through a paused network card does.
    #[test]
    fn a_paused_line_is_waited_for_once_and_another_goes_on() {
        let (paused, drain) = UnixDatagram::pair().unwrap();
        let (sends, hears) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        sends.connect(hears.local_addr().unwrap()).unwrap();
        let mut lines = [line(UdpSocket::from(OwnedFd::from(paused))), line(sends)];
        let (tell, hear) = channel();
        std::thread::spawn(move || {
            let mut counters = SendCounters::new_zeroed();
            let mut round = |rounds: u32| {
                for _ in 0..rounds {
                    let batch = || std::iter::repeat_n(&b"message"[..], 100);
                    send_to_all((&mut lines, None, &[], None), &mut counters, batch);
                }
                counters
            };
            tell.send(round(20)).unwrap();
            drain.set_nonblocking(true).unwrap();
            while drain.recv(&mut [0; 16]).is_ok() {}
            tell.send(round(1)).unwrap();
        });
        let counters = hear.recv_timeout(Duration::from_secs(20)).expect("it waits for ever");
        assert_eq!((counters.pauses, counters.datagrams_sent + counters.datagrams_refused), (1, 4_000));
        assert!(counters.datagrams_sent >= 2_000 && counters.datagrams_refused > 1_000, "{counters:?}");
        let after = hear.recv_timeout(Duration::from_secs(20)).expect("it waits for ever");
        assert!(after.datagrams_sent > counters.datagrams_sent + 100, "what has room again is used again");
    }
}
