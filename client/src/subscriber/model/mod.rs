//! A model of a daemon's strict channel: readers must not receive messages of a publisher that was cut off. In the model, publishers
//! continue after they have been cut off. There are two readers, and a daemon that can die between any two stores to the charter.
//!
//! The charter, in which the daemon says which messages are valid, is a real file. The daemon's cut and the readers' decisions call the
//! real functions. The model of a ring is a first sequence and a count of committed messages.

mod host;

use super::following::{expected_in, is_kept_back};
use host::{Call, Charter, Host, STORES, verdict};
use shmcast_layout::control::Generation;
use shmcast_layout::layout::charter::Verdict;
use shmcast_layout::ring::reader::{Copied, Poll};
use shmcast_testkit::model::{Model, check};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};

const READERS: usize = 2;
/// Number of generations of the channel.
const GENERATIONS: usize = 3;
const DEATHS: u8 = 1;

const NOT_VOID: &str = "no reader hands out what a publisher committed behind the cut";
const ONE_CONTENT: &str = "no sequence is handed out with two contents";
const COMPLETE: &str = "a reader has everything below the cut before it goes on";
const OWN: &str = "each publisher of a strict channel has a generation of its own";

/// A fault that a test plants in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A planted fault: the daemon reads the tail before it stores *closing*.
    TailBeforeClosing,
    /// A planted fault: the daemon does not store *closing*.
    NoClosing,
    /// A planted fault: a reader does not load the verdict before it returns a copied message.
    NoVerdict,
    /// A planted fault: a reader takes *closing* for *open*.
    ClosingIsOpen,
    /// A planted fault: a reader continues in a segment that arrived after its last poll.
    FollowsAtOnce,
    /// A planted fault: the daemon lets a publisher in before the charter says so.
    LetsInFirst,
    /// A planted fault: the next generation begins with a sequence below the cut.
    BeginsBeforeTheCut,
}

/// The present work of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Daemon {
    Idle,
    /// The daemon is letting a publisher in. This takes two steps: a record in the charter, and the grant of the channel. The daemon has
    /// done one of them.
    Lets,
    Closed,
    /// The daemon is about to cut off the publisher. The value is the first sequence that is not valid.
    Cuts(u64),
    /// The daemon is in `HostCharter::go_on`. The values are the first sequence that is not valid, and the number of finished stores.
    Moves(u64, usize),
    Dead,
}

/// A reader.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Reader {
    generation: usize,
    next: u64,
    /// The message that the reader has copied, before it loads the verdict.
    copied: Option<u64>,
    /// Whether the next segment had arrived before the last poll.
    was_here: bool,
    /// Whether the last poll found no valid message.
    found_nothing: bool,
    /// The messages that the reader handed out: generation and sequence.
    got: Vec<(usize, u64)>,
}

/// A generation of the channel: its first sequence, its number of messages, and how often the daemon let a publisher in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Ring {
    first: u64,
    committed: u64,
    let_in: u8,
}

#[derive(Debug, Clone)]
struct World {
    charter: Charter,
    /// The charter before the present move.
    before: Charter,
    daemon: Daemon,
    rings: Vec<Ring>,
    /// The newest generation that the daemon has announced to readers.
    told: usize,
    readers: [Reader; READERS],
    deaths: u8,
    broken: Option<&'static str>,
    reached: u64,
}

/// The next step of the model.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// `Publisher::publish`. The publisher can have been cut off while it was stopped.
    Publish(usize),
    /// A publisher requests the channel. This covers `Registry::publish`, `Channel::make_way` and the beginning of `HostedCharter::go_on`.
    Ask,
    /// The next store of the daemon, or its next load of the ring.
    GoOn,
    /// The daemon cannot prepare the next segment, or the tail is unknown, so it calls `HostCharter::reopen`.
    GiveUp,
    /// The daemon announces the new segment to readers.
    Tell,
    Die,
    /// The next daemon calls `Charters::find`, and readers register again.
    Start,
    /// `Reader::poll`.
    Copy(usize),
    /// `Subscriber::admit`: `verdict_on_read`, and `withholds`.
    Decide(usize),
    /// `Hosted::look_ahead`.
    LookAhead(usize),
    /// `Subscriber::go_on`.
    Follow(usize),
}

struct Strict {
    fault: Option<Fault>,
    host: Host,
}

impl Strict {
    fn new(fault: Option<Fault>) -> Self {
        Self { fault, host: Host::new() }
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn call(&self, charter: &Charter, call: Call) -> Charter {
        self.host.call(charter, call)
    }

    fn is_granted(&self, charter: &Charter) -> bool {
        self.host.is_granted(charter)
    }

    /// Does the daemon's next step.
    fn go_on(&self, world: &mut World) {
        let current = world.rings.len() - 1;
        let tail = |world: &World| world.rings[current].first + world.rings[current].committed;
        world.daemon = match world.daemon {
            Daemon::Idle | Daemon::Dead => return,
            Daemon::Lets if self.is(Fault::LetsInFirst) => {
                world.charter = self.call(&world.charter, Call::Grant);
                Daemon::Idle
            }
            Daemon::Lets => {
                world.rings[current].let_in += 1;
                Daemon::Idle
            }
            Daemon::Closed => Daemon::Cuts(tail(world)),
            Daemon::Cuts(below)
                if self.is(Fault::TailBeforeClosing) && self.verdict(world) == Verdict::Open =>
            {
                world.charter = self.call(&world.charter, Call::Close);
                Daemon::Cuts(below)
            }
            Daemon::Cuts(below) | Daemon::Moves(below, _) => {
                let done = if let Daemon::Moves(_, done) = world.daemon { done } else { 0 };
                // The call `go_on` gets the charter as it was before the move. Each step of the model shows one more store of this call.
                if done == 0 {
                    world.before = world.charter.clone();
                }
                world.charter = self
                    .call(&world.before, Call::GoOn { first: self.first(below), below, stores: done + 1 });
                if done + 1 == STORES {
                    world.rings.push(self.ring(below));
                    Daemon::Idle
                } else {
                    Daemon::Moves(below, done + 1)
                }
            }
        };
    }

    fn first(&self, below: u64) -> u64 {
        if self.is(Fault::BeginsBeforeTheCut) && below > 1 { below - 1 } else { below }
    }

    fn ring(&self, below: u64) -> Ring {
        Ring { first: self.first(below), committed: 0, let_in: 0 }
    }

    fn verdict(&self, world: &World) -> Verdict {
        verdict(&world.charter, world.rings.len() - 1)
    }

    /// Does a step of a reader.
    fn follow(&self, world: &mut World, action: Action) {
        let World { charter, rings, told, readers, broken, reached, .. } = world;
        match action {
            Action::Copy(number) => {
                let reader = &mut readers[number];
                let ring = rings[reader.generation];
                let is_there = reader.next < ring.first + ring.committed;
                reader.copied = is_there.then_some(reader.next);
                reader.found_nothing = !is_there && reader.was_here;
            }
            Action::Decide(number) => {
                let reader = &mut readers[number];
                let Some(sequence) = reader.copied.take() else { return };
                let found = match verdict(charter, reader.generation) {
                    _ if self.is(Fault::NoVerdict) => Verdict::Open,
                    Verdict::Closing if self.is(Fault::ClosingIsOpen) => Verdict::Open,
                    // If a new verdict is added, this does not compile until the model handles it.
                    found @ (Verdict::Open | Verdict::Closing | Verdict::Cut { .. }) => found,
                };
                let copied = Copied { length: 0, sequence, tag: 0, key: false, time: 0 };
                if is_kept_back(found, &Poll::Message(copied), || sequence + 1) {
                    reader.found_nothing = reader.was_here;
                    *reached |= if found == Verdict::Closing { 1 } else { 2 };
                } else {
                    reader.got.push((reader.generation, sequence));
                    reader.next = sequence + 1;
                    reader.found_nothing = false;
                }
            }
            Action::LookAhead(number) => {
                readers[number].was_here |= *told > readers[number].generation;
            }
            Action::Follow(number) => {
                let reader = &mut readers[number];
                let Verdict::Cut { below, .. } = verdict(charter, reader.generation) else { return };
                if reader.next < below {
                    *broken = Some(COMPLETE);
                }
                let number = reader.generation as u64 + 2;
                let first = rings[reader.generation + 1].first;
                let generation =
                    Generation { generation: number, first, restarted: 1, strict: true, journal: false };
                reader.next = expected_in(generation, false, reader.next);
                reader.generation += 1;
                (reader.was_here, reader.found_nothing) = (false, false);
                *reached |= 4;
            }
            _ => {}
        }
    }
}

/// Number of messages that the publishers of a generation publish.
fn most(generation: usize) -> u64 {
    if generation == 0 { 2 } else { 1 }
}

impl Model for Strict {
    type State = World;
    type Action = Action;
    const LANDMARKS: &'static [&'static str] = &[
        "a reader waits for the verdict",
        "a message is void",
        "a reader follows",
        "a cut-off publisher publishes",
        "a daemon takes a move back",
        "a daemon goes on behind a move",
    ];

    fn begin(&self) -> World {
        let first = self.host.first();
        World {
            charter: first.clone(),
            before: first,
            daemon: Daemon::Idle,
            rings: vec![Ring { first: 1, committed: 0, let_in: 0 }],
            told: 0,
            readers: std::array::from_fn(|_| Reader { next: 1, ..Reader::default() }),
            deaths: 0,
            broken: None,
            reached: 0,
        }
    }

    fn actions(&self, world: &World) -> Vec<Action> {
        let mut all = Vec::new();
        for (generation, ring) in world.rings.iter().enumerate() {
            if ring.let_in > 0 && ring.committed < most(generation) {
                all.push(Action::Publish(generation));
            }
        }
        match world.daemon {
            Daemon::Idle => {
                if world.rings.len() < GENERATIONS || !self.is_granted(&world.charter) {
                    all.push(Action::Ask);
                }
                if world.told < world.rings.len() - 1 {
                    all.push(Action::Tell);
                }
            }
            Daemon::Lets | Daemon::Moves(..) => all.push(Action::GoOn),
            Daemon::Closed | Daemon::Cuts(_) => all.extend([Action::GoOn, Action::GiveUp]),
            Daemon::Dead => all.push(Action::Start),
        }
        if world.daemon != Daemon::Dead && world.deaths < DEATHS {
            all.push(Action::Die);
        }
        for (number, reader) in world.readers.iter().enumerate() {
            match reader.copied {
                Some(_) => all.push(Action::Decide(number)),
                None => all.push(Action::Copy(number)),
            }
            if world.told > reader.generation {
                all.push(Action::LookAhead(number));
                let is_ready = reader.found_nothing || self.is(Fault::FollowsAtOnce);
                if is_ready && reader.copied.is_none() {
                    all.push(Action::Follow(number));
                }
            }
        }
        all
    }

    fn step(&self, world: &World, action: &Action) -> World {
        let mut next = world.clone();
        match *action {
            Action::Publish(generation) => {
                next.rings[generation].committed += 1;
                let is_cut_off = matches!(verdict(&next.charter, generation), Verdict::Cut { .. });
                next.reached |= if is_cut_off { 8 } else { 0 };
            }
            Action::Ask if self.is_granted(&world.charter) => {
                let tail = next.rings[next.rings.len() - 1];
                next.daemon = match self.fault {
                    Some(Fault::TailBeforeClosing | Fault::NoClosing) => {
                        Daemon::Cuts(tail.first + tail.committed)
                    }
                    _ => {
                        next.charter = self.call(&next.charter, Call::Close);
                        Daemon::Closed
                    }
                };
            }
            Action::Ask if self.is(Fault::LetsInFirst) => {
                next.rings.last_mut().expect("there is one").let_in += 1;
                next.daemon = Daemon::Lets;
            }
            Action::Ask => {
                next.charter = self.call(&next.charter, Call::Grant);
                next.daemon = Daemon::Lets;
            }
            Action::GoOn => self.go_on(&mut next),
            Action::GiveUp => {
                next.charter = self.call(&next.charter, Call::Reopen);
                next.daemon = Daemon::Idle;
            }
            Action::Tell => next.told = next.rings.len() - 1,
            Action::Die => {
                next.deaths += 1;
                // After the store of the cut the channel has moved, whatever the daemon still had to do.
                if let Daemon::Moves(below, done) = next.daemon
                    && done > 2
                {
                    next.rings.push(self.ring(below));
                    next.reached |= 32;
                }
                next.daemon = Daemon::Dead;
            }
            Action::Start => {
                let was = self.verdict(&next);
                next.charter = self.call(&next.charter, Call::Open);
                next.reached |= if was == Verdict::Closing { 16 } else { 0 };
                (next.daemon, next.told) = (Daemon::Idle, next.rings.len() - 1);
            }
            action => self.follow(&mut next, action),
        }
        next
    }

    fn identify(&self, world: &World, hasher: &mut impl Hasher) {
        let World { charter, before, daemon, rings, told, readers, deaths, broken, reached: _ } = world;
        let before = matches!(daemon, Daemon::Moves(..)).then_some(before);
        // The model does not distinguish the readers.
        let mut readers = readers.clone();
        readers.sort_by_key(|reader| {
            (reader.generation, reader.next, reader.copied, reader.was_here, reader.found_nothing)
        });
        (charter, before, daemon, rings, told, &readers, deaths, broken).hash(hasher);
    }

    fn broken(&self, world: &World) -> Option<&'static str> {
        if world.broken.is_some() {
            return world.broken;
        }
        if world.rings.iter().any(|ring| ring.let_in > 1) {
            return Some(OWN);
        }
        let mut contents = HashMap::new();
        for (generation, sequence) in world.readers.iter().flat_map(|reader| &reader.got) {
            if matches!(verdict(&world.charter, *generation), Verdict::Cut { below, .. } if *sequence >= below)
            {
                return Some(NOT_VOID);
            }
            if *contents.entry(sequence).or_insert(generation) != generation {
                return Some(ONE_CONTENT);
            }
        }
        None
    }

    fn landmarks(&self, world: &World) -> u64 {
        world.reached
    }
}

#[test]
fn a_strict_channel_moves_for_all_readers_or_for_none_whoever_dies() {
    let mutants = [
        (Fault::TailBeforeClosing, NOT_VOID),
        (Fault::NoClosing, NOT_VOID),
        (Fault::NoVerdict, NOT_VOID),
        (Fault::ClosingIsOpen, NOT_VOID),
        (Fault::FollowsAtOnce, COMPLETE),
        (Fault::BeginsBeforeTheCut, ONE_CONTENT),
        (Fault::LetsInFirst, OWN),
    ];
    let invariants = [NOT_VOID, ONE_CONTENT, COMPLETE, OWN];
    check("takeover of a strict channel", &invariants, &mutants, Strict::new);
}
