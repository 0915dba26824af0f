//! Sequences continue after a reboot: every program is killed, and everything in memory is lost. Only a journal remains.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmcast::control::JournalStatus;
use shmcast::journal::{Cause, Entry, Journal, Loss, Streams};
use shmcast::{Client, Event, Mark, RecvError, Start, Subscriber};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, publishing};
use shmcast_testkit::{number, wait_for, wait_until};
use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

fn config(journal: &Path, more: &str) -> String {
    format!(
        "[[channel]]\nname = \"ticks\"\ncapacity = \"1MiB\"\nmlock = false\nhugepages = false\n{FOR_ALL}\n{more}\n\
         journal = {{ dir = \"{}\", file = \"1MiB\" }}\n",
        journal.display()
    )
}

/// Removes what a reboot removes: the memory of the channels, and the daemon's notes about them.
fn lose_memory(daemon: &Daemon) {
    fs::remove_dir_all(daemon.dir().join("run")).unwrap();
}

fn status(client: &Client) -> Option<JournalStatus> {
    client.channel("ticks").unwrap().journal
}

/// Starts `shmcast pub`, which publishes 5000 messages a second until it is ended.
fn publisher(daemon: &Daemon, room: &Path) -> Child {
    let input = room.join("input");
    fs::write(&input, "a message\n".repeat(1_000)).unwrap();
    let command =
        format!("pub ticks --rate 5000/s --loop 1000 --set prepare=none --input {}", input.display());
    daemon.shmcast(&command).spawn().unwrap()
}

fn end(mut child: Child, by: Signal) {
    kill(Pid::from_raw(child.id() as i32), by).unwrap();
    child.wait().unwrap();
}

/// Receives `count` messages that come live, and returns the first and the last sequence.
fn receive(reader: &mut Subscriber, count: u64) -> (u64, u64) {
    let mut seen = None;
    let mut received = 0;
    while received < count {
        if let Event::Message(message) = reader.recv().unwrap() {
            received += 1;
            let (first, _) = seen.unwrap_or((message.sequence, 0));
            seen = Some((first, message.sequence));
        }
    }
    seen.unwrap()
}

/// Receives the remaining messages in the ring of a dead publisher, after message `last`.
fn drain(reader: &mut Subscriber, mut last: u64) -> u64 {
    loop {
        match reader.try_recv().unwrap() {
            Some(Event::Message(message)) => last = message.sequence,
            Some(_) => {}
            None => return last,
        }
    }
}

/// The contents of a journal: its messages in order, and its losses.
fn contents(dir: &Path) -> (Vec<u64>, Vec<Loss>) {
    let mut reader = Journal::open(dir).unwrap().read_from(1).unwrap();
    let (mut messages, mut losses) = (Vec::new(), Vec::new());
    while let Some(entry) = reader.next().unwrap() {
        match entry {
            Entry::Message(message) => messages.push(message.sequence),
            Entry::Lost(loss) => losses.push(loss),
            _ => {}
        }
    }
    (messages, losses)
}

/// Twenty reboots. In some, everything is killed while a publisher publishes. The daemon is killed first, so nobody records the last
/// messages, but a reader has them. In others, the channel is closed and the daemon is stopped before.
#[test]
fn no_sequence_is_given_twice_and_a_clean_stop_leaves_none_out() {
    let room = TempDir::new().unwrap();
    let journal = room.path().join("ticks");
    let mut daemon = Daemon::start(&config(&journal, ""));
    let (mut last, mut is_clean) = (0, true);
    let mut jumps = 0;
    for round in 0..number("SHMCAST_REBOOTS", 20u32) {
        let client = daemon.client();
        let mut reader = Subscriber::builder("ticks").client(&client).open().unwrap();
        let first = reader.next_sequence();
        match is_clean {
            true => assert_eq!(first, last + 1, "round {round}: a clean stop leaves no sequence out"),
            false => assert!(first > last, "round {round}: {first} was given before: the last was {last}"),
        }
        jumps += u64::from(first > last + 1);
        let child = publisher(&daemon, room.path());
        let seen = receive(&mut reader, 100);
        assert_eq!(seen.0, first);
        last = seen.1;
        is_clean = round % 3 == 2;
        if is_clean {
            end(child, Signal::SIGINT);
            last = drain(&mut reader, last);
            drop(reader);
            daemon.end(Signal::SIGTERM);
        } else {
            daemon.kill();
            // Nobody records these messages.
            last = receive(&mut reader, 20 + u64::from(round)).1;
            end(child, Signal::SIGKILL);
            last = drain(&mut reader, last);
            drop(reader);
        }
        drop(client);
        // In one round, all programs are killed but the host does not reboot. So only the memory is lost, and the daemon's notes stay.
        if round != 7 {
            lose_memory(&daemon);
        }
        daemon.restart();
    }
    assert!(jumps >= 10, "{jumps}");
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    for _ in 0..100 {
        publisher.publish(b"the last ones").unwrap();
    }
    jumps += u64::from(publisher.next_sequence() - 100 > last + 1);
    let last = publisher.next_sequence() - 1;
    wait_until("the last message on disk", || status(&client).is_some_and(|journal| journal.durable >= last));
    publisher.close();
    daemon.end(Signal::SIGTERM);
    let (messages, losses) = contents(&journal);
    assert!(
        messages.is_sorted_by(|a, b| a < b) && messages.last() == Some(&last),
        "{} messages",
        messages.len()
    );
    assert_eq!(losses.len() as u64, jumps, "{losses:?}");
    assert!(losses.iter().all(|loss| loss.cause == Cause::Reserve), "{losses:?}");
    assert_eq!(Streams::open(&journal).unwrap().journals().len(), 1, "one stream has it all");
    let verified = daemon.shmcast(&format!("journal verify {}", journal.display())).output().unwrap();
    assert_eq!(verified.status.code(), Some(3), "{verified:?}");
}

/// Recorders are threads of the daemon that attach as any program does. Messages from before their attachment are recorded, too.
#[test]
fn a_daemon_that_is_stopped_as_soon_as_it_runs_leaves_no_sequence_out() {
    let room = TempDir::new().unwrap();
    let journal = room.path().join("ticks");
    let others = (0..3).map(|n| {
        config(&room.path().join(format!("c{n}")), "").replace("ticks\"\ncap", &format!("c{n}\"\ncap"))
    });
    let mut daemon = Daemon::start(&(others.collect::<String>() + &config(&journal, "")));
    for round in 0..10 {
        let client = daemon.client();
        let mut publisher = publishing(&client, "ticks").open().unwrap();
        assert_eq!(publisher.publish(b"a message").unwrap(), round + 1, "each stop was clean");
        publisher.close();
        drop(client);
        daemon.end(Signal::SIGTERM);
        lose_memory(&daemon);
        daemon.restart();
    }
    daemon.end(Signal::SIGTERM);
    assert_eq!(contents(&journal), ((1..=10).collect(), Vec::new()));
}

#[test]
fn a_reader_gets_the_old_messages_one_gap_and_the_new_ones() {
    let room = TempDir::new().unwrap();
    let journal = room.path().join("ticks");
    let mut daemon = Daemon::start(&config(&journal, ""));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    for _ in 0..500 {
        publisher.publish(b"before").unwrap();
    }
    wait_until("500 messages on disk", || status(&client).is_some_and(|journal| journal.durable >= 500));
    daemon.kill();
    drop((publisher, client));
    lose_memory(&daemon);
    daemon.restart();
    let client = daemon.client();
    // This reader attaches immediately, before the recorder has the new ring.
    let mut reader = Subscriber::builder("ticks").client(&client).start(Start::Oldest).open().unwrap();
    assert_eq!(reader.next_sequence(), 1);
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    let first = publisher.next_sequence();
    assert!(first > 1 << 32 && publisher.epoch() == 2, "{first}, epoch {}", publisher.epoch());
    for _ in 0..500 {
        publisher.publish(b"behind").unwrap();
    }
    let (mut due, mut told) = (1, Vec::new());
    while due < first + 500 {
        match reader.recv() {
            Ok(Event::Message(message)) => {
                let expected: &[u8] = if due <= 500 { b"before" } else { b"behind" };
                assert_eq!((message.sequence, message.payload), (due, expected), "{told:?}");
                due += 1;
            }
            Ok(Event::Lost { from, to, cause }) => {
                told.push(format!("{from} to {to}: {}", cause.name()));
                due = to + 1;
            }
            Ok(Event::Live { .. } | Event::End | Event::NewEpoch { .. }) | Err(RecvError::Stalled { .. }) => {
            }
            other => panic!("{other:?} behind {told:?}"),
        }
    }
    assert_eq!(told, [format!("501 to {}: reserve", first - 1)]);
}

#[test]
fn a_time_a_key_and_a_sequence_from_before_a_reboot_are_found_behind_it() {
    let room = TempDir::new().unwrap();
    let journal = room.path().join("ticks");
    let mut daemon = Daemon::start(&config(&journal, ""));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    let mut time = SystemTime::now();
    for sequence in 1..=500 {
        if sequence == 300 {
            std::thread::sleep(Duration::from_millis(50));
            time = SystemTime::now();
            std::thread::sleep(Duration::from_millis(50));
        }
        publisher.publish_with(b"before", Mark { key: sequence == 200, ..Mark::default() }).unwrap();
    }
    wait_until("500 messages on disk", || status(&client).is_some_and(|journal| journal.durable >= 500));
    daemon.kill();
    drop((publisher, client));
    lose_memory(&daemon);
    daemon.restart();
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    let behind = publisher.publish(b"behind").unwrap();
    for (start, first) in [(Start::Time(time), 300), (Start::Key, 200), (Start::Sequence(400), 400)] {
        let mut reader = Subscriber::builder("ticks").client(&client).start(start).open().unwrap();
        let mut received = Vec::new();
        while received.last() != Some(&behind) {
            match reader.recv() {
                Ok(Event::Message(message)) => received.push(message.sequence),
                Ok(_) | Err(RecvError::Stalled { .. }) => {}
                Err(e) => panic!("{start:?}: {e}"),
            }
        }
        assert!(received.iter().copied().eq((first..=500).chain([behind])), "{start:?}: {received:?}");
    }
}

/// A daemon that cannot read the journal still runs, with sequences from 1 on, and reports this. The old journal stays beside the next one.
#[test]
fn a_journal_that_cannot_be_read_keeps_no_channel_from_running() {
    let room = TempDir::new().unwrap();
    let journal = room.path().join("ticks");
    let mut daemon = Daemon::start(&config(&journal, ""));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publisher.publish(b"before").unwrap();
    wait_until("it on disk", || status(&client).is_some_and(|journal| journal.durable >= 1));
    daemon.kill();
    drop((publisher, client));
    lose_memory(&daemon);
    // The file is of another version, so neither its number nor the fields after it are valid for this one.
    let before = Journal::open(&journal).unwrap();
    let file = before.path().join(&before.files()[0].name);
    let whole = fs::read(&file).unwrap();
    let mut later = whole.clone();
    (later[8], later[16]) = (9, !later[16]);
    let replace = |bytes: &[u8]| {
        fs::write(room.path().join("file"), bytes).unwrap();
        fs::rename(room.path().join("file"), &file).unwrap();
    };
    replace(&later);
    daemon.restart();
    daemon.wait_for_log(&["event=\"journal-failed\"", "begin at 1"]);
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    assert_eq!(publisher.next_sequence(), 1);
    publisher.publish(b"anew").unwrap();
    // The new stream is recorded in a folder of its own.
    wait_until("it on disk", || {
        status(&client).is_some_and(|journal| journal.state == "recording" && journal.durable >= 1)
    });
    replace(&whole);
    assert_eq!((contents(before.path()).0, contents(&journal).0), (vec![1], vec![1]));
    assert_eq!(Streams::open(&journal).unwrap().journals().len(), 2);
}

/// A channel that leaves the configuration and returns continues after its journal, also for attached programs.
#[test]
fn a_channel_that_was_removed_and_added_again_goes_on() {
    let room = TempDir::new().unwrap();
    let journal = room.path().join("ticks");
    let daemon = Daemon::start(&config(&journal, ""));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    let mut reader = Subscriber::builder("ticks").client(&client).open().unwrap();
    publisher.publish(b"before").unwrap();
    assert_eq!(receive(&mut reader, 1), (1, 1));
    wait_until("it on disk", || status(&client).is_some_and(|journal| journal.durable >= 1));
    let configure = |config: &str| {
        daemon.configure(config);
        daemon.signal(Signal::SIGHUP);
    };
    configure("");
    wait_until("its end", || client.channel("ticks").is_err());
    configure(&config(&journal, ""));
    wait_until("its return", || client.channel("ticks").is_ok());
    let mut publisher = wait_for("the channel", || publishing(&client, "ticks").open().ok());
    let first = publisher.next_sequence();
    assert!(first > 1 << 32, "{first}");
    publisher.publish(b"behind").unwrap();
    let mut told = Vec::new();
    loop {
        // Each call polls once. No message comes before the report of the loss.
        match reader.try_recv() {
            Ok(Some(Event::Message(message))) => {
                assert_eq!((message.sequence, message.payload), (first, &b"behind"[..]));
                break;
            }
            Ok(Some(Event::Restarted)) => panic!("its sequences go on"),
            Ok(Some(other)) => told.push(format!("{other:?}")),
            Ok(None) | Err(RecvError::Stalled { .. }) => std::thread::sleep(Duration::from_millis(1)),
            Err(e) => panic!("{e}"),
        }
    }
    assert!(told.iter().any(|event| event.starts_with("Lost") && event.contains("Reserve")), "{told:?}");
    assert_eq!(Streams::open(&journal).unwrap().journals().len(), 1, "it is one stream");
}

/// A recorder of a program follows the channel into the ring behind the reserve. An earlier mistake: `shmcast record` said that 4 billion
/// messages came too fast.
#[test]
fn a_recorder_by_hand_names_the_reserve_as_the_reason() {
    let room = TempDir::new().unwrap();
    let (journal, by_hand) = (room.path().join("ticks"), room.path().join("by-hand"));
    let daemon = Daemon::start(&config(&journal, ""));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publisher.publish(b"before").unwrap();
    wait_until("it on disk", || status(&client).is_some_and(|journal| journal.durable >= 1));
    let command = format!("record ticks --json --to {}", by_hand.display());
    let recorder = daemon.shmcast(&command).spawn().unwrap();
    let recorded = || if Journal::open(&by_hand).is_ok() { contents(&by_hand) } else { Default::default() };
    wait_until("a record", || recorded().0.contains(&1));
    let configure = |config: &str| {
        daemon.configure(config);
        daemon.signal(Signal::SIGHUP);
    };
    configure("");
    wait_until("its end", || client.channel("ticks").is_err());
    configure(&config(&journal, ""));
    let mut publisher = wait_for("the channel", || publishing(&client, "ticks").open().ok());
    let first = publisher.next_sequence();
    publisher.publish(b"behind").unwrap();
    wait_until("the next record", || recorded().0.contains(&first));
    kill(Pid::from_raw(recorder.id() as i32), Signal::SIGTERM).unwrap();
    let output = recorder.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !told.contains("too fast"), "{told}");
    let sums: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&sums["overrun"], &sums["messages"]), (&0.into(), &2.into()), "{sums}");
    assert_eq!(recorded(), (vec![1, first], vec![Loss { from: 2, to: first - 1, cause: Cause::Reserve }]));
}

/// The daemon itself continues its channels after their journals. So a publisher that names a journal gets an error that says to leave it
/// out.
#[test]
fn a_publisher_of_a_daemons_channel_names_no_journal() {
    let room = TempDir::new().unwrap();
    let daemon = Daemon::start(&config(&room.path().join("ticks"), ""));
    let own = room.path().join("own");
    let refused = publishing(&daemon.client(), "ticks").continue_from(&own).open().unwrap_err();
    assert!(refused.to_string().contains("leave the directory out"), "{refused}");
    let output =
        daemon.shmcast(&format!("pub ticks --set continue_from={}", own.display())).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("leave continue_from out"), "{output:?}");
    assert!(!own.exists());
}
