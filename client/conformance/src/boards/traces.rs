//! Vectors (test cases) that make a publisher's stores one at a time. In some of them, readers join after each store. In others, the
//! publisher dies after a store, and another publisher takes over.

use super::clerk::AT;
use super::history::History;
use super::shelf::{Shelf, Spec};
use super::{Vector, begin, get};
use crate::model::Model;
use crate::scribe::Store;
use crate::stage::{Stage, Verdict, passes};
use crate::testee::Testee;
use anyhow::{Context, Result};

/// A series of calls of a publisher.
pub(super) type Act = fn(&mut History);

/// Returns a payload with this key, and with `value` more bytes.
fn of(key: u8, value: usize) -> Vec<u8> {
    let mut payload = vec![key; 4];
    payload.resize(4 + value, key ^ 0xff);
    payload
}

pub(super) const ACTS: [(&str, Act); 11] = [
    ("new-key", |h| h.publish(of(9, 20), 1, false)),
    ("known-key", |h| h.publish(of(1, 33), 2, true)),
    ("removal", |h| h.publish(of(2, 0), 3, false)),
    ("removal-by-tag", |h| h.publish(of(1, 8), 77, false)),
    ("return", |h| h.publish(of(3, 8), 4, false)),
    ("too-large", |h| h.publish(of(1, 200), 5, false)),
    ("too-short", |h| h.publish(vec![1, 2, 3], 6, false)),
    ("full", |h| {
        [9, 10, 11].into_iter().for_each(|key| h.publish(of(key, 12), 7, false));
    }),
    ("takes-the-slot-of-a-removed-key", TAKES_A_SLOT),
    ("gap", |h| h.gap(3)),
    ("closes-and-goes-on", |h| {
        h.publish(of(1, 2), 9, false);
        h.close();
        h.take_over();
        h.publish(of(2, 3), 9, false);
    }),
];

/// A new key gets the slot of a removed key. Then a second new key gets the slot of another removed key.
const TAKES_A_SLOT: Act = |h| {
    // The publisher first uses slots that were never used.
    h.publish(of(9, 3), 8, false);
    h.publish(of(2, 0), 8, false);
    h.publish(of(12, 40), 8, false);
    h.publish(of(13, 1), 8, false);
};

/// The tag that removes a key.
const TAG: Option<u16> = Some(77);

/// Makes a board with five slots, of which four are used: by keys 1, 2 and 4, and by key 3, which was removed.
fn before(remove_tag: Option<u16>) -> History {
    let spec = Spec { keys: 5, value: 64, key: 0..4, remove_tag };
    let mut history = History::new(spec, 0x0123_4567_89ab_cdef);
    for (key, value) in [(1, 10), (2, 11), (3, 60), (1, 30), (3, 0), (4, 200), (2, 12)] {
        history.publish(of(key, value), u16::from(key), key == 2);
    }
    history.flush();
    history
}

/// Returns the board's content after each of the messages.
fn shelves(history: &History) -> Vec<(u64, Shelf)> {
    let mut shelf = Shelf::new(history.parts.spec.clone());
    let one = |message: &super::shelf::Message| {
        shelf.post(message);
        (message.sequence, shelf.clone())
    };
    history.messages.iter().map(one).collect()
}

/// Plays an act, which is a series of calls of a publisher. Returns the history after the act, the memory before it, and all stores that
/// the act made.
pub(super) fn acted(act: Act, remove_tag: Option<u16>) -> (History, Model, Vec<Store>) {
    let mut history = before(remove_tag);
    let before = history.model.clone();
    history.kept = Some(Vec::new());
    act(&mut history);
    history.flush();
    let stores = history.kept.take().unwrap_or_default();
    (history, before, stores)
}

pub(super) fn add(all: &mut Vec<Vector>) {
    for (name, act) in ACTS {
        super::add(all, format!("joins-in-{name}"), move |testee| joins(testee, act));
        super::add(all, format!("deaths-in-{name}"), move |testee| deaths(testee, act));
    }
    for messages in [40, 1000, 3000] {
        let play = move |testee: &mut Testee| behind_its_back(testee, messages);
        super::add(all, format!("a-successor-after-{messages}-messages-beside-the-board"), play);
    }
    super::add(all, "joins-while-another-takes-over".into(), joins_in_takeover);
}

/// Returns the index of the last store before the first commit; 0 if there is no such store. Earlier stores change nothing that a reader
/// sees.
pub(super) fn first_of_interest(stores: &[Store]) -> usize {
    stores.iter().position(|store| store.commits.is_some()).map_or(0, |commit| commit.saturating_sub(1))
}

/// The keys that the reader looks up.
const KEYS: [u8; 6] = [1, 2, 3, 4, 9, 12];

fn joins(testee: &mut Testee, act: Act) -> Result<Verdict> {
    let (history, mut model, stores) = acted(act, TAG);
    let shelves = shelves(&history);
    let stage = Stage::of(&model.words)?;
    let first = first_of_interest(&stores);
    for (number, store) in stores.iter().enumerate() {
        stage.apply(store)?;
        model.apply(store);
        // Stores that zero the ring ahead of the tail change nothing that a reader sees.
        if number < first || (store.word < AT && store.commits.is_none() && number + 1 < stores.len()) {
            continue;
        }
        let how = if number.is_multiple_of(3) { "batch" } else { "poll" };
        let step = format!("after store {number}, {:#x} = {:#x}", store.word * 8, store.value);
        passes!(begin(testee, &stage, how, &step, history.begin(&model, &shelves))?);
    }
    for key in KEYS {
        passes!(get(testee, &history.shelf, &[key; 4], "after all")?);
    }
    Ok(Ok(()))
}

/// For each store of an act (a series of a publisher's calls): the publisher dies after this store. Another publisher takes over, and
/// publishes two more messages.
fn deaths(testee: &mut Testee, act: Act) -> Result<Verdict> {
    for dies_at in deaths_of(act) {
        let mut history = died(act, dies_at, TAG);
        let sequence = history.next() as usize;
        history.publish(of(14, 5), 1, false);
        history.publish(of(1, 9 + sequence % 4), 1, false);
        history.flush();
        let stage = Stage::of(&history.model.words)?;
        let step = format!("a death behind store {dies_at}");
        passes!(begin(testee, &stage, "poll", &step, history.begin_now())?);
        for key in KEYS {
            passes!(get(testee, &history.shelf, &[key; 4], &step)?);
        }
    }
    Ok(Ok(()))
}

/// Returns the points at which the publisher of an act dies, each as a number of finished stores. The publisher dies just before each store
/// to the board, and after the last store.
pub(super) fn deaths_of(act: Act) -> Vec<usize> {
    let (_, _, stores) = acted(act, TAG);
    let is_boards = |number: &usize| *number == stores.len() || stores[*number].word >= AT;
    (first_of_interest(&stores)..=stores.len()).filter(is_boards).collect()
}

/// Returns the history of two publishers. The first dies after this many stores of an act, and the second takes over.
pub(super) fn died(act: Act, dies_at: usize, remove_tag: Option<u16>) -> History {
    let (mut history, mut model, stores) = acted(act, remove_tag);
    stores.iter().take(dies_at).for_each(|store| model.apply(store));
    history.succeed(model);
    history
}

/// The publisher dies while it gives the slot of a removed key to another key. Readers join after each store of the successor.
fn joins_in_takeover(testee: &mut Testee) -> Result<Verdict> {
    let (whole, mut model, stores) = acted(TAKES_A_SLOT, TAG);
    // Key 3 has the third slot.
    let head = whole.parts.head(2);
    let begun = stores.iter().position(|store| store.word == head && store.value % 2 == 1);
    let dies_at = 1 + begun.context("the slot is given away")?;
    stores[..dies_at].iter().for_each(|store| model.apply(store));
    let (shelves, stage) = (shelves(&whole), Stage::of(&model.words)?);
    let mut history = died(TAKES_A_SLOT, dies_at, TAG);
    for (number, store) in history.flush().iter().enumerate() {
        stage.apply(store)?;
        model.apply(store);
        if store.word >= AT {
            let step =
                format!("after store {number} of the takeover, {:#x} = {:#x}", store.word * 8, store.value);
            passes!(begin(testee, &stage, "poll", &step, history.begin(&model, &shelves))?);
        }
    }
    Ok(Ok(()))
}

/// Returns a history in which a publisher sends this many messages without the board. Then another publisher takes over the board. The ring
/// can be too small for all these messages.
pub(super) fn beside(messages: u64, remove_tag: Option<u16>) -> History {
    let mut history = before(remove_tag);
    for number in 0..messages {
        history.publish_beside(of([1, 20][number as usize % 2], number as usize % 50));
    }
    history.take_over();
    history
}

fn behind_its_back(testee: &mut Testee, messages: u64) -> Result<Verdict> {
    let mut history = beside(messages, TAG);
    history.publish(of(2, 7), 1, false);
    history.flush();
    let stage = Stage::of(&history.model.words)?;
    passes!(begin(testee, &stage, "poll", "behind a successor", history.begin_now())?);
    for key in [1, 2, 20] {
        passes!(get(testee, &history.shelf, &[key; 4], "behind a successor")?);
    }
    Ok(Ok(()))
}
