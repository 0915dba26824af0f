//! A journal's file system has too little room, while readers keep lent files open.

use nix::sys::signal::Signal;
use shmcast::control::JournalStatus;
use shmcast::journal::{Journal, Wanted};
use shmcast_testkit::clock::WallClock;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, publishing};
use shmcast_testkit::disk::Small;
use shmcast_testkit::{scratch, wait_for, wait_until};
use std::path::Path;

fn config(dir: &Path, keep_free: u64) -> String {
    format!(
        "[[channel]]\nname = \"ticks\"\ncapacity = \"16MiB\"\nmlock = false\nhugepages = false\n{FOR_ALL}\n\
         journal = {{ dir = \"{}\", file = \"1MiB\", keep_free = {keep_free} }}\n",
        dir.display()
    )
}

#[test]
fn room_that_readers_hold_costs_no_history_and_is_told() {
    let Some(disk) = Small::make("room_that_readers_hold_costs_no_history_and_is_told", 48) else { return };
    let dir = disk.path().join("journal");
    let mut daemon = Daemon::start(&config(&dir, 1));
    let mut publisher = publishing(&daemon.client(), "ticks").open().unwrap();
    for _ in 0..9_000 {
        publisher.publish(&[7; 1_000]).unwrap();
    }
    let status = |daemon: &Daemon| daemon.client().channel("ticks").ok().and_then(|channel| channel.journal);
    let durable = |daemon: &Daemon| status(daemon).filter(|journal| journal.durable == 9_000);
    wait_for("the messages on disk", || durable(&daemon));
    let held = format!("journal hold {} audit", dir.display());
    assert!(daemon.shmcast(&held).output().unwrap().status.success());
    // This open file stands for a reader that was lent a file and stopped.
    let mut journal = Journal::open(&dir).unwrap();
    let firsts: Vec<u64> = journal.files().iter().map(|file| file.header.sequence).collect();
    let mut lend = |first: u64| journal.lend(Wanted::Sequence(first), None).unwrap().unwrap().file;
    let readers: Vec<_> = firsts.iter().copied().map(&mut lend).collect();
    daemon.configure(&config(&dir, disk.free() + (3 << 20)));
    daemon.signal(Signal::SIGHUP);
    let own = format!("pid {} (", std::process::id());
    daemon.wait_for_log(&["event=\"journal-no-room\"", "would free too little", &own]);
    // The next daemon does not begin to remove files, either.
    daemon.end(Signal::SIGTERM);
    daemon.restart();
    let told = || {
        let log = daemon.log();
        (log.matches("event=\"journal-no-room\"").count() == 2).then_some(log)
    };
    let log = wait_for("the next daemon's word", told);
    assert!(!log.contains("journal-hold-broken"), "{log}");
    let oldest = |daemon: &Daemon, is_it: &dyn Fn(&JournalStatus) -> bool| {
        wait_for("the oldest sequence", || status(daemon).filter(is_it)).oldest
    };
    assert_eq!(oldest(&daemon, &|journal| journal.oldest > 0), 1);
    drop(readers);
    let left = oldest(&daemon, &|journal| journal.oldest > 1);
    assert!(firsts[1..].contains(&left) && left < 9_000, "{left}");
}

/// A host starts with a clock that is a year ahead, and the network's time comes later. An earlier mistake: the daemon accepted the first
/// clock that it read, and immediately removed all old files.
#[test]
fn a_daemon_that_starts_with_a_wrong_clock_removes_nothing() {
    let test = "a_daemon_that_starts_with_a_wrong_clock_removes_nothing";
    let room = scratch();
    let Some(clock) = WallClock::make(test, room.path()) else { return };
    let dir = room.path().join("journal");
    let config = config(&dir, 1).replace("keep_free = 1 ", "keep_age = \"1d\" ");
    assert!(config.contains("keep_age"), "{config}");
    let mut daemon = Daemon::start(&config);
    let mut publisher = publishing(&daemon.client(), "ticks").open().unwrap();
    let status = |daemon: &Daemon| daemon.client().channel("ticks").ok().and_then(|channel| channel.journal);
    let mut publish = |daemon: &Daemon, count: u64| {
        for _ in 0..count {
            publisher.publish(&[7; 1_000]).unwrap();
        }
        let last = publisher.next_sequence() - 1;
        wait_for("the messages on disk", || status(daemon).filter(|journal| journal.durable >= last));
    };
    publish(&daemon, 5_000);
    daemon.end(Signal::SIGTERM);
    clock.set(365 * 86_400);
    daemon.restart_with(&clock);
    // The daemon counts the files after it has removed the old ones.
    wait_until("the first check", || status(&daemon).is_some_and(|journal| journal.size_bytes > 0));
    let before = status(&daemon).unwrap().size_bytes;
    publish(&daemon, 3_000);
    wait_until("another check", || status(&daemon).is_some_and(|journal| journal.size_bytes != before));
    assert_eq!((status(&daemon).unwrap().oldest, daemon.told("journal-trimmed")), (1, 0));
}
