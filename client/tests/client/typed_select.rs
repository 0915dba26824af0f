//! One wait for several channels, each with messages of a type of its own.

use crate::support::SMALL;
use allocation_counter::{AllocationInfo, measure};
use serde::{Deserialize, Serialize};
use shmcast::typed::{Event, Member, Pod, RecvError, Schema, Serde};
use shmcast::{DecodeError, Lapped, Publisher, Select, Start, Subscriber, SubscriberBuilder, Wait, typed};
use shmcast_testkit::{PATIENCE, scratch};
use std::path::Path;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(Debug, Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Quote {
    bid: i64,
    ask: i64,
}

impl Schema for Quote {
    const ID: u64 = 7;
    const NAME: &'static str = "quote/1";
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum News {
    Halted { reason: String },
    Resumed,
}

impl Schema for News {
    const ID: u64 = 8;
    const NAME: &'static str = "news/1";
}

const fn quote(bid: u64) -> Quote {
    Quote { bid: bid as i64, ask: bid as i64 + 1 }
}

fn news(number: u64) -> News {
    if number.is_multiple_of(3) { News::Resumed } else { News::Halted { reason: number.to_string() } }
}

/// The publishers of a channel of quotes, one of news, and one of bytes.
struct Sources {
    quotes: typed::Publisher<Quote, Pod>,
    news: typed::Publisher<News, Serde>,
    log: Publisher,
}

impl Sources {
    fn open(dir: &Path) -> Self {
        let builder = |name: &str| Publisher::builder(name).dir(dir).capacity(SMALL);
        Self {
            quotes: builder("quotes").open_pod().unwrap(),
            news: builder("news").open_serde().unwrap(),
            log: builder("log").open().unwrap(),
        }
    }

    fn publish(&mut self) {
        self.quotes.publish(&quote(self.quotes.next_sequence())).unwrap();
        self.news.publish(&news(self.news.next_sequence())).unwrap();
        self.log.publish(&self.log.next_sequence().to_le_bytes()).unwrap();
    }
}

/// A select of the three channels.
struct Desk {
    select: Select,
    quotes: Member<Quote, Pod>,
    news: Member<News, Serde>,
    log: usize,
}

impl Desk {
    fn open(dir: &Path, wait: Wait) -> Self {
        Self::with(wait, |name| Subscriber::builder(name).dir(dir).start(Start::Oldest))
    }

    fn with(wait: Wait, builder: impl Fn(&str) -> SubscriberBuilder) -> Self {
        let mut select = Select::new(wait);
        let quotes = select.add_typed(builder("quotes").open_pod::<Quote>().unwrap()).unwrap();
        let log = select.add(builder("log").open().unwrap()).unwrap();
        let news = select.add_typed(builder("news").open_serde::<News>().unwrap()).unwrap();
        assert_eq!((quotes.index(), log, news.index()), (0, 1, 2));
        Self { select, quotes, news, log }
    }
}

#[test]
fn every_way_of_waiting_receives_every_value_of_every_type() {
    const MESSAGES: u64 = 200;
    for wait in [
        Wait::Spin,
        Wait::Burst,
        Wait::SpinThenYield(10),
        Wait::Yield,
        Wait::Backoff,
        Wait::Sleep(Duration::from_micros(50)),
        Wait::Park,
    ] {
        let dir = scratch();
        let mut sources = Sources::open(dir.path());
        let Desk { mut select, mut quotes, news: mut members, log } = Desk::open(dir.path(), wait);
        let publishing = std::thread::spawn(move || {
            for turn in 0..MESSAGES {
                sources.publish();
                if turn % 50 == 0 {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        });
        let (mut next, mut ends) = ([1; 3], 0);
        while ends < 3 {
            let selected = select.recv_typed_deadline(Instant::now() + PATIENCE).unwrap();
            let selected = selected.expect("events come");
            let due = &mut next[selected.index()];
            if let Some(event) = selected.of(&mut quotes) {
                match event.unwrap() {
                    Event::Message(m) => assert_eq!((m.sequence, m.payload), (*due, quote(*due))),
                    Event::End => ends += 1,
                    other => panic!("{other:?}"),
                }
            } else if let Some(event) = selected.of(&mut members) {
                match event.unwrap() {
                    Event::Message(m) => assert_eq!((m.sequence, m.payload), (*due, news(*due))),
                    Event::End => ends += 1,
                    other => panic!("{other:?}"),
                }
            } else {
                assert_eq!(selected.index(), log);
                match selected.event() {
                    shmcast::Event::Message(m) => assert_eq!(m.payload, due.to_le_bytes()),
                    shmcast::Event::End => ends += 1,
                    other => panic!("{other:?}"),
                }
            }
            *due += 1;
        }
        assert_eq!(next, [MESSAGES + 2; 3], "{wait:?}: all messages and the end of each channel");
        publishing.join().unwrap();
    }
}

#[test]
fn values_and_bytes_take_turns_and_a_loss_is_of_its_channel() {
    let dir = scratch();
    let mut sources = Sources::open(dir.path());
    let Desk { mut select, mut quotes, mut news, .. } = Desk::open(dir.path(), Wait::Yield);
    assert!(select.try_recv_typed().unwrap().is_none());
    let soon = Instant::now() + Duration::from_millis(5);
    assert!(select.recv_typed_deadline(soon).unwrap().is_none() && Instant::now() >= soon);
    for _ in 0..10 {
        sources.publish();
    }
    let mut order = Vec::new();
    while let Some(selected) = select.try_recv_typed().unwrap() {
        order.push(selected.index());
    }
    assert_eq!(order, [0, 1, 2].repeat(10));

    for bid in 0..5000 {
        sources.quotes.publish(&quote(bid)).unwrap();
    }
    sources.news.publish(&News::Resumed).unwrap();
    let mut told = [None, None];
    for _ in 0..2 {
        let selected = select.recv_typed().unwrap();
        assert!(format!("{selected:?}").contains("index"));
        if let Some(event) = selected.of(&mut quotes) {
            let Event::Lapped(Lapped { missed, resumed_at }) = event.unwrap() else { panic!("{selected:?}") };
            assert_eq!(missed + 11, resumed_at);
            told[0] = Some(resumed_at);
        } else if let Some(event) = selected.of(&mut news) {
            assert!(matches!(event.unwrap(), Event::Message(m) if m.payload == News::Resumed));
            told[1] = Some(0);
        }
    }
    let [Some(resumed_at), Some(_)] = told else { panic!("{told:?}") };
    // The other calls of the select have the same events as bytes.
    assert!(matches!(select.recv().unwrap(), (0, shmcast::Event::Message(m)) if m.sequence == resumed_at));
    select.get_mut(quotes.index()).unwrap().seek(5010).unwrap();
    let last = select.recv_typed().unwrap().of(&mut quotes).unwrap().unwrap();
    assert!(matches!(last, Event::Message(m) if m.payload == quote(4999)), "an event can be read twice");
}

/// What is no value of its channel's type is an error of that event alone.
#[test]
fn a_message_of_another_type_holds_up_nobody() {
    let dir = scratch();
    let Sources { quotes: quotes_out, mut news, log: mut log_out } = Sources::open(dir.path());
    let Desk { mut select, mut quotes, news: mut members, log } = Desk::open(dir.path(), Wait::Yield);
    let mut bytes = quotes_out.into_untyped();
    bytes.publish(b"short").unwrap();
    bytes.publish_pod(&quote(1)).unwrap();
    news.publish(&News::Resumed).unwrap();
    log_out.publish(b"x").unwrap();
    let (mut wrong, mut right) = (0, Vec::new());
    while let Some(selected) = select.try_recv_typed().unwrap() {
        right.push(selected.index());
        match selected.of(&mut quotes) {
            Some(Err(RecvError::Decode(DecodeError::Size { sequence: 1, found: 5, wanted: 16 }))) => {
                wrong += 1
            }
            Some(Ok(Event::Message(m))) => assert_eq!((m.sequence, m.payload), (2, quote(1))),
            None => assert!(selected.index() == log || selected.of(&mut members).unwrap().is_ok()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((wrong, right), (1, vec![0, 1, 2, 0]));

    // A member of another select is told the schema of the channel in whose place it stands.
    let mut other = Select::new(Wait::Yield);
    let subscriber = Subscriber::builder("news").dir(dir.path()).start(Start::Oldest).open_serde::<News>();
    other.add_typed(subscriber.unwrap()).unwrap();
    let selected = other.try_recv_typed().unwrap().unwrap();
    assert!(matches!(selected.of(&mut quotes), Some(Err(RecvError::Decode(_) | RecvError::Schema { .. }))));
}

#[test]
fn receiving_by_a_select_allocates_nothing() {
    let dir = scratch();
    let mut sources = Sources::open(dir.path());
    let Desk { mut select, mut quotes, .. } = Desk::open(dir.path(), Wait::Yield);
    let mut received = 0;
    let counted = measure(|| {
        for _ in 0..30 {
            sources.quotes.publish(&quote(1)).unwrap();
            sources.log.publish(b"x").unwrap();
            while let Some(selected) = select.try_recv_typed().unwrap() {
                received += u64::from(selected.of(&mut quotes).is_some());
            }
            let soon = Instant::now() + Duration::from_micros(50);
            assert!(select.recv_typed_deadline(soon).unwrap().is_none());
            sources.quotes.publish(&quote(2)).unwrap();
            received += u64::from(select.recv().is_ok());
        }
    });
    assert_eq!((counted, received), (AllocationInfo::default(), 60));
}

#[test]
fn a_select_in_an_event_loop_has_values_as_well() {
    let dir = scratch();
    let mut sources = Sources::open(dir.path());
    let Desk { mut select, mut quotes, .. } = Desk::open(dir.path(), Wait::Park);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let soon = Duration::from_millis(5);
        assert!(tokio::time::timeout(soon, select.recv_typed_async()).await.is_err(), "it waits");
        sources.quotes.publish(&quote(5)).unwrap();
        let selected = tokio::time::timeout(PATIENCE, select.recv_typed_async()).await.unwrap().unwrap();
        let event = selected.of(&mut quotes).unwrap().unwrap();
        assert!(matches!(event, Event::Message(m) if m.payload == quote(5)));
    });
}
