//! The daemon's journal while reloads change the users who may read its channel, and rename the channel.

use shmcast::control::JournalStatus;
use shmcast::journal::{Cause, Entry, Journal};
use shmcast::{Client, Event, Publisher, Start, Subscriber, Wait};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, publishing};
use shmcast_testkit::process::{at_socket, in_dir, my_dir, my_role, my_socket};
use shmcast_testkit::{PATIENCE, Process, scratch, wait_until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

const ONLY_ROOT: &str = "publishers = [\"uid:0\"]\nsubscribers = [\"uid:0\"]";

fn config(name: &str, lists: &str, dir: &Path) -> String {
    format!(
        "[limits]\nrequests_per_second = 100000\nrequest_burst = 100000\n\
         [[channel]]\nname = \"{name}\"\ncapacity = \"1MiB\"\nmlock = false\nhugepages = false\n{lists}\n\
         journal = {{ dir = \"{}\", file = \"1MiB\" }}\n",
        dir.display()
    )
}

fn status(client: &Client, name: &str) -> Option<JournalStatus> {
    client.channel(name).ok()?.journal
}

/// Publishes `count` messages, as fast as the recorder follows. Returns the sequence of the last one.
fn publish(client: &Client, name: &str, publisher: &mut Publisher, count: u64) -> u64 {
    let last = publisher.next_sequence() + count - 1;
    while publisher.next_sequence() <= last {
        let some = last.min(publisher.next_sequence() + 1_999);
        while publisher.next_sequence() <= some {
            let sequence = publisher.next_sequence();
            publisher.publish(&sequence.to_le_bytes().repeat(8)).unwrap();
        }
        wait_until("the journal", || status(client, name).is_some_and(|journal| journal.durable >= some));
    }
    last
}

/// The messages of a journal, and the number of sequences that it names as lost. Reserved sequences do not count.
fn contents(dir: &Path) -> (Vec<u64>, u64) {
    let mut reader = Journal::open(dir).unwrap().read_from(1).unwrap();
    let (mut messages, mut lost) = (Vec::new(), 0);
    while let Some(entry) = reader.next().unwrap() {
        match entry {
            Entry::Message(message) => messages.push(message.sequence),
            Entry::Lost(loss) if loss.cause == Cause::Reserve => {}
            Entry::Lost(loss) => lost += loss.to + 1 - loss.from,
            _ => {}
        }
    }
    (messages, lost)
}

/// Reads as another user. Before some messages N, waits for the file `go-N`.
#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    let Some(words) = my_role() else { return };
    let pauses: Vec<u64> = words.split(' ').map(|word| word.parse().unwrap()).collect();
    let (last, pauses) = pauses.split_last().unwrap();
    let client = Client::at(my_socket()).unwrap();
    let builder = Subscriber::builder("ticks").client(&client).start(Start::Oldest);
    let mut reader = builder.wait(Wait::Sleep(Duration::from_micros(200))).open().unwrap();
    let (mut due, mut missed) = (1, 0);
    let until = Instant::now() + PATIENCE;
    for stop in pauses.iter().chain([last]) {
        while due <= *stop {
            match reader.recv_deadline(until).unwrap().expect("an event in time") {
                Event::Message(message) => {
                    assert_eq!((message.sequence, message.payload), (due, &due.to_le_bytes().repeat(8)[..]));
                    due += 1;
                }
                Event::Lapped(lapped) => {
                    assert_eq!(lapped.resumed_at, due + lapped.missed);
                    (missed, due) = (missed + lapped.missed, lapped.resumed_at);
                }
                Event::Lost { from, to, .. } | Event::Gap { from, to } => {
                    assert_eq!(from, due);
                    (missed, due) = (missed + to + 1 - from, to + 1);
                }
                _ => {}
            }
        }
        fs::write(my_dir().join(format!("at-{stop}")), missed.to_string()).unwrap();
        wait_until("the word to go on", || my_dir().join(format!("go-{stop}")).exists());
    }
}

/// A reader of the past loses the right to read, so it gets no more files. It learns which messages it misses, and continues in the ring.
/// The recording continues. When the user has the right again, the reader gets files again.
#[test]
fn a_reader_in_the_past_that_may_read_no_more_is_told_what_it_misses() {
    const TEST: &str = "a_reader_in_the_past_that_may_read_no_more_is_told_what_it_misses";
    let room = scratch();
    fs::set_permissions(room.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let journal = room.path().join("journal");
    let daemon = Daemon::start(&config("ticks", FOR_ALL, &journal));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publish(&client, "ticks", &mut publisher, 60_000);
    // At each of these messages, the reader stands still until the test has done its next step.
    let Some(mut role) = shmcast_testkit::role_as!(TEST, 65534, "1000 70000 140000 170000") else { return };
    let reader = Process::start(at_socket(in_dir(&mut role, room.path()), &daemon.socket()));
    let missed_at = |stop: u64| -> u64 {
        let file = room.path().join(format!("at-{stop}"));
        wait_until(&format!("the reader at {stop}"), || {
            fs::read_to_string(&file).is_ok_and(|it| !it.is_empty())
        });
        fs::read_to_string(&file).unwrap().parse().unwrap()
    };
    let go = |stop: u64| fs::write(room.path().join(format!("go-{stop}")), "").unwrap();
    assert_eq!(missed_at(1_000), 0, "the journal has all");
    daemon.reload(&config("ticks", ONLY_ROOT, &journal));
    publish(&client, "ticks", &mut publisher, 20_000);
    go(1_000);
    let missed = missed_at(70_000);
    assert!(missed > 20_000, "{missed}: files were lent to a user who may not read");
    // Several rings are published, and then the list has the user again.
    daemon.reload(&config("ticks", FOR_ALL, &journal));
    publish(&client, "ticks", &mut publisher, 60_000);
    go(70_000);
    assert_eq!(missed_at(140_000), missed, "it is lent files again");
    go(140_000);
    publish(&client, "ticks", &mut publisher, 30_000);
    assert_eq!(missed_at(170_000), missed);
    go(170_000);
    drop(reader);
    assert_eq!(contents(&journal), ((1..=170_000).collect(), 0));
}

/// A renamed channel is another channel. It does not write to the journal of the first one, gets none of its files, and reports this. When
/// the first channel has its name again, it continues in its journal, with no sequence that attached programs have already seen.
#[test]
fn the_journal_of_a_channel_that_is_renamed_stays_its_own() {
    for mode in ["takeover", "strict"] {
        let room = scratch();
        let journal = room.path().join("journal");
        let lists = format!("mode = \"{mode}\"\n{FOR_ALL}");
        let daemon = Daemon::start(&config("ticks", &lists, &journal));
        let client = daemon.client();
        let mut stayed = publishing(&client, "ticks").open().unwrap();
        publish(&client, "ticks", &mut stayed, 1_000);
        daemon.reload(&config("tocks", &lists, &journal));
        // The first channel continues among the programs that stayed attached.
        for _ in 0..500 {
            let sequence = stayed.next_sequence();
            stayed.publish(&sequence.to_le_bytes().repeat(8)).unwrap();
        }
        let mut other = publishing(&client, "tocks").open().unwrap();
        for _ in 0..300 {
            other.publish(b"of the other channel").unwrap();
        }
        daemon.wait_for_log(&["event=\"journal-failed\"", "tocks", "holds the journal of channel"]);
        assert_eq!(status(&client, "tocks").unwrap().durable, 0, "{mode}");
        let mut reader = Subscriber::builder("tocks").client(&client).start(Start::Oldest).open().unwrap();
        let first = reader.recv_deadline(Instant::now() + PATIENCE).unwrap();
        assert!(
            matches!(first, Some(Event::Message(message)) if message.payload == b"of the other channel"),
            "{mode}"
        );
        // Its recorder may have taken some of these before it ended.
        wait_until("its recorder's end", || !Journal::open(&journal).unwrap().is_recording());
        let (kept, lost) = contents(&journal);
        let recorded = kept.len() as u64;
        assert!((1_000..=1_500).contains(&recorded) && lost == 0, "{mode}: {recorded} kept, {lost} lost");
        assert_eq!(kept, (1..=recorded).collect::<Vec<_>>(), "{mode}");
        drop((other, reader));
        daemon.reload(&config("ticks", &lists, &journal));
        let mut next = publishing(&client, "ticks").open().unwrap();
        let first = next.next_sequence();
        assert!(first > 1_500, "{mode}: {first} was given before");
        let last = publish(&client, "ticks", &mut next, 200);
        assert_eq!(contents(&journal), ((1..=recorded).chain(first..=last).collect(), 0), "{mode}");
    }
}

/// An earlier mistake: a reload that changed only a limit for old files stopped the recorder, and the recorder released its gate.
#[test]
fn a_reload_that_changes_only_what_is_kept_does_not_stop_the_recorder() {
    let room = scratch();
    let dir = room.path().join("journal");
    let with = |limits: &str| {
        let gate = "[[channel.gate]]\nname = \"journal\"\nthen = \"refuse\"\nwait = \"10s\"\n";
        let limits = format!("gate = \"journal\", file = \"1MiB\"{limits}");
        config("ticks", FOR_ALL, &dir).replace("file = \"1MiB\"", &limits) + gate
    };
    let daemon = Daemon::start(&with(""));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publish(&client, "ticks", &mut publisher, 60_000);
    daemon.reload(&with(", keep_bytes = \"2MiB\", keep_age = \"30d\", keep_free = 1"));
    wait_until("the new limit", || status(&client, "ticks").is_some_and(|journal| journal.oldest > 1));
    assert_eq!((daemon.told("journal-started"), daemon.told("journal-removed")), (1, 0));
    daemon.reload(&with(", roll_after = \"1h\""));
    wait_until("the new recorder", || daemon.told("journal-started") == 2);
}
