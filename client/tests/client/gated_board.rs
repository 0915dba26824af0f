//! Channels with a board and with gates: a message is in the ring and on the board, or on neither.

use crate::support::{SMALL, publisher, rare, subscriber};
use shmcast::{
    Board, BoardSpec, Event, Gate, GateState, Lapped, Mark, PublishError, Publisher, Records, Start,
    Subscriber, Wait,
};
use shmcast_testkit::process::{in_dir, my_dir, my_role};
use shmcast_testkit::{PATIENCE, Process, number, role, scratch, skip, wait_for};
use std::path::Path;
use std::time::{Duration, Instant};

/// Far longer than any honest reader takes on a busy machine.
const LONG: Duration = Duration::from_secs(100);
const KEYS: u64 = 5;

fn open(dir: &Path, gate: Gate) -> Publisher {
    publisher(dir)
        .capacity(SMALL)
        .board(BoardSpec::new(0..8).keys(KEYS).value(128))
        .gate(gate)
        .open()
        .unwrap()
}

fn board(dir: &Path) -> Board {
    subscriber(dir).open_board().unwrap()
}

/// The message with this number, whose key follows from it.
fn message(number: u64) -> Vec<u8> {
    [(number % KEYS).to_le_bytes(), number.to_le_bytes(), [7; 8]].concat()
}

/// Publishes messages with the numbers of their sequences until the gate refuses one.
fn fill(publisher: &mut Publisher) {
    while let Ok(sequence) = publisher.try_publish(&message(publisher.next_sequence())) {
        assert!(sequence < 1_000_000, "nothing holds this publisher up");
    }
}

/// The sequence and the number of the message that the board has of the key of message `number`.
fn newest(board: &mut Board, number: u64) -> (u64, u64, u64) {
    let entry = board.get(&(number % KEYS).to_le_bytes()).unwrap().expect("the key is there");
    let payload = entry.message.expect("it fits").payload;
    (entry.sequence, u64::from_le_bytes(payload[8..16].try_into().unwrap()), entry.count)
}

type Call = fn(&mut Publisher, &[u8]) -> Result<u64, PublishError>;

/// Every call that publishes a message.
const CALLS: [Call; 9] = [
    |publisher, payload| publisher.publish(payload),
    |publisher, payload| publisher.publish_with(payload, Mark { tag: 3, key: true }),
    |publisher, payload| publisher.publish_at(payload, Mark::default(), 77),
    |publisher, payload| publisher.try_publish(payload),
    |publisher, payload| publisher.try_publish_with(payload, Mark::default()),
    |publisher, payload| publisher.try_publish_at(payload, Mark::default(), 77),
    |publisher, payload| publisher.publish_vectored(&[&payload[..5], &payload[5..]], Mark::default()),
    |publisher, payload| publisher.publish_batch([payload]).map(|sequences| sequences.start),
    |publisher, payload| {
        let mut claim = publisher.claim(payload.len())?;
        claim.copy_from_slice(payload);
        claim.commit(payload.len())
    },
];

#[test]
fn a_refused_message_is_on_neither_and_a_published_one_on_both() {
    let dir = scratch();
    let mut publisher = open(dir.path(), Gate::new("risk").wait(Duration::from_millis(1)).refuse());
    let mut reader = subscriber(dir.path()).gate("risk").open().unwrap();
    let mut board = board(dir.path());
    let mut due = 1;
    let mut receive_all = |reader: &mut Subscriber| {
        while let Some(event) = reader.try_recv().unwrap() {
            let Event::Message(m) = event else { panic!("{event:?} where message {due} was due") };
            assert_eq!((m.sequence, m.payload), (due, &message(due)[..]));
            due += 1;
        }
        due
    };
    for (call, publish) in CALLS.into_iter().enumerate() {
        fill(&mut publisher);
        let next = publisher.next_sequence();
        let before = newest(&mut board, next);
        assert_eq!((before.0, before.1), (next - KEYS, next - KEYS), "call {call}");
        for publish in CALLS {
            let refused = publish(&mut publisher, &message(next)).unwrap_err();
            assert!(matches!(refused, PublishError::Full { .. }), "call {call}: {refused}");
        }
        assert_eq!((publisher.next_sequence(), board.counters().through), (next, next - 1), "call {call}");
        assert_eq!(newest(&mut board, next), before, "call {call}");
        assert_eq!(receive_all(&mut reader), next, "call {call}");
        assert_eq!(publish(&mut publisher, &message(next)), Ok(next), "call {call}");
        assert_eq!(board.counters().through, next, "call {call}");
        assert_eq!(newest(&mut board, next), (next, next, before.2 + 1), "call {call}");
        assert_eq!(receive_all(&mut reader), next + 1, "call {call}");
    }
    // A batch ends at the message that is refused, for both.
    let first = publisher.next_sequence();
    publisher.publish_batch((first..first + 10_000).map(message)).unwrap_err();
    let next = publisher.next_sequence();
    assert!(first < next && next < first + 10_000);
    assert_eq!((board.counters().through, newest(&mut board, next).1), (next - 1, next - KEYS));
    // A gap is never refused, and so the board has it.
    publisher.gap(next + 9).unwrap();
    assert_eq!(board.counters().through, next + 9);
    assert_eq!(receive_gap(&mut reader, next), next + 9);
}

/// Receives messages up to a gap from `first` on. Returns its last sequence.
fn receive_gap(reader: &mut Subscriber, first: u64) -> u64 {
    loop {
        match reader.recv_deadline(Instant::now() + PATIENCE).unwrap().expect("the gap") {
            Event::Message(_) => {}
            Event::Gap { from, to } if from == first => return to,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_gate_that_drops_its_reader_leaves_the_newest_on_the_board() {
    let dir = scratch();
    let mut publisher = open(dir.path(), Gate::new("risk").wait(Duration::from_millis(1)));
    let mut reader = subscriber(dir.path()).gate("risk").open().unwrap();
    for number in 1..=10_000 {
        publisher.publish(&message(number)).unwrap();
    }
    assert_eq!((publisher.gates()[0].state, publisher.gates()[0].dropped), (GateState::Dropped, 1));
    let mut board = board(dir.path());
    assert_eq!(board.counters().through, 10_000);
    for number in 9_996..=10_000 {
        assert_eq!(newest(&mut board, number), (number, number, 10_000 / KEYS));
    }
    assert!(matches!(rare(&mut reader), Event::Lapped(Lapped { missed, .. }) if missed > 0));
}

/// A reader that begins with the board is waited for from the place on at which it goes on, while it is still given the board.
#[test]
fn a_reader_that_begins_with_the_board_holds_the_publisher_up_from_there_on() {
    let dir = scratch();
    let mut publisher = open(dir.path(), Gate::new("risk").refuse());
    for number in 1..=10_000 {
        publisher.publish(&message(number)).unwrap();
    }
    let mut reader = subscriber(dir.path()).gate("risk").start(Start::Board).open().unwrap();
    fill(&mut publisher);
    assert_eq!(publisher.gates()[0].state, GateState::InForce, "before the first message was received");
    let published = publisher.next_sequence() - 1;
    assert!(published > 10_000);
    for number in 9_996..=10_000 {
        let Some(Event::Message(m)) = reader.try_recv().unwrap() else {
            panic!("the board has message {number}")
        };
        assert_eq!((m.sequence, m.conflated), (number, Some(0)));
    }
    assert_eq!(reader.try_recv().unwrap(), Some(Event::Live { sequence: 10_001 }));
    for number in 10_001..=published {
        let Some(Event::Message(m)) = reader.try_recv().unwrap() else { panic!("message {number} is due") };
        assert_eq!((m.sequence, m.conflated), (number, None));
    }
    assert_eq!(reader.try_recv().unwrap(), None);
    publisher.publish(&message(published + 1)).unwrap();
}

/// A conflating reader frees its publisher as soon as it has joined the board, by each call that receives.
#[test]
fn a_reader_with_a_gate_conflates_in_every_way_to_receive() {
    let dir = scratch();
    let mut publisher = open(dir.path(), Gate::new("risk").lag_percent(75).refuse());
    let mut reader = subscriber(dir.path()).gate("risk").conflate_behind(16 << 10).open().unwrap();
    let mut records = Records::with_room(4096);
    for round in 0..9 {
        fill(&mut publisher);
        assert_eq!(publisher.gates()[0].state, GateState::InForce, "round {round}");
        let published = publisher.next_sequence() - 1;
        // The newest message that was received, and the number of those that the board had in the place of others.
        let (mut last, mut conflated) = (0, 0);
        let mut take = |event: Event<'_>| match event {
            Event::Message(m) => {
                assert_eq!(m.payload, message(m.sequence));
                (last, conflated) = (m.sequence, conflated + u64::from(m.conflated.is_some()));
            }
            Event::Live { .. } => {}
            other => panic!("{other:?} in round {round}"),
        };
        for empty in 0.. {
            let received = match round % 3 {
                0 => reader.try_recv().unwrap().map(&mut take).map_or(0, |()| 1),
                1 => reader.recv_batch(usize::MAX, &mut take).unwrap(),
                _ => {
                    let received = reader.recv_records(64, &mut records).unwrap();
                    records.iter().for_each(|m| take(Event::Message(m)));
                    records.event().map(&mut take);
                    received
                }
            };
            if received == 0 && empty > 100 {
                break;
            }
        }
        assert_eq!(last, published, "round {round}");
        assert!(conflated > 0, "round {round}: nothing was conflated");
    }
    let status = publisher.gates()[0];
    assert_eq!((status.dropped, status.refused), (0, 0), "{status:?}");
}

#[test]
#[ignore = "plays a part in other tests"]
fn play() {
    let Some(role) = my_role() else { return skip("play", "started by other tests only") };
    assert_eq!(role, "publisher");
    let mut publisher = open(&my_dir(), Gate::new("risk").wait(LONG));
    loop {
        publisher.publish(&message(publisher.next_sequence())).unwrap();
    }
}

/// A publisher that is killed while it waits for a gate, or while it publishes, leaves both alike to its successor.
#[test]
fn a_successor_goes_on_with_both() {
    let dir = scratch();
    let kills = number("SHMCAST_KILLS", 20u64);
    open(dir.path(), Gate::new("risk").wait(LONG)).leave_open();
    let mut reader =
        subscriber(dir.path()).gate("risk").wait(Wait::Yield).start(Start::Oldest).open().unwrap();
    let mut board = board(dir.path());
    let mut due = 1;
    for kill in 0..kills {
        let process = Process::start(in_dir(&mut role!("publisher"), dir.path()));
        // The reader never keeps up for long: in every other round it stops, and the publisher waits.
        let until = due + 1000 + kill * 37 % 500;
        while due < until {
            match reader.recv_deadline(Instant::now() + PATIENCE).unwrap().expect("more is published") {
                Event::Message(m) => {
                    assert_eq!((m.sequence, m.payload), (due, &message(due)[..]), "kill {kill}");
                    due += 1;
                }
                Event::NewEpoch { .. } => {}
                other => panic!("{other:?} where message {due} was due"),
            }
        }
        if kill % 2 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        process.kill();
        let builder = || publisher(dir.path()).gate(Gate::new("risk").refuse());
        let mut successor = wait_for("the lock of the dead", || builder().open().ok());
        assert_eq!(successor.gates()[0].state, GateState::InForce, "kill {kill}");
        let next = successor.next_sequence();
        assert_eq!(board.counters().through, next - 1, "kill {kill}");
        for number in next - KEYS..next {
            assert_eq!((newest(&mut board, number).0, newest(&mut board, number).1), (number, number));
        }
        fill(&mut successor);
        let next = successor.next_sequence();
        assert_eq!(newest(&mut board, next).0, next - KEYS, "kill {kill}");
        successor.leave_open();
    }
    assert_eq!(board.counters().refused, 0);
}
