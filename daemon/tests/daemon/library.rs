//! Library features beyond a single publisher or subscriber, with channels of a real daemon: several channels at once, streams, types, and
//! reports of a publisher's death. The library's own tests cover these features without a daemon.

use futures_util::StreamExt;
use nix::sys::signal::Signal;
use shmcast::typed::{Event as TypedEvent, RecvError as TypedError, Schema};
use shmcast::{ChannelError, Client, Event, OwnedEvent, Publisher, Select, Start, Subscriber, Wait};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::process::{at_socket, my_role, my_socket};
use shmcast_testkit::{PATIENCE, Process, role, wait_for, wait_until};
use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

/// A nap longer than any of these tests. A reader that is not woken sleeps through the test, which then fails.
const FOR_EVER: Duration = Duration::from_secs(600);
/// A time longer than any reader takes to notice that a publisher has died. A reader checks this every 10 ms.
const QUIET: Duration = Duration::from_millis(200);

fn daemon() -> Daemon {
    let limits = "[limits]\nrequests_per_second = 1000000\nrequest_burst = 1000000\n".to_owned();
    let channels = ["a", "b", "c"].map(|name| channel(name, FOR_ALL)).concat();
    Daemon::start(&(limits + &channels + &channel("strict", &format!("mode = \"strict\"\n{FOR_ALL}"))))
}

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    let Some(name) = my_role() else { return };
    let client = Client::at(my_socket()).unwrap();
    let mut publisher = publishing(&client, &name).open().unwrap();
    for _ in 0..3 {
        publisher.publish(b"x").unwrap();
    }
    thread::sleep(FOR_EVER);
}

/// A process that publishes three messages and stays.
fn publisher(daemon: &Daemon, channel: &str) -> Process {
    Process::start(at_socket(&mut role!(channel), &daemon.socket()))
}

/// The events that a subscriber receives in a thread of its own.
fn events(builder: shmcast::SubscriberBuilder) -> Receiver<OwnedEvent> {
    let (send, events) = mpsc::channel();
    let mut subscriber = builder.open().unwrap();
    thread::spawn(move || {
        while let Ok(event) = subscriber.recv().map(Event::into_owned) {
            if send.send(event).is_err() {
                return;
            }
        }
    });
    events
}

fn next(events: &Receiver<OwnedEvent>) -> OwnedEvent {
    events.recv_timeout(PATIENCE).expect("a reader sleeps through it")
}

fn expect_three_messages(events: &Receiver<OwnedEvent>) {
    for _ in 0..3 {
        let event = next(events);
        assert!(matches!(event, OwnedEvent::Message(_)), "{event:?}");
    }
}

/// On a strict channel, each publisher gets new memory, and only the charter says that the channel had ended.
#[test]
fn a_publisher_of_a_daemon_knows_whether_it_follows_an_end() {
    let daemon = daemon();
    let client = daemon.client();
    for name in ["a", "strict"] {
        let open = || wait_for("a publisher", || publishing(&client, name).open().ok());
        let first = open();
        assert!(!first.follows_end() && !first.is_removed(), "{name}");
        first.close();
        for _ in 0..2 {
            let next = open();
            assert!(next.follows_end(), "{name}");
            next.close();
        }
        open().leave_open();
        let next = open();
        assert!(!next.follows_end(), "{name}");
        next.close();
    }
}

/// An earlier mistake: the count ended with the reader's ring, and the next publisher of a strict channel has a ring of its own.
#[test]
fn messages_of_the_next_publishers_rings_are_counted_too() {
    let daemon = daemon();
    let client = daemon.client();
    let publish = |count: u64| {
        let mut publisher = wait_for("a publisher", || publishing(&client, "strict").open().ok());
        for _ in 0..count {
            publisher.publish(b"x").unwrap();
        }
        publisher
    };
    let first = publish(10);
    let mut reader = Subscriber::builder("strict").client(&client).start(Start::Oldest).open().unwrap();
    assert_eq!((reader.messages_up_to(u64::MAX), reader.is_between_rings()), (10, false));
    first.close();
    publish(200).close();
    let _third = publish(100);
    wait_until("the rings of all publishers", || reader.messages_up_to(u64::MAX) == 310);
    assert_eq!((reader.messages_up_to(215), reader.messages_up_to(5)), (215, 5));
    assert!((311 - 64..=311).contains(&reader.published_end()) && reader.is_between_rings());
    assert_eq!(reader.next_sequence(), 1, "the reader keeps its place");
    let mut received = 0;
    while received < 310 {
        received += u64::from(matches!(reader.recv().unwrap(), Event::Message(_)));
    }
    assert_eq!((reader.messages_up_to(u64::MAX), reader.is_between_rings()), (0, false));
}

#[test]
fn readers_of_a_daemon_are_told_of_a_publisher_that_died_once_and_of_none_that_lives() {
    for name in ["a", "strict"] {
        let mut daemon = daemon();
        let client = daemon.client();
        let builder = Subscriber::builder(name).client(&client).watch_publisher(true);
        let readers = [
            events(builder.clone().wait(Wait::Park).longest_nap(FOR_EVER)),
            events(builder.clone().wait(Wait::Yield)),
        ];
        let unasked = events(Subscriber::builder(name).client(&client).wait(Wait::Park));
        let quiet = |why: &str| {
            thread::sleep(QUIET);
            for reader in &readers {
                assert_eq!(reader.try_recv().ok(), None, "{name}: {why}");
            }
        };
        for epoch in 1..=2 {
            let process = publisher(&daemon, name);
            for reader in &readers {
                if epoch > 1 {
                    assert_eq!(next(reader), OwnedEvent::NewEpoch { epoch });
                }
                expect_three_messages(reader);
            }
            process.pause();
            quiet("it is stopped");
            process.kill();
            for reader in &readers {
                assert_eq!(next(reader), OwnedEvent::PublisherGone { epoch }, "{name}");
            }
            quiet("it was told");
        }
        let late = events(builder.clone().wait(Wait::Park).longest_nap(FOR_EVER));
        assert_eq!(next(&late), OwnedEvent::PublisherGone { epoch: 2 }, "{name}: to one who comes late");

        // The next publisher dies while the daemon is away. The next daemon reports the death.
        let process = publisher(&daemon, name);
        for reader in &readers {
            assert_eq!(next(reader), OwnedEvent::NewEpoch { epoch: 3 });
            expect_three_messages(reader);
        }
        daemon.kill();
        process.kill();
        quiet("nobody knows yet");
        daemon.restart();
        for reader in &readers {
            assert_eq!(next(reader), OwnedEvent::PublisherGone { epoch: 3 }, "{name}");
        }
        quiet("it was told");

        // A publisher that closes the channel has not died.
        let mut last = wait_for("a publisher", || publishing(&client, name).open().ok());
        last.publish(b"x").unwrap();
        last.close();
        for reader in &readers {
            assert_eq!(next(reader), OwnedEvent::NewEpoch { epoch: 4 });
            assert!(matches!(next(reader), OwnedEvent::Message(_)));
            assert_eq!(next(reader), OwnedEvent::End);
        }
        quiet("it closed");
        assert!(!unasked.try_iter().any(|event| matches!(event, OwnedEvent::PublisherGone { .. })));
    }
}

/// After this loss of memory, generations and epochs count from 1 again. So the living publisher has the numbers of the dead one.
#[test]
fn the_death_of_one_before_the_channel_began_again_is_taken_for_its_namesakes() {
    let mut daemon = daemon();
    let client = daemon.client();
    let builder = Subscriber::builder("a").client(&client).watch_publisher(true);
    let reader = events(builder.wait(Wait::Park).longest_nap(FOR_EVER));
    kill_when_heard(&daemon, &reader);
    daemon.kill();
    std::fs::remove_dir_all(daemon.socket().with_extension("charters")).unwrap();
    daemon.restart();
    let process = publisher(&daemon, "a");
    assert_eq!(next(&reader), OwnedEvent::Restarted);
    expect_three_messages(&reader);
    thread::sleep(QUIET);
    assert_eq!(reader.try_recv().ok(), None, "it lives");
    process.kill();
    assert_eq!(next(&reader), OwnedEvent::PublisherGone { epoch: 1 });
}

fn kill_when_heard(daemon: &Daemon, reader: &Receiver<OwnedEvent>) {
    let process = publisher(daemon, "a");
    expect_three_messages(reader);
    process.kill();
    assert_eq!(next(reader), OwnedEvent::PublisherGone { epoch: 1 });
}

/// Readers come and go, and publishers die and are replaced immediately. The events must come in a possible order.
#[test]
fn a_death_is_told_before_the_successor_or_not_at_all() {
    let daemon = daemon();
    let client = daemon.client();
    let mut reader = Subscriber::builder("strict").client(&client).watch_publisher(true);
    reader = reader.wait(Wait::Park).longest_nap(FOR_EVER);
    let reader = events(reader);
    let mut told = 0;
    for epoch in 1..=40u64 {
        let mut alive = wait_for("the channel", || publishing(&client, "strict").open().ok());
        alive.publish(b"x").unwrap();
        loop {
            match next(&reader) {
                OwnedEvent::Message(m) => {
                    assert_eq!(m.sequence, epoch);
                    break;
                }
                OwnedEvent::NewEpoch { epoch: new } => assert_eq!(new, epoch),
                OwnedEvent::PublisherGone { epoch: gone } => {
                    assert_eq!(gone, epoch - 1);
                    told += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        die(alive);
        if epoch % 4 == 0 {
            assert_eq!(next(&reader), OwnedEvent::PublisherGone { epoch });
            told += 1;
        }
    }
    assert!((10..=40).contains(&told), "{told}");
}

/// Ends the publisher as if the process had been killed: nothing is closed.
fn die(publisher: Publisher) {
    let died = thread::spawn(move || {
        let _publisher = publisher;
        std::panic::resume_unwind(Box::new("dies without a word"));
    });
    assert!(died.join().is_err());
}

fn parked(client: &Client, name: &str) -> Subscriber {
    let builder = Subscriber::builder(name).client(client).wait(Wait::Park);
    builder.longest_nap(FOR_EVER).start(Start::Oldest).open().unwrap()
}

/// Publishes on one channel after the other, with pauses between. Returns the number of messages on each channel.
fn publish_on(client: &Client, names: [&'static str; 4], count: u64) -> thread::JoinHandle<[u64; 4]> {
    let client = client.clone();
    thread::spawn(move || {
        let mut publishers = names.map(|name| publishing(&client, name).open().unwrap());
        let mut rng = fastrand::Rng::with_seed(0x5eed);
        for message in 0..count {
            publishers[rng.usize(..4)].publish(&message.to_le_bytes()).unwrap();
            match rng.u64(..16) {
                0..8 => {}
                8..13 => thread::sleep(Duration::from_nanos(rng.u64(..50_000))),
                13..15 => thread::sleep(Duration::from_micros(rng.u64(..500))),
                _ => thread::sleep(Duration::from_micros(rng.u64(..5_000))),
            }
        }
        publishers.map(|publisher| publisher.next_sequence() - 1)
    })
}

const NAMES: [&str; 4] = ["a", "b", "c", "strict"];

/// The naps are practically endless, so a single lost wake-up shows as a select that never returns.
#[test]
fn a_select_that_parks_sleeps_through_a_message_of_one_of_its_channels() {
    let mut daemon = daemon();
    let client = daemon.client();
    let mut select = Select::new(Wait::Park);
    for name in NAMES {
        select.add(parked(&client, name)).unwrap();
    }
    let publishing = publish_on(&client, NAMES, 3000);
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let (mut received, mut ends) = ([0; 4], 0);
        while ends < 4 {
            match select.recv().unwrap() {
                (i, Event::Message(m)) => {
                    received[i] += 1;
                    assert_eq!(m.sequence, received[i], "{}", NAMES[i]);
                }
                (_, Event::End) => ends += 1,
                (_, Event::NewEpoch { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        done.send((received, select)).unwrap();
    });
    let published = publishing.join().unwrap();
    let (received, mut select) = is_done.recv_timeout(PATIENCE).expect("the select sleeps through the end");
    assert_eq!(received, published);

    // The message comes while the daemon is away, and another one with the next daemon.
    let mut publisher = publishing_again(&client, "b");
    receive_one(&mut select, &mut publisher);
    daemon.kill();
    receive_one(&mut select, &mut publisher);
    daemon.restart();
    wait_until("all to come back", || (0..4).all(|i| select.get(i).unwrap().is_registered() == Some(true)));
    receive_one(&mut select, &mut publisher);
    let mut strict = publishing_again(&client, "strict");
    receive_one(&mut select, &mut strict);
    let before = cpu_time();
    assert_eq!(select.recv_deadline(std::time::Instant::now() + Duration::from_millis(500)).unwrap(), None);
    assert!(cpu_time() - before < Duration::from_millis(100), "it sleeps while nothing comes");
}

/// CPU time of this thread so far.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
}

fn publishing_again(client: &Client, name: &str) -> Publisher {
    wait_for("the channel", || publishing(client, name).open().ok())
}

/// A message that comes while the select sleeps wakes it.
fn receive_one(select: &mut Select, publisher: &mut Publisher) {
    let due = publisher.next_sequence();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            publisher.publish(b"x").unwrap();
        });
        loop {
            match select.recv().unwrap() {
                (_, Event::Message(m)) => return assert_eq!(m.sequence, due),
                (_, Event::NewEpoch { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_select_in_an_event_loop_loses_a_message_with_a_future_that_is_dropped() {
    let daemon = daemon();
    let client = daemon.client();
    let mut select = Select::new(Wait::Park);
    for name in NAMES {
        select.add(parked(&client, name)).unwrap();
    }
    let (mut received, mut ends, mut rng) = ([0; 4], 0, fastrand::Rng::with_seed(3));
    let receiving = async {
        let first = tokio::time::timeout(Duration::from_millis(1), select.recv_async()).await;
        assert!(first.is_err(), "nothing is published: a future is dropped while it sleeps");
        let publishing = publish_on(&client, NAMES, 2000);
        while ends < 4 {
            let patience = Duration::from_micros(rng.u64(..1500));
            tokio::select! {
                biased;
                found = select.recv_async() => match found.unwrap() {
                    (i, Event::Message(m)) => {
                        received[i] += 1;
                        assert_eq!(m.sequence, received[i], "{}", NAMES[i]);
                    }
                    (_, Event::End) => ends += 1,
                    (_, Event::NewEpoch { .. }) => {}
                    other => panic!("{other:?}"),
                },
                () = tokio::time::sleep(patience) => {}
            }
        }
        publishing
    };
    let done = runtime().block_on(async { tokio::time::timeout(PATIENCE, receiving).await });
    let publishing = done.expect("all messages come");
    assert_eq!(received, publishing.join().unwrap());
}

#[test]
fn a_stream_in_a_task_of_its_own_receives_everything_and_goes_on_where_it_was_dropped() {
    let daemon = daemon();
    let client = daemon.client();
    let mut subscriber = parked(&client, "a");
    let publishing = publish_on(&client, NAMES, 1000);
    let (first, rest) = runtime().block_on(async {
        let is_message = |event: Result<OwnedEvent, _>| matches!(event.unwrap(), OwnedEvent::Message(_));
        // The borrowed stream is dropped in the middle.
        let first = subscriber.stream().take(100).filter(|_| std::future::ready(true)).count().await;
        let _ = tokio::time::timeout(Duration::from_micros(100), subscriber.stream().next()).await;
        let next = subscriber.next_sequence();
        let rest = tokio::spawn(async move {
            let mut stream = subscriber.into_stream();
            let mut rest = 0;
            loop {
                let event =
                    tokio::time::timeout(PATIENCE, stream.next()).await.expect("it is woken").unwrap();
                if matches!(event, Ok(OwnedEvent::End)) {
                    return rest;
                }
                rest += u64::from(is_message(event));
            }
        });
        assert!(first == 100 && (101..=102).contains(&next), "{first}, {next}");
        (next - 1, rest.await.unwrap())
    });
    assert_eq!(first + rest, publishing.join().unwrap()[0]);
}

macro_rules! schema {
    ($type:ident, $id:literal, $name:literal) => {
        #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
        #[repr(C)]
        pub(crate) struct $type(pub(crate) u64);

        impl Schema for $type {
            const ID: u64 = $id;
            const NAME: &'static str = $name;
        }
    };
}

schema!(Price, 1, "price/1");
schema!(Volume, 2, "volume/1");

#[test]
fn a_daemons_channel_has_the_schema_of_its_configuration() {
    let config = |schema: &str| channel("a", &format!("{schema}\n{FOR_ALL}"));
    let daemon = Daemon::start(&config("schema_id = 1\nschema = \"price/1\""));
    let client = daemon.client();
    let mut prices = publishing(&client, "a").open_pod::<Price>().unwrap();
    let mut reader = Subscriber::builder("a").client(&client).open_pod::<Price>().unwrap();
    prices.publish(&Price(10_025)).unwrap();
    assert!(matches!(reader.recv().unwrap(), TypedEvent::Message(m) if m.payload == Price(10_025)));
    let refused = Subscriber::builder("a").client(&client).open_pod::<Volume>().map(drop).unwrap_err();
    assert!(matches!(&refused, ChannelError::Schema { found, .. } if found.name == "price/1"), "{refused:?}");

    // The next publisher's channel has another type. A subscriber of prices gets an error.
    daemon.configure(&config("schema_id = 2\nschema = \"volume/1\""));
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_log(&["event=\"reloaded\"", "kept as made until the next publisher [", "a"]);
    prices.publish(&Price(10_030)).unwrap();
    prices.close();
    let mut volumes = wait_for("the change", || publishing(&client, "a").open_pod::<Volume>().ok());
    volumes.publish(&Volume(100)).unwrap();
    let mut seen = BTreeMap::new();
    let wrong = loop {
        match reader.recv() {
            Ok(event) => *seen.entry(format!("{event:?}")).or_insert(0) += 1,
            Err(wrong) => break wrong,
        }
    };
    assert!(matches!(&wrong, TypedError::Schema { found, .. } if found.name == "volume/1"), "{wrong:?}");
    assert!(wrong.to_string().contains("subscribe again"), "{wrong}");
    assert!(seen.keys().any(|event| event.contains("Price(10030)")), "{seen:?}");
    assert_eq!(seen.len(), 3, "the last price, the end, the next publisher: {seen:?}");
    volumes.publish(&Volume(200)).unwrap();
    assert!(matches!(reader.recv(), Err(TypedError::Schema { .. })), "and so are all that follow");
    volumes.close();
    assert_eq!(reader.recv().unwrap(), TypedEvent::End);
}

/// The journal's messages of the earlier schema are no values of the present one, although they have equally many bytes.
#[test]
fn a_typed_reader_of_the_past_is_told_of_messages_of_another_schema() {
    let room = tempfile::tempdir().unwrap();
    let journal = format!("journal = {{ dir = \"{}\", file = \"1MiB\" }}", room.path().join("a").display());
    let config = |schema: &str| channel("a", &format!("{schema}\n{FOR_ALL}\n{journal}"));
    let daemon = Daemon::start(&config("schema_id = 1\nschema = \"price/1\""));
    let client = daemon.client();
    let mut prices = publishing(&client, "a").open_pod::<Price>().unwrap();
    prices.publish(&Price(10_025)).unwrap();
    prices.into_untyped().close();
    let durable = || client.channel("a").unwrap().journal.map_or(0, |journal| journal.durable);
    wait_until("the price on disk", || durable() == 1);
    daemon.configure(&config("schema_id = 2\nschema = \"volume/1\""));
    daemon.signal(Signal::SIGHUP);
    let mut volumes = wait_for("the change", || publishing(&client, "a").open_pod::<Volume>().ok());
    volumes.publish(&Volume(100)).unwrap();
    let mut reader =
        Subscriber::builder("a").client(&client).start(Start::Oldest).open_pod::<Volume>().unwrap();
    assert_eq!(reader.next_sequence(), 1);
    let wrong = loop {
        match reader.recv() {
            // The journal began before the publisher came.
            Ok(TypedEvent::NewEpoch { epoch: 1 }) => {}
            other => break other.unwrap_err(),
        }
    };
    assert!(matches!(&wrong, TypedError::Schema { found, .. } if found.name == "price/1"), "{wrong:?}");
    let next = loop {
        if let TypedEvent::Message(message) = reader.recv().unwrap() {
            break message.payload;
        }
    };
    assert_eq!(next, Volume(100));
}

/// After a loss of memory the channel has another ring, perhaps with another clock.
#[test]
fn a_batch_ends_where_the_channel_restarts() {
    let mut daemon = daemon();
    let client = daemon.client();
    let mut reader = Subscriber::builder("a").client(&client).open().unwrap();
    daemon.kill();
    std::fs::remove_dir_all(daemon.socket().with_extension("charters")).unwrap();
    daemon.restart();
    let mut publisher = wait_for("a publisher", || publishing(&client, "a").open().ok());
    publisher.publish_batch(["x"; 5]).unwrap();
    let mut batch = || {
        let mut events = Vec::new();
        wait_until("a batch", || reader.recv_batch(64, |event| events.push(event.into_owned())).unwrap() > 0);
        events
    };
    assert_eq!(batch(), [OwnedEvent::Restarted]);
    let mut messages = 0;
    while messages < 5 {
        messages += batch().iter().filter(|event| matches!(event, OwnedEvent::Message(_))).count();
    }
}
