//! Level 8: channels with a board. Readers begin with the board, look up single keys, or skip messages that are no longer the
//! newest of their key.

pub mod clerk;
mod conflating;
pub mod history;
mod hostile;
pub mod shelf;
mod traces;
mod writers;

use crate::Play;
use crate::model::Model;
use crate::races::in_dir;
use crate::scribe::{Store, empty};
use crate::stage::{Stage, Verdict, fails, passes, poll, same};
use crate::testee::{Answer, Testee};
use anyhow::Result;
use clerk::{AT, THROUGH, seal};
use fastrand::Rng;
use history::{History, key, pool, publish, write};
use shelf::{Shelf, Spec};

/// The number of random histories.
const SEEDS: u64 = 24;

/// A vector (a test case).
pub struct Vector {
    /// The name.
    pub name: String,
    /// Whether the testee publishes.
    pub publishes: bool,
    play: Box<Play>,
}

impl Vector {
    /// Plays the vector (a test case).
    ///
    /// # Errors
    /// If the testee fails.
    pub fn play(&self, testee: &mut Testee) -> Result<Verdict> {
        let verdict = (self.play)(testee);
        if verdict.is_ok() {
            testee.ask(r#"{"do":"close"}"#)?;
        }
        verdict
    }
}

/// Returns all vectors (test cases). Each damaged board has this many mutants.
pub fn vectors(mutants: u64) -> Vec<Vector> {
    let mut all = Vec::new();
    for seed in 0..SEEDS {
        add(&mut all, format!("history-{seed}"), move |testee| by_history(testee, seed));
    }
    add(&mut all, "no-board".into(), no_board);
    for (name, word, value) in HEADERS {
        add(&mut all, format!("header-{name}"), move |testee| header(testee, word, value));
    }
    add(&mut all, "the-ring-is-read-beside-any-board".into(), ring_alone);
    add(&mut all, "messages-that-no-board-has".into(), behind_its_back);
    traces::add(&mut all);
    conflating::add(&mut all);
    hostile::add(&mut all, mutants);
    writers::add(&mut all);
    all
}

fn add(all: &mut Vec<Vector>, name: String, play: impl Fn(&mut Testee) -> Result<Verdict> + 'static) {
    all.push(Vector { name, publishes: false, play: Box::new(play) });
}

fn open(testee: &mut Testee, stage: &Stage, start: &str, conflate: bool) -> Result<Answer> {
    let (place, conflate) = (in_dir(stage.path()), if conflate { r#","conflate":1"# } else { "" });
    testee.ask(&format!(r#"{{"do":"open",{place},"channel":"t","start":"{start}"{conflate}}}"#))
}

/// Opens the channel with `start` "board". Checks that the testee receives these events.
fn begin(testee: &mut Testee, stage: &Stage, how: &str, step: &str, told: Vec<String>) -> Result<Verdict> {
    passes!(same(format!("{step}, open"), &Answer::done(), &open(testee, stage, "board", false)?));
    poll(testee, how, format!("{step}, {how}"), told)
}

/// Looks up a key, and checks the answer.
fn get(testee: &mut Testee, shelf: &Shelf, key: &[u8], step: &str) -> Result<Verdict> {
    let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let answer = testee.ask(&format!(r#"{{"do":"get","key":"{digits}"}}"#))?;
    Ok(same(format!("{step}, get {digits}"), &Answer::Events { events: shelf.get(key) }, &answer))
}

fn apply(stage: &Stage, stores: &[Store]) -> Result<()> {
    stores.iter().try_for_each(|store| stage.apply(store))
}

/// Checks a reader of a random history: first with the present messages, and then with later messages.
fn by_history(testee: &mut Testee, seed: u64) -> Result<Verdict> {
    let mut history = write(seed);
    let stage = Stage::of(&history.model.words)?;
    let mut dice = Rng::with_seed(seed);
    let pool = pool(&history.parts.spec, seed);
    for how in ["poll", "batch"] {
        passes!(begin(testee, &stage, how, "as it stands", history.begin_now())?);
        // Another publisher continues with less than a lap of messages.
        history.take_over();
        let (epoch, first) = (history.model.words[32] >> 8, history.next());
        (0..dice.u64(1..30)).for_each(|_| publish(&mut history, &mut dice, pool));
        apply(&stage, &history.flush())?;
        let due = history.messages.iter().filter(|message| message.sequence >= first);
        let mut told = vec![format!("epoch {}", epoch + 1)];
        told.extend(due.map(shelf::Message::told));
        passes!(poll(testee, how, format!("the stream, {how}"), told)?);
    }
    for number in 0..pool + 2 {
        let key = key(&history.parts.spec, number);
        passes!(get(testee, &history.shelf, &key, "after all")?);
    }
    // A key of another length is never on this board.
    get(testee, &history.shelf, &[1; 257], "after all")
}

fn no_board(testee: &mut Testee) -> Result<Verdict> {
    let stage = Stage::of(&empty())?;
    for (start, conflate) in [("board", false), ("latest", true)] {
        let answer = open(testee, &stage, start, conflate)?;
        passes!(same(format!("open {start}"), &Answer::refused("no board"), &answer));
    }
    passes!(same("open".into(), &Answer::done(), &open(testee, &stage, "oldest", false)?));
    let answer = testee.ask(r#"{"do":"get","key":"00"}"#)?;
    Ok(same("get".into(), &Answer::refused("no board"), &answer))
}

/// Board headers that must be refused: a name, the changed word, and its value. The checksum is correct, except in the header whose changed
/// word is the checksum.
const HEADERS: [(&str, usize, u64); 10] = [
    ("magic", 0, 1),
    ("version", 1, 0x2_0000),
    ("checksum", 15, 0),
    ("no-keys", 2, 0),
    ("too-many-keys", 2, 1 << 25),
    ("value-below-the-key", 3, 3),
    ("no-bytes-of-a-key", 5, 0),
    ("long-key", 5, 257),
    ("entries", 7, 64),
    ("more-than-the-file", 2, 1 << 16),
];

fn header(testee: &mut Testee, word: usize, value: u64) -> Result<Verdict> {
    let mut history = write(24);
    publish(&mut history, &mut Rng::with_seed(1), 4);
    history.flush();
    let mut words = history.model.words;
    words[AT + word] = value;
    if value == 1 << 16 {
        words[AT + 7] = 1 << 17;
    }
    if word != 15 {
        seal(&mut words[AT..AT + 16]);
    }
    let stage = Stage::of(&words)?;
    let answer = open(testee, &stage, "board", false)?;
    let is_refused = matches!(answer, Answer::Refused { .. });
    Ok(if is_refused { Ok(()) } else { fails("open", "a refusal", format!("{answer:?}")) })
}

/// The board has a later minor version. The testee must accept the board, and must also open the channel without using the board.
fn ring_alone(testee: &mut Testee) -> Result<Verdict> {
    let spec = Spec { keys: 8, value: 64, key: 0..4, remove_tag: None };
    let mut history = History::new(spec, 77);
    let mut dice = Rng::with_seed(5);
    (0..50).for_each(|_| publish(&mut history, &mut dice, 8));
    history.flush();
    let mut words = history.model.words.clone();
    words[AT + 1] = 0x1_0009;
    seal(&mut words[AT..AT + 16]);
    let stage = Stage::of(&words)?;
    passes!(begin(testee, &stage, "poll", "a later version", history.begin_now())?);
    passes!(same("open".into(), &Answer::done(), &open(testee, &stage, "oldest", false)?));
    let told = history.messages.iter().map(shelf::Message::told).collect();
    poll(testee, "batch", "the ring".into(), told)
}

/// A publisher that does not update the board publishes more than the ring holds. The board then cannot be joined to the ring.
fn behind_its_back(testee: &mut Testee) -> Result<Verdict> {
    let mut history = write(27);
    let mut dice = Rng::with_seed(9);
    (0..40).for_each(|_| publish(&mut history, &mut dice, 8));
    history.flush();
    let mut model: Model = history.model.clone();
    let through = model.words[AT + THROUGH];
    (0..2000).for_each(|_| publish(&mut history, &mut dice, 8));
    // Only stores to the ring are made, and stores to the board are left out.
    history.flush().iter().filter(|store| store.word < AT).for_each(|store| model.apply(store));
    anyhow::ensure!(model.words[AT + THROUGH] == through, "the board stands still");
    let stage = Stage::of(&model.words)?;
    let opened = open(testee, &stage, "board", false)?;
    passes!(match &opened {
        Answer::Refused { refused } if refused == "no board" => return Ok(Ok(())),
        Answer::Done { .. } => Ok(()),
        other => fails("open", "success, or no board", format!("{other:?}")),
    });
    let events = vec!["no board".to_owned()];
    poll(testee, "poll", "a board that cannot be joined".into(), events)
}
