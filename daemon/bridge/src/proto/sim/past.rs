//! The retransmission servers of a simulated network, with their rings and their journals.

use std::net::{Ipv4Addr, SocketAddr};

use super::super::control::is_control;
use super::super::gap::GapPolicy;
use super::super::native::ask::{self, Ask, ENTRY_BYTES, Entry};
use super::super::native::container::{Container, Kind};
use super::super::receiver::Origin;
use super::super::replay::{
    AskedEntries, Asker, Block, Exchange, Fetched, Held, Holding, Piece, Place, Reply,
};
use super::super::session::Session;
use super::super::wire::Request;
use super::super::{MICROSECOND_NS, MILLISECOND_NS};
use super::check::CLOCK_JITTER_NS;
use super::event::{Event, Waiting};
use super::scenario::{Journal, PAYLOAD_BYTES, Scenario, Totals, Wire};
use super::world::World;
use super::{Seed, plain_scenario, seeds};

fn address(at: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(10, 0, 0, at as u8 + 1), 40_000))
}

impl World {
    /// Returns the messages that a server has from `first` on. A request that has waited does not wait again.
    fn held(&mut self, server: usize, first: u64, waiting: &Waiting, again: bool) -> Held {
        let ring = self.history.held(server);
        if self.history.journal.is_none() {
            return ring;
        }
        if (ring.oldest..).contains(&first) {
            return Held { is_backed: true, ..ring };
        }
        let held = self.pasts[server].held(self.now_ns, first, (ring.oldest, ring.next), waiting);
        if held.place == Place::Shelf
            && let Some(first) = self.pasts[server].poll_ahead(self.now_ns, first, ring.oldest)
        {
            self.read_disk(server, first);
        }
        match held.place {
            Place::Disk if again => Held { place: Place::Busy, ..held },
            _ => held,
        }
    }

    fn read_disk(&mut self, server: usize, first: u64) {
        let longest_ns = self.history.journal.as_ref().map_or(0, |journal| journal.read_ns);
        let took_ns = self.rng.u64(1..=longest_ns.max(1));
        let session = self.history.current();
        self.at(self.now_ns + took_ns, Event::DiskAnswers { server, session, first });
    }

    fn order(&mut self, server: usize) {
        if let Some(first) = self.pasts[server].poll_fetch(self.now_ns) {
            self.read_disk(server, first);
        }
    }

    /// Does the work of the thread that reads the journal, and lets the repair thread answer.
    pub(super) fn take_from_disk(&mut self, server: usize, session: usize, first: u64) {
        if session != self.history.current() {
            return;
        }
        let fetched = if self.rng.u8(..) < 3 { Fetched::Failed } else { self.fetch(first) };
        self.pasts[server].take(self.now_ns, fetched);
        while let Some(waiting) = self.pasts[server].poll_ready(self.now_ns) {
            match waiting {
                Waiting::Plain { at, life, request } => {
                    self.answer(server, at, life, &request, (false, true))
                }
                Waiting::Native { at, session, entry, size } => {
                    self.answer_native(server, at, (session, &[entry], size), true);
                }
            }
        }
        self.order(server);
    }

    fn fetch(&mut self, first: u64) -> Fetched {
        let (history, current) = (&self.history, self.history.current());
        let Some(journal) = &history.journal else { return Fetched::Unusable };
        let is_over = self.published == self.scenario.messages;
        let written = history.published[current].saturating_sub(if is_over { 0 } else { journal.behind });
        if first > written {
            return Fetched::NotYet(first);
        }
        let (mut block, mut buffer) = (Block::new(first), vec![0; history.max_message]);
        let most = first + self.rng.u64(1..64);
        while block.next() <= written.min(most) {
            let sequence = block.next();
            if let Some(behind) = journal.missing_to(sequence) {
                block.lose(behind);
                break;
            }
            let size = history.write_message(current, sequence, &mut buffer).unwrap();
            block.push(&buffer[..size], history.meta(current, sequence));
        }
        Fetched::Block(block)
    }

    /// Does the work of a repair thread for one request.
    pub(super) fn serve(&mut self, server: usize, at: usize, life: u32, request: &[u8], copy: bool) {
        if self.is_native() {
            self.serve_native(server, at, request);
        } else {
            self.answer(server, at, life, request, (copy, false));
        }
        self.order(server);
    }

    fn answer(&mut self, server: usize, at: usize, life: u32, request: &[u8], (copy, again): (bool, bool)) {
        let first = Request::parse(request).map_or(1, |request| request.first);
        let waiting = Waiting::Plain { at, life, request: request.to_vec() };
        let (held, current) = (self.held(server, first, &waiting, again), self.history.current());
        let session = self.history.session(current);
        let mut out = [0; 2 * PAYLOAD_BYTES];
        let (history, past) = (&self.history, &self.pasts[server]);
        let read = |sequence, room: &mut [u8]| match past.read(sequence, 0, room) {
            Some(piece) if held.place == Place::Shelf => (piece.size == piece.total).then_some(piece.size),
            _ if sequence < history.held(server).oldest => None,
            _ => history.write_message(current, sequence, room),
        };
        let (now_ns, of) = (self.now_ns, Holding { session, held });
        let source = Asker { from: address(at), is_proved: true, has_waited: again };
        let reply = self.servers[server].handle_request(now_ns, source, request, of, &mut out, read);
        if reply == Reply::Fetch {
            self.pasts[server].wait(first, waiting);
        }
        let Some(bytes) = reply.bytes() else { return };
        let reply = &out[..bytes];
        assert!(bytes <= PAYLOAD_BYTES, "a reply larger than the payload");
        let arrivals = self.peers[at].replies[server].send(&mut self.rng, now_ns, reply);
        if !is_control(reply) {
            self.account(at, life, request, reply, copy, arrivals.iter().any(|arrival| arrival.sound));
        }
        for arrival in arrivals {
            self.at(arrival.at_ns, Event::ToPeer { peer: at, life, origin: Origin::Server(server), arrival });
        }
    }

    fn serve_native(&mut self, server: usize, at: usize, request: &[u8]) {
        let Ok(opened) = self.server_codecs[server].open(self.now_ns, request) else { return };
        let (container, body) = Container::parse(&opened).unwrap();
        let (Kind::Ask, Some(ask)) = (container.kind, Ask::parse(body)) else { return };
        let entries: Vec<Entry> = ask.entries().collect();
        self.answer_native(server, at, (container.session, &entries, request.len()), false);
    }

    fn answer_native(
        &mut self,
        server: usize,
        at: usize,
        (asked, entries, size): (Session, &[Entry], usize),
        again: bool,
    ) {
        let current = self.history.current();
        let (now_ns, session) = (self.now_ns, self.history.session(current));
        let waiting = |entry| Waiting::Native { at, session: asked, entry, size };
        for &entry in entries {
            let held = self.held(server, entry.first, &waiting(entry), again);
            let mut body = [0; ENTRY_BYTES];
            ask::write(std::iter::once(entry), &mut body);
            let (history, past, codec) =
                (&self.history, &self.pasts[server], &mut self.server_codecs[server]);
            let mut large = vec![0; history.max_message];
            let mut read = |sequence, offset: u32, room: &mut [u8]| {
                let mut piece = match past.read(sequence, offset, room) {
                    Some(piece) if held.place == Place::Shelf => piece,
                    _ if sequence < history.held(server).oldest => return None,
                    _ => {
                        let total = history.write_message(current, sequence, &mut large)?;
                        let rest = &large[(offset as usize).min(total)..total];
                        let size = rest.len().min(room.len());
                        room[..size].copy_from_slice(&rest[..size]);
                        Piece { size, total, meta: history.meta(current, sequence) }
                    }
                };
                // Each thread reads the clocks itself, so the times differ a little.
                let time_ns = piece.meta.time_ns;
                piece.meta.time_ns += if time_ns > 0 { now_ns % (CLOCK_JITTER_NS + 1) } else { 0 };
                Some(piece)
            };
            let (mut replies, mut fetched) = (Vec::new(), None);
            let mut emit = |buffer: &mut [u8], (kind, _), about: (Session, u64, u16), body| {
                let is_repair = matches!(kind, Kind::Data | Kind::Fragment);
                let size = codec.sealer.finish(buffer, (kind, is_repair), about, body).unwrap();
                assert!(size <= PAYLOAD_BYTES, "a reply larger than the payload");
                replies.push(buffer[..size].to_vec());
            };
            let mut fetch = |entry: Entry| fetched = Some(entry);
            let mut exchange =
                Exchange { session, read: &mut read, emit: &mut emit, fetch: &mut fetch, to_all: false };
            let mut out = [0; PAYLOAD_BYTES];
            let ask = Ask::parse(&body).unwrap();
            let asked = AskedEntries { session: asked, ask, datagram_bytes: size };
            let source = Asker { from: address(at), is_proved: true, has_waited: again };
            let held = &mut |_: &Entry| held;
            self.servers[server].handle_ask(now_ns, source, &asked, held, &mut exchange, &mut out);
            if let Some(entry) = fetched {
                self.pasts[server].wait(entry.first, waiting(entry));
            }
            let life = self.peers[at].life;
            for reply in replies {
                for arrival in self.peers[at].replies[server].send(&mut self.rng, now_ns, &reply) {
                    let origin = Origin::Server(server);
                    self.at(arrival.at_ns, Event::ToPeer { peer: at, life, origin, arrival });
                }
            }
        }
    }
}

/// Makes a scenario in which a receiver is often away, while the ring is overwritten many times. The servers have small rings and a
/// journal.
fn past_scenario(seed: u64, wire: Wire, journal: Journal) -> Scenario {
    let rng = &mut fastrand::Rng::with_seed(seed ^ 0x9A57);
    let loss = [0.0, 0.01, 0.1][rng.usize(0..3)];
    let mut scenario = plain_scenario(loss, rng.u64(10..500) * MICROSECOND_NS, 1, PAST_MESSAGES);
    let servers = rng.usize(1..=2);
    scenario.servers.resize(servers, scenario.servers[0].clone());
    scenario.ring_capacities = vec![rng.u64(50..500); servers];
    scenario.config.gaps.servers = servers;
    // No message is given up while any server has it.
    scenario.config.gaps.policy = GapPolicy::Skip { give_up_ns: u64::MAX };
    scenario.config.is_native = wire != Wire::Plain;
    scenario.peer_restarts = (0..rng.usize(1..4)).map(|_| (rng.u64(1..=PAST_MESSAGES), 0)).collect();
    scenario.server_rate = rng.bool().then(|| rng.u64(2_000_000..20_000_000));
    let (behind, read_ns) = (rng.u64(0..40), rng.u64(1..20) * MILLISECOND_NS);
    Scenario {
        wire,
        pace_ns: 100 * MICROSECOND_NS,
        journal: Some(Journal { behind, read_ns, ..journal }),
        ..scenario
    }
}

const PAST_MESSAGES: u64 = 6_000;

fn run_past(journal: impl Fn(u64) -> Journal) -> Totals {
    let default = if cfg!(debug_assertions) { 4 } else { 200 };
    let mut totals = Totals::default();
    for seed in seeds(default) {
        for wire in [Wire::Plain, Wire::Native, Wire::Sealed] {
            let _named = Seed(seed);
            let run = World::new(seed, past_scenario(seed, wire, journal(seed))).run();
            assert_eq!(run.delivered + run.gap_messages, PAST_MESSAGES);
            totals.add(&run);
        }
    }
    println!(
        "{} runs: {} delivered, {} in gaps, {} B served a first time, {} B again; longest {} ms",
        totals.runs,
        totals.delivered,
        totals.gap_messages,
        totals.first_round_bytes,
        totals.repeated_bytes,
        totals.longest_ns / MILLISECOND_NS
    );
    totals
}

#[test]
fn what_the_ring_has_no_more_comes_from_the_journal() {
    let totals = run_past(|_| Journal::default());
    assert_eq!(totals.gap_messages, 0);
}

/// The check of each delivery fails if a gap covers a message that the journal has.
#[test]
fn what_the_journal_has_lost_is_told_exactly() {
    let totals = run_past(|seed| {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let lost = (1..5).map(|n| n * 1_000..n * 1_000 + rng.u64(1..900)).collect();
        Journal { oldest: rng.u64(1..700), lost, ..Journal::default() }
    });
    assert!(totals.gap_messages > 0);
}
