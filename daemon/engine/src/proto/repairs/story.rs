//! Random stories of a receiver of a lossy line with a log as its last source, in virtual time.
//!
//! The receiver, the server that answers it and the past behind that are those of real bridges; the log is one in memory. It may be
//! behind the feed, away for a while, shortened or damaged, or that of another feed. Whatever it is, no message may come twice, in
//! another order, or with other bytes. Of a log that is well, every message that it has must come.

use fastrand::Rng;
use shmcast_bridge::proto::MICROSECOND_NS;
use shmcast_bridge::proto::control::ControlDatagram;
use shmcast_bridge::proto::gap::{GapConfig, GapPolicy};
use shmcast_bridge::proto::limit::AllowList;
use shmcast_bridge::proto::receiver::{Delivery, Follow, Join, Origin, Receiver, ReceiverConfig};
use shmcast_bridge::proto::replay::{Held, Past, Place, Replay, ReplayConfig, Reply};
use shmcast_bridge::proto::wire::{PacketWriter, REQUEST_BYTES, Request, heartbeat, max_message_bytes};

use super::super::mutant::CHOSEN;
use super::fake::{Feed, LocalRing, Log};
use super::*;

const STORIES: u64 = 150;
const STEP_NS: u64 = 200 * MICROSECOND_NS;
const PAYLOAD_BYTES: usize = 4_000;
/// How many messages go by in a step, while any do.
const PER_STEP: u64 = 2;
const NEXT: u64 = u64::MAX;

/// The kind of log that a story has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// That of the feed, under the same session.
    Own,
    /// That of the feed, under another session.
    Renamed,
    /// That of another feed, under the same session.
    Namesake,
    /// That of another feed.
    Other,
    /// That of the feed, between runs of another one.
    After,
    /// That of a feed that says one thing over and over, but for one message that nobody can compare.
    Dull,
}

struct World {
    rng: Rng,
    kind: Kind,
    feed: Feed,
    /// How many messages the log is behind the feed, and those that it never has.
    lag: u64,
    lacks: u64,
    messages: u64,
    /// The log is away between these times.
    away: (u64, u64),
    is_damaged: bool,
    log: Log,
    logged: u64,
    ring: LocalRing,
    repairs: Repairs,
    receiver: Receiver,
    replay: Replay,
    past: Past<[u8; REQUEST_BYTES]>,
    /// When the disk has an answer to this sequence.
    fetching: Option<(u64, u64)>,
    due: u64,
    gaps: u64,
    by_log: u64,
}

fn session(epoch: u64) -> Session {
    Session::of_channel("TICK", epoch).expect("this is a session")
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let kinds = [Kind::Own, Kind::Renamed, Kind::Namesake, Kind::Other, Kind::After, Kind::Dull];
        let kind = kinds[seed as usize % kinds.len()];
        let feed = Feed { number: seed << 8, is_dull: kind == Kind::Dull, begin_ns: 1 << 50 };
        let messages = rng.u64(600..3_000);
        let begins = rng.u64(100..5_000) * STEP_NS;
        let gaps = GapConfig {
            servers: 1,
            far: 1,
            payload_bytes: PAYLOAD_BYTES,
            policy: GapPolicy::Skip { give_up_ns: 2 * SECOND_NS },
            ..GapConfig::default()
        };
        let config = ReceiverConfig {
            gaps,
            join: Join::From(1),
            ..ReceiverConfig::following(Follow::Channel(*b"TICK"))
        };
        let replay = ReplayConfig {
            payload_bytes: PAYLOAD_BYTES,
            allow: AllowList::new(vec!["127.0.0.1".parse().expect("this is a network")]),
            trust_allowed: true,
            ..ReplayConfig::default()
        };
        let mut log = Log::default();
        if kind == Kind::After {
            log.append((Feed { number: !feed.number, ..feed }, session(1), 9), (1, 200), 9);
        }
        World {
            kind,
            feed,
            lag: rng.u64(..100),
            lacks: if rng.u8(..4) == 0 { rng.u64(..200) } else { 0 },
            messages,
            away: if rng.u8(..3) == 0 { (begins, begins + rng.u64(..600) * MILLISECOND_NS) } else { (0, 0) },
            is_damaged: rng.u8(..4) == 0,
            log,
            logged: 1,
            ring: LocalRing { feed, oldest: 1, next: 1, later_ns: MILLISECOND_NS, sample: 0 },
            repairs: Repairs::default(),
            receiver: Receiver::new(config),
            replay: Replay::new(replay),
            past: Past::far(1),
            fetching: None,
            due: 1,
            gaps: 0,
            by_log: 0,
            rng,
        }
    }

    /// Whether every message that the log ever has must come.
    fn is_well(&self) -> bool {
        let is_proved = matches!(self.kind, Kind::Own | Kind::After);
        // A message that the line brought is in the log some time.
        let is_proved = is_proved && self.ring.sample + self.lacks <= self.messages;
        is_proved && !self.is_damaged && self.away.1 - self.away.0 < 100 * MILLISECOND_NS
    }

    fn play(mut self) -> Result<World, String> {
        let (mut sent, mut now_ns) = (1, STEP_NS);
        // The line loses long runs, and its beginning now and then.
        let mut lost_until = if self.rng.bool() { 0 } else { self.rng.u64(1..300) };
        while self.due <= self.messages {
            now_ns += STEP_NS;
            if now_ns > 40 * SECOND_NS {
                return Err(format!("{} is due and does not come", self.due));
            }
            for _ in 0..PER_STEP {
                if sent <= self.messages {
                    if sent > 20 && self.rng.u8(..) < 2 {
                        lost_until = sent + self.rng.u64(..400);
                    }
                    if sent >= lost_until && self.fits(sent) {
                        // The first one is kept.
                        if self.ring.sample == 0 && !self.feed.message(sent).0.is_empty() {
                            self.ring.sample = sent;
                        }
                        self.send(now_ns, sent)?;
                    }
                    sent += 1;
                }
            }
            let is_idle = sent > self.messages || now_ns.is_multiple_of(50 * STEP_NS);
            if is_idle && now_ns.is_multiple_of(5 * STEP_NS) {
                let word = heartbeat(session(5), sent);
                self.take(now_ns, Origin::Line(0), &word)?;
            }
            self.write_log(now_ns, sent);
            self.act(now_ns)?;
        }
        self.judge()
    }

    /// A line carries what fits a packet. The feed has no larger messages where it has a line, but the log's feed may.
    fn fits(&self, sequence: u64) -> bool {
        self.feed.message(sequence).0.len() <= max_message_bytes(PAYLOAD_BYTES)
    }

    fn send(&mut self, now_ns: u64, sequence: u64) -> Result<(), String> {
        let (mut packet, mut buffer) = (PacketWriter::new(sequence), [0; PAYLOAD_BYTES]);
        packet.push(&mut buffer, &self.feed.message(sequence).0);
        let size = packet.finish(&mut buffer, session(5)).expect("it fits");
        self.take(now_ns, Origin::Line(0), &buffer[..size])
    }

    fn write_log(&mut self, now_ns: u64, sent: u64) {
        self.log.is_away = (self.away.0..self.away.1).contains(&now_ns);
        let most = self.messages.saturating_sub(self.lacks) + 1;
        let behind = if sent > self.messages { 0 } else { self.lag };
        let to = sent.saturating_sub(behind).min(most);
        if self.kind == Kind::After && self.logged == most && most <= self.messages && sent > self.messages {
            let other = Feed { number: !self.feed.number, ..self.feed };
            self.log.append((other, session(8), 9), (most, self.messages + 1), 9);
            self.logged = self.messages + 1;
        }
        if to <= self.logged {
            return;
        }
        let (feed, epoch) = match self.kind {
            Kind::Own | Kind::After | Kind::Dull => (self.feed, 5),
            Kind::Renamed => (self.feed, 3),
            Kind::Namesake => (Feed { number: !self.feed.number, ..self.feed }, 5),
            Kind::Other => (Feed { number: !self.feed.number, ..self.feed }, 3),
        };
        let (feed, epoch) = match self.kind {
            // It says other things, in messages that are as alike as those of the feed.
            Kind::Dull => (Feed { is_dull: self.logged > 40, number: !feed.number, ..feed }, 3),
            _ => (feed, epoch),
        };
        self.log.append((feed, session(epoch), 1), (self.logged, to), self.rng.u64(1..30));
        self.logged = to;
        if self.is_damaged && self.rng.u8(..) < 20 {
            let at = self.rng.u64(1..=self.log.last);
            match self.rng.u8(..3) {
                0 => drop(self.log.entries.remove(&at)),
                1 => self
                    .log
                    .entries
                    .values_mut()
                    .take(at as usize)
                    .last()
                    .into_iter()
                    .for_each(|block| block[70] ^= 1),
                _ => self.log.entries.retain(|number, _| *number > at / 2),
            }
        }
    }

    fn act(&mut self, now_ns: u64) -> Result<(), String> {
        let World { receiver, ring, due, gaps, feed, .. } = self;
        if receiver.next_deadline().is_some_and(|due_ns| due_ns <= now_ns) {
            let mut wrong = None;
            receiver.handle_timeout(now_ns, &mut |delivery| {
                wrong = wrong.take().or(deliver(delivery, (feed, ring), due, gaps));
            });
            wrong.map_or(Ok(()), Err)?;
        }
        while let Some((_, request)) = self.receiver.poll_request(now_ns) {
            self.answer(now_ns, request, false)?;
        }
        if let Some((first, at_ns)) = self.fetching.filter(|(_, at_ns)| *at_ns <= now_ns) {
            let line = (session(5), 1);
            let fetched = self.repairs.fetch(at_ns, line, first, (&mut self.log, &mut self.ring));
            self.fetching = None;
            self.past.take(now_ns, fetched.unwrap_or(Fetched::Failed));
            while let Some(request) = self.past.poll_ready(now_ns) {
                self.answer(now_ns, request, true)?;
            }
        }
        if self.fetching.is_none()
            && let Some(first) = self.past.poll_fetch(now_ns)
        {
            self.fetching = Some((first, now_ns + self.rng.u64(1..20) * STEP_NS));
        }
        Ok(())
    }

    fn answer(&mut self, now_ns: u64, request: [u8; REQUEST_BYTES], again: bool) -> Result<(), String> {
        let first = Request::parse(&request).expect("the receiver made it").first;
        let mut held = self.past.held(now_ns, first, (NEXT, NEXT), &request);
        if again && held.place == Place::Disk {
            held = Held { place: Place::Busy, ..held };
        }
        let (mut out, past) = ([0; PAYLOAD_BYTES], &self.past);
        let read = |sequence, room: &mut [u8]| {
            past.read(sequence, 0, room).and_then(|piece| (piece.size == piece.total).then_some(piece.size))
        };
        let asker = "127.0.0.1:40000".parse().expect("this is an address");
        let with = ((asker, true), &request, (session(5), held));
        let reply = match again {
            false => self.replay.handle_request(now_ns, with.0, with.1, with.2, &mut out, read),
            true => self.replay.answer_request(now_ns, with.0, with.1, with.2, &mut out, read),
        };
        if reply == Reply::Fetch {
            self.past.wait(first, request);
        }
        let Some(bytes) = reply.bytes() else { return Ok(()) };
        if let Reply::Messages { count, .. } = reply {
            self.by_log += u64::from(count);
            return self.take(now_ns, Origin::Server(0), &out[..bytes]);
        }
        match ControlDatagram::parse(&out[..bytes]) {
            Ok(ControlDatagram::Later { session, first }) => {
                self.receiver.handle_later(now_ns, 0, (session, first))
            }
            Ok(ControlDatagram::Gone { session, first, oldest }) => {
                let World { receiver, ring, due, gaps, feed, .. } = self;
                let mut wrong = None;
                receiver.handle_gone(now_ns, 0, (session, first, oldest), &mut |delivery| {
                    wrong = wrong.take().or(deliver(delivery, (feed, ring), due, gaps));
                });
                return wrong.map_or(Ok(()), Err);
            }
            other => return Err(format!("the log said {other:?}")),
        }
        Ok(())
    }

    fn take(&mut self, now_ns: u64, origin: Origin, datagram: &[u8]) -> Result<(), String> {
        let World { receiver, ring, due, gaps, feed, .. } = self;
        let mut wrong = None;
        receiver.handle_datagram(now_ns, origin, datagram, &mut |delivery| {
            wrong = wrong.take().or(deliver(delivery, (feed, ring), due, gaps));
        });
        wrong.map_or(Ok(()), Err)
    }

    fn judge(self) -> Result<World, String> {
        if self.is_well() && self.gaps > self.lacks {
            return Err(format!(
                "{} messages of {} are lost, and the log lacks {}: {:?}, {:?}",
                self.gaps,
                self.messages,
                self.lacks,
                self.repairs.state(),
                self.past.counters()
            ));
        }
        let is_foreign = matches!(self.kind, Kind::Namesake | Kind::Other | Kind::Dull);
        match is_foreign && self.by_log > 0 {
            true => Err(format!("a log of another feed gave {} messages", self.by_log)),
            false => Ok(self),
        }
    }
}

/// Takes a delivery into the ring. Returns what is wrong with it.
fn deliver(
    delivery: Delivery<'_>,
    (feed, ring): (&Feed, &mut LocalRing),
    due: &mut u64,
    gaps: &mut u64,
) -> Option<String> {
    match delivery {
        Delivery::Message { sequence, data, .. } => {
            if sequence != *due {
                return Some(format!("{sequence} came and {due} was due"));
            }
            if data != feed.message(sequence).0 {
                return Some(format!("message {sequence} has other bytes"));
            }
            *due += 1;
            ring.next = *due;
        }
        Delivery::Gap { from, to } => {
            if from != *due {
                return Some(format!("{from} is given up and {due} was due"));
            }
            *gaps += to - from;
            *due = to;
            // A message that the ring does not have cannot be compared.
            (ring.oldest, ring.next) = (to, to);
        }
        Delivery::NewSession { .. } | Delivery::End { .. } => {}
    }
    None
}

fn play(seed: u64) -> Result<World, String> {
    World::new(seed).play().map_err(|why| format!("seed {seed}: {why}"))
}

#[test]
fn no_wrong_message_comes_from_any_log_and_all_from_one_that_is_well() {
    let (mut by_log, mut well, mut lost) = (0, 0, 0);
    for seed in 1..=STORIES {
        match play(seed) {
            Ok(world) => {
                by_log += world.by_log;
                well += u64::from(world.is_well() && world.by_log > 0);
                lost += world.gaps;
            }
            Err(why) => panic!("{why}"),
        }
    }
    println!("{STORIES} stories: {by_log} messages by logs, {well} logs were well, {lost} messages lost");
    assert!(by_log > 10_000 && well > STORIES / 10 && lost > 1_000);
}

#[test]
fn each_mistake_is_found() {
    for mutant in [
        Mutant::ServesUnproved,
        Mutant::ComparesNothing,
        Mutant::TakesAnyRun,
        Mutant::ProvesByLittle,
        Mutant::WaitsForEver,
    ] {
        CHOSEN.set(Some(mutant));
        let found = (1..=STORIES).find_map(|seed| play(seed).err());
        CHOSEN.set(None);
        match found {
            Some(why) => println!("{mutant:?}: {why}"),
            None => panic!("no story finds {mutant:?}"),
        }
    }
}
