//! The events of the stream besides messages: losses, ends, new publishers, gaps. Also the places at which a reader may
//! start or go on.

use crate::support::{SMALL, drain, is_silent, publisher, rare, subscriber, successor};
use shmcast::{ChannelError, Event, Lapped, LocateError, Mark, Publisher, RecvError, Resume, Start};
use shmcast_testkit::{PATIENCE, scratch};
use std::time::Instant;

/// Publishes messages of three granules each, up to and including `last`. Each 341 messages lap a small ring.
fn publish_up_to(publisher: &mut Publisher, last: u64) {
    while publisher.next_sequence() <= last {
        let sequence = publisher.next_sequence();
        publisher.publish(&[sequence as u8; 150]).unwrap();
    }
}

fn sequences(messages: &[(u64, Vec<u8>)]) -> Vec<u64> {
    for (sequence, payload) in messages {
        assert_eq!(payload, &[*sequence as u8; 150], "message {sequence}");
    }
    messages.iter().map(|(sequence, _)| *sequence).collect()
}

#[test]
fn seeking_goes_both_ways_and_a_refusal_moves_nothing() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    publish_up_to(&mut publisher, 10);
    for (to, expected) in [(3, 3..=10), (9, 9..=10), (1, 1..=10)] {
        subscriber.seek(to).unwrap();
        assert_eq!(sequences(&drain(&mut subscriber)), expected.collect::<Vec<_>>());
    }
    subscriber.seek(11).unwrap();
    assert!(is_silent(&mut subscriber));
    assert_eq!(subscriber.seek(12), Err(LocateError::NotYet { sequence: 12, next: 11 }));
    assert!(matches!(subscriber.seek(0), Err(LocateError::TooOld { sequence: 0, oldest: 1 })));
    assert_eq!(subscriber.next_sequence(), 11);

    publish_up_to(&mut publisher, 1000);
    let Err(LocateError::TooOld { sequence: 11, oldest }) = subscriber.seek(11) else {
        panic!("overwritten")
    };
    assert!((659..900).contains(&oldest), "{oldest}");
    assert_eq!(subscriber.next_sequence(), 11);
    subscriber.seek(oldest).unwrap();
    assert_eq!(sequences(&drain(&mut subscriber)), (oldest..=1000).collect::<Vec<_>>());
}

#[test]
fn each_start_begins_where_it_says() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let start = |start| subscriber(dir.path()).start(start).open();
    assert!(is_silent(&mut start(Start::Latest).unwrap()), "an empty ring");
    assert!(is_silent(&mut start(Start::Oldest).unwrap()), "an empty ring");
    assert!(is_silent(&mut start(Start::Sequence(1)).unwrap()), "an empty ring");
    publish_up_to(&mut publisher, 20);
    let mut latest = start(Start::Latest).unwrap();
    assert!(is_silent(&mut latest));
    assert_eq!(latest.next_sequence(), 21);
    for (from, first) in [(Start::Oldest, 1), (Start::Sequence(0), 1), (Start::Sequence(20), 20)] {
        let got = drain(&mut start(from).unwrap());
        assert_eq!(sequences(&got), (first..=20).collect::<Vec<_>>());
    }
    assert!(is_silent(&mut start(Start::Sequence(21)).unwrap()), "the next one may be waited for");
    match start(Start::Sequence(22)) {
        Err(ChannelError::Locate { source: LocateError::NotYet { sequence: 22, next: 21 }, .. }) => {}
        other => panic!("{other:?}"),
    }
    publish_up_to(&mut publisher, 2000);
    let got = sequences(&drain(&mut start(Start::Oldest).unwrap()));
    assert!(got.len() > 200, "the ring holds 341, of which a chunk or two are about to go: {}", got.len());
    assert_eq!(got, (got[0]..=2000).collect::<Vec<_>>());
}

#[test]
fn starting_at_an_overwritten_sequence_counts_the_loss_exactly() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    publish_up_to(&mut publisher, 5000);
    for from in [1, 2, 4000, 4600] {
        let mut subscriber = subscriber(dir.path()).start(Start::Sequence(from)).open().unwrap();
        assert_eq!(subscriber.next_sequence(), from);
        let Event::Lapped(Lapped { missed, resumed_at }) = rare(&mut subscriber) else {
            panic!("not lapped")
        };
        assert_eq!(from + missed, resumed_at);
        assert_eq!(sequences(&drain(&mut subscriber)), (resumed_at..=5000).collect::<Vec<_>>());
    }
}

/// A reader reads up to 5, and then pauses while the publisher goes on to 1000, with a key message at `key`.
fn lapped(resume: Resume, key: Option<u64>) -> (u64, u64) {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).resume(resume).open().unwrap();
    publish_up_to(&mut publisher, 5);
    assert_eq!(drain(&mut subscriber).len(), 5);
    if let Some(key) = key {
        publish_up_to(&mut publisher, key - 1);
        publisher.publish_with(&[key as u8; 150], Mark { tag: 0, key: true }).unwrap();
    }
    publish_up_to(&mut publisher, 1000);
    let Event::Lapped(Lapped { missed, resumed_at }) = rare(&mut subscriber) else { panic!("not lapped") };
    assert_eq!(6 + missed, resumed_at, "missed is exact");
    assert_eq!(sequences(&drain(&mut subscriber)), (resumed_at..=1000).collect::<Vec<_>>());
    let pages = shmcast::Directory::at(dir.path()).channel("t").unwrap().readers;
    let stats = &pages[0].stats;
    assert_eq!((stats.lapped, stats.missed, stats.received), (1, missed, 1000 - missed));
    let oldest = shmcast::Directory::at(dir.path()).channel("t").unwrap().detail.unwrap().oldest.unwrap();
    (resumed_at, oldest.sequence)
}

#[test]
fn a_lapped_reader_goes_on_where_its_policy_says() {
    let (resumed, oldest) = lapped(Resume::Oldest, Some(900));
    assert_eq!(resumed, oldest);
    assert_eq!(lapped(Resume::Latest, Some(900)).0, 1001);
    assert_eq!(lapped(Resume::Key, Some(900)).0, 900);
    assert_eq!(lapped(Resume::Key, Some(1000)).0, 1000);
}

#[test]
fn a_key_message_that_is_gone_is_not_resumed_from() {
    for key in [None, Some(100)] {
        let (resumed, oldest) = lapped(Resume::Key, key);
        assert_eq!(resumed, oldest, "key {key:?}");
    }
}

#[test]
fn a_reader_lapped_again_and_again_still_counts_exactly() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    let (mut expected, mut received, mut missed) = (1, 0, 0);
    for round in 1..50 {
        publish_up_to(&mut publisher, round * 397);
        for _ in 0..round * 7 {
            match subscriber.try_recv().unwrap() {
                None => break,
                Some(Event::Message(m)) => {
                    assert_eq!((m.sequence, m.payload), (expected, &[expected as u8; 150][..]));
                    (expected, received) = (expected + 1, received + 1);
                }
                Some(Event::Lapped(lapped)) => {
                    (expected, missed) = (expected + lapped.missed, missed + lapped.missed);
                    assert_eq!(lapped.resumed_at, expected);
                }
                Some(other) => panic!("{other:?}"),
            }
        }
    }
    assert!(missed > 0 && received > 0);
    assert_eq!(received + missed, expected - 1);
}

#[test]
fn the_end_comes_once_and_after_everything_published() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut early = subscriber(dir.path()).open().unwrap();
    publish_up_to(&mut publisher, 3);
    publisher.close();
    for expected in 1..=3 {
        assert!(matches!(early.recv().unwrap(), Event::Message(m) if m.sequence == expected));
    }
    assert_eq!(rare(&mut early), Event::End);
    assert!(is_silent(&mut early), "the end is said once");
    // A reader that comes after the channel was closed does not wait for ever.
    let mut late = subscriber(dir.path()).open().unwrap();
    assert_eq!(rare(&mut late), Event::End);
    assert!(is_silent(&mut late));
    assert!(matches!(late.publisher_state(), Some((1, shmcast::State::Closed))));
}

#[test]
fn a_channel_opened_again_goes_on_with_the_sequence_in_a_new_epoch() {
    let dir = scratch();
    let mut first = publisher(dir.path()).capacity(SMALL).open().unwrap();
    assert_eq!(first.epoch(), 1);
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    first.publish(b"one").unwrap();
    first.close();
    let mut second = publisher(dir.path()).open().unwrap();
    assert_eq!((second.epoch(), second.next_sequence(), second.capacity()), (2, 2, SMALL));
    second.publish(b"two").unwrap();
    assert!(matches!(subscriber.recv().unwrap(), Event::Message(m) if m.payload == b"one"));
    assert_eq!(subscriber.epoch(), 1);
    assert_eq!(rare(&mut subscriber), Event::End);
    assert_eq!(rare(&mut subscriber), Event::NewEpoch { epoch: 2 });
    assert!(
        matches!(subscriber.recv().unwrap(), Event::Message(m) if m.payload == b"two" && m.sequence == 2)
    );
    assert_eq!(subscriber.epoch(), 2);
    drop(second);
    assert_eq!(rare(&mut subscriber), Event::End, "dropping closes");
}

#[test]
fn each_epoch_is_told_where_it_begins_to_whoever_starts_before_it() {
    let dir = scratch();
    let mut attached = None;
    for epoch in 1..=3 {
        let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
        publisher.publish(&[epoch]).unwrap();
        attached.get_or_insert_with(|| subscriber(dir.path()).start(Start::Sequence(1)).open().unwrap());
    }
    let late =
        [Start::Oldest, Start::Sequence(1)].map(|from| subscriber(dir.path()).start(from).open().unwrap());
    for mut reader in late.into_iter().chain(attached) {
        for epoch in 1..=3 {
            if epoch > 1 {
                assert_eq!(rare(&mut reader), Event::NewEpoch { epoch });
                assert_eq!(reader.epoch(), epoch);
            }
            assert!(matches!(reader.recv().unwrap(), Event::Message(m) if u64::from(m.payload[0]) == epoch));
            assert_eq!(rare(&mut reader), Event::End);
        }
        assert!(is_silent(&mut reader));
    }
    // A reader that starts after the takeover gets no event of it: it has known no earlier publisher.
    let publisher = publisher(dir.path()).open().unwrap();
    let mut latest = subscriber(dir.path()).open().unwrap();
    let mut middle = subscriber(dir.path()).start(Start::Sequence(publisher.next_sequence())).open().unwrap();
    assert!(is_silent(&mut latest) && is_silent(&mut middle));
    assert_eq!((latest.epoch(), middle.epoch()), (4, 4));
}

#[test]
fn an_epoch_whose_record_was_lapped_is_told_also_to_one_who_never_waits() {
    for (resume, start) in [Resume::Oldest, Resume::Latest]
        .into_iter()
        .flat_map(|resume| [Start::Latest, Start::Sequence(3)].map(|start| (resume, start)))
    {
        let dir = scratch();
        publisher(dir.path()).capacity(SMALL).open().unwrap().publish(b"one").unwrap();
        let mut first = publisher(dir.path()).open().unwrap();
        first.publish_batch(["two", "three"]).unwrap();
        let mut subscriber = subscriber(dir.path()).resume(resume).start(start).open().unwrap();
        drop(first);
        let mut second = publisher(dir.path()).open().unwrap();
        publish_up_to(&mut second, 1000);
        let Ok(Some(Event::Lapped(Lapped { missed, resumed_at }))) = subscriber.try_recv() else {
            panic!("not lapped")
        };
        assert_eq!(resumed_at - missed, if start == Start::Latest { 4 } else { 3 });
        for expected in resumed_at..=1000 {
            assert!(matches!(subscriber.try_recv(), Ok(Some(Event::Message(m))) if m.sequence == expected));
        }
        assert_eq!(subscriber.try_recv().unwrap(), Some(Event::NewEpoch { epoch: 3 }), "{start:?}");
        // A lap without a takeover gives no other event than the lap.
        publish_up_to(&mut second, 3000);
        assert!(matches!(subscriber.try_recv(), Ok(Some(Event::Lapped(_)))));
        drain(&mut subscriber);
        assert!(is_silent(&mut subscriber), "once");
    }
}

#[test]
fn an_epoch_whose_record_survived_a_lap_is_told_in_its_place_and_once() {
    let dir = scratch();
    let mut first = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    publish_up_to(&mut first, 1000);
    drop(first);
    let mut second = publisher(dir.path()).open().unwrap();
    second.publish(b"new").unwrap();
    let Event::Lapped(Lapped { resumed_at, .. }) = rare(&mut subscriber) else { panic!("not lapped") };
    for expected in resumed_at..=1000 {
        assert!(matches!(subscriber.recv().unwrap(), Event::Message(m) if m.sequence == expected));
    }
    assert_eq!(rare(&mut subscriber), Event::End);
    assert_eq!(rare(&mut subscriber), Event::NewEpoch { epoch: 2 });
    assert!(matches!(subscriber.recv().unwrap(), Event::Message(m) if m.sequence == 1001));
    assert!(is_silent(&mut subscriber));
}

#[test]
fn a_publisher_that_panics_does_not_say_that_all_is_well() {
    let dir = scratch();
    let mut first = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    first.publish(b"one").unwrap();
    let panicked = std::thread::spawn(move || {
        let _publisher = first;
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(panicked.join().is_err());
    assert_eq!(drain(&mut subscriber).len(), 1);
    assert!(is_silent(&mut subscriber), "no end of the stream");
    let second = successor(dir.path());
    assert_eq!(rare(&mut subscriber), Event::NewEpoch { epoch: 2 });
    drop(second);
}

/// A reader gets an end, and is then lapped beyond a successor's whole life. It must get the next end too.
#[test]
fn an_end_behind_a_lap_is_not_swallowed() {
    let dir = scratch();
    publisher(dir.path()).capacity(SMALL).open().unwrap().close();
    let mut subscriber = subscriber(dir.path()).resume(Resume::Latest).open().unwrap();
    assert_eq!(rare(&mut subscriber), Event::End);
    let mut second = publisher(dir.path()).open().unwrap();
    publish_up_to(&mut second, 1000);
    second.close();
    assert_eq!(rare(&mut subscriber), Event::Lapped(Lapped { missed: 1000, resumed_at: 1001 }));
    assert_eq!(rare(&mut subscriber), Event::End);
}

#[test]
fn gaps_and_sessions_of_a_remote_stream_are_told_in_order() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    publisher.session(*b"SESSION-01").unwrap();
    publish_up_to(&mut publisher, 2);
    publisher.gap(5).unwrap();
    publisher.gap(4).unwrap(); // lies behind
    publish_up_to(&mut publisher, 7);
    assert_eq!(rare(&mut subscriber), Event::NewSession { session: *b"SESSION-01" });
    for expected in [1, 2] {
        assert!(matches!(subscriber.recv().unwrap(), Event::Message(m) if m.sequence == expected));
    }
    assert_eq!(rare(&mut subscriber), Event::Gap { from: 3, to: 5 });
    assert_eq!(sequences(&drain(&mut subscriber)), [6, 7]);
    let page = &shmcast::Directory::at(dir.path()).channel("t").unwrap().readers[0];
    assert_eq!((page.stats.missed, page.stats.lapped, page.stats.received), (3, 0, 4));
    // After a seek into the hole, the reader gets the whole gap from its first sequence.
    subscriber.seek(4).unwrap();
    assert_eq!(rare(&mut subscriber), Event::Gap { from: 3, to: 5 });
}

#[test]
fn a_remote_session_is_known_to_the_next_publisher_until_the_channel_begins_anew() {
    let dir = scratch();
    let mut first = publisher(dir.path()).capacity(SMALL).max_message(1000).labels("a=b\n").open().unwrap();
    assert_eq!(first.remote_session(), None);
    first.session(*b"SESSION-01").unwrap();
    publish_up_to(&mut first, 3);
    let mut old = subscriber(dir.path()).start(Start::Oldest).open().unwrap();
    drop(first);
    let mut second = publisher(dir.path()).open().unwrap();
    assert_eq!((second.remote_session(), second.next_sequence()), (Some(*b"SESSION-01"), 4));
    second.session(*b"SESSION\xff\xff\xff").unwrap();
    assert_eq!(old.remote_session(), Some(*b"SESSION\xff\xff\xff"));
    drop(second);
    let mut third = publisher(dir.path()).anew().open().unwrap();
    assert_eq!((third.remote_session(), third.next_sequence(), third.max_message()), (None, 1, 1000));
    assert_eq!((third.capacity(), third.header().labels.as_str()), (SMALL, "a=b\n"));
    publish_up_to(&mut third, 1);
    // All messages of the old segment are still read. Only then it is over.
    let mut read = Vec::new();
    let over = loop {
        match old.recv_deadline(Instant::now() + PATIENCE) {
            Ok(Some(Event::Message(m))) => read.push(m.sequence),
            Ok(event) => assert!(event.is_some(), "neither news nor an end"),
            Err(e) => break e,
        }
    };
    assert_eq!((read, over), (vec![1, 2, 3], RecvError::Superseded));
    let mut new = subscriber(dir.path()).start(Start::Oldest).open().unwrap();
    assert_eq!(sequences(&drain(&mut new)), [1]);
}

/// The index has one entry for each granule. A gap of more sequences than entries reuses all of them.
#[test]
fn a_gap_larger_than_the_index_hides_nothing_that_is_still_in_the_ring() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    publish_up_to(&mut publisher, 10);
    publisher.gap(1_000_000).unwrap();
    publish_up_to(&mut publisher, 1_000_003);
    for (from, before, gap_from) in [(5, 6, 11), (500, 0, 11), (999_999, 0, 11), (11, 0, 11)] {
        let mut subscriber = subscriber(dir.path()).start(Start::Sequence(from)).open().unwrap();
        for sequence in from..from + before {
            assert!(matches!(subscriber.recv().unwrap(), Event::Message(m) if m.sequence == sequence));
        }
        assert_eq!(rare(&mut subscriber), Event::Gap { from: gap_from, to: 1_000_000 }, "from {from}");
        assert_eq!(sequences(&drain(&mut subscriber)), [1_000_001, 1_000_002, 1_000_003]);
    }
    // When the ring has been overwritten once, the messages before the gap are a loss like any other.
    publish_up_to(&mut publisher, 1_001_000);
    let mut subscriber = subscriber(dir.path()).start(Start::Sequence(5)).open().unwrap();
    let Event::Lapped(Lapped { missed, resumed_at }) = rare(&mut subscriber) else { panic!("not lapped") };
    assert_eq!(5 + missed, resumed_at);
    assert_eq!(sequences(&drain(&mut subscriber)), (resumed_at..=1_001_000).collect::<Vec<_>>());
}

#[test]
fn a_reader_that_tools_cannot_see_learns_that_its_channel_was_removed() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut unseen = subscriber(dir.path()).page(false).open().unwrap();
    publisher.publish(b"last words").unwrap();
    publisher.close();
    shmcast::Directory::at(dir.path()).remove("t").unwrap();
    assert!(matches!(unseen.recv().unwrap(), Event::Message(m) if m.payload == b"last words"));
    assert_eq!(rare(&mut unseen), Event::End);
    let deadline = Instant::now() + PATIENCE;
    assert_eq!(unseen.recv_deadline(deadline), Err(RecvError::Superseded));
}
