//! A subscriber of a segment that continues the channel of another segment, without the daemon that would make it.

use super::*;
use crate::clock::Clock;
use crate::hosting::new_header;
use crate::message::Lapped;
use crate::message::Message;
use shmcast_layout::layout::geometry::Geometry;
use shmcast_layout::layout::header::Header;
use shmcast_layout::mem::{Preparation, memfd};
use shmcast_layout::reader_page::ReaderPage;
use std::time::Duration;

const CAPACITY: u64 = 64 << 10;

/// The second segment of a channel. The first segment had messages up to 100, of epoch 1.
fn continued() -> Segment {
    let geometry = Geometry::new(CAPACITY, None).unwrap();
    let file = memfd::create("continued").unwrap();
    let header = new_header("t", geometry, Clock::of_this_host(), (0, String::new()), String::new(), None);
    let segment = Segment::create(&file, header).unwrap();
    segment.continue_from(101, 1, 5000);
    segment
}

/// A subscriber of `segment` with a page, as if a daemon had sent the segment and the page.
fn subscribe(segment: Segment, start: Start) -> Subscriber {
    let builder = Subscriber::builder("t").start(start).prepare(Preparation::NONE);
    let page = memfd::create("page").unwrap();
    let show = |header: &Header, place| {
        let page = ReaderPage::create(&page, 1, crate::Role::Reader, header.uuid, place).unwrap();
        Ok(Some(Page { page, shown: None }))
    };
    builder.read(segment, show).unwrap()
}

fn next(subscriber: &mut Subscriber) -> Option<Event<'static>> {
    subscriber.try_recv().unwrap().map(|event| match event {
        Event::Lapped(lapped) => Event::Lapped(lapped),
        Event::NewEpoch { epoch } => Event::NewEpoch { epoch },
        Event::Message(m) => Event::Message(Message { payload: &[], ..m }),
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_start_before_a_continued_segment_is_a_loss_and_no_damage() {
    for (from, published) in [(1, 10), (100, 10), (60, 3000)] {
        let segment = continued();
        let mut writer = segment.writer(1, 0).unwrap();
        for _ in 0..published {
            writer.publish(&[7; 40], 0, false, 0).unwrap();
        }
        let oldest = segment.locator().oldest().unwrap().sequence;
        let last = writer.next_sequence() - 1;
        let mut subscriber = subscribe(segment, Start::Sequence(from));
        assert_eq!(subscriber.next_sequence(), from);
        let lapped = Lapped { missed: oldest - from, resumed_at: oldest };
        assert_eq!(next(&mut subscriber), Some(Event::Lapped(lapped)), "from {from}");
        let mut due = oldest;
        while let Some(event) = next(&mut subscriber) {
            match event {
                Event::Message(m) => assert_eq!(m.sequence, due),
                // The record of the epoch is the first of the segment. A reader that is not lapped reads it.
                Event::NewEpoch { epoch: 2 } if published == 10 && due == 101 => continue,
                other => panic!("{other:?}"),
            }
            due += 1;
        }
        assert_eq!(due, last + 1);
    }
}

/// Each poll finds a record that cannot be received, such as an invalid record of a strict channel.
#[test]
fn every_wait_keeps_its_deadline_before_a_record_that_cannot_be_had() {
    let long = Duration::from_secs(3600);
    for wait in [
        Wait::Spin,
        Wait::Burst,
        Wait::SpinThenYield(10),
        Wait::Yield,
        Wait::Backoff,
        Wait::Sleep(Duration::from_micros(100)),
        Wait::Sleep(long),
    ] {
        let segment = continued();
        let mut writer = segment.writer(1, 0).unwrap();
        let mut subscriber = subscribe(segment, Start::Latest);
        subscriber.wait = wait;
        writer.publish(b"x", 0, false, 0).unwrap();
        let start = Instant::now();
        let deadline = start + Duration::from_millis(20);
        let mut waiter = Waiter::default();
        loop {
            match subscriber.idle(&mut waiter, Some(deadline), None).unwrap() {
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(None) => break,
                ControlFlow::Break(Some(_)) => panic!("{wait:?}: nothing was received"),
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{wait:?} ignores its deadline");
        }
        assert!(Instant::now() >= deadline, "{wait:?} gives up too soon");
    }
}

#[test]
fn a_seek_takes_back_a_start_that_was_too_early() {
    let segment = continued();
    segment.writer(1, 0).unwrap().publish(b"x", 0, false, 0).unwrap();
    let mut subscriber = subscribe(segment, Start::Sequence(5));
    subscriber.seek(101).unwrap();
    assert!(matches!(next(&mut subscriber), Some(Event::Message(m)) if m.sequence == 101));
}

/// Messages that the publisher sent between the reader's last empty poll and the check of the lock come first.
#[test]
fn a_death_is_told_behind_what_nobody_has_polled_for_yet() {
    let segment = continued();
    let mut writer = segment.writer(1, 0).unwrap();
    let mut subscriber = subscribe(segment, Start::Latest);
    subscriber.watch = Some(Box::new(Watch::of_lock(memfd::create("lock nobody holds").unwrap())));
    writer.publish(b"x", 0, false, 0).unwrap();
    let gone = |subscriber: &mut Subscriber| {
        let told = subscriber.publisher_gone();
        matches!(told, Some(Outcome::Other(Event::PublisherGone { epoch: 2 })))
    };
    assert!(!gone(&mut subscriber));
    assert!(matches!(next(&mut subscriber), Some(Event::Message(m)) if m.sequence == 101));
    assert!(gone(&mut subscriber), "and then at once");
    assert!(!gone(&mut subscriber), "once");
}

/// If a reader cannot read the board, it gets a loss. The board has counted the lost messages, but they must not count as left
/// out, too.
#[test]
fn a_loss_that_was_told_is_not_counted_once_more_by_the_board() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = crate::Publisher::builder("t").dir(dir.path()).capacity(CAPACITY);
    let mut publisher = publisher.board(crate::BoardSpec::new(0..1).keys(8).value(64)).open().unwrap();
    let mut reader = Subscriber::builder("t").dir(dir.path()).conflate().open().unwrap();
    let mut publish =
        |count: u64| (0..count).for_each(|n| _ = publisher.publish(&[n as u8 % 5; 40]).unwrap());
    publish(3_000);
    let told = reader.skip_in_ring().unwrap();
    let Some(Outcome::Other(Event::Lapped(Lapped { missed, .. }))) = told else { panic!("no loss") };
    publish(3_000);
    let (mut received, mut left_out, mut lost) = (0, 0, missed);
    while let Some(event) = reader.try_recv().unwrap() {
        match event {
            Event::Message(message) => {
                received += 1;
                left_out += message.conflated.unwrap_or(0);
            }
            Event::Lapped(lapped) => lost += lapped.missed,
            Event::Live { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(received > 0 && lost > missed);
    assert_eq!(received + left_out + lost, 6_000, "{received} received, {left_out} left out, {lost} lost");
}
