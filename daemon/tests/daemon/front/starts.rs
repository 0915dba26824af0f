//! Starts that are killed at each of their system calls. The next daemon must serve.

use nix::sys::signal::Signal;
use shmcast::Client;
use shmcast::sys::handoff;
use shmcast_testkit::daemon::{FOR_ALL, channel, publishing};
use shmcast_testkit::place::program;
use shmcast_testkit::raw::Raw;
use shmcast_testkit::{PATIENCE, Process, number, scratch, skip, wait_for};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn daemon_in(dir: &Path, through: &[String]) -> Command {
    let program = program("shmcastd").display().to_string();
    let words: Vec<String> = through.iter().cloned().chain([program]).collect();
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .arg("--config")
        .arg(dir.join("shmcast.toml"))
        .arg("--socket")
        .arg(dir.join("control.sock"));
    let log = File::options().create(true).append(true).open(dir.join("log")).unwrap();
    command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command
}

fn has_strace() -> bool {
    Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn answers(dir: &Path) -> Duration {
    let started = Instant::now();
    wait_for("the next daemon's answer", || {
        let client = Client::at(dir.join("control.sock")).ok()?;
        client.channel("ticks").ok()
    });
    started.elapsed()
}

#[test]
fn a_start_that_is_cut_short_anywhere_leaves_a_place_for_the_next() {
    let test = "a_start_that_is_cut_short_anywhere_leaves_a_place_for_the_next";
    if !has_strace() {
        return skip(test, "strace is not installed");
    }
    let most = number("SHMCAST_STARTS", 24_usize);
    let dir = scratch();
    fs::write(dir.path().join("shmcast.toml"), channel("ticks", FOR_ALL).replace("16MiB", "64KiB")).unwrap();
    // The number of system calls of a start, on its main thread alone.
    let trace = dir.path().join("trace");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let through = words(&format!("strace -qq -o {}", trace.display()));
    let daemon = Process::start(&mut daemon_in(dir.path(), &through));
    answers(dir.path());
    let calls = fs::read_to_string(&trace).unwrap().lines().count();
    stop_traced(&daemon);
    assert!(calls > 100, "{calls} calls");
    // The loader's calls come first, and change nothing. The kills are spread evenly over all calls.
    let mut slowest = (Duration::ZERO, 0);
    for nth in (1..=most).map(|i| (calls * i / most).max(1)) {
        let through = words(&format!("strace -qq -o /dev/null --inject=all:signal=SIGKILL:when={nth}"));
        let mut daemon = Process::start(&mut daemon_in(dir.path(), &through));
        let given = Instant::now();
        // If the start ends before that call, the daemon waits for ever, so it is ended here.
        while daemon.try_wait().is_none() && given.elapsed() < PATIENCE {
            if Client::at(dir.path().join("control.sock")).is_ok() {
                stop_traced(&daemon);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let next = Process::start(&mut daemon_in(dir.path(), &[]));
        slowest = slowest.max((answers(dir.path()), nth));
        // The next daemon is killed like the first one, so that its successor finds a leftover.
        drop(next);
    }
    println!("{most} of {calls} calls; the slowest answer took {:?}, after call {}", slowest.0, slowest.1);
}

/// Kills a daemon under strace. strace ends with it.
fn stop_traced(strace: &Process) {
    let children = format!("/proc/{0}/task/{0}/children", strace.id());
    for child in fs::read_to_string(children).unwrap_or_default().split_whitespace() {
        let pid = nix::unistd::Pid::from_raw(child.parse().unwrap());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    }
}

/// Attaches strace to a running daemon, and waits until strace traces it. strace counts the calls of each thread separately.
fn trace(daemon: &Process, options: &[&str]) -> Process {
    let pid = daemon.id().to_string();
    let mut command = Command::new("strace");
    command.args(["-f", "-qq"]).args(options).args(["-p", &pid]);
    let strace = Process::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
    wait_for("strace to hold the daemon", || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        // The daemon might already have been killed at its first call.
        (!status.contains("TracerPid:\t0\n") || status.contains("State:\tZ")).then_some(())
    });
    strace
}

#[test]
fn a_reload_that_is_cut_short_anywhere_leaves_a_place_for_the_next() {
    let test = "a_reload_that_is_cut_short_anywhere_leaves_a_place_for_the_next";
    if !has_strace() {
        return skip(test, "strace is not installed");
    }
    let most = number("SHMCAST_STARTS", 16_usize);
    let dir = scratch();
    let config = |names: &[&str]| {
        let channels = names.iter().map(|name| channel(name, FOR_ALL)).collect::<String>();
        fs::write(dir.path().join("shmcast.toml"), channels.replace("16MiB", "64KiB")).unwrap();
    };
    let reloads = || fs::read_to_string(dir.path().join("log")).unwrap().matches("reloaded").count();
    let calls_before = dir.path().join("trace");
    let mut slowest = (Duration::ZERO, 0);
    let mut calls = most;
    // The first daemon's calls are only counted, and it is not killed.
    for step in 0..=most {
        config(&["ticks", "removed"]);
        let mut daemon = Process::start(&mut daemon_in(dir.path(), &[]));
        answers(dir.path());
        config(&["ticks", "added"]);
        let nth = (calls * step / most).max(1);
        let inject = format!("--inject=all:signal=SIGKILL:when={nth}");
        let strace = match step {
            0 => trace(&daemon, &["-o", calls_before.to_str().unwrap()]),
            _ => trace(&daemon, &["-o", "/dev/null", &inject]),
        };
        let before = reloads();
        daemon.signal(Signal::SIGHUP);
        wait_for("the reload, or its end", || {
            (daemon.try_wait().is_some() || reloads() > before).then_some(())
        });
        drop(daemon);
        drop(strace);
        if step == 0 {
            let all = fs::read_to_string(&calls_before).unwrap();
            calls = all.lines().count();
            assert!(calls > 10, "{all}");
        }
        let next = Process::start(&mut daemon_in(dir.path(), &[]));
        slowest = slowest.max((answers(dir.path()), nth));
        drop(next);
    }
    println!("{most} of {calls} calls; the slowest answer took {:?}, after call {}", slowest.0, slowest.1);
}

/// An earlier mistake: with these values, a daemon with a wrong configuration ended with code 1 and said nothing.
#[test]
fn why_a_daemon_ended_is_told_whatever_is_logged() {
    let dir = scratch();
    fs::write(dir.path().join("shmcast.toml"), "capasity = 1\n").unwrap();
    for (directives, is_told) in
        [("", false), ("off", false), ("info", false), ("inof", true), ("9", true), ("shmcastd=info", true)]
    {
        let mut command = daemon_in(dir.path(), &[]);
        let output = command.env("RUST_LOG", directives).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{directives}: {said}");
        assert_eq!(said.matches("capasity").count(), 1, "{directives}: {said}");
        assert_eq!(said.contains("RUST_LOG"), is_told, "{directives}: {said}");
    }
}

/// The time that the daemon of the next test takes to make its memory. A client waits less for an answer.
const SLOW: Duration = Duration::from_secs(8);

#[test]
fn a_daemon_that_takes_long_to_make_its_memory_answers_and_nobody_gives_up() {
    let test = "a_daemon_that_takes_long_to_make_its_memory_answers_and_nobody_gives_up";
    if !has_strace() {
        return skip(test, "strace is not installed");
    }
    let dir = scratch();
    fs::write(dir.path().join("shmcast.toml"), channel("ticks", FOR_ALL).replace("16MiB", "64KiB")).unwrap();
    let delay = format!("--inject=memfd_create:delay_enter={}:when=1", SLOW.as_micros());
    let through =
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=memfd_create", &delay].map(str::to_owned);
    let daemon = Process::start(&mut daemon_in(dir.path(), &through));
    let socket = dir.path().join("control.sock");
    wait_for("the socket", || handoff::try_connect(&socket).ok());
    let (started, raw) = (Instant::now(), Raw::connect(&socket));
    let hello = serde_json::json!({"request": "hello", "version": shmcast::control::VERSION});
    assert_eq!(raw.ask(&hello, &[])["reply"], "starting", "after {:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(5), "a client would have given up");
    // A client of the library does not give up either.
    let client = Client::at(&socket).unwrap();
    assert_eq!(client.channels().unwrap().len(), 1);
    drop(publishing(&client, "ticks").open().unwrap());
    stop_traced(&daemon);
}
