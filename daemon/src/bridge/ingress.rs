//! From another host into a local channel, whose only publisher it is: the same messages under the same sequences, each
//! once and in order, and word of what will never come.
//!
//! One thread receives every line, asks for what is missing, keeps the leases and publishes. Lines have a socket each;
//! requests leave through one of their own, so that nobody takes our answers; a unicast feed has a third, so that live
//! packets and repairs cannot be mistaken for each other. After the start the loop makes no system call but the sockets'
//! own, except where a session begins or ends.

use shmcast::hosting::datagrams::{self, Datagram, Inbox};
use shmcast::{Publisher, PublisherBuilder};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::FromZeros;

use super::BridgeError;
use super::origins::Origins;
use super::pcap::Tap;
use super::proto::control::{CONTROL_MAX_BYTES, Control, is_control};
use super::proto::counters::Histogram;
use super::proto::gap::{GapConfig, GapPolicy};
use super::proto::lease_client::{LeaseClient, LeaseState};
use super::proto::receiver::{DEFAULT_SILENCE_NS, Delivery, Follow, Join, Origin, Receiver, ReceiverConfig};
use super::proto::session::Session;
use super::proto::wire::REQUEST_BYTES;
use super::proto::{MAX_LINES, MAX_SERVERS, MICROSECOND_NS, MILLISECOND_NS, SECOND_NS};
use super::socket::{self, Refusals, Tuning};
use super::spec::{BridgeSpec, Direction, GapMode, ReceiveSpec, WaitMode};
use super::status::{Board, Life, Phase, ReceiveCounters, SharedHistogram};
use super::thread::{Clock, SHOW_EVERY_NS, spawn, wall_ns};

/// Longest time that a sleeping thread does not look at the stop flag.
const LOOK_UP_NS: u64 = 20 * MILLISECOND_NS;
/// Spin hints between two looks at the sockets.
const SPINS: u32 = 128;
/// How long a stopping bridge waits for the server's word that its leases are given back.
const LEAVE_NS: u64 = SECOND_NS / 2;
/// Counts of shows between two of the histograms, which are long.
const SHOWS_PER_HISTOGRAM: u64 = 10;
/// Datagrams are received into slots of at least this size, so that a sender with a larger payload than ours is heard.
const SLOT_BYTES: usize = 9_216;

/// What is not the bridge's own to decide.
#[derive(Debug, Default)]
pub struct IngressOptions {
    /// Where every packet sent and received is copied to.
    pub tap: Option<Tap>,
    /// Sessions that began on this host, and are not received here.
    pub origins: Origins,
}

/// What the thread and its owner share.
#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    life: Life,
    counters: Board<ReceiveCounters>,
    recovery: SharedHistogram,
    to_ring: SharedHistogram,
}

/// A running ingress. Dropping it stops it.
#[derive(Debug)]
pub struct Ingress {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Ingress {
    /// Takes the channel as its publisher, opens the sockets and starts the thread. It goes on where an earlier bridge of
    /// the same session left off.
    ///
    /// # Errors
    /// [`BridgeError`]; nothing is left running.
    pub fn start(
        spec: &BridgeSpec,
        channel: PublisherBuilder,
        options: IngressOptions,
    ) -> Result<Ingress, BridgeError> {
        BridgeError::check(spec)?;
        let Some(Direction::Receive(receive)) = spec.direction() else {
            let problems = vec!["receive: this bridge sends".to_owned()];
            return Err(BridgeError::Spec { bridge: spec.title().to_owned(), problems });
        };
        let follow = follow(spec)?;
        let mut refusals = Refusals::default();
        let mut ports = Vec::new();
        let tuning = Tuning { buffer_bytes: receive.buffer_bytes, busy_poll_us: spec.busy_poll_us };
        for (index, line) in spec.lines.iter().enumerate() {
            let socket = socket::open_line(line, tuning, &mut refusals)?;
            ports.push(Port::new(socket, Role::Line(index), spec));
        }
        let clock = Clock::start();
        let anywhere = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        if !receive.servers.is_empty() {
            let socket = socket::open_unicast(anywhere, tuning, &mut refusals)?;
            ports.push(Port::new(socket, Role::Servers, spec));
            if receive.lease {
                ports.last_mut().expect("just pushed").ask_for_leases(receive, false, &clock)?;
            }
        }
        if receive.unicast {
            let socket = socket::open_unicast(anywhere, tuning, &mut refusals)?;
            ports.push(Port::new(socket, Role::Unicast, spec));
            ports.last_mut().expect("just pushed").ask_for_leases(receive, true, &clock)?;
        }
        let publisher = channel.clone().open()?;
        let (next, resumed) =
            (publisher.next_sequence(), publisher.remote_session().map(Session::from_bytes));
        let receiver = Receiver::new(receiver_config(spec, receive, follow, next, resumed));
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            life: Life::new(refusals.0),
            counters: Board::default(),
            recovery: SharedHistogram::default(),
            to_ring: SharedHistogram::default(),
        });
        if let Some(session) = receiver.session() {
            shared.life.note_session(session);
        }
        let thread = Receiving {
            ports,
            servers: receive.servers.clone(),
            lines: spec.lines.len(),
            receiver,
            inlet: Inlet {
                publisher: Some(publisher),
                channel,
                counters: ReceiveCounters::new_zeroed(),
                shared: shared.clone(),
                origins: options.origins,
                error: None,
            },
            wait: spec.wait,
            timeouts: [0; MAX_SERVERS],
            to_ring: Histogram::default(),
            since_ns: wall_ns(),
            tap: options.tap,
            clock,
            shared: shared.clone(),
        };
        let thread = spawn(&format!("recv-{}", spec.title()), spec.cpu, move || thread.run())?;
        Ok(Ingress { shared, thread: Some(thread) })
    }

    /// Makes it give its leases back and stop soon. The local channel is closed: its readers are told so.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Whether its thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until its thread has ended. Stop it before.
    pub fn join(&mut self) {
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            self.shared.life.fail("its thread panicked: please report this".to_owned());
        }
    }

    /// Phase, session, refusals and error.
    pub fn life(&self) -> &Life {
        &self.shared.life
    }

    /// What was counted, some milliseconds ago at most.
    pub fn counters(&self) -> ReceiveCounters {
        self.shared.counters.read()
    }

    /// From noticing a loss to having the message, for what servers brought.
    pub fn recovery(&self) -> Histogram {
        self.shared.recovery.read()
    }

    /// From the kernel's time stamp on a datagram to its messages in the ring, for live datagrams.
    pub fn receive_to_ring(&self) -> Histogram {
        self.shared.to_ring.read()
    }
}

impl Drop for Ingress {
    fn drop(&mut self) {
        self.stop();
        self.join();
    }
}

fn follow(spec: &BridgeSpec) -> Result<Follow, BridgeError> {
    match &spec.session {
        None => Ok(Follow::First { silence_ns: DEFAULT_SILENCE_NS }),
        Some(tag) if tag.len() <= 4 => Ok(Follow::Channel(Session::of_channel(tag, 0)?.tag())),
        Some(name) => Ok(Follow::Only(Session::named(name)?)),
    }
}

fn receiver_config(
    spec: &BridgeSpec,
    receive: &ReceiveSpec,
    follow: Follow,
    next: u64,
    resumed: Option<Session>,
) -> ReceiverConfig {
    let is_followed = |session: &Session| match follow {
        Follow::Channel(tag) => session.tag() == tag,
        Follow::Only(only) => *session == only,
        Follow::First { .. } => true,
    };
    let join = match (resumed.filter(is_followed), receive.from) {
        (Some(session), _) => Join::Resume { session, next },
        (None, Some(from)) => Join::From(from),
        (None, None) => Join::FirstSeen,
    };
    let unicast_lines = if receive.unicast { receive.servers.len() } else { 0 };
    ReceiverConfig {
        join,
        lines: spec.lines.len() + unicast_lines,
        gaps: GapConfig {
            hold_ns: receive.hold_us * MICROSECOND_NS,
            hold_max_ns: 4 * receive.hold_us * MICROSECOND_NS,
            servers: receive.servers.len(),
            payload_bytes: spec.payload_bytes,
            policy: match receive.gap {
                GapMode::Block => GapPolicy::Block,
                GapMode::Skip => {
                    GapPolicy::Skip { give_up_ns: receive.give_up_ms.saturating_mul(MILLISECOND_NS) }
                }
            },
            ..GapConfig::default()
        },
        ..ReceiverConfig::following(follow)
    }
}

/// What a socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// This line of the feed.
    Line(usize),
    /// Requests to the servers, and what they answer.
    Servers,
    /// The feed itself, sent by the servers to us alone.
    Unicast,
}

/// A socket, what waits in it, and the leases that hang on it.
struct Port {
    socket: UdpSocket,
    role: Role,
    inbox: Inbox,
    local: SocketAddrV4,
    last_drops: u32,
    /// One a server, or none.
    leases: Vec<LeaseClient>,
}

impl Port {
    fn new(socket: UdpSocket, role: Role, spec: &BridgeSpec) -> Self {
        let local = match socket.local_addr() {
            Ok(SocketAddr::V4(address)) => address,
            _ => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0),
        };
        let inbox = Inbox::new(spec.payload_bytes.max(SLOT_BYTES));
        Self { socket, role, inbox, local, last_drops: 0, leases: Vec::new() }
    }

    fn ask_for_leases(
        &mut self,
        receive: &ReceiveSpec,
        live: bool,
        clock: &Clock,
    ) -> Result<(), BridgeError> {
        for _ in &receive.servers {
            let mut seed = [0; 8];
            getrandom::fill(&mut seed).map_err(|e| BridgeError::Start(std::io::Error::other(e)))?;
            self.leases.push(LeaseClient::new(clock.now_ns(), live, 0, u64::from_ne_bytes(seed)));
        }
        Ok(())
    }
}

/// The receiving thread.
struct Receiving {
    ports: Vec<Port>,
    servers: Vec<SocketAddrV4>,
    /// Lines before those of unicast leases.
    lines: usize,
    receiver: Receiver,
    inlet: Inlet,
    wait: WaitMode,
    /// Requests that each server left unanswered, as far as that was acted on.
    timeouts: [u64; MAX_SERVERS],
    to_ring: Histogram,
    /// When the thread began, in nanoseconds since 1970: what waited for that is not counted as slow.
    since_ns: u64,
    tap: Option<Tap>,
    clock: Clock,
    shared: Arc<Shared>,
}

impl Receiving {
    fn run(mut self) {
        let (mut shown_ns, mut shows) = (0, 0u64);
        while !self.shared.stop.load(Ordering::Relaxed) && self.inlet.error.is_none() {
            let received = self.receive_all();
            let now_ns = self.clock.now_ns();
            self.act(now_ns);
            if now_ns.saturating_sub(shown_ns) >= SHOW_EVERY_NS {
                (shown_ns, shows) = (now_ns, shows + 1);
                self.show(shows.is_multiple_of(SHOWS_PER_HISTOGRAM));
            }
            if received == 0 {
                self.rest(now_ns);
            }
        }
        self.leave();
        self.show(true);
        match self.inlet.error.take() {
            Some(why) => self.shared.life.fail(why),
            None => self.shared.life.enter(Phase::Ended),
        }
    }

    /// Takes one batch from every socket; gives how many datagrams there were.
    fn receive_all(&mut self) -> usize {
        let mut total = 0;
        for at in 0..self.ports.len() {
            let Port { inbox, socket, .. } = &mut self.ports[at];
            match inbox.receive(&*socket) {
                Ok(0) => {}
                Ok(received) => {
                    total += received;
                    self.handle_batch(at);
                }
                // A host that says that nobody listens there: the next server's turn will come.
                Err(_) => self.inlet.counters.receive_errors += 1,
            }
        }
        total
    }

    fn handle_batch(&mut self, at: usize) {
        let Self { ports, servers, lines, receiver, inlet, to_ring, since_ns, tap, clock, .. } = self;
        let Port { inbox, role, last_drops, leases, local, .. } = &mut ports[at];
        let now_ns = clock.now_ns();
        for datagram in inbox.datagrams() {
            if let Some(tap) = tap {
                let time_ns = datagram.time_ns.unwrap_or_else(wall_ns);
                tap.record(time_ns, datagram.from.into(), (*local).into(), datagram.bytes);
            }
            let server = || servers.iter().position(|server| *server == datagram.from);
            let (origin, line) = match *role {
                Role::Line(line) => (Origin::Line(line), Some(line)),
                Role::Servers | Role::Unicast => match server() {
                    None => {
                        inlet.counters.datagrams_unexpected += 1;
                        continue;
                    }
                    Some(server) => {
                        if let Some(lease) = leases.get_mut(server) {
                            lease.note_traffic(now_ns);
                        }
                        if is_control(datagram.bytes) {
                            handle_control(
                                now_ns,
                                server,
                                datagram.bytes,
                                leases.get_mut(server),
                                receiver,
                                inlet,
                            );
                            continue;
                        }
                        let line = (*lines + server).min(MAX_LINES - 1);
                        match role {
                            Role::Unicast => (Origin::Line(line), Some(line)),
                            _ => (Origin::Server(server), None),
                        }
                    }
                },
            };
            if let Some(line) = line {
                note_line(&mut inlet.counters, line, &datagram, last_drops);
            }
            if datagram.is_truncated {
                // Its parser would only say that something is missing at the end.
                continue;
            }
            receiver.handle_datagram(now_ns, origin, datagram.bytes, &mut |delivery| inlet.take(delivery));
        }
        // The clock of the kernel's stamps, read once a batch: what it says is at most the batch's own time too long.
        let in_ring_ns = wall_ns();
        if *role != Role::Servers {
            let stamps = inbox.datagrams().filter_map(|datagram| datagram.time_ns);
            for time_ns in stamps.filter(|time_ns| time_ns >= since_ns) {
                to_ring.record(in_ring_ns.saturating_sub(time_ns), 1);
            }
        }
    }

    /// What is due: timeouts, requests, leases.
    fn act(&mut self, now_ns: u64) {
        if self.receiver.next_deadline().is_some_and(|due_ns| due_ns <= now_ns) {
            let inlet = &mut self.inlet;
            self.receiver.handle_timeout(now_ns, &mut |delivery| inlet.take(delivery));
        }
        while let Some((server, request)) = self.receiver.poll_request(now_ns) {
            self.ask(server, &request);
        }
        self.doubt_leases(now_ns);
        self.keep_leases(now_ns);
    }

    fn ask(&mut self, server: usize, request: &[u8; REQUEST_BYTES]) {
        let port = self.ports.iter().find(|port| port.role == Role::Servers);
        let (Some(port), Some(&to)) = (port, self.servers.get(server)) else { return };
        let sent = datagrams::send(&port.socket, to, [&request[..]]);
        self.inlet.counters.sends_refused += sent.refused;
        if let Some(tap) = &self.tap {
            tap.record(wall_ns(), port.local.into(), to.into(), request);
        }
    }

    /// A server that left a request unanswered may have restarted and forgotten us.
    fn doubt_leases(&mut self, now_ns: u64) {
        let Some(port) = self.ports.iter_mut().find(|port| port.role == Role::Servers) else { return };
        let servers = self.receiver.counters().servers.iter().zip(&mut self.timeouts);
        for (lease, (server, known)) in port.leases.iter_mut().zip(servers) {
            if server.timeouts > *known {
                *known = server.timeouts;
                lease.doubt(now_ns);
            }
        }
    }

    fn keep_leases(&mut self, now_ns: u64) {
        for port in &mut self.ports {
            for (lease, to) in port.leases.iter_mut().zip(&self.servers) {
                let mut out = [0; CONTROL_MAX_BYTES];
                if let Some(size) = lease.poll_transmit(now_ns, &mut out) {
                    let sent = datagrams::send(&port.socket, *to, [&out[..size]]);
                    self.inlet.counters.sends_refused += sent.refused;
                }
            }
        }
    }

    /// Waits for a datagram or for the next thing that is due.
    fn rest(&self, now_ns: u64) {
        match self.wait {
            WaitMode::Spin => (0..SPINS).for_each(|_| std::hint::spin_loop()),
            WaitMode::Yield => std::thread::yield_now(),
            WaitMode::Block => {
                let leases = self.ports.iter().flat_map(|port| &port.leases);
                let due_ns =
                    leases.filter_map(LeaseClient::next_deadline).chain(self.receiver.next_deadline());
                let due_ns = due_ns.min().unwrap_or(u64::MAX);
                let limit_ns = due_ns.saturating_sub(now_ns).min(LOOK_UP_NS);
                if limit_ns > 0 {
                    let sockets = self.ports.iter().map(|port| port.socket.as_fd());
                    socket::wait_for_any(sockets, Duration::from_nanos(limit_ns));
                }
            }
        }
    }

    /// Gives the leases back, for a moment; without an answer they run out by themselves.
    fn leave(&mut self) {
        let mut now_ns = self.clock.now_ns();
        let until_ns = now_ns + LEAVE_NS;
        let is_gone = |lease: &LeaseClient| lease.state() == LeaseState::Gone;
        self.ports.iter_mut().flat_map(|port| &mut port.leases).for_each(|lease| lease.stop(now_ns));
        while now_ns < until_ns && !self.ports.iter().flat_map(|port| &port.leases).all(is_gone) {
            self.keep_leases(now_ns);
            let sockets = self.ports.iter().filter(|port| !port.leases.is_empty());
            socket::wait_for_any(sockets.map(|port| port.socket.as_fd()), Duration::from_millis(5));
            self.receive_all();
            now_ns = self.clock.now_ns();
        }
    }

    fn show(&mut self, histograms: bool) {
        let is_held = |lease: &&LeaseClient| matches!(lease.state(), LeaseState::Held { .. });
        let held = self.ports.iter().flat_map(|port| &port.leases).filter(is_held).count();
        let counters = &mut self.inlet.counters;
        counters.set(&self.receiver, self.servers.len());
        counters.leases_held = held as u64;
        counters.next_sequence =
            self.inlet.publisher.as_ref().map_or(counters.next_sequence, Publisher::next_sequence);
        self.shared.counters.show(counters);
        if histograms {
            self.shared.recovery.show(&self.receiver.counters().recovery);
            self.shared.to_ring.show(&self.to_ring);
        }
    }
}

fn note_line(counters: &mut ReceiveCounters, line: usize, datagram: &Datagram<'_>, last_drops: &mut u32) {
    let line = &mut counters.lines[line];
    line.datagrams += 1;
    line.truncated += u64::from(datagram.is_truncated);
    if let Some(drops) = datagram.dropped {
        line.kernel_drops += u64::from(drops.wrapping_sub(*last_drops));
        *last_drops = drops;
    }
}

fn handle_control(
    now_ns: u64,
    server: usize,
    datagram: &[u8],
    lease: Option<&mut LeaseClient>,
    receiver: &mut Receiver,
    inlet: &mut Inlet,
) {
    match (Control::parse(datagram), lease) {
        (Ok(Control::Gone { session, first, oldest }), _) => {
            receiver
                .handle_gone(now_ns, server, (session, first, oldest), &mut |delivery| inlet.take(delivery));
        }
        (Ok(control), Some(lease)) => {
            lease.handle_control(now_ns, &control);
            if let Some(rtt_ns) = lease.rtt_ns() {
                receiver.note_rtt(server, rtt_ns);
            }
        }
        (Ok(_), None) => inlet.counters.datagrams_unexpected += 1,
        (Err(_), _) => inlet.counters.malformed.control += 1,
    }
}

/// Where deliveries go: the local channel.
struct Inlet {
    /// `None` between the end of a session and what comes next.
    publisher: Option<Publisher>,
    channel: PublisherBuilder,
    counters: ReceiveCounters,
    shared: Arc<Shared>,
    origins: Origins,
    /// Why nothing can be published any more.
    error: Option<String>,
}

impl Inlet {
    #[inline]
    fn take(&mut self, delivery: Delivery<'_>) {
        match delivery {
            Delivery::Message { sequence, data } => self.publish(sequence, data),
            Delivery::Gap { from: _, to } => self.skip_to(to),
            Delivery::NewSession { session, next, .. } => self.begin(session, next),
            Delivery::End { .. } => {
                if let Some(publisher) = self.publisher.take() {
                    self.counters.next_sequence = publisher.next_sequence();
                    publisher.close();
                }
                self.shared.life.enter(Phase::Ending);
            }
        }
    }

    #[inline]
    fn publish(&mut self, sequence: u64, data: &[u8]) {
        self.skip_to(sequence);
        let Some(publisher) = &mut self.publisher else { return };
        if publisher.next_sequence() > sequence {
            self.counters.messages_behind += 1;
        } else if publisher.publish(data).is_ok() {
            self.counters.messages_published += 1;
        } else {
            // It exists, but not here: readers are told as of any other loss.
            publisher.gap(sequence);
            self.counters.messages_too_large += 1;
            self.counters.messages_missing += 1;
        }
    }

    /// Tells readers that what comes before `next` and is not there yet never will be.
    #[inline]
    fn skip_to(&mut self, next: u64) {
        if self.publisher.is_none() {
            self.open(self.channel.clone());
        }
        let Some(publisher) = &mut self.publisher else { return };
        if publisher.next_sequence() < next {
            self.counters.messages_missing += next - publisher.next_sequence();
            publisher.gap(next - 1);
        }
    }

    #[cold]
    fn open(&mut self, channel: PublisherBuilder) {
        if self.error.is_some() {
            return;
        }
        match channel.open() {
            Ok(publisher) => {
                self.publisher = Some(publisher);
                self.shared.life.enter(Phase::Running);
            }
            Err(e) => self.error = Some(e.to_string()),
        }
    }

    #[cold]
    fn begin(&mut self, session: Session, next: u64) {
        if self.origins.contains(session) {
            self.error = Some(format!(
                "session {session} began on this host and has come back: a loop. Receive from a host nearer to the source"
            ));
            self.publisher = None;
            return;
        }
        // Sequences of a channel only grow: one that begins again does so in a segment of its own.
        let ours = self.publisher.as_ref().map_or(self.counters.next_sequence, Publisher::next_sequence);
        if ours > next {
            self.publisher = None;
            self.open(self.channel.clone().anew());
        } else if self.publisher.is_none() {
            self.open(self.channel.clone());
        }
        if let Some(publisher) = &mut self.publisher {
            publisher.session(*session.as_bytes());
        }
        self.shared.life.note_session(session);
        self.skip_to(next);
    }
}
