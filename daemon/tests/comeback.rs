//! Programs that come back after a crash of the daemon: no newcomer and no takeover may come before them.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

mod daemon_support;

use daemon_support::{Daemon, FOR_ALL, Raw, channel, fds, memory_dir, publish, publishing};
use nix::sys::signal::Signal;
use shmcast::Subscriber;
use std::fs;
use std::time::{Duration, Instant};

/// How long a daemon waits for the programs that come back.
const GRACE: Duration = Duration::from_secs(2);

fn config() -> String {
    channel("ticks", &format!("mode = \"strict\"\n{FOR_ALL}"))
}

#[test]
fn a_takeover_waits_for_programs_that_hold_the_channel() {
    let mut daemon = Daemon::start(&config());
    let mut publisher = publishing(&daemon.client(), "ticks").open().unwrap();
    for _ in 0..10 {
        publisher.publish(b"x").unwrap();
    }
    daemon.crash();
    daemon.client().take_over("ticks").unwrap();
    let next = publishing(&daemon.client(), "ticks").open().unwrap();
    assert_eq!(next.next_sequence(), 11, "the channel was lost, and its publisher held it all the time");
}

/// As for a publisher that is stopped before a crash, and goes on only after the next daemon has come and gone.
#[test]
fn a_program_that_has_not_come_back_is_waited_for_by_each_next_daemon() {
    let mut daemon = Daemon::start(&config());
    let stopped = Raw::greeted(&daemon.socket());
    stopped.ask_for_files(&publish("ticks", false), &[]);
    daemon.crash();
    daemon.wait_for_log(&["ready"]);
    std::thread::sleep(GRACE);
    daemon.end(Signal::SIGTERM);
    assert!(daemon.marker().exists(), "the next daemon does not know that somebody may come back");
    // The wait ends when the channel has gone on without it.
    daemon.restart();
    drop(publishing(&daemon.client(), "ticks").open().unwrap());
    daemon.wait_for_log(&["event=\"restarted\""]);
    daemon.wait_for_log(&["event=\"detached\""]);
    daemon.end(Signal::SIGTERM);
    assert!(!daemon.marker().exists(), "the next daemon waits for nobody");
}

/// While the host or the daemon is stopped, no program can come back.
#[test]
fn time_in_which_the_daemon_itself_was_stopped_is_no_time_to_come_back() {
    let mut daemon = Daemon::start(&config());
    let files = {
        let before = Raw::greeted(&daemon.socket());
        before.ask_for_files(&publish("ticks", false), &[]).1
    };
    daemon.wait_for_log(&["event=\"detached\""]);
    daemon.crash();
    daemon.wait_for_log(&["ready"]);
    let client = daemon.client();
    daemon.signal(Signal::SIGSTOP);
    std::thread::scope(|scope| {
        let newcomer = scope.spawn(|| Subscriber::builder("ticks").client(&client).open());
        std::thread::sleep(GRACE);
        daemon.signal(Signal::SIGCONT);
        let back = Raw::greeted(&daemon.socket());
        let answer = back.ask(&publish("ticks", true), &fds(&files[..2]));
        assert_eq!(answer["reply"], "publishing", "{answer}");
        newcomer.join().unwrap().unwrap();
    });
    assert!(!daemon.log().contains("event=\"restarted\""), "{}", daemon.log());
}

#[test]
fn a_daemon_that_ends_early_leaves_the_next_to_wait_for_programs_that_hold_channels() {
    loop {
        let dir = memory_dir();
        // The marker as a daemon that crashed leaves it, beside the socket.
        let marker = dir.path().join("run/control.running");
        fs::create_dir(dir.path().join("run")).unwrap();
        fs::write(&marker, "1").unwrap();
        let started = Instant::now();
        let mut daemon = Daemon::spawn(dir, &config());
        daemon.client();
        daemon.wait_for_log(&["ready"]);
        daemon.end(Signal::SIGTERM);
        assert_eq!(daemon.socket().with_extension("running"), marker, "the marker lies elsewhere");
        let is_marked = marker.exists();
        // On a slow machine the time to come back may be over.
        if started.elapsed() < GRACE {
            assert!(is_marked, "the next daemon does not know that somebody may come back");
            return;
        }
    }
}
