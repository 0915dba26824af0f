//! Vectors (test cases) in which the testee publishes on a channel with a board. The testee's board is compared with the expected board,
//! key by key. A publisher can choose any slot for a key, as long as readers find the key.

use super::Vector;
use super::clerk::{
    AT, FORGOTTEN, HIGH, IS_EMPTY, IS_KEY, IS_REMOVED, IS_TOO_LARGE, IS_UNKNOWN, LIVING, MOVES, NO_ROOM,
    Parts, SINCE, THROUGH,
};
use super::history::History;
use super::shelf::{Entry, Spec};
use super::traces::{ACTS, beside, deaths_of, died};
use crate::model::Model;
use crate::races::in_dir;
use crate::scribe::{CAPACITY, DATA};
use crate::stage::{Failure, Stage, Verdict, fails, passes, same, scratch};
use crate::testee::{Answer, Testee};
use crate::writers::{compare, words_of};
use anyhow::Result;
use fastrand::Rng;
use std::path::Path;

/// The number of random histories.
const SEEDS: u64 = 10;

pub(super) fn add(all: &mut Vec<Vector>) {
    let first = all.len();
    for seed in 0..SEEDS {
        super::add(all, format!("publishes-history-{seed}"), move |testee| publishes(testee, seed));
    }
    for (name, act) in [&ACTS[0], &ACTS[1], &ACTS[2], &ACTS[8], &ACTS[9]] {
        super::add(all, format!("takes-over-in-{name}"), move |testee| {
            deaths_of(*act).into_iter().try_fold(Ok(()), |verdict, dies_at| match verdict {
                Ok(()) => takes_over(testee, *act, dies_at),
                failed => Ok(failed),
            })
        });
    }
    for messages in [40, 1000, 3000] {
        super::add(all, format!("takes-over-after-{messages}-messages-beside-the-board"), move |testee| {
            goes_on(testee, beside(messages, None))
        });
    }
    super::add(all, "keeps-the-board-it-finds".into(), other_board);
    all[first..].iter_mut().for_each(|vector| vector.publishes = true);
}

fn create(testee: &mut Testee, dir: &Path, spec: &Spec) -> Result<Answer> {
    let (place, Spec { keys, value, key, .. }) = (in_dir(dir), spec);
    let board = format!(r#""board":"{}..{}","keys":{keys},"value":{value}"#, key.start, key.end);
    testee.ask(&format!(r#"{{"do":"create",{place},"channel":"t","capacity":{CAPACITY},{board}}}"#))
}

/// A message that the testee must publish.
#[derive(Debug, Clone, Copy)]
struct Ask {
    length: usize,
    fill: u8,
    tag: u16,
    is_key: bool,
}

impl Ask {
    fn publish(self, testee: &mut Testee) -> Result<Verdict> {
        let Self { length, fill, tag, is_key } = self;
        let key = u8::from(is_key);
        let asked = format!(r#"{{"do":"publish","length":{length},"fill":{fill},"tag":{tag},"key":{key}}}"#);
        Ok(same(format!("publish {length} bytes"), &Answer::done(), &testee.ask(&asked)?))
    }

    fn copy_to(self, history: &mut History) {
        let payload = (0..self.length).map(|at| self.fill.wrapping_add(at as u8)).collect();
        history.publish(payload, self.tag, self.is_key);
    }
}

fn publishes(testee: &mut Testee, seed: u64) -> Result<Verdict> {
    let dir = scratch()?;
    let mut dice = Rng::with_seed(seed ^ 0x9b);
    let (keys, key) = [(64, 0..4), (8, 0..4), (24, 2..14), (5, 3..40)][seed as usize % 4].clone();
    let spec = Spec { keys, value: 128, key, remove_tag: None };
    let pool = [keys as u8, 2 * keys as u8][seed as usize / 4 % 2].max(6);
    passes!(same("create".into(), &Answer::done(), &create(testee, dir.path(), &spec)?));
    let messages: Vec<Ask> = (0..dice.usize(1..500)).map(|_| at_random(&mut dice, &spec, pool)).collect();
    let again = dice.usize(0..2 * messages.len());
    for (number, message) in messages.iter().enumerate() {
        if number == again {
            testee.ask(r#"{"do":"end"}"#)?;
            passes!(same("create again".into(), &Answer::done(), &create(testee, dir.path(), &spec)?));
        }
        passes!(message.publish(testee)?);
    }
    // The seed of the board is taken from the channel itself.
    let words = words_of(dir.path(), Parts::of(spec.clone(), 0).words())?;
    let mut history = History::new(spec, words[8]);
    for (number, message) in messages.iter().enumerate() {
        if number == again {
            history.close();
            history.take_over();
        }
        message.copy_to(&mut history);
    }
    history.flush();
    let verdict = stands(dir.path(), &history, true)?;
    testee.ask(r#"{"do":"end"}"#)?;
    Ok(verdict)
}

fn at_random(dice: &mut Rng, spec: &Spec, pool: u8) -> Ask {
    let length = match dice.u8(0..12) {
        0 => dice.usize(0..spec.key.end),
        1 | 2 => spec.key.end,
        3 => dice.usize(spec.value + 1..400),
        4 => spec.value,
        _ => dice.usize(spec.key.end + 1..spec.value),
    };
    // The last word of a payload can have bytes after the payload, which have no meaning. So no granule begins with such a word here.
    let is_cut = length > 48 && (1..8).contains(&((length - 48) % 64));
    let length = if is_cut { length.next_multiple_of(8) } else { length };
    Ask { length, fill: dice.u8(0..pool), tag: dice.u16(..), is_key: dice.u8(0..9) == 0 }
}

/// The testee takes over from a publisher that died after this many stores of an act. An act is a series of a publisher's calls.
fn takes_over(testee: &mut Testee, act: super::traces::Act, dies_at: usize) -> Result<Verdict> {
    Ok(goes_on(testee, died(act, dies_at, None))?.map_err(|failure| Failure {
        step: format!("a death behind store {dies_at}, {}", failure.step),
        ..failure
    }))
}

/// The testee takes over from a dead publisher, and publishes. The result must equal `history`, in which the suite's own publisher has
/// taken over from the same dead publisher.
fn goes_on(testee: &mut Testee, mut history: History) -> Result<Verdict> {
    let stage = Stage::of(&history.model.words)?;
    let spec = history.parts.spec.clone();
    passes!(same("create".into(), &Answer::done(), &create(testee, stage.path(), &spec)?));
    for (length, fill) in [(20, 50), (4, 50), (30, 60), (200, 50)] {
        let ask = Ask { length, fill, tag: 3, is_key: false };
        passes!(ask.publish(testee)?);
        ask.copy_to(&mut history);
    }
    history.flush();
    let verdict = stands(stage.path(), &history, false)?;
    testee.ask(r#"{"do":"end"}"#)?;
    Ok(verdict)
}

/// The testee asks for a board with other properties than the channel's board. The request must be refused, and must change nothing.
fn other_board(testee: &mut Testee) -> Result<Verdict> {
    let history = died(ACTS[0].1, usize::MAX, None);
    let stage = Stage::of(&history.model.words)?;
    for spec in [
        Spec { keys: 6, ..history.parts.spec.clone() },
        Spec { value: 65, ..history.parts.spec.clone() },
        Spec { key: 0..3, ..history.parts.spec.clone() },
    ] {
        let answer = create(testee, stage.path(), &spec)?;
        if !matches!(answer, Answer::Refused { .. }) {
            return Ok(fails(format!("create {spec:?}"), "a refusal", format!("{answer:?}")));
        }
    }
    let words = words_of(stage.path(), history.parts.words())?;
    Ok(if words == history.model.words { Ok(()) } else { fails("the memory", "as it was", "changed") })
}

/// Compares a channel with a history. After a death (`is_clean` is false), does not compare the counts of refused messages, which can be
/// too low by one.
fn stands(dir: &Path, history: &History, is_clean: bool) -> Result<Verdict> {
    if is_clean {
        passes!(compare(dir, &history.model, "of a channel with a board", None)?);
    }
    let (words, parts) = (words_of(dir, history.parts.words())?, &history.parts);
    let is = |what: &str, expected: u64, got: u64| match expected == got {
        true => Ok(()),
        false => fails(what, format!("{expected:#x}"), format!("{got:#x}")),
    };
    for (at, word) in parts.header().into_iter().enumerate() {
        passes!(is(&format!("word {at} of the board"), word, words[AT + at]));
    }
    let living = history.shelf.entries.iter().filter(|entry| !entry.is_removed).count() as u64;
    passes!(is("THROUGH", history.next() - 1, words[AT + THROUGH]));
    passes!(is("SINCE", history.model.words[AT + SINCE], words[AT + SINCE]));
    passes!(is("keys on the board", living, words[AT + LIVING]));
    passes!(is("INDEX is even", 0, words[AT + MOVES] % 2));
    if is_clean {
        passes!(is("FORGOTTEN", history.shelf.forgotten, words[AT + FORGOTTEN]));
        for (at, count) in history.shelf.left_out.into_iter().enumerate() {
            passes!(is(&format!("word {}", NO_ROOM + at), count, words[AT + NO_ROOM + at]));
        }
    }
    for entry in &history.shelf.entries {
        let verdict = has(&words, parts, &history.model, entry);
        passes!(verdict.map_err(|failure| Failure {
            step: format!("{} of key {:02x?}", failure.step, entry.key),
            ..failure
        }));
    }
    let indexed = (0..parts.entries).filter(|number| words[parts.entry(*number)] != 0).count() as u64;
    let slots = 0..(words[AT + HIGH] as usize).min(parts.spec.keys);
    let with_key = slots.filter(|slot| words[parts.head(*slot) + 3] & IS_EMPTY == 0).count() as u64;
    passes!(is("entries of the index", with_key, indexed));
    Ok(is("slots with a key", history.shelf.entries.len() as u64, with_key))
}

/// Checks that a reader finds this entry, and that its slot has the expected content.
fn has(words: &[u64], parts: &Parts, model: &Model, entry: &Entry) -> Verdict {
    let (identity, newest) = (parts.identity(&entry.key), &entry.newest);
    let print = parts.fingerprint(identity);
    let numbers = (0..parts.entries).map(|step| print as usize + step);
    let entries = numbers.map(|number| words[parts.entry(number)]).take_while(|entry| *entry != 0);
    let slots = entries.filter(|entry| entry >> 32 == print).map(|entry| entry as u32 as usize - 1);
    let is_its = |slot: &usize| words[parts.head(*slot) + 6..][..2] == identity;
    let Some(slot) = slots.filter(|slot| *slot < parts.spec.keys).find(is_its) else {
        return fails("the entry", "in the index", "none");
    };
    let [version, sequence, base, meta, time, born, ..] = words[parts.head(slot)..] else { unreachable!() };
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    let length = newest.payload.len();
    let known_meta = length as u64
        | u64::from(newest.tag) << 48
        | flag(newest.is_key, IS_KEY)
        | flag(entry.is_removed, IS_REMOVED)
        | flag(length > parts.spec.value, IS_TOO_LARGE);
    let expected_meta = if entry.is_unknown { IS_UNKNOWN } else { known_meta };
    let stored = &newest.payload[..parts.stored(length)];
    let value = words[parts.value(slot)..].iter().flat_map(|word| word.to_le_bytes()).take(stored.len());
    let published = published(words, model, newest.sequence).filter(|_| !entry.is_unknown).unwrap_or(time);
    for (what, expected, got) in [
        ("parity of the version", 0, version % 2),
        ("sequence", newest.sequence, sequence),
        ("count", entry.count, (version / 2).wrapping_sub(base)),
        ("length, flags and tag", expected_meta, meta),
        ("time", published, time),
        ("first message", entry.born, born),
    ] {
        if expected != got {
            return fails(what, format!("{expected:#x}"), format!("{got:#x}"));
        }
    }
    if value.eq(stored.iter().copied()) { Ok(()) } else { fails("value", "the payload", "something else") }
}

/// Returns the publish time of a message that is still in the ring.
fn published(words: &[u64], model: &Model, sequence: u64) -> Option<u64> {
    let tail = model.tail().0;
    let is_it = |record: &&crate::scribe::Record| record.sequence == sequence && record.next == sequence + 1;
    let record =
        model.records.iter().find(is_it).filter(|record| record.position + CAPACITY > tail + 4096)?;
    Some(words[DATA + (record.position % CAPACITY) as usize / 8 + 1] & 0xffff_ffff_ffff)
}
