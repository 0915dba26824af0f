//! Vectors (test cases) for conflating readers. These readers skip messages that are no longer the newest of their key. In the vectors, a
//! publisher overtakes these readers by a whole ring.

use super::history::{History, pool, publish, spec};
use super::shelf::{Entry, Message, Spec};
use super::{Vector, open};
use crate::races::in_dir;
use crate::stage::{Stage, Verdict, fails, passes, poll, same};
use crate::testee::{Answer, Testee};
use anyhow::Result;
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// The number of histories of readers that are lapped.
const SEEDS: u64 = 12;
/// The number of times that a reader receives.
const LOOKS: usize = 6;

pub(super) fn add(all: &mut Vec<Vector>) {
    for seed in 0..SEEDS {
        super::add(all, format!("conflates-{seed}"), move |testee| conflates(testee, seed));
    }
    super::add(all, "conflates-from-no-older-message".into(), from_older);
    for (name, keys, looks) in SCRIPTS {
        super::add(all, format!("conflates-{name}"), move |testee| scripted(testee, keys, looks));
    }
}

/// A number of messages that is enough to overtake a reader.
const LAP: usize = 3000;

/// A test: its name, the number of slots, and a list for each time that the reader receives. The list has the messages that are published
/// before that time, and how often each of them is published. The first byte of a message is its key. A message of one byte removes its
/// key.
type Script = (&'static str, usize, &'static [&'static [(&'static str, usize)]]);

const SCRIPTS: [Script; 6] = [
    ("from-the-first-message-with-room", 1, &[&[("a1", 1), ("b1", 1), ("a", 1), ("b2", 1)], &[("b3", LAP)]]),
    (
        "from-the-first-message-with-room-one-by-one",
        1,
        &[&[("a1", 1)], &[("b1", 1)], &[("b2", 1)], &[("a", 1)], &[("b3", 1)], &[("b4", 1)], &[("b5", LAP)]],
    ),
    (
        "a-key-that-came-back-and-was-refused",
        1,
        &[
            &[("a1", 1), ("a", 1), ("b1", 1), ("a2", 1), ("b", 1), ("a3", 1), ("a4", 1)],
            &[("a5", LAP)],
            &[("b2", 1), ("a", 1), ("b3", 1), ("a6", 1)],
            &[("a7", 1), ("b4", LAP)],
        ],
    ),
    ("no-removal-of-a-key-without-room", 1, &[&[("a1", 1), ("b1", 1)], &[("a", 1), ("c1", 1), ("c2", LAP)]]),
    ("the-removal-of-a-key-that-was-read-once", 2, &[&[("a1", 1)], &[("b1", 1)], &[("a", 1), ("c1", LAP)]]),
    (
        "no-removal-of-a-key-that-came-back-without-room",
        1,
        &[&[("a1", 1), ("a", 1), ("b1", 1), ("a2", 1)], &[("b", 1), ("c1", 1), ("c2", LAP)]],
    ),
];

/// Tests a reader of a board that has only a few slots, and so refuses other keys.
fn scripted(testee: &mut Testee, keys: usize, looks: &[&[(&str, usize)]]) -> Result<Verdict> {
    let mut history = History::new(Spec { keys, value: 64, key: 0..1, remove_tag: None }, 7);
    history.flush();
    let stage = Stage::of(&history.model.words)?;
    passes!(same("open".into(), &Answer::done(), &open(testee, &stage, "latest", true)?));
    let mut reader = Reader { due: history.next(), known: known(&history), joined: BTreeSet::new() };
    for (look, messages) in looks.iter().enumerate() {
        for (payload, times) in *messages {
            (0..*times).for_each(|_| history.publish(payload.as_bytes().to_vec(), 0, false));
        }
        history.flush();
        stage.rewrite(&history.model.words)?;
        let step = format!("look {look}, with {} due", reader.due);
        match testee.ask(r#"{"do":"poll"}"#)? {
            Answer::Events { events } => passes!(reader.received(&history, &events, &step)),
            other => return Ok(fails(step, "events", format!("{other:?}"))),
        }
    }
    Ok(Ok(()))
}

/// The state of a conflating reader, as the suite expects it.
struct Reader {
    /// The sequence that the reader receives next.
    due: u64,
    /// For each key that the reader received: the sequence of its last message, and whether that message removed the key.
    known: BTreeMap<Vec<u8>, (u64, bool)>,
    /// The keys that were on the board when the reader last joined it. The list lacks keys whose removal the reader has received since
    /// then.
    joined: BTreeSet<Vec<u8>>,
}

fn conflates(testee: &mut Testee, seed: u64) -> Result<Verdict> {
    let mut dice = Rng::with_seed(seed ^ 0xc0);
    let mut history = History::new(spec(seed), dice.u64(..));
    let pool = pool(&history.parts.spec, seed);
    (0..dice.u64(0..400)).for_each(|_| publish(&mut history, &mut dice, pool));
    history.flush();
    let stage = Stage::of(&history.model.words)?;
    let start = ["board", "latest"][seed as usize % 2];
    passes!(same("open".into(), &Answer::done(), &open(testee, &stage, start, true)?));
    if start == "board" {
        passes!(poll(testee, "poll", "the board".into(), history.begin_now())?);
    }
    let known = known(&history);
    let joined = living(&known);
    let mut reader = Reader { due: history.next(), known, joined };
    for look in 0..LOOKS {
        let most = if dice.bool() { 40 } else { 3000 };
        (0..dice.u64(1..most)).for_each(|_| publish(&mut history, &mut dice, pool));
        history.flush();
        stage.rewrite(&history.model.words)?;
        let how = ["poll", "batch"][look % 2];
        let step = format!("look {look}, {how}, with {} due", reader.due);
        match testee.ask(&format!(r#"{{"do":"{how}"}}"#))? {
            Answer::Events { events } => passes!(reader.received(&history, &events, &step)),
            other => return Ok(fails(step, "events", format!("{other:?}"))),
        }
    }
    Ok(Ok(()))
}

/// Tests that the testee refuses to open a conflating reader at old messages of the ring. Such a reader would not know every key.
fn from_older(testee: &mut Testee) -> Result<Verdict> {
    let mut dice = Rng::with_seed(0xc1);
    let mut history = History::new(spec(1), dice.u64(..));
    let pool = pool(&history.parts.spec, 1);
    (0..20).for_each(|_| publish(&mut history, &mut dice, pool));
    history.flush();
    let stage = Stage::of(&history.model.words)?;
    for start in [r#""oldest""#, "1"] {
        let place = in_dir(stage.path());
        let asked = format!(r#"{{"do":"open",{place},"channel":"t","start":{start},"conflate":1}}"#);
        let answer = testee.ask(&asked)?;
        if !matches!(answer, Answer::Refused { .. }) {
            return Ok(fails(format!("open from {start}"), "a refusal", format!("{answer:?}")));
        }
    }
    Ok(Ok(()))
}

fn known(history: &History) -> BTreeMap<Vec<u8>, (u64, bool)> {
    let known = |entry: &Entry| (entry.key.clone(), (entry.newest.sequence, entry.is_removed));
    history.shelf.entries.iter().map(known).collect()
}

fn living(known: &BTreeMap<Vec<u8>, (u64, bool)>) -> BTreeSet<Vec<u8>> {
    known.iter().filter(|(_, (_, is_removed))| !is_removed).map(|(key, _)| key.clone()).collect()
}

impl Reader {
    /// Checks the events that the reader received since the last check. They must be messages of the stream. If the reader fell too far
    /// behind, messages of the board must follow.
    fn received(&mut self, history: &History, events: &[String], step: &str) -> Verdict {
        let is_streams = |event: &&String| event.starts_with("message") && !event.contains(" conflated=");
        let streamed = events.iter().take_while(is_streams).count();
        for event in &events[..streamed] {
            let message = &history.messages[self.due as usize - 1];
            if *event != message.told() {
                return fails(step, message.told(), event);
            }
            self.note(history, message);
        }
        let (due, next) = (self.due, history.next());
        if streamed == events.len() {
            return if due == next {
                Ok(())
            } else {
                fails(step, format!("more, from {due} on"), "nothing more")
            };
        }
        let (forgotten, told) = (self.forgotten(history), from_board(history, due));
        let before = (events.len() - streamed).saturating_sub(told.len());
        let (removed, listed) = events[streamed..].split_at(before);
        (self.due, self.known) = (next, known(history));
        self.joined = living(&self.known);
        // All removals that the board has forgotten are reported with the same sequence, in any order.
        let must = forgotten.iter().filter(|(_, is_certain)| *is_certain).map(|(event, _)| event);
        if let Some(event) = must.clone().find(|event| !removed.contains(event)) {
            return fails(step, event, "no word of that removal");
        }
        let may = |event: &&String| forgotten.iter().any(|(removal, _)| removal == *event);
        let times = |event: &String| removed.iter().filter(|other| *other == event).count();
        if let Some(event) = removed.iter().find(|event| !may(event) || times(event) > 1) {
            return fails(step, "removals that the board has forgotten, once each", event);
        }
        same(step.into(), &Answer::Events { events: told }, &Answer::Events { events: listed.to_vec() })
    }

    fn note(&mut self, history: &History, message: &Message) {
        self.due += 1;
        let spec = &history.parts.spec;
        let Some(key) = spec.key_of(&message.payload) else { return };
        let is_removal = spec.removes(message);
        if !is_removal || self.known.contains_key(key) {
            self.known.insert(key.to_vec(), (message.sequence, is_removal));
        }
        if is_removal {
            self.joined.remove(key);
        }
    }

    /// Returns the removals that the reader gets from the board. These are removals of keys whose slot was given to another key after the
    /// reader's last message of the key.
    ///
    /// The flag is true if the removal must be reported: the key was on the board when the reader last joined it, or the board never
    /// refused a key.
    fn forgotten(&self, history: &History) -> Vec<(String, bool)> {
        let (spec, shelf) = (&history.parts.spec, &history.shelf);
        let is_gone = |key: &[u8], last| shelf.gone.iter().any(|(gone, at)| gone == key && *at > last);
        let missing = self.known.iter().filter(|(key, (last, is_removed))| {
            !is_removed && shelf.entry(key).is_none() && is_gone(key, *last)
        });
        let told = missing.map(|(key, _)| {
            let mut payload = vec![0; spec.key.start];
            payload.extend(key);
            let (sequence, tag) = (shelf.forgotten, spec.remove_tag.unwrap_or_default());
            let removal = Message { sequence, payload, tag, is_key: false, time: 0 }.told_by_board(0);
            (removal, self.joined.contains(key) || shelf.left_out[0] == 0)
        });
        told.collect()
    }
}

/// Returns the expected events of a reader that has received all messages before `due`, and then switches from the ring to the board.
fn from_board(history: &History, due: u64) -> Vec<String> {
    let (spec, next) = (&history.parts.spec, history.next());
    let is_told = |entry: &&Entry| entry.newest.sequence >= due && entry.newest.payload.len() <= spec.value;
    let mut entries: Vec<&Entry> = history.shelf.entries.iter().filter(is_told).collect();
    entries.sort_by_key(|entry| entry.newest.sequence);
    let mut missed = next - due;
    let mut told = Vec::new();
    for entry in entries {
        let from = due.max(entry.born) as usize;
        let since = history.messages[from - 1..].iter();
        let count = since.filter(|message| spec.key_of(&message.payload) == Some(&entry.key)).count() as u64;
        missed -= count;
        told.push(entry.newest.told_by_board(count - 1));
    }
    if missed > 0 {
        told.push(format!("lapped {missed} {next}"));
    }
    told.push(format!("live {next}"));
    told
}
