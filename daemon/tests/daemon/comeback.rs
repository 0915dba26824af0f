//! Programs that come back after a crash of the daemon. No newcomer and no takeover is allowed before them.

use nix::sys::signal::Signal;
use shmcast::Subscriber;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::raw::{Raw, fds, publish};
use std::time::Duration;

/// The time for which a daemon waits for programs that come back.
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

/// A program acts like a publisher that is stopped before a crash, and continues only after the next daemon has come and gone.
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
    // The wait ends when the channel has continued without the stopped program.
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
