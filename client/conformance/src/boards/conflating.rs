//! Vectors (test cases) for conflating readers. These readers skip messages that are no longer the newest of their key. In the vectors, a
//! publisher overtakes these readers by a whole ring.

use super::history::{History, pool, publish, spec};
use super::shelf::{Entry, Message};
use super::{Vector, open};
use crate::races::in_dir;
use crate::stage::{Stage, Verdict, fails, passes, poll, same};
use crate::testee::{Answer, Testee};
use anyhow::Result;
use fastrand::Rng;
use std::collections::BTreeMap;

/// Histories of readers that are lapped.
const SEEDS: u64 = 12;
/// How often a reader looks.
const LOOKS: usize = 6;

pub(super) fn add(all: &mut Vec<Vector>) {
    for seed in 0..SEEDS {
        super::add(all, format!("conflates-{seed}"), move |testee| conflates(testee, seed));
    }
    super::add(all, "conflates-from-no-older-message".into(), from_older);
}

/// The knowledge of a conflating reader.
struct Reader {
    /// The sequence that is due.
    due: u64,
    /// For each key that the reader received: the sequence of its last message, and whether that message removed the key.
    known: BTreeMap<Vec<u8>, (u64, bool)>,
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
    let mut reader = Reader { due: history.next(), known: known(&history) };
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

impl Reader {
    /// Checks the events that the reader received since the last check. These must be messages of the stream. If the reader fell too far
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
        // The removals that the board has forgotten have one sequence, and no order. A key that it never had may come as removed.
        let must = forgotten.iter().filter(|(_, is_gone)| *is_gone).map(|(event, _)| event);
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
    }

    /// Returns a removal for each key that the reader knows and the board no longer has. The flag is true if two things happened after the
    /// reader's last message of the key: the key was removed, and another key got its slot.
    fn forgotten(&self, history: &History) -> Vec<(String, bool)> {
        let (spec, shelf) = (&history.parts.spec, &history.shelf);
        let missing =
            self.known.iter().filter(|(key, (_, is_removed))| !is_removed && shelf.entry(key).is_none());
        let told = missing.map(|(key, (last, _))| {
            let mut payload = vec![0; spec.key.start];
            payload.extend(key);
            let (sequence, tag) = (shelf.forgotten, spec.remove_tag.unwrap_or_default());
            let removal = Message { sequence, payload, tag, is_key: false, time: 0 }.told_by_board(0);
            (removal, shelf.gone.iter().any(|(gone, removed_at)| gone == key && removed_at > last))
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
