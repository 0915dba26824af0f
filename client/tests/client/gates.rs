//! Gates: readers that a publisher waits for, within a limit. Their readers miss nothing while the gate is in force, and nothing that a reader
//! does or writes holds a message up for longer than the gate says.
//!
//! `SHMCAST_KILLS` sets how many readers are killed, and how many are stopped, while the publisher publishes (20 by default).

use crate::support::{SMALL, publisher, rare, subscriber, successor};
use proptest::prelude::*;
use shmcast::{
    ChannelError, Directory, Event, Gate, GateError, GateState, GateStatus, Lapped, Mark, PublishError,
    Publisher, Records, Start, Subscriber, SubscriberBuilder, Wait,
};
use shmcast_layout::gate::Figures;
use shmcast_layout::layout::gate::{CHECK, POSITION, check};
use shmcast_testkit::process::{in_dir, my_dir, my_role};
use shmcast_testkit::{PATIENCE, Process, number, role, scratch, skip, wait_until};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Far longer than any honest reader takes on a busy machine.
const LONG: Duration = Duration::from_secs(100);

fn gated(dir: &Path, gate: Gate) -> Publisher {
    publisher(dir).capacity(SMALL).gate(gate).open().unwrap()
}

fn risk(dir: &Path) -> SubscriberBuilder {
    subscriber(dir).gate("risk")
}

fn only(publisher: &Publisher) -> GateStatus {
    let [status] = publisher.gates()[..] else { panic!("{:?}", publisher.gates()) };
    status
}

/// Publishes until a gate refuses. Returns how many messages went out.
fn fill(publisher: &mut Publisher, payload: &[u8]) -> u64 {
    for published in 0..1_000_000 {
        match publisher.try_publish(payload) {
            Ok(_) => {}
            Err(PublishError::Full { .. }) => return published,
            Err(other) => panic!("{other}"),
        }
    }
    panic!("nothing holds this publisher up");
}

/// A payload whose length and bytes follow from its sequence.
fn payload(sequence: u64, most: usize) -> Vec<u8> {
    let length = (sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % (most + 1);
    let length = if sequence.is_multiple_of(16) { length } else { length % 100 };
    vec![sequence as u8; length]
}

/// Receives all that is there. All of it must be the messages that are due.
fn expect_all(subscriber: &mut Subscriber, due: &mut u64, most: usize) {
    while let Some(event) = subscriber.try_recv().unwrap() {
        let Event::Message(m) = event else { panic!("{event:?} where message {due} was due") };
        assert_eq!((m.sequence, m.payload), (*due, &payload(*due, most)[..]));
        *due += 1;
    }
}

/// A program can wait for its gate before it publishes anything.
#[test]
fn gates_say_what_is_so_now() {
    let dir = scratch();
    let publisher = gated(dir.path(), Gate::new("risk").refuse());
    for _ in 0..3 {
        assert_eq!((only(&publisher).state, only(&publisher).pid), (GateState::Absent, None));
        let reader = risk(dir.path()).open().unwrap();
        assert_eq!(only(&publisher).state, GateState::InForce);
        assert_eq!(only(&publisher).pid, Some(u64::from(std::process::id())));
        drop(reader);
    }
}

/// Tools show no gate in force if nobody waits for it.
#[test]
fn a_gate_without_a_publisher_is_not_in_force() {
    let dir = scratch();
    let mut publisher = gated(dir.path(), Gate::new("risk"));
    let _reader = risk(dir.path()).open().unwrap();
    fill(&mut publisher, &[1; 100]);
    let state = || Directory::at(dir.path()).channel("t").unwrap().status().gates[0].state.clone();
    assert_eq!(state(), "in-force");
    drop(publisher);
    assert_eq!(state(), "joining");
}

/// Every size, with pads at the end of each lap, by every way to receive.
#[test]
fn a_gated_reader_misses_nothing_and_the_ring_is_used_up_to_the_lag() {
    let dir = scratch();
    let mut publisher = gated(dir.path(), Gate::new("risk").refuse());
    let mut reader = risk(dir.path()).start(Start::Oldest).open().unwrap();
    let most = publisher.max_message();
    let mut due = 1;
    let mut records = Records::with_room(4096);
    for round in 0..400 {
        let before = publisher.next_sequence();
        while publisher.try_publish(&payload(publisher.next_sequence(), most)).is_ok() {}
        assert!(publisher.next_sequence() > before, "a reader that has caught up holds nothing up");
        match round % 3 {
            0 => expect_all(&mut reader, &mut due, most),
            1 => {
                let take = |event: Event<'_>| {
                    assert!(matches!(event, Event::Message(m) if m.payload == payload(due, most)), "{due}");
                    due += 1;
                };
                reader.recv_batch(usize::MAX, take).unwrap();
            }
            _ => {
                while reader.recv_records(64, &mut records).unwrap() > 0 {
                    for message in records.iter() {
                        assert_eq!((message.sequence, message.payload), (due, &payload(due, most)[..]));
                        due += 1;
                    }
                }
            }
        }
        assert_eq!(due, publisher.next_sequence());
    }
    let status = only(&publisher);
    assert_eq!((status.state, status.dropped, status.refused), (GateState::InForce, 0, 0));
    assert!(status.turned_away >= 400 && status.impossible == 0, "{status:?}");
    assert_eq!((status.behind_bytes, status.behind_messages), (Some(0), Some(0)));
    assert_eq!(status.pid, Some(u64::from(std::process::id())));
}

#[test]
fn publish_waits_for_a_slow_reader_and_no_message_is_lost() {
    const COUNT: u64 = 200_000;
    let dir = scratch();
    let mut publisher = gated(dir.path(), Gate::new("risk").wait(LONG));
    let mut reader = risk(dir.path()).wait(Wait::Yield).open().unwrap();
    let reading = std::thread::spawn(move || {
        for due in 1..=COUNT {
            match reader.recv().unwrap() {
                Event::Message(m) => assert_eq!(m.sequence, due),
                other => panic!("{other:?} where message {due} was due"),
            }
            if due.is_multiple_of(100) {
                std::thread::yield_now();
            }
        }
    });
    for sequence in 1..=COUNT {
        publisher.publish(&sequence.to_le_bytes()).unwrap();
    }
    reading.join().unwrap();
    let status = only(&publisher);
    assert_eq!((status.dropped, status.refused, status.turned_away), (0, 0, 0));
    assert!(
        status.held > 0 && status.longest > Duration::ZERO && status.total >= status.longest,
        "{status:?}"
    );
    assert_eq!(status.waits.iter().sum::<u64>(), status.held);
    assert!(status.wait_quantile(1.0) <= Some(status.longest));
}

/// A drop costs one wait, and not one for each message.
#[test]
fn a_reader_that_hangs_costs_one_wait_and_is_waited_for_again_once_it_has_caught_up() {
    let dir = scratch();
    let wait = Duration::from_millis(20);
    let mut publisher = gated(dir.path(), Gate::new("risk").wait(wait));
    let mut reader = risk(dir.path()).open().unwrap();
    for _ in 0..10_000 {
        publisher.publish(&[7; 100]).unwrap();
    }
    let status = only(&publisher);
    assert_eq!((status.state, status.dropped, status.held), (GateState::Dropped, 1, 1));
    assert!(status.longest >= wait && status.total == status.longest, "{status:?}");
    assert!(matches!(rare(&mut reader), Event::Lapped(Lapped { missed, .. }) if missed > 0));
    while reader.try_recv().unwrap().is_some() {}
    // The next look finds that it has caught up.
    for _ in 0..200 {
        publisher.publish(&[7; 100]).unwrap();
        while reader.try_recv().unwrap().is_some() {}
    }
    assert_eq!(only(&publisher).state, GateState::InForce);
    for _ in 0..10_000 {
        publisher.publish(&[7; 100]).unwrap();
    }
    assert_eq!((only(&publisher).dropped, only(&publisher).held), (2, 2));
}

#[test]
fn a_gate_that_refuses_says_so_and_publishes_nothing() {
    let dir = scratch();
    let wait = Duration::from_millis(5);
    let mut publisher = gated(dir.path(), Gate::new("risk").wait(wait).refuse());
    let mut reader = risk(dir.path()).open().unwrap();
    let published = fill(&mut publisher, &[1; 100]);
    let next = publisher.next_sequence();
    let refused = publisher.publish(&[1; 100]).unwrap_err();
    let PublishError::Full { gate, behind } = refused else { panic!("{refused}") };
    assert_eq!((gate.as_str(), behind), ("risk", published * 128));
    assert!(refused.to_string().contains("gate risk holds the message up"), "{refused}");
    let refusals = [
        publisher.publish_with(&[1; 100], Mark::default()),
        publisher.publish_at(&[1; 100], Mark::default(), 7),
        publisher.try_publish(&[1; 100]),
        publisher.try_publish_with(&[1; 100], Mark::default()),
        publisher.try_publish_at(&[1; 100], Mark::default(), 7),
        publisher.publish_vectored(&[&[1; 50], &[2; 50]], Mark::default()),
        publisher.claim(100).unwrap().commit(100),
        publisher.publish_batch([[1; 100]; 3]).map(|sequences| sequences.start),
    ];
    for (number, refusal) in refusals.into_iter().enumerate() {
        assert_eq!(refusal, Err(refused), "call {number}");
    }
    assert_eq!(publisher.next_sequence(), next, "nothing was published");
    let status = only(&publisher);
    assert_eq!(
        (status.state, status.refused, status.turned_away, status.dropped),
        (GateState::InForce, 6, 4, 0)
    );
    let mut received = 0;
    while reader.try_recv().unwrap().is_some() {
        received += 1;
    }
    assert_eq!(received, published, "and nothing is missed");
    publisher.publish(&[1; 100]).unwrap();
}

#[test]
fn a_measure_never_waits_and_refuses_nothing() {
    let dir = scratch();
    let mut publisher = gated(dir.path(), Gate::new("risk").wait(Duration::ZERO));
    let reader = risk(dir.path()).open().unwrap();
    for _ in 0..10_000 {
        publisher.try_publish(&[7; 100]).unwrap();
        publisher.publish(&[7; 100]).unwrap();
    }
    let status = only(&publisher);
    assert_eq!((status.state, status.turned_away, status.refused), (GateState::Dropped, 0, 0));
    assert!(status.behind_messages == Some(20_000), "{status:?}");
    drop(reader);
}

/// Calls that never wait must not be refused for ever because a reader hangs.
#[test]
fn try_publish_lets_a_reader_go_that_hangs_for_longer_than_the_wait() {
    let dir = scratch();
    let mut publisher = gated(dir.path(), Gate::new("risk").wait(Duration::from_millis(5)));
    let _reader = risk(dir.path()).open().unwrap();
    fill(&mut publisher, &[1; 100]);
    wait_until("the gate to be dropped", || publisher.try_publish(&[1; 100]).is_ok());
    assert_eq!((only(&publisher).state, only(&publisher).dropped), (GateState::Dropped, 1));
}

/// Receives all that is there. Returns how many messages it was, and how many were announced as missing. Nothing may be lapped.
fn drain(reader: &mut Subscriber) -> (u64, u64) {
    let (mut received, mut missing) = (0, 0);
    while let Some(event) = reader.try_recv().unwrap() {
        match event {
            Event::Message(_) => received += 1,
            Event::Gap { from, to } => missing += to - from + 1,
            Event::NewEpoch { .. } | Event::NewSession { .. } | Event::End => {}
            other => panic!("{other:?}"),
        }
    }
    (received, missing)
}

/// A gate that drops never refuses a control record: the record waits once, and then goes out.
#[test]
fn control_records_drop_a_gate_after_one_wait() {
    let dir = scratch();
    let wait = Duration::from_millis(1);
    let mut publisher = gated(dir.path(), Gate::new("risk").wait(wait));
    let mut reader = risk(dir.path()).open().unwrap();
    fill(&mut publisher, &[]);
    let first = publisher.next_sequence();
    for gap in 0..5000 {
        publisher.gap(publisher.next_sequence() + 1).unwrap();
        publisher.session(*b"SESSION-01").unwrap();
        assert!(publisher.next_sequence() == first + 2 * (gap + 1));
    }
    let status = only(&publisher);
    assert_eq!((status.state, status.dropped, status.held), (GateState::Dropped, 1, 1), "one wait in all");
    publisher.close();
    assert!(matches!(rare(&mut reader), Event::Lapped(_)), "it was let go");
}

/// Publishes gaps and messages until the gate refuses both. Returns how many messages went out, and how many are announced as missing.
fn fill_with_gaps(publisher: &mut Publisher) -> (u64, u64) {
    let (mut published, mut missing) = (0, 0);
    for _ in 0..10_000 {
        published += u64::from(publisher.try_publish(&[1; 100]).is_ok());
        match publisher.gap(publisher.next_sequence()) {
            Ok(()) => missing += 1,
            Err(PublishError::Full { .. }) => return (published, missing),
            Err(other) => panic!("{other}"),
        }
    }
    panic!("nothing holds these gaps up");
}

/// An earlier mistake: a control record on a full channel dropped a gate that refuses, and the messages after it lapped the reader.
#[test]
fn no_control_record_drops_a_gate_that_refuses() {
    let dir = scratch();
    for percent in [50, 75] {
        let dir = dir.path().join(format!("{percent}"));
        let gate = || Gate::new("risk").lag_percent(percent).wait(Duration::from_millis(1)).refuse();
        let mut publisher = gated(&dir, gate());
        let mut reader = risk(&dir).start(Start::Oldest).open().unwrap();
        let mut published = fill(&mut publisher, &[1; 100]);
        let (more, missing) = fill_with_gaps(&mut publisher);
        published += more;
        assert!(percent == 75 || missing > 0, "control records have more room than messages");
        let next = publisher.next_sequence();
        assert!(matches!(publisher.session(*b"SESSION-01"), Err(PublishError::Full { .. })));
        assert_eq!(
            (publisher.next_sequence(), publisher.remote_session()),
            (next, None),
            "nothing was announced"
        );
        for _ in 0..10_000 {
            assert!(matches!(publisher.try_publish(&[1; 100]), Err(PublishError::Full { .. })));
        }
        assert_eq!((only(&publisher).state, only(&publisher).dropped), (GateState::InForce, 0));
        publisher.close();
        // A successor begins with a control record. It is not refused, and there is room for it.
        let mut second = gated(&dir, gate());
        assert_eq!(only(&second).state, GateState::InForce);
        published += fill(&mut second, &[1; 100]);
        assert!(matches!(second.gap(second.next_sequence()), Err(PublishError::Full { .. })));
        // There is no room for the end of the stream.
        second.close();
        assert_eq!(drain(&mut reader), (published, missing), "{percent}");
        gated(&dir, gate()).gap(next + published).unwrap();
    }
}

#[test]
fn a_gate_has_one_reader_and_is_free_when_that_reader_ends() {
    let dir = scratch();
    let publisher = gated(dir.path(), Gate::new("risk"));
    let first = risk(dir.path()).open().unwrap();
    assert_eq!(first.gate().unwrap().as_str(), "risk");
    let refused = risk(dir.path()).open().unwrap_err();
    let pid = u64::from(std::process::id());
    assert!(
        matches!(&refused, ChannelError::Gate { why: GateError::Taken { pid: found }, .. } if *found == pid)
    );
    assert!(refused.to_string().contains(&format!("pid {pid}")), "{refused}");
    assert_eq!(Directory::at(dir.path()).channel("t").unwrap().readers.len(), 1, "no page is left");
    drop(first);
    let _second = risk(dir.path()).open().unwrap();
    let unknown = subscriber(dir.path()).gate("ledger").open().unwrap_err();
    assert!(unknown.to_string().contains("no such gate (it has risk)"), "{unknown}");
    let bad = subscriber(dir.path()).gate("../lock").open().unwrap_err();
    assert!(matches!(bad, ChannelError::Gate { why: GateError::Name { .. }, .. }));
    drop(publisher);
}

#[test]
fn gates_that_do_not_fit_are_refused_and_nothing_is_made() {
    let dir = scratch();
    let why = |gates: &[Gate]| {
        let builder = gates
            .iter()
            .fold(publisher(dir.path()).capacity(SMALL), |builder, gate| builder.gate(gate.clone()));
        match builder.open() {
            Err(ChannelError::Gate { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    };
    let lag = why(&[Gate::new("risk").lag_bytes(1000)]);
    let GateError::Lag { lag: 1000, least, most } = lag else { panic!("{lag}") };
    assert!(lag.to_string().contains(&format!("give {least} to {most} B")), "{lag}");
    assert_eq!(why(&[Gate::new("risk"), Gate::new("risk")]), GateError::Twice);
    assert!(matches!(why(&[Gate::new(".risk")]), GateError::Name { .. }));
    assert!(!dir.path().join("t").exists(), "nothing is left");
    for lag in [least, most] {
        let mut publisher = gated(dir.path(), Gate::new("risk").lag_bytes(lag).refuse());
        let mut reader = risk(dir.path()).open().unwrap();
        for _ in 0..100 {
            let payload = vec![1; publisher.max_message()];
            assert!(
                fill(&mut publisher, &payload) > 0,
                "a lag of {lag} B leaves room for the largest message"
            );
            while let Some(event) = reader.try_recv().unwrap() {
                assert!(matches!(event, Event::Message(_)), "{event:?} with a lag of {lag} B");
            }
        }
    }
}

/// The guarantee of a gate does not end with its publisher.
#[test]
fn a_gate_stays_in_force_when_a_successor_takes_over() {
    let dir = scratch();
    let gate = || Gate::new("risk").lag_percent(75).refuse();
    let mut first = gated(dir.path(), gate());
    let mut reader = risk(dir.path()).start(Start::Oldest).open().unwrap();
    let mut published = fill(&mut first, &[1; 100]);
    first.leave_open();
    let mut second = publisher(dir.path()).gate(gate()).open().unwrap();
    assert_eq!(only(&second).state, GateState::InForce, "although it is behind by more than half of the lag");
    published += fill(&mut second, &[1; 100]);
    let mut received = 0;
    while let Some(event) = reader.try_recv().unwrap() {
        match event {
            Event::Message(_) => received += 1,
            Event::NewEpoch { epoch } => assert_eq!(epoch, 2),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received, published);
}

/// Each publisher publishes until its gate refuses, and its reader reads nothing meanwhile.
#[test]
fn a_gate_stays_in_force_when_several_publishers_die_in_a_row() {
    let dir = scratch();
    let open = || gated(dir.path(), Gate::new("risk").refuse());
    let mut first = open();
    let mut reader = risk(dir.path()).open().unwrap();
    let mut published = fill(&mut first, &[1; 100]);
    first.leave_open();
    for successor in 0..3 {
        let mut publisher = open();
        assert_eq!(only(&publisher).state, GateState::InForce, "successor {successor}");
        published += fill(&mut publisher, &[1; 100]);
        publisher.leave_open();
    }
    let mut received = 0;
    while let Some(event) = reader.try_recv().unwrap() {
        match event {
            Event::Message(_) => received += 1,
            Event::NewEpoch { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received, published);
}

#[test]
fn a_successor_without_the_gate_waits_for_nobody() {
    let dir = scratch();
    gated(dir.path(), Gate::new("risk").refuse()).leave_open();
    let reader = risk(dir.path()).open().unwrap();
    let mut second = publisher(dir.path()).open().unwrap();
    assert!(second.gates().is_empty() && !dir.path().join("t/gates/.figures").exists());
    for _ in 0..10_000 {
        second.publish(&[1; 100]).unwrap();
    }
    second.leave_open();
    drop(reader);
    publisher(dir.path()).open().unwrap().leave_open();
    assert!(!dir.path().join("t/gates").exists());
    let third = publisher(dir.path()).gate(Gate::new("ledger")).gate(Gate::new("audit")).open().unwrap();
    let names: Vec<String> = third.gates().iter().map(|gate| gate.name.to_string()).collect();
    assert_eq!(names, ["ledger", "audit"]);
}

/// An earlier mistake: a publisher without the gate removed the page that a reader held. The next publisher made another page, so it did
/// not wait for this reader, and a second reader could take the gate.
#[test]
fn a_publisher_without_the_gate_leaves_it_to_its_reader() {
    let dir = scratch();
    let gate = || Gate::new("risk").wait(Duration::from_millis(1)).refuse();
    gated(dir.path(), gate()).close();
    let mut reader = risk(dir.path()).start(Start::Oldest).open().unwrap();
    for other in [None, Some(Gate::new("ledger"))] {
        let without = other.into_iter().fold(publisher(dir.path()), |builder, other| builder.gate(other));
        without.open().unwrap().publish(b"x").unwrap();
        let mut real = gated(dir.path(), gate());
        assert_eq!(only(&real).state, GateState::InForce);
        let taken = risk(dir.path()).open().unwrap_err();
        assert!(matches!(&taken, ChannelError::Gate { why: GateError::Taken { .. }, .. }), "{taken}");
        let published = fill(&mut real, &[1; 100]);
        assert_eq!(drain(&mut reader), (published + 1, 0));
    }
}

/// The publisher of a new ring waits for a reader that still reads the old one. A gate that drops costs one wait.
#[test]
fn a_channel_that_is_made_anew_waits_for_the_readers_of_the_old_ring() {
    let dir = scratch();
    let wait = Duration::from_millis(1);
    let first = gated(dir.path(), Gate::new("risk").wait(wait));
    let old = risk(dir.path()).open().unwrap();
    first.leave_open();
    let anew = |gate: Gate| publisher(dir.path()).gate(gate.wait(wait)).anew().open().unwrap();
    let mut second = anew(Gate::new("risk"));
    for _ in 0..10_000 {
        second.publish(&[1; 100]).unwrap();
    }
    let status = only(&second);
    assert_eq!((status.state, status.held, status.dropped), (GateState::Dropped, 1, 1));
    drop(second);
    let mut third = anew(Gate::new("risk").refuse());
    let published = fill(&mut third, &[1; 100]);
    assert!(published > 0 && published * 128 <= SMALL / 2, "{published}");
    assert_eq!((only(&third).state, only(&third).behind_bytes), (GateState::InForce, None));
    drop(old);
    let mut new = risk(dir.path()).start(Start::Oldest).open().unwrap();
    assert_eq!(drain(&mut new), (published, 0));
    for _ in 0..200 {
        third.publish(&[1; 100]).unwrap();
        drain(&mut new);
    }
    assert_eq!(only(&third).state, GateState::InForce);
}

#[test]
fn a_channel_with_gates_is_removed_whole_and_a_foreign_file_among_them_is_not() {
    let dir = scratch();
    let directory = Directory::at(dir.path());
    gated(dir.path(), Gate::new("risk")).close();
    fs::write(dir.path().join("t/gates/notes.txt"), "mine").unwrap();
    let refused = directory.remove("t").unwrap_err();
    assert!(refused.to_string().contains("gates/notes.txt"), "{refused}");
    fs::remove_file(dir.path().join("t/gates/notes.txt")).unwrap();
    let removed = directory.remove("t").unwrap();
    assert!(removed.files.contains(&"gates/risk".to_owned()), "{:?}", removed.files);
    assert!(!dir.path().join("t").exists());
}

#[test]
fn modes_let_in_whom_the_channel_lets_in() {
    let dir = scratch();
    for (mode, page, figures) in [(0o700, 0o600, 0o600), (0o750, 0o660, 0o640), (0o755, 0o666, 0o644)] {
        let dir = dir.path().join(format!("{mode:o}"));
        let builder = publisher(&dir).capacity(SMALL).mode(mode).gate(Gate::new("risk"));
        let _publisher = builder.open().unwrap();
        let found = |name: &str| fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(
            [found("t/gates"), found("t/gates/risk"), found("t/gates/.figures")],
            [mode, page, figures]
        );
    }
}

/// Writes a position with the right check, as a program that means harm would.
fn claim(page: &File, position: u64, segment: [u64; 2]) {
    page.write_all_at(&position.to_le_bytes(), POSITION as u64 * 8).unwrap();
    page.write_all_at(&check(position, segment).to_le_bytes(), CHECK as u64 * 8).unwrap();
}

/// Whatever a reader writes, each message waits once at most, and goes out.
#[test]
fn any_word_on_the_page_costs_at_most_the_wait() {
    let dir = scratch();
    let wait = Duration::from_micros(200);
    let mut publisher = gated(dir.path(), Gate::new("risk").wait(wait));
    let _reader = risk(dir.path()).open().unwrap();
    let page = File::options().write(true).open(dir.path().join("t/gates/risk")).unwrap();
    let segment = publisher.header().uuid;
    let mut messages = 0;
    let words = [0, 1, 63, 64, 1 << 16, 1 << 40, 1 << 62, u64::MAX / 2, u64::MAX - 64, u64::MAX];
    for word in words.into_iter().cycle().take(200) {
        claim(&page, word, segment);
        for _ in 0..100 {
            publisher.publish(&[7; 100]).unwrap();
            messages += 1;
        }
        // The reader may also pretend to be where it is not, again and again.
        let tail = messages * 128;
        claim(&page, tail, segment);
        publisher.publish(&[7; 100]).unwrap();
        messages += 1;
    }
    let status = only(&publisher);
    assert!(status.held <= messages && status.dropped <= status.held, "{status:?}");
    assert!(status.impossible > 0, "told: {status:?}");
    page.set_len(7).unwrap();
    for _ in 0..10_000 {
        publisher.publish(&[7; 100]).unwrap();
    }
    page.set_len(1 << 20).unwrap();
    for _ in 0..10_000 {
        publisher.publish(&[7; 100]).unwrap();
    }
    assert!(only(&publisher).held <= messages + 20_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Arbitrary bytes in the page, and arbitrary publishing meanwhile.
    #[test]
    fn any_bytes_on_the_page(
        pages in prop::collection::vec((any::<[u64; 4]>(), any::<bool>(), 0..200u64), 1..8), refuses: bool,
    ) {
        let dir = scratch();
        let gate = Gate::new("risk").wait(Duration::from_micros(10));
        let mut publisher = gated(dir.path(), if refuses { gate.refuse() } else { gate });
        let _reader = risk(dir.path()).open().unwrap();
        let page = File::options().write(true).open(dir.path().join("t/gates/risk")).unwrap();
        let segment = publisher.header().uuid;
        for (words, is_signed, messages) in pages {
            page.write_all_at(words.map(u64::to_le_bytes).as_flattened(), POSITION as u64 * 8).unwrap();
            if is_signed {
                claim(&page, words[0] % (1 << (words[1] % 64)), segment);
            }
            for _ in 0..messages {
                match publisher.publish(&[7; 200]) {
                    Ok(_) => {}
                    Err(PublishError::Full { .. }) => prop_assert!(refuses),
                    Err(other) => panic!("{other}"),
                }
            }
        }
        let _ = only(&publisher);
    }
}

/// A file that is no page is replaced by the next publisher. A reader of it is told.
#[test]
fn a_page_that_was_overwritten_is_made_anew() {
    let dir = scratch();
    gated(dir.path(), Gate::new("risk")).leave_open();
    fs::write(dir.path().join("t/gates/risk"), [0xff; 100]).unwrap();
    let refused = risk(dir.path()).open().unwrap_err();
    assert!(matches!(refused, ChannelError::Gate { why: GateError::Damaged, .. }), "{refused}");
    let _publisher = publisher(dir.path()).gate(Gate::new("risk")).open().unwrap();
    risk(dir.path()).open().unwrap();
}

#[test]
fn the_publishers_figures_are_there_for_tools() {
    let dir = scratch();
    let mut publisher = gated(dir.path(), Gate::new("risk").refuse());
    let _reader = risk(dir.path()).open().unwrap();
    fill(&mut publisher, &[1; 100]);
    let figures = Figures::read(&File::open(dir.path().join("t/gates/.figures")).unwrap()).unwrap().unwrap();
    assert_eq!((figures.pid, figures.segment), (u64::from(std::process::id()), publisher.header().uuid));
    let gate = &figures.gates[0];
    assert_eq!((&gate.name[..], gate.lag_bytes, gate.wait_ns), ("risk", SMALL / 2, 200_000));
    assert_eq!((gate.turned_away, gate.state, gate.pid), (1, 2, u64::from(std::process::id())));
}

/// Plays the roles of other processes, which the tests here start.
#[test]
#[ignore = "plays a part in other tests"]
fn play() {
    let Some(role) = my_role() else { return skip("play", "started by other tests only") };
    let dir = my_dir();
    let (name, number) = role.split_once(' ').unwrap_or((&role, "0"));
    let ready = |what: &str| fs::write(dir.join(format!("{what}-{number}")), "").unwrap();
    match name {
        "reader" => {
            let mut reader = risk(&dir).wait(Wait::Yield).open().unwrap();
            ready("ready");
            while reader.recv().is_ok() {}
        }
        "publisher" => {
            let mut publisher = publisher(&dir).gate(Gate::new("risk").wait(LONG)).open().unwrap();
            loop {
                publisher.publish(&[1; 100]).unwrap();
            }
        }
        other => panic!("no such role: {other}"),
    }
}

/// Publishes until the reader of the gate is in force.
fn until_in_force(publisher: &mut Publisher) {
    wait_until("the gate to be in force", || {
        for _ in 0..50 {
            publisher.publish(&[7; 100]).unwrap();
        }
        only(publisher).state == GateState::InForce
    });
}

/// The kernel frees a gate whose reader was killed. A reader that was stopped costs one wait.
#[test]
fn killed_and_stopped_readers_free_their_publisher() {
    let dir = scratch();
    let wait = Duration::from_millis(1);
    let kills = number("SHMCAST_KILLS", 20u64);
    let mut publisher = gated(dir.path(), Gate::new("risk").wait(wait));
    for turn in 0..2 * kills {
        let start = || Process::start(in_dir(&mut role!(&format!("reader {turn}")), dir.path()));
        let reader = start();
        wait_until("a reader", || dir.path().join(format!("ready-{turn}")).exists());
        until_in_force(&mut publisher);
        let before = only(&publisher);
        let is_stopped = turn % 2 == 1;
        if is_stopped {
            reader.pause();
        } else {
            // The kernel may release the lock some time after the death, and the publisher publishes all the while.
            nix::sys::signal::kill(reader.pid(), nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        for _ in 0..3000 {
            publisher.publish(&[7; 100]).unwrap();
        }
        let after = only(&publisher);
        assert!(
            after.held - before.held <= 1 && after.dropped - before.dropped <= 1,
            "{before:?}\n{after:?}"
        );
        // A killed reader may be dropped first: it dies some time after the signal.
        assert!(!is_stopped || after.state == GateState::Dropped, "turn {turn}: {after:?}");
        drop(reader);
        wait_until("the gate to be free", || {
            publisher.publish(&[7; 3000]).unwrap();
            only(&publisher).state == GateState::Absent
        });
    }
}

/// A publisher dies while a gate holds it up. The gate goes on with the next one.
#[test]
fn a_publisher_that_is_killed_while_it_waits_leaves_all_as_it_was() {
    let dir = scratch();
    gated(dir.path(), Gate::new("risk").wait(LONG)).leave_open();
    let mut reader = risk(dir.path()).start(Start::Oldest).open().unwrap();
    let figures = || Figures::read(&File::open(dir.path().join("t/gates/.figures")).unwrap()).unwrap();
    let mut received = 0;
    for _ in 0..5 {
        let first = Process::start(in_dir(&mut role!("publisher"), dir.path()));
        let pid = u64::from(first.id());
        // Once the reader is in force, the publisher waits for it, since nobody receives here.
        wait_until("a publisher at the bound", || {
            figures().is_some_and(|figures| {
                figures.pid == pid && figures.gates[0].state == 2 && figures.gates[0].looks > 1000
            })
        });
        first.kill();
        while let Some(event) = reader.try_recv().unwrap() {
            match event {
                Event::Message(m) => {
                    received += 1;
                    assert_eq!(m.sequence, received);
                }
                Event::NewEpoch { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(received > 0);
    }
    let mut last = successor(dir.path());
    last.publish(b"and on").unwrap();
}

/// A hundred readers, and one of them is gated and far too slow.
#[test]
fn a_hundred_readers_and_one_slow_one_with_a_gate() {
    const COUNT: u64 = 100_000;
    let dir = scratch();
    let mut publisher =
        publisher(dir.path()).capacity(1 << 20).gate(Gate::new("risk").wait(LONG)).open().unwrap();
    let mut others: Vec<Subscriber> = (0..99).map(|_| subscriber(dir.path()).open().unwrap()).collect();
    let mut slow = risk(dir.path()).wait(Wait::Yield).open().unwrap();
    let reading = std::thread::spawn(move || {
        for due in 1..=COUNT {
            assert!(matches!(slow.recv().unwrap(), Event::Message(m) if m.sequence == due), "{due}");
            (0..200).for_each(|_| std::hint::spin_loop());
        }
    });
    // Each of them gets or misses each message.
    let beside = std::thread::spawn(move || {
        let (deadline, mut seen) = (Instant::now() + PATIENCE, 0);
        while !others.is_empty() {
            assert!(Instant::now() < deadline, "waited {PATIENCE:?} for the end of {} readers", others.len());
            others.retain_mut(|other| {
                loop {
                    match other.try_recv().unwrap() {
                        Some(Event::Message(_)) => seen += 1,
                        Some(Event::Lapped(lapped)) => seen += lapped.missed,
                        Some(Event::End) => return false,
                        Some(other) => panic!("{other:?}"),
                        None => return true,
                    }
                }
            });
        }
        seen
    });
    for sequence in 1..=COUNT {
        publisher.publish(&sequence.to_le_bytes()).unwrap();
    }
    reading.join().unwrap();
    assert_eq!(only(&publisher).dropped, 0);
    publisher.close();
    assert_eq!(beside.join().unwrap(), 99 * COUNT);
}
