//! The command's own output about a bridge: refused repairs, captures of both directions, and the channel that the command makes.

use shmcast::{Directory, Publisher};
use shmcast_bridge::pcap::Capture;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::Request;
use shmcast_testkit::place::{own_address, program};
use shmcast_testkit::wait_for;
use shmcast_testkit::{Process, scratch};
use std::fs::{File, read_to_string};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn shmcast(dir: &Path, words: &str, log: &Path) -> Process {
    let mut command = Command::new(program("shmcast"));
    command.args(words.split_whitespace()).env("SHMCAST_DIR", dir).stdin(Stdio::null()).stdout(Stdio::null());
    Process::start(command.stderr(File::create(log).unwrap()))
}

/// A receiver that has not proved its address repeats its requests. The command reports this, and the capture has the requests.
#[test]
fn refused_repairs_are_told_and_captured() {
    let dir = scratch();
    let mut publisher =
        Publisher::builder("t").dir(dir.path()).capacity(1 << 20).max_message(1_378).open().unwrap();
    (0..100u64).for_each(|n| _ = publisher.publish(&[n as u8; 1_000]).unwrap());
    let (server, capture, log) = (own_address(), dir.path().join("pcap"), dir.path().join("log"));
    let words = format!(
        "bridge send t --to {} --repair {server} --allow 127.0.0.0/8 --set send.linger_ms=100 --pcap {} --set session=TEST",
        own_address(),
        capture.display()
    );
    let sender = shmcast(dir.path(), &words, &log);
    let said = || read_to_string(&log).unwrap();
    let name = wait_for("the session", || {
        said().lines().find_map(|line| line.split_once("sending session ").map(|(_, name)| name.to_owned()))
    });
    let session = Session::named(&name).unwrap();
    let asker = UdpSocket::bind("127.0.0.1:0").unwrap();
    wait_for("the refusal", || {
        asker.send_to(&Request { session, first: 1, count: 60 }.encode(), server).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        said().contains("cannot prove their address: see send.repair.trust_allowed").then_some(())
    });
    drop(publisher);
    drop(sender);
    // A file that was being written can end within a packet.
    let mut captured = Capture::open(File::open(&capture).unwrap(), &[]).unwrap();
    let (mut requests, own) = (0, asker.local_addr().unwrap());
    while let Ok(Some(datagram)) = captured.read() {
        requests += u32::from(datagram.source == own);
    }
    assert!(requests > 0, "no request of {own} is in the capture");
}

/// Other implementations can fill an Ethernet frame, and a channel that the command makes accepts such messages.
#[test]
fn a_new_channel_takes_what_an_ethernet_frame_brings() {
    let dir = scratch();
    let words = format!("bridge recv t --from {} --capacity 1MiB --set session=TEST", own_address());
    let _receiver = shmcast(dir.path(), &words, &dir.path().join("log"));
    let max = wait_for("the channel", || {
        Directory::at(dir.path())
            .channel("t")
            .ok()?
            .detail
            .ok()
            .map(|detail| detail.header.geometry.max_message)
    });
    assert_eq!(max, 1_472 - 20 - 2);
}

/// A capture that breaks is told once while the bridge sends on. At its end, the bridge reports its counts before the error.
#[test]
fn a_broken_capture_is_told_at_once_and_hides_no_counts() {
    let dir = scratch();
    let mut publisher =
        Publisher::builder("t").dir(dir.path()).capacity(1 << 20).max_message(1_378).open().unwrap();
    publisher.publish(b"before").unwrap();
    let (log, counts) = (dir.path().join("log"), dir.path().join("counts"));
    let words = format!(
        "bridge send t --to {} --until-end --json --set send.from=oldest --set send.linger_ms=10 --set send.listen_ms=0 --pcap /dev/full",
        own_address()
    );
    let mut command = Command::new(program("shmcast"));
    command.args(words.split_whitespace()).env("SHMCAST_DIR", dir.path()).stdin(Stdio::null());
    command.stdout(File::create(&counts).unwrap()).stderr(File::create(&log).unwrap());
    let mut sender = Process::start(&mut command);
    let told = || read_to_string(&log).unwrap().matches("goes on without the capture").count();
    wait_for("the broken capture", || (told() > 0).then_some(()));
    publisher.publish(b"after").unwrap();
    drop(publisher);
    assert_eq!(sender.wait().code(), Some(1));
    let counts: serde_json::Value = serde_json::from_str(&read_to_string(&counts).unwrap()).unwrap();
    assert_eq!(counts["send"]["messages"], 2);
    let said = read_to_string(&log).unwrap();
    assert!(said.contains("the capture /dev/full ends after 0 packets"), "{said}");
    assert_eq!(told(), 1, "{said}");
}
