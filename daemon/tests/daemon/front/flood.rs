//! One user sends requests without end. Others are still answered, the log stays short, and the counters are exact.

use super::NOBODY;
use shmcast::Client;
use shmcast::control::VERSION;
use shmcast::sys::handoff;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel};
use shmcast_testkit::place::free_port;
use shmcast_testkit::process::at_socket;
use shmcast_testkit::raw::Raw;
use shmcast_testkit::{Process, Waited, role_as, wait_for};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// The longest permitted wait of a quiet user for an answer, beside two floods of four processes.
const BOUND: Duration = Duration::from_secs(1);
/// The number of requests of the quiet user.
const ANSWERS: u32 = 30;

fn config() -> String {
    let channels = (0..20).map(|i| channel(&format!("ticks{i}"), FOR_ALL)).collect::<String>();
    channels.replace("16MiB", "64KiB")
}

/// Connects and leaves, over and over.
pub(crate) fn connect_for_ever(socket: &Path) {
    loop {
        let _ = handoff::connect(socket);
    }
}

/// Opens as many connections as the daemon accepts. On each connection, requests the status of all channels.
pub(crate) fn ask_for_ever(socket: &Path) {
    let hello = format!(r#"{{"request":"hello","version":{VERSION}}}"#);
    let mut held = Vec::new();
    loop {
        for _ in 0..64 {
            if held.len() < 300
                && let Ok(socket) = handoff::connect(socket)
            {
                let _ = rustix::io::ioctl_fionbio(&socket, true);
                let _ = handoff::send(&socket, hello.as_bytes(), &[]);
                held.push(socket);
            }
        }
        let mut buffer = vec![0; handoff::MAX_PACKET];
        held.retain(|socket| {
            let sent = handoff::send(socket, br#"{"request":"list"}"#, &[]);
            let is_over = sent.is_err_and(|e| e.kind() != std::io::ErrorKind::WouldBlock);
            let mut ended = false;
            while let Ok(packet) = handoff::receive(socket, &mut buffer) {
                if packet.length == 0 {
                    ended = true;
                    break;
                }
            }
            !is_over && !ended
        });
    }
}

#[test]
fn one_users_flood_keeps_nobody_else_waiting() {
    let test = "one_users_flood_keeps_nobody_else_waiting";
    let daemon = Daemon::start(&config());
    let client = daemon.client();
    let mut floods = Vec::new();
    for role in ["connector", "connector", "asker", "asker"] {
        let Some(mut command) = role_as!(in "front", test, NOBODY, role) else { return };
        floods.push(Process::start(at_socket(&mut command, &daemon.socket())));
    }
    // The flood must be under way first.
    daemon.wait_for_log(&["refused", &format!("uid={NOBODY}")]);
    let mut worst = Duration::ZERO;
    for _ in 0..ANSWERS {
        let asked = Waited::for_process(daemon.pid().as_raw().cast_unsigned());
        client.channel("ticks7").unwrap();
        worst = worst.max(asked.elapsed());
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("{ANSWERS} answers beside the flood, the slowest after {worst:?}");
    assert!(worst < BOUND, "somebody else waited {worst:?} for an answer");
}

/// The counter of one refusal.
fn refusals(http: SocketAddr, code: &str) -> u64 {
    let mut stream = TcpStream::connect(http).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let wanted = format!("shmcast_refusals_total{{reason=\"{code}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&wanted)).map_or(0, |count| count.parse().unwrap())
}

#[test]
fn refusals_by_the_thousand_are_counted_and_not_all_logged() {
    let http = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let limits = "[limits]\nrequests_per_second = 1000000\nrequest_burst = 1000000\n";
    let daemon = Daemon::start(&format!("[daemon]\nhttp = \"{http}\"\n{limits}{}", config()));
    let client = daemon.client();
    wait_for("its port", || TcpStream::connect(http).ok());
    let (before, lines_before, started) =
        (refusals(http, "unknown-channel"), daemon.log().lines().count(), Instant::now());
    let raw = Raw::greeted(&daemon.socket());
    for number in 0..5000 {
        // A request that repeats is told once, so each asks for another channel.
        let request = serde_json::json!({"request": "stat", "channel": format!("nosuch{number}")});
        assert_eq!(raw.ask(&request, &[])["code"], "unknown-channel");
    }
    client.channel("ticks0").unwrap();
    assert_eq!(refusals(http, "unknown-channel") - before, 5000, "the counter");
    // The summary of the lines that were left out comes after that.
    daemon.wait_for_log(&["left-out", "unknown-channel", &format!("uid {}", nix::unistd::geteuid())]);
    let (lines, seconds) = (daemon.log().lines().count() - lines_before, started.elapsed().as_secs() + 1);
    assert!(lines as u64 <= 100 * seconds, "{lines} lines in {seconds} s");
    assert!(Client::at(daemon.socket()).is_ok());
}
