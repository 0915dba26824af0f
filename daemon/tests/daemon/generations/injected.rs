//! A takeover fails at each of the daemon's system calls in turn, or the daemon dies at this call.

use super::{config, publisher, reader, words};
use shmcast::{Client, PublishError};
use shmcast_testkit::daemon::Daemon;
use shmcast_testkit::{Process, number, scratch, skip, wait_for, wait_until, works};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// For each of the daemon's system calls, there is one takeover with an injected error, and one with a kill.
#[test]
fn a_takeover_that_fails_at_any_system_call_has_moved_everybody_or_nobody() {
    let test = "a_takeover_that_fails_at_any_system_call_has_moved_everybody_or_nobody";
    let traced = |inject: &str, log: &Path, daemon: &Daemon| {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-q", "-o", log.to_str().unwrap(), "-p", &daemon.pid().to_string()]);
        if !inject.is_empty() {
            strace.args(["-e", inject]);
        }
        Process::start(strace.stderr(Stdio::piped()))
    };
    let home = scratch();
    let log = home.path().join("trace");
    // A first run lists the calls.
    let daemon = Daemon::start(&config("strict"));
    let first = publisher(&daemon);
    if !works("strace", &["-V"]) {
        return skip(test, "no strace");
    }
    let strace = traced("", &log, &daemon);
    wait_until("strace", || is_traced(&daemon));
    daemon.client().take_over("ticks").unwrap();
    drop(strace);
    drop((first, daemon));
    let trace = fs::read_to_string(&log).unwrap();
    let mut calls: Vec<(String, usize)> = Vec::new();
    for line in trace.lines() {
        let Some(call) = line.split_whitespace().nth(1).and_then(|call| call.split_once('(')) else {
            continue;
        };
        let name = call.0.to_owned();
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') || name.starts_with("exit") {
            continue;
        }
        let nth = calls.iter().filter(|(known, _)| *known == name).count() + 1;
        calls.push((name, nth));
    }
    assert!(calls.len() > 20, "{trace}");
    let wanted = number("SHMCAST_INJECTIONS", 16);
    let step = calls.len().checked_div(wanted).unwrap_or(1).max(1);
    let (mut moved, mut stayed) = (0, 0);
    for (at, (name, nth)) in calls.iter().enumerate().step_by(step) {
        for what in ["error=ENOMEM", "signal=SIGKILL"] {
            let inject = format!("inject={name}:{what}:when={nth}");
            let mut daemon = Daemon::start(&config("strict"));
            let mut subscriber = reader(&daemon);
            let mut old = publisher(&daemon);
            old.publish(b"one").unwrap();
            let strace = traced(&inject, &log, &daemon);
            let traced = wait_for("strace", || {
                Some(is_traced(&daemon)).filter(|traced| *traced || !daemon.is_alive())
            });
            let taken = traced
                && Client::at(daemon.socket()).ok().is_some_and(|client| client.take_over("ticks").is_ok());
            // When strace ends, the kernel detaches strace from the daemon.
            drop(strace);
            // A killed daemon takes a moment to end.
            let answers = wait_for("the daemon to answer or to be gone", || {
                (!daemon.is_alive())
                    .then_some(false)
                    .or_else(|| Client::at(daemon.socket()).is_ok().then_some(true))
            });
            if !answers {
                daemon.restart();
            }
            wait_until(&format!("all to be attached after {inject}"), || {
                old.is_cut_off()
                    || old.is_registered() == Some(true) && subscriber.is_registered() == Some(true)
            });
            let is_cut_off = old.publish(b"two or void") == Err(PublishError::CutOff);
            assert!(is_cut_off || !taken, "{at}: {inject}: taken over, and the old publisher is heard");
            if is_cut_off {
                moved += 1;
                let mut new = publisher(&daemon);
                new.publish(b"after").unwrap();
                let sequence = new.next_sequence() - 1;
                let heard = words(&mut subscriber, &format!("{sequence} after"));
                assert!(!heard.iter().any(|word| word.contains("void")), "{at}: {inject}: {heard:?}");
            } else {
                stayed += 1;
                let heard = words(&mut subscriber, "2 two or void");
                assert_eq!(heard, ["1 one", "2 two or void"], "{at}: {inject}");
            }
        }
    }
    println!(
        "{} system calls, every {step}. of them: moved {moved} times, stayed {stayed} times",
        calls.len()
    );
    assert!(moved > 0 && stayed > 0, "moved {moved}, stayed {stayed}");
}

fn is_traced(daemon: &Daemon) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap_or_default();
    status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
}
