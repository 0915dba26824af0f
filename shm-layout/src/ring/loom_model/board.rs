//! A model of the board beside the ring. A writer publishes messages and stores them on the board, while a reader joins.
//!
//! A test compares the result of a reader's join with the expected messages: for each key, the newest message below the place from which
//! the reader continues in the ring.

use super::story::explore;
use crate::board::{BoardCells, BoardWriter, JoinError, Snapshot, View};
use crate::fault::mutant;
use crate::layout::board::{Geometry as BoardGeometry, HEAD_WORDS, INDEX_VERSION, Spec};
use crate::layout::geometry::Geometry;
use crate::layout::header::SESSION_REST;
use crate::ring::cells::{Cells, Page, RingCells};
use crate::ring::locate::Place;
use crate::ring::reader::Reader;
use crate::ring::writer::Writer;
use crate::sync::stopping::kill_after;
use loom::thread;
use std::collections::BTreeMap;

const BROKEN: &str = "the ring is broken: ";

/// A message: its key, and a number that makes its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Post {
    key: u64,
    /// `None` removes the key.
    value: Option<u64>,
}

/// Lists of messages that the models publish. Several models use the same list.
const ONE: &[Post] = &[post(7, 1)];
const TWO: &[Post] = &[post(7, 1), post(8, 2)];
const GONE: &[Post] = &[post(7, 1), remove(7)];
const ONE_LEFT: &[Post] = &[post(7, 1), post(8, 2), remove(7)];
const NONE_LEFT: &[Post] = &[post(7, 1), post(8, 2), remove(7), remove(8)];
const CHANGE: &[Post] = &[post(7, 2)];
const FIRST: &[Post] = &[post(7, 1)];
const THIRD: &[Post] = &[post(9, 3)];
const REMOVAL: &[Post] = &[remove(7)];

const fn post(key: u64, value: u64) -> Post {
    Post { key, value: Some(value) }
}

const fn remove(key: u64) -> Post {
    Post { key, value: None }
}

impl Post {
    /// The payload: the key, and two words of value, so that a torn copy mixes the words of two values.
    fn payload(self) -> Vec<u8> {
        let mut bytes = self.key.to_le_bytes().to_vec();
        if let Some(value) = self.value {
            bytes.extend([value, !value].into_iter().flat_map(u64::to_le_bytes));
        }
        bytes
    }
}

/// The memory of a channel with a board.
#[derive(Clone)]
struct Memory {
    ring: RingCells,
    geometry: Geometry,
    board: BoardCells,
}

impl Memory {
    fn new(keys: u64) -> Self {
        let geometry = Geometry::tiny(4);
        let ring = RingCells {
            header: Page::new(Cells::zeroed(SESSION_REST + 1)),
            index: Cells::zeroed(geometry.index_entries as usize),
            data: Cells::zeroed((geometry.capacity / 8) as usize),
        };
        let spec = Spec { keys, value: 24, key_start: 0, key_end: 8, remove_tag: None };
        let sizes = BoardGeometry::new(spec, 5).expect("a small board");
        let board = BoardCells {
            geometry: sizes,
            header: Cells::zeroed(INDEX_VERSION + 1),
            index: Cells::zeroed(sizes.entries as usize),
            heads: Cells::zeroed(keys as usize * HEAD_WORDS),
            values: Cells::zeroed((keys * sizes.stride() / 8) as usize),
        };
        board.begin_at(1);
        Self { ring, geometry, board }
    }

    fn reader(&self) -> Reader {
        Reader::new(self.ring.clone(), self.geometry, Place::START)
    }

    fn publisher(&self) -> Publisher {
        let writer = Writer::take_over(self.ring.clone(), self.geometry, 1, 0).expect("a ring of ours");
        let mut buffer = vec![0; self.geometry.max_message as usize];
        let taken = BoardWriter::take_over(self.board.clone(), self.reader(), &mut buffer);
        let (board, replayed) = taken.expect("a ring of ours");
        assert!(!replayed.has_hole, "{BROKEN}a hole between board and ring");
        Publisher { writer, board }
    }

    /// Joins once, and returns what the reader would hand out.
    fn join(&self) -> Option<Joined> {
        let mut snapshot = Snapshot::new(View::of(self.board.clone()));
        let mut buffer = vec![0; self.geometry.max_message as usize];
        let joined = match snapshot.join(&mut self.reader(), &mut buffer) {
            Ok(joined) => joined,
            Err(JoinError::TooFast | JoinError::Left { .. }) => return None,
            Err(error) => panic!("{BROKEN}{error}"),
        };
        let (listed, not_whole) = snapshot.list(0, true);
        assert_eq!(not_whole, 0, "{BROKEN}a key without a value");
        let messages = (0..listed).map(|number| {
            let listed = snapshot.listed(number).expect("it was listed");
            (listed.message.sequence, (snapshot.value(&listed).to_vec(), listed.count))
        });
        Some(Joined { messages: messages.collect(), due: joined.place.sequence })
    }
}

#[derive(Debug)]
struct Joined {
    messages: BTreeMap<u64, (Vec<u8>, u64)>,
    /// The sequence of the next message in the ring.
    due: u64,
}

struct Publisher {
    writer: Writer,
    board: BoardWriter,
}

impl Publisher {
    fn publish(&mut self, message: Post) {
        let (payload, next) = (message.payload(), self.writer.next_sequence());
        if mutant!("board_before_ring") {
            self.board.post(next, &payload, 0, false, next);
        }
        let sequence = self.writer.publish(&payload, 0, false, next).expect("it fits");
        if !mutant!("board_before_ring") {
            self.board.post(sequence, &payload, 0, false, next);
        }
    }
}

/// The messages that a reader must return if it continues with the sequence `due`. For each key with room on the board, this is the newest
/// message below `due`. Each message comes with the count of the key's messages up to it.
fn truth(all: &[Post], keys: u64, due: u64) -> BTreeMap<u64, (Vec<u8>, u64)> {
    let mut newest: BTreeMap<u64, (u64, Post, u64)> = BTreeMap::new();
    for (sequence, message) in (1..due).zip(all) {
        if !newest.contains_key(&message.key) {
            if message.value.is_none() {
                continue; // there is nothing to remove
            }
            if newest.len() as u64 == keys {
                let removed = newest.iter().filter(|(_, (_, message, _))| message.value.is_none());
                let oldest = removed.min_by_key(|(_, (sequence, ..))| *sequence).map(|(key, _)| *key);
                let Some(oldest) = oldest else { continue }; // there is no room
                newest.remove(&oldest);
            }
        }
        let count = newest.get(&message.key).map_or(0, |(.., count)| *count);
        newest.insert(message.key, (sequence, *message, count + 1));
    }
    let live = newest.into_values().filter(|(_, message, _)| message.value.is_some());
    live.map(|(sequence, message, count)| (sequence, (message.payload(), count))).collect()
}

fn check(joined: Option<Joined>, keys: u64, all: &[Post]) {
    let Some(Joined { messages, due }) = joined else { return };
    let expected = truth(all, keys, due);
    assert!(messages == expected, "{BROKEN}joined at {due}: {messages:?} instead of {expected:?}");
}

/// The messages of the list `before` are published. Then a reader joins while the messages of the list `beside` are published.
fn joined_beside(
    name: &str,
    preemptions: usize,
    keys: u64,
    before: &'static [Post],
    beside: &'static [Post],
) {
    explore(name, preemptions, move || {
        let memory = Memory::new(keys);
        let mut publisher = memory.publisher();
        before.iter().for_each(|message| publisher.publish(*message));
        let reading = {
            let memory = memory.clone();
            thread::spawn(move || memory.join())
        };
        beside.iter().for_each(|message| publisher.publish(*message));
        let all: Vec<Post> = before.iter().chain(beside).copied().collect();
        check(reading.join().expect("readers do not panic"), keys, &all);
        let last = memory.join().expect("nobody publishes");
        assert_eq!(last.due, all.len() as u64 + 1, "{BROKEN}not joined at the tail");
        check(Some(last), keys, &all);
    });
}

#[test]
fn joined_while_a_value_changes() {
    joined_beside("joined_while_a_value_changes", 1, 2, ONE, CHANGE);
}

#[test]
fn joined_while_a_key_comes() {
    joined_beside("joined_while_a_key_comes", 2, 2, &[], FIRST);
}

#[test]
#[ignore = "takes minutes: a step of CI: proof"]
fn joined_while_another_key_gets_the_slot() {
    joined_beside("joined_while_another_key_gets_the_slot", 0, 1, GONE, THIRD);
}

#[test]
fn joined_while_a_key_goes() {
    joined_beside("joined_while_a_key_goes", 1, 2, TWO, REMOVAL);
}

/// For each store of the publisher's last message, the publisher dies right before the store. A reader then joins. Another reader joins
/// after the next publisher has taken over and published one more message. If `is_beside`, the first reader joins during the takeover, and
/// only every third store is tried.
fn every_death(name: &'static str, is_beside: bool, before: &'static [Post], last: Post, next: Post) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    for stores in (0..).step_by(if is_beside { 3 } else { 1 }) {
        let died = Arc::new(AtomicBool::new(false));
        let report = died.clone();
        explore(&format!("{name}, killed before store {stores}"), 0, move || {
            let memory = Memory::new(2);
            let mut publisher = memory.publisher();
            before.iter().for_each(|message| publisher.publish(*message));
            let mut all = before.to_vec();
            all.push(last);
            let lives = kill_after(stores, || publisher.publish(last));
            report.store(!lives, Ordering::Relaxed);
            drop(publisher);
            let join = {
                let memory = memory.clone();
                move || memory.join()
            };
            let reading = is_beside.then(|| thread::spawn(join.clone()));
            let joined = if is_beside { None } else { join() };
            let mut publisher = memory.publisher();
            if publisher.writer.next_sequence() <= all.len() as u64 {
                all.pop(); // it was not committed
            }
            publisher.publish(next);
            all.push(next);
            check(joined, 2, &all);
            check(reading.and_then(|reading| reading.join().expect("readers do not panic")), 2, &all);
            let joined = memory.join().expect("nobody publishes");
            assert_eq!(joined.due, all.len() as u64 + 1, "{BROKEN}not joined at the tail");
            check(Some(joined), 2, &all);
        });
        if !died.load(Ordering::Relaxed) {
            assert!(stores > 4, "hardly a life");
            return;
        }
    }
}

#[test]
fn killed_while_a_value_changes() {
    every_death("killed_while_a_value_changes", false, ONE, post(7, 2), post(8, 3));
}

#[test]
fn killed_while_a_key_comes() {
    every_death("killed_while_a_key_comes", false, ONE, post(8, 2), post(8, 3));
}

#[test]
fn killed_while_a_key_goes() {
    every_death("killed_while_a_key_goes", false, TWO, remove(7), post(9, 3));
}

#[test]
fn killed_while_another_key_gets_the_slot() {
    every_death("killed_while_another_key_gets_the_slot", false, ONE_LEFT, post(9, 3), post(9, 4));
}

#[test]
fn killed_while_another_key_gets_the_slot_and_the_first_comes_back() {
    let name = "killed_while_another_key_gets_the_slot_and_the_first_comes_back";
    every_death(name, false, NONE_LEFT, post(9, 3), post(7, 4));
}

#[test]
#[ignore = "takes a minute: a step of CI: proof"]
fn joined_while_the_next_publisher_makes_a_value_whole() {
    every_death("joined_while_the_next_publisher_makes_a_value_whole", true, ONE, post(7, 2), post(8, 3));
}
