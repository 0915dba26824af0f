//! Readers of each kind: a `Select`, an async one, one that parks, and a typed one. Meanwhile the recorder of their past is stopped and
//! killed, the readers stand still or give way to others, and the channel or its daemon is made anew.

use crate::library::{Price, Volume};
use nix::sys::signal::Signal;
use shmcast::typed::{Event as TypedEvent, RecvError as TypedError};
use shmcast::{Client, Event, History, Publisher, RecvError, Select, Start, Subscriber, Wait};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::process::{at_socket, my_role, my_socket};
use shmcast_testkit::{PATIENCE, Process, role, scratch, wait_for, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const RING: &str = "capacity = \"1MiB\"";
/// A nap longer than the test. A reader that is not woken sleeps through the test, which then fails.
const FOR_EVER: Duration = Duration::from_secs(600);

fn config() -> String {
    let limits = "[limits]\nrequests_per_second = 1000000\nrequest_burst = 1000000\n";
    limits.to_owned() + &channel("ticks", FOR_ALL).replace("capacity = \"16MiB\"", RING)
}

/// A reader of one of the kinds.
enum Kind {
    Select(Box<Select>),
    Async(Box<Subscriber>, tokio::runtime::Runtime),
    Parked(Box<Subscriber>),
}

const NAMES: [&str; 3] = ["select", "async", "parked"];

/// The parts of an event that these tests compare.
#[derive(Debug, PartialEq)]
enum Told {
    Message(u64, Vec<u8>),
    Missing(u64),
    Superseded,
    Other,
}

fn told(event: Result<Option<Event<'_>>, RecvError>) -> Option<Told> {
    Some(match event {
        Ok(None) => return None,
        Ok(Some(Event::Message(message))) => Told::Message(message.sequence, message.payload.to_vec()),
        Ok(Some(Event::Lapped(lapped))) => Told::Missing(lapped.missed),
        Ok(Some(Event::Lost { from, to, .. } | Event::Gap { from, to })) => Told::Missing(to + 1 - from),
        Ok(Some(_)) | Err(RecvError::Stalled { .. }) => Told::Other,
        Err(RecvError::Superseded) => Told::Superseded,
        Err(e) => panic!("{e}"),
    })
}

impl Kind {
    fn open(name: &str, client: &Client, journal: Option<&Path>) -> Self {
        let wait = if name == "parked" { Wait::Park } else { Wait::Sleep(Duration::from_micros(200)) };
        let builder = Subscriber::builder("ticks").client(client).start(Start::Oldest).wait(wait);
        let history = journal.map_or(History::Never, |dir| History::Dir(dir.to_owned()));
        let reader = wait_for("the channel", || builder.clone().history(history.clone()).open().ok());
        match name {
            "select" => {
                let mut select = Select::new(wait);
                select.add(reader).unwrap();
                Self::Select(Box::new(select))
            }
            "async" => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                Self::Async(Box::new(reader), runtime)
            }
            _ => Self::Parked(Box::new(reader)),
        }
    }

    /// The next event, if it comes within a limited time.
    fn next(&mut self) -> Option<Told> {
        let patience = Duration::from_millis(200);
        match self {
            Self::Select(select) => match select.recv_deadline(Instant::now() + patience) {
                Ok(event) => told(Ok(event.map(|(_, event)| event))),
                Err(e) => told(Err(e.source)),
            },
            Self::Async(reader, runtime) => {
                let next = async { tokio::time::timeout(patience, reader.recv_async()).await };
                match runtime.block_on(next) {
                    Ok(event) => told(event.map(Some)),
                    Err(_) => None,
                }
            }
            Self::Parked(reader) => told(reader.recv_deadline(Instant::now() + patience)),
        }
    }

    /// Reads to message `last`. Returns how many messages came, and how many were reported as missing.
    fn read_to(&mut self, due: u64, last: u64, at: &str) -> (u64, u64) {
        let (mut received, mut missing) = (0, 0);
        let deadline = Instant::now() + PATIENCE;
        while due + received + missing <= last {
            assert!(Instant::now() < deadline, "{at}: at {received} and {missing} of {last} from {due} on");
            match self.next() {
                Some(Told::Message(sequence, payload)) => {
                    assert_eq!(sequence, due + received + missing, "{at}");
                    assert_eq!(payload, self::payload(sequence), "{at}");
                    received += 1;
                }
                Some(Told::Missing(count)) => missing += count,
                Some(Told::Other) | None => {}
                Some(Told::Superseded) => panic!("{at}: superseded"),
            }
        }
        (received, missing)
    }
}

fn payload(sequence: u64) -> Vec<u8> {
    sequence.to_le_bytes().repeat(12)
}

fn publish(publisher: &mut Publisher, count: u64) -> u64 {
    for _ in 0..count {
        let sequence = publisher.next_sequence();
        publisher.publish(&payload(sequence)).unwrap();
    }
    publisher.next_sequence() - 1
}

/// The readers stand still while the ring overtakes them and the recorder. The recorder is first stopped, and then killed.
#[test]
fn a_recorder_that_is_stopped_or_killed_costs_each_kind_only_what_is_told() {
    let daemon = Daemon::start(&config());
    let (client, room) = (daemon.client(), scratch());
    let journal = room.path().join("journal");
    let words = format!("record ticks --to {} --set file=1MiB --wait-channel", journal.display());
    let recorder = || Process::start(&mut daemon.shmcast(&words));
    let mut running = recorder();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    let mut last = publish(&mut publisher, 1_000);
    let recorded = |last: u64| {
        wait_until("the journal", || {
            let read = shmcast::journal::Journal::open(&journal).and_then(|it| it.read_from(last));
            read.is_ok_and(|mut reader| reader.due() <= last && matches!(reader.next(), Ok(Some(_))))
        });
    };
    recorded(last);
    let mut kinds = NAMES.map(|name| Kind::open(name, &client, Some(&journal)));
    for (kind, name) in kinds.iter_mut().zip(NAMES) {
        assert_eq!(kind.read_to(1, last, name), (1_000, 0), "{name}");
    }
    for is_killed in [false, true] {
        let due = last + 1;
        // The messages that were recorded before the recorder stands still come from the journal.
        last = publish(&mut publisher, 2_000);
        recorded(last);
        let before = last;
        match is_killed {
            false => running.pause(),
            true => drop(running.end_by(Signal::SIGKILL)),
        }
        last = publish(&mut publisher, 30_000);
        if is_killed {
            for (kind, name) in kinds.iter_mut().zip(NAMES) {
                let (received, missing) = kind.read_to(due, last, &format!("{name}, killed"));
                assert!(received > before + 1 - due && missing > 0, "{name}: {received} and {missing}");
            }
            return;
        }
        // The recorder lives, and only it decides which messages are lost. No reader learns of a loss before.
        for (kind, name) in kinds.iter_mut().zip(NAMES) {
            let (received, missing) = kind.read_to(due, before, &format!("{name}, stopped"));
            assert_eq!((received, missing), (before + 1 - due, 0), "{name}");
            for _ in 0..3 {
                let told = kind.next();
                assert!(
                    matches!(told, None | Some(Told::Other)),
                    "{name}: {told:?} while the recorder stands still"
                );
            }
        }
        running.signal(Signal::SIGCONT);
        for (kind, name) in kinds.iter_mut().zip(NAMES) {
            let (received, missing) = kind.read_to(before + 1, last, &format!("{name}, continued"));
            assert!(received > 0 && missing > 0, "{name}: {received} and {missing}");
        }
        // A stopped recorder was lapped, and its journal names the lost messages.
        running.end_by(Signal::SIGTERM);
        running = recorder();
        let next = publish(&mut publisher, 10);
        recorded(next);
        for (kind, name) in kinds.iter_mut().zip(NAMES) {
            assert_eq!(kind.read_to(last + 1, next, name), (10, 0), "{name}");
        }
        last = next;
    }
}

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    let Some(out) = my_role().map(PathBuf::from) else { return };
    let client = Client::at(my_socket()).unwrap();
    let mut select = Kind::open("select", &client, None);
    fs::write(out.with_extension("ready"), "").unwrap();
    let (mut received, mut missing, mut due) = (0, 0, 1);
    loop {
        match select.next() {
            Some(Told::Message(sequence, payload)) if payload.is_empty() => {
                fs::write(&out, format!("{received} {missing} {}", sequence - due)).unwrap();
                return;
            }
            Some(Told::Message(sequence, payload)) => {
                assert_eq!((sequence, payload), (due, self::payload(due)));
                (received, due) = (received + 1, due + 1);
            }
            Some(Told::Missing(count)) => (missing, due) = (missing + count, due + count),
            _ => {}
        }
    }
}

/// The process of a `Select` is stopped while its ring is overwritten twice.
#[test]
fn a_select_that_is_stopped_and_lapped_counts_what_it_missed() {
    let daemon = Daemon::start(&config());
    let (client, room) = (daemon.client(), scratch());
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    let out = room.path().join("out");
    let reader = Process::start(at_socket(&mut role!(&out.display().to_string()), &daemon.socket()));
    wait_until("the reader", || out.with_extension("ready").exists());
    publish(&mut publisher, 1_000);
    reader.pause();
    let last = publish(&mut publisher, 30_000);
    reader.resume();
    publisher.publish(b"").unwrap();
    let words = wait_for("the reader's end", || fs::read_to_string(&out).ok().filter(|it| !it.is_empty()));
    let counts: Vec<u64> = words.split(' ').map(|word| word.parse().unwrap()).collect();
    assert_eq!((counts[0] + counts[1], counts[2]), (last, 0), "{words}");
    assert!(counts[0] > 0 && counts[1] > 0, "{words}");
}

/// A parked reader leaves. The next reader in its place is woken in the same way.
#[test]
fn a_parked_reader_that_begins_again_is_woken() {
    let daemon = Daemon::start(&config());
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    for round in 1..=20 {
        let builder = Subscriber::builder("ticks").client(&client).wait(Wait::Park).longest_nap(FOR_EVER);
        let mut reader = builder.start(Start::Sequence(round)).open().unwrap();
        let thread = std::thread::spawn(move || {
            loop {
                if let Event::Message(message) = reader.recv().unwrap() {
                    return message.sequence;
                }
            }
        });
        wait_until("its page", || client.channel("ticks").unwrap().readers.len() == 1);
        publish(&mut publisher, 1);
        wait_until("the message", || thread.is_finished());
        assert_eq!(thread.join().unwrap(), round);
        wait_until("its leave", || client.channel("ticks").unwrap().readers.is_empty());
    }
}

/// The daemon dies with all of its memory. Each kind of reader learns that its channel is another one, which begins at 1.
#[test]
fn a_daemon_without_its_memory_is_told_to_each_kind() {
    let mut daemon = Daemon::start(&config());
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    let last = publish(&mut publisher, 100);
    let mut kinds = NAMES.map(|name| Kind::open(name, &client, None));
    for (kind, name) in kinds.iter_mut().zip(NAMES) {
        assert_eq!(kind.read_to(1, last, name), (100, 0), "{name}");
    }
    daemon.kill();
    drop(publisher);
    // The readers have the ring, and bring it back unless they are too late. They can be late, because they stand still here.
    fs::remove_dir_all(daemon.dir().join("run")).unwrap();
    daemon.restart();
    let client = daemon.client();
    let mut publisher = wait_for("the channel", || publishing(&client, "ticks").open().ok());
    let first = publisher.next_sequence();
    let last = publish(&mut publisher, 100);
    for (kind, name) in kinds.iter_mut().zip(NAMES) {
        // Either the readers brought the ring back, and it continues, or they learn that the channel is another one.
        let deadline = Instant::now() + PATIENCE;
        let mut due = if first == 1 { 0 } else { first };
        loop {
            assert!(Instant::now() < deadline, "{name}: waits at {due} for {last}");
            match kind.next() {
                Some(Told::Superseded) => {
                    *kind = Kind::open(name, &client, None);
                    due = 1;
                }
                Some(Told::Message(sequence, _)) => {
                    if due == 0 || sequence == 1 {
                        assert_eq!(
                            sequence, 1,
                            "{name}: the new channel's messages are not those behind the old ones"
                        );
                        due = 1;
                    }
                    assert_eq!(sequence, due, "{name}");
                    due += 1;
                    if sequence == last {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
}

/// A channel of files is made anew with another schema. An async reader and a typed one learn this, and the typed one does not read the new
/// messages as the old type.
#[test]
fn a_channel_made_anew_is_told_to_async_and_typed_readers() {
    let dir = scratch();
    let mut prices = Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>().unwrap();
    prices.publish(&Price(7)).unwrap();
    let open = || Subscriber::builder("p").dir(dir.path()).start(Start::Oldest);
    let mut typed = open().open_pod::<Price>().unwrap();
    let mut plain = open().open().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(matches!(typed.recv().unwrap(), TypedEvent::Message(message) if message.payload == Price(7)));
    assert!(matches!(runtime.block_on(plain.recv_async()), Ok(Event::Message(_))));
    drop(prices);
    let anew = Publisher::builder("p").dir(dir.path()).capacity(64 << 10).anew();
    let mut volumes = anew.open_pod::<Volume>().unwrap();
    volumes.publish(&Volume(9)).unwrap();
    let end = loop {
        match typed.recv_deadline(Instant::now() + PATIENCE) {
            Ok(Some(TypedEvent::Message(message))) => panic!("{message:?} of the other stream"),
            Ok(event) => assert!(event.is_some(), "nothing is told"),
            Err(e) => break e,
        }
    };
    assert!(matches!(&end, TypedError::Recv(RecvError::Superseded)), "{end:?}");
    let told = runtime.block_on(async {
        loop {
            match tokio::time::timeout(PATIENCE, plain.recv_async()).await.expect("nothing is told") {
                Ok(Event::Message(message)) => panic!("{message:?} of the other stream"),
                Ok(_) => {}
                Err(e) => return e,
            }
        }
    });
    assert_eq!(told, RecvError::Superseded);
    assert!(open().open_pod::<Price>().is_err(), "a reader of prices opens the volumes");
    let mut typed = open().open_pod::<Volume>().unwrap();
    assert!(matches!(typed.recv().unwrap(), TypedEvent::Message(message) if message.payload == Volume(9)));
}
