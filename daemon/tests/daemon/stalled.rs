//! Readers that stand still for longer than the ring lasts, while the daemon and the publisher are killed: nobody misses a message, and
//! everybody is live again. Everything is a process of its own, as on a host.
//!
//! More of it: `SHMCAST_STALLED=50 SHMCAST_STALL_SECONDS=30 SHMCAST_KILLS=100 SHMCAST_STALL_RATE=100000 cargo test --release -p
//! shmcast-daemon --test daemon stalled:: -- --nocapture`

use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast::journal::{Entry, Journal};
use shmcast_testkit::daemon::{Daemon, FOR_ALL};
use shmcast_testkit::{Process, number, wait_until};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A message takes 80 bytes of the ring. The smallest ring that lasts for a second of them.
fn ring_of_a_second(rate: u64) -> u64 {
    (rate * 80).next_power_of_two()
}

fn publisher(daemon: &Daemon, input: &Path, rate: u64) -> Process {
    let input = input.display();
    let command = format!("pub ticks --rate {rate}/s --loop 1000000 --prepare none --input {input}");
    Process::start(&mut daemon.shmcast(&command))
}

/// A reader, and the file with what it says.
fn reader(daemon: &Daemon, room: &Path, number: u32) -> (Process, PathBuf) {
    let said = room.join(format!("reader-{number}"));
    let mut command =
        daemon.shmcast("sub ticks --from oldest --wait sleep:2000 --framing none --summary --json");
    (Process::start(command.stderr(File::create(&said).unwrap())), said)
}

/// The channel's last sequence in the ring.
fn published(daemon: &Daemon) -> u64 {
    daemon.client().channel("ticks").ok().and_then(|channel| channel.next_sequence).map_or(0, |next| next - 1)
}

/// Waits until the daemon has this publisher, and it publishes.
fn wait_for_messages(daemon: &Daemon, publisher: &Process) {
    let before = published(daemon);
    wait_until("messages behind a kill", || {
        let channel = daemon.client().channel("ticks").ok();
        let attached = channel.and_then(|channel| channel.publisher).and_then(|process| process.pid);
        attached == Some(publisher.id()) && published(daemon) > before
    });
}

/// Kills publisher and daemon in turns, as often as asked for and for at least `time`.
fn kill_all(
    daemon: &mut Daemon,
    publisher_of: impl Fn(&Daemon) -> Process,
    kills: u32,
    time: Duration,
) -> Process {
    let (started, mut publisher) = (Instant::now(), publisher_of(daemon));
    let pause = (time / (2 * kills.max(1))).max(Duration::from_millis(50));
    for turn in 1..=kills {
        sleep(pause);
        publisher.kill();
        publisher = publisher_of(daemon);
        wait_for_messages(daemon, &publisher);
        sleep(pause);
        daemon.crash();
        wait_for_messages(daemon, &publisher);
        if turn % 10 == 0 {
            println!(
                "{turn} kills of each, {} messages, {:.1} s",
                published(daemon),
                started.elapsed().as_secs_f64()
            );
        }
    }
    sleep(time.saturating_sub(started.elapsed()));
    publisher
}

#[test]
fn readers_that_stand_still_miss_nothing_while_daemon_and_publisher_are_killed() {
    let rate = number("SHMCAST_STALL_RATE", 10_000u64);
    let stall = Duration::from_secs(number("SHMCAST_STALL_SECONDS", 4));
    let room = TempDir::new().unwrap();
    let (journal, input) = (room.path().join("ticks"), room.path().join("input"));
    fs::write(&input, format!("{}\n", "m".repeat(60)).repeat(10_000)).unwrap();
    let mut daemon = Daemon::start(&format!(
        "[[channel]]\nname = \"ticks\"\ncapacity = {}\nmlock = false\nhugepages = false\n{FOR_ALL}\n\
         journal = {{ dir = \"{}\", file = \"64MiB\" }}\n",
        ring_of_a_second(rate),
        journal.display()
    ));
    let count = number("SHMCAST_STALLED", 5u32);
    let readers: Vec<_> = (0..count).map(|number| reader(&daemon, room.path(), number)).collect();
    let client = daemon.client();
    // The daemon's own recorder is one more.
    wait_until("the readers", || client.channel("ticks").is_ok_and(|it| it.readers.len() > readers.len()));
    drop(client);
    // One goes on, and so has the channel's memory when publisher and daemon are both away.
    let live = reader(&daemon, room.path(), count);
    readers.iter().for_each(|(reader, _)| reader.pause());
    let kills = number("SHMCAST_KILLS", 4);
    let mut publisher = kill_all(&mut daemon, |daemon| publisher(daemon, &input, rate), kills, stall);
    let stalled_until = published(&daemon);
    readers.iter().for_each(|(reader, _)| reader.signal(Signal::SIGCONT));
    wait_until("more messages", || published(&daemon) > stalled_until + rate);
    publisher.signal(Signal::SIGINT);
    publisher.wait();
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
