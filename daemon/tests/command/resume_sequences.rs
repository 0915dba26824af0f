//! Channels without a daemon whose sequences continue after a journal. The processes `shmcast pub --set continue_from` and `shmcast record`
//! are killed, and the memory is lost.

use shmcast::journal::format::JournalControl;
use shmcast::journal::{Cause, Ending, Journal, JournalError};
use shmcast::{ChannelError, Event, Gate, History, Publisher, Start, Subscriber};
use shmcast_testkit::command::interrupt;
use shmcast_testkit::journal::read;
use shmcast_testkit::place::program;
use shmcast_testkit::{Process, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

struct Host {
    room: TempDir,
}

impl Host {
    fn new() -> Self {
        Self { room: TempDir::new().unwrap() }
    }

    /// The directory of the channel's memory, which a reboot removes.
    fn memory(&self) -> PathBuf {
        self.room.path().join("memory")
    }

    fn journal(&self) -> PathBuf {
        self.room.path().join("ticks.journal")
    }

    fn shmcast(&self, verb: &str, more: &[&str]) -> Command {
        let mut command = Command::new(program("shmcast"));
        command.args([verb, "ticks", "--dir"]).arg(self.memory()).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Publishes 5000 messages a second until the process is ended.
    fn publisher(&self) -> Process {
        let input = self.room.path().join("input");
        fs::write(&input, "a message\n".repeat(1_000)).unwrap();
        let more = ["--rate", "5000/s", "--loop", "1000", "--set", "prepare=none", "--capacity", "1MiB"];
        let mut command = self.shmcast("pub", &more);
        Process::start(
            command
                .arg("--input")
                .arg(input)
                .arg("--set")
                .arg(format!("continue_from={}", self.journal().display())),
        )
    }

    fn recorder(&self) -> Process {
        Process::start(self.shmcast("record", &["--set", "file=1MiB", "--to"]).arg(self.journal()))
    }

    fn builder(&self) -> shmcast::PublisherBuilder {
        Publisher::builder("ticks").dir(self.memory()).capacity(1 << 20)
    }

    fn reader(&self, start: Start) -> Subscriber {
        let builder = Subscriber::builder("ticks").dir(self.memory()).start(start);
        builder.history(History::Dir(self.journal())).open().unwrap()
    }

    fn lose_memory(&self) {
        fs::remove_dir_all(self.memory()).unwrap();
    }
}

/// Kills a process, or ends it with Ctrl-C as soon as it handles the signal.
fn end(mut process: Process, is_killed: bool) {
    if is_killed {
        return process.kill();
    }
    interrupt(&process);
    process.wait();
}

/// Receives `count` messages, and returns the first and the last sequence.
fn receive(reader: &mut Subscriber, count: u64) -> (u64, u64) {
    let mut sequences = Vec::new();
    while (sequences.len() as u64) < count {
        if let Event::Message(message) = reader.recv().unwrap() {
            sequences.push(message.sequence);
        }
    }
    (sequences[0], sequences[sequences.len() - 1])
}

/// The host reboots several times. Sometimes everything is killed in the middle, and sometimes it ends in order. Each time a reader has
/// messages that no recorder has.
#[test]
fn no_sequence_is_given_twice_without_a_daemon() {
    let host = Host::new();
    let (mut last, mut epoch) = (0, 0);
    for round in 0..12 {
        let is_killed = round % 3 != 2;
        let publisher = host.publisher();
        wait_until("the channel", || Subscriber::builder("ticks").dir(host.memory()).open().is_ok());
        let recorder = host.recorder();
        let mut reader = host.reader(Start::Sequence(host.reader(Start::Oldest).first_sequence()));
        if !is_killed {
            wait_until("the recorder", || Journal::open(host.journal()).is_ok_and(|it| it.is_recording()));
        }
        let (first, _) = receive(&mut reader, 100);
        assert!(first > last, "round {round}: {first} was given before: the last was {last}");
        let (stated, _) = reader.publisher_state().unwrap();
        assert!(stated > epoch, "round {round}: epoch {stated} behind {epoch}");
        epoch = stated;
        end(recorder, is_killed);
        last = receive(&mut reader, 50).1; // nobody records these
        end(publisher, is_killed);
        while let Some(event) = reader.try_recv().unwrap() {
            if let Event::Message(message) = event {
                last = message.sequence;
            }
        }
        host.lose_memory();
    }
    let mut publisher = host.builder().continue_from(host.journal()).open().unwrap();
    assert!(publisher.next_sequence() > last);
    publisher.publish(b"the last").unwrap();
    let found = read(&host.journal());
    assert_eq!(found.losses().len(), 12, "each reboot is one gap: {:?}", found.losses());
    assert!(found.losses().iter().all(|loss| matches!(loss.cause, Cause::Reserve)));
    // A reader that attaches now reads all messages, learns of each gap once, and becomes live.
    let mut reader = host.reader(Start::Sequence(1));
    let (mut messages, mut gaps, mut due) = (0, 0, 1);
    loop {
        match reader.recv().unwrap() {
            Event::Message(message) => {
                assert_eq!(message.sequence, due);
                (messages, due) = (messages + 1, due + 1);
                if message.payload == b"the last" {
                    break;
                }
            }
            Event::Lost { from, to, .. } => {
                assert_eq!(from, due);
                (gaps, due) = (gaps + 1, to + 1);
            }
            _ => {}
        }
    }
    assert_eq!((messages, gaps), (found.messages().len() + 1, 12));
}

/// An existing ring continues where it was. A reserve that the ring has almost reached is renewed before anybody publishes.
#[test]
fn a_ring_that_is_there_goes_on_and_the_journal_keeps_up() {
    let host = Host::new();
    let open = || host.builder().continue_from(host.journal()).open().unwrap();
    let mut publisher = open();
    assert_eq!(publisher.next_sequence(), 1, "a journal that is not there begins at 1");
    publisher.publish(b"one").unwrap();
    drop(publisher);
    let files = read(&host.journal()).files;
    let mut publisher = open();
    assert_eq!((publisher.next_sequence(), read(&host.journal()).files), (2, files), "nothing is to be said");
    publisher.gap(2 + (1 << 31)).unwrap();
    drop(publisher);
    let publisher = open();
    let next = publisher.next_sequence();
    drop(publisher);
    let reserves = read(&host.journal()).controls;
    let renewed = reserves.iter().any(
        |control| matches!(*control, JournalControl::Reserve { sequence } if sequence >= next + (1 << 32)),
    );
    assert!(renewed, "{reserves:?}");
    host.lose_memory();
    assert!(open().next_sequence() > next + (1 << 32));
}

/// A publisher whose gates cannot be opened changes nothing in the journal, so it uses up no sequences.
#[test]
fn a_publisher_that_cannot_open_leaves_the_journal_alone() {
    let host = Host::new();
    drop(host.builder().continue_from(host.journal()).open().unwrap());
    host.lose_memory();
    // The next publisher reserves sequences.
    drop(host.builder().continue_from(host.journal()).open().unwrap());
    let found = || (read(&host.journal()).files, read(&host.journal()).controls.len());
    let before = found();
    // The gate's page is a file.
    fs::create_dir_all(host.memory().join("ticks/gates/risk")).unwrap();
    for _ in 0..3 {
        let gated = || host.builder().continue_from(host.journal()).gate(Gate::new("risk"));
        for refused in [gated().open().unwrap_err(), gated().anew().open().unwrap_err()] {
            assert!(matches!(refused, ChannelError::Gate { .. } | ChannelError::Os { .. }), "{refused}");
        }
    }
    assert_eq!(found(), before);
}

/// While a recorder runs, the next publisher changes nothing in the journal.
#[test]
fn a_recorder_that_runs_is_left_alone() {
    let host = Host::new();
    let mut publisher = host.builder().continue_from(host.journal()).open().unwrap();
    let recorder = host.recorder();
    for turn in 1..=5u64 {
        let sequence = publisher.publish(b"a message").unwrap();
        assert_eq!(sequence, turn);
        wait_until("the message on disk", || read(&host.journal()).messages().len() as u64 == turn);
        drop(publisher);
        publisher = host.builder().continue_from(host.journal()).open().unwrap();
    }
    end(recorder, false);
    assert_eq!(read(&host.journal()).losses(), []);
}

/// A channel whose journal stays gets a new ring. The sequences continue, and the journal has no avoidable gap.
#[test]
fn a_channel_that_is_made_anew_goes_on_behind_its_journal() {
    let host = Host::new();
    let mut publisher = host.builder().continue_from(host.journal()).open().unwrap();
    (1..=10).for_each(|_| assert!(publisher.publish(b"a message").is_ok()));
    drop(publisher);
    let larger = host.builder().capacity(2 << 20).anew().continue_from(host.journal()).open().unwrap();
    assert!(larger.next_sequence() > 10);
}

/// A publisher is refused. Each refusal says what to do, and leaves ring and journal unchanged.
#[test]
fn what_would_give_a_sequence_twice_is_refused() {
    let host = Host::new();
    let mut publisher = host.builder().continue_from(host.journal()).open().unwrap();
    (1..=10).for_each(|_| assert!(publisher.publish(b"a message").is_ok()));
    let recorder = host.recorder();
    wait_until("ten messages on disk", || read(&host.journal()).messages().len() == 10);
    end(recorder, false);
    drop(publisher);
    host.lose_memory();
    let before = fs::read_dir(host.journal()).unwrap().count();
    // The first journal is another channel's, and the second one is locked by a recorder.
    let other = Publisher::builder("other").dir(host.memory()).continue_from(host.journal()).open();
    let Err(ChannelError::Journal { source, .. }) = other else { panic!("{other:?}") };
    assert!(matches!(*source, JournalError::OtherChannel { .. }), "{source}");
    assert!(!host.memory().join("other").exists(), "nothing was made");
    host.lose_memory();
    let ending = Ending::of(host.journal(), "ticks", None).unwrap();
    let busy = host.builder().continue_from(host.journal()).open();
    let Err(ChannelError::Journal { source, .. }) = busy else { panic!("{busy:?}") };
    assert!(matches!(*source, JournalError::Busy { .. }), "{source}");
    drop(ending);
    assert_eq!(fs::read_dir(host.journal()).unwrap().count(), before);
    let missing = host.builder().continue_from(Path::new("/nowhere/at/all")).open().unwrap_err();
    assert!(missing.to_string().contains("/nowhere/at/all"), "{missing}");
    // After the ring is removed, the channel begins after the journal.
    let publisher = host.builder().continue_from(host.journal()).open().unwrap();
    assert!(publisher.next_sequence() > 1 << 32);
}

/// A gap can go beyond the reserve that the recorder has noted. The next publisher waits for the recorder, because it would otherwise use
/// sequences twice.
#[test]
fn behind_a_long_gap_nobody_publishes_before_the_recorder_has_noted_it() {
    let host = Host::new();
    let mut publisher = host.builder().continue_from(host.journal()).open().unwrap();
    (1..=10).for_each(|_| assert!(publisher.publish(b"a message").is_ok()));
    let recorder = host.recorder();
    wait_until("ten messages on disk", || read(&host.journal()).messages().len() == 10);
    recorder.pause();
    publisher.gap(1 << 33).unwrap();
    publisher.leave_open();
    let refused = host.builder().continue_from(host.journal()).open().unwrap_err();
    let ChannelError::Journal { source, .. } = &refused else { panic!("{refused}") };
    assert!(matches!(**source, JournalError::Unreserved { next, .. } if next == (1 << 33) + 1), "{refused}");
    recorder.resume();
    let mut publisher = host.builder().continue_from(host.journal()).open().unwrap();
    let last = publisher.publish(b"behind the gap").unwrap();
    end(recorder, true);
    drop(publisher);
    host.lose_memory();
    let next = host.builder().continue_from(host.journal()).open().unwrap().next_sequence();
    assert!(next > last, "{next} was given before: the last was {last}");
}

/// A reserve is no loss: most of its sequences were never used. Tools once counted them as billions of missed messages.
#[test]
fn a_reserve_is_skipped_and_not_missed() {
    let host = Host::new();
    let open = || host.builder().continue_from(host.journal()).open().unwrap();
    let mut first = open();
    first.publish_batch(["a", "b", "c"]).unwrap();
    let recorder = host.recorder();
    let has =
        |count| Journal::open(host.journal()).is_ok() && read(&host.journal()).messages().len() == count;
    wait_until("the first messages", || has(3));
    recorder.kill();
    first.leave_open();
    host.lose_memory();
    let mut second = open();
    second.publish(b"d").unwrap();
    let recorder = host.recorder();
    wait_until("the last message", || has(4));
    end(recorder, false);
    second.close();
    let journal = host.journal().display().to_string();
    let run = |command: &mut Command| {
        let output = Process::start(command).output();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let verb = |arguments: &[&str]| {
        let mut command = Command::new(program("shmcast"));
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        run(&mut command)
    };
    let memory = host.memory().display().to_string();
    let place = |name: &str| host.room.path().join(name).display().to_string();
    let said = [
        run(&mut host.shmcast("sub", &["--from", "oldest", "--history", &journal])),
        run(&mut host.shmcast("sub", &["--from", "oldest", "--history", &journal, "--summary"])),
        verb(&["journal", "verify", &journal]),
        verb(&["journal", "cut", &journal, &place("cut")]),
        verb(&["journal", "join", &place("joined"), &journal]),
        verb(&["journal", "dump", &journal, "--framing", "none"]),
        verb(&["replay", &journal, "--into", "v", "--dir", &memory, "--speed", "max", "--capacity", "64KiB"]),
    ];
    let parts = [
        "SKIPPED a reserve of 4,294,9",
        "missed 0, skipped 4,294,9",
        "SKIPS: 4 messages",
        "reserves of 4,294,9",
        "reserves of 4,294,9",
        "are skipped: a reserve",
        "replayed 4 messages",
    ];
    for ((code, said), part) in said.iter().zip(parts) {
        assert!(said.contains(part) && said.contains("skipped") && !said.contains("MISS"), "{part}: {said}");
        assert_eq!(*code, Some(3), "nobody knows whether there were messages: {said}");
    }
}
