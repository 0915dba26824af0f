//! One feed to a thousand receivers on a tree of links: a shared uplink, branches, and a link to each receiver. A packet that is lost near
//! the root is lost by many receivers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use super::super::control::{CONTROL_MAX_BYTES, ControlDatagram, is_control};
use super::super::gap::{GapConfig, GapPolicy};
use super::super::lease::{LeaseConfig, LeaseServer};
use super::super::lease_client::LeaseClient;
use super::super::limit::AllowList;
use super::super::receiver::{Delivery, Join, Origin, Receiver, ReceiverConfig};
use super::super::replay::{Asker, Held, Holding, Replay, ReplayConfig};
use super::super::session::Session;
use super::super::wire::{Downstream, PacketWriter, Request};
use super::super::{MICROSECOND_NS, MILLISECOND_NS, SECOND_NS, splitmix};
use super::scenario::{FOLLOW, PAYLOAD_BYTES};
use std::net::SocketAddr;

/// The longest round trip of a receiver. The shortest round trip is a tenth shorter.
pub const RTT_NS: u64 = 100 * MICROSECOND_NS;
const BRANCHES: usize = 20;
/// The number of messages in each packet.
const MESSAGES: u64 = 10;
const MESSAGE_BYTES: usize = 120;

/// The share of packets that each link of the tree loses.
#[derive(Debug, Clone, Copy, Default)]
pub struct Loss {
    pub uplink: f64,
    pub branch: f64,
    pub leaf: f64,
}

/// The fate of one packet of the feed.
#[derive(Debug, Clone, Default)]
pub struct Fate {
    pub losers: usize,
    pub requests: u64,
    pub answers: u64,
    /// The longest time from noticing the loss to receiving the messages, among all receivers that lost the packet.
    pub mended_ns: u64,
    mended: usize,
}

type Bytes = Rc<[u8]>;

#[derive(Debug)]
enum Event {
    ToPeer { peer: usize, origin: Origin, bytes: Bytes },
    ToServer { peer: usize, bytes: Bytes },
    Wakes { peer: usize },
}

struct Peer {
    receiver: Receiver,
    lease: LeaseClient,
    address: SocketAddr,
    delay_ns: u64,
    wakes_ns: u64,
    delivered: u64,
    /// The missing packets, each with the time at which the receiver noticed the loss.
    missing: Vec<(usize, Option<u64>)>,
    is_up: bool,
    is_next_dropped: bool,
    has_dropped: bool,
}

/// The network.
pub struct Many {
    rng: fastrand::Rng,
    loss: Loss,
    pub now_ns: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    slots: std::collections::HashMap<u64, Event>,
    scheduled: u64,
    peers: Vec<Peer>,
    leases: LeaseServer,
    pub server: Replay,
    pub fates: Vec<Fate>,
    pub feed_bytes: u64,
    pub repair_bytes: u64,
}

fn session() -> Session {
    Session::of_channel("SIM", 7).unwrap()
}

fn write_message(sequence: u64, room: &mut [u8]) -> Option<usize> {
    let room = room.get_mut(..MESSAGE_BYTES)?;
    room.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&splitmix(sequence).to_be_bytes()));
    Some(MESSAGE_BYTES)
}

impl Many {
    /// Makes a network of `peers` receivers and a server with this configuration. With `leases`, each receiver has a position in the
    /// server's order of leases.
    pub(crate) fn new(seed: u64, peers: usize, loss: Loss, server: ReplayConfig, leases: bool) -> Many {
        let allow = AllowList::new(vec!["10.0.0.0/8".parse().unwrap()]);
        let server = ReplayConfig { allow: allow.clone(), payload_bytes: PAYLOAD_BYTES, ..server };
        let leases_config = LeaseConfig { allow, ..LeaseConfig::default() };
        let mut rng = fastrand::Rng::with_seed(seed);
        let gaps =
            GapConfig { policy: GapPolicy::Block, payload_bytes: PAYLOAD_BYTES, ..GapConfig::default() };
        let peer = |peer: usize| {
            let config = ReceiverConfig {
                join: Join::From(1),
                gaps,
                seed: splitmix(seed ^ (peer as u64) << 32),
                ..ReceiverConfig::following(FOLLOW)
            };
            let id = rng.u64(..1 << 48);
            let mut receiver = Receiver::new(config);
            let delay_ns = RTT_NS * 9 / 20 + peer as u64 * RTT_NS / 20 / peers as u64;
            receiver.note_rtt(0, 2 * delay_ns);
            Peer {
                receiver,
                lease: LeaseClient::new(0, false, 0, id).with_receiver(id),
                address: SocketAddr::from(([10, 1, (peer >> 8) as u8, peer as u8], 7_000)),
                delay_ns,
                wakes_ns: u64::MAX,
                delivered: 0,
                missing: Vec::new(),
                is_up: true,
                is_next_dropped: false,
                has_dropped: false,
            }
        };
        let mut many = Many {
            loss,
            now_ns: 0,
            events: BinaryHeap::new(),
            slots: std::collections::HashMap::new(),
            scheduled: 0,
            peers: (0..peers).map(peer).collect(),
            rng: fastrand::Rng::with_seed(seed),
            leases: LeaseServer::new(leases_config, [7; 16], 1),
            server: Replay::new(server),
            fates: Vec::new(),
            feed_bytes: 0,
            repair_bytes: 0,
        };
        if leases {
            // The positions are final after the first renewal.
            (0..2).for_each(|_| many.renew());
        }
        many
    }

    /// Lets 20 s pass, in which every receiver that is up renews its lease.
    pub(crate) fn renew(&mut self) {
        for peer in self.peers.iter_mut().filter(|peer| peer.is_up) {
            let (mut at_ns, mut out, mut answer) =
                (self.now_ns, [0; CONTROL_MAX_BYTES], [0; CONTROL_MAX_BYTES]);
            while let Some(size) = peer.lease.poll_transmit(at_ns, &mut out) {
                at_ns += peer.delay_ns;
                let size = self.leases.handle_datagram(at_ns, peer.address, &out[..size], &mut answer);
                at_ns += peer.delay_ns;
                let control = ControlDatagram::parse(&answer[..size.expect("allowed")]).unwrap();
                peer.lease.handle_control(at_ns, &control);
                if let ControlDatagram::Joined { place, group, .. } = control {
                    peer.receiver.note_place(0, place, group);
                }
            }
        }
        self.now_ns += 20 * SECOND_NS + 2 * RTT_NS;
        self.leases.expire(self.now_ns);
        self.server.note_longest(self.leases.longest_ns());
    }

    /// Returns the receivers in the order of their positions.
    pub(crate) fn by_place(&self) -> Vec<usize> {
        let mut peers: Vec<usize> = (0..self.peers.len()).filter(|&peer| self.peers[peer].is_up).collect();
        peers.sort_by_key(|&peer| self.peers[peer].receiver.backlog().0.place().0);
        peers
    }

    /// Kills a receiver, which does not return its lease.
    pub(crate) fn kill(&mut self, peer: usize) {
        self.peers[peer].is_up = false;
    }

    /// Makes the receiver's own socket drop the next packet.
    pub(crate) fn drop_next(&mut self, peer: usize) {
        self.peers[peer].is_next_dropped = true;
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at_ns, self.scheduled)));
        self.slots.insert(self.scheduled, event);
    }

    /// Publishes the next packet, and then runs the network for `run_ns`. The packet does not reach `losers`, and links can lose it by
    /// chance.
    pub(crate) fn publish(&mut self, losers: &[usize], run_ns: u64) {
        let number = self.fates.len();
        self.fates.push(Fate::default());
        let mut out = [0; PAYLOAD_BYTES];
        let mut packet = PacketWriter::new(number as u64 * MESSAGES + 1);
        for sequence in packet.next()..packet.next() + MESSAGES {
            let room = packet.room(&mut out).unwrap();
            let size = write_message(sequence, room).unwrap();
            assert!(packet.commit(&mut out, size));
        }
        let size = packet.finish(&mut out, session()).unwrap();
        self.feed_bytes += size as u64;
        let came = self.multicast(Origin::Line(0), &out[..size], losers);
        for (peer, _) in came.iter().enumerate().filter(|(_, came)| !**came) {
            if self.peers[peer].is_up {
                self.peers[peer].missing.push((number, None));
                self.fates[number].losers += 1;
            }
        }
        self.run(self.now_ns + run_ns);
    }

    // Sends a datagram down the tree to all receivers except `losers`. Returns which receivers it reaches.
    fn multicast(&mut self, origin: Origin, bytes: &[u8], losers: &[usize]) -> Vec<bool> {
        let bytes: Bytes = bytes.into();
        let is_lost = self.rng.f64() < self.loss.uplink;
        let branches: Vec<bool> = (0..BRANCHES).map(|_| self.rng.f64() < self.loss.branch).collect();
        let mut came = vec![false; self.peers.len()];
        for peer in 0..self.peers.len() {
            let is_lost = is_lost || branches[peer % BRANCHES] || self.rng.f64() < self.loss.leaf;
            let is_dropped =
                origin == Origin::Line(0) && std::mem::take(&mut self.peers[peer].is_next_dropped);
            self.peers[peer].has_dropped |= is_dropped;
            if is_lost || is_dropped || losers.contains(&peer) {
                continue;
            }
            came[peer] = true;
            let at_ns = self.now_ns + self.peers[peer].delay_ns;
            self.at(at_ns, Event::ToPeer { peer, origin, bytes: bytes.clone() });
        }
        came
    }

    // Whether a datagram to or from one receiver arrives.
    fn passes(&mut self) -> bool {
        let Loss { uplink, branch, leaf } = self.loss;
        [uplink, branch, leaf].into_iter().all(|loss| self.rng.f64() >= loss)
    }

    /// Runs the network until this virtual time.
    pub(crate) fn run(&mut self, until_ns: u64) {
        while let Some(&Reverse((at_ns, id))) = self.events.peek() {
            if at_ns > until_ns {
                break;
            }
            self.events.pop();
            self.now_ns = at_ns;
            match self.slots.remove(&id).expect("scheduled once") {
                Event::ToPeer { peer, origin, bytes } => self.run_peer(peer, Some((origin, bytes))),
                Event::ToServer { peer, bytes } => self.serve(peer, &bytes),
                Event::Wakes { peer } if self.peers[peer].wakes_ns <= at_ns => self.run_peer(peer, None),
                Event::Wakes { .. } => {}
            }
        }
        self.now_ns = until_ns;
    }

    fn run_peer(&mut self, at: usize, input: Option<(Origin, Bytes)>) {
        let now_ns = self.now_ns;
        let peer = &mut self.peers[at];
        if !peer.is_up {
            return;
        }
        let delivered = &mut peer.delivered;
        let mut sink = |delivery: Delivery<'_>| match delivery {
            Delivery::Message { sequence, data, .. } => {
                *delivered += 1;
                let mut expected = [0; MESSAGE_BYTES];
                write_message(sequence, &mut expected);
                assert_eq!(
                    (sequence, data),
                    (*delivered, &expected[..]),
                    "each once, in order, as it was published"
                );
            }
            Delivery::NewSession { .. } => {}
            Delivery::Gap { .. } | Delivery::End { .. } => panic!("{delivery:?}"),
        };
        match input {
            Some((_, bytes)) if is_control(&bytes) => match ControlDatagram::parse(&bytes).unwrap() {
                ControlDatagram::Later { session, first } => {
                    peer.receiver.handle_later(now_ns, 0, (session, first));
                }
                ControlDatagram::Pause { session, wait_us } => {
                    let wait_ns = u64::from(wait_us) * MICROSECOND_NS;
                    peer.receiver.handle_pause(now_ns, 0, (session, wait_ns));
                }
                other => panic!("{other:?}"),
            },
            Some((origin, bytes)) => {
                if origin == Origin::Line(0) {
                    if std::mem::take(&mut peer.has_dropped) {
                        peer.receiver.note_drop();
                    }
                    let number = (Downstream::parse(&bytes).unwrap().sequence / MESSAGES) as usize;
                    let unnoticed =
                        peer.missing.iter_mut().filter(|(lost, at_ns)| *lost < number && at_ns.is_none());
                    unnoticed.for_each(|(_, at_ns)| *at_ns = Some(now_ns));
                }
                peer.receiver.handle_datagram(now_ns, origin, &bytes, &mut sink);
            }
            None => {}
        }
        if peer.receiver.next_deadline().is_some_and(|at_ns| at_ns <= now_ns) {
            peer.receiver.handle_timeout(now_ns, &mut sink);
        }
        self.note_mended(at);
        self.ask(at);
    }

    fn note_mended(&mut self, at: usize) {
        let (peer, fates) = (&mut self.peers[at], &mut self.fates);
        let gaps = peer.receiver.backlog().0;
        peer.missing.retain(|&(number, noticed_ns)| {
            let first = number as u64 * MESSAGES + 1;
            let Some(noticed_ns) = noticed_ns.filter(|_| !gaps.is_any_missing(first..first + MESSAGES))
            else {
                return true;
            };
            let fate = &mut fates[number];
            fate.mended_ns = fate.mended_ns.max(self.now_ns - noticed_ns);
            fate.mended += 1;
            false
        });
    }

    fn ask(&mut self, at: usize) {
        while let Some((_, request)) = self.peers[at].receiver.poll_request(self.now_ns) {
            let first = Request::parse(&request).unwrap().first;
            self.fates[((first - 1) / MESSAGES) as usize].requests += 1;
            if self.passes() {
                let at_ns = self.now_ns + self.peers[at].delay_ns;
                self.at(at_ns, Event::ToServer { peer: at, bytes: request[..].into() });
            }
        }
        let peer = &mut self.peers[at];
        let wakes_ns = peer.receiver.next_deadline().unwrap_or(u64::MAX);
        if wakes_ns != u64::MAX && wakes_ns != peer.wakes_ns {
            assert!(wakes_ns > self.now_ns, "wants to be woken in the past");
            peer.wakes_ns = wakes_ns;
            self.at(wakes_ns, Event::Wakes { peer: at });
        }
    }

    fn serve(&mut self, at: usize, request: &[u8]) {
        let next = self.fates.len() as u64 * MESSAGES + 1;
        let mut out = [0; PAYLOAD_BYTES];
        let from = Asker { from: self.peers[at].address, is_proved: true, has_waited: false };
        let of = Holding { session: session(), held: Held::of_ring(1, next) };
        let reply = self.server.handle_request(self.now_ns, from, request, of, &mut out, write_message);
        let Some(bytes) = reply.bytes() else { return };
        if let Ok(packet) = Downstream::parse(&out[..bytes]) {
            self.fates[((packet.sequence - 1) / MESSAGES) as usize].answers += 1;
            self.repair_bytes += bytes as u64;
        }
        if reply.is_to_all() {
            self.multicast(Origin::Repair(0), &out[..bytes], &[]);
        } else if self.passes() {
            let at_ns = self.now_ns + self.peers[at].delay_ns;
            self.at(at_ns, Event::ToPeer { peer: at, origin: Origin::Server(0), bytes: out[..bytes].into() });
        }
    }

    /// Publishes two packets that nobody loses, and checks that every receiver soon has all messages.
    pub(crate) fn finish(&mut self) {
        self.loss = Loss::default();
        (0..2).for_each(|_| self.publish(&[], 20 * RTT_NS));
        let until_ns = self.now_ns + 60 * SECOND_NS;
        while self.now_ns < until_ns && self.peers.iter().any(|peer| peer.is_up && !peer.missing.is_empty()) {
            self.run(self.now_ns + 10 * MILLISECOND_NS);
        }
        for peer in self.peers.iter().filter(|peer| peer.is_up) {
            assert_eq!(peer.delivered, self.fates.len() as u64 * MESSAGES, "{:?}", peer.receiver.counters());
            assert!(peer.missing.is_empty());
        }
        assert!(self.fates.iter().all(|fate| fate.mended == fate.losers));
    }
}
