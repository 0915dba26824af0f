//! Channels of one type: what both ends agree on, and what happens where they do not.

use crate::support::{SMALL, publisher, subscriber};
use serde::{Deserialize, Serialize};
use shmcast::typed::{Event, RecvError, Schema};
use shmcast::{ChannelError, DecodeError, EncodeError, Mark, PublishError, Start};
use shmcast_testkit::{PATIENCE, scratch};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(Debug, Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Quote {
    instrument: u64,
    bid: i64,
    ask: i64,
}

impl Schema for Quote {
    const ID: u64 = 7;
    const NAME: &'static str = "quote/1";
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum News {
    Halted { instrument: u64, reason: String },
    Resumed { instrument: u64 },
}

impl Schema for News {
    const ID: u64 = 8;
    const NAME: &'static str = "news/1";
}

/// The number of quotes with another name.
#[derive(Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Impostor([u64; 3]);

impl Schema for Impostor {
    const ID: u64 = 7;
    const NAME: &'static str = "impostor/1";
}

#[test]
fn values_go_from_end_to_end_by_every_way_of_receiving() {
    let dir = scratch();
    let quote = |i: u64| Quote { instrument: i, bid: -(i as i64), ask: i as i64 };
    let mut quotes = publisher(dir.path()).capacity(SMALL).open_pod::<Quote>().unwrap();
    let mut reader = subscriber(dir.path()).open_pod::<Quote>().unwrap();
    assert_eq!((quotes.header().schema_id, quotes.header().schema.as_str()), (7, "quote/1"));
    assert!(reader.try_recv().unwrap().is_none());
    assert!(reader.recv_deadline(Instant::now() + Duration::from_millis(5)).unwrap().is_none());
    for i in 1..=3 {
        assert_eq!(quotes.publish(&quote(i)), Ok(i));
    }
    quotes.publish_with(&quote(4), Mark { tag: 5, key: true }).unwrap();
    quotes.close();
    let first = reader.recv().unwrap();
    assert!(matches!(first, Event::Message(m) if (m.sequence, m.payload) == (1, quote(1))));
    let second = reader.try_recv().unwrap();
    assert!(matches!(second, Some(Event::Message(m)) if (m.sequence, m.payload) == (2, quote(2))));
    reader.seek(2).unwrap();
    let rest: Vec<_> = reader.iter().take(4).map(Result::unwrap).collect();
    let payloads = rest.iter().filter_map(|event| match event {
        Event::Message(m) => Some((m.payload, m.tag, m.key)),
        _ => None,
    });
    assert_eq!(
        payloads.collect::<Vec<_>>(),
        [(quote(2), 0, false), (quote(3), 0, false), (quote(4), 5, true)]
    );
    assert_eq!((&rest[3], reader.next_sequence()), (&Event::End, 5));
}

#[test]
fn values_of_a_serde_type_that_do_not_fit_are_not_published() {
    let dir = scratch();
    let mut news = publisher(dir.path()).capacity(SMALL).max_message(64).open_serde::<News>().unwrap();
    let mut reader = subscriber(dir.path()).open_serde::<News>().unwrap();
    let halted = |reason: &str| News::Halted { instrument: 7, reason: reason.into() };
    let refused = news.publish(&halted(&"x".repeat(100))).unwrap_err();
    assert!(matches!(refused, EncodeError::TooLarge { max_message: 64 }), "{refused:?}");
    assert!(!refused.to_string().contains("--"), "{refused}");
    news.publish(&halted("volatility")).unwrap();
    news.publish(&News::Resumed { instrument: 7 }).unwrap();
    for expected in [halted("volatility"), News::Resumed { instrument: 7 }] {
        let got = reader.recv_deadline(Instant::now() + PATIENCE).unwrap();
        assert!(matches!(got, Some(Event::Message(m)) if m.payload == expected));
    }
}

#[test]
fn ends_of_different_schemas_do_not_meet() {
    let dir = scratch();
    drop(publisher(dir.path()).capacity(SMALL).open_pod::<Quote>().unwrap());
    for refused in [
        subscriber(dir.path()).open_serde::<News>().map(drop).unwrap_err(),
        publisher(dir.path()).open_serde::<News>().map(drop).unwrap_err(),
    ] {
        let ChannelError::Schema { name, found, wanted } = &refused else { panic!("{refused:?}") };
        assert_eq!((name.as_str(), found.id, wanted.id), ("t", 7, 8));
        let said = "has schema 7 \"quote/1\", and schema 8 \"news/1\" was asked for";
        assert!(refused.to_string().contains(said), "{refused}");
    }
    let refused = subscriber(dir.path()).open_pod::<Impostor>().map(drop).unwrap_err();
    assert!(refused.to_string().contains("\"impostor/1\" was asked for"), "{refused}");
    assert_eq!(
        publisher(dir.path()).open_pod::<Quote>().unwrap().epoch(),
        2,
        "who was refused began no epoch"
    );

    let bytes = scratch();
    drop(publisher(bytes.path()).capacity(SMALL).open().unwrap());
    let refused = subscriber(bytes.path()).open_pod::<Quote>().map(drop).unwrap_err();
    assert!(refused.to_string().contains("has no schema"), "{refused}");
    // Given up for a new one, it has the schema of the new publisher.
    let _quotes = publisher(bytes.path()).anew().open_pod::<Quote>().unwrap();
    subscriber(bytes.path()).open_pod::<Quote>().unwrap();
}

/// The schema is the publisher's word. One that breaks it is found out message by message.
#[test]
fn what_is_no_value_of_the_type_is_an_error_and_the_next_message_comes_next() {
    let dir = scratch();
    let quotes = publisher(dir.path()).capacity(SMALL).open_pod::<Quote>().unwrap();
    let mut reader = subscriber(dir.path()).start(Start::Oldest).open_pod::<Quote>().unwrap();
    let mut untyped = quotes.into_untyped();
    untyped.publish(b"short").unwrap();
    untyped.publish_pod(&Quote { instrument: 1, bid: 2, ask: 3 }).unwrap();
    let wrong = reader.recv().unwrap_err();
    assert!(
        matches!(wrong, RecvError::Decode(DecodeError::Size { sequence: 1, found: 5, wanted: 24 })),
        "{wrong:?}"
    );
    assert!(matches!(reader.recv().unwrap(), Event::Message(m) if m.payload.ask == 3));
    assert!(matches!(untyped.publish(&[0; 9000]), Err(PublishError::TooLarge(_))));

    let dir = scratch();
    let mut untyped = publisher(dir.path()).capacity(SMALL).open_serde::<News>().unwrap().into_untyped();
    let mut reader = subscriber(dir.path()).open_serde::<News>().unwrap();
    untyped.publish_serde(&(News::Resumed { instrument: 7 }, 1u8)).unwrap();
    let wrong = reader.recv().unwrap_err();
    assert!(matches!(wrong, RecvError::Decode(DecodeError::Trailing { left: 1, .. })), "{wrong:?}");
}
