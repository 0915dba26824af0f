//! Boards: readers that begin with the last message of each key while the publisher is at work, is killed or takes over, and single keys.
//!
//! Message `s` of the channel follows from `s` alone, so the newest message of each key below any sequence is known without a record.
//! `SHMCAST_KILLS` sets how many publishers are killed in all (60 by default), `SHMCAST_JOINS` how many readers join beside one that
//! publishes at full rate (1000 by default).

use crate::support::{SMALL, publisher, subscriber};
use shmcast::{
    BoardEntry, BoardSpec, ChannelError, Event, Mark, Message, Publisher, Records, RecvError, Start, State,
    Subscriber,
};
use shmcast_testkit::process::{in_dir, my_dir, my_role};
use shmcast_testkit::{PATIENCE, Process, number, role, scratch, skip, wait_for};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KEYS: u64 = 500;

fn mix(sequence: u64) -> u64 {
    let mixed = (sequence ^ sequence >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

fn key(sequence: u64) -> u64 {
    mix(sequence) % KEYS
}

fn is_removal(sequence: u64) -> bool {
    mix(sequence) >> 32 & 63 == 0
}

/// Message `sequence`: its key, and unless it removes the key its sequence, again and again.
fn payload(sequence: u64, buffer: &mut [u8; 256]) -> &[u8] {
    buffer[..8].copy_from_slice(&key(sequence).to_le_bytes());
    if is_removal(sequence) {
        return &buffer[..8];
    }
    let words = 1 + (mix(sequence) >> 40) as usize % 31;
    buffer[8..8 + 8 * words].as_chunks_mut::<8>().0.fill(sequence.to_le_bytes());
    &buffer[..8 + 8 * words]
}

fn spec() -> BoardSpec {
    BoardSpec::new(0..8).keys(KEYS).value(256)
}

fn publish_next(publisher: &mut Publisher) {
    let sequence = publisher.next_sequence();
    let tag = sequence as u16;
    publisher.publish_with(payload(sequence, &mut [0; 256]), Mark { tag, key: false }).unwrap();
}

fn check(m: &Message<'_>) {
    assert_eq!(m.payload, payload(m.sequence, &mut [0; 256]), "TORN: message {}", m.sequence);
    assert_eq!(m.tag, m.sequence as u16);
}

/// The sequences of the newest messages of all keys below `due`, without those that were removed.
fn newest(due: u64) -> Vec<u64> {
    let mut seen = [false; KEYS as usize];
    let mut left = KEYS;
    let mut newest: Vec<u64> = (1..due)
        .rev()
        .take_while(|_| left > 0)
        .collect::<Vec<u64>>()
        .into_iter()
        .filter(|sequence| {
            let was_seen = std::mem::replace(&mut seen[key(*sequence) as usize], true);
            left -= u64::from(!was_seen);
            !was_seen && !is_removal(*sequence)
        })
        .collect();
    newest.reverse();
    newest
}

/// Receives the whole board, and compares it with the truth. Returns the sequence due in the ring.
fn check_board(reader: &mut Subscriber) -> u64 {
    let mut got = Vec::new();
    let due = loop {
        match reader.recv_deadline(Instant::now() + PATIENCE).unwrap().expect("the board ends") {
            Event::Message(m) => {
                check(&m);
                assert_eq!(m.conflated, Some(0));
                got.push(m.sequence);
            }
            Event::Live { sequence } => break sequence,
            other => panic!("{other:?} on the board"),
        }
    };
    let expected = newest_near(due);
    assert!(got == expected, "joined at {due}: {} messages instead of {}", got.len(), expected.len());
    due
}

/// As [`newest`], but looks back only as far as all keys certainly reach.
fn newest_near(due: u64) -> Vec<u64> {
    let mut seen = [false; KEYS as usize];
    let mut left = KEYS;
    let mut found = Vec::new();
    let mut sequence = due;
    while left > 0 && sequence > 1 {
        sequence -= 1;
        if !std::mem::replace(&mut seen[key(sequence) as usize], true) {
            left -= 1;
            found.extend((!is_removal(sequence)).then_some(sequence));
        }
    }
    found.reverse();
    found
}

#[test]
fn a_late_reader_gets_the_newest_of_each_key_and_then_the_stream() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).board(spec()).open().unwrap();
    for _ in 0..20_000 {
        publish_next(&mut publisher);
    }
    let mut reader = subscriber(dir.path()).start(Start::Board).open().unwrap();
    for _ in 0..10 {
        publish_next(&mut publisher);
    }
    assert_eq!(check_board(&mut reader), 20_001);
    for sequence in 20_001..20_011 {
        let Some(Event::Message(m)) = reader.try_recv().unwrap() else { panic!("a message is due") };
        check(&m);
        assert_eq!((m.sequence, m.conflated), (sequence, None));
    }
    assert_eq!(reader.try_recv().unwrap(), None);
    assert_eq!(newest(20_001), newest_near(20_001));
    publisher.close();
    assert_eq!(reader.recv().unwrap(), Event::End);
    // A channel that is closed, and one whose publisher is gone, still have their board.
    let mut later = subscriber(dir.path()).start(Start::Board).open().unwrap();
    assert_eq!(check_board(&mut later), 20_011);
    assert_eq!(later.recv().unwrap(), Event::End);
}

/// Each way to publish and to receive, and the messages that are no values.
#[test]
fn every_call_keeps_the_board_and_every_call_reads_it() {
    let dir = scratch();
    let spec = BoardSpec::new(1..3).keys(3).value(8).remove_tag(9);
    let mut publisher = publisher(dir.path()).capacity(SMALL).board(spec).open().unwrap();
    publisher.publish(b"-aa1").unwrap();
    publisher.publish_at(b"-bb2", Mark { tag: 5, key: true }, 77).unwrap();
    publisher.publish_batch(["-cc3", "-dd4"]).unwrap(); // the second finds no room
    publisher.publish_vectored(&[b"-a", b"a5"], Mark::default()).unwrap();
    let mut claim = publisher.claim(10).unwrap();
    claim[..4].copy_from_slice(b"-bb6");
    claim.commit(4).unwrap();
    publisher.publish(b"-c").unwrap(); // too short to have a key
    publisher.publish_with(b"-ccgone", Mark { tag: 9, key: false }).unwrap();
    publisher.publish(b"-aa too large").unwrap();
    publisher.gap(20).unwrap();
    let mut board = subscriber(dir.path()).open_board().unwrap();
    let counters = board.counters();
    assert_eq!((counters.live, counters.refused, counters.too_large, counters.no_key), (2, 1, 1, 1));
    assert_eq!((counters.through, counters.since, board.len()), (20, 1, 2));
    let b = board.get(b"bb").unwrap().unwrap();
    let m = b.message.unwrap();
    assert_eq!((m.payload, m.sequence, b.count, b.key), (&b"-bb6"[..], 6, 2, &b"bb"[..]));
    let a = board.get(b"aa").unwrap().unwrap();
    assert_eq!((a.message, a.sequence, a.count), (None, 9, 3), "the newest is too large");
    for missing in [&b"cc"[..], b"dd", b"zz", b"a", b"aaa", b""] {
        assert_eq!(board.get(missing).unwrap(), None, "{missing:?}");
    }
    let entries: Vec<(Vec<u8>, bool)> = board
        .entries()
        .unwrap()
        .map(|entry: BoardEntry<'_>| (entry.key.to_vec(), entry.message.is_some()))
        .collect();
    assert_eq!(entries, [(b"bb".to_vec(), true), (b"aa".to_vec(), false)]);

    read_in_every_way(dir.path());
    // Another place is sought in the middle of it.
    let mut reader = subscriber(dir.path()).start(Start::Board).open().unwrap();
    reader.seek(21).unwrap();
    assert_eq!(reader.try_recv().unwrap(), None);
    publisher.publish(b"-aa7").unwrap();
    assert!(matches!(reader.recv().unwrap(), Event::Message(m) if m.sequence == 21 && m.conflated.is_none()));
}

/// The board of the test above, by each call that receives.
fn read_in_every_way(dir: &Path) {
    let open = || subscriber(dir).start(Start::Board).open().unwrap();
    let told = |event: Event<'_>| match event {
        Event::Message(m) => format!("{} {:?}", m.sequence, m.conflated),
        Event::Lapped(l) => format!("missed {} at {}", l.missed, l.resumed_at),
        Event::Live { sequence } => format!("live {sequence}"),
        other => format!("{other:?}"),
    };
    let expected = ["6 Some(0)", "missed 1 at 21", "live 21"];
    let mut reader = open();
    let received: Vec<String> = (0..3).map(|_| told(reader.recv().unwrap())).collect();
    assert_eq!(received, expected);
    let (mut reader, mut buffer) = (open(), [0; 64]);
    assert!(matches!(reader.try_recv_into(&mut buffer[..3]), Err(RecvError::TooSmall { needed: 4, .. })));
    let received: Vec<String> = (0..3).map(|_| told(reader.recv_into(&mut buffer).unwrap())).collect();
    assert_eq!((received, &buffer[..4]), (expected.map(str::to_owned).to_vec(), &b"-bb6"[..]));
    let (mut reader, mut received) = (open(), Vec::new());
    reader.recv_batch(10, |event| received.push(told(event))).unwrap();
    assert_eq!(received, expected);
    let (mut reader, mut records) = (open(), Records::with_room(4096));
    assert_eq!(reader.recv_records(10, &mut records).unwrap(), 1);
    assert_eq!(records.iter().map(|m| told(Event::Message(m))).collect::<Vec<_>>(), expected[..1]);
    assert_eq!(reader.recv_records(10, &mut records).unwrap(), 1);
    assert_eq!(records.event().map(told).as_deref(), Some(expected[1]));
}

#[test]
fn a_channel_without_a_board_says_so_and_one_with_another_too() {
    let dir = scratch();
    let open = |board: BoardSpec| publisher(dir.path()).capacity(SMALL).board(board).open();
    let plain = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let refused = subscriber(dir.path()).start(Start::Board).open();
    assert!(matches!(refused, Err(ChannelError::NoBoard { .. })));
    assert!(matches!(subscriber(dir.path()).conflate().open(), Err(ChannelError::NoBoard { .. })));
    assert!(matches!(subscriber(dir.path()).open_board().map(drop), Err(ChannelError::NoBoard { .. })));
    plain.close();
    assert!(matches!(open(spec()), Err(ChannelError::NoBoard { .. })));
    assert!(matches!(open(spec().keys(0)), Err(ChannelError::Board(_))));
    let mut first = publisher(dir.path()).anew().board(spec()).open().unwrap();
    publish_next(&mut first);
    first.close();
    for other in [spec().keys(3), spec().value(100), spec().remove_tag(0), BoardSpec::new(1..8).keys(KEYS)] {
        let Err(ChannelError::Mismatch { .. }) = open(other) else { panic!("{other:?} was taken") };
    }
    // A publisher that does not ask for it keeps it.
    let mut second = publisher(dir.path()).open().unwrap();
    publish_next(&mut second);
    let mut reader = subscriber(dir.path()).start(Start::Board).open().unwrap();
    assert_eq!(check_board(&mut reader), 3);
    second.close();
    // And so does one that begins anew: the keys are gone, and the board is not.
    let mut board = subscriber(dir.path()).open_board().unwrap();
    let mut third = publisher(dir.path()).anew().open().unwrap();
    assert_eq!(board.get(&[0; 8]), Err(RecvError::Superseded));
    publish_next(&mut third);
    let mut reader = subscriber(dir.path()).start(Start::Board).open().unwrap();
    assert_eq!(check_board(&mut reader), 2);
    let refused = subscriber(dir.path()).start(Start::Oldest).conflate().open();
    assert!(matches!(refused, Err(ChannelError::Conflation { .. })));
}

#[test]
fn readers_join_beside_a_publisher_at_full_rate_without_a_hole() {
    let joins = number("SHMCAST_JOINS", 1000);
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(4 << 20).board(spec()).open().unwrap();
    for _ in 0..5 * KEYS {
        publish_next(&mut publisher);
    }
    let is_over = AtomicBool::new(false);
    let (mut followed, mut overtaken) = (0u64, 0u64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                (0..64).for_each(|_| publish_next(&mut publisher));
            }
        });
        let ends = End(&is_over);
        for join in 0..joins {
            let builder = subscriber(dir.path()).start(Start::Board).page(false);
            let mut reader = match builder.prepare(shmcast::Preparation::NONE).open() {
                Ok(reader) => reader,
                Err(e) => panic!("join {join}: {e}"),
            };
            let due = check_board(&mut reader);
            let mut expected = due;
            while expected < due + 300 {
                match reader.recv_deadline(Instant::now() + PATIENCE).unwrap().expect("more is published") {
                    Event::Message(m) => {
                        check(&m);
                        assert_eq!((m.sequence, m.conflated), (expected, None), "joined at {due}");
                        expected += 1;
                        followed += 1;
                    }
                    Event::Lapped(lapped) => {
                        assert_eq!(lapped.resumed_at - lapped.missed, expected, "joined at {due}");
                        expected = lapped.resumed_at;
                        overtaken += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        drop(ends);
    });
    eprintln!("{joins} joins, then {followed} messages, overtaken {overtaken} times");
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
#[ignore = "plays a part in other tests"]
fn play() {
    let Some(role) = my_role() else { return skip("play", "started by other tests only") };
    assert_eq!(role, "publisher");
    let builder = publisher(&my_dir()).capacity(SMALL).board(spec());
    let mut publisher = builder.open().expect("it takes over");
    loop {
        publish_next(&mut publisher);
    }
}

fn start_publisher(dir: &Path) -> Process {
    Process::start(in_dir(&mut role!("publisher"), dir))
}

#[test]
fn killed_publishers_leave_no_torn_value() {
    let kills = number("SHMCAST_KILLS", 60).max(16);
    let dir = scratch();
    let mut process = start_publisher(dir.path());
    let watch = subscriber(dir.path()).page(false).wait_for_channel(PATIENCE).open().unwrap();
    let (mut epoch, mut in_the_middle) = (0, 0);
    for killed in 0..kills {
        epoch = wait_for("publisher", || match watch.publisher_state() {
            Some((found, State::Active)) if found > epoch => Some(found),
            _ => None,
        });
        std::thread::sleep(Duration::from_micros(mix(killed) % 4_000));
        // A reader joins beside it, and others after it was stopped and killed, before and after the next one takes over.
        if killed % 4 == 0 {
            check_board(&mut subscriber(dir.path()).start(Start::Board).open().unwrap());
            process.pause();
            check_board(&mut subscriber(dir.path()).start(Start::Board).open().unwrap());
            process.resume();
        }
        process.kill();
        let mut dead = subscriber(dir.path()).start(Start::Board).open().unwrap();
        let due = check_board(&mut dead);
        let mut board = subscriber(dir.path()).open_board().unwrap();
        in_the_middle += u64::from(board.counters().through + 1 < due);
        check_single_keys(&mut board, due);
        process = start_publisher(dir.path());
        // What it had committed comes once, in the order of the stream.
        match dead.recv_deadline(Instant::now() + PATIENCE).unwrap().expect("the next publisher's") {
            Event::NewEpoch { .. } | Event::Lapped(_) => {}
            Event::Message(m) => panic!("message {} after {due} of a dead publisher", m.sequence),
            other => panic!("{other:?}"),
        }
    }
    process.kill();
    eprintln!("{kills} kills, {in_the_middle} of them between ring and board; 0 torn");
}

/// Each key of the board as a dead publisher left it, read by itself.
fn check_single_keys(board: &mut shmcast::Board, due: u64) {
    let expected: BTreeMap<u64, u64> = newest_near(due).into_iter().map(|s| (key(s), s)).collect();
    for key in 0..KEYS {
        let found = board.get(&key.to_le_bytes()).unwrap();
        match (found, expected.get(&key)) {
            (None, None) => {}
            (Some(entry), Some(sequence)) => {
                let m = entry.message.expect("it fits");
                check(&m);
                // The message between ring and board may be there already or not.
                let is_newest = m.sequence == *sequence;
                assert!(is_newest || *sequence + 1 == due, "key {key}: {} instead of {sequence}", m.sequence);
            }
            (found, expected) => {
                let is_last = expected.is_some_and(|s| s + 1 == due) || self::key(due - 1) == key;
                assert!(is_last, "key {key}: {found:?} instead of {expected:?}");
            }
        }
    }
}
