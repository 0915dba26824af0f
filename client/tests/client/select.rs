//! Receiving from several channels at once, and choosing among the messages of one. Parked readers and event loops are in the
//! daemon's tests.

use crate::support::SMALL;
use shmcast::{Event, Lapped, Mark, Publisher, RecvError, Select, Start, Subscriber, Turns, Wait};
use shmcast_testkit::{PATIENCE, scratch};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

fn publish(publisher: &mut Publisher, count: u64) {
    for _ in 0..count {
        publisher.publish(&publisher.next_sequence().to_le_bytes()).unwrap();
    }
}

/// So many channels in a directory, each with one subscriber.
fn ends(dir: &std::path::Path, count: usize) -> (Vec<Publisher>, Vec<Subscriber>) {
    let name = |i| format!("t{i}");
    let publishers = (0..count).map(|i| Publisher::builder(name(i)).dir(dir).capacity(SMALL).open().unwrap());
    let publishers: Vec<_> = publishers.collect();
    let open = |i| Subscriber::builder(name(i)).dir(dir).start(Start::Oldest).open().unwrap();
    (publishers, (0..count).map(open).collect())
}

fn select(wait: Wait, subscribers: Vec<Subscriber>) -> Select {
    let mut select = Select::new(wait);
    for (i, subscriber) in subscribers.into_iter().enumerate() {
        assert_eq!(select.add(subscriber).unwrap(), i);
    }
    select
}

#[test]
fn every_way_of_waiting_receives_everything_in_order() {
    const MESSAGES: u64 = 300;
    for wait in [
        Wait::Spin,
        Wait::Burst,
        Wait::SpinThenYield(10),
        Wait::Yield,
        Wait::Backoff,
        Wait::Sleep(Duration::from_micros(50)),
        // Files wake nobody: it looks every millisecond.
        Wait::Park,
    ] {
        let dir = scratch();
        let (publishers, subscribers) = ends(dir.path(), 3);
        let mut select = select(wait, subscribers);
        let publishing = std::thread::spawn(move || {
            let mut publishers = publishers;
            for turn in 0..MESSAGES {
                for publisher in &mut publishers {
                    publish(publisher, 1);
                }
                if turn % 50 == 0 {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        });
        let (mut next, mut ends) = ([1; 3], 0);
        while ends < 3 {
            let found = select.recv_deadline(Instant::now() + PATIENCE).unwrap();
            match found.expect("events come") {
                (i, Event::Message(m)) => {
                    assert_eq!(m.sequence, next[i], "{wait:?}, channel {i}");
                    assert_eq!(m.payload, m.sequence.to_le_bytes());
                    next[i] += 1;
                }
                (_, Event::End) => ends += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(next, [MESSAGES + 1; 3], "{wait:?}");
        publishing.join().unwrap();
    }
}

#[test]
fn a_busy_channel_keeps_nobody_waiting_for_more_than_one_of_its_events() {
    let dir = scratch();
    let (mut publishers, subscribers) = ends(dir.path(), 4);
    publish(&mut publishers[1], 200);
    for quiet in [0, 2, 3] {
        publish(&mut publishers[quiet], 10);
    }
    let mut select = select(Wait::Spin, subscribers);
    let mut order = Vec::new();
    while let Some((i, event)) = select.try_recv().unwrap() {
        assert!(matches!(event, Event::Message(_)), "{event:?}");
        order.push(i);
    }
    assert_eq!(order.len(), 230);
    assert_eq!(order[..40], [0, 1, 2, 3].repeat(10), "as long as all have something, they take turns");
    assert!(order[40..].iter().all(|i| *i == 1));
    // One that has something again is next but for those behind the one that was last.
    publish(&mut publishers[1], 5);
    assert!(matches!(select.try_recv().unwrap(), Some((1, _))));
    publish(&mut publishers[0], 1);
    let next: Vec<_> = (0..2).map(|_| select.try_recv().unwrap().unwrap().0).collect();
    assert_eq!(next, [0, 1]);
}

#[test]
fn a_deadline_passes_with_nothing_and_events_are_of_their_channel() {
    let dir = scratch();
    let (mut publishers, subscribers) = ends(dir.path(), 2);
    for wait in [Wait::Spin, Wait::Yield, Wait::Sleep(Duration::from_secs(3600)), Wait::Park] {
        let mut select = Select::new(wait);
        let open = |i| Subscriber::builder(format!("t{i}")).dir(dir.path()).open().unwrap();
        select.add(open(0)).unwrap();
        select.add(open(1)).unwrap();
        let start = Instant::now();
        let deadline = start + Duration::from_millis(20);
        assert_eq!(select.recv_deadline(deadline).unwrap(), None, "{wait:?}");
        assert!(Instant::now() >= deadline && start.elapsed() < PATIENCE, "{wait:?}");
    }
    let mut select = select(Wait::Yield, subscribers);
    publish(&mut publishers[1], 3000);
    let oldest = match select.recv().unwrap() {
        (1, Event::Lapped(Lapped { missed, resumed_at })) => {
            assert_eq!(missed + 1, resumed_at);
            resumed_at
        }
        other => panic!("{other:?}"),
    };
    select.get_mut(1).unwrap().seek(oldest + 7).unwrap();
    assert!(matches!(select.recv().unwrap(), (1, Event::Message(m)) if m.sequence == oldest + 7));
    assert!(select.get(2).is_none());
    let subscribers = select.into_subscribers();
    assert_eq!([&subscribers[0], &subscribers[1]].map(Subscriber::next_sequence), [1, oldest + 8]);
}

#[test]
#[should_panic(expected = "would wait for ever")]
fn nobody_waits_for_nobody() {
    let _ = Select::new(Wait::Yield).recv();
}

/// One that is damaged is named, each time that its turn comes; the others go on.
#[test]
fn one_that_fails_does_not_hold_up_the_others() {
    let dir = scratch();
    let (mut publishers, subscribers) = ends(dir.path(), 2);
    let mut select = select(Wait::Yield, subscribers);
    // Replaced by another: there is nothing more for its reader.
    drop(publishers.remove(0));
    let _anew = Publisher::builder("t0").dir(dir.path()).anew().open().unwrap();
    assert!(matches!(select.recv(), Ok((0, Event::End))));
    publish(&mut publishers[0], 100);
    let (mut failed, mut received) = (0, 0);
    while received < 100 {
        match select.recv() {
            Ok((1, Event::Message(_))) => received += 1,
            Err(e) if e.index == 0 => failed += 1,
            other => panic!("{other:?}"),
        }
    }
    // Found out by the slow look, which comes only where nothing else does.
    let failure = select.recv().unwrap_err();
    assert_eq!((failure.index, failure.source), (0, shmcast::RecvError::Superseded), "{failed} before");
    assert!(failure.to_string().contains("subscriber 0"), "{failure}");
}

/// Subscribers that are lent for a call are those of a select in all else: they have the same order, ends and losses.
#[test]
fn subscribers_that_are_lent_take_turns_and_stay_with_their_owner() {
    for wait in [Wait::Spin, Wait::Yield, Wait::Sleep(Duration::from_micros(50)), Wait::Park] {
        let dir = scratch();
        let (mut publishers, subscribers) = ends(dir.path(), 3);
        let [mut a, mut b, mut c] = <[Subscriber; 3]>::try_from(subscribers).unwrap();
        let mut turns = Turns::new(wait);
        let indices: Vec<_> = [&a, &b, &c].into_iter().map(|one| turns.add(one).unwrap()).collect();
        assert_eq!(indices, [0, 1, 2]);
        let deadline = Instant::now() + Duration::from_millis(5);
        assert_eq!(turns.recv_deadline(&mut [&mut a, &mut b, &mut c], deadline).unwrap(), None);
        assert!(Instant::now() >= deadline, "{wait:?}");
        for publisher in &mut publishers {
            publish(publisher, 4);
        }
        for turn in 0..9 {
            let mut lent = [&mut a, &mut b, &mut c];
            let (index, event) = turns.recv(&mut lent).unwrap();
            let Event::Message(m) = event else { panic!("{event:?}") };
            assert_eq!((index, m.sequence), (turn % 3, turn as u64 / 3 + 1), "{wait:?}");
        }
        assert!(matches!(b.try_recv().unwrap(), Some(Event::Message(m)) if m.sequence == 4));
        // Fewer of them, or others, can be lent as well.
        let mut lent = [&mut a];
        let found = turns.try_recv(&mut lent).unwrap();
        assert!(matches!(found, Some((0, Event::Message(m))) if m.sequence == 4));
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            drop(publishers.remove(1));
            publishers
        });
        let mut lent = [&mut a, &mut b];
        let found = turns.recv(&mut lent).unwrap();
        assert_eq!(found, (1, Event::End));
        let mut all = [a, b, c];
        let found = turns.recv_deadline(&mut all[..], Instant::now() + PATIENCE).unwrap();
        assert!(matches!(found, Some((2, Event::Message(m))) if m.sequence == 4), "{found:?}");
        drop(late.join().unwrap());
        for index in [0, 2] {
            assert_eq!(turns.recv(&mut all[..]).unwrap(), (index, Event::End), "{wait:?}");
        }
    }
}

#[test]
#[should_panic(expected = "would wait for ever")]
fn nobody_is_lent() {
    let _ = Turns::new(Wait::Yield).recv(&mut [] as &mut [Subscriber]);
}

#[test]
fn a_batch_that_is_stopped_goes_on_behind_the_event_where_it_stopped() {
    for (length, page) in [(8, true), (8, false), (700, true)] {
        let dir = scratch();
        let mut publisher = Publisher::builder("t").dir(dir.path()).capacity(4 * SMALL).open().unwrap();
        let builder = Subscriber::builder("t").dir(dir.path()).page(page).record_latency(page);
        let mut subscriber = builder.open().unwrap();
        for _ in 0..300 {
            publisher.publish(&vec![7; length]).unwrap();
        }
        let mut next = 1;
        // In the middle of a run, at its ends, and at the first.
        for stop in [1, 2, 17, 18, 31, 32, 33, 64, 65, 100, 299] {
            let before = next;
            let handed = subscriber.recv_batch(1000, |event| {
                let Event::Message(m) = event else { panic!("{event:?}") };
                assert_eq!((m.sequence, m.payload.len()), (next, length));
                next += 1;
                if m.sequence == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert_eq!(handed.unwrap() as u64, next - before, "{length} B, to {stop}");
            assert_eq!((next, subscriber.next_sequence()), (stop + 1, stop + 1), "{length} B");
        }
        // Events that are no messages stop as well.
        publisher.gap(310).unwrap();
        publisher.publish(b"x").unwrap();
        let mut events = Vec::new();
        let handed = subscriber.recv_batch(1000, |event| {
            events.push(event.into_owned());
            if events.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(handed.unwrap(), 2);
        assert!(matches!(events[1], shmcast::OwnedEvent::Gap { from: 301, to: 310 }), "{events:?}");
        assert_eq!(subscriber.recv_batch(1000, |_| ()).unwrap(), 1);
        if page {
            let channel = shmcast::Directory::at(dir.path()).channel("t").unwrap();
            let stats = &channel.readers[0].stats;
            assert_eq!((stats.received, stats.missed, stats.place.sequence), (301, 10, 312));
        }
    }
}

fn tagged(publisher: &mut Publisher, tag: u16) {
    publisher.publish_with(&tag.to_le_bytes(), Mark { tag, key: false }).unwrap();
}

#[test]
fn only_messages_of_the_tags_asked_for_are_handed_out_by_every_way_of_receiving() {
    let dir = scratch();
    let mut publisher = Publisher::builder("t").dir(dir.path()).capacity(4 * SMALL).open().unwrap();
    let builder = Subscriber::builder("t").dir(dir.path());
    let [mut waits, mut polls, mut batches, mut copies] =
        std::array::from_fn(|_| builder.clone().tags([3, u16::MAX]).open().unwrap());
    let mut nothing = builder.clone().tags([]).open().unwrap();
    for tag in [1, 3, 2, 2, u16::MAX, 3, 0] {
        tagged(&mut publisher, tag);
    }
    publisher.gap(20).unwrap();
    tagged(&mut publisher, 2);
    tagged(&mut publisher, 3);
    tagged(&mut publisher, 2);
    publisher.close();
    let word = |event: Event<'_>| match event {
        Event::Message(m) => {
            assert_eq!(m.payload, m.tag.to_le_bytes());
            m.sequence
        }
        Event::Gap { from: 8, to: 20 } => 1000,
        Event::End => 2000,
        other => panic!("{other:?}"),
    };
    let due = [2, 5, 6, 1000, 22, 2000];
    let mut heard: [Vec<u64>; 5] = Default::default();
    for _ in due {
        heard[0].push(word(waits.recv().unwrap()));
    }
    while let Some(event) = polls.try_recv().unwrap() {
        heard[1].push(word(event));
    }
    while batches.recv_batch(2, |event| heard[2].push(word(event))).unwrap() > 0 {}
    let mut buffer = [0; 8];
    while let Some(event) = copies.try_recv_into(&mut buffer).unwrap() {
        heard[3].push(match event {
            Event::Message(m) => m.sequence,
            other => word(other),
        });
    }
    while let Some(event) = nothing.try_recv().unwrap() {
        heard[4].push(word(event));
    }
    assert_eq!(heard[..4], [due, due, due, due]);
    assert_eq!(heard[4], [1000, 2000]);
    // All of them have received all of it, whatever they handed out.
    let channel = shmcast::Directory::at(dir.path()).channel("t").unwrap();
    assert_eq!(channel.readers.len(), 5);
    for reader in &channel.readers {
        assert_eq!((reader.stats.received, reader.stats.missed, reader.stats.place.sequence), (10, 13, 24));
    }
}

/// Losses are counted over all messages, and a wait that passes messages over keeps its deadline.
#[test]
fn losses_are_told_whatever_the_tag_of_what_was_lost() {
    let dir = scratch();
    let mut publisher = Publisher::builder("t").dir(dir.path()).capacity(SMALL).open().unwrap();
    let mut subscriber = Subscriber::builder("t").dir(dir.path()).tags([9]).open().unwrap();
    for _ in 0..5000 {
        tagged(&mut publisher, 1);
    }
    tagged(&mut publisher, 9);
    let Event::Lapped(Lapped { missed, resumed_at }) = subscriber.recv().unwrap() else { panic!() };
    assert_eq!(missed + 1, resumed_at);
    assert!(matches!(subscriber.recv().unwrap(), Event::Message(m) if m.sequence == 5001));
    let stats = &shmcast::Directory::at(dir.path()).channel("t").unwrap().readers[0].stats;
    assert_eq!((stats.missed, stats.received), (missed, 5001 - missed));

    let publishing = std::thread::spawn(move || {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(200) {
            tagged(&mut publisher, 1);
            std::thread::yield_now();
        }
        std::mem::forget(publisher);
    });
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(100) {
        match subscriber.recv_deadline(Instant::now() + Duration::from_millis(5)).unwrap() {
            None | Some(Event::Lapped(_)) => {}
            Some(other) => panic!("{other:?}"),
        }
    }
    assert!(start.elapsed() < PATIENCE);
    publishing.join().unwrap();
}

#[test]
fn a_message_whose_tag_nobody_asked_for_needs_no_room() {
    let dir = scratch();
    let mut publisher = Publisher::builder("t").dir(dir.path()).capacity(SMALL).open().unwrap();
    let mut publish = |tag: u16, bytes: usize| {
        publisher.publish_with(&vec![tag as u8; bytes], Mark { tag, key: false }).unwrap();
    };
    let mut subscriber = Subscriber::builder("t").dir(dir.path()).tags([7]).open().unwrap();
    let mut buffer = [0; 64];
    publish(1, 500);
    publish(7, 8);
    let event = subscriber.try_recv_into(&mut buffer).unwrap();
    assert!(matches!(event, Some(Event::Message(m)) if m.sequence == 2 && m.payload == [7; 8]));
    publish(1, 500);
    publish(1, 65);
    publish(7, 500);
    let too_small = Err(RecvError::TooSmall { needed: 500, available: 64 });
    assert_eq!(subscriber.recv_into(&mut buffer), too_small);
    assert_eq!(subscriber.next_sequence(), 5, "the message is still the next one");
    let mut large = [0; 500];
    let event = subscriber.recv_into(&mut large).unwrap();
    assert!(matches!(event, Event::Message(m) if m.sequence == 5 && m.payload == [7; 500]));
}

#[test]
fn a_call_leaves_out_a_limited_number_of_messages_and_keeps_its_deadline() {
    const MESSAGES: u64 = 20_000;
    for wait in [Wait::Spin, Wait::Yield, Wait::Sleep(Duration::from_secs(3600)), Wait::Park] {
        let dir = scratch();
        let mut publisher = Publisher::builder("t").dir(dir.path()).capacity(4 << 20).open().unwrap();
        let builder = Subscriber::builder("t").dir(dir.path()).tags([7]);
        // Nobody wakes a reader of a file. A select that parks looks every millisecond.
        let own = if wait == Wait::Park { Wait::Yield } else { wait };
        let mut subscriber = builder.wait(own).open().unwrap();
        for _ in 0..MESSAGES {
            tagged(&mut publisher, 1);
        }
        assert_eq!(subscriber.recv_deadline(Instant::now()).unwrap(), None, "{wait:?}");
        let next = subscriber.next_sequence();
        assert!(next > 1 && next < MESSAGES, "{wait:?}: {next}");
        // A wait goes on without a sleep.
        tagged(&mut publisher, 7);
        let event = subscriber.recv_deadline(Instant::now() + PATIENCE).unwrap();
        assert!(matches!(event, Some(Event::Message(m)) if m.sequence == MESSAGES + 1), "{wait:?}");
        let mut select = select(wait, vec![subscriber]);
        for _ in 0..MESSAGES {
            tagged(&mut publisher, 1);
        }
        tagged(&mut publisher, 7);
        assert_eq!(select.recv_deadline(Instant::now()).unwrap(), None, "{wait:?}");
        let event = select.recv_deadline(Instant::now() + PATIENCE).unwrap();
        assert!(matches!(event, Some((0, Event::Message(m))) if m.sequence == 2 * MESSAGES + 2), "{wait:?}");
    }
}

#[test]
fn a_subscriber_that_fails_does_not_hide_the_failures_of_the_others() {
    let dir = scratch();
    let (_publishers, subscribers) = ends(dir.path(), 3);
    let mut select = select(Wait::Yield, subscribers);
    for name in ["t0", "t2"] {
        std::fs::remove_dir_all(dir.path().join(name)).unwrap();
    }
    let mut failed = [false; 3];
    for _ in 0..6 {
        let error = select.recv_deadline(Instant::now()).unwrap_err();
        assert_eq!(error.source, RecvError::Superseded);
        failed[error.index] = true;
    }
    assert_eq!(failed, [true, false, true]);
}
