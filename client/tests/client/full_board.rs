//! Conflating readers of a board that refused keys: exact counts, and no removal that never happened.

use crate::support::{SMALL, publisher, subscriber};
use shmcast::{BoardSpec, ChannelError, Event, Publisher, Start, Subscriber};
use shmcast_testkit::scratch;
use std::path::Path;

/// A channel whose board has room for one key of one byte, and a conflating reader that begins before the first message.
fn begin(dir: &Path) -> (Publisher, Subscriber) {
    let spec = BoardSpec::new(0..1).keys(1).value(100);
    let publisher = publisher(dir).capacity(SMALL).board(spec).open().unwrap();
    (publisher, subscriber(dir).conflate_behind(8 << 10).open().unwrap())
}

fn publish(publisher: &mut Publisher, payloads: &[&str]) {
    for payload in payloads {
        publisher.publish(payload.as_bytes()).unwrap();
    }
}

/// Takes messages of the stream.
fn read(reader: &mut Subscriber, payloads: &[&str]) {
    for payload in payloads {
        let event = reader.recv().unwrap();
        assert!(
            matches!(event, Event::Message(m) if m.payload == payload.as_bytes() && m.conflated.is_none()),
            "{payload}: {event:?}"
        );
    }
}

/// The messages that a reader gets at its next lap, each with the number of messages that were left out; and the number of messages that it
/// missed besides.
fn next_lap(reader: &mut Subscriber) -> (Vec<(String, u64)>, u64) {
    let (mut given, mut missed) = (Vec::new(), 0);
    // One in 64 polls that find nothing notices that the reader was lapped.
    for _ in 0..2000 {
        match reader.try_recv().unwrap() {
            Some(Event::Message(m)) => {
                let left_out = m.conflated.expect("a message of the board");
                given.push((String::from_utf8_lossy(m.payload).into_owned(), left_out));
            }
            Some(Event::Lapped(lapped)) => missed += lapped.missed,
            Some(Event::Live { .. }) => return (given, missed),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    panic!("no Live: {given:?}");
}

/// Publishes so many messages of a key that each reader is lapped.
fn lap(publisher: &mut Publisher, payload: &str) -> u64 {
    (0..5000).for_each(|_| publish(publisher, &[payload]));
    5000
}

/// The newest message of the key has another tag, so a reader with tags would get neither this message nor a word of the older messages
/// that it replaces.
#[test]
fn a_reader_of_some_tags_neither_conflates_nor_begins_with_the_board() {
    let dir = scratch();
    let (_publisher, _) = begin(dir.path());
    let with_tags = || subscriber(dir.path()).tags([7]);
    for builder in
        [with_tags().conflate(), with_tags().conflate_behind(9000), with_tags().start(Start::Board)]
    {
        let opened = builder.open();
        assert!(matches!(opened, Err(ChannelError::BoardWithTags { .. })), "{opened:?}");
    }
    // Such options do not concern a program that reads single keys.
    let all = with_tags().conflate().start(Start::Oldest).gate("no such gate");
    assert!(all.open_board().is_ok());
}

/// The board refused the key's first message. It counts the key's messages from the first one that found room.
#[test]
fn messages_are_counted_from_the_first_one_that_found_room() {
    let dir = scratch();
    let (mut publisher, mut reader) = begin(dir.path());
    let first = ["a1", "b1", "a", "b2"];
    publish(&mut publisher, &first);
    read(&mut reader, &first);
    let newer = lap(&mut publisher, "b3");
    assert_eq!(next_lap(&mut reader), (vec![("b3".into(), newer - 1)], 0));
    // The same, message by message: the reader is as fast as the publisher.
    let dir = scratch();
    let (mut publisher, mut reader) = begin(dir.path());
    for payload in ["a1", "b1", "b2", "a", "b3", "b4"] {
        publish(&mut publisher, &[payload]);
        read(&mut reader, &[payload]);
    }
    let newer = lap(&mut publisher, "b5");
    assert_eq!(next_lap(&mut reader), (vec![("b5".into(), newer - 1)], 0));
}

/// The key was removed, another key got its slot, and the board refused the key when it came back.
#[test]
fn messages_are_counted_exactly_after_a_key_that_came_back_was_refused() {
    for at_once in [true, false] {
        let dir = scratch();
        let (mut publisher, mut reader) = begin(dir.path());
        let first = ["a1", "a", "b1", "a2", "b", "a3", "a4"];
        if at_once {
            publish(&mut publisher, &first);
            read(&mut reader, &first);
        } else {
            for payload in first {
                publish(&mut publisher, &[payload]);
                read(&mut reader, &[payload]);
            }
        }
        let newer = lap(&mut publisher, "a5");
        assert_eq!(next_lap(&mut reader), (vec![("a5".into(), newer - 1)], 0), "{at_once}");
    }
}

/// Another key was removed, and its slot given to a third. The key that was never on the board was not removed.
#[test]
fn a_key_that_was_only_refused_is_not_removed_by_the_removal_of_another() {
    let dir = scratch();
    let (mut publisher, mut reader) = begin(dir.path());
    for payload in ["a1", "b1"] {
        publish(&mut publisher, &[payload]);
        read(&mut reader, &[payload]);
    }
    publish(&mut publisher, &["a", "c1"]);
    let newer = lap(&mut publisher, "c2");
    // The removal of "a" itself is not on the board: it is missed, and the reader is told of it by another message.
    assert_eq!(next_lap(&mut reader), (vec![("a".into(), 0), ("c2".into(), newer)], 1));
}

/// As long as the board has refused no message, each key that a reader got was on it.
#[test]
fn the_removal_of_a_key_is_told_however_early_its_only_message_was_read() {
    let dir = scratch();
    let spec = BoardSpec::new(0..1).keys(2).value(100);
    let mut publisher = publisher(dir.path()).capacity(SMALL).board(spec).open().unwrap();
    let mut reader = subscriber(dir.path()).conflate_behind(8 << 10).open().unwrap();
    for payload in ["a1", "b1"] {
        publish(&mut publisher, &[payload]);
        read(&mut reader, &[payload]);
    }
    publish(&mut publisher, &["a", "c1", "c2"]);
    let newer = lap(&mut publisher, "c3");
    assert_eq!(next_lap(&mut reader), (vec![("a".into(), 0), ("c3".into(), newer + 1)], 1));
    // And a removal that the reader itself received is not told again. The board has no room for the key that comes last.
    publish(&mut publisher, &["c", "d1"]);
    read(&mut reader, &["c", "d1"]);
    publish(&mut publisher, &["e1"]);
    let newer = lap(&mut publisher, "d2");
    assert_eq!(next_lap(&mut reader), (vec![("d2".into(), newer - 1)], 1));
}
