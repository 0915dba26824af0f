//! A daemon without a free descriptor still notifies the service manager's watchdog, and stops in order.

use nix::sys::signal::Signal;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use shmcast::Client;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel};
use shmcast_testkit::place::program;
use shmcast_testkit::raw::{Raw, fds, subscribe};
use shmcast_testkit::{Process, scratch, skip, wait_for};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn a_daemon_without_descriptors_feeds_the_watchdog_and_stops_well() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("shmcast.toml"), channel("alone", "")).unwrap();
    let notices = UnixDatagram::bind(at("notify")).unwrap();
    notices.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let notice = || {
        let mut buffer = [0; 4096];
        let length = notices.recv(&mut buffer).expect("the daemon tells the service manager nothing");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let mut command = Command::new(program("shmcastd"));
    command.arg("--config").arg(at("shmcast.toml")).arg("--socket").arg(at("control.sock"));
    command.env("NOTIFY_SOCKET", at("notify")).env("WATCHDOG_USEC", "300000").env_remove("WATCHDOG_PID");
    let log = || fs::read_to_string(at("log")).unwrap();
    let mut daemon = Process::start(command.stdin(Stdio::null()).stderr(File::create(at("log")).unwrap()));
    let client = wait_for("the daemon's answer", || Client::at(at("control.sock")).ok());
    client.channels().unwrap();
    let greeted = [(); 2].map(|()| Raw::greeted(&at("control.sock")));

    let pid = daemon.id();
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let status =
        Command::new("prlimit").args([format!("--pid={pid}"), format!("--nofile={open}:{open}")]).status();
    if !status.is_ok_and(|status| status.success()) {
        return skip(
            "a_daemon_without_descriptors_feeds_the_watchdog_and_stops_well",
            "prlimit is not installed",
        );
    }
    let mut connected = Vec::new();
    wait_for("the last descriptor to be taken", || {
        connected.push(Raw::connect(&at("control.sock")));
        log().contains("cannot accept").then_some(())
    });
    // The daemon's lack was once told as the program's own, or as a request that is too large.
    let (_near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    for (raw, bell) in greeted.iter().zip([vec![], vec![far.as_fd()]]) {
        let mut request = subscribe("alone", false);
        request["park"] = (!bell.is_empty()).into();
        let answer = raw.ask(&request, &bell);
        let why = answer["why"].as_str().unwrap_or_default();
        assert!(why.starts_with("the daemon lacks descriptors"), "{answer}");
        assert_eq!(answer["code"], "failed");
    }
    while notices.set_nonblocking(true).is_ok() && notices.recv(&mut [0; 4096]).is_ok() {}
    notices.set_nonblocking(false).unwrap();
    for _ in 0..3 {
        assert!(notice().contains("WATCHDOG=1"));
    }
    daemon.signal(Signal::SIGTERM);
    while !notice().contains("STOPPING=1") {}
    assert!(daemon.wait().success(), "{}", log());
    // Each try once wrote a line, ten times a second.
    assert_eq!(log().matches("cannot accept connections").count(), 1, "{}", log());
    assert!(log().contains("the daemon lacks descriptors, raise its LimitNOFILE="), "{}", log());
    assert!(log().contains("stopped"), "{}", log());
    assert!(!at("control.running").exists(), "the next daemon would wait for programs that nobody knows");
}

/// An earlier mistake: a request with descriptors was refused as too large, and its connection was ended.
#[test]
fn a_request_whose_descriptors_find_no_room_is_refused_by_this_reason() {
    let daemon = Daemon::start(&channel("ticks", FOR_ALL).replace("16MiB", "64KiB"));
    // Without a free descriptor, the daemon accepts no connection. So this one is older than the limit.
    let raw = Raw::greeted(&daemon.socket());
    let pid = Pid::from_raw(daemon.pid().as_raw());
    let before = getrlimit(Resource::Nofile).maximum;
    let limit = |current| prlimit(pid, Resource::Nofile, Rlimit { current, maximum: before }).unwrap();
    limit(Some(3));
    let bell = [File::open("/dev/null").unwrap()];
    let why = raw.assert_refused(&subscribe("ticks", false), &fds(&bell), "failed");
    assert!(why.contains("Too many open files"), "{why}");
    limit(before);
    // The connection is the same.
    drop(raw.subscribe("ticks"));
    assert_eq!(daemon.log().matches("too large").count(), 0);
}

/// An earlier mistake: a program without free descriptors was told to start the daemon, which ran.
#[test]
fn a_verb_without_descriptors_says_what_it_lacks() {
    let daemon = Daemon::start(&channel("t", ""));
    assert!(daemon.shmcast("pub t --tag 7").status().unwrap().success());
    let mut lacked = 0;
    for limit in 4..12 {
        for verb in ["sub t --from oldest --count 0", "pub t", "stat t", "ls"] {
            let script = format!("ulimit -n {limit}; exec {} {verb}", program("shmcast").display());
            let mut command = Command::new("bash");
            command.args(["-c", &script]).env("SHMCAST_SOCKET", daemon.socket()).env_remove("SHMCAST_DIR");
            let output = command.stdin(Stdio::null()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.code() != Some(0) {
                assert_eq!(output.status.code(), Some(1), "{limit}: {verb}: {said}");
                assert!(said.contains("Too many open files"), "{limit}: {verb}: {said}");
                assert!(!said.contains("start shmcastd"), "{limit}: {verb}: {said}");
                lacked += 1;
            }
        }
    }
    assert!(lacked > 0);
}
