//! The egress's second thread: retransmissions from the ring, and unicast leases.
//!
//! The thread sleeps until a datagram arrives. It reads the ring by sequence, through its own subscriber. If the ring no longer holds a
//! message, a third thread (`disk`) reads the message from the channel's journal, so that this thread never waits for a disk. If neither
//! the ring nor the journal has the message, this thread tells the receiver that the message is gone.
//!
//! `proto::replay` and `proto::lease` decide which receivers get repairs, and how many repairs they get.

use shmcast::hosting::fault;
use shmcast::sys::datagrams::{self, Inbox};
use shmcast::{Preparation, Start, SubscriberBuilder, Wait};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zerocopy::FromZeros;

mod disk;
mod groups;
mod native;
mod ring;
mod store;

use super::BridgeError;
use super::native::{Keys, MOST_TO_SERVER};
use super::origins::run_of;
use super::pcap::Tap;
use super::proto::control::{CONTROL_MAX_BYTES, ControlDatagram, is_control};
use super::proto::counters::LeaseCounters;
use super::proto::lease::{LeaseConfig, LeaseServer};
use super::proto::limit::{AllowList, Rate};
use super::proto::link::Link;
use super::proto::replay::{
    Asker, GLOBAL_RATE_BYTES, Held, Holding, Replay, ReplayConfig, Reply, SOURCE_RATE_BYTES,
};
use super::proto::session::Session;
use super::proto::wire::{REQUEST_BYTES, Request as Asked};
use super::proto::{MICROSECOND_NS, MILLISECOND_NS, SECOND_NS};
use super::sending::Sending;
use super::socket::{Drops, wait_for_any};
use super::spec::{BridgeSpec, RepairSpec};
use super::status::RepairCounters;
use super::thread::{Clock, wall_ns};
pub(super) use groups::Groups;
use native::{NativeRepair, Source};
use store::{Request, Store};

/// The longest sleep. The thread notices a stop, or the end of a lease, after this time at the latest.
const LOOK_UP: Duration = Duration::from_millis(20);
/// Pause between two attempts to open a ring, in nanoseconds.
const RETRY_NS: u64 = 20 * MILLISECOND_NS;
/// The number of a ring that the sending thread does not send. Any other ring has the number of the change with which the sending thread
/// changed to this ring. The number of a change is even, and this number is odd, so they are never equal.
const NO_CHANGE: u64 = u64::MAX;
/// The number of bytes in a receive slot. Requests and control datagrams fit. A longer datagram is neither a request nor a control
/// datagram, so it need not fit.
const SLOT_BYTES: usize = 256;
/// The burst of a token bucket is what its rate allows in a second, divided by this number. The quotient is what the rate allows in 40 ms.
const BURST_SHARE: u64 = 25;
/// The interval at which the feed's own rate is measured, in nanoseconds.
const MEASURE_EVERY_NS: u64 = SECOND_NS / 4;

/// The thread's state.
pub(super) struct Repair {
    out: Out,
    inbox: Inbox,
    replay: Replay,
    leases: LeaseServer,
    channel: SubscriberBuilder,
    store: Store,
    counters: RepairCounters,
    drops: Drops,
    reply: Vec<u8>,
    /// The state of answers to native receivers; `None` if all lines are plain.
    native: Option<NativeRepair>,
    /// Whether plain requests are answered.
    answers_plain: bool,
    feed: FeedRate,
    /// The time at which the next attempt to open the ring is due, in nanoseconds.
    retry_ns: u64,
    clock: Clock,
    shared: Arc<Sending>,
}

/// The feed's rate in bytes per second. This value rises as soon as the rate rises, and falls over several seconds.
#[derive(Debug, Default)]
struct FeedRate {
    bytes: u64,
    since_ns: u64,
    per_second: u64,
}

/// The feed that is retransmitted: its session, and the sequence after the last sent message.
#[derive(Debug, Clone, Copy)]
struct Sent {
    session: Session,
    next: u64,
}

/// The outputs of the thread: its socket, the groups, and the capture that gets a copy of every packet.
struct Out {
    socket: UdpSocket,
    groups: Groups,
    tap: Option<Tap>,
    here: SocketAddr,
}

impl Out {
    fn record(&self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        if let Some(tap) = &self.tap {
            tap.record(wall_ns(), from, to, bytes);
        }
    }

    /// Sends a datagram. Returns how many datagrams the kernel refused.
    fn send(&self, to: SocketAddr, bytes: &[u8]) -> u64 {
        self.record(self.here, to, bytes);
        datagrams::send(&self.socket, to, [bytes]).refused
    }

    /// Sends a plain answer to its asker or to all receivers. Returns how many datagrams the kernel refused.
    fn answer(&self, from: SocketAddr, reply: Reply, buffer: &[u8]) -> u64 {
        let to = self.groups.plain.filter(|_| reply.is_to_all()).unwrap_or(from);
        reply.bytes().map_or(0, |size| self.send(to, &buffer[..size]))
    }
}

/// The sockets of a retransmission server.
pub(super) struct RepairSockets {
    /// The socket that gets the requests, and sends the answers.
    pub(super) requests: UdpSocket,
    pub(super) groups: Groups,
}

/// Objects that the threads of one egress share, in addition to the egress's state.
#[derive(Clone, Copy)]
pub(super) struct Surroundings<'a> {
    pub(super) clock: Clock,
    /// The capture that gets a copy of every packet.
    pub(super) tap: Option<&'a Tap>,
    /// The link that live packets and repairs share.
    pub(super) link: Option<Link>,
}

/// The parts of the server that find messages in the ring and the journal, and answer requests with them.
struct Server<'a> {
    replay: &'a mut Replay,
    store: &'a mut Store,
    sent: Sent,
}

/// Makes the configuration of repairs from the spec.
fn replay_config(spec: &RepairSpec, groups: &Groups) -> ReplayConfig {
    let rate = |per_second: u64| Rate { per_second, burst: per_second / BURST_SHARE };
    let (merge, merge_native) = groups.merge(spec);
    ReplayConfig {
        allow: AllowList::new(spec.allow.clone()),
        trust_allowed: spec.trust_allowed,
        source_rate: rate(spec.source_rate_bytes.unwrap_or(SOURCE_RATE_BYTES)),
        source_grows: spec.source_rate_bytes.is_none(),
        global_rate: rate(spec.rate_bytes.unwrap_or(GLOBAL_RATE_BYTES)),
        global_grows: spec.rate_bytes.is_none(),
        merge,
        merge_native,
        ..ReplayConfig::default()
    }
}

fn lease_config(spec: &RepairSpec) -> LeaseConfig {
    let lease_ns = spec.lease_s.saturating_mul(SECOND_NS);
    LeaseConfig {
        allow: AllowList::new(spec.allow.clone()),
        lease_ns,
        cookie_ns: lease_ns.saturating_mul(2),
        max_leases: spec.max_leases,
        max_proved: spec.max_proved,
        leases_per_source: spec.leases_per_source,
        ..LeaseConfig::default()
    }
}

impl Repair {
    pub(super) fn new(
        bridge: &BridgeSpec,
        spec: &RepairSpec,
        sockets: RepairSockets,
        channel: SubscriberBuilder,
        with: Surroundings<'_>,
        keys: Arc<Keys>,
        shared: Arc<Sending>,
    ) -> Result<Self, BridgeError> {
        let payload_bytes = bridge.payload_bytes;
        let RepairSockets { requests: socket, groups } = sockets;
        let Surroundings { clock, tap, link } = with;
        let replay = ReplayConfig { payload_bytes, link, ..replay_config(spec, &groups) };
        let mut random = [0; 24];
        getrandom::fill(&mut random).map_err(|e| BridgeError::Start(io::Error::other(e)))?;
        let (key, epoch) = random.split_at(16);
        let key = key.try_into().expect("sixteen bytes");
        let epoch = u64::from_ne_bytes(epoch.try_into().expect("eight bytes"));
        // This subscriber never waits and delivers nothing. It must not count as a reader, nor be shown as a reader that lags.
        let channel = channel.start(Start::Latest).wait(Wait::Yield).page(false).prepare(Preparation::NONE);
        let floor = shared.begin.load(Ordering::Acquire);
        let subscriber = channel.clone().open()?;
        // The channel might have been created again after the sending thread attached.
        let change = if run_of(subscriber.header()) == shared.ring() { 0 } else { NO_CHANGE };
        let mut store = Store::new(subscriber, change, floor);
        store.find_journal()?;
        let native = match bridge.is_any_native() {
            true => Some(NativeRepair::new(bridge, spec.max_proved, keys)?),
            false => None,
        };
        let slot_bytes = if native.is_some() { MOST_TO_SERVER } else { SLOT_BYTES };
        let here = socket.local_addr().unwrap_or(spec.bind);
        Ok(Self {
            out: Out {
                socket,
                groups,
                tap: tap.cloned().filter(|_| !fault!("captures_hold_the_feed_alone")),
                here,
            },
            native,
            answers_plain: bridge.is_any_plain(),
            inbox: Inbox::new(slot_bytes),
            replay: Replay::new(replay),
            leases: LeaseServer::new(lease_config(spec), key, epoch),
            channel,
            store,
            counters: RepairCounters::new_zeroed(),
            drops: Drops::default(),
            reply: vec![0; payload_bytes],
            feed: FeedRate::default(),
            retry_ns: 0,
            clock,
            shared,
        })
    }

    pub(super) fn run(mut self) {
        while !self.is_over() {
            self.follow();
            self.measure();
            // A receive error comes from an ICMP message about an earlier reply, and has no effect.
            while self.inbox.receive(&self.out.socket).is_ok_and(|received| received > 0) {
                self.answer_all();
                self.answer_waiting();
                self.measure();
                // The session can change or end while requests keep arriving, so check the session after every batch.
                if fault!("repairs_look_at_nothing_else") {
                    continue;
                }
                self.follow();
                if self.is_over() {
                    break;
                }
            }
            self.answer_waiting();
            self.out.groups.renew(self.shared.groups.take());
            self.out.groups.hear(self.clock.now_ns(), self.out.here, &mut self.replay);
            self.leases.expire(self.clock.now_ns());
            self.show_leases();
            self.show();
            let sockets = std::iter::once(&self.out.socket).chain(self.out.groups.socket());
            wait_for_any(sockets.map(AsFd::as_fd).chain(self.store.bell()), LOOK_UP);
        }
        self.show();
    }

    fn is_over(&self) -> bool {
        self.shared.life.is_stopping()
    }

    /// Follows the sending thread to another ring. If the ring cannot be opened now, a later call tries again, and no request is answered
    /// until then.
    fn follow(&mut self) {
        let now_ns = self.clock.now_ns();
        let is_due = |change: &u64| *change != self.store.ring.change || self.store.ring.is_lost();
        let change = self.shared.last_change().filter(is_due);
        let mut is_another = false;
        if let Some(change) = change.filter(|_| now_ns >= self.retry_ns) {
            is_another = self.change(change);
            self.retry_ns = if is_another { 0 } else { now_ns.saturating_add(RETRY_NS) };
        }
        // If the journal's thread cannot be started, receivers are told to ask again later for messages in the journal.
        let _ = self.store.find_journal();
        if let Some(native) = &mut self.native {
            native.look(self.clock.now_ns(), self.store.ring.clock(), is_another);
        }
    }

    /// Attaches to the ring that the sending thread sends now. `change` is the number of the sending thread's change to this ring. Returns
    /// false if the ring cannot be opened now.
    fn change(&mut self, change: u64) -> bool {
        let (ring, floor) = (self.shared.ring(), self.shared.begin.load(Ordering::Acquire));
        let opened = self.channel.clone().open();
        // The channel might have a newer ring by now. The sending thread will change to the newer ring, too.
        let Some(subscriber) = opened.ok().filter(|opened| run_of(opened.header()) == ring) else {
            return false;
        };
        self.store.change(subscriber, change, floor);
        true
    }

    /// Measures the feed's rate, because the limits of repairs grow with this rate. Also measures the part of the link that the feed leaves
    /// to repairs.
    fn measure(&mut self) {
        let now_ns = self.clock.now_ns();
        let live_bytes = self.shared.live_bytes.load(Ordering::Relaxed);
        self.counters.serving.link_rate_bytes = self.replay.note_live(now_ns, live_bytes).unwrap_or(0);
        if now_ns.saturating_sub(self.feed.since_ns) >= MEASURE_EVERY_NS {
            self.feed.note(now_ns, self.shared.counters.read().bytes);
            self.replay.note_live_rate(self.feed.per_second);
        }
    }

    fn answer_all(&mut self) {
        let Self { inbox, out, replay, leases, store, counters, reply, clock, shared, native, .. } = self;
        let answers_plain = self.answers_plain;
        let now_ns = clock.now_ns();
        for datagram in inbox.datagrams() {
            counters.serving.datagrams += 1;
            out.record(datagram.from, out.here, datagram.bytes);
            let is_plain = is_control(datagram.bytes) || datagram.bytes.len() == REQUEST_BYTES;
            counters.serving.replies_refused += match native {
                Some(native) if !is_plain => {
                    let server = Server::of(shared, replay, store);
                    let mut control = ControlServer { leases, shared, counters };
                    native.answer(now_ns, &datagram, server, &mut control, out)
                }
                Some(_) if !answers_plain => {
                    counters.serving.plain_refused += 1;
                    0
                }
                _ if is_control(datagram.bytes) => {
                    let mut answer = [0; CONTROL_MAX_BYTES];
                    let mut control = ControlServer { leases, shared, counters };
                    let size = control.answer(now_ns, datagram.from, datagram.bytes, &mut answer);
                    size.map_or(0, |size| out.send(datagram.from, &answer[..size]))
                }
                _ => {
                    let from = datagram.from;
                    let asker = Asker { from, is_proved: leases.is_proved(now_ns, from), has_waited: false };
                    Server::of(shared, replay, store).map_or(0, |server| {
                        let answered = server.answer(now_ns, asker, datagram.bytes, reply);
                        out.answer(from, answered, reply)
                    })
                }
            };
        }
        // Show the leases after each batch, even in a flood of requests: a receiver that was granted a lease waits for its live packets.
        self.show_leases();
        self.show();
    }

    /// Answers the requests whose messages the disk has read, and sends the disk its next order.
    fn answer_waiting(&mut self) {
        let Self { out, replay, leases, store, counters, reply, clock, shared, native, .. } = self;
        let now_ns = clock.now_ns();
        store.take(now_ns);
        while let Some(request) = store.ready(now_ns) {
            // While the sending thread and the store are at different rings, no request is answered.
            let Some(server) = Server::of(shared, replay, store) else { continue };
            counters.serving.replies_refused += match (request, &mut *native) {
                (Request::Plain { from, datagram }, _) => {
                    let asker = Asker { from, is_proved: leases.is_proved(now_ns, from), has_waited: true };
                    let answered = server.answer(now_ns, asker, &datagram, reply);
                    out.answer(from, answered, reply)
                }
                (Request::Native { from, session, entry, bytes }, Some(native)) => {
                    let is_proved = leases.is_proved(now_ns, from);
                    let source = Source { from, is_proved, session, bytes, has_waited: true };
                    native.answer_again(now_ns, source, entry, server, out)
                }
                (Request::Native { .. }, None) => 0,
            };
        }
        store.order(now_ns);
    }

    fn show_leases(&mut self) {
        let live = self.leases.live_addresses(self.clock.now_ns());
        self.shared.live.set(live.clone());
        let group = self.leases.len().saturating_sub(live.count()) as u64;
        let longest_ns = self.leases.longest_ns();
        self.replay.note_longest(longest_ns);
        self.counters.serving.longest_rtt_us = longest_ns / MICROSECOND_NS;
        self.shared.group.store(group, Ordering::Relaxed);
        self.shared.longest_us.store(longest_ns / MICROSECOND_NS, Ordering::Relaxed);
    }

    fn show(&mut self) {
        self.drops.look(&self.out.socket, &mut self.counters.serving.kernel_drops);
        let leases = LeaseCounters { held: self.leases.len() as u64, ..*self.leases.counters() };
        self.counters.set(self.replay.counters(), self.store.counters(), leases);
        if let Some(native) = &self.native {
            let unopened = native.unopened();
            self.counters.serving.forged = unopened.forged;
            self.counters.serving.replayed = unopened.replayed;
            self.counters.serving.unopened = unopened.unknown;
        }
        self.shared.repair.show(&self.counters);
    }
}

/// The parts of the server that handle control datagrams.
struct ControlServer<'a> {
    leases: &'a mut LeaseServer,
    shared: &'a Sending,
    counters: &'a mut RepairCounters,
}

impl ControlServer<'_> {
    /// Handles a control datagram of a receiver. Returns the size of the answer in `out`, if there is one.
    fn answer(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        datagram: &[u8],
        out: &mut [u8; CONTROL_MAX_BYTES],
    ) -> Option<usize> {
        let control = ControlDatagram::parse(datagram).ok();
        if let Some(ControlDatagram::Stale { session, .. }) = control {
            // Only a receiver with a lease is known to receive at its address, so only its report is believed.
            let is_believed = self.leases.is_proved(now_ns, from) && self.shared.note_told(session);
            self.counters.serving.told_stale += u64::from(is_believed);
            return None;
        }
        self.leases.handle_control(now_ns, from, control, out)
    }
}

impl<'a> Server<'a> {
    /// Makes the parts from which requests are answered. Returns `None` if the sending thread and the store are at different rings. Then no
    /// request is answered, because a receiver would get the messages of another session.
    fn of(shared: &Sending, replay: &'a mut Replay, store: &'a mut Store) -> Option<Self> {
        let (session, next) = shared.feed(store.ring.change)?;
        store.set_floor(shared.begin.load(Ordering::Acquire));
        Some(Self { replay, store, sent: Sent { session, next } })
    }

    /// Answers a plain request. A request that has waited for the disk does not wait again: if the disk must read once more, the receiver
    /// is told to ask again later.
    fn answer(self, now_ns: u64, asker: Asker, datagram: &[u8], reply: &mut [u8]) -> Reply {
        let Self { replay, store, sent: Sent { session, next } } = self;
        let request = datagram.try_into().map(|datagram| Request::Plain { from: asker.from, datagram });
        let asked = Asked::parse(datagram).ok().zip(request.ok());
        let held = match &asked {
            Some((asked, request)) if asker.has_waited => {
                store.held_again(now_ns, asked.first, next, request)
            }
            Some((asked, request)) => store.held(now_ns, asked.first, next, request),
            None => Held::of_ring(1, next),
        };
        let read = |sequence, room: &mut [u8]| store.read(sequence, room);
        let holding = Holding { session, held };
        let answered = replay.handle_request(now_ns, asker, datagram, holding, reply, read);
        if let (Reply::Fetch, Some((asked, request)), false) = (answered, asked, asker.has_waited) {
            store.wait(asked.first, request);
        }
        answered
    }
}

impl FeedRate {
    fn note(&mut self, now_ns: u64, bytes: u64) {
        let (more, took_ns) = (bytes.saturating_sub(self.bytes), now_ns.saturating_sub(self.since_ns).max(1));
        let per_second = u128::from(more) * u128::from(SECOND_NS) / u128::from(took_ns);
        let faded = self.per_second - self.per_second / 16;
        self.per_second = u64::try_from(per_second).unwrap_or(u64::MAX).max(faded);
        (self.bytes, self.since_ns) = (bytes, now_ns);
    }
}
