//! Publishers that take over while nobody records: the journal says where each one began.

use super::recorder::{Host, ending, payload, until};
use shmcast::journal::format::{ControlRecord, JournalControl};
use shmcast::journal::{Entry, Journal, create};
use shmcast::{Event, Publisher, RecvError};
use shmcast_journal::Recorder;
use shmcast_journal::core::SyncPolicy;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

/// Offset of the state in a segment.
const STATE: u64 = 32 * 8;
/// The state of a ring that no publisher has opened yet: recovering, of epoch 0.
const NEW: u64 = 2;

/// A publisher takes over while nobody records. The journal says so before its first message, as the ring does.
#[test]
fn a_publisher_that_took_over_meanwhile_is_told_before_its_first_message() {
    let host = Host::new();
    let publish = |last: u64| {
        let mut publisher = host.publisher("t", 1 << 20);
        while publisher.next_sequence() <= last {
            publisher.publish(&payload(publisher.next_sequence())).unwrap();
        }
    };
    for turn in 1..=3 {
        publish(turn * 10);
        let recorder = host.record("t", SyncPolicy::Each);
        until(&recorder, |progress| progress.durable == turn * 10);
        recorder.stop().unwrap();
    }
    let mut reader = Journal::open(host.dir()).unwrap().read_from(1).unwrap();
    let mut told = Vec::new();
    while let Some(entry) = reader.next().unwrap() {
        match entry {
            Entry::Control {
                sequence,
                control: JournalControl::Ring(ControlRecord::Epoch { epoch }),
                ..
            } => {
                told.push((sequence, epoch));
            }
            Entry::Lost(loss) => panic!("{loss:?}"),
            _ => {}
        }
    }
    assert!(told.ends_with(&[(11, 2), (21, 3)]), "{told:?}");
}

/// A recorder that comes late finds messages of several publishers in the ring. Its journal once named the last one as that of all of them.
#[test]
fn a_new_journal_says_where_each_publisher_in_the_ring_began() {
    let host = Host::new();
    for turn in 1..=3u64 {
        let mut publisher = host.publisher("t", 1 << 20);
        for sequence in turn * 10 - 9..=turn * 10 {
            publisher.publish(&payload(sequence)).unwrap();
        }
    }
    let recorder = host.record("t", SyncPolicy::Each);
    until(&recorder, |progress| progress.durable == 30);
    recorder.stop().unwrap();
    let mut reader = Journal::open(host.dir()).unwrap().read_from(1).unwrap();
    let mut told = Vec::new();
    while let Some(entry) = reader.next().unwrap() {
        if let Entry::Control { sequence, control, .. } = entry {
            match control {
                JournalControl::Ring(ControlRecord::Epoch { epoch }) => told.push((sequence, epoch)),
                JournalControl::Source { epoch, .. } => {
                    assert_eq!(epoch, 0, "the ring does not say whose these are")
                }
                _ => {}
            }
        }
    }
    assert_eq!(told, [(11, 2), (21, 3)]);
}

/// Several publishers take over while nobody records, and the ring laps the end of the journal. It still has messages of all but the first of
/// them. The present epoch was once stated before the oldest of these.
#[test]
fn a_ring_that_lapped_the_journal_says_where_each_publisher_that_is_left_began() {
    let host = Host::new();
    let publish = |count: u64| {
        let mut publisher = host.publisher("t", 64 << 10);
        let first = publisher.next_sequence();
        for sequence in first..first + count {
            publisher.publish(&payload(sequence)).unwrap();
        }
        (first, publisher.epoch())
    };
    publish(10);
    let recorder = host.record("t", SyncPolicy::Each);
    until(&recorder, |progress| progress.durable == 10);
    recorder.stop().unwrap();
    publish(10);
    let lapping = publish(5_000);
    let left = [publish(20), publish(20)];
    let recorder = host.record("t", SyncPolicy::Each);
    let last = left[1].0 + 19;
    until(&recorder, |progress| progress.durable == last);
    assert!(recorder.progress().missing > 0);
    recorder.stop().unwrap();
    let mut reader = Journal::open(host.dir()).unwrap().read_from(1).unwrap();
    let (mut told, mut first_left) = (Vec::new(), 0);
    while let Some(entry) = reader.next().unwrap() {
        match entry {
            Entry::Control {
                sequence,
                control: JournalControl::Ring(ControlRecord::Epoch { epoch }),
                ..
            } => told.push((sequence, epoch)),
            Entry::Lost(loss) => first_left = loss.to + 1,
            _ => {}
        }
    }
    assert!((lapping.0 + 1..left[0].0).contains(&first_left), "{first_left} of {lapping:?} {left:?}");
    assert_eq!(told, left, "the ring does not say whose {first_left} is");
    assert_eq!(ending(&host).epoch(), left[1].1);
}

/// The journal was made with the ring, and nobody recorded while several publishers came. Even one that published nothing is told.
#[test]
fn a_ring_that_begins_where_the_journal_ends_says_where_each_publisher_began() {
    for first in [0, 10] {
        let host = Host::new();
        let publish = |count: u64| {
            let mut publisher = host.publisher("t", 1 << 20);
            let next = publisher.next_sequence();
            if next == 1 && publisher.epoch() == 1 {
                create(host.dir(), publisher.header()).unwrap();
            }
            for sequence in next..next + count {
                publisher.publish(&payload(sequence)).unwrap();
            }
            (next, publisher.epoch())
        };
        publish(first);
        let told_of = [publish(10), publish(10)];
        let recorder = host.record("t", SyncPolicy::Each);
        until(&recorder, |progress| progress.durable == first + 20);
        recorder.stop().unwrap();
        let mut reader = Journal::open(host.dir()).unwrap().read_from(1).unwrap();
        let mut told = Vec::new();
        while let Some(entry) = reader.next().unwrap() {
            let Entry::Control { sequence, control: JournalControl::Ring(control), .. } = entry else {
                continue;
            };
            if let ControlRecord::Epoch { epoch } = control {
                told.push((sequence, epoch));
            }
        }
        assert_eq!(told, told_of, "the first one published {first}");
    }
}

/// The controls of a journal from a sequence on, each with its sequence, without those of the recorder itself.
fn told_from(host: &Host, from: u64) -> Vec<(u64, ControlRecord)> {
    let mut reader = Journal::open(host.dir()).unwrap().read_from(1).unwrap();
    let mut told = Vec::new();
    while let Some(entry) = reader.next().unwrap() {
        match entry {
            Entry::Control { sequence, control: JournalControl::Ring(control), .. } if sequence >= from => {
                told.push((sequence, control));
            }
            Entry::Lost(loss) => panic!("{loss:?}"),
            _ => {}
        }
    }
    told
}

/// The journal ends with a gap, and the channel is closed while nobody records. The next recorder once took the end for a record that
/// precedes the gap: `record --until-end` never ended, and the journal lacked the end.
#[test]
fn the_end_behind_a_gap_is_recorded_by_the_next_recorder() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 1 << 20);
    for sequence in 1..=10 {
        publisher.publish(&payload(sequence)).unwrap();
    }
    let recorder = host.record("t", SyncPolicy::Each);
    publisher.gap(20).unwrap();
    until(&recorder, |progress| progress.durable == 20);
    recorder.stop().unwrap();
    publisher.close();
    for _ in 0..2 {
        let recorder = host.record("t", SyncPolicy::Each);
        until(&recorder, |progress| progress.has_ended);
        recorder.stop().unwrap();
        assert_eq!(told_from(&host, 21), [(21, ControlRecord::End)], "once, however often it is recorded");
    }
}

/// As above, with a session that begins behind the gap, and a publisher that takes over.
#[test]
fn a_session_and_a_publisher_behind_a_gap_are_recorded_by_the_next_recorder() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 1 << 20);
    publisher.publish(&payload(1)).unwrap();
    let recorder = host.record("t", SyncPolicy::Each);
    publisher.gap(20).unwrap();
    until(&recorder, |progress| progress.durable == 20);
    recorder.stop().unwrap();
    publisher.session(*b"0123456789").unwrap();
    drop(publisher);
    let mut publisher = host.publisher("t", 1 << 20);
    publisher.publish(&payload(21)).unwrap();
    let recorder = host.record("t", SyncPolicy::Each);
    until(&recorder, |progress| progress.durable == 21);
    recorder.stop().unwrap();
    let told = told_from(&host, 21);
    let is_session = |told: &&(u64, ControlRecord)| matches!(told, (21, ControlRecord::Session { .. }));
    assert_eq!(told.iter().filter(is_session).count(), 1, "{told:?}");
    assert!(told.contains(&(21, ControlRecord::Epoch { epoch: 2 })), "{told:?}");
}

/// A reader is idle while publishers take over and another recorder begins. The ring laps the reader, so it continues in the journal. The
/// end and the takeover are at the end of the file before. An earlier mistake: the reader passed over them.
#[test]
fn a_lapped_reader_is_told_of_takeovers_at_the_end_of_a_file() {
    let host = Host::new();
    let publish = |publisher: &mut Publisher, count: u64, recorder: &Recorder| {
        for _ in 0..count {
            let next = publisher.next_sequence();
            publisher.publish(&payload(next)).unwrap();
            until(recorder, |progress| progress.drained == next);
        }
    };
    let open = || host.publisher("t", 64 << 10);
    let mut publisher = open();
    let recorder = host.record("t", SyncPolicy::Each);
    publish(&mut publisher, 10, &recorder);
    let mut reader = host.reader("t");
    drop(publisher);
    drop(open());
    recorder.stop().unwrap();
    let recorder = host.record("t", SyncPolicy::Each);
    publish(&mut open(), 1_000, &recorder);
    recorder.stop().unwrap();
    let mut told = Vec::new();
    let due = loop {
        match reader.try_recv() {
            Ok(Some(Event::Message(message))) => break message.sequence,
            Ok(Some(event)) => told.push(format!("{event:?}")),
            Ok(None) | Err(RecvError::Stalled { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    };
    let wanted = [Event::End, Event::NewEpoch { epoch: 2 }, Event::End, Event::NewEpoch { epoch: 3 }];
    assert_eq!((due, told), (11, wanted.map(|event| format!("{event:?}")).to_vec()));
}

/// A recorder waits at a ring without a publisher. Its first batch has all of the first publisher, up to the end. The epoch was once stated
/// after that end, and readers of the journal were told of a takeover that never was.
#[test]
fn the_first_publishers_epoch_is_stated_before_its_end() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 64 << 10);
    publisher.publish_batch(["1", "2", "3"]).unwrap();
    publisher.close();
    let subscriber = host.subscriber("t");
    // The ring looks as before its first publisher until the recorder has taken the first batch.
    let segment = OpenOptions::new().read(true).write(true).open(host.segment("t")).unwrap();
    let mut state = [0; 8];
    segment.read_exact_at(&mut state, STATE).unwrap();
    segment.write_all_at(&NEW.to_le_bytes(), STATE).unwrap();
    let recorder = host.record_by(subscriber, SyncPolicy::Each);
    until(&recorder, |progress| progress.durable == 3);
    segment.write_all_at(&state, STATE).unwrap();
    recorder.stop().unwrap();
    let mut reader = Journal::open(host.dir()).unwrap().read_from(1).unwrap();
    let mut told = Vec::new();
    while let Some(entry) = reader.next().unwrap() {
        if let Entry::Control { sequence, control: JournalControl::Ring(control), .. } = entry {
            told.push((sequence, control));
        }
    }
    assert_eq!(told, [(1, ControlRecord::Epoch { epoch: 1 }), (4, ControlRecord::End)]);
}
