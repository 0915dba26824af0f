//! Vectors (test cases) with damaged boards, in which some words were replaced. A reader can refuse a damaged board, or return any messages
//! that are possible. The reader must not crash or hang.

use super::clerk::{AT, seal};
use super::history::{History, key, publish, write};
use super::{Vector, open};
use crate::hostile::{REASONS, changed_word, goes_on};
use crate::scribe::MAX_MESSAGE;
use crate::stage::{Stage, Verdict, fails, passes};
use crate::testee::{Answer, Testee};
use anyhow::Result;
use fastrand::Rng;

/// The number of histories. Each has many mutants.
const SEEDS: u64 = 5;
/// Greatest number of events that a reader takes.
const MOST: usize = 90;

pub(super) fn add(all: &mut Vec<Vector>, mutants: u64) {
    for seed in 0..SEEDS {
        let play = move |testee: &mut Testee| survives(testee, seed, mutants);
        super::add(all, format!("mutants-of-board-{seed}"), play);
    }
}

/// Returns the memory at the beginning of a history, and the history. In this history, the publisher laps its readers.
fn histories(seed: u64) -> (Vec<u64>, History) {
    let mut history = write(8 * seed + 2);
    let words = history.model.words.clone();
    let mut dice = Rng::with_seed(seed);
    (0..900).for_each(|_| publish(&mut history, &mut dice, 9));
    history.flush();
    (words, history)
}

fn survives(testee: &mut Testee, seed: u64, mutants: u64) -> Result<Verdict> {
    let (early, history) = histories(seed);
    let words = &history.model.words;
    let stands: Vec<usize> = (AT..words.len()).filter(|at| words[*at] != 0).collect();
    let stage = Stage::of(words)?;
    for mutant in 0..mutants {
        let mut dice = Rng::with_seed(seed << 32 | mutant);
        let forged = forged(words, &stands, &mut dice);
        let is_conflating = dice.bool();
        stage.rewrite(if is_conflating { &early } else { &forged })?;
        let start = if is_conflating { "latest" } else { "board" };
        let verdict = match open(testee, &stage, start, is_conflating)? {
            Answer::Done { .. } => {
                stage.rewrite(&forged)?;
                read(testee, &history, &mut dice)?
            }
            Answer::Refused { refused } if is_fair(&refused) => Ok(()),
            other => fails("open", "a refusal or success", format!("{other:?}")),
        };
        testee.ask(r#"{"do":"close"}"#)?;
        if let Err(mut failure) = verdict {
            failure.step = format!("mutant {mutant}, {}", failure.step);
            return Ok(Err(failure));
        }
    }
    Ok(Ok(()))
}

fn is_fair(refused: &str) -> bool {
    REASONS.contains(&refused) || refused == "no board"
}

fn forged(words: &[u64], stands: &[usize], dice: &mut Rng) -> Vec<u64> {
    let mut forged = words.to_vec();
    for _ in 0..dice.usize(1..5) {
        // A third of the changes are in the words that readers use first. Some other changes are in the ring.
        let at = match dice.u8(0..9) {
            0..3 => AT + [16, 32, 33, 34, 38, 39, 3, 5][dice.usize(0..8)],
            3 => [16, 48, 60][dice.usize(0..3)],
            _ => stands[dice.usize(0..stands.len())],
        };
        forged[at] = changed_word(&forged, at, stands, dice);
    }
    if dice.u8(0..8) != 0 {
        seal(&mut forged[AT..AT + 16]);
    }
    forged
}

fn read(testee: &mut Testee, history: &History, dice: &mut Rng) -> Result<Verdict> {
    for number in 0..2 {
        let key = key(&history.parts.spec, number + dice.u64(0..4));
        let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        match testee.ask(&format!(r#"{{"do":"get","key":"{digits}"}}"#))? {
            Answer::Refused { refused } if is_fair(&refused) => {}
            Answer::Events { events } if events.len() <= 1 => {}
            other => return Ok(fails("get", "a message, none, or a refusal", format!("{other:?}"))),
        }
    }
    // The first sequence can come from the board or the ring. From there on, every missing sequence must be reported.
    let mut due = 0;
    for how in ["poll", "batch", "poll"] {
        let Answer::Events { events } = testee.ask(&format!(r#"{{"do":"{how}","most":{MOST}}}"#))? else {
            return Ok(fails(how, "events", "none"));
        };
        for event in &events {
            passes!(match may_follow(event, &mut due) {
                true => Ok(()),
                false => fails(how, "events that go on", format!("{event}, where {due} was due")),
            });
        }
        if matches!(events.last().map(String::as_str), Some("corrupt" | "superseded" | "no board")) {
            break;
        }
    }
    Ok(Ok(()))
}

/// Whether an event can follow the earlier events.
fn may_follow(event: &str, due: &mut u64) -> bool {
    let numbers: Vec<u64> = event.split(' ').filter_map(|word| word.parse().ok()).collect();
    let sequence = numbers.first().copied().unwrap_or_default();
    if event.starts_with("message") && event.contains(" conflated=") {
        let length = event.split(' ').find_map(|word| word.strip_prefix("length=")?.parse::<u64>().ok());
        *due = 0;
        return length.is_some_and(|length| length <= MAX_MESSAGE);
    }
    if event.starts_with("live") {
        *due = sequence;
        return numbers.len() == 1;
    }
    if event.starts_with("lapped") {
        // The board reports the number of messages that it could not replace.
        *due = numbers.get(1).copied().unwrap_or_default();
        return numbers.len() == 2;
    }
    event == "no board" || goes_on(event, due)
}
