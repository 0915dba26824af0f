//! Readers that join, or go on after a lap, while a publisher saturates the ring. They get a place even at its full
//! speed.

use crate::support::{SMALL, publisher, subscriber};
use shmcast::{Event, Mark, Resume, Start, Subscriber, Wait};
use shmcast_testkit::{number, scratch, wait_until};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Rounds of each test with each load, of which some take a part. `SHMCAST_JOINS` sets it.
fn rounds() -> usize {
    number("SHMCAST_JOINS", 60)
}

const CAPACITIES: [u64; 2] = [SMALL, 1 << 20];

/// Ends the publisher when this is dropped, so also if the test fails.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `rounds` beside a publisher that does nothing but publish messages of one size.
fn under_full_speed(capacity: u64, length: u64, key: bool, rounds: impl FnOnce(&Path)) {
    // Two threads that never rest are enough for a machine.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(capacity).open().unwrap();
    let enough = AtomicBool::new(false);
    let payload = vec![7; length as usize];
    let mark = Mark { key, ..Mark::default() };
    std::thread::scope(|scope| {
        let _end = EndOnDrop(&enough);
        // The ring is filled twice before a reader joins.
        (0..2 * capacity / (16 + length)).for_each(|_| _ = publisher.publish_at(&payload, mark, 0).unwrap());
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed) {
                publisher.publish_at(&payload, mark, 0).unwrap();
            }
        });
        rounds(dir.path());
    });
}

/// Runs with each size of ring and message that matters: records of one line, and the largest ones. `rounds` also gets
/// the number of messages that the ring holds.
fn under_every_load(rounds: impl Fn(&Path, u64)) {
    for capacity in CAPACITIES {
        for (length, key) in
            [(0, false), (0, true), (300, false), (capacity / 8, false), (capacity / 8, true)]
        {
            under_full_speed(capacity, length, key, |dir| {
                rounds(dir, capacity / (16 + length).next_multiple_of(64))
            });
        }
    }
}

/// Receives one message, and skips other events before it.
fn message(reader: &mut Subscriber) -> u64 {
    loop {
        match reader.recv().unwrap() {
            Event::Message(m) => return m.sequence,
            Event::Lapped(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn opening_at_any_start_never_fails_because_the_publisher_is_fast() {
    under_every_load(|dir, _| {
        for round in 0..rounds() {
            let start = [Start::Latest, Start::Oldest, Start::Latest][round % 3];
            let opened = subscriber(dir).start(start).open();
            let mut reader = opened.unwrap_or_else(|e| panic!("round {round}, {start:?}: {e}"));
            let from = reader.next_sequence();
            assert!(message(&mut reader) >= from);
        }
    });
}

#[test]
fn resuming_after_a_lap_never_fails_because_the_publisher_is_fast() {
    under_every_load(|dir, room| {
        for (policy, rounds) in
            [(Resume::Latest, rounds() / 10), (Resume::Oldest, rounds() / 20), (Resume::Key, rounds() / 20)]
        {
            let mut reader = subscriber(dir).resume(policy).wait(Wait::Spin).open().unwrap();
            for round in 0..rounds {
                // Wait for more messages than fit into the ring.
                wait_until("a lap", || reader.lag() > room);
                let before = reader.next_sequence();
                match reader.recv() {
                    Ok(Event::Lapped(lapped)) => assert_eq!(lapped.resumed_at, before + lapped.missed),
                    other => panic!("round {round}, {policy:?}: {other:?}"),
                }
                message(&mut reader);
            }
        }
    });
}

#[test]
fn seeking_never_fails_because_the_publisher_is_fast() {
    under_every_load(|dir, _| {
        let mut reader = subscriber(dir).open().unwrap();
        for back in (0..rounds() as u64 / 2).map(|round| round * 21) {
            let sequence = (reader.next_sequence() + reader.lag()).saturating_sub(back).max(1);
            match reader.seek(sequence) {
                Ok(()) => assert!(message(&mut reader) >= sequence),
                Err(shmcast::LocateError::TooOld { oldest, .. }) => assert!(oldest > sequence),
                Err(e) => panic!("{sequence}: {e}"),
            }
        }
    });
}
