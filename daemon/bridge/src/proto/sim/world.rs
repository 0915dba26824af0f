//! One simulated network: a publisher with a bounded ring, its sender, retransmission servers and receivers, on a virtual clock. Every
//! delivery is immediately compared with the messages that were published.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::gap::GapPolicy;
use super::super::limit::{AllowList, Rate};
use super::super::receiver::{Origin, Receiver};
use super::super::replay::{Past, Replay, ReplayConfig};
use super::super::sender::{Sender, SenderConfig};
use super::super::session::Session;
use super::super::wire::Request;
use super::super::{MICROSECOND_NS, MILLISECOND_NS, SECOND_NS};
use super::check::{Checker, History};
use super::event::{Event, Waiting};
use super::native::{self, Codec};
use super::net::{Link, Profile};
use super::scenario::{PAYLOAD_BYTES, Scenario, Totals, Wire};

/// The longest virtual time that a run can take.
const LIMIT_NS: u64 = 300 * SECOND_NS;

pub(super) struct Peer {
    pub(super) receiver: Receiver,
    pub(super) up: bool,
    pub(super) life: u32,
    pub(super) wakes_ns: u64,
    pub(super) checker: Checker,
    /// For each session and sequence: whether the message arrived on a line, and how often servers sent it since the receiver's last
    /// restart.
    pub(super) came: Vec<Vec<bool>>,
    pub(super) served: Vec<Vec<u16>>,
    pub(super) lines: Vec<Link>,
    pub(super) requests: Vec<Link>,
    pub(super) replies: Vec<Link>,
    pub(super) earlier: Totals,
    /// Seals and opens the packets of native lines.
    pub(super) codec: Codec,
}

impl Peer {
    fn new(at: usize, scenario: &Scenario) -> Peer {
        let link = |profile: &Profile| Link::new(profile.clone());
        let finite =
            matches!(scenario.config.gaps.policy, GapPolicy::Skip { give_up_ns } if give_up_ns != u64::MAX);
        Peer {
            codec: Codec::new(1_000 + at as u64, true, scenario.wire),
            receiver: Receiver::new(scenario.config),
            up: true,
            life: 0,
            wakes_ns: u64::MAX,
            checker: Checker {
                may_give_up: finite,
                is_native: scenario.wire != Wire::Plain,
                ..Checker::default()
            },
            came: vec![Vec::new()],
            served: vec![Vec::new()],
            lines: scenario.lines.iter().map(link).collect(),
            requests: scenario.servers.iter().map(|(to, _)| link(to)).collect(),
            replies: scenario.servers.iter().map(|(_, from)| link(from)).collect(),
            earlier: Totals::default(),
        }
    }
}

fn new_replay(scenario: &Scenario) -> Replay {
    let allow = AllowList::new(vec!["10.0.0.0/24".parse().unwrap()]);
    let mut config = ReplayConfig { allow, payload_bytes: PAYLOAD_BYTES, ..ReplayConfig::default() };
    if let Some(per_second) = scenario.server_rate {
        let rate = Rate { per_second, burst: per_second / 25 };
        (config.source_rate, config.global_rate) = (rate, rate);
    }
    Replay::new(config)
}

pub struct World {
    pub(super) scenario: Scenario,
    pub(super) rng: fastrand::Rng,
    pub(super) now_ns: u64,
    pub(super) events: BinaryHeap<Reverse<(u64, u64)>>,
    pub(super) slots: std::collections::HashMap<u64, Event>,
    pub(super) scheduled: u64,
    pub(super) history: History,
    pub(super) sender: Option<Sender>,
    pub(super) sender_wakes_ns: u64,
    pub(super) published: u64,
    pub(super) servers: Vec<Replay>,
    /// For each server, the server's view of its journal.
    pub(super) pasts: Vec<Past<Waiting>>,
    pub(super) peers: Vec<Peer>,
    /// The number of senders of native packets so far.
    pub(super) senders: u64,
    /// For each server, the code that seals and opens its native packets.
    pub(super) server_codecs: Vec<Codec>,
    /// The last request of any receiver, the server to which it was sent, and its time.
    pub(super) last_request: Option<(usize, Request, u64)>,
    pub(super) totals: Totals,
}

impl World {
    pub(super) fn is_native(&self) -> bool {
        self.scenario.wire != Wire::Plain
    }

    pub(super) fn new_codec(&mut self, is_receiver: bool) -> Codec {
        self.senders += 1;
        Codec::new(self.senders, is_receiver, self.scenario.wire)
    }

    pub(crate) fn new(seed: u64, scenario: Scenario) -> World {
        let history = History {
            published: vec![0],
            ring_capacities: scenario.ring_capacities.clone(),
            journal: scenario.journal.clone(),
            max_message: scenario.max_message,
        };
        let mut world = World {
            rng: fastrand::Rng::with_seed(seed),
            now_ns: 0,
            events: BinaryHeap::new(),
            slots: std::collections::HashMap::new(),
            scheduled: 0,
            sender: Some(new_sender(history.session(0), 1, 0, (scenario.wire, 1))),
            senders: 1,
            server_codecs: (0..scenario.servers.len())
                .map(|server| Codec::new(2_000 + server as u64, false, scenario.wire))
                .collect(),
            sender_wakes_ns: u64::MAX,
            published: 0,
            servers: (0..scenario.servers.len()).map(|_| new_replay(&scenario)).collect(),
            pasts: (0..scenario.servers.len()).map(|_| Past::new(1)).collect(),
            peers: (0..scenario.peers).map(|peer| Peer::new(peer, &scenario)).collect(),
            history,
            last_request: None,
            totals: Totals { runs: 1, ..Totals::default() },
            scenario,
        };
        (0..world.peers.len()).for_each(|peer| world.note_rtt(peer));
        world.at(20 * MICROSECOND_NS, Event::Publish);
        world.run_sender();
        if world.scenario.forger {
            world.at(MILLISECOND_NS + seed % 10, Event::Forge { forged: seed });
        }
        world
    }

    pub(super) fn note_rtt(&mut self, peer: usize) {
        for (server, (to, from)) in
            self.scenario.servers.iter().enumerate().filter(|_| self.scenario.knows_rtt)
        {
            self.peers[peer].receiver.note_rtt(server, to.delay_ns + from.delay_ns);
        }
    }

    pub(super) fn at(&mut self, at_ns: u64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at_ns, self.scheduled)));
        self.slots.insert(self.scheduled, event);
    }

    /// Runs until every receiver has everything. Then checks for 2 s that receivers deliver nothing more, and request nothing more.
    pub(crate) fn run(mut self) -> Totals {
        while !self.is_done() {
            assert!(self.step(), "nothing left to happen, and not done");
            assert!(self.now_ns < LIMIT_NS, "does not come to an end: {}", self.describe());
        }
        self.totals.longest_ns = self.now_ns;
        let before: Vec<_> = self.peers.iter().map(|peer| peer.checker.next).collect();
        let quiet_ns = self.now_ns + 2 * SECOND_NS;
        while self.now_ns < quiet_ns && self.step() {}
        for (peer, next) in self.peers.iter_mut().zip(before) {
            assert_eq!(peer.checker.next, next, "delivered more than everything");
            assert!(peer.receiver.poll_request(self.now_ns).is_none(), "still asks when nothing is missing");
            assert_eq!(peer.receiver.next_deadline().filter(|&at_ns| at_ns < self.now_ns), None);
        }
        self.sum_up()
    }

    fn step(&mut self) -> bool {
        let Some(Reverse((at_ns, id))) = self.events.pop() else {
            return false;
        };
        self.now_ns = at_ns;
        match self.slots.remove(&id).expect("scheduled once") {
            Event::Publish => self.publish(),
            Event::SenderWakes => self.run_sender(),
            Event::Forge { forged } => self.forge(forged),
            Event::SenderReturns { fresh } => self.return_sender(fresh),
            Event::PeerWakes { peer } => {
                if self.peers[peer].wakes_ns <= self.now_ns {
                    self.run_peer(peer, None);
                }
            }
            Event::PeerReturns { peer } => self.return_peer(peer),
            Event::ToPeer { peer, life, origin, arrival } => {
                if self.peers[peer].up && (self.peers[peer].life == life || matches!(origin, Origin::Line(_)))
                {
                    self.note_arrival(peer, origin, &arrival);
                    self.run_peer(peer, Some((origin, arrival.bytes)));
                }
            }
            Event::ToServer { server, peer, life, bytes, copy } => {
                self.serve(server, peer, life, &bytes, copy)
            }
            Event::DiskAnswers { server, session, first } => self.take_from_disk(server, session, first),
        }
        true
    }

    fn is_done(&self) -> bool {
        let (last, next) = (self.history.current(), self.history.next());
        self.published == self.scenario.messages
            && self.sender.is_some()
            && self.peers.iter().all(|peer| {
                let checker = &peer.checker;
                let has_all = checker.session == Some(last) && checker.next == next;
                peer.up && has_all && (checker.ended || !self.scenario.ends)
            })
    }

    fn describe(&self) -> String {
        let peers = self.peers.iter().map(|peer| {
            let (gaps, store) = peer.receiver.backlog();
            let holes: Vec<_> = gaps.iter().take(8).collect();
            format!(
                "next {} horizon {} holes {holes:?} stored {} {:?}",
                peer.receiver.next(),
                peer.receiver.horizon(),
                store.packets(),
                peer.receiver.counters()
            )
        });
        format!("published {:?}, receivers {:#?}", self.history.published, peers.collect::<Vec<_>>())
    }

    fn sum_up(mut self) -> Totals {
        for peer in &mut self.peers {
            sum_receiver(&mut self.totals, &peer.receiver);
            let earlier = std::mem::take(&mut peer.earlier);
            self.totals.add(&earlier);
            self.totals.delivered += peer.checker.delivered;
            self.totals.gap_messages += peer.checker.gap_messages;
            self.totals.sessions += peer.checker.joined_at.len() as u64;
            for &(index, joined) in &peer.checker.joined_at {
                for sequence in joined..=self.history.published[index] {
                    let size = self.history.message_size(index, sequence) as u64 + 2;
                    let came = peer.came[index][sequence as usize];
                    let served = peer.served[index][sequence as usize] > 0;
                    self.totals.lost_bytes += if came { 0 } else { size };
                    self.totals.needless_bytes += if came && served { size } else { 0 };
                }
            }
        }
        self.totals
    }
}

pub(super) fn sum_receiver(totals: &mut Totals, receiver: &Receiver) {
    let counters = receiver.counters();
    totals.recovery.merge(&counters.recovery);
    totals.malformed += counters.malformed.total();
    totals.fragments += counters.totals.fragments;
    totals.fragments_refused += counters.totals.fragments_refused;
}

pub(super) fn new_sender(session: Session, next: u64, now_ns: u64, (wire, id): (Wire, u64)) -> Sender {
    let config = SenderConfig {
        payload_bytes: PAYLOAD_BYTES,
        batch: 4,
        // A receiver that restarts behind a bad line can take a long time to receive the end.
        linger_ns: 300 * SECOND_NS,
    };
    match wire {
        Wire::Plain => Sender::new(config, session, next, now_ns),
        Wire::Native | Wire::Sealed => {
            Sender::native(config, session, next, now_ns, native::sealer(id, false, wire))
        }
    }
}
