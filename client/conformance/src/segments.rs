//! Level 2: whole segments. Each is written at random from a seed, and read from several places.

use crate::model::{Model, Start};
use crate::scribe::{MAX_MESSAGE, Scribe, empty};
use crate::stage::{Stage, Verdict, poll, same};
use crate::testee::{Answer, Testee};
use anyhow::Result;

/// Number of histories.
pub const SEEDS: u64 = 40;

/// A history, and the places from which it is read.
#[derive(Debug)]
pub struct Vector {
    /// The name.
    pub name: String,
    seed: u64,
    start: Option<Start>,
}

/// Returns all vectors (test cases). Each history is read in four ways: from the oldest message, from the latest message, from a sequence
/// by `open`, and from sequences by `seek`.
pub fn vectors() -> Vec<Vector> {
    let all = (0..SEEDS).flat_map(|seed| {
        let next = write(seed).1;
        let middle = 1 + fastrand::Rng::with_seed(seed).u64(0..=next);
        let starts = [
            ("oldest", Some(Start::Oldest)),
            ("latest", Some(Start::Latest)),
            ("sequence", Some(Start::Sequence(middle))),
            ("seek", None),
        ];
        starts.map(|(how, start)| Vector { name: format!("seed-{seed}-{how}"), seed, start })
    });
    all.collect()
}

/// Returns a payload. Its size is often at a limit of the format.
fn payload(dice: &mut fastrand::Rng, sequence: u64) -> Vec<u8> {
    let near = [0, 8, 47, 48, 49, 64, 111, 112, 113, 511, 512, 513, 4096, MAX_MESSAGE];
    let length = match dice.u8(0..4) {
        0 => near[dice.usize(0..near.len())],
        1 => 32,
        _ => dice.u64(0..300),
    };
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add(sequence as u8)).collect()
}

/// Writes a history. Returns its model and next sequence.
pub fn write(seed: u64) -> (Model, u64) {
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut words = empty();
    if seed % 5 == 4 {
        // A future minor version.
        words[1] = 0x2_0009;
        crate::scribe::checksum(&mut words);
    }
    let mut model = Model::new(words.clone());
    // Times have 48 bits. Some histories have high times.
    let mut time = if seed % 3 == 1 { 200 << 40 } else { 1000 };
    let mut scribe = Scribe::take(words, (0, 1), time);
    // A history has a few records, most of a ring, or several laps.
    let steps = [3, 40, 300, 1500][seed as usize % 4];
    let is_busy = seed.is_multiple_of(3);
    for _ in 0..dice.u64(0..=steps) {
        time += dice.u64(1..1000);
        let kind = if is_busy { dice.u8(0..100) } else { dice.u8(0..30) };
        match kind {
            90..94 => scribe.gap(scribe.next_sequence() + dice.u64(0..6), time),
            94..96 => scribe.session(*b"SESSION-42", time),
            96..98 => scribe.to_come(5 + dice.u64(0..1000), time),
            98 | 99 => {
                if kind == 98 {
                    scribe.close(time);
                }
                let stores = std::mem::take(&mut scribe.stores);
                stores.iter().for_each(|store| model.apply(store));
                scribe = Scribe::take(model.words.clone(), model.tail(), time + 1);
            }
            _ => {
                let payload = payload(&mut dice, scribe.next_sequence());
                scribe.publish(&payload, dice.u16(..), dice.u8(0..10) == 0, time);
            }
        }
    }
    if dice.bool() {
        scribe.close(time + 5);
    }
    scribe.stores.iter().for_each(|store| model.apply(store));
    (model, scribe.next_sequence())
}

impl Vector {
    /// Plays the vector (a test case).
    ///
    /// # Errors
    /// If the testee fails.
    pub fn play(&self, testee: &mut Testee) -> Result<Verdict> {
        let (model, next) = write(self.seed);
        let stage = Stage::of(&model.words)?;
        let verdict = match self.start {
            Some(start) => from(&stage, &model, testee, start)?,
            None => by_seek(&stage, &model, testee, next, self.seed)?,
        };
        testee.ask(r#"{"do":"close"}"#)?;
        Ok(verdict)
    }
}

/// Reads from one place, one event at a time and in batches.
fn from(stage: &Stage, model: &Model, testee: &mut Testee, start: Start) -> Result<Verdict> {
    for how in ["poll", "batch"] {
        let mut expected = match stage.open_as(testee, model, start)? {
            Ok(Some(expected)) => expected,
            Ok(None) => return Ok(Ok(())),
            Err(failure) => return Ok(Err(failure)),
        };
        for turn in 0..2 {
            let verdict = poll(testee, how, format!("{how} {turn} from {start:?}"), expected.poll(model))?;
            if verdict.is_err() {
                return Ok(verdict);
            }
        }
    }
    Ok(Ok(()))
}

/// Seeks back and forth.
fn by_seek(stage: &Stage, model: &Model, testee: &mut Testee, next: u64, seed: u64) -> Result<Verdict> {
    let mut expected = match stage.open_as(testee, model, Start::Latest)? {
        Ok(Some(expected)) => expected,
        other => return Ok(other.map(drop)),
    };
    let mut dice = fastrand::Rng::with_seed(seed);
    let oldest = model.oldest().1;
    let some = [0, 1, oldest.saturating_sub(1), oldest, oldest + 1, next.saturating_sub(1), next, next + 1];
    for turn in 0..24 {
        let sequence = some.get(turn).copied().unwrap_or_else(|| dice.u64(oldest..=next));
        let wanted = match expected.seek(model, sequence) {
            "ok" => Answer::done(),
            refused => Answer::refused(refused),
        };
        let answer = testee.ask(&format!(r#"{{"do":"seek","sequence":{sequence}}}"#))?;
        let step = format!("seek {turn} to {sequence}");
        let verdict = match same(step.clone(), &wanted, &answer) {
            Ok(()) => poll(testee, if turn % 2 == 0 { "poll" } else { "batch" }, step, expected.poll(model))?,
            failed => failed,
        };
        if verdict.is_err() {
            return Ok(verdict);
        }
    }
    Ok(Ok(()))
}
