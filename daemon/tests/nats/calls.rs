//! A publisher makes no system call for an engine. It does not matter whether the servers accept its messages, are away, or have no room.

use shmcast::{ClockKind, Publisher, Subscriber};
use shmcast_testkit::Process;
use shmcast_testkit::command::Host;
use shmcast_testkit::nats::{Server, program};
use shmcast_testkit::process::{as_role, in_dir, my_dir, my_role};
use shmcast_testkit::skip;
use shmcast_testkit::turn::turn;
use shmcast_testkit::wait_until;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names of files that never exist. The publisher looks for them to mark places in its trace.
const BEGIN: &str = "/publishing-begins";
const END: &str = "/publishing-ends";
const ROUNDS: [&str; 3] = ["running", "away", "full"];
const MESSAGES: u64 = 20_000;

fn channels(dir: &Path) -> PathBuf {
    dir.join("channels")
}

/// The traced publisher. It publishes a round of messages each time that the test names a round.
#[test]
#[ignore = "a role that the test here starts a process for"]
fn play() {
    let Some(_) = my_role() else { return };
    let dir = my_dir();
    let builder = Publisher::builder("ticks").dir(channels(&dir));
    let mut publisher = builder.capacity(64 << 20).open().unwrap();
    let body = [7; 2_000];
    let mark = |path: &str| assert!(!Path::new(path).exists());
    for round in ROUNDS {
        wait_until(round, || dir.join(round).exists());
        mark(BEGIN);
        for n in 0..MESSAGES {
            publisher.publish(&body[..(n * 37 % 2_000) as usize]).unwrap();
        }
        mark(END);
        std::fs::write(dir.join(format!("{round}-done")), "").unwrap();
    }
    wait_until("the end", || dir.join("end").exists());
}

/// Returns the number of marked rounds, and the lines of the trace within them, by the thread that made the marks.
fn calls_between_marks(trace: &str) -> (usize, Vec<&str>) {
    let (mut thread, mut rounds, mut calls) = (None, 0, Vec::new());
    for line in trace.lines() {
        let of = line.split_whitespace().next();
        if line.contains(BEGIN) {
            thread = of;
        } else if line.contains(END) {
            (thread, rounds) = (None, rounds + 1);
        } else if thread.is_some() && thread == of && !line.contains(" resumed>") {
            calls.push(line);
        }
    }
    (rounds, calls)
}

/// Starts the publisher under strace.
fn start_traced(dir: &Path, trace: &Path) -> Process {
    let mut command = Command::new("strace");
    command.args(["-f", "-o"]).arg(trace).arg(std::env::current_exe().unwrap());
    as_role(&mut command, "calls", "publish");
    Process::start(in_dir(&mut command, dir).stderr(Stdio::null()))
}

#[test]
fn a_publisher_beside_an_engine_calls_the_system_never() {
    let test = "a_publisher_beside_an_engine_calls_the_system_never";
    let (_turn, Some(program)) = (turn(), program(test)) else { return };
    let strace = Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    if !strace.is_ok_and(|output| output.status.success()) {
        return skip(test, "no strace here, or it may not trace");
    }
    if shmcast::Clock::of_this_host().kind() != ClockKind::Counter {
        return skip(test, "this machine's clock is the kernel's");
    }
    let (dir, near) = (tempfile::tempdir().unwrap(), Host::new());
    let mut server = Server::alone(program, dir.path());
    server.kill();
    // The server has room for the first round, and for half of the second.
    server.rewrite(|text| text.replace("jetstream {", "jetstream { max_file_store: 30MB,"));
    server.start();
    let trace = dir.path().join("trace");
    let publisher = start_traced(near.dir.path(), &trace);
    let open = || Subscriber::builder("ticks").dir(channels(near.dir.path())).open();
    wait_until("the channel", || open().is_ok());
    let nats = server.url();
    let mut send = near.start(&format!(
        "bridge send ticks --json --set nats.create=true --set send.from=oldest --nats {nats}"
    ));
    let stored = || {
        let info = near.run(&format!("bridge stream info ticks --json {nats}"));
        let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap_or_default();
        info["next_sequence"].as_u64().unwrap_or(0)
    };
    publish(&near, "running");
    wait_until("the first round in the log", || stored() == MESSAGES + 1);
    server.kill();
    publish(&near, "away");
    server.start();
    wait_until("a log that is full", || stored() > MESSAGES + 5_000);
    publish(&near, "full");
    assert!(stored() < 2 * MESSAGES, "it is full");
    assert!(send.is_alive(), "the bridge waits for room");
    send.kill();
    std::fs::write(near.dir.path().join("end"), "").unwrap();
    publisher.end();
    let trace = std::fs::read_to_string(&trace).unwrap();
    let (rounds, calls) = calls_between_marks(&trace);
    assert_eq!((rounds, calls), (ROUNDS.len(), Vec::new()), "calls by the thread that publishes");
}

fn publish(near: &Host, round: &str) {
    std::fs::write(near.dir.path().join(round), "").unwrap();
    wait_until(round, || near.dir.path().join(format!("{round}-done")).exists());
}
