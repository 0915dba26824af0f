//! Random stories of a log that fails in every way. The state machines of both ends run in virtual time.
//!
//! A story has a channel, one or two writers, a log, and a reader with a ring. These things happen to the log:
//!
//! - Answers are lost, and appends arrive late.
//! - The log loses its end or its beginning.
//! - The log exchanges, drops and damages blocks.
//! - The log is removed and created again.
//! - The log is away for so long that the ring overwrites messages.
//! - For a while or for ever, readers get a copy of the log that lacks some blocks.
//!
//! All writers and the reader are killed, stopped and started again. In some stories, a sender needs up to 0.6 s for an answer. If there
//! are two writers, one of them can have other keys. Strangers send pulses, and an operator orders takeovers.
//!
//! The simulation checks these promises:
//!
//! - The reader publishes each message once, in order and byte for byte. It reports as lost only messages that nobody has.
//! - The log stores a block only after the block that it names as previous, and the writer can open that previous block.
//! - An ordered takeover of an idle channel succeeds.

mod ends;
mod fake;
mod scenario;
mod world;

use super::mutant::{CHOSEN, Mutant};
use world::World;

/// The number of stories that the test plays. `SHMCAST_ENGINE_STORIES` sets another number.
const STORIES: u64 = 3_000;

fn stories() -> u64 {
    let said = std::env::var("SHMCAST_ENGINE_STORIES").ok();
    said.map_or(STORIES, |said| said.parse().expect("SHMCAST_ENGINE_STORIES is a number"))
}

fn first_seed() -> u64 {
    std::env::var("SHMCAST_SEED").map_or(1, |said| said.parse().expect("SHMCAST_SEED is a number"))
}

/// The outcome of a story.
#[derive(Debug, Default, Clone, Copy)]
struct Report {
    holes: u64,
    mended: u64,
    fenced: u64,
    losses: u64,
    parts: u64,
    searches: u64,
    given_up: u64,
    sessions: u64,
    shut_out: u64,
    takeovers: u64,
}

impl Report {
    fn add(&mut self, other: &Report) {
        self.holes += other.holes;
        self.mended += other.mended;
        self.fenced += other.fenced;
        self.losses += other.losses;
        self.parts += other.parts;
        self.searches += other.searches;
        self.given_up += other.given_up;
        self.sessions += other.sessions;
        self.shut_out += other.shut_out;
        self.takeovers += other.takeovers;
    }
}

fn play(seed: u64) -> Result<Report, String> {
    World::new(seed).play().map_err(|why| format!("seed {seed}: {why} (SHMCAST_SEED={seed} plays it first)"))
}

#[test]
fn every_message_comes_once_whatever_the_log_does() {
    let first = first_seed();
    let mut sum = Report::default();
    for seed in first..first + stories() {
        match play(seed) {
            Ok(report) => sum.add(&report),
            Err(why) => panic!("{why}"),
        }
    }
    println!("{} stories: {sum:?}", stories());
    // A story without faults proves nothing, so all these events must have happened.
    let Report { holes, mended, fenced, losses, parts, searches, given_up, sessions, shut_out, takeovers } =
        sum;
    for (what, count) in [
        ("holes", holes),
        ("mended", mended),
        ("fenced", fenced),
        ("losses", losses),
        ("parts", parts),
        ("searches", searches),
        ("given up", given_up),
        ("sessions", sessions),
        ("shut out", shut_out),
        ("takeovers", takeovers),
    ] {
        assert!(count > 0, "no story had {what}");
    }
}

#[test]
fn each_mistake_is_found() {
    for mutant in [
        Mutant::NoExpectation,
        Mutant::GoesOn,
        Mutant::LossUnseen,
        Mutant::NumbersAlone,
        Mutant::SaysNothing,
        Mutant::PassesOver,
        Mutant::TakesHoles,
        Mutant::TakesTwice,
        Mutant::AsksNobody,
        Mutant::AsksNoLeader,
        Mutant::AnswersInOrder,
        Mutant::GivesUpAll,
        Mutant::TrustsTheCopy,
        Mutant::TrustsTheEnd,
        Mutant::TrustsTheWay,
        Mutant::NeverLooksAgain,
    ] {
        CHOSEN.set(Some(mutant));
        let found = (1..=3_000).find(|&seed| play(seed).is_err());
        CHOSEN.set(None);
        match found {
            Some(seed) => println!("{mutant:?}: found by story {seed}"),
            None => panic!("no story finds {mutant:?}"),
        }
    }
}
