//! The interface that a publishing or receiving program relies on, with one channel and one process at a time. Loss,
//! seeking and successors are in `stream.rs`, files in `files.rs`, other processes in `crash.rs`.

use crate::support::{SMALL, drain, is_silent, publisher, rare, subscriber};
use shmcast::{ChannelError, EndWatch, Event, Mark, PublishError, RecvError, Start, TooLarge, Wait};
use shmcast_testkit::scratch;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_claim_that_is_aborted_or_dropped_leaves_no_trace() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    let position = subscriber.position();
    let mut claim = publisher.claim(1000).unwrap();
    claim.fill(b'x');
    claim.abort();
    drop(publisher.claim(8192).unwrap());
    assert!(is_silent(&mut subscriber));
    assert_eq!(publisher.publish(b"after").unwrap(), 1);
    assert_eq!(drain(&mut subscriber), [(1, b"after".to_vec())]);
    assert_eq!(subscriber.position() - position, 64, "one granule was used, and no more");
}

#[test]
fn a_claim_committed_short_does_not_leak_the_rest_of_the_claim() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    for commit in [0, 1, 47, 48, 49, 200, 1000] {
        let mut claim = publisher.claim(1000).unwrap();
        claim.fill(commit as u8);
        claim.commit(commit).unwrap();
    }
    let payloads: Vec<_> = drain(&mut subscriber).into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(payloads, [0, 1, 47, 48, 49, 200, 1000].map(|length| vec![length as u8; length]));
}

#[test]
#[should_panic(expected = "commit of 11 B exceeds the claim of 10 B")]
fn more_cannot_be_committed_than_was_claimed() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let _ = publisher.claim(10).unwrap().commit(11);
}

#[test]
fn pieces_are_one_message_and_too_many_bytes_are_none() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    let half = vec![7; publisher.max_message() / 2 + 1];
    publisher.publish_vectored(&[], Mark::default()).unwrap();
    publisher.publish_vectored(&[b"", b"ab", b"", b"c"], Mark::default()).unwrap();
    let refused = publisher.publish_vectored(&[&half, &half], Mark::default());
    assert!(matches!(refused, Err(PublishError::TooLarge(_))), "{refused:?}");
    assert_eq!(drain(&mut subscriber), [(1, b"".to_vec()), (2, b"abc".to_vec())]);
}

#[test]
fn tags_and_key_flags_reach_the_reader_by_every_way_of_publishing() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    publisher.publish(b"plain").unwrap();
    publisher.publish_with(b"tagged", Mark { tag: u16::MAX, key: false }).unwrap();
    publisher.publish_with(b"key", Mark { tag: 0, key: true }).unwrap();
    publisher.claim(3).unwrap().mark(Mark { tag: 77, key: true }).commit(0).unwrap();
    publisher.publish_batch(["batch"]).unwrap();
    let mut expected = vec![(0, false), (u16::MAX, false), (0, true), (77, true), (0, false)];
    #[cfg(feature = "pod")]
    {
        publisher.publish_pod(&7u64).unwrap();
        publisher.publish_pod_with(&7u64, Mark { tag: 78, key: true }).unwrap();
        expected.extend([(0, false), (78, true)]);
    }
    #[cfg(feature = "serde")]
    {
        publisher.publish_serde("plain").unwrap();
        publisher.publish_serde_with("marked", Mark { tag: 79, key: true }).unwrap();
        expected.extend([(0, false), (79, true)]);
    }
    let mut marks = Vec::new();
    let events = subscriber.recv_batch(100, |event| match event {
        Event::Message(m) => marks.push((m.tag, m.key)),
        other => panic!("{other:?}"),
    });
    assert_eq!(events.unwrap(), expected.len());
    assert_eq!(marks, expected);
}

#[test]
fn messages_of_every_size_from_none_to_the_largest_arrive_whole() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(1 << 20).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    let largest = publisher.max_message();
    assert_eq!(largest, 1 << 17, "an eighth of the ring");
    let sizes = (0..300).chain([4096, 65_535, 65_536, largest - 1, largest, largest, largest, largest, 0]);
    for (i, size) in sizes.enumerate() {
        let payload: Vec<u8> = (0..size).map(|at| (at * 31 + i) as u8).collect();
        let sequence = publisher.publish(&payload).unwrap();
        // The largest four fill half of the ring, so each is received before the next is published.
        assert_eq!(drain(&mut subscriber), [(sequence, payload)], "{size} B");
    }
}

#[test]
fn a_message_larger_than_the_channel_allows_is_refused_and_nothing_is_published() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).max_message(100).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    let refused = PublishError::from(TooLarge { length: 101, max_message: 100 });
    assert_eq!(publisher.publish(&[0; 101]), Err(refused));
    assert_eq!(publisher.publish_with(&[0; 101], Mark::default()), Err(refused));
    assert_eq!(publisher.claim(101).map(drop), Err(refused));
    assert!(refused.to_string().contains("larger maximum"), "{refused}");
    assert_eq!(publisher.next_sequence(), 1);
    assert!(is_silent(&mut subscriber));
    publisher.publish(&[7; 100]).unwrap();
    assert_eq!(drain(&mut subscriber), [(1, vec![7; 100])]);
}

#[test]
fn a_batch_stops_at_the_first_message_that_is_too_large() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).max_message(4).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    assert_eq!(publisher.publish_batch(["a", "b"]).unwrap(), 1..3);
    assert_eq!(publisher.publish_batch(Vec::<&str>::new()).unwrap(), 3..3);
    let refused = publisher.publish_batch(["c", "too large", "never"]);
    assert_eq!(refused, Err(PublishError::TooLarge(TooLarge { length: 9, max_message: 4 })));
    let expected = [(1, b"a".to_vec()), (2, b"b".to_vec()), (3, b"c".to_vec())];
    assert_eq!(drain(&mut subscriber), expected);
    assert_eq!(publisher.next_sequence(), 4);
}

#[test]
fn a_buffer_that_is_too_small_costs_no_message() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    publisher.publish(&[5; 500]).unwrap();
    publisher.publish(b"").unwrap();
    let mut buffer = [0; 600];
    for available in [0, 1, 48, 499] {
        let refused = subscriber.try_recv_into(&mut buffer[..available]).map(drop);
        assert_eq!(refused, Err(RecvError::TooSmall { needed: 500, available }));
        assert_eq!(subscriber.next_sequence(), 1);
    }
    let event = subscriber.try_recv_into(&mut buffer[..500]).unwrap();
    assert!(matches!(event, Some(Event::Message(m)) if m.payload == [5; 500] && m.sequence == 1));
    let event = subscriber.try_recv_into(&mut []).unwrap();
    assert!(matches!(event, Some(Event::Message(m)) if m.payload.is_empty() && m.sequence == 2));
    assert_eq!(subscriber.try_recv_into(&mut buffer).unwrap(), None);
    assert_eq!(buffer[500..], [0; 100], "nothing is written beyond the message");
}

#[test]
fn a_batch_hands_out_at_most_what_was_asked_for() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    publisher.publish_batch((0..10u8).map(|i| [i])).unwrap();
    let mut seen = Vec::new();
    let mut receive = |most| {
        subscriber.recv_batch(most, |event| match event {
            Event::Message(m) => seen.push(m.payload[0]),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!([receive(0), receive(4), receive(4), receive(4), receive(4)], [0, 4, 4, 2, 0].map(Ok));
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
}

#[test]
fn a_batch_longer_than_any_run_of_messages_has_all_in_order() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    publisher.publish_batch((0..200u8).map(|i| [i])).unwrap();
    publisher.gap(210).unwrap();
    publisher.publish_batch((210..=255u8).map(|i| [i])).unwrap();
    let mut next = 0;
    let events = subscriber.recv_batch(usize::MAX, |event| match event {
        Event::Message(m) => {
            assert_eq!((m.payload, m.sequence), (&[next][..], u64::from(next) + 1));
            next = next.wrapping_add(1);
        }
        Event::Gap { from, to } => {
            assert_eq!((from, to, next), (201, 210, 200));
            next = 210;
        }
        other => panic!("{other:?}"),
    });
    assert_eq!((events, next), (Ok(200 + 1 + 46), 0));
}

#[test]
fn every_wait_strategy_keeps_its_deadline_and_sees_the_message() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let waits = [
        Wait::Spin,
        Wait::Burst,
        Wait::SpinThenYield(100),
        Wait::Yield,
        Wait::Backoff,
        Wait::Sleep(Duration::from_micros(100)),
    ];
    for wait in waits {
        let mut subscriber = subscriber(dir.path()).wait(wait).open().unwrap();
        let deadline = Instant::now() + Duration::from_millis(3);
        assert_eq!(subscriber.recv_deadline(deadline).unwrap(), None, "{wait:?}");
        assert!(Instant::now() >= deadline, "{wait:?} gave up early");
        let sequence = publisher.publish(b"x").unwrap();
        // A message that is there is received even after the deadline.
        let event = subscriber.recv_deadline(deadline).unwrap();
        assert!(matches!(event, Some(Event::Message(m)) if m.sequence == sequence), "{wait:?}");
        std::thread::scope(|scope| {
            let late = scope.spawn(|| match subscriber.recv().unwrap() {
                Event::Message(m) => m.sequence,
                other => panic!("{other:?}"),
            });
            std::thread::sleep(Duration::from_millis(2));
            let sequence = publisher.publish(b"late").unwrap();
            assert_eq!(late.join().unwrap(), sequence, "{wait:?}");
        });
    }
}

#[test]
fn who_waits_in_bursts_loses_nothing_in_the_smallest_ring() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).wait(Wait::Burst).open().unwrap();
    let consumed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for sequence in 1..=20_000u64 {
                // The publisher stays within half of the ring, with one line for each message. A reader that pauses in
                // a burst may fall behind as far.
                while sequence > consumed.load(Ordering::Acquire) + SMALL / 64 / 2 {
                    std::thread::yield_now();
                }
                publisher.publish(&sequence.to_le_bytes()).unwrap();
            }
        });
        let mut due = 1u64;
        while due <= 20_000 {
            let mut take = |event: Event<'_>| match event {
                Event::Message(m) => {
                    assert_eq!((m.sequence, m.payload), (due, &due.to_le_bytes()[..]));
                    due += 1;
                }
                other => panic!("{other:?}"),
            };
            if subscriber.recv_batch(100, &mut take).unwrap() == 0 {
                take(subscriber.recv().unwrap());
            }
            consumed.store(due - 1, Ordering::Release);
        }
    });
}

#[test]
fn position_lag_and_time_tell_where_a_reader_is() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    let before = publisher.clock().now();
    for _ in 0..128 {
        publisher.publish(b"x").unwrap();
    }
    let lag = subscriber.lag();
    assert!((65..=128).contains(&lag), "{lag}: up to 64 behind the truth");
    let Some(Event::Message(first)) = subscriber.try_recv().unwrap() else { panic!("no message") };
    let time = first.time;
    let clock = subscriber.clock();
    let age_ns = clock.ns_since(time);
    assert!(age_ns > 0 && age_ns <= clock.ns_between(before, clock.now()), "{age_ns} ns");
    assert_eq!((subscriber.next_sequence(), subscriber.position(), subscriber.lag()), (2, 64, lag - 1));
}

#[test]
fn names_that_would_leave_the_directory_open_nothing() {
    let dir = scratch();
    for name in ["", "..", "a/b", ".hidden", "-rf", "a b"] {
        let published = shmcast::Publisher::builder(name).dir(dir.path()).open();
        assert!(matches!(published, Err(ChannelError::Name { .. })), "{name:?}");
        let subscribed = shmcast::Subscriber::builder(name).dir(dir.path()).open();
        assert!(matches!(subscribed, Err(ChannelError::Name { .. })), "{name:?}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[cfg(feature = "pod")]
#[test]
fn a_value_of_another_size_is_not_taken_for_the_type() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    publisher.publish_pod(&[1u64, 2]).unwrap();
    publisher.publish(&[0; 15]).unwrap();
    let Some(Event::Message(whole)) = subscriber.try_recv().unwrap() else { panic!("no message") };
    assert_eq!(whole.pod::<[u64; 2]>().unwrap(), &[1, 2]);
    assert!(matches!(whole.pod::<[u64; 3]>(), Err(shmcast::DecodeError::Size { found: 16, wanted: 24, .. })));
    let Some(Event::Message(short)) = subscriber.try_recv().unwrap() else { panic!("no message") };
    assert!(matches!(short.pod::<[u64; 2]>(), Err(shmcast::DecodeError::Size { sequence: 2, .. })));
}

#[cfg(feature = "serde")]
#[test]
fn a_value_that_does_not_fit_publishes_nothing() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).max_message(16).open().unwrap();
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    let refused = publisher.publish_serde(&"far too long for sixteen bytes");
    assert!(matches!(refused, Err(shmcast::EncodeError::TooLarge { max_message: 16 })), "{refused:?}");
    publisher.publish_serde(&("short", 1u8)).unwrap();
    publisher.publish(&[0xff; 3]).unwrap();
    let Some(Event::Message(m)) = subscriber.try_recv().unwrap() else { panic!("no message") };
    assert_eq!((m.sequence, m.decode::<(&str, u8)>().unwrap()), (1, ("short", 1)));
    let Some(Event::Message(m)) = subscriber.try_recv().unwrap() else { panic!("no message") };
    assert!(matches!(m.decode::<(&str, u8)>(), Err(shmcast::DecodeError::Postcard { sequence: 2, .. })));
}

#[test]
fn the_end_of_a_publisher_that_was_waited_for_counts() {
    let dir = scratch();
    let mut reader = subscriber(dir.path())
        .open_while(|| {
            drop(publisher(dir.path()).capacity(SMALL).open().unwrap());
            true
        })
        .unwrap();
    let mut end = EndWatch::of(&reader, Start::Latest);
    assert_eq!(rare(&mut reader), Event::End);
    end.note(&Event::End);
    assert!(end.is_over(&reader));
}
