//! A model of one log with two writers of one channel. It tries every order of events: a writer can be killed, stopped or restarted at each
//! step, an append can be late, and an answer can be lost.
//!
//! The model runs the code of real writers and makes real blocks. The log is a list, which stores a block only after the entry that the
//! append names.

use super::super::block::{Cut, Head, Kind, Stream, parse};
use super::super::mutant::{CHOSEN, Mutant};
use super::super::seal::Opener;
use super::*;
use shmcast_testkit::model::{Model, check};
use std::hash::{Hash, Hasher};

/// The channel's next sequence. The channel has all sequences before this one.
const NEXT: u64 = 4;
const IN_FLIGHT: usize = 1;
const TICK_NS: u64 = LOOK_NS;
/// A writer that has no turn for two ticks counts as stopped. A writer that stores no block for two ticks counts as silent.
const PATIENCE_NS: u64 = 2 * TICK_NS;
const MOST_TICKS: u64 = 2;
/// The number of faults in one run of the model.
const FAULTS: u64 = 2;

const BEHIND: &str = "a block stands behind the one that it was built for";
const ONCE: &str = "the log has each sequence once and in order";
const STORED: &str = "what a writer calls stored is in the log";
const SAID: &str = "a writer that lost the log writes again only behind its own word that it takes over";

/// A planted fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A planted mistake of the writer, which the simulation can also make.
    Writer(Mutant),
    /// A planted mistake: an append is lost on the way to the log, but the writer gets an acknowledgement.
    AcknowledgesEarly,
    /// A planted mistake: the bridge continues to read the channel at the sequence that it had reached. It should continue after the last
    /// message in the log.
    IgnoresTheEnd,
    /// A planted mistake: the log stores a block after any entry. It should do so only after the entry that the append names.
    ComparesNothing,
}

/// A writer's process.
#[derive(Debug)]
struct Actor {
    /// `None` if the process is dead.
    writer: Option<Writer>,
    /// The next sequence to put into a block.
    next: u64,
    /// The number of times that the process was restarted.
    lives: u64,
}

impl Clone for Actor {
    fn clone(&self) -> Actor {
        Actor { writer: self.writer.as_ref().map(copy), next: self.next, lives: self.lives }
    }
}

/// The content of a message on its way between a writer and the log.
#[derive(Debug, Clone)]
enum Word {
    Append(Append),
    Answer(Result<u64, Trouble>),
}

/// A message in transit: the process that sent or will receive the message, the number of restarts of this process, and the round.
#[derive(Debug, Clone)]
struct OnTheWay {
    at: usize,
    life: u64,
    round: u64,
    word: Word,
}

#[derive(Debug, Clone)]
struct World {
    now_ns: u64,
    actors: [Actor; 2],
    /// The blocks in the log. Each has its head, and the append that stored it.
    log: Vec<(Head, Append)>,
    way: Vec<OnTheWay>,
    kills: u64,
    losses: u64,
    orders: u64,
    pulses: u64,
    reached: u64,
}

/// One event that can come next in a run of the model.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// One turn of a process: `Writer::poll`, `handle_last`, `take_resume`, `take_again`, `take_takeover` and `append`. A process that gets
    /// no turns counts as stopped.
    Turn(usize),
    /// A message arrives: either the log receives an append, or a writer receives an answer (`Writer::handle_ack`) and then has a turn.
    Deliver(usize),
    /// A message is lost.
    Lose(usize),
    /// An answer is lost. The writer learns that the connection is broken.
    Disconnect(usize),
    Tick,
    /// The process is killed. Messages that it has sent can still arrive.
    Kill(usize),
    Start(usize),
    /// An operator's order: `Writer::take_over`.
    Order(usize),
    /// A pulse of the other writer arrives: `Writer::handle_pulse`.
    Pulse(usize),
}

struct Log {
    fault: Option<Fault>,
}

fn new_writer(at: usize, lives: u64) -> Writer {
    Writer::new(WriterConfig {
        stream: Stream([7; 16]),
        session: Session::from_bytes(*b"TICK000100"),
        writer: at as u64 + 1 + 2 * lives,
        in_flight: IN_FLIGHT,
        ack_ns: PATIENCE_NS,
        silence_ns: PATIENCE_NS,
    })
}

/// Copies a writer. The function names every field, so that a new field does not compile before it is copied here.
fn copy(of: &Writer) -> Writer {
    let flights = |flights: &VecDeque<Flight>| {
        let copy = |flight: &Flight| Flight { block: flight.block.clone(), ..*flight };
        flights.iter().map(copy).collect()
    };
    Writer {
        config: of.config,
        state: of.state,
        round: of.round,
        look_ns: of.look_ns,
        polled_ns: of.polled_ns,
        newest: of.newest,
        looked: of.looked,
        newest_id: of.newest_id,
        stores_after: of.stores_after,
        refused: of.refused,
        had: of.had,
        window: flights(&of.window),
        kept: flights(&of.kept),
        is_again: of.is_again,
        may_follow: of.may_follow,
        ordered_until_ns: of.ordered_until_ns,
        takes_over: of.takes_over,
        heed_ns: of.heed_ns,
        is_taken: of.is_taken,
        cut: of.cut,
        number: of.number,
        stored: of.stored,
        began: of.began,
        resume: of.resume,
        seen: of.seen,
        met_ns: of.met_ns,
        spare: Vec::new(),
        sealer: Sealer::default(),
        counters: WriterCounters::default(),
        acks: Histogram::default(),
    }
}

/// Hashes the state of a writer. Times are hashed relative to `now_ns`. Round numbers are left out, because they do not change the
/// behaviour.
fn hash_writer(writer: &Writer, now_ns: u64, hasher: &mut impl Hasher) {
    let state = match writer.state {
        State::Start => (0, 0),
        State::Run => (1, 0),
        State::Resync => (2, 0),
        State::Ahead(since_ns) => (3, since_ns),
        State::Fenced(heard_ns) => (4, heard_ns),
        State::Shut(_) => (5, 0),
    };
    let polled_ns = if writer.state == State::Run { writer.polled_ns } else { now_ns };
    (state, writer.look_ns.max(now_ns), polled_ns).hash(hasher);
    let id = |id: Option<BlockId>| id.map(|id| (id.writer, id.number));
    (writer.newest, id(writer.newest_id), writer.stores_after, writer.refused, writer.had).hash(hasher);
    for flight in writer.window.iter().chain(&writer.kept) {
        (flight.sequence, flight.crcs, id(flight.behind), flight.at_ns).hash(hasher);
    }
    (writer.window.len(), writer.is_again, writer.may_follow).hash(hasher);
    let ordered = writer.ordered_until_ns.max(now_ns);
    (writer.takes_over, writer.heed_ns.max(now_ns), writer.is_taken, writer.number, ordered).hash(hasher);
    let resume = writer.resume.map(|resume| match resume {
        Resume::At(next) => next,
        Resume::Beginning => 0,
    });
    (writer.stored, writer.began, resume, writer.seen, writer.met_ns).hash(hasher);
}

/// Returns the number of a trouble in an answer of this model. A new kind of trouble does not compile before it is listed here.
fn number(trouble: Trouble) -> u8 {
    match trouble {
        Trouble::Refused => 0,
        Trouble::Disconnected => 1,
        // In this model, no answer has these troubles: `Silent` comes from `Writer::poll`, `Rival` comes from `Writer::handle_pulse`, and
        // `Busy` has the same effect as `Disconnected`.
        Trouble::Silent | Trouble::Rival | Trouble::Busy => {
            unreachable!("no answer of this model has {trouble:?}")
        }
    }
}

impl Log {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn turn(&self, world: &mut World, at: usize) {
        let now_ns = world.now_ns;
        let Actor { writer: Some(writer), next, .. } = &mut world.actors[at] else { return };
        let mut appends = Vec::new();
        if let Some(round) = writer.poll(now_ns) {
            let mut last = Last::new(world.log.len() as u64);
            let mut opener = Opener::default();
            for (number, (_, append)) in world.log.iter().enumerate().rev() {
                if last.look((number as u64 + 1, Some(append.id)), &append.block, &mut opener) {
                    break;
                }
            }
            writer.handle_last(now_ns, round, last, NEXT).expect("the channel has what the log has");
            appends.extend(writer.take_again());
            world.reached |= if appends.is_empty() { 0 } else { 32 };
        }
        match writer.take_resume() {
            Some(Resume::At(_)) if self.is(Fault::IgnoresTheEnd) && *next > 0 => {}
            Some(Resume::At(sequence)) => *next = sequence,
            Some(Resume::Beginning) => {
                *next = 1;
                writer.note_beginning(1);
            }
            None => {}
        }
        appends.extend(writer.take_takeover(now_ns, 0));
        while writer.has_room() && *next < NEXT {
            appends.push(writer.append(now_ns, Cut::gap(*next, *next), 0));
            *next += 1;
        }
        let life = world.actors[at].lives;
        for append in appends {
            world.way.push(OnTheWay { at, life, round: append.round, word: Word::Append(append) });
        }
    }

    /// Handles an append in the log.
    fn store(&self, world: &mut World, append: &Append) -> Result<u64, Trouble> {
        let is_behind = append.after == world.log.len() as u64 || append.after == u64::MAX;
        let id = world.log.last().map(|(_, last)| last.id);
        let is_named = append.behind.is_none_or(|behind| id == Some(behind));
        if !(is_behind && is_named || self.is(Fault::ComparesNothing)) {
            world.reached |= 1;
            return Err(Trouble::Refused);
        }
        let (head, _) = parse(&append.block).expect("writers make sound blocks");
        world.log.push((head, append.clone()));
        Ok(world.log.len() as u64)
    }

    fn deliver(&self, world: &mut World, number: usize) {
        let OnTheWay { at, life, round, word } = world.way.remove(number);
        let now_ns = world.now_ns;
        if let Word::Append(append) = &word {
            let answer = self.store(world, append);
            world.way.push(OnTheWay { at, life, round, word: Word::Answer(answer) });
            return;
        }
        let actor = &mut world.actors[at];
        let Some(writer) = actor.writer.as_mut().filter(|_| actor.lives == life) else { return };
        if let Word::Answer(answer) = word {
            writer.handle_ack(now_ns, round, answer);
            self.turn(world, at);
        }
    }

    fn lose(&self, world: &mut World, number: usize) {
        world.losses += 1;
        let OnTheWay { at, life, round, word } = world.way.remove(number);
        if let (Word::Append(append), true) = (&word, self.is(Fault::AcknowledgesEarly)) {
            let word = Word::Answer(Ok(append.after + 1));
            world.way.push(OnTheWay { at, life, round, word });
        }
    }
}

impl Model for Log {
    type State = World;
    type Action = Action;
    const LANDMARKS: &'static [&'static str] = &[
        "an append was refused",
        "everything is stored",
        "a writer runs behind another one",
        "a writer resynchronises",
        "a writer is fenced",
        "a writer appends again",
    ];

    fn begin(&self) -> World {
        let actor = |at| Actor { writer: Some(new_writer(at, 0)), next: 0, lives: 0 };
        let mut world = World {
            now_ns: 0,
            actors: [actor(0), actor(1)],
            log: Vec::new(),
            way: Vec::new(),
            kills: 0,
            losses: 0,
            orders: 0,
            pulses: 0,
            reached: 0,
        };
        // At the beginning, one writer has stored its first block and sent its second, and the other writer has noticed it.
        let sound = Log { fault: None };
        sound.turn(&mut world, 0);
        sound.deliver(&mut world, 0);
        sound.deliver(&mut world, 0);
        sound.turn(&mut world, 1);
        world
    }

    fn actions(&self, world: &World) -> Vec<Action> {
        let mut all = Vec::new();
        // The first writer runs when the story begins, so most faults affect this writer.
        let may_fail = world.kills + world.losses + world.orders + world.pulses < FAULTS;
        if world.now_ns < MOST_TICKS * TICK_NS {
            all.push(Action::Tick);
        }
        for at in 0..2 {
            let Some(writer) = &world.actors[at].writer else {
                all.push(Action::Start(at));
                continue;
            };
            if writer.polled_ns != world.now_ns || writer.look_ns <= world.now_ns {
                all.push(Action::Turn(at));
            }
            if may_fail && world.kills == 0 && at == 0 {
                all.push(Action::Kill(at));
            }
            if may_fail && world.orders == 0 && at == 1 && writer.state() != State::Run {
                all.push(Action::Order(at));
            }
            let rival = world.actors[1 - at].writer.as_ref();
            if may_fail
                && world.pulses == 0
                && at == 0
                && rival.is_some_and(|rival| rival.state() == State::Run)
            {
                all.push(Action::Pulse(at));
            }
        }
        for (number, OnTheWay { at, life, word, .. }) in world.way.iter().enumerate() {
            // The appends of one process go through one connection.
            let is_earlier = |other: &OnTheWay| {
                (other.at, other.life) == (*at, *life) && matches!(other.word, Word::Append(_))
            };
            if matches!(word, Word::Append(_)) && world.way[..number].iter().any(is_earlier) {
                continue;
            }
            all.push(Action::Deliver(number));
            if may_fail && world.losses == 0 {
                all.push(Action::Lose(number));
                if matches!(word, Word::Answer(_)) {
                    all.push(Action::Disconnect(number));
                }
            }
        }
        all
    }

    fn step(&self, world: &World, action: &Action) -> World {
        let mut next = world.clone();
        let now_ns = world.now_ns;
        match *action {
            Action::Turn(at) => self.turn(&mut next, at),
            Action::Deliver(number) => self.deliver(&mut next, number),
            Action::Lose(number) => self.lose(&mut next, number),
            Action::Disconnect(number) => {
                next.losses += 1;
                next.way[number].word = Word::Answer(Err(Trouble::Disconnected));
            }
            Action::Tick => next.now_ns += TICK_NS,
            Action::Kill(at) => {
                (next.actors[at].writer, next.kills) = (None, next.kills + 1);
                next.way.retain(|on| on.at != at || matches!(on.word, Word::Append(_)));
            }
            Action::Start(at) => {
                next.actors[at].lives += 1;
                next.actors[at].writer = Some(new_writer(at, next.actors[at].lives));
            }
            Action::Order(at) => {
                next.orders += 1;
                next.actors[at].writer.iter_mut().for_each(|writer| writer.take_over(now_ns));
            }
            Action::Pulse(at) => {
                next.pulses += 1;
                next.actors[at].writer.iter_mut().for_each(|writer| writer.handle_pulse(now_ns, 99));
            }
        }
        // The order of messages between different processes does not matter, so one fixed order stands for all.
        next.way.sort_by_key(|on| {
            let kind = match on.word {
                Word::Append(_) => 0,
                Word::Answer(_) => 1,
            };
            (on.at, on.life, kind)
        });
        // State without any further effect is removed, so that fewer worlds differ.
        for at in 0..2 {
            let Some(writer) = &next.actors[at].writer else { continue };
            let (round, life) = (writer.round, next.actors[at].lives);
            next.way.retain(|on| {
                on.at != at || matches!(on.word, Word::Append(_)) || (on.round, on.life) == (round, life)
            });
        }
        next
    }

    fn identify(&self, world: &World, hasher: &mut impl Hasher) {
        let World { now_ns, actors, log, way, kills, losses, orders, pulses, reached: _ } = world;
        (now_ns, kills, losses, orders, pulses).hash(hasher);
        for Actor { writer, next, lives } in actors {
            (next, lives, writer.is_some()).hash(hasher);
            writer.iter().for_each(|writer| hash_writer(writer, *now_ns, hasher));
        }
        log.iter().for_each(|(head, _)| (head.crc, head.before).hash(hasher));
        for OnTheWay { at, life, round, word } in way {
            let actor = &actors[*at];
            let is_now = actor.writer.as_ref().is_some_and(|writer| writer.round == *round);
            (at, life, is_now && *life == actor.lives).hash(hasher);
            match word {
                Word::Append(append) => (0, &append.block[..], append.after).hash(hasher),
                Word::Answer(answer) => (1, answer.map_err(number)).hash(hasher),
            }
        }
    }

    fn broken(&self, world: &World) -> Option<&'static str> {
        let mut end = 1;
        let (mut before, mut owner) = (0, 0);
        for (head, _) in &world.log {
            if head.before != before {
                return Some(BEHIND);
            }
            if head.first != end {
                return Some(ONCE);
            }
            if owner != 0 && head.writer != owner && head.kind != Kind::Takeover {
                return Some(SAID);
            }
            (before, owner, end) = (head.crc, head.writer, head.end());
        }
        let is_false = |actor: &Actor| actor.writer.as_ref().is_some_and(|writer| writer.stored() > end);
        world.actors.iter().any(is_false).then_some(STORED)
    }

    fn landmarks(&self, world: &World) -> u64 {
        let end = world.log.last().map_or(1, |(head, _)| head.end());
        let mut reached = world.reached | u64::from(end == NEXT) << 1;
        let is_second = world.log.iter().any(|(head, _)| head.kind == Kind::Takeover);
        for writer in world.actors.iter().filter_map(|actor| actor.writer.as_ref()) {
            let bit = match writer.state() {
                State::Run if is_second => 2,
                State::Start | State::Run | State::Ahead(_) | State::Shut(_) => 63,
                State::Resync => 3,
                State::Fenced(_) => 4,
            };
            reached |= 1 << bit;
        }
        reached
    }
}

#[test]
fn two_writers_of_one_log_never_write_over_each_other() {
    let mutants = [
        (Fault::Writer(Mutant::NoExpectation), BEHIND),
        (Fault::Writer(Mutant::GoesOn), STORED),
        (Fault::IgnoresTheEnd, ONCE),
        (Fault::Writer(Mutant::SaysNothing), SAID),
        (Fault::AcknowledgesEarly, STORED),
        (Fault::ComparesNothing, BEHIND),
    ];
    check("writers of a log", &[BEHIND, ONCE, STORED, SAID], &mutants, |fault| {
        CHOSEN.set(match fault {
            Some(Fault::Writer(mutant)) => Some(mutant),
            _ => None,
        });
        Log { fault }
    });
    CHOSEN.set(None);
}
