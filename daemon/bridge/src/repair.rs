//! The egress's second thread: retransmissions from the ring, and unicast leases.
//!
//! The thread sleeps until a datagram comes. It reads the ring by sequence, through its own subscriber. A
//! message that the ring no longer holds is gone, and the thread tells the receiver so. `proto::replay` and
//! `proto::lease` decide which receivers may ask, and for how much.

use shmcast::hosting::fault;
use shmcast::sys::datagrams::{self, Datagram, Inbox};
use shmcast::{Event, LocateError, Preparation, RecvError, Start, Subscriber, SubscriberBuilder, Wait};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zerocopy::FromZeros;

use super::BridgeError;
use super::pcap::Tap;
use super::proto::SECOND_NS;
use super::proto::control::{CONTROL_MAX_BYTES, ControlDatagram, is_control};
use super::proto::lease::{LeaseConfig, LeaseServer};
use super::proto::limit::{AllowList, Rate};
use super::proto::replay::{GLOBAL_RATE_BYTES, Held, Replay, ReplayConfig, SOURCE_RATE_BYTES};
use super::proto::wire::Request;
use super::sending::Sending;
use super::socket::wait_for_any;
use super::spec::RepairSpec;
use super::status::RepairCounters;
use super::thread::{Clock, wall_ns};

/// The longest sleep, and so the longest time until the thread notices a stop or the end of a lease.
const LOOK_UP: Duration = Duration::from_millis(20);
/// Bytes of a receive slot. A datagram to a server is a request or a control datagram; a longer one is
/// neither.
const SLOT_BYTES: usize = 256;
/// A token bucket's burst is its bytes a second divided by this: 40 ms at its rate.
const BURST_SHARE: u64 = 25;
/// How often the feed's own rate is measured.
const MEASURE_EVERY_NS: u64 = SECOND_NS / 4;

/// The thread's state.
pub(super) struct Repair {
    socket: UdpSocket,
    inbox: Inbox,
    replay: Replay,
    leases: LeaseServer,
    channel: SubscriberBuilder,
    ring: Ring,
    counters: RepairCounters,
    last_drops: u32,
    reply: Vec<u8>,
    feed: FeedRate,
    clock: Clock,
    /// The capture that every packet is copied to, and the local address of the packets.
    tap: Option<(Tap, SocketAddrV4)>,
    shared: Arc<Sending>,
}

/// The feed's rate in bytes a second. It follows a rise at once, and a fall over seconds.
#[derive(Debug, Default)]
struct FeedRate {
    bytes: u64,
    since_ns: u64,
    per_second: u64,
}

/// The ring as retransmissions read it.
struct Ring {
    /// `None` while the channel is gone.
    subscriber: Option<Subscriber>,
    /// The number of the egress's attachment that the subscriber belongs to.
    attached: u64,
}

impl Repair {
    pub(super) fn new(
        spec: &RepairSpec,
        payload_bytes: usize,
        socket: UdpSocket,
        channel: SubscriberBuilder,
        (clock, tap): (Clock, Option<&Tap>),
        shared: Arc<Sending>,
    ) -> Result<Self, BridgeError> {
        let rate = |per_second: u64| Rate { per_second, burst: per_second / BURST_SHARE };
        let allow = AllowList::new(spec.allow.clone());
        let replay = ReplayConfig {
            payload_bytes,
            allow: allow.clone(),
            trust_allowed: spec.trust_allowed,
            source_rate: rate(spec.source_rate_bytes.unwrap_or(SOURCE_RATE_BYTES)),
            source_grows: spec.source_rate_bytes.is_none(),
            global_rate: rate(spec.rate_bytes.unwrap_or(GLOBAL_RATE_BYTES)),
            global_grows: spec.rate_bytes.is_none(),
            ..ReplayConfig::default()
        };
        let lease_ns = spec.lease_s.saturating_mul(SECOND_NS);
        let leases = LeaseConfig {
            allow,
            lease_ns,
            cookie_ns: lease_ns.saturating_mul(2),
            max_leases: spec.max_leases,
            max_proved: spec.max_proved,
            leases_per_source: spec.leases_per_source,
            ..LeaseConfig::default()
        };
        let mut random = [0; 24];
        getrandom::fill(&mut random).map_err(|e| BridgeError::Start(io::Error::other(e)))?;
        let (key, epoch) = random.split_at(16);
        let key = key.try_into().expect("sixteen bytes");
        let epoch = u64::from_ne_bytes(epoch.try_into().expect("eight bytes"));
        // This subscriber never waits and delivers to nobody. It must not be counted as a reader, nor shown
        // as one that lags.
        let channel = channel.start(Start::Latest).wait(Wait::Yield).page(false).prepare(Preparation::NONE);
        let attached = shared.attached.load(Ordering::Acquire);
        let ring = Ring { subscriber: Some(channel.clone().open()?), attached };
        Ok(Self {
            socket,
            inbox: Inbox::new(SLOT_BYTES),
            replay: Replay::new(replay),
            leases: LeaseServer::new(leases, key, epoch),
            channel,
            ring,
            counters: RepairCounters::new_zeroed(),
            last_drops: 0,
            reply: vec![0; payload_bytes],
            feed: FeedRate::default(),
            clock,
            tap: tap.map(|tap| (tap.clone(), spec.bind)),
            shared,
        })
    }

    pub(super) fn run(mut self) {
        while !self.is_over() {
            self.follow();
            self.measure();
            // An error here is an ICMP error about an earlier reply. It does not matter.
            while self.inbox.receive(&self.socket).is_ok_and(|received| received > 0) {
                self.answer_all();
                self.measure();
                // The session may change or end while requests keep coming, so look after every batch.
                if fault!("repairs_look_at_nothing_else") {
                    continue;
                }
                self.follow();
                if self.is_over() {
                    break;
                }
            }
            self.leases.expire(self.clock.now_ns());
            self.show_leases();
            self.show();
            wait_for_any([self.socket.as_fd()].into_iter(), LOOK_UP);
        }
        self.show();
    }

    fn is_over(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    /// Attaches again if the sending thread has attached to a new channel.
    fn follow(&mut self) {
        let attached = self.shared.attached.load(Ordering::Acquire);
        if attached != self.ring.attached {
            self.ring = Ring { subscriber: self.channel.clone().open().ok(), attached };
        }
    }

    /// Measures the feed's rate, so that the limits of repairs grow with it.
    fn measure(&mut self) {
        let now_ns = self.clock.now_ns();
        if now_ns.saturating_sub(self.feed.since_ns) >= MEASURE_EVERY_NS {
            self.feed.note(now_ns, self.shared.counters.read().bytes);
            self.replay.note_live_rate(self.feed.per_second);
        }
    }

    fn answer_all(&mut self) {
        let Self {
            inbox, socket, replay, leases, ring, counters, last_drops, reply, clock, tap, shared, ..
        } = self;
        let tap = &*tap;
        let record = |from: SocketAddrV4, to: SocketAddrV4, bytes: &[u8]| {
            if let Some((tap, _)) = tap {
                tap.record(wall_ns(), from.into(), to.into(), bytes);
            }
        };
        let here = tap.as_ref().map_or(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0), |(_, here)| *here);
        let now_ns = clock.now_ns();
        for datagram in inbox.datagrams() {
            counters.datagrams += 1;
            record(datagram.from, here, datagram.bytes);
            if let Some(drops) = datagram.dropped {
                counters.kernel_drops += u64::from(drops.wrapping_sub(*last_drops));
                *last_drops = drops;
            }
            let sent = if is_control(datagram.bytes) {
                let control = ControlDatagram::parse(datagram.bytes);
                if let Ok(ControlDatagram::Stale { session, .. }) = control {
                    // Only a receiver with a lease is known to receive at its address.
                    let is_believed =
                        leases.is_proved(now_ns, datagram.from.into()) && shared.note_told(session);
                    counters.told_stale += u64::from(is_believed);
                    continue;
                }
                let mut out = [0; CONTROL_MAX_BYTES];
                let size = leases.handle_control(now_ns, datagram.from.into(), control.ok(), &mut out);
                size.map(|size| {
                    record(here, datagram.from, &out[..size]);
                    datagrams::send(&*socket, datagram.from, [&out[..size]])
                })
            } else {
                let from = datagram.from.into();
                let proved = (from, leases.is_proved(now_ns, from));
                answer(now_ns, proved, &datagram, (replay, ring, shared), reply).map(|size| {
                    record(here, datagram.from, &reply[..size]);
                    datagrams::send(&*socket, datagram.from, [&reply[..size]])
                })
            };
            counters.replies_refused += sent.map_or(0, |sent| sent.refused);
        }
        // Show the leases after each batch, even in a flood of requests: a receiver that was granted a lease
        // waits for its packets.
        self.show_leases();
        self.show();
    }

    fn show_leases(&self) {
        let addresses = self.leases.live_addresses(self.clock.now_ns());
        self.shared.live.set(addresses.filter_map(|address| match address {
            std::net::SocketAddr::V4(address) => Some(address),
            std::net::SocketAddr::V6(_) => None,
        }));
    }

    fn show(&mut self) {
        self.counters.set(self.replay.counters(), self.leases.counters(), self.leases.len());
        self.shared.repair.show(&self.counters);
    }
}

/// Answers a request. Returns the size of the reply.
fn answer(
    now_ns: u64,
    source: (std::net::SocketAddr, bool),
    datagram: &Datagram<'_>,
    (replay, ring, shared): (&mut Replay, &mut Ring, &Sending),
    reply: &mut [u8],
) -> Option<usize> {
    let next = shared.next.load(Ordering::Acquire);
    let oldest = Request::parse(datagram.bytes).map_or(1, |request| ring.oldest_from(request.first, next));
    let held = Held { oldest, next };
    let read = |sequence, room: &mut [u8]| ring.read(sequence, room);
    replay.handle_request(now_ns, source, datagram.bytes, (shared.session(), held), reply, read).bytes()
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

impl Ring {
    /// The sequence of the first message from `sequence` on that the ring holds: `sequence` itself, or the
    /// first after a loss. O(1) for a message that the ring holds.
    fn oldest_from(&mut self, sequence: u64, next: u64) -> u64 {
        let Some(subscriber) = &mut self.subscriber else { return next };
        match subscriber.seek(sequence) {
            // The buffer has no room, so a message stays in the ring. Only a gap or an empty message is
            // taken.
            Ok(()) => match subscriber.try_recv_into(&mut []) {
                Ok(Some(Event::Gap { to, .. })) => to + 1,
                Ok(_) | Err(_) => sequence,
            },
            Err(LocateError::TooOld { oldest, .. }) => oldest.max(sequence + 1).min(next),
            Err(_) => sequence,
        }
    }

    fn read(&mut self, sequence: u64, room: &mut [u8]) -> Option<usize> {
        let subscriber = self.subscriber.as_mut()?;
        if subscriber.next_sequence() != sequence {
            subscriber.seek(sequence).ok()?;
        }
        loop {
            match subscriber.try_recv_into(room) {
                Ok(Some(Event::Message(message))) => {
                    return (message.sequence == sequence).then_some(message.payload.len());
                }
                Ok(Some(Event::NewEpoch { .. } | Event::NewSession { .. } | Event::End)) => {}
                Ok(Some(Event::Gap { .. } | Event::Lapped(_)) | None) => return None,
                Err(RecvError::TooSmall { .. }) => return None,
                // The channel is gone or was made anew. The sending thread finds that out, and then this
                // thread attaches again.
                Ok(Some(_)) | Err(_) => {
                    self.subscriber = None;
                    return None;
                }
            }
        }
    }
}
