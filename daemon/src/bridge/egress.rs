//! From a local channel to other hosts: a reader of the ring like any other, which packs what is waiting and never waits
//! to fill a packet.
//!
//! One thread reads the ring and sends to every line and lease; retransmissions are `repair`'s, on another thread, so that
//! live traffic goes first. The publisher never waits for either: a bridge that is overtaken counts what it missed, and
//! receivers get an exact gap. After the start the loop makes no system call but those that send, sleep or yield.

use shmcast::{ChannelError, Event, RecvError, Start, State, Subscriber, SubscriberBuilder, Wait};
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::FromZeros;

use super::BridgeError;
use super::origins::Origins;
use super::pcap::Tap;
use super::proto::counters::SenderCounters;
use super::proto::sender::{PushError, Sender, SenderConfig};
use super::proto::session::{EPOCH_LIMIT, Session};
use super::proto::wire::{HEADER_BYTES, LENGTH_BYTES};
use super::repair::{LiveTable, Repair};
use super::socket::{self, Refusals, Tuning};
use super::spec::{BridgeSpec, Direction, SendSpec, StartAt, WaitMode};
use super::status::{Board, Life, Phase, RepairCounters, SendCounters};
use super::thread::{Clock, Idle, SHOW_EVERY_NS, spawn, wall_ns};
use shmcast::hosting::datagrams;

/// Events taken from the ring before the loop looks at anything else.
const EVENTS_PER_TURN: usize = 1_024;
/// Longest time that a sleeping thread does not look at the stop flag.
const LOOK_UP: Duration = Duration::from_millis(20);
/// How often an idle thread that no daemon wakes looks at what empty polls do not see: the channel's removal.
const LOOK_EVERY_NS: u64 = 5_000_000;
/// Pause between two attempts to attach to a channel that went away.
const RETRY_NS: u64 = 20_000_000;
/// Bytes of the receive buffer of the socket that requests come to.
const REPAIR_BUFFER_BYTES: usize = 1 << 20;
/// Epochs count half seconds from the start of 2020, in nanoseconds since 1970; six digits last until 2054.
const EPOCH_ZERO_NS: u64 = 1_577_836_800_000_000_000;
const EPOCH_STEP_NS: u64 = 500_000_000;

/// What is not the bridge's own to decide.
#[derive(Debug, Default)]
pub struct EgressOptions {
    /// Where every packet sent is copied to.
    pub tap: Option<Tap>,
    /// Whether the bridge is over when the channel is closed and its end was repeated; else it waits for the next
    /// publisher.
    pub ends_with_channel: bool,
    /// Where sessions that begin here are noted.
    pub origins: Origins,
}

/// What the threads of one egress share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) stop: AtomicBool,
    end: AtomicBool,
    pub(super) life: Life,
    pub(super) counters: Board<SendCounters>,
    pub(super) repair: Board<RepairCounters>,
    pub(super) live: LiveTable,
    /// The session being sent: eight bytes, then two. Half of one and half of another names neither.
    session: [AtomicU64; 2],
    /// The sequence after the last message sent: repairs never run ahead of live traffic.
    pub(super) next: AtomicU64,
    /// How often the bridge has attached to the channel.
    pub(super) attached: AtomicU64,
}

impl Shared {
    pub(super) fn session(&self) -> Session {
        let [high, low] = [0, 1].map(|half| self.session[half].load(Ordering::Relaxed).to_le_bytes());
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&high);
        bytes[8..].copy_from_slice(&low[..2]);
        Session::from_bytes(bytes)
    }

    fn set_session(&self, session: Session) {
        let (mut high, mut low) = ([0; 8], [0; 8]);
        high.copy_from_slice(&session.as_bytes()[..8]);
        low[..2].copy_from_slice(&session.as_bytes()[8..]);
        self.session[0].store(u64::from_le_bytes(high), Ordering::Relaxed);
        self.session[1].store(u64::from_le_bytes(low), Ordering::Relaxed);
        self.life.note_session(session);
    }
}

/// A running egress. Dropping it stops it.
#[derive(Debug)]
pub struct Egress {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    repair_address: Option<SocketAddrV4>,
}

impl Egress {
    /// Attaches to the channel, opens the sockets and starts the threads.
    ///
    /// `channel` says where the channel is; how to start and wait is set here, by the spec.
    ///
    /// # Errors
    /// [`BridgeError`]; nothing is left running.
    pub fn start(
        spec: &BridgeSpec,
        channel: SubscriberBuilder,
        options: EgressOptions,
    ) -> Result<Egress, BridgeError> {
        BridgeError::check(spec)?;
        let Some(Direction::Send(send)) = spec.direction() else {
            let problems = vec!["send: this bridge receives".to_owned()];
            return Err(BridgeError::Spec { bridge: spec.title().to_owned(), problems });
        };
        let mut refusals = Refusals::default();
        let mut lines = Vec::with_capacity(spec.lines.len());
        for line in &spec.lines {
            let socket = socket::open_sender(line, send.ttl, send.loopback)?;
            lines.push(Line { from: local_address(&socket), socket, to: line.group });
        }
        let repair = match &send.repair {
            Some(repair) => {
                let tuning = Tuning { buffer_bytes: REPAIR_BUFFER_BYTES, busy_poll_us: 0 };
                Some((repair, socket::open_unicast(repair.bind, tuning, &mut refusals)?))
            }
            None => None,
        };
        let start = match send.from {
            StartAt::Latest => Start::Latest,
            StartAt::Oldest => Start::Oldest,
        };
        let (subscriber, parks) = attach(&channel.clone().start(start), spec.wait)?;
        check_sizes(spec, &subscriber)?;
        let session = session_of(spec, &subscriber, &options.origins, 0)?;
        let leases = send.repair.as_ref().map_or(0, |repair| repair.max_leases);
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            end: AtomicBool::new(false),
            life: Life::new(refusals.0),
            counters: Board::default(),
            repair: Board::default(),
            live: LiveTable::new(leases),
            session: Default::default(),
            next: AtomicU64::new(subscriber.next_sequence()),
            attached: AtomicU64::new(1),
        });
        shared.set_session(session);
        let clock = Clock::start();
        let mut egress = Egress { shared: shared.clone(), threads: Vec::new(), repair_address: None };
        let leases = match repair {
            Some((repair, socket)) => {
                egress.repair_address = v4(socket.local_addr().ok());
                let live = socket.try_clone().map_err(BridgeError::Start)?;
                let server =
                    Repair::new(repair, spec.payload_bytes, socket, channel.clone(), clock, shared.clone())?;
                egress.threads.push(spawn("bridge-repair", None, move || server.run())?);
                Some(Line { from: egress.repair_address, socket: live, to: repair.bind })
            }
            None => None,
        };
        let config = sender_config(spec, send);
        let mut outlet = Outlet {
            sender: Sender::new(config, session, subscriber.next_sequence(), clock.now_ns()),
            config,
            earlier: SenderCounters::default(),
            counters: SendCounters { sessions: 1, ..SendCounters::new_zeroed() },
            keeps_session: spec.session.is_some(),
            is_over: false,
            skips_end: matches!(subscriber.publisher_state(), Some((_, State::Closed))),
            lines,
            leases,
            clock,
            tap: options.tap,
            shared,
        };
        outlet.show();
        let live = Live {
            subscriber: Some(subscriber),
            parks,
            channel,
            origins: options.origins,
            spec: spec.clone(),
            ends_with_channel: options.ends_with_channel,
            idle: Idle::new(spec.wait),
            retry_ns: 0,
            looked_ns: 0,
            shown_ns: 0,
            outlet,
        };
        egress.threads.push(spawn(&format!("send-{}", spec.title()), spec.cpu, move || live.run())?);
        Ok(egress)
    }

    /// Makes it stop soon, without a word on the wire: the session goes on when another bridge carries it.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Makes it send what the ring still holds and end the session: its end is repeated, and repairs are served, for as
    /// long as the spec says. Then it stops.
    pub fn end(&self) {
        self.shared.end.store(true, Ordering::Relaxed);
    }

    /// Whether its threads have ended.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits until its threads have ended. Stop or end it before.
    pub fn join(&mut self) {
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                self.shared.life.fail("its thread panicked: please report this".to_owned());
            }
        }
    }

    /// Phase, session, refusals and error.
    pub fn life(&self) -> &Life {
        &self.shared.life
    }

    /// What the sending thread counted, some milliseconds ago at most.
    pub fn counters(&self) -> SendCounters {
        self.shared.counters.read()
    }

    /// What the retransmission server counted, some milliseconds ago at most.
    pub fn repair_counters(&self) -> RepairCounters {
        self.shared.repair.read()
    }

    /// Where the retransmission server listens, if there is one.
    pub fn repair_address(&self) -> Option<SocketAddrV4> {
        self.repair_address
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        self.stop();
        self.join();
    }
}

/// Attaches, to sleep by the daemon's bell where there is one; says whether there is.
fn attach(channel: &SubscriberBuilder, wait: WaitMode) -> Result<(Subscriber, bool), ChannelError> {
    if wait == WaitMode::Block {
        match channel.clone().wait(Wait::Park).open() {
            Err(ChannelError::NoWaker { .. }) => {}
            attached => return attached.map(|subscriber| (subscriber, true)),
        }
    }
    Ok((channel.clone().open()?, false))
}

fn check_sizes(spec: &BridgeSpec, subscriber: &Subscriber) -> Result<(), BridgeError> {
    let max_message = subscriber.header().geometry.max_message;
    let most = (spec.payload_bytes - HEADER_BYTES - LENGTH_BYTES).min(usize::from(u16::MAX));
    if max_message <= most as u64 {
        return Ok(());
    }
    let (channel, payload_bytes) = (spec.channel.clone(), spec.payload_bytes);
    Err(BridgeError::MessageTooLong { channel, max_message, payload_bytes, most })
}

/// The session that the channel is sent as. A channel that a bridge brought here keeps the session that it came with, so
/// that hosts farther on see the same stream; any other has its own, with the moment it was made as epoch: a publisher that
/// takes it over goes on in it, a channel made anew begins another.
fn session_of(
    spec: &BridgeSpec,
    subscriber: &Subscriber,
    origins: &Origins,
    least_epoch: u64,
) -> Result<Session, BridgeError> {
    match subscriber.remote_session() {
        Some(session) if spec.session.is_none() => Ok(Session::from_bytes(session)),
        _ => {
            let made_ns = subscriber.header().created_ns;
            let epoch = made_ns.saturating_sub(EPOCH_ZERO_NS) / EPOCH_STEP_NS;
            let epoch = epoch.max(least_epoch).min(EPOCH_LIMIT - 1);
            let session = Session::of_channel(&spec.tag(), epoch)?;
            origins.add(session);
            Ok(session)
        }
    }
}

fn sender_config(spec: &BridgeSpec, send: &SendSpec) -> SenderConfig {
    let linger_ns = send.linger().as_nanos() as u64;
    SenderConfig { payload_bytes: spec.payload_bytes, batch: datagrams::BATCH, linger_ns }
}

fn v4(address: Option<SocketAddr>) -> Option<SocketAddrV4> {
    match address {
        Some(SocketAddr::V4(address)) => Some(address),
        _ => None,
    }
}

fn local_address(socket: &UdpSocket) -> Option<SocketAddrV4> {
    v4(socket.local_addr().ok())
}

/// A socket and where it sends to.
#[derive(Debug)]
struct Line {
    socket: UdpSocket,
    from: Option<SocketAddrV4>,
    to: SocketAddrV4,
}

/// The sending thread.
struct Live {
    /// `None` while the channel is gone.
    subscriber: Option<Subscriber>,
    /// Whether the daemon wakes it.
    parks: bool,
    channel: SubscriberBuilder,
    origins: Origins,
    spec: BridgeSpec,
    ends_with_channel: bool,
    idle: Idle,
    retry_ns: u64,
    looked_ns: u64,
    shown_ns: u64,
    outlet: Outlet,
}

impl Live {
    fn run(mut self) {
        let result = self.carry_all();
        let shared = self.outlet.shared.clone();
        self.outlet.show();
        match result {
            Ok(()) => shared.life.enter(Phase::Ended),
            Err(why) => shared.life.fail(why),
        }
        // The repairs serve this session, which is over, or somebody else's to go on with.
        shared.stop.store(true, Ordering::Relaxed);
    }

    fn carry_all(&mut self) -> Result<(), String> {
        while !self.outlet.shared.stop.load(Ordering::Relaxed) {
            let found = self.carry()?;
            let now_ns = self.outlet.clock.now_ns();
            if now_ns.saturating_sub(self.shown_ns) >= SHOW_EVERY_NS {
                self.shown_ns = now_ns;
                self.outlet.show();
            }
            if found {
                self.idle.reset();
                continue;
            }
            if self.outlet.shared.end.load(Ordering::Relaxed) {
                self.outlet.end(now_ns);
            }
            self.outlet.send_idle(now_ns);
            if self.outlet.sender.is_finished(now_ns) && (self.ends_with_channel || self.is_told_to_end()) {
                return Ok(());
            }
            self.rest(now_ns)?;
        }
        Ok(())
    }

    fn is_told_to_end(&self) -> bool {
        self.outlet.shared.end.load(Ordering::Relaxed)
    }

    /// Takes what is waiting in the ring and sends it. Says whether there was anything.
    fn carry(&mut self) -> Result<bool, String> {
        let Some(subscriber) = &mut self.subscriber else { return self.attach_again() };
        let outlet = &mut self.outlet;
        let mut result = Ok(());
        let mut events = 0;
        while events < EVENTS_PER_TURN {
            match subscriber.try_recv() {
                Ok(Some(event)) => outlet.take(event),
                Ok(None) => break,
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
            events += 1;
        }
        outlet.flush();
        match result {
            Ok(()) => Ok(events > 0),
            Err(e) => self.lose(e),
        }
    }

    fn lose(&mut self, error: RecvError) -> Result<bool, String> {
        match error {
            // Removed, or begun anew.
            RecvError::Superseded => {
                self.subscriber = None;
                Ok(true)
            }
            e => Err(format!("channel {:?}: {e}", self.spec.channel)),
        }
    }

    #[cold]
    fn attach_again(&mut self) -> Result<bool, String> {
        let now_ns = self.outlet.clock.now_ns();
        if now_ns < self.retry_ns {
            return Ok(false);
        }
        self.retry_ns = now_ns + RETRY_NS;
        // All of it: what was published while we looked away belongs to the new session as well.
        let Ok((subscriber, parks)) = attach(&self.channel.clone().start(Start::Oldest), self.spec.wait)
        else {
            return Ok(false);
        };
        check_sizes(&self.spec, &subscriber).map_err(|e| e.to_string())?;
        // Its sequences begin again, so its epoch must be another, however soon it was made anew.
        let least_epoch = self.outlet.sender.session().epoch().map_or(0, |epoch| epoch + 1);
        let session = session_of(&self.spec, &subscriber, &self.origins, least_epoch);
        let session = session.map_err(|e| e.to_string())?;
        self.outlet.shared.attached.fetch_add(1, Ordering::Release);
        self.outlet.begin(session, subscriber.next_sequence());
        (self.subscriber, self.parks) = (Some(subscriber), parks);
        Ok(true)
    }

    /// Waits for the ring or the next heartbeat, whichever is first.
    fn rest(&mut self, now_ns: u64) -> Result<(), String> {
        let due_ns = self.outlet.sender.next_deadline(now_ns).unwrap_or(u64::MAX);
        let limit = Duration::from_nanos(due_ns.saturating_sub(now_ns)).min(LOOK_UP);
        let looks = self.parks || now_ns.saturating_sub(self.looked_ns) >= LOOK_EVERY_NS;
        let Some(subscriber) = self.subscriber.as_mut().filter(|_| looks) else {
            self.idle.wait(limit);
            return Ok(());
        };
        self.looked_ns = now_ns;
        let deadline = self.outlet.clock.instant(now_ns) + if self.parks { limit } else { Duration::ZERO };
        match subscriber.recv_deadline(deadline) {
            Ok(Some(event)) => self.outlet.take(event),
            Ok(None) => {}
            Err(e) => drop(self.lose(e)?),
        }
        Ok(())
    }
}

/// Where the ring's events go.
struct Outlet {
    sender: Sender,
    config: SenderConfig,
    /// What senders of earlier sessions counted.
    earlier: SenderCounters,
    counters: SendCounters,
    /// The session's name was given: it stays whatever session the channel was brought here with.
    keeps_session: bool,
    /// The session was ended; whatever comes now begins where it stopped.
    is_over: bool,
    /// The end that comes first is that of a publisher before our time.
    skips_end: bool,
    lines: Vec<Line>,
    /// The socket that unicast leases are served from.
    leases: Option<Line>,
    clock: Clock,
    tap: Option<Tap>,
    shared: Arc<Shared>,
}

impl Outlet {
    fn take(&mut self, event: Event<'_>) {
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
            Event::NewSession { .. } | Event::NewEpoch { .. } => {}
            Event::End if self.skips_end => self.skips_end = false,
            Event::End => {
                self.flush();
                self.end(self.clock.now_ns());
            }
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
    fn flush(&mut self) {
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
    fn send_idle(&mut self, now_ns: u64) {
        let Some(packet) = self.sender.poll_idle(now_ns) else { return };
        send_to_all(
            (&self.lines, self.leases.as_ref(), &self.shared.live, self.tap.as_ref()),
            &mut self.counters,
            || std::iter::once(&packet[..]),
        );
    }

    fn end(&mut self, now_ns: u64) {
        if !self.is_over {
            self.is_over = true;
            self.sender.end(now_ns);
            self.shared.life.enter(Phase::Ending);
        }
    }

    /// A session begins, or the one that had ended goes on.
    #[cold]
    fn begin(&mut self, session: Session, next: u64) {
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

    fn show(&mut self) {
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
        count(datagrams::send(&line.socket, line.to, datagrams()));
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
