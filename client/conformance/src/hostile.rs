//! Level 5: segments in which random words replace some words. A reader can refuse such a segment, or return any events in order. The
//! reader must not crash, hang, or return an impossible message.

use crate::scribe::{MAX_MESSAGE, checksum};
use crate::segments;
use crate::stage::{Stage, Verdict, fails};
use crate::testee::{Answer, Testee};
use anyhow::Result;
use fastrand::Rng;

/// The number of vectors (test cases). Each is a history with many mutants.
pub const SEEDS: u64 = 20;
/// The default number of mutants of each vector (test case).
pub const MUTANTS: u64 = 30;
/// Greatest number of events that a reader takes.
const MOST: usize = 40;

/// A history and mutants of its segment.
#[derive(Debug)]
pub struct Vector {
    /// The name.
    pub name: String,
    seed: u64,
    mutants: u64,
}

/// Returns all vectors (test cases), with this many mutants each.
pub fn vectors(mutants: u64) -> Vec<Vector> {
    (0..SEEDS).map(|seed| Vector { name: format!("mutants-of-seed-{seed}"), seed, mutants }).collect()
}

/// The allowed reasons for refusing a segment. For a segment whose state is "superseded", "no segment" is also allowed.
pub(crate) const REASONS: [&str; 10] = [
    "truncated",
    "foreign",
    "version",
    "checksum",
    "field",
    "geometry",
    "corrupt",
    "not yet",
    "superseded",
    "not found",
];

impl Vector {
    /// Plays the vector (a test case).
    ///
    /// # Errors
    /// If the testee fails.
    pub fn play(&self, testee: &mut Testee) -> Result<Verdict> {
        let words = segments::write(self.seed).0.words;
        let stands: Vec<usize> = (0..words.len()).filter(|at| words[*at] != 0).collect();
        let stage = Stage::of(&words)?;
        for mutant in 0..self.mutants {
            let mut dice = Rng::with_seed(self.seed << 32 | mutant);
            let mut forged = words.clone();
            let mut changed = vec![15];
            for _ in 0..dice.usize(1..5) {
                // Half of the changes are in the words that readers use first.
                let at = if dice.bool() {
                    [16, 32, 48, 49, 50, 56, 57][dice.usize(0..7)]
                } else {
                    stands[dice.usize(0..stands.len())]
                };
                forged[at] = changed_word(&forged, at, &stands, &mut dice);
                changed.push(at);
            }
            if dice.u8(0..8) != 0 {
                checksum(&mut forged);
            }
            stage.patch(&changed, &forged)?;
            let verdict = read(&stage, testee, &mut dice);
            testee.ask(r#"{"do":"close"}"#)?;
            stage.patch(&changed, &words)?;
            if let Err(mut failure) = verdict? {
                failure.step = format!("mutant {mutant}, {}", failure.step);
                return Ok(Err(failure));
            }
        }
        Ok(Ok(()))
    }
}

pub(crate) fn changed_word(words: &[u64], at: usize, stands: &[usize], dice: &mut Rng) -> u64 {
    let word = words[at];
    match dice.u8(0..6) {
        0 => dice.u64(..),
        1 => [0, 1, u64::MAX, 1 << 61, 1 << 62, (1 << 48) - 1, (1 << 48) - 2][dice.usize(0..7)],
        2 => word ^ 1 << dice.u8(0..64),
        3 => word.wrapping_add(dice.u64(0..130)).wrapping_sub(65),
        // Changes the length, a flag or the sequence, and keeps the rest of the commit word.
        4 => word & !0x1ff_ffff | dice.u64(0..0x1ff_ffff) >> dice.u8(0..25),
        _ => words[stands[dice.usize(0..stands.len())]],
    }
}

fn read(stage: &Stage, testee: &mut Testee, dice: &mut Rng) -> Result<Verdict> {
    let start = ["\"oldest\"", "\"latest\"", "15", "700", "1099511627776"][dice.usize(0..5)];
    let dir = stage.path().display();
    let opened = testee.ask(&format!(r#"{{"do":"open","dir":"{dir}","channel":"t","start":{start}}}"#))?;
    match &opened {
        Answer::Done { .. } => {}
        Answer::Refused { refused } if REASONS.contains(&refused.as_str()) => return Ok(Ok(())),
        other => return Ok(fails("open", "a refusal or success", format!("{other:?}"))),
    }
    let mut due = 0;
    for how in ["poll", "batch", "poll"] {
        match testee.ask(&format!(r#"{{"do":"{how}","most":{MOST}}}"#))? {
            Answer::Events { events } => {
                for event in &events {
                    let fair = goes_on(event, &mut due);
                    if !fair {
                        return Ok(fails(how, "events that go on", format!("{event}, where {due} was due")));
                    }
                }
                // After an error there are no more events.
                let last = events.last().map(String::as_str);
                if matches!(last, Some("corrupt" | "superseded")) {
                    return Ok(Ok(()));
                }
            }
            other => return Ok(fails(how, "events", format!("{other:?}"))),
        }
    }
    Ok(Ok(()))
}

/// Whether an event can follow the previous ones.
pub(crate) fn goes_on(event: &str, due: &mut u64) -> bool {
    let mut words = event.split(' ');
    let kind = words.next().unwrap_or_default();
    let numbers: Vec<u64> = words.clone().map_while(|word| word.parse().ok()).collect();
    match (kind, numbers.as_slice()) {
        ("message", [sequence, ..]) => {
            let length = words.find_map(|word| word.strip_prefix("length=")?.parse::<u64>().ok());
            let fits = length.is_some_and(|length| length <= MAX_MESSAGE);
            let follows = *due == 0 || *due == *sequence;
            *due = sequence.wrapping_add(1);
            fits && follows
        }
        ("gap", [from, to]) => {
            let follows = (*due == 0 || due == from) && from <= to;
            *due = to.wrapping_add(1);
            follows
        }
        ("lapped", [missed, resumed]) => {
            let follows = *due == 0 || resumed.wrapping_sub(*missed) == *due;
            *due = *resumed;
            follows
        }
        ("epoch", [_]) => true,
        ("session" | "end" | "corrupt" | "superseded", _) => true,
        _ => false,
    }
}
