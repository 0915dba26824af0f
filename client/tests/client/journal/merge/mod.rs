//! Journal and ring read as one stream, against a list of what was published.

mod scene;
mod ways;

use proptest::prelude::*;
use scene::{CAPACITY, Scene, Seen};
use shmcast::journal::Cause;
use shmcast::{Event, Gate, GateState, History, Records, RecvError, Start, StreamId, Subscriber};
use shmcast_testkit::PATIENCE;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

/// Messages that surely lap every reader.
const LAP: u64 = 2 * CAPACITY / 64;

#[test]
fn a_lapped_reader_goes_on_in_the_journal_and_is_live_again() {
    let mut scene = Scene::new();
    let mut subscriber = scene.subscriber(Start::Oldest);
    let mut seen = Seen { due: 1, ..Seen::default() };
    for round in 0..20 {
        scene.publish(LAP + round);
        scene.record();
        seen.read(&mut subscriber, usize::MAX, round as u8);
        assert_eq!((seen.due, seen.lives), (scene.next(), round + 1));
        scene.publish(3);
        seen.read(&mut subscriber, usize::MAX, round as u8);
        assert_eq!(seen.due, scene.next());
        scene.record();
    }
    assert_eq!((seen.lost, seen.lapped), (0, 0));
}

/// Once, the reader's last place stayed on the gate's page. A publisher that refuses then refused all messages for the whole replay, and so did
/// its successor.
#[test]
fn the_reader_of_a_gate_that_replays_the_journal_holds_nobody_up() {
    let mut scene = Scene::with_gates(&[Gate::new("risk").wait(Duration::ZERO).refuse()]);
    let mut reader = scene.builder(Start::Latest).gate("risk").open().unwrap();
    let mut seen = Seen { due: 1, ..Seen::default() };
    let mut lives = 0;
    for turn in 0..3 {
        // The reader keeps up, and its gate is in force.
        for _ in 0..LAP / 8 {
            scene.publish(8);
            seen.read(&mut reader, usize::MAX, turn);
        }
        assert_eq!((scene.gate(), seen.due, seen.lives), (GateState::InForce, scene.next(), lives));
        // It goes back to the first message, which only the journal has.
        scene.record();
        reader.seek(1).unwrap();
        seen = Seen { due: 1, ..Seen::default() };
        seen.read(&mut reader, 7, turn);
        scene.publish(LAP);
        if turn == 1 {
            scene.take_over();
        }
        scene.publish(LAP);
        assert_eq!(scene.gate(), GateState::Joining, "turn {turn}");
        scene.record();
        seen.read(&mut reader, usize::MAX, turn);
        lives = 1;
        assert_eq!(
            (seen.due, seen.lost, seen.lapped, seen.lives),
            (scene.next(), 0, 0, lives),
            "turn {turn}"
        );
    }
}

#[test]
fn a_start_before_the_ring_is_one_in_the_journal() {
    let mut scene = Scene::new();
    for _ in 0..5 {
        scene.publish(LAP / 2);
        scene.record();
    }
    scene.roll(true);
    for (start, first) in [(Start::Oldest, 1), (Start::Sequence(77), 77), (Start::Sequence(1), 1)] {
        let mut subscriber = scene.subscriber(start);
        assert_eq!(subscriber.position(), 0, "{start:?}: no place in the ring");
        let mut seen = Seen { due: first, ..Seen::default() };
        seen.read(&mut subscriber, usize::MAX, 0);
        assert_eq!((seen.due, seen.lapped, seen.lives), (scene.next(), 0, 1), "{start:?}");
        // And back, by a seek.
        subscriber.seek(first).unwrap();
        let mut seen = Seen { due: first, ..Seen::default() };
        seen.read(&mut subscriber, usize::MAX, 1);
        assert_eq!((seen.due, seen.lapped, seen.lives), (scene.next(), 0, 1), "{start:?}");
    }
    let latest = scene.subscriber(Start::Latest);
    assert_eq!(latest.next_sequence(), scene.next());
}

#[test]
fn without_a_journal_or_with_that_of_another_stream_a_lap_is_a_lap() {
    let mut scene = Scene::new();
    let never = Subscriber::builder("t").dir(scene.channels()).start(Start::Oldest).history(History::Never);
    let mut never = never.open().unwrap();
    scene.book.stream = StreamId::from_words([1, 2]);
    scene.roll(false);
    std::fs::remove_file(
        std::fs::read_dir(&scene.book.dir).unwrap().map(|e| e.unwrap().path()).min().unwrap(),
    )
    .unwrap();
    let mut other = scene.subscriber(Start::Oldest);
    scene.publish(LAP);
    scene.record();
    for subscriber in [&mut never, &mut other] {
        let mut seen = Seen { due: 1, ..Seen::default() };
        seen.read(subscriber, usize::MAX, 0);
        assert_eq!((seen.due, seen.lives), (scene.next(), 0));
        assert!(seen.lapped > 0);
    }
}

#[test]
fn what_the_journal_lost_is_told_with_its_cause_and_what_retention_took_as_a_lap() {
    let mut scene = Scene::new();
    let mut subscriber = scene.subscriber(Start::Oldest);
    scene.publish(100);
    scene.record();
    scene.publish(LAP);
    scene.lose();
    scene.publish(LAP);
    scene.record();
    let mut causes = Vec::new();
    let mut seen = Seen { due: 1, ..Seen::default() };
    while let Some(event) = subscriber.try_recv().unwrap() {
        if let Event::Lost { from, to, cause } = event {
            causes.push((from, to, cause));
        }
        seen.take(&event);
    }
    assert_eq!(causes, [(101, 100 + LAP, Cause::Overrun)]);
    assert_eq!((seen.due, seen.lapped), (scene.next(), 0));
    // Retention takes the files that this reader needs.
    scene.roll(true);
    let kept = scene.next();
    scene.publish(2 * LAP);
    scene.record();
    scene.retention();
    subscriber.seek(kept - 50).unwrap_err();
    let mut late = scene.subscriber(Start::Sequence(10));
    let mut seen = Seen { due: 10, ..Seen::default() };
    seen.read(&mut late, usize::MAX, 0);
    assert_eq!((seen.due, seen.lapped), (scene.next(), kept - 10));
}

/// A reader is within a file when retention takes this one and the next.
#[test]
fn retention_that_overtakes_a_reader_is_a_lap_and_no_damage() {
    let mut scene = Scene::new();
    let mut begins = Vec::new();
    for _ in 0..4 {
        begins.push(scene.next());
        scene.publish(LAP);
        scene.record();
        scene.roll(true);
    }
    let mut within = scene.subscriber(Start::Sequence(10));
    let mut seen = Seen { due: 10, ..Seen::default() };
    seen.read(&mut within, 5, 0);
    scene.retention();
    scene.retention();
    seen.read(&mut within, usize::MAX, 0);
    assert_eq!((seen.due, seen.lost, seen.lapped), (scene.next(), 0, begins[2] - begins[1]));
}

/// A directory may hold another stream's journal later: its messages are not this channel's, whatever their sequences are.
#[test]
fn a_reader_in_the_past_takes_no_message_of_another_stream() {
    let mut scene = Scene::new();
    scene.publish(LAP);
    scene.record();
    let mut subscriber = scene.subscriber(Start::Oldest);
    let mut seen = Seen { due: 1, ..Seen::default() };
    seen.read(&mut subscriber, 10, 0);
    assert_eq!((seen.due, seen.lapped), (11, 0));
    let recorded = scene.next();
    scene.book.stream = StreamId::from_words([1, 2]);
    scene.roll(true);
    scene.publish(LAP);
    scene.record();
    scene.retention();
    seen.read(&mut subscriber, usize::MAX, 0);
    // The reader hands out the rest of the file that it has open. Of later messages it gets those that the ring still has.
    assert_eq!(seen.due, scene.next());
    assert_eq!((seen.messages + seen.lapped, seen.lost), (scene.next() - 1, 0));
    assert!(seen.messages > recorded - 1 && seen.lapped > 0, "{seen:?}");
    let refused = scene.subscriber(Start::Oldest);
    assert!(refused.next_sequence() > recorded, "the ring's oldest");
}

/// A directory that the user names is read, or is an error: a start in the past never begins in the ring in silence.
#[test]
fn a_directory_that_cannot_be_read_is_an_error() {
    let mut scene = Scene::new();
    scene.publish(LAP);
    let builder = || Subscriber::builder("t").dir(scene.channels());
    for start in [Start::Latest, Start::Oldest, Start::Key, Start::Sequence(1)] {
        let nowhere = History::Dir(scene.channels().join("nowhere"));
        let refused = builder().start(start).history(nowhere).open().unwrap_err();
        assert!(refused.to_string().contains("nowhere"), "{refused}");
    }
    // A recorder may still begin in one that is empty.
    let empty = History::Dir(scene.channels());
    builder().start(Start::Oldest).history(empty).open().unwrap();
}

/// The record of an epoch stands between two messages, and the reader may go over to the ring right there.
#[test]
fn an_epoch_is_told_before_its_messages_wherever_the_reader_goes_over() {
    // The ring moves on by chunks, and a reader goes over between two frames. One of these places is that of the epoch.
    let places = [2080, 2120, 2160]
        .into_iter()
        .flat_map(|before| (100..900).step_by(20).map(move |after| (before, after)));
    let mut seams = 0;
    for (before, after) in places {
        let mut scene = Scene::new();
        let mut subscriber = scene.subscriber(Start::Oldest);
        scene.publish(before);
        scene.take_over();
        let (first, epoch) = (scene.next(), 2);
        scene.publish(after);
        scene.record();
        let mut seen = Seen { due: 1, ..Seen::default() };
        // A reader that was overtaken may find nothing at first.
        while seen.due < scene.next() {
            let event = subscriber.recv().unwrap();
            seen.take(&event);
            seams += u32::from(event == Event::Live { sequence: first });
            if matches!(event, Event::Message(m) if m.sequence >= first) {
                assert_eq!(seen.epochs, [epoch], "after {after} messages, at {}", seen.due);
            }
        }
    }
    assert!(seams > 0, "no reader went over right there");
}

/// A recorder that is behind but alive is waited for; one that has died is not.
#[test]
fn the_recorder_alone_says_what_is_lost_while_it_lives() {
    let mut scene = Scene::new();
    scene.recorder_lives(true);
    let mut subscriber = scene.subscriber(Start::Oldest);
    scene.publish(LAP);
    let start = Instant::now();
    assert_eq!(subscriber.recv(), Err(RecvError::Stalled { sequence: 1 }));
    assert!(start.elapsed() >= Duration::from_secs(2));
    let again = subscriber.recv_deadline(Instant::now() + Duration::from_millis(20));
    assert!(matches!(again, Ok(None) | Err(RecvError::Stalled { .. })), "{again:?}");
    scene.record();
    let mut seen = Seen { due: 1, ..Seen::default() };
    seen.finish(&mut subscriber, scene.next());
    assert_eq!((seen.lapped, seen.lives), (0, 1));
    // It dies before it has written everything.
    scene.publish(LAP);
    scene.recorder_lives(false);
    seen.finish(&mut subscriber, scene.next());
    assert!(seen.lapped > 0);
}

#[test]
fn a_start_by_time_is_in_the_journal_or_in_the_ring() {
    let mut scene = Scene::new();
    scene.publish(LAP);
    scene.record();
    std::thread::sleep(Duration::from_millis(30));
    let time = std::time::SystemTime::now();
    std::thread::sleep(Duration::from_millis(30));
    let first = scene.next();
    scene.publish(10);
    let subscriber = scene.subscriber(Start::Time(time));
    assert_eq!(subscriber.next_sequence(), first, "in the ring");
    // The book's clock began in 2025: its messages are a millisecond apart.
    let wall = Duration::from_nanos(crate::journal::book::wall(50));
    let mut subscriber = scene.subscriber(Start::Time(std::time::UNIX_EPOCH + wall));
    let mut seen = Seen { due: 50, ..Seen::default() };
    seen.read(&mut subscriber, usize::MAX, 0);
    assert_eq!((seen.due, seen.lives), (scene.next(), 1), "in the journal");
}

#[test]
fn tags_are_chosen_in_the_past_as_in_the_ring() {
    let mut scene = Scene::new();
    let builder =
        Subscriber::builder("t").dir(scene.channels()).start(Start::Oldest).tags([7, 9, 2000, 2060]);
    let mut subscriber = builder.history(History::Dir(scene.book.dir.clone())).open().unwrap();
    scene.publish(LAP);
    scene.record();
    scene.publish(20);
    let mut got = Vec::new();
    subscriber
        .recv_batch(usize::MAX, |event| {
            if let Event::Message(m) = event {
                got.push(m.sequence);
            }
        })
        .unwrap();
    assert_eq!(got, [7, 9, 2000, 2060]);
}

#[test]
fn messages_of_the_journal_that_nobody_asked_for_need_no_room() {
    let mut scene = Scene::new();
    // Message 61 has 8 bytes, and no earlier one is as short.
    let mut subscriber = scene.builder(Start::Oldest).tags([61]).open().unwrap();
    scene.publish(LAP);
    scene.record();
    let mut buffer = [0; 8];
    let event = subscriber.try_recv_into(&mut buffer).unwrap();
    assert!(matches!(event, Some(Event::Message(m)) if m.sequence == 61));
}

#[test]
fn a_call_leaves_out_a_limited_number_of_messages_of_the_journal_and_keeps_its_deadline() {
    let mut scene = Scene::new();
    let mut subscriber = scene.builder(Start::Oldest).tags([]).open().unwrap();
    scene.publish(10 * LAP);
    scene.record();
    assert_eq!(subscriber.recv_deadline(Instant::now()).unwrap(), None);
    let next = subscriber.next_sequence();
    assert!(next > 1 && next < 5 * LAP, "{next}");
    let event = subscriber.recv_deadline(Instant::now() + PATIENCE).unwrap();
    assert!(matches!(event, Some(Event::Live { .. })), "{event:?}");
}

#[test]
fn a_batch_ends_where_the_journal_goes_on_with_another_ring() {
    let mut scene = Scene::new();
    let mut readers = [scene.subscriber(Start::Oldest), scene.subscriber(Start::Oldest)];
    scene.publish(LAP);
    scene.record();
    let border = scene.next();
    scene.book.ring = [7, 7];
    scene.roll(true);
    scene.publish(LAP);
    scene.record();
    let mut seen = Seen { due: 1, ..Seen::default() };
    let [reader, by_records] = &mut readers;
    for (due, lives) in [(border, 0), (0, 1), (scene.next(), 1)] {
        seen.read(reader, usize::MAX, 1);
        assert!(seen.due == due || due == 0 && seen.due < scene.next(), "{seen:?} {due}");
        assert_eq!(seen.lives, lives, "{due}");
    }
    let mut records = Records::with_room(1 << 20);
    by_records.recv_records(usize::MAX, &mut records).unwrap();
    let last = records.iter().last().unwrap().sequence;
    assert_eq!((records.first_sequence(), last), (1, border - 1));
    assert!(records.clock().is_some());
}

/// An earlier mistake: after a panic in the closure of `recv_batch`, the journal kept back the messages of each other ring for ever.
#[test]
fn a_panic_in_a_batch_keeps_no_message_of_the_next_ring_back() {
    let mut scene = Scene::new();
    let mut reader = scene.subscriber(Start::Oldest);
    scene.publish(LAP);
    scene.record();
    scene.book.ring = [7, 7];
    scene.roll(true);
    scene.publish(LAP);
    scene.record();
    let panics = |event: Event<'_>| assert!(!matches!(event, Event::Message(_)), "planned");
    let batch = AssertUnwindSafe(|| reader.recv_batch(usize::MAX, panics));
    assert!(catch_unwind(batch).is_err());
    let mut due = reader.next_sequence();
    while due < scene.next() {
        match reader.recv_deadline(Instant::now() + PATIENCE).unwrap() {
            Some(Event::Message(message)) => {
                assert_eq!(message.sequence, due);
                due += 1;
            }
            Some(_) => {}
            None => panic!("message {due} does not come"),
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Publish(u64),
    Record,
    Lose,
    Roll(bool),
    TakeOver,
    Retention,
    Recorder(bool),
    Read(usize, usize, u8),
    Seek(usize, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..LAP * 3 / 2).prop_map(Step::Publish),
        4 => Just(Step::Record),
        1 => Just(Step::Lose),
        1 => any::<bool>().prop_map(Step::Roll),
        1 => Just(Step::TakeOver),
        1 => Just(Step::Retention),
        1 => any::<bool>().prop_map(Step::Recorder),
        8 => (0..3usize, 1..3000usize, any::<u8>()).prop_map(|(who, most, manner)| Step::Read(who, most, manner)),
        1 => (0..3usize, 1..3000u64).prop_map(|(who, back)| Step::Seek(who, back)),
    ];
    prop::collection::vec(step, 1..60)
}

fn play(scene: &mut Scene, steps: &[Step]) {
    let starts = [Start::Oldest, Start::Sequence(1), Start::Latest];
    let mut readers: Vec<(Subscriber, Seen)> =
        starts.map(|start| (scene.subscriber(start), Seen { due: 1, ..Seen::default() })).into();
    for step in steps {
        match *step {
            Step::Publish(messages) => scene.publish(messages),
            Step::Record => scene.record(),
            Step::Lose => scene.lose(),
            Step::Roll(is_sealed) => scene.roll(is_sealed),
            Step::TakeOver => scene.take_over(),
            Step::Retention => scene.retention(),
            Step::Recorder(lives) => scene.recorder_lives(lives),
            Step::Read(who, most, manner) => {
                let (subscriber, seen) = &mut readers[who];
                seen.read(subscriber, most, manner);
            }
            Step::Seek(who, back) => {
                let (subscriber, seen) = &mut readers[who];
                let to = seen.due.saturating_sub(back).max(1);
                if subscriber.seek(to).is_ok() {
                    // Messages that were counted are counted again.
                    *seen = Seen { due: to, messages: to - 1, ..Seen::default() };
                }
            }
        }
    }
    scene.recorder_lives(false);
    let next = scene.next();
    for (subscriber, seen) in &mut readers {
        seen.finish(subscriber, next);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_sequence_comes_once_whatever_happens(steps in steps()) {
        play(&mut Scene::new(), &steps);
    }
}

/// 50 readers that are lapped at once, while a thread records and the publisher goes on.
#[test]
fn fifty_lapped_readers_at_once() {
    let mut scene = Scene::new();
    scene.recorder_lives(true);
    let channels = scene.channels();
    let journal: &Path = &scene.book.dir.clone();
    let readers: Vec<Subscriber> = (0..50).map(|_| scene.subscriber(Start::Oldest)).collect();
    scene.publish(LAP);
    scene.record();
    let total = 10 * LAP;
    std::thread::scope(|threads| {
        let readers: Vec<_> = readers
            .into_iter()
            .map(|mut subscriber| {
                threads.spawn(move || {
                    let mut seen = Seen { due: 1, ..Seen::default() };
                    while seen.due <= total {
                        let event = subscriber.recv_deadline(Instant::now() + PATIENCE).unwrap();
                        seen.take(&event.expect("messages go on"));
                    }
                    seen
                })
            })
            .collect();
        while scene.next() <= total {
            // No faster than the recorder, which is behind by less than a ring.
            scene.publish((total + 1 - scene.next()).min(200));
            scene.record();
        }
        for reader in readers {
            let seen = reader.join().unwrap();
            assert_eq!((seen.messages, seen.lost, seen.lapped), (total, 0, 0));
            assert!(seen.lives > 0);
        }
    });
    assert!(channels.is_dir() && journal.is_dir());
}
