//! Level 7: the testee publishes. Its bytes must be those that SPEC.md requires, except times, process ids and the uuid. Its lock must keep
//! other publishers out. After deaths, the testee and the suite's own writer take over from each other.

use crate::model::Model;
use crate::payload::Payloads;
use crate::races::{Counts, in_dir};
use crate::scribe::{BYTES, CAPACITY, DATA, Record, Scribe, Sort, Store, WORDS, empty};
use crate::stage::{Stage, Verdict, fails, passes, same, scratch};
use crate::testee::{Answer, Testee};
use crate::traces::written;
use anyhow::{Context, Result};
use fastrand::Rng;
use shmcast::{ChannelError, Event, Preparation, Publisher, Start, Subscriber};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The number of random histories.
const SEEDS: u64 = 36;
/// The number of times that the testee is killed.
const DEATHS: u64 = 8;

/// The task of the testee in a vector (a test case).
#[derive(Debug)]
enum Plot {
    /// The testee publishes a random history.
    History(u64),
    /// The testee holds the lock.
    HoldsTheLock,
    /// Another publisher holds the lock.
    IsLockedOut,
    /// The testee publishes messages that do not fit.
    TooLarge,
    /// The testee takes over from a publisher that died after this many stores of its last message.
    TakesOver(usize, u64),
    /// The testee is killed, and other publishers take over.
    Dies(u64),
}

/// A vector (a test case).
#[derive(Debug)]
pub struct Vector {
    /// The name.
    pub name: String,
    plot: Plot,
}

/// Returns all vectors (test cases).
pub fn vectors() -> Vec<Vector> {
    let mut plots: Vec<(String, Plot)> =
        (0..SEEDS).map(|seed| (format!("history-{seed}"), Plot::History(seed))).collect();
    plots.push(("holds-the-lock".into(), Plot::HoldsTheLock));
    plots.push(("is-locked-out".into(), Plot::IsLockedOut));
    plots.push(("too-large".into(), Plot::TooLarge));
    for (place, bytes) in [("middle", 20_000), ("wrap", 65_472)] {
        for store in [0, 1, 2, 5, 8, 20, 99] {
            plots
                .push((format!("takes-over-behind-store-{store}-at-{place}"), Plot::TakesOver(store, bytes)));
        }
    }
    plots.extend((0..DEATHS).map(|seed| (format!("dies-{seed}"), Plot::Dies(seed))));
    plots.into_iter().map(|(name, plot)| Vector { name, plot }).collect()
}

impl Vector {
    /// Plays the vector (a test case).
    ///
    /// # Errors
    /// If the testee fails.
    pub fn play(&self, testee: &mut Testee) -> Result<Verdict> {
        let verdict = match self.plot {
            Plot::History(seed) => history(testee, seed),
            Plot::HoldsTheLock => holds_the_lock(testee),
            Plot::IsLockedOut => is_locked_out(testee),
            Plot::TooLarge => too_large(testee),
            Plot::TakesOver(store, bytes) => takes_over(testee, store, bytes),
            Plot::Dies(seed) => dies(testee, seed),
        };
        if verdict.is_ok() {
            testee.ask(r#"{"do":"end"}"#)?;
        }
        verdict
    }
}

fn create(testee: &mut Testee, dir: &Path) -> Result<Answer> {
    let place = in_dir(dir);
    testee.ask(&format!(r#"{{"do":"create",{place},"channel":"t","capacity":{CAPACITY}}}"#))
}

/// Makes the testee and the suite's own writer publish the same message.
fn publish(
    testee: &mut Testee,
    scribe: &mut Scribe,
    length: usize,
    fill: u8,
    tag: u16,
    key: bool,
) -> Result<Verdict> {
    let payload: Vec<u8> = (0..length).map(|i| fill.wrapping_add(i as u8)).collect();
    scribe.publish(&payload, tag, key, 1);
    let key = u8::from(key);
    let answer = testee
        .ask(&format!(r#"{{"do":"publish","length":{length},"fill":{fill},"tag":{tag},"key":{key}}}"#))?;
    Ok(same(format!("publish {length} bytes"), &Answer::done(), &answer))
}

fn history(testee: &mut Testee, seed: u64) -> Result<Verdict> {
    let dir = scratch()?;
    let mut dice = Rng::with_seed(seed);
    passes!(same("create".into(), &Answer::done(), &create(testee, dir.path())?));
    let mut model = Model::new(empty());
    let mut scribe = Scribe::take(empty(), (0, 1), 1);
    // In histories of several laps, all payloads are whole words. Otherwise the last word of a payload could have bytes without a meaning.
    let (most, unit) = if seed.is_multiple_of(2) { (700, 8) } else { (60, 1) };
    let messages = dice.usize(1..most);
    for number in 0..messages {
        let length =
            unit * if dice.u8(0..9) == 0 { dice.usize(0..8192 / unit) } else { dice.usize(0..100 / unit) };
        let (fill, tag, key) = (dice.u8(..), dice.u16(..), dice.u8(0..9) == 0);
        passes!(publish(testee, &mut scribe, length.min(8192), fill, tag, key)?);
        if dice.usize(0..most) < 4 && number + 1 < messages {
            testee.ask(r#"{"do":"end"}"#)?;
            scribe.close(1);
            scribe.stores.drain(..).for_each(|store| model.apply(&store));
            passes!(same("create again".into(), &Answer::done(), &create(testee, dir.path())?));
            scribe = Scribe::take(model.words.clone(), model.tail(), 1);
        }
    }
    let pid = u64::from(testee.pid());
    let mut is_open = model.clone();
    scribe.stores.iter().for_each(|store| is_open.apply(store));
    passes!(compare(dir.path(), &is_open, "while it is open", Some(pid))?);
    testee.ask(r#"{"do":"end"}"#)?;
    scribe.close(1);
    scribe.stores.iter().for_each(|store| model.apply(store));
    compare(dir.path(), &model, "after its end", Some(0))
}

/// Reads the words of the channel's segment.
fn words_in(dir: &Path) -> Result<Vec<u64>> {
    words_of(dir, WORDS)
}

/// Reads the words of the channel's segment. It is an error if their number is not `size`.
pub(crate) fn words_of(dir: &Path, size: usize) -> Result<Vec<u64>> {
    let bytes = fs::read(dir.join("t/segment"))?;
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    anyhow::ensure!(words.len() == size, "the segment has {} words, and not {size}", words.len());
    Ok(words)
}

/// Compares a segment that the testee wrote with the segment that the suite's own writer wrote.
pub(crate) fn compare(dir: &Path, model: &Model, when: &str, pid: Option<u64>) -> Result<Verdict> {
    let (theirs, ours) = (words_of(dir, model.words.len())?, &model.words);
    let differs = |at: usize, expected: u64, got: u64| {
        fails(format!("word {at} {when}"), format!("{expected:#x}"), format!("{got:#x}"))
    };
    let mut sum = theirs.clone();
    crate::scribe::checksum(&mut sum);
    if sum[15] != theirs[15] {
        return Ok(differs(15, sum[15], theirs[15]));
    }
    // The uuid, stream id, creation time, clock, schema, names, times and process id are not compared, because each channel has its own.
    let fixed = (0..8).chain(16..33).chain(34..49).chain(50..64).chain(512..DATA);
    let version = u64::from(u32::MAX);
    let is_same = |at: usize| (theirs[at] ^ ours[at]) & if at == 1 { version } else { u64::MAX } == 0;
    if let Some(at) = fixed.clone().find(|at| !is_same(*at)) {
        return Ok(differs(at, ours[at], theirs[at]));
    }
    if pid.is_some_and(|pid| theirs[33] != pid) {
        return Ok(differs(33, pid.unwrap_or_default(), theirs[33]));
    }
    let tail = model.tail().0;
    let mut is_free = vec![true; CAPACITY as usize / 64];
    // A record no longer counts if its first word is zeroed for the next lap.
    for record in model.records.iter().filter(|record| record.position + CAPACITY >= tail) {
        let from = (record.position % CAPACITY) as usize;
        if ours[DATA + from / 8] != 0 {
            is_free[from / 64..(from + (record.after - record.position) as usize) / 64].fill(false);
            if let Some(at) = different(record, &theirs, ours) {
                return Ok(differs(at, ours[at], theirs[at]));
            }
        }
    }
    // In other places, only the first word of each granule has a meaning.
    let granules = (0..is_free.len()).filter(|granule| is_free[*granule]).map(|granule| DATA + granule * 8);
    let wrong = { granules }.find(|at| theirs[*at] != ours[*at]);
    Ok(wrong.map_or(Ok(()), |at| differs(at, ours[at], theirs[at])))
}

/// Finds a word of the record that is wrong.
fn different(record: &Record, theirs: &[u64], ours: &[u64]) -> Option<usize> {
    let at = DATA + (record.position % CAPACITY) as usize / 8;
    if theirs[at] != ours[at] {
        return Some(at);
    }
    // A pad has no more words to compare. For a control record, the following lines compare all words. For a message, they compare the tag
    // and the payload.
    let is_pad = ours[at] >> 26 & 1 == 1;
    if is_pad {
        return None;
    }
    if matches!(&record.sort, Sort::Event(text) if text.starts_with("message"))
        && theirs[at + 1] >> 48 != ours[at + 1] >> 48
    {
        return Some(at + 1);
    }
    let length = (ours[at] & 0x1ff_ffff) as usize;
    let whole = (at + 2..at + 2 + length / 8).find(|at| theirs[*at] != ours[*at]);
    let rest = (1_u64 << (length % 8 * 8)) - 1;
    let last = at + 2 + length / 8;
    whole.or_else(|| (rest != 0 && (theirs[last] ^ ours[last]) & rest != 0).then_some(last))
}

fn library(dir: &Path) -> std::result::Result<Publisher, ChannelError> {
    Publisher::builder("t").dir(dir).capacity(CAPACITY).prepare(Preparation::NONE).open()
}

fn expect(step: &str, expected: &str, is_so: bool, got: impl std::fmt::Debug) -> Verdict {
    if is_so {
        return Ok(());
    }
    fails(step, expected, format!("{got:?}"))
}

fn holds_the_lock(testee: &mut Testee) -> Result<Verdict> {
    let dir = scratch()?;
    passes!(same("create".into(), &Answer::done(), &create(testee, dir.path())?));
    let second = library(dir.path());
    let is_refused = matches!(second, Err(ChannelError::InUse { .. }));
    passes!(expect("another publisher", "in use", is_refused, second.err()));
    testee.ask(r#"{"do":"end"}"#)?;
    let third = library(dir.path());
    Ok(expect("another publisher after the end", "success", third.is_ok(), third.err()))
}

fn is_locked_out(testee: &mut Testee) -> Result<Verdict> {
    let dir = scratch()?;
    let mut publisher = library(dir.path())?;
    publisher.publish(b"first")?;
    passes!(same("create".into(), &Answer::refused("in use"), &create(testee, dir.path())?));
    publisher.publish(b"second")?;
    publisher.close();
    passes!(same("create after the end".into(), &Answer::done(), &create(testee, dir.path())?));
    let words = words_in(dir.path())?;
    Ok(expect("state", "epoch 2, active", words[32] == 0x201, words[32]))
}

fn too_large(testee: &mut Testee) -> Result<Verdict> {
    let dir = scratch()?;
    passes!(same("create".into(), &Answer::done(), &create(testee, dir.path())?));
    let mut model = Model::new(empty());
    let mut scribe = Scribe::take(empty(), (0, 1), 1);
    for length in [8192, 8193, 65_536, 0] {
        if length <= 8192 {
            passes!(publish(testee, &mut scribe, length, 3, 4, true)?);
        } else {
            let ask = format!(r#"{{"do":"publish","length":{length},"fill":0,"tag":0,"key":0}}"#);
            passes!(same(
                format!("publish {length} bytes"),
                &Answer::refused("too large"),
                &testee.ask(&ask)?
            ));
        }
    }
    scribe.stores.iter().for_each(|store| model.apply(store));
    compare(dir.path(), &model, "after messages that were refused", None)
}

fn takes_over(testee: &mut Testee, store: usize, bytes: u64) -> Result<Verdict> {
    let (mut model, mut scribe) = written(bytes);
    scribe.publish(&[9; 600], 3, false, 9000);
    let stores: Vec<Store> = std::mem::take(&mut scribe.stores);
    stores.iter().take(store).for_each(|store| model.apply(store));
    let stage = Stage::of(&model.words)?;
    passes!(same("create".into(), &Answer::done(), &create(testee, stage.path())?));
    let mut successor = Scribe::take(model.words.clone(), model.tail(), 1);
    for length in [0, 48, 600] {
        passes!(publish(testee, &mut successor, length, 1, 5, length == 48)?);
    }
    successor.stores.iter().for_each(|store| model.apply(store));
    // After a crash, some bytes can be counted twice.
    model.words[BYTES] = words_in(stage.path())?[BYTES].max(model.words[BYTES]);
    compare(stage.path(), &model, "after the takeover", None)
}

fn dies(testee: &mut Testee, seed: u64) -> Result<Verdict> {
    let dir = scratch()?;
    let mut dice = Rng::with_seed(seed);
    let payloads = Payloads::new(8192);
    let mut due = 1;
    for life in 0..3 {
        passes!(same("create".into(), &Answer::done(), &create(testee, dir.path())?));
        testee.tell(r#"{"do":"produce","to":4000000000,"longest":8192}"#)?;
        std::thread::sleep(Duration::from_micros(dice.u64(1000..40_000)));
        testee.restart()?;
        let mut publisher = library(dir.path())?;
        let next = publisher.next_sequence();
        passes!(expect("the sequence goes on", "no step back", next >= due, (next, due)));
        passes!(expect("epoch", "one more", publisher.epoch() == 2 * life + 2, publisher.epoch()));
        for sequence in next..next + 10 {
            publisher.publish(payloads.of(sequence))?;
        }
        due = next + 10;
    }
    let mut counts = Counts { received: 0, missed: 0, wrong: 0 };
    let builder = Subscriber::builder("t").dir(dir.path()).start(Start::Sequence(1)).page(false);
    let mut subscriber = builder.open().context("the channel cannot be read")?;
    loop {
        match subscriber.recv()? {
            Event::Message(m) if m.payload == payloads.of(m.sequence) => counts.received += 1,
            Event::Message(_) => counts.wrong += 1,
            Event::Lapped(lapped) => counts.missed += lapped.missed,
            _ if counts.received + counts.missed + 1 >= due => return Ok(counts.judge(due - 1)),
            _ => {}
        }
    }
}
