//! One wait for several channels of a real daemon, with types and with lent subscribers, while publishers and the daemon are killed and
//! stopped. `library` has the waits of a `Select` of plain subscribers.

use crate::library::{Price, Volume};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use shmcast::typed::{Event as TypedEvent, RecvError};
use shmcast::{Client, Event, Lapped, Select, Start, Subscriber, SubscriberBuilder, Turns, Wait};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::process::{at_socket, my_role, my_socket, run};
use shmcast_testkit::{PATIENCE, Process, role, wait_for};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// A nap longer than any of these tests. A reader that is not woken sleeps through the test, which then fails.
const FOR_EVER: Duration = Duration::from_secs(600);
const MESSAGES: u64 = 1500;

fn config(prices: &str) -> String {
    let limits = "[limits]\nrequests_per_second = 1000000\nrequest_burst = 1000000\n".to_owned();
    let volumes = format!("schema_id = 2\nschema = \"volume/1\"\n{FOR_ALL}");
    let prices = channel("prices", &format!("{prices}\n{FOR_ALL}"));
    limits + &prices + &channel("volumes", &volumes) + &channel("log", FOR_ALL)
}

fn daemon() -> Daemon {
    Daemon::start(&config("schema_id = 1\nschema = \"price/1\""))
}

fn parked(client: &Client, name: &str) -> SubscriberBuilder {
    Subscriber::builder(name).client(client).wait(Wait::Park).longest_nap(FOR_EVER).start(Start::Oldest)
}

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    match my_role().as_deref() {
        None => {}
        Some("no descriptors") => no_descriptors(),
        Some(name) => publish_until_the_end(name),
    }
}

/// Publishes a message per millisecond until the process is killed.
fn publish_until_the_end(name: &str) {
    let client = Client::at(my_socket()).unwrap();
    let mut publisher = wait_for("the channel", || publishing(&client, name).open().ok());
    loop {
        publisher.publish(&publisher.next_sequence().to_le_bytes()).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
}

/// The naps are practically endless, so a single lost wake-up shows as a select that never returns.
#[test]
fn a_typed_select_that_parks_sleeps_through_a_message_of_one_of_its_channels() {
    let daemon = daemon();
    let client = daemon.client();
    let mut select = Select::new(Wait::Park);
    let mut prices = select.add_typed(parked(&client, "prices").open_pod::<Price>().unwrap()).unwrap();
    let mut volumes = select.add_typed(parked(&client, "volumes").open_pod::<Volume>().unwrap()).unwrap();
    let log = select.add(parked(&client, "log").open().unwrap()).unwrap();
    let publishing = thread::spawn(move || {
        let mut prices = publishing(&client, "prices").open_pod::<Price>().unwrap();
        let mut volumes = publishing(&client, "volumes").open_pod::<Volume>().unwrap();
        let mut log = publishing(&client, "log").open().unwrap();
        let mut rng = fastrand::Rng::with_seed(11);
        let mut published = [0; 3];
        for _ in 0..MESSAGES {
            let one = rng.usize(..3);
            published[one] += 1;
            match one {
                0 => prices.publish(&Price(published[0])).unwrap(),
                1 => volumes.publish(&Volume(published[1])).unwrap(),
                _ => log.publish(&published[2].to_le_bytes()).unwrap(),
            };
            if rng.u8(..8) == 0 {
                thread::sleep(Duration::from_micros(rng.u64(..1500)));
            }
        }
        published
    });
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let (mut received, mut ends) = ([0; 3], 0);
        while ends < 3 {
            let selected = select.recv_typed().unwrap();
            let event = selected.event();
            let due = &mut received[selected.index()];
            match event {
                Event::Message(_) => *due += 1,
                Event::End => ends += 1,
                Event::NewEpoch { .. } => {}
                other => panic!("{other:?}"),
            }
            if let Some(TypedEvent::Message(price)) = selected.of(&mut prices).transpose().unwrap() {
                assert_eq!((price.sequence, price.payload), (*due, Price(*due)));
            } else if let Some(TypedEvent::Message(volume)) = selected.of(&mut volumes).transpose().unwrap() {
                assert_eq!((volume.sequence, volume.payload), (*due, Volume(*due)));
            } else if let Event::Message(line) = event {
                assert_eq!((selected.index(), line.payload), (log, &due.to_le_bytes()[..]));
            }
        }
        done.send(received).unwrap();
    });
    let received = is_done.recv_timeout(PATIENCE).expect("the select sleeps through the end");
    assert_eq!(received, publishing.join().unwrap());
}

/// A channel continues with another schema. The select reports this for each message, and its other channels continue.
#[test]
fn a_select_tells_which_of_its_channels_has_another_schema() {
    let daemon = daemon();
    let client = daemon.client();
    let mut select = Select::new(Wait::Park);
    let mut first = select.add_typed(parked(&client, "prices").open_pod::<Price>().unwrap()).unwrap();
    let mut volumes = select.add_typed(parked(&client, "volumes").open_pod::<Volume>().unwrap()).unwrap();
    let prices = publishing(&client, "prices").open_pod::<Price>().unwrap();
    daemon.configure(&config("schema_id = 3\nschema = \"price/2\""));
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_log(&["event=\"reloaded\"", "kept as made until the next publisher [", "prices"]);
    prices.into_untyped().close();
    let next = || publishing(&client, "prices").schema(3, "price/2").open().ok();
    wait_for("the change", next).publish(&7_u64.to_le_bytes()).unwrap();
    publishing(&client, "volumes").open_pod::<Volume>().unwrap().publish(&Volume(100)).unwrap();
    let (mut wrong, mut right) = (0, 0);
    while wrong + right < 2 {
        let selected = select.recv_typed_deadline(Instant::now() + PATIENCE).unwrap().expect("both are told");
        match selected.of(&mut first) {
            Some(Err(RecvError::Schema { found, wanted })) => {
                assert_eq!((found.name.as_str(), wanted.name.as_str()), ("price/2", "price/1"));
                wrong += 1;
            }
            Some(other) => assert!(!matches!(other.unwrap(), TypedEvent::Message(_))),
            None => {
                let volume = selected.of(&mut volumes).unwrap().unwrap();
                right += u32::from(matches!(volume, TypedEvent::Message(m) if m.payload == Volume(100)));
            }
        }
    }
    assert_eq!((wrong, right), (1, 1));
}

/// Of two publishers, one is killed and the other continues. Then the daemon is stopped and killed, and comes back.
#[test]
fn a_death_and_a_daemon_that_stops_are_for_one_wait_what_they_are_for_many() {
    let mut daemon = Daemon::start(&(channel("a", FOR_ALL) + &channel("b", FOR_ALL)));
    let client = daemon.client();
    let start = |name: &str| Process::start(at_socket(&mut role!(name), &daemon.socket()));
    let (victim, other) = (start("a"), start("b"));
    let open = |name: &str| {
        let builder = Subscriber::builder(name).client(&client).wait(Wait::Park);
        wait_for("the channel", || builder.clone().watch_publisher(true).open().ok())
    };
    let (mut a, mut b) = (open("a"), open("b"));
    let mut turns = Turns::new(Wait::Park);
    turns.add(&a).unwrap();
    turns.add(&b).unwrap();
    let mut last = [0; 2];
    let mut wait_for_messages = |of: &[usize]| {
        let mut due: Vec<usize> = of.to_vec();
        while !due.is_empty() {
            let mut both = [&mut a, &mut b];
            let found = turns.recv_deadline(&mut both, Instant::now() + PATIENCE).unwrap();
            match found.expect("messages come") {
                (index, Event::Message(m)) => {
                    assert!(
                        last[index] == 0 || m.sequence == last[index] + 1,
                        "{m:?} behind {}",
                        last[index]
                    );
                    last[index] = m.sequence;
                    due.retain(|other| *other != index);
                }
                (index, Event::Lapped(Lapped { resumed_at, .. })) => last[index] = resumed_at - 1,
                (0, Event::PublisherGone { .. }) => due.retain(|other| *other != 9),
                (_, Event::NewEpoch { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    wait_for_messages(&[0, 1]);
    victim.kill();
    wait_for_messages(&[9]);
    wait_for_messages(&[1]);
    let successor = start("a");
    wait_for_messages(&[0, 1]);
    daemon.signal(Signal::SIGSTOP);
    for _ in 0..20 {
        wait_for_messages(&[0, 1]);
    }
    daemon.signal(Signal::SIGCONT);
    wait_for_messages(&[0, 1]);
    other.pause();
    wait_for_messages(&[0]);
    other.resume();
    wait_for_messages(&[0, 1]);
    daemon.kill();
    wait_for_messages(&[0, 1]);
    daemon.restart();
    for _ in 0..20 {
        wait_for_messages(&[0, 1]);
    }
    successor.kill();
    other.kill();
}

/// A lent subscriber that was not added, in the place of one that was, still receives messages. But no bell wakes the wait for it.
#[test]
fn one_that_was_not_added_is_received_from() {
    let daemon = daemon();
    let client = daemon.client();
    let (added, mut other) = (parked(&client, "log").open().unwrap(), parked(&client, "log").open().unwrap());
    let mut turns = Turns::new(Wait::Park);
    turns.add(&added).unwrap();
    let mut publisher = publishing(&client, "log").open().unwrap();
    let publishing = thread::spawn(move || {
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(2));
            publisher.publish(b"x").unwrap();
        }
    });
    let mut received = 0;
    while received < 20 {
        let mut lent = [&mut other];
        let found = turns.recv_deadline(&mut lent, Instant::now() + PATIENCE).unwrap();
        let (index, event) = found.expect("it looks by itself");
        assert_eq!(index, 0);
        received += u32::from(matches!(event, Event::Message(_)));
    }
    publishing.join().unwrap();
}

#[test]
fn a_process_without_descriptors_waits_for_those_that_it_has() {
    let daemon = daemon();
    run(at_socket(&mut role!("no descriptors"), &daemon.socket())).unwrap_or_else(|e| panic!("{e}"));
}

fn no_descriptors() {
    let client = Client::at(my_socket()).unwrap();
    let mut publisher = publishing(&client, "log").open().unwrap();
    let open = || parked(&client, "log").open().unwrap();
    let [mut one, two, three] = [open(), open(), open()];
    let mut select = Select::new(Wait::Park);
    select.add(two).unwrap();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 0, hard).unwrap();
    let mut turns = Turns::new(Wait::Park);
    let refused = turns.add(&one).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(nix::libc::EMFILE));
    // A select that already has its descriptor accepts more subscribers, and waits for them.
    assert_eq!(select.add(three).unwrap(), 1);
    publisher.publish(b"x").unwrap();
    let mut received = [0; 2];
    while received != [1, 1] {
        let (index, event) = select.recv().unwrap();
        received[index] += u32::from(matches!(event, Event::Message(_)));
    }
    assert_eq!(select.recv_deadline(Instant::now() + Duration::from_millis(5)).unwrap(), None);
    // The refused subscriber can still be lent. The wait then polls for it.
    loop {
        if let (0, Event::Message(m)) = turns.recv(&mut [&mut one]).unwrap() {
            assert_eq!(m.payload, b"x");
            return;
        }
    }
}
