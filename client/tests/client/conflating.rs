//! Readers that cannot keep up and conflate: against a list of everything that was published.

use crate::support::{SMALL, publisher, subscriber};
use proptest::prelude::*;
use shmcast::{BoardSpec, Event, Gate, Publisher, Records, Start, Subscriber};
use shmcast_testkit::scratch;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const KEYS: u64 = 6;

/// What the publisher does, and how many events the reader then takes.
#[derive(Debug, Clone)]
enum Step {
    Publish { count: u64, keys: u8, rest: usize },
    Remove(u8),
    Short,
    Large(u8),
    TakeOver,
    Read(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let counts = prop_oneof![4 => 1..20u64, 2 => 200..700u64, 1 => 1000..3000u64];
    prop_oneof![
        8 => (counts, 1..10u8, 1..60usize).prop_map(|(count, keys, rest)| Step::Publish { count, keys, rest }),
        4 => (0..10u8).prop_map(Step::Remove),
        1 => Just(Step::Short),
        1 => (0..10u8).prop_map(Step::Large),
        1 => Just(Step::TakeOver),
        8 => prop_oneof![3 => 0..10usize, 1 => 10..2000usize].prop_map(Step::Read),
    ]
}

/// All messages in their order.
#[derive(Default)]
struct Book {
    messages: Vec<Vec<u8>>,
    /// For each message, whether the board counts it: a removal of a key that never was there is nothing to it.
    counts: Vec<bool>,
    keys: BTreeSet<u8>,
}

impl Book {
    fn publish(&mut self, publisher: &mut Publisher, payload: Vec<u8>) {
        let sequence = publisher.publish(&payload).unwrap();
        let is_counted = payload.first().is_some_and(|key| payload.len() > 1 || self.keys.contains(key));
        self.keys.extend(payload.first().filter(|_| is_counted));
        self.counts.push(is_counted);
        self.messages.push(payload);
        assert_eq!(sequence, self.messages.len() as u64);
    }

    /// Number of messages of the key of message `sequence` from `from` on and before it.
    fn before(&self, sequence: u64, from: u64) -> u64 {
        let key = self.messages[sequence as usize - 1].first();
        let is_one = |s: &u64| self.counts[*s as usize - 1] && self.messages[*s as usize - 1].first() == key;
        (from..sequence).filter(is_one).count() as u64
    }
}

/// What a reader was given.
struct Mirror {
    reader: Subscriber,
    /// The sequence after the last event, and the newest message of each key as the reader knows it.
    due: u64,
    known: BTreeMap<u8, (u64, Vec<u8>)>,
    received: u64,
    conflated: u64,
    missed: u64,
    /// The sequence that was due when the reader began to be given messages of the board.
    batch: Option<u64>,
}

impl Mirror {
    fn take(&mut self, book: &Book, fits: bool) -> bool {
        let Some(event) = self.reader.try_recv().unwrap() else { return false };
        match event {
            Event::Message(m) => {
                let payload = m.payload.to_vec();
                let is_forgotten = m.conflated == Some(0) && m.payload.len() == 1 && m.time == 0;
                if !is_forgotten {
                    assert_eq!(payload, book.messages[m.sequence as usize - 1], "message {}", m.sequence);
                }
                match m.conflated {
                    None => {
                        assert_eq!((m.sequence, self.batch), (self.due, None));
                        self.due += 1;
                    }
                    Some(left_out) => {
                        let from = *self.batch.get_or_insert(self.due);
                        if is_forgotten {
                            self.known.remove(&payload[0]);
                            return true;
                        }
                        assert!(m.sequence >= from);
                        if fits {
                            assert_eq!(left_out, book.before(m.sequence, from), "message {}", m.sequence);
                        }
                        self.conflated += left_out;
                    }
                }
                self.received += 1;
                if let Some(key) = payload.first() {
                    match payload.len() {
                        1 => drop(self.known.remove(key)),
                        _ => drop(self.known.insert(*key, (m.sequence, payload))),
                    }
                }
            }
            Event::Lapped(lapped) => {
                self.missed += lapped.missed;
                self.due = lapped.resumed_at;
            }
            Event::Live { sequence } => {
                assert!(self.batch.take().is_none_or(|from| sequence >= from));
                self.due = sequence;
            }
            Event::NewEpoch { .. } | Event::End => {}
            other => panic!("{other:?}"),
        }
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// With few keys and none that finds no room, all counts are exact, and the reader knows what the board knows. With more keys than room,
    /// what it was given and what it was told of still add up.
    #[test]
    fn what_is_given_and_what_is_left_out_is_all_that_was_published(
        keys in 1..9u8,
        behind in prop::sample::select(vec![None, Some(12 << 10), Some(40 << 10)]),
        begins_with_board in any::<bool>(),
        is_gated in any::<bool>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let fits = u64::from(keys) <= KEYS;
        let dir = scratch();
        let spec = BoardSpec::new(0..1).keys(KEYS).value(100);
        // A gate that only measures: its reader is lapped as any other.
        let gate = || Gate::new("risk").wait(Duration::ZERO);
        let open = || publisher(dir.path()).capacity(SMALL).board(spec).gate(gate()).open().unwrap();
        let (mut publisher, mut book) = (open(), Book::default());
        let mut builder = subscriber(dir.path());
        if begins_with_board {
            builder = builder.start(Start::Board);
        }
        if is_gated {
            builder = builder.gate("risk");
        }
        let builder = match behind {
            None => builder.conflate(),
            Some(bytes) => builder.conflate_behind(bytes),
        };
        let mut mirror = Mirror {
            reader: builder.open().unwrap(), due: 1, known: BTreeMap::new(), received: 0, conflated: 0, missed: 0,
            batch: None,
        };
        let steps = steps.into_iter().chain([Step::Read(usize::MAX)]);
        let mut has_other = false;
        for step in steps {
            match step {
                Step::Publish { count, keys: some, rest } => {
                    for i in 0..count {
                        let mut payload = vec![(i * i % u64::from(some.min(keys))) as u8];
                        payload.resize(1 + rest, i as u8);
                        book.publish(&mut publisher, payload);
                    }
                }
                Step::Remove(key) => book.publish(&mut publisher, vec![key % keys]),
                Step::Short => {
                    has_other = true;
                    book.publish(&mut publisher, Vec::new());
                }
                Step::Large(key) => {
                    has_other = true;
                    book.publish(&mut publisher, [vec![key % keys], vec![1; 300]].concat());
                }
                Step::TakeOver => {
                    drop(publisher);
                    publisher = open();
                }
                Step::Read(events) => {
                    let (mut taken, mut empty) = (0, 0);
                    // One in 64 polls that find nothing notices that the reader was lapped.
                    while taken < events && empty < 100 {
                        if mirror.take(&book, fits) { taken += 1 } else { empty += 1 }
                    }
                }
            }
        }
        let published = book.messages.len() as u64;
        prop_assert_eq!(mirror.due, published + 1);
        prop_assert_eq!(mirror.received + mirror.conflated + mirror.missed, published);
        if fits && !has_other {
            // A removal of a key that is not there is left out by the board, and so counts as missed.
            let mut board = subscriber(dir.path()).open_board().unwrap();
            let there: BTreeMap<u8, (u64, Vec<u8>)> = board.entries().unwrap()
                .map(|entry| (entry.key[0], (entry.sequence, entry.message.unwrap().payload.to_vec()))).collect();
            prop_assert_eq!(&mirror.known, &there);
        }
    }
}

/// A poll that finds nothing looks for a lap once in 64 times. So a reader that is behind gets something by then, whichever call it makes.
#[test]
fn calls_of_each_kind_give_what_the_board_has() {
    for published in [300u64, 700, 1_000, 1_100, 5_000] {
        let dir = scratch();
        let mut publisher = publisher(dir.path()).capacity(SMALL).board(BoardSpec::new(0..1)).open().unwrap();
        let open = || subscriber(dir.path()).conflate_behind(8 << 10).open().unwrap();
        let (mut one, mut into, mut many) = (open(), open(), open());
        for number in 0..published {
            publisher.publish(&[[b'x'; 8], number.to_le_bytes()].concat()).unwrap();
        }
        let mut last = [0; 3];
        let mut records = Records::with_room(4 << 10);
        for _ in 0..200 {
            if let Some(Event::Message(m)) = one.try_recv().unwrap() {
                last[0] = m.sequence;
            }
            if let Some(Event::Message(m)) = into.try_recv_into(&mut [0; 64]).unwrap() {
                last[1] = m.sequence;
            }
            many.recv_records(10, &mut records).unwrap();
            last[2] = records.iter().last().map_or(last[2], |message| message.sequence);
        }
        assert_eq!(last, [published; 3]);
    }
}

/// A board that is full has no room for a key. A reader that knows the key from the stream is not told that it was removed.
#[test]
fn a_key_that_found_no_room_is_not_told_as_removed() {
    let dir = scratch();
    let spec = BoardSpec::new(0..1).keys(1).value(100);
    let mut publisher = publisher(dir.path()).capacity(SMALL).board(spec).open().unwrap();
    let mut reader = subscriber(dir.path()).conflate_behind(8 << 10).open().unwrap();
    for payload in [b"a1", b"b1"] {
        publisher.publish(payload).unwrap();
        assert!(
            matches!(reader.recv().unwrap(), Event::Message(m) if m.payload == payload && m.conflated.is_none())
        );
    }
    for _ in 0..2000 {
        publisher.publish(b"a2").unwrap();
    }
    let mut given = Vec::new();
    for _ in 0..200 {
        match reader.try_recv().unwrap() {
            Some(Event::Message(m)) if m.conflated.is_some() => given.push((m.sequence, m.payload.to_vec())),
            Some(Event::Live { .. }) => break,
            _ => {}
        }
    }
    assert_eq!(given, [(2002, b"a2".to_vec())]);
}
