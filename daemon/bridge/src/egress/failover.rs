//! The part of the sending thread that shares a stream with other egresses: its claims, what it hears of the
//! others, and its standby.

use shmcast::sys::datagrams::{self, Inbox};
use shmcast::{Event, LocateError, RecvError, Subscriber};
use std::io;
use std::net::{IpAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::live::{CatchUp, Live};
use super::outlet::Line;
use crate::BridgeError;
use crate::proto::claim::{Election, ElectionConfig, Role, Step};
use crate::proto::control::{CONTROL_MAX_BYTES, ControlDatagram};
use crate::proto::session::Session;
use crate::proto::wire::Downstream;
use crate::proto::{MICROSECOND_NS, MILLISECOND_NS};
use crate::socket::{self, RefusedSettings, Tuning};
use crate::spec::{BridgeSpec, SendRole, SendSpec, WaitMode};

/// Bytes of the receive buffers. They hold what comes while the loop is stopped.
const BUFFER_BYTES: usize = 4 << 20;
/// The time between two looks into the sockets while this egress sends.
const HEAR_EVERY_NS: u64 = MILLISECOND_NS / 2;
/// The longest rest of a standby.
const REST_NS: u64 = 500 * MICROSECOND_NS;
/// Events of the ring that a standby skips before it looks at anything else.
const SKIP: usize = 4_096;

/// The election, and the sockets that it listens to.
pub(super) struct Failover {
    election: Election,
    socket: UdpSocket,
    inbox: Inbox,
    peers: Vec<SocketAddrV4>,
    /// The multicast lines, as receivers hear them.
    lines: Vec<(UdpSocket, Inbox)>,
    /// The addresses that our own packets come from.
    own: Vec<SocketAddrV4>,
    /// Whether packets of peers on other hosts, and of peers on this one, are heard and known as theirs.
    hears_others: bool,
    hears_here: bool,
    bind: SocketAddrV4,
    heard_ns: u64,
    /// Where we began to read the ring: the place to send from if no peer has sent anything.
    start_at: u64,
    /// Whether the ring has ended while we stood by.
    has_ended: bool,
}

impl Failover {
    /// Opens the sockets, if the spec's role is `auto`.
    pub(super) fn open(
        spec: &BridgeSpec,
        send: &SendSpec,
        lines: &[Line],
        (session, subscriber): (Session, &Subscriber),
        now_ns: u64,
        refusals: &mut RefusedSettings,
    ) -> Result<Option<Failover>, BridgeError> {
        let (SendRole::Auto, Some(bind)) = (send.role, send.claim_bind) else { return Ok(None) };
        let tuning = Tuning { buffer_bytes: BUFFER_BYTES, busy_poll_us: 0 };
        let socket = socket::open_unicast(bind, tuning, refusals)?;
        socket::mark(&socket, spec.marks(), format_args!("claims from {bind}"), refusals);
        let mut heard = Vec::new();
        for line in spec.lines.iter().filter(|line| line.group.ip().is_multicast()) {
            heard.push((socket::open_line(line, tuning, refusals)?, Inbox::new(spec.payload_bytes)));
        }
        let mut sender = [0; 8];
        getrandom::fill(&mut sender).map_err(|e| BridgeError::Start(io::Error::other(e)))?;
        let config = ElectionConfig {
            takeover_ns: send.takeover_ms * MILLISECOND_NS,
            rank: send.rank,
            sender: u64::from_ne_bytes(sender),
        };
        let (stream, is_mirror) = stream_of(subscriber);
        Ok(Some(Failover {
            election: Election::new(config, now_ns, session, stream, is_mirror),
            socket,
            inbox: Inbox::new(CONTROL_MAX_BYTES),
            peers: send.peers.clone(),
            lines: heard,
            own: lines.iter().filter_map(|line| line.from).collect(),
            hears_others: hears_peers(lines, bind),
            hears_here: hears_peers(lines, bind) && send.loopback,
            bind,
            heard_ns: 0,
            start_at: subscriber.next_sequence(),
            has_ended: false,
        }))
    }

    /// The role, as the counters show it.
    pub(super) fn role(&self) -> u64 {
        match self.election.role() {
            Role::Listen => 1,
            Role::Standby => 2,
            Role::Active => 3,
        }
    }

    /// Notes that another ring is attached to.
    pub(super) fn note_ring(&mut self, session: Session, subscriber: &Subscriber) {
        let (stream, is_mirror) = stream_of(subscriber);
        self.election.note_ring(session, stream, is_mirror);
        (self.start_at, self.has_ended) = (subscriber.next_sequence(), false);
    }

    /// When there is something to do.
    pub(super) fn next_deadline(&self, now_ns: u64) -> u64 {
        self.election.next_deadline().min(now_ns + MILLISECOND_NS)
    }

    /// Takes what waits in the sockets: all of it if the loop has stood still.
    fn hear(&mut self, now_ns: u64, all: bool) {
        let Failover { election, socket, inbox, peers, lines, own, hears_others, hears_here, bind, .. } =
            self;
        while inbox.receive(&*socket).is_ok_and(|received| received > 0) {
            for datagram in inbox.datagrams().filter(|datagram| peers.contains(&datagram.from)) {
                if let Ok(ControlDatagram::Claim(claim)) = ControlDatagram::parse(datagram.bytes) {
                    let hears = if datagram.from.ip() == bind.ip() { *hears_here } else { *hears_others };
                    election.handle_claim(now_ns, (*datagram.from.ip()).into(), &claim, hears);
                }
            }
            if !inbox.expects_more() && !all {
                break;
            }
        }
        for (socket, inbox) in lines {
            while inbox.receive(&*socket).is_ok_and(|received| received > 0) {
                for datagram in inbox.datagrams().filter(|datagram| !own.contains(&datagram.from)) {
                    let Ok(packet) = Downstream::parse(datagram.bytes) else { continue };
                    let from = IpAddr::from(*datagram.from.ip());
                    election.handle_packet(now_ns, from, packet.session, (packet.sequence, packet.end()));
                }
                if !inbox.expects_more() && !all {
                    break;
                }
            }
        }
    }

    fn send_claim(&mut self, now_ns: u64, next: u64) {
        let Some(claim) = self.election.poll_claim(now_ns, next) else { return };
        let mut out = [0; CONTROL_MAX_BYTES];
        let size = ControlDatagram::Claim(claim).encode(&mut out);
        for peer in &self.peers {
            // A peer that is gone is no error of ours. The next claim is due soon.
            let _ = datagrams::send(&self.socket, *peer, [&out[..size]]);
        }
    }

    fn rest(&self, limit: Duration) {
        let lines = self.lines.iter().map(|(socket, _)| socket.as_fd());
        socket::wait_for_any(lines.chain([self.socket.as_fd()]), limit);
    }
}

/// Whether peers' packets are known as theirs. A packet is known by its sender's address, which must be the
/// one that the peer's claims come from. We take it that peers are set up as we are.
fn hears_peers(lines: &[Line], bind: SocketAddrV4) -> bool {
    let is_of_line = |line: &Line| line.from.is_some_and(|from| from.ip() == bind.ip());
    lines.iter().any(|line| line.to.ip().is_multicast() && is_of_line(line))
}

/// Half of the ring's identity, and whether the ring is fed from another host.
fn stream_of(subscriber: &Subscriber) -> (u64, bool) {
    (subscriber.header().uuid[0], subscriber.remote_session().is_some())
}

impl Live {
    /// Hears the peers and takes the step that is due. Returns whether this egress sends.
    pub(super) fn elect(&mut self) -> Result<bool, String> {
        let now_ns = self.outlet.clock.now_ns();
        let Some(failover) = &mut self.failover else { return Ok(true) };
        // The channel of a mirror may get another session while it is read.
        let session = self.outlet.sender.session();
        if let Some(subscriber) = self.subscriber.as_ref().filter(|_| session != failover.election.session())
        {
            let (stream, is_mirror) = stream_of(subscriber);
            failover.election.note_ring(session, stream, is_mirror);
        }
        let has_stood = failover.election.note_turn(now_ns);
        let is_active = failover.election.role() == Role::Active;
        if has_stood || !is_active || now_ns.saturating_sub(failover.heard_ns) >= HEAR_EVERY_NS {
            failover.heard_ns = now_ns;
            failover.hear(now_ns, has_stood);
        }
        if self.outlet.shared.takes_over.swap(false, Ordering::Relaxed) {
            failover.election.take(now_ns);
        }
        let step = failover.election.poll(now_ns);
        match step {
            Some(Step::Take(session, from)) => self.take_over(now_ns, session, from)?,
            Some(Step::Yield(session, until)) => self.yield_to(session, until)?,
            None => {}
        }
        let Some(failover) = &mut self.failover else { return Ok(true) };
        failover.send_claim(now_ns, self.outlet.sender.next());
        let election = &failover.election;
        let counters = &mut self.outlet.counters;
        counters.role = failover.role();
        counters.claim = election.claim();
        (counters.takeovers, counters.yields) = election.changes();
        Ok(election.role() == Role::Active)
    }

    /// Begins to send at `from`, or where this bridge began to read if no peer has sent anything.
    #[cold]
    fn take_over(&mut self, now_ns: u64, session: Session, from: Option<u64>) -> Result<(), String> {
        let (Some(subscriber), Some(failover)) = (&mut self.subscriber, &self.failover) else {
            return Ok(());
        };
        let from = from.unwrap_or(failover.start_at).min(subscriber.next_sequence());
        match subscriber.seek(from) {
            Ok(()) => {}
            // The ring no longer holds all of it.
            Err(LocateError::TooOld { oldest, .. }) => {
                subscriber.seek(oldest).map_err(|e| e.to_string())?;
                self.outlet.counters.messages_missed += oldest.saturating_sub(from);
            }
            Err(e) => return Err(format!("channel {:?}: {e}", self.spec.channel)),
        }
        let next = subscriber.next_sequence();
        self.outlet.go_on(session, next);
        self.catch_up = CatchUp::from(now_ns);
        Ok(())
    }

    /// Sends everything before `until`, and leaves the rest to the peer.
    #[cold]
    fn yield_to(&mut self, session: Session, until: u64) -> Result<(), String> {
        while self.outlet.sender.next() < until && self.subscriber.is_some() {
            if !self.carry()? {
                break;
            }
        }
        if session != self.outlet.sender.session() {
            self.outlet.begin(session, self.outlet.sender.next());
        }
        Ok(())
    }

    /// Follows the ring without sending anything. Returns false once there is nothing more to do.
    pub(super) fn stand_by(&mut self) -> Result<bool, String> {
        let now_ns = self.outlet.clock.now_ns();
        self.show_at(now_ns);
        if self.is_told_to_end() {
            return Ok(false);
        }
        let Some(subscriber) = &mut self.subscriber else {
            if !self.attach_again()? {
                self.idle.wait(Duration::from_nanos(REST_NS));
            }
            return Ok(true);
        };
        let Some(failover) = &mut self.failover else { return Ok(true) };
        // A listener has not begun: it may be the one that sends what waits in the ring.
        let events = if failover.election.role() == Role::Listen { 0 } else { SKIP };
        let mut result = Ok(());
        for _ in 0..events {
            match subscriber.try_recv() {
                Ok(Some(Event::Restarted)) => result = Err(RecvError::Superseded),
                Ok(Some(Event::Message(_))) => {
                    (self.outlet.skips_end, failover.has_ended) = (false, false);
                    continue;
                }
                Ok(Some(Event::Lapped(_) | Event::Gap { .. })) => continue,
                Ok(Some(Event::End)) => {
                    failover.has_ended = !std::mem::take(&mut self.outlet.skips_end);
                    continue;
                }
                Ok(Some(event)) => {
                    self.outlet.take(event);
                    continue;
                }
                Ok(None) => {}
                Err(e) => result = Err(e),
            }
            break;
        }
        // A standby answers repairs from its own ring.
        self.outlet.shared.next.store(subscriber.next_sequence(), Ordering::Release);
        if let Err(e) = result {
            return self.lose(e);
        }
        let Some(failover) = &self.failover else { return Ok(true) };
        if failover.has_ended && self.ends_with_channel {
            return Ok(false);
        }
        let left_ns = failover.next_deadline(now_ns).saturating_sub(now_ns).min(REST_NS);
        let left = Duration::from_nanos(left_ns);
        match self.spec.wait {
            WaitMode::Block => failover.rest(left),
            WaitMode::Spin | WaitMode::Yield => self.idle.wait(left),
        }
        Ok(true)
    }

    /// Ends the session again if the ring had ended before we took over.
    pub(super) fn end_again(&mut self, now_ns: u64) {
        if self.failover.as_mut().is_some_and(|failover| std::mem::take(&mut failover.has_ended)) {
            self.outlet.end(now_ns);
        }
    }
}
