//! `shmcast pub --pcap`: publishes captures of a network into channels.

use serde_json::Value;
use shmcast_bridge::pcap::CaptureFile;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::{PacketWriter, end_of_session, heartbeat};
use shmcast_testkit::command;
use std::path::PathBuf;
use std::process::Output;
use std::time::Instant;

const MS: u64 = 1_000_000;

/// A host with captures, whose messages go into the channel `c`.
struct Host(command::Host);

impl Host {
    fn new() -> Self {
        Self(command::Host::new())
    }

    /// Writes a capture of datagrams, each with its time and destination port.
    fn capture(&self, datagrams: &[(u64, u16, Vec<u8>)]) -> PathBuf {
        let path = self.0.dir.path().join("feed.pcap");
        let file = CaptureFile::create(&path, 1_500).unwrap();
        let tap = file.tap();
        for (time_ns, port, payload) in datagrams {
            let to = format!("239.1.2.3:{port}").parse().unwrap();
            tap.record(1_700_000_000_000 * MS + time_ns, "10.0.0.1:4000".parse().unwrap(), to, payload);
        }
        assert_eq!(file.finish().unwrap().dropped, 0);
        path
    }

    /// Publishes a capture into the channel `c`. Returns the summary.
    fn try_publish(&self, path: &std::path::Path, more: &str) -> Output {
        self.0.run(&format!("pub c --pcap {} {more} --capacity 1MiB --json", path.display()))
    }

    fn publish(&self, path: &std::path::Path, more: &str) -> Value {
        let output = self.try_publish(path, more);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The messages that readers get: payloads by sequence, and `-` for each missing message.
    fn read(&self) -> Vec<(u64, String)> {
        let output = self.0.run("sub c --from oldest --framing json");
        let mut found = Vec::new();
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            if let Some(payload) = line["payload"].as_str() {
                found.push((line["sequence"].as_u64().unwrap(), payload.to_owned()));
            } else if line["event"] == "gap" {
                let (from, to) = (line["from"].as_u64().unwrap(), line["to"].as_u64().unwrap());
                found.extend((from..=to).map(|sequence| (sequence, "-".to_owned())));
            }
        }
        found
    }
}

fn session() -> Session {
    Session::of_channel("FEED", 1).unwrap()
}

/// A packet with the messages `m<sequence>`.
fn packet(first: u64, count: u64) -> Vec<u8> {
    let mut buffer = vec![0; 1_400];
    let mut packet = PacketWriter::new(first);
    for sequence in first..first + count {
        assert!(packet.push(&mut buffer, format!("m{sequence}").as_bytes()));
    }
    let bytes = packet.finish(&mut buffer, session()).unwrap();
    buffer.truncate(bytes);
    buffer
}

fn messages(range: std::ops::Range<u64>) -> Vec<(u64, String)> {
    range.map(|sequence| (sequence, format!("m{sequence}"))).collect()
}

#[test]
fn every_payload_is_a_message_in_the_order_of_the_file() {
    let host = Host::new();
    let datagrams = (0..100).map(|n| (n * MS, 5_000 + (n % 2) as u16, format!("p{n}").into_bytes()));
    let path = host.capture(&datagrams.collect::<Vec<_>>());
    let summary = host.publish(&path, "--speed max --port 5001 --loop 2");
    assert_eq!((&summary["published"], &summary["capture"]["other_port"]), (&100.into(), &50.into()));
    let read = host.read();
    let expected = (0..2).flat_map(|_| (0..50).map(|n| format!("p{}", 2 * n + 1)));
    assert_eq!(
        read.iter().map(|(_, payload)| payload.clone()).collect::<Vec<_>>(),
        expected.collect::<Vec<_>>()
    );
}

/// Two lines, one of them late, with a loss on each and one on both. Readers get each message once, in order, and are
/// told exactly which are missing.
#[test]
fn copies_disorder_and_losses_of_the_lines_end_as_a_bridge_would_end_them() {
    let host = Host::new();
    let mut datagrams = vec![(0, 5_000, heartbeat(session(), 1).to_vec())];
    for n in 0..20u64 {
        let (first, time_ns) = (1 + 10 * n, n * MS / 10);
        if n != 5 && n != 9 {
            datagrams.push((time_ns, 5_000, packet(first, 10)));
        }
        if n != 7 && n != 9 {
            datagrams.push((time_ns + 3 * MS, 5_001, packet(first, 10)));
        }
    }
    datagrams.push((4 * MS, 5_000, b"noise".to_vec()));
    datagrams.push((50 * MS, 5_000, end_of_session(session(), 201).to_vec()));
    datagrams.sort_by_key(|(time_ns, _, _)| *time_ns);
    let summary = host.publish(&host.capture(&datagrams), "--speed max --unwrap");
    let unwrapped = &summary["capture"]["unwrapped"];
    assert_eq!(summary["published"], 190);
    let names = ["duplicates", "missing", "not_moldudp64", "sequence_shift"];
    assert_eq!(names.map(|name| unwrapped[name].as_i64()), [Some(170), Some(10), Some(1), Some(0)]);
    let mut expected = messages(1..91);
    expected.extend((91..101).map(|sequence| (sequence, "-".to_owned())));
    expected.extend(messages(101..201));
    assert_eq!(host.read(), expected);
}

/// A packet far beyond what a feed may skip is no part of it, and the command does not pass over it in silence.
#[test]
fn a_packet_that_is_too_far_ahead_is_left_out_and_told() {
    let host = Host::new();
    let path = host.capture(&[(0, 5_000, packet(1, 3)), (1, 5_000, packet(9_000_000, 1))]);
    let output = host.try_publish(&path, "--speed max --unwrap");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["capture"]["unwrapped"]["implausible"], 1);
    assert_eq!(host.read(), messages(1..4));
}

/// Messages from before the capture are a gap, so that sequences are the feed's own. For a channel that has had
/// messages, the command says by how much the sequences differ.
#[test]
fn sequences_are_the_feeds_own_or_the_difference_is_told() {
    let host = Host::new();
    let path = host.capture(&[(0, 5_000, packet(6, 3)), (1, 5_000, packet(11, 1))]);
    let summary = host.publish(&path, "--speed max --unwrap");
    assert_eq!(summary["capture"]["unwrapped"]["sequence_shift"], 0);
    let missing = |range: std::ops::Range<u64>| range.map(|sequence| (sequence, "-".to_owned()));
    let mut expected: Vec<_> = missing(1..6).chain(messages(6..9)).chain(missing(9..11)).collect();
    expected.extend(messages(11..12));
    assert_eq!(host.read(), expected);
    let summary = host.publish(&path, "--speed max --unwrap");
    assert_eq!(summary["capture"]["unwrapped"]["sequence_shift"], 6);
    assert_eq!((&summary["first_sequence"], &summary["next_sequence"]), (&12.into(), &18.into()));
}

#[test]
fn a_recording_takes_the_time_it_took_or_a_share_of_it() {
    let host = Host::new();
    let path = host.capture(&[(0, 5_000, b"a".to_vec()), (400 * MS, 5_000, b"b".to_vec())]);
    for (speed, at_least_ms) in [("1", 400), ("4x", 100), ("max", 0)] {
        let started = Instant::now();
        let summary = host.publish(&path, &format!("--speed {speed}"));
        let seconds = summary["seconds"].as_f64().unwrap();
        assert!(seconds * 1e3 >= f64::from(at_least_ms), "{speed}: {seconds} s");
        assert!(started.elapsed().as_secs_f64() >= seconds);
    }
}

#[test]
fn a_file_that_gives_nothing_is_an_error_that_says_why() {
    let host = Host::new();
    let path = host.capture(&[(0, 5_000, b"a".to_vec())]);
    let fails = |arguments: &str| -> String {
        let output = host.0.run(&format!("pub {arguments} --capacity 1MiB"));
        assert!(!output.status.success(), "{arguments}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = fails(&format!("c --pcap {} --port 7", path.display()));
    assert!(
        said.contains("no UDP datagram to publish: 1 packets")
            && said.contains("left out 1: to another port"),
        "{said}"
    );
    let text = host.0.dir.path().join("text");
    std::fs::write(&text, "time,price\n12:00,100.25\n12:01,100.26\n").unwrap();
    assert!(fails(&format!("c --pcap {}", text.display())).contains("not a capture file"), "{text:?}");
    assert!(fails("c --pcap /nonexistent").contains("open --pcap /nonexistent"));
    assert!(fails(&format!("c --pcap {} --framing lines", path.display())).contains("cannot be used with"));
    let large = host.capture(&[(0, 5_000, vec![b'x'; 1_400])]);
    let said = fails(&format!("small --pcap {} --max-message 1KiB", large.display()));
    assert!(said.contains("1400") && said.contains("1024"), "{said}");
}
