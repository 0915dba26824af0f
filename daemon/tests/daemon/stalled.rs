//! Readers stand still for longer than the ring lasts, while the daemon and the publisher are killed. No reader misses a message, and all
//! readers are live again afterwards. All programs are processes of their own.
//!
//! A longer run: `SHMCAST_STALLED=50 SHMCAST_KILLS=100 SHMCAST_STALL_MESSAGES=100000 cargo test --release -p shmcast-daemon --test daemon
//! stalled:: -- --nocapture`

use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast::journal::{Entry, Journal};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::{Process, number, wait_for, wait_until};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The smallest ring that holds this many messages of [`LINE`]. Each takes 80 bytes of the ring.
fn ring_of(messages: u64) -> u64 {
    (messages * 80).next_power_of_two()
}

/// The length of a message in bytes, with the end of its line.
const LINE: usize = 61;

/// A publisher that publishes the lines of its input.
struct Feed {
    process: Process,
    input: ChildStdin,
}

impl Feed {
    fn start(daemon: &Daemon) -> Self {
        let mut command = daemon.shmcast("pub ticks --set prepare=none --framing lines");
        let mut process = Process::start(command.stdin(Stdio::piped()));
        let input = process.child().stdin.take().expect("a pipe");
        Self { process, input }
    }

    /// Gives the publisher lines, which it publishes at its own pace.
    fn give(&mut self, lines: u64) {
        let line = "m".repeat(LINE - 1) + "\n";
        self.input.write_all(line.repeat(lines as usize).as_bytes()).unwrap();
    }
}

/// A reader, and the file with its output.
fn reader(daemon: &Daemon, room: &Path, number: u32) -> (Process, PathBuf) {
    let said = room.join(format!("reader-{number}"));
    let mut command =
        daemon.shmcast("sub ticks --from oldest --wait sleep:2000 --framing none --summary --json");
    (Process::start(command.stderr(File::create(&said).unwrap())), said)
}

/// The channel's last sequence in the ring.
fn published(daemon: &Daemon) -> u64 {
    wait_for("the channel", || daemon.client().channel("ticks").ok()?.next_sequence) - 1
}

/// Waits until the daemon knows this publisher, and the publisher has published `more` messages since `before`.
fn wait_for_messages(daemon: &Daemon, publisher: &Feed, before: u64, more: u64) {
    wait_until("messages behind a kill", || {
        let channel = daemon.client().channel("ticks").ok();
        let attached = channel.and_then(|channel| channel.publisher).and_then(|process| process.pid);
        attached == Some(publisher.process.id()) && published(daemon) >= before + more
    });
}

/// Waits until the recorder has everything in the ring. More is published only after that, so the recorder is never lapped, even on a busy
/// machine.
fn wait_until_recorded(daemon: &Daemon) {
    let last = published(daemon);
    let durable = || daemon.client().channel("ticks").ok()?.journal.map(|journal| journal.durable);
    wait_until("the journal", || durable().is_some_and(|durable| durable >= last));
}

/// Gives the publisher `some` lines, and waits until the recorder has them.
fn give_and_record(daemon: &Daemon, publisher: &mut Feed, some: u64) {
    let before = published(daemon);
    publisher.give(some);
    wait_for_messages(daemon, publisher, before, some);
    wait_until_recorded(daemon);
}

/// Kills publisher and daemon in turns. At most half a ring is not recorded at any time.
fn kill_all(daemon: &mut Daemon, kills: u32, some: u64) -> Feed {
    let (started, mut publisher) = (Instant::now(), Feed::start(daemon));
    for turn in 1..=kills {
        give_and_record(daemon, &mut publisher, some);
        // The publisher is killed while it publishes.
        let before = published(daemon);
        publisher.give(some);
        wait_for_messages(daemon, &publisher, before, 1);
        publisher.process.kill();
        publisher = Feed::start(daemon);
        give_and_record(daemon, &mut publisher, some);
        // The publisher continues while no daemon runs.
        let before = published(daemon);
        publisher.give(some);
        daemon.kill();
        publisher.give(some);
        daemon.restart();
        wait_for_messages(daemon, &publisher, before, 2 * some);
        wait_until_recorded(daemon);
        if turn % 10 == 0 {
            let seconds = started.elapsed().as_secs_f64();
            println!("{turn} kills of each, {} messages, {seconds:.1} s", published(daemon));
        }
    }
    publisher
}

#[test]
fn readers_that_stand_still_miss_nothing_while_daemon_and_publisher_are_killed() {
    let some = number("SHMCAST_STALL_MESSAGES", 3_000u64);
    let room = TempDir::new().unwrap();
    let journal = room.path().join("ticks");
    let mut daemon = Daemon::start(&format!(
        "[[channel]]\nname = \"ticks\"\ncapacity = {}\nmlock = false\nhugepages = false\n{FOR_ALL}\n\
         journal = {{ dir = \"{}\", file = \"64MiB\" }}\n",
        ring_of(4 * some),
        journal.display()
    ));
    let count = number("SHMCAST_STALLED", 5u32);
    let readers: Vec<_> = (0..count).map(|number| reader(&daemon, room.path(), number)).collect();
    let client = daemon.client();
    // The daemon's own recorder counts as one more reader.
    wait_until("the readers", || client.channel("ticks").is_ok_and(|it| it.readers.len() > readers.len()));
    drop(client);
    // One reader is never stopped. It keeps the channel's memory while publisher and daemon are both away.
    let live = reader(&daemon, room.path(), count);
    readers.iter().for_each(|(reader, _)| reader.pause());
    let kills = number("SHMCAST_KILLS", 4);
    let mut publisher = kill_all(&mut daemon, kills, some);
    let stalled_until = published(&daemon);
    readers.iter().for_each(|(reader, _)| reader.signal(Signal::SIGCONT));
    publisher.give(some);
    wait_until("more messages", || published(&daemon) >= stalled_until + some);
    drop(publisher.input);
    publisher.process.end();
    let last = published(&daemon);
    let mut lapped = 0;
    for (mut reader, said) in readers.into_iter().chain([live]) {
        let status = reader.wait();
        let said = fs::read_to_string(said).unwrap();
        assert_eq!(status.code(), Some(0), "{said}");
        let summary: Value = said.lines().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap();
        let found = ["received", "missed", "next_sequence"].map(|field| summary[field].as_u64().unwrap());
        assert_eq!(found, [last, 0, last + 1], "{said}");
        lapped += u32::from(said.contains("live again at"));
    }
    println!("{last} messages, {lapped} readers were overtaken and are live again");
    assert!(lapped > 0, "the ring lasted too long");
    daemon.end(Signal::SIGTERM);
    let mut kept = Journal::open(&journal).unwrap().read_from(1).unwrap();
    let mut due = 1;
    while let Some(entry) = kept.next().unwrap() {
        match entry {
            Entry::Message(message) => {
                assert_eq!(message.sequence, due);
                due += 1;
            }
            Entry::Lost(loss) => panic!("{loss:?}"),
            _ => {}
        }
    }
    assert_eq!(due, last + 1);
}

/// The open sockets of a process.
fn sockets(process: &Process) -> usize {
    let open = fs::read_dir(format!("/proc/{}/fd", process.id())).unwrap().flatten();
    let is_socket =
        |path: &Path| fs::read_link(path).is_ok_and(|link| link.to_string_lossy().starts_with("socket:"));
    open.filter(|descriptor| is_socket(&descriptor.path())).count()
}

/// A daemon that hangs keeps no reader from its messages. After a second of silence `sub` once asked the daemon for the publisher, and
/// received nothing until the time for an answer was over.
#[test]
fn a_reader_asks_a_daemon_that_hangs_nothing() {
    let daemon = Daemon::start(&channel("ticks", FOR_ALL));
    let mut publisher = publishing(&daemon.client(), "ticks").open().unwrap();
    let said = daemon.dir().join("said");
    let mut command = daemon.shmcast("sub ticks --from oldest --wait sleep:1000");
    let reader = Process::start(command.stdout(File::create(&said).unwrap()).stderr(Stdio::piped()));
    publisher.publish(b"1").unwrap();
    wait_until("the first message", || fs::read(&said).unwrap() == b"1\n");
    let before = sockets(&reader);
    daemon.pause();
    // The first question came after a second, and had no answer.
    for _ in 0..30 {
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(sockets(&reader), before, "the daemon is asked");
    }
    publisher.publish(b"2").unwrap();
    wait_until("the second message", || fs::read(&said).unwrap() == b"1\n2\n");
    daemon.resume();
    // The daemon tells of the death by itself.
    publisher.leave_open();
    wait_until("the death", || daemon.client().channel("ticks").unwrap().state == "orphaned");
    let mut next = wait_for("the next publisher", || publishing(&daemon.client(), "ticks").open().ok());
    next.publish(b"3").unwrap();
    next.close();
    let output = reader.output();
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), fs::read(&said).unwrap()), (Some(0), b"1\n2\n3\n".to_vec()), "{words}");
}

/// A reader of a daemon's channel reports the death of the publisher.
#[test]
fn a_reader_tells_that_its_publisher_died() {
    let daemon = Daemon::start(&channel("ticks", FOR_ALL));
    let publisher = publishing(&daemon.client(), "ticks").open().unwrap();
    let said = daemon.dir().join("said");
    let mut command = daemon.shmcast("sub ticks");
    let reader = Process::start(command.stderr(File::create(&said).unwrap()));
    wait_until("the reader", || !daemon.client().channel("ticks").unwrap().readers.is_empty());
    publisher.leave_open();
    let told = "shmcast: ticks: the publisher is gone and has not closed the channel; waiting for the next\n";
    wait_until("the death", || fs::read_to_string(&said).unwrap() == told);
    reader.kill();
}
