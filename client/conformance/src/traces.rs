//! Level 3: a writer makes its stores one at a time. After each store, the events that a reader receives are checked.

use crate::model::{Expected, Model, Start};
use crate::scribe::{Life, Scribe, Store, empty};
use crate::stage::{Stage, Verdict, poll};
use crate::testee::Testee;
use anyhow::Result;

/// A history of the channel, and a list of stores that are made one by one after the history.
pub struct Vector {
    /// The name.
    pub name: String,
    /// The segment before the reader attaches.
    before: Model,
    stores: Vec<Store>,
    /// Whether the reader receives only after the last store.
    is_late: bool,
}

/// Makes a segment, and writes records until they fill at least this many bytes of the ring.
pub(crate) fn written(bytes: u64) -> (Model, Scribe) {
    let mut model = Model::new(empty());
    let mut scribe = Scribe::take(empty(), (0, 1), 1);
    while scribe.stores.iter().filter_map(|store| store.commits.as_ref()).all(|record| record.after < bytes) {
        let sequence = scribe.next_sequence();
        scribe.publish(&sequence.to_le_bytes(), 1, sequence.is_multiple_of(7), sequence);
    }
    scribe.stores.drain(..).for_each(|store| model.apply(&store));
    (model, scribe)
}

/// A call of the writer in a trace.
type Act = fn(&mut Scribe);

const ACTS: [(&str, Act); 9] = [
    ("publish-0", |s| s.publish(b"", 0, false, 9000)),
    ("publish-48", |s| s.publish(&[7; 48], 2, false, 9000)),
    ("publish-49-key", |s| s.publish(&[7; 49], 2, true, 9000)),
    ("publish-600", |s| s.publish(&[9; 600], 3, false, 9000)),
    ("gap", |s| s.gap(s.next_sequence() + 3, 9000)),
    ("session", |s| s.session(*b"SESSION-77", 9000)),
    ("to-come", |s| s.to_come(99, 9000)),
    ("close", |s| s.close(9000)),
    ("close-and-supersede", |s| {
        s.close(9000);
        s.live(Life::Superseded);
    }),
];

/// Returns all vectors (test cases).
pub fn vectors() -> Vec<Vector> {
    let mut vectors = Vec::new();
    // The traces begin at the start, in the middle, just before the end of the ring, and on records of the previous lap.
    for (where_, bytes) in [("start", 0), ("middle", 20_000), ("wrap", 65_472), ("second-lap", 100_000)] {
        for (what, act) in ACTS {
            let (before, mut scribe) = written(bytes);
            act(&mut scribe);
            // Another message follows, which the reader must not receive early either.
            if !what.starts_with("close") {
                scribe.publish(b"behind", 4, false, 9001);
            }
            let name = format!("{what}-at-{where_}");
            vectors.push(Vector { name, before, stores: std::mem::take(&mut scribe.stores), is_late: false });
        }
    }
    deaths(&mut vectors);
    laps(&mut vectors);
    vectors
}

/// The writer dies after each of its stores, and another writer takes over.
fn deaths(vectors: &mut Vec<Vector>) {
    for (where_, bytes) in [("start", 6400), ("wrap", 65_472)] {
        for (what, act) in &ACTS[1..4] {
            let (before, mut scribe) = written(bytes);
            act(&mut scribe);
            let stores = std::mem::take(&mut scribe.stores);
            // The important stores are those up to the one after the commit.
            let commit = stores.iter().rposition(|store| store.commits.is_some()).unwrap_or(0);
            for dies_at in [0, 1, 2, commit / 2, commit, commit + 1, stores.len()] {
                let mut model = before.clone();
                stores[..dies_at].iter().for_each(|store| model.apply(store));
                let mut next = Scribe::take(model.words.clone(), model.tail(), 9500);
                next.publish(b"next", 5, true, 9501);
                let stores = stores[..dies_at].iter().cloned().chain(next.stores).collect();
                let name = format!("death-in-{what}-at-{where_}-store-{dies_at}");
                vectors.push(Vector { name, before: before.clone(), stores, is_late: false });
            }
        }
    }
    vectors.dedup_by(|one, other| one.name == other.name);
}

/// Adds vectors (test cases) in which a reader does not receive while the writer continues.
fn laps(vectors: &mut Vec<Vector>) {
    for messages in [10, 900, 1000, 1100, 1500, 3000] {
        for with in ["messages", "takeover", "close"] {
            let (before, mut scribe) = written(3000);
            let mut model = before.clone();
            let mut stores = Vec::new();
            for message in 0..messages {
                let sequence = scribe.next_sequence();
                scribe.publish(&sequence.to_le_bytes(), 1, false, sequence);
                if message == 5 && with == "takeover" {
                    scribe.stores.iter().for_each(|store| model.apply(store));
                    stores.append(&mut scribe.stores);
                    scribe = Scribe::take(model.words.clone(), model.tail(), 8000);
                }
            }
            if with == "close" {
                scribe.close(9999);
            }
            stores.append(&mut scribe.stores);
            let name = format!("lap-{messages}-with-{with}");
            vectors.push(Vector { name, before, stores, is_late: true });
        }
    }
}

impl Vector {
    /// Plays the vector (a test case).
    ///
    /// # Errors
    /// If the testee fails.
    pub fn play(&self, testee: &mut Testee) -> Result<Verdict> {
        let mut model = self.before.clone();
        let stage = Stage::of(&model.words)?;
        let mut expected = match stage.open_as(testee, &model, Start::Latest)? {
            Ok(Some(expected)) => expected,
            other => return Ok(other.map(drop)),
        };
        let mut verdict = poll(testee, "poll", "before".into(), expected.poll(&model))?;
        for (number, store) in self.stores.iter().enumerate() {
            if verdict.is_err() {
                break;
            }
            stage.apply(store)?;
            model.apply(store);
            if self.is_late && number + 1 < self.stores.len() {
                continue;
            }
            let step = format!("after store {number}, {:#x} = {:#x}", store.word * 8, store.value);
            verdict = look(testee, &mut expected, &model, number, step)?;
        }
        testee.ask(r#"{"do":"close"}"#)?;
        Ok(verdict)
    }
}

fn look(
    testee: &mut Testee,
    expected: &mut Expected,
    model: &Model,
    number: usize,
    step: String,
) -> Result<Verdict> {
    let how = if number.is_multiple_of(3) { "batch" } else { "poll" };
    poll(testee, how, step, expected.poll(model))
}
