//! The directory of `shmcast record` disappears, because it is removed or its mount ends. Another recorder begins in a directory that was
//! emptied, beside readers and publishers that use it.

use nix::sys::signal::Signal;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use shmcast::journal::{Ending, Entry, Journal, JournalError, folder_of};
use shmcast::{Event, History, Publisher, RecvError, Start, Subscriber};
use shmcast_testkit::command::{Host, text};
use shmcast_testkit::disk::Small;
use shmcast_testkit::{PATIENCE, Process, wait_for, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

struct Scene {
    host: Host,
    publisher: Publisher,
}

impl Scene {
    fn new(capacity: u64) -> Self {
        let host = Host::new();
        let builder = Publisher::builder("ticks").dir(host.dir.path().join("channels")).capacity(capacity);
        let publisher = builder.open().unwrap();
        Self { host, publisher }
    }

    fn journal(&self) -> PathBuf {
        self.host.dir.path().join("journal")
    }

    fn record(&self) -> Process {
        self.host.start(&format!("record ticks --to {} --set file=1MiB --json", self.journal().display()))
    }

    /// Publishes `count` messages. Returns the sequence of the last one.
    fn publish(&mut self, count: u64) -> u64 {
        for _ in 0..count {
            let sequence = self.publisher.next_sequence();
            self.publisher.publish(&sequence.to_le_bytes().repeat(12)).unwrap();
        }
        self.publisher.next_sequence() - 1
    }
}

/// The sequences that a journal has, and how many it names as lost.
fn contents(dir: &Path) -> Option<(Vec<u64>, u64)> {
    let mut reader = Journal::open(dir).and_then(|it| it.read_from(1)).ok()?;
    let (mut sequences, mut lost) = (Vec::new(), 0);
    while let Some(entry) = reader.next().ok()? {
        match entry {
            Entry::Message(message) => sequences.push(message.sequence),
            Entry::Lost(loss) => lost += loss.to + 1 - loss.from,
            _ => {}
        }
    }
    Some((sequences, lost))
}

fn wait_until_recorded(dir: &Path, last: u64) {
    wait_until("the journal", || contents(dir).is_some_and(|(sequences, _)| sequences.last() == Some(&last)));
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

/// Without syncs, written messages are in memory no more. If the last file cannot be sealed, the end was once a success all the same.
#[test]
fn a_last_file_that_cannot_be_sealed_is_an_error() {
    let mut scene = Scene::new(1 << 20);
    let recorder = scene.host.start(&format!("record ticks --to {} --sync none", scene.journal().display()));
    let last = scene.publish(1);
    wait_until_recorded(&scene.journal(), last);
    let last = scene.publish(1_000);
    wait_until_recorded(&scene.journal(), last);
    let maximum = getrlimit(Resource::Fsize).maximum;
    let pid = Pid::from_raw(recorder.pid().as_raw());
    prlimit(pid, Resource::Fsize, Rlimit { current: Some(4096), maximum }).unwrap();
    recorder.signal(Signal::SIGINT);
    let output = recorder.output();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("messages of the ring are not recorded (write the footer: "), "{said}");
    // The ring still has them.
    let recorder = scene.record();
    wait_until("the journal", || {
        contents(&scene.journal()).is_some_and(|found| found == ((1..=last).collect(), 0))
    });
    recorder.signal(Signal::SIGINT);
    assert!(recorder.output().status.success());
}

/// A recorder whose directory lost its name ends with an error, and reports nothing as durable.
fn ends_as_moved(recorder: Process) {
    let output = recorder.output();
    let said = text(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.contains("removed or moved"),
        "{}: {said}",
        output.status
    );
    let sums: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(sums["durable"], 0, "{sums}");
}

#[test]
fn a_directory_that_is_removed_or_unmounted_under_a_recorder_is_an_error() {
    let mut scene = Scene::new(4 << 20);
    let last = scene.publish(1_000);
    let recorder = scene.record();
    wait_until_recorded(&scene.journal(), last);
    fs::remove_dir_all(scene.journal()).unwrap();
    ends_as_moved(recorder);
    // The next recorder begins again, with all messages of the ring.
    let recorder = scene.record();
    wait_until_recorded(&scene.journal(), last);
    recorder.signal(Signal::SIGTERM);
    assert!(recorder.output().status.success());
    let Some(small) =
        Small::make("a_directory_that_is_removed_or_unmounted_under_a_recorder_is_an_error", 32)
    else {
        return;
    };
    fs::remove_dir_all(scene.journal()).unwrap();
    fs::create_dir(scene.journal()).unwrap();
    let (volume, point) = (small.path().display().to_string(), scene.journal().display().to_string());
    run("mount", &["--bind", &volume, &point]);
    let recorder = scene.record();
    wait_until_recorded(small.path(), last);
    run("umount", &["--lazy", &point]);
    ends_as_moved(recorder);
    run("mount", &["--bind", &volume, &point]);
    let last = scene.publish(1_000);
    let recorder = scene.record();
    wait_until_recorded(small.path(), last);
    recorder.signal(Signal::SIGTERM);
    assert!(recorder.output().status.success());
    assert_eq!(contents(small.path()), Some(((1..=last).collect(), 0)));
    run("umount", &[&point]);
}

/// The journal is emptied, and another recorder begins there. A reader that was lapped meanwhile learns exactly which messages neither the
/// ring nor the journal has. A publisher that continues after the journal uses no sequence twice.
#[test]
fn a_recorder_in_an_emptied_directory_costs_only_what_is_told() {
    let mut scene = Scene::new(1 << 20);
    let journal = scene.journal();
    let recorder = scene.record();
    let last = scene.publish(1_000);
    wait_until_recorded(&journal, last);
    let builder = Subscriber::builder("ticks").dir(scene.host.dir.path().join("channels"));
    let builder = builder.start(Start::Oldest).history(History::Dir(journal.clone()));
    let mut reader = builder.open().unwrap();
    let mut received = 0;
    while received < 500 {
        received += u64::from(matches!(reader.recv().unwrap(), Event::Message(_)));
    }
    recorder.kill();
    fs::remove_dir_all(&journal).unwrap();
    // Nobody records several rings of messages. Then a recorder begins with the messages in the ring.
    scene.publish(20_000);
    let recorder = scene.record();
    let mut last = scene.publish(100);
    wait_until_recorded(&journal, last);
    for _ in 0..10 {
        last = scene.publish(2_000);
        wait_until_recorded(&journal, last);
    }
    let (recorded, lost) = contents(&journal).unwrap();
    assert_eq!(recorded.len() as u64 + lost, last, "what came before the recorder has a name");
    let (mut missing, deadline) = (0, Instant::now() + PATIENCE);
    while received + missing < last {
        match reader.recv_deadline(deadline) {
            Ok(Some(Event::Message(message))) => {
                received += 1;
                assert_eq!(message.sequence, received + missing);
            }
            Ok(Some(Event::Lapped(lapped))) => missing += lapped.missed,
            Ok(Some(Event::Lost { from, to, .. } | Event::Gap { from, to })) => missing += to + 1 - from,
            Ok(Some(_)) | Err(RecvError::Stalled { .. }) => {}
            other => panic!("{other:?} at {received} and {missing} of {last}"),
        }
    }
    assert!(missing > 0 && missing <= lost, "{missing} of {lost}");
    // The publisher's memory is lost. The publisher continues after the journal of the new recorder.
    recorder.signal(Signal::SIGTERM);
    assert!(matches!(recorder.output().status.code(), Some(0 | 3)));
    drop(reader);
    let channels = scene.host.dir.path().join("channels");
    let Scene { host, publisher } = scene;
    drop(publisher);
    fs::remove_dir_all(&channels).unwrap();
    let builder = Publisher::builder("ticks").dir(&channels).capacity(1 << 20).continue_from(&journal);
    let publisher = wait_for("the channel", || builder.clone().open().ok());
    assert!(publisher.next_sequence() > last, "{} is given twice", publisher.next_sequence());
    drop((publisher, host));
}

/// The folder of the stream was moved to another disk. No reader follows the link, so no recorder does.
#[test]
fn the_folder_of_a_stream_that_is_a_link_is_refused_by_all() {
    let mut scene = Scene::new(1 << 20);
    let dir = scene.journal();
    let recorder = scene.record();
    let last = scene.publish(10);
    wait_until_recorded(&dir, last);
    recorder.signal(Signal::SIGINT);
    assert!(recorder.output().status.success());
    let folder = shmcast_testkit::journal::folder(&dir);
    let moved = scene.host.dir.path().join("moved");
    fs::rename(&folder, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &folder).unwrap();
    let dir = dir.display();
    for words in [
        format!("record ticks --to {dir}"),
        format!("journal verify {dir}"),
        format!("sub ticks --from oldest --history {dir}"),
    ] {
        let output = scene.host.run(&words);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("is a link"), "{words}: {said}");
    }
    let ending = Ending::of(scene.journal(), "ticks", None);
    assert!(matches!(ending, Err(JournalError::Link { .. })), "{ending:?}");
}

/// The disk takes nothing from the first message on.
#[test]
fn messages_that_no_disk_took_are_not_counted_as_recorded() {
    let mut scene = Scene::new(1 << 20);
    let recorder = scene.record();
    let stream = shmcast::Directory::at(scene.host.dir.path().join("channels")).channel("ticks").unwrap();
    let lock = folder_of(scene.journal(), stream.detail.unwrap().header.stream).join("lock");
    wait_until("the lock", || lock.exists());
    let maximum = getrlimit(Resource::Fsize).maximum;
    let pid = Pid::from_raw(recorder.pid().as_raw());
    prlimit(pid, Resource::Fsize, Rlimit { current: Some(0), maximum }).unwrap();
    scene.publish(50);
    recorder.signal(Signal::SIGINT);
    let output = recorder.output();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let sums: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        [&sums["messages"], &sums["unrecorded"], &sums["written"]].map(|n| n.as_u64()),
        [Some(0), Some(50), Some(0)],
        "{sums}"
    );
}

/// A directory of another channel is no journal of this one, and a reader that was to begin in it says so.
#[test]
fn a_reader_says_that_the_directory_has_no_journal_of_its_stream() {
    let mut scene = Scene::new(1 << 20);
    scene.publish(3);
    let dir = scene.journal();
    fs::create_dir(&dir).unwrap();
    let sub = |more: &str| {
        scene.host.run(&format!("sub ticks --history {} --framing none --count 1 {more}", dir.display()))
    };
    let said = |output: std::process::Output| {
        assert!(output.status.success(), "{output:?}");
        text(&output.stderr).contains("has no journal of this stream: begins at 1")
    };
    assert!(said(sub("--from oldest")));
    let recorder = scene.record();
    wait_until_recorded(&dir, 3);
    assert!(!said(sub("--from oldest")));
    recorder.signal(Signal::SIGINT);
    assert!(recorder.output().status.success());
}
