//! Batches of whole records: the same stream as one message at a time, in every mixture of sizes, gaps and laps.

use crate::support::{SMALL, publisher, subscriber};
use shmcast::{Armed, Event, Mark, OwnedEvent, Records, Start, Subscriber, Wait};
use shmcast_testkit::{PATIENCE, scratch};
use std::time::{Duration, Instant};

/// A small generator of numbers, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn one_by_one(subscriber: &mut Subscriber) -> Vec<OwnedEvent> {
    let mut events = Vec::new();
    while let Some(event) = subscriber.try_recv().unwrap() {
        events.push(event.into_owned());
    }
    events
}

/// All events of batches of up to `most`. No batch is larger, and none is empty but the last.
fn in_batches(subscriber: &mut Subscriber, records: &mut Records, most: usize) -> Vec<OwnedEvent> {
    let mut events = Vec::new();
    loop {
        let received = subscriber.recv_records(most, records).unwrap();
        assert!(records.len() <= most && records.iter().count() == records.len());
        assert_eq!(received, records.len() + usize::from(records.event().is_some()));
        assert_eq!(records.first_sequence(), records.iter().next().map_or(0, |m| m.sequence));
        assert!(
            records.as_bytes().as_ptr().addr().is_multiple_of(64)
                && records.as_bytes().len().is_multiple_of(64)
        );
        events.extend(records.iter().map(|message| Event::Message(message).into_owned()));
        events.extend(records.event().map(Event::into_owned));
        if received == 0 {
            return events;
        }
    }
}

#[test]
fn batches_hold_the_same_stream_as_single_messages() {
    for seed in 0..40 {
        let mut dice = Dice(seed);
        let dir = scratch();
        let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
        let open = |tags: bool| {
            let builder = subscriber(dir.path()).start(Start::Oldest);
            if tags { builder.tags([1, 2]) } else { builder }.open().unwrap()
        };
        let mut pairs = [false, true].map(|tags| (open(tags), open(tags)));
        let mut records = Records::with_room(if seed % 2 == 0 { 16 << 10 } else { 4096 });
        // Of one size, of two, or of any.
        let (sizes, base) = (1 + [0, 1, 600, 8192][seed as usize % 4], dice.roll(100));
        for _ in 0..60 {
            for _ in 0..dice.roll(120) {
                let length = (base + dice.roll(sizes)).min(8192) as usize;
                let payload = vec![publisher.next_sequence() as u8; length];
                let mark = Mark { tag: dice.roll(4) as u16, key: dice.roll(20) == 0 };
                publisher.publish_with(&payload, mark).unwrap();
                if dice.roll(50) == 0 {
                    let to = publisher.next_sequence() + dice.roll(5);
                    publisher.gap(to).unwrap();
                }
            }
            let most = 1 + dice.roll(100) as usize;
            for (one, many) in &mut pairs {
                assert_eq!(in_batches(many, &mut records, most), one_by_one(one), "seed {seed}");
                assert_eq!((many.next_sequence(), many.position()), (one.next_sequence(), one.position()));
            }
        }
        publisher.close();
        for (one, many) in &mut pairs {
            let last = one_by_one(one);
            assert_eq!(in_batches(many, &mut records, 7), last);
            assert_eq!(last.last(), Some(&OwnedEvent::End));
        }
    }
}

#[test]
fn a_publisher_at_full_speed_tears_no_record() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).start(Start::Oldest).open().unwrap();
    let published = 600_000u64;
    let writer = std::thread::spawn(move || {
        for sequence in 1..=published {
            // A stretch of each size, so that runs are of one size and of several.
            let words = 1 + (sequence / 1000 % 3) as usize * (sequence % 2 + 1) as usize * 3;
            publisher
                .publish(
                    vec![sequence; words].iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>().as_slice(),
                )
                .unwrap();
        }
        publisher.close();
    });
    let (mut received, mut missed, mut due) = (0, 0, 1);
    let mut records = Records::with_room(16 << 10);
    loop {
        subscriber.recv_records(1000, &mut records).unwrap();
        for message in records.iter() {
            assert_eq!(message.sequence, due);
            let (words, rest) = message.payload.as_chunks::<8>();
            assert!(rest.is_empty() && words.iter().all(|w| u64::from_le_bytes(*w) == due));
            (received, due) = (received + 1, due + 1);
        }
        match records.event() {
            Some(Event::Lapped(lapped)) => {
                missed += lapped.missed;
                due += lapped.missed;
                assert_eq!(due, lapped.resumed_at);
            }
            Some(Event::End) => break,
            None => {}
            Some(other) => panic!("{other:?}"),
        }
    }
    writer.join().unwrap();
    assert_eq!(received + missed, published);
    assert!(received > 0);
}

#[test]
fn the_largest_message_finds_room_in_a_small_batch() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(1 << 20).open().unwrap();
    let mut subscriber = subscriber(dir.path()).start(Start::Oldest).open().unwrap();
    for length in [10, 131_072, 10, 100_000] {
        publisher.publish(&vec![7; length]).unwrap();
    }
    let mut records = Records::with_room(64);
    let lengths: Vec<usize> = in_batches(&mut subscriber, &mut records, 100)
        .iter()
        .map(|event| match event {
            OwnedEvent::Message(message) => message.payload.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(lengths, [10, 131_072, 10, 100_000]);
}

#[test]
fn the_first_of_a_batch_is_waited_for() {
    let soon = || Instant::now() + Duration::from_millis(5);
    for wait in [Wait::Spin, Wait::Yield, Wait::Backoff, Wait::Sleep(Duration::from_millis(1))] {
        let dir = scratch();
        let mut publisher = publisher(dir.path()).capacity(1 << 20).open().unwrap();
        let mut subscriber = subscriber(dir.path()).wait(wait).tags([0, 1]).open().unwrap();
        let mut records = Records::with_room(4096);
        assert_eq!(subscriber.recv_records_deadline(9, &mut records, soon()).unwrap(), 0, "{wait:?}");
        let writer = std::thread::spawn(move || {
            for size in [100, 100_000, 0] {
                std::thread::sleep(Duration::from_millis(20));
                publisher.publish_with(b"of another tag", Mark { tag: 2, key: false }).unwrap();
                publisher.publish_with(&vec![7; size], Mark { tag: 1, key: true }).unwrap();
            }
            publisher.close();
        });
        let mut seen = Vec::new();
        while records.event() != Some(Event::End) {
            let far = Instant::now() + PATIENCE;
            assert!(subscriber.recv_records_deadline(9, &mut records, far).unwrap() > 0, "{wait:?}");
            let sizes = records.iter().map(|m| (m.sequence, m.tag, m.key, m.payload.len()));
            seen.extend(sizes);
            assert!(records.iter().all(|m| m.payload.iter().all(|byte| *byte == 7)), "{wait:?}");
        }
        assert_eq!(seen, [(2, 1, true, 100), (4, 1, true, 100_000), (6, 1, true, 0)], "{wait:?}");
        writer.join().unwrap();
    }
}

#[test]
fn arming_looks_once_more() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    assert_eq!(subscriber.arm().unwrap(), Armed::Wait(Duration::from_millis(1)), "nobody rings for a file");
    publisher.publish(b"x").unwrap();
    assert!(matches!(subscriber.arm().unwrap(), Armed::Event(Event::Message(m)) if m.payload == b"x"));
    publisher.close();
    assert_eq!(subscriber.arm().unwrap(), Armed::Event(Event::End));
    assert!(matches!(subscriber.arm().unwrap(), Armed::Wait(_)) && subscriber.descriptor().is_none());
    subscriber.disarm();
}
