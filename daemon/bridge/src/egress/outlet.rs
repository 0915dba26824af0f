//! From the ring's events to datagrams on every line and lease, and to the counters of both.

use shmcast::Event;
use shmcast::hosting::datagrams;
use std::net::{SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Shared;
use crate::pcap::Tap;
use crate::proto::counters::SenderCounters;
use crate::proto::sender::{PushError, Sender, SenderConfig};
use crate::proto::session::Session;
use crate::repair::LiveTable;
use crate::status::{Phase, SendCounters};
use crate::thread::{Clock, wall_ns};

/// A socket and where it sends to.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) socket: UdpSocket,
    pub(super) from: Option<SocketAddrV4>,
    pub(super) to: SocketAddrV4,
    /// Whether the socket is connected to it, so that the kernel need not find the way for each datagram.
    pub(super) is_connected: bool,
}

/// Where the ring's events go.
pub(super) struct Outlet {
    pub(super) sender: Sender,
    pub(super) config: SenderConfig,
    /// What senders of earlier sessions counted.
    pub(super) earlier: SenderCounters,
    pub(super) counters: SendCounters,
    /// The session's name was given: it stays whatever session the channel was brought here with.
    pub(super) keeps_session: bool,
    /// The session was ended; whatever comes now begins where it stopped.
    pub(super) is_over: bool,
    /// The end that comes first is that of a publisher before our time.
    pub(super) skips_end: bool,
    pub(super) lines: Vec<Line>,
    /// The socket that unicast leases are served from.
    pub(super) leases: Option<Line>,
    pub(super) clock: Clock,
    pub(super) tap: Option<Tap>,
    pub(super) shared: Arc<Shared>,
}

impl Outlet {
    pub(super) fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Message(message) => self.push(message.sequence, message.payload),
            Event::Lapped(lapped) => {
                self.counters.lapped += 1;
                self.counters.messages_missed += lapped.missed;
            }
            Event::Gap { from, to } => self.counters.gap_messages += to - from + 1,
            Event::NewSession { session } if !self.keeps_session => {
                let session = Session::from_bytes(session);
                if session != self.sender.session() {
                    self.flush();
                    self.begin(session, self.sender.next());
                }
            }
            // The loop attaches again where the channel begins again.
            Event::NewSession { .. } | Event::NewEpoch { .. } | Event::Restarted => {}
            Event::End if self.skips_end => self.skips_end = false,
            Event::End => {
                self.flush();
                self.end(self.clock.now_ns());
            }
            // Library and bridge are released together: a new kind of event gets its place here first.
            other => debug_assert!(false, "bridges do not carry {other:?}"),
        }
    }

    #[inline]
    fn push(&mut self, sequence: u64, payload: &[u8]) {
        self.skips_end = false;
        if self.is_over {
            self.begin(self.sender.session(), sequence);
        }
        loop {
            match self.sender.push(sequence, payload) {
                Ok(()) | Err(PushError::WentBack { .. }) => return,
                Err(PushError::BatchFull) => self.send_batch(),
                Err(PushError::TooLong { .. }) => {
                    self.counters.messages_too_long += 1;
                    return;
                }
            }
        }
    }

    /// Sends everything that was taken.
    pub(super) fn flush(&mut self) {
        self.sender.close();
        self.send_batch();
    }

    fn send_batch(&mut self) {
        if self.sender.datagrams().next().is_none() {
            return;
        }
        // First: the fastest receiver's request must not be refused as too early.
        self.shared.next.store(self.sender.next(), Ordering::Release);
        send_to_all(
            (&self.lines, self.leases.as_ref(), &self.shared.live, self.tap.as_ref()),
            &mut self.counters,
            || self.sender.datagrams(),
        );
        self.sender.clear(self.clock.now_ns());
    }

    /// Sends the heartbeat or end-of-session packet that is due.
    pub(super) fn send_idle(&mut self, now_ns: u64) {
        let Some(packet) = self.sender.poll_idle(now_ns) else { return };
        send_to_all(
            (&self.lines, self.leases.as_ref(), &self.shared.live, self.tap.as_ref()),
            &mut self.counters,
            || std::iter::once(&packet[..]),
        );
    }

    pub(super) fn end(&mut self, now_ns: u64) {
        if !self.is_over {
            self.is_over = true;
            self.sender.end(now_ns);
            self.shared.life.enter(Phase::Ending);
        }
    }

    /// A session begins, or the one that had ended goes on.
    #[cold]
    pub(super) fn begin(&mut self, session: Session, next: u64) {
        self.add_up();
        self.counters.sessions += u64::from(session != self.sender.session());
        self.sender = Sender::new(self.config, session, next, self.clock.now_ns());
        self.is_over = false;
        self.shared.set_session(session);
        self.shared.next.store(next, Ordering::Release);
        self.shared.life.enter(Phase::Running);
    }

    fn add_up(&mut self) {
        let last = *self.sender.counters();
        self.earlier.packets += last.packets;
        self.earlier.messages += last.messages;
        self.earlier.bytes += last.bytes;
        self.earlier.heartbeats += last.heartbeats;
        self.earlier.ends += last.ends;
    }

    pub(super) fn show(&mut self) {
        self.counters.set_sender(&self.earlier, self.sender.counters());
        self.counters.next_sequence = self.sender.next();
        self.shared.counters.show(&self.counters);
    }
}

fn send_to_all<'a, D: Iterator<Item = &'a [u8]>>(
    (lines, leases, live, tap): (&[Line], Option<&Line>, &LiveTable, Option<&Tap>),
    counters: &mut SendCounters,
    datagrams: impl Fn() -> D,
) {
    let mut count = |sent: datagrams::Sent| {
        counters.datagrams_sent += sent.sent;
        counters.datagrams_refused += sent.refused;
    };
    for line in lines {
        count(datagrams::send(&line.socket, (!line.is_connected).then_some(line.to), datagrams()));
    }
    if let Some(leases) = leases {
        live.iter().for_each(|to| count(datagrams::send(&leases.socket, to, datagrams())));
    }
    if let Some(tap) = tap {
        let now_ns = wall_ns();
        let routes = lines
            .iter()
            .map(|line| (line.from, line.to))
            .chain(leases.iter().flat_map(|leases| live.iter().map(|to| (leases.from, to))));
        for (from, to) in routes {
            let from = from.unwrap_or(SocketAddrV4::new([0, 0, 0, 0].into(), 0));
            datagrams().for_each(|datagram| tap.record(now_ns, from.into(), to.into(), datagram));
        }
    }
}
