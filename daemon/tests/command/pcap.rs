//! `shmcast replay` of captures: publishes captures of a network into channels.

use serde_json::Value;
use shmcast_bridge::pcap::PacketFile;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::{PacketWriter, end_of_session, heartbeat};
use shmcast_testkit::{command, wait_until};
use std::io::Write;
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
        let mut file = PacketFile::begin(std::fs::File::create(&path).unwrap()).unwrap();
        for (time_ns, port, payload) in datagrams {
            let to = format!("239.1.2.3:{port}").parse().unwrap();
            let from = "10.0.0.1:4000".parse().unwrap();
            file.write(1_700_000_000_000 * MS + time_ns, from, to, payload).unwrap();
        }
        file.finish().unwrap();
        path
    }

    /// Publishes a capture into the channel `c`. Returns the summary.
    fn try_publish(&self, path: &std::path::Path, more: &str) -> Output {
        self.0.run(&format!("replay {} --into c {more} --capacity 1MiB --json", path.display()))
    }

    fn publish(&self, path: &std::path::Path, more: &str) -> Value {
        let output = self.try_publish(path, more);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Publishes a capture of which something is lost.
    fn publish_with_losses(&self, path: &std::path::Path, more: &str) -> Value {
        let output = self.try_publish(path, more);
        assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
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

/// Two lines carry one feed, and one line is late. Each line loses a packet, and both lose one. Readers get each message once, in order,
/// and learn exactly which messages are missing.
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
    let summary = host.publish_with_losses(&host.capture(&datagrams), "--speed max --unwrap");
    let unwrapped = &summary["capture"]["unwrapped"];
    assert_eq!(summary["published"], 190);
    let names = ["duplicates", "missing", "not_moldudp64", "sequence_shift"];
    assert_eq!(names.map(|name| unwrapped[name].as_i64()), [Some(170), Some(10), Some(1), Some(0)]);
    let mut expected = messages(1..91);
    expected.extend((91..101).map(|sequence| (sequence, "-".to_owned())));
    expected.extend(messages(101..201));
    assert_eq!(host.read(), expected);
}

/// A packet that is farther ahead than a feed can skip does not belong to the feed. The command reports it.
#[test]
fn a_packet_that_is_too_far_ahead_is_left_out_and_told() {
    let host = Host::new();
    let path = host.capture(&[(0, 5_000, packet(1, 3)), (1, 5_000, packet(9_000_000, 1))]);
    let summary = host.publish_with_losses(&path, "--speed max --unwrap");
    assert_eq!(summary["capture"]["unwrapped"]["implausible"], 1);
    assert_eq!(host.read(), messages(1..4));
}

/// Messages from before the capture are a gap, so that sequences are the feed's own. For a channel that has had
/// messages, the command says by how much the sequences differ.
#[test]
fn sequences_are_the_feeds_own_or_the_difference_is_told() {
    let host = Host::new();
    let path = host.capture(&[(0, 5_000, packet(6, 3)), (1, 5_000, packet(11, 1))]);
    let summary = host.publish_with_losses(&path, "--speed max --unwrap");
    assert_eq!(summary["capture"]["unwrapped"]["sequence_shift"], 0);
    let missing = |range: std::ops::Range<u64>| range.map(|sequence| (sequence, "-".to_owned()));
    let mut expected: Vec<_> = missing(1..6).chain(messages(6..9)).chain(missing(9..11)).collect();
    expected.extend(messages(11..12));
    assert_eq!(host.read(), expected);
    let summary = host.publish_with_losses(&path, "--speed max --unwrap");
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

/// An earlier mistake: after the clock of a capture went backwards, nothing was given up any more. Thousands of messages in the file were
/// reported as missing.
#[test]
fn wild_time_stamps_lose_nothing() {
    let host = Host::new();
    let year = 365 * 86_400_000 * MS;
    let stamps: [fn(u64) -> u64; 3] = [
        |n| if n < 8 { 30_000 * MS + n } else { n },
        |n| n + if n == 5 { 365 * 86_400_000 * MS } else { 0 },
        |n| (n * 7_919) % 1_000 * MS,
    ];
    assert_eq!(stamps[1](5), year + 5);
    for (at, stamp) in stamps.into_iter().enumerate() {
        let packets = (0..6_000u64).filter(|n| *n != 10);
        let datagrams: Vec<_> = packets.map(|n| (stamp(n), 5_000, packet(1 + 2 * n, 2))).collect();
        let path = host.capture(&datagrams);
        let output =
            host.0.run(&format!("replay {} --into c{at} --unwrap --speed max --json", path.display()));
        assert_eq!(output.status.code(), Some(3));
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        let missing = &summary["capture"]["unwrapped"]["missing"];
        assert_eq!([&summary["published"], missing], [&Value::from(11_998), &Value::from(2)], "{at}");
    }
}

/// An earlier mistake: the command waited for a time stamp that is far ahead, such as 54 years after a packet without a time.
#[test]
fn a_leap_of_the_clock_is_waited_for_no_longer_than_max_pause() {
    let host = Host::new();
    let day = 86_400_000 * MS;
    let path = host.capture(&[0, day, 0, day + 1].map(|at| (at, 5_000, b"m".to_vec())));
    let summary = host.publish(&path, "--max-pause 10ms");
    assert_eq!([&summary["published"], &summary["capture"]["shortened_pauses"]], [4, 2]);
    // The same happens without the option.
    let summary = host.publish(&host.capture(&[0, day].map(|at| (at, 5_000, b"m".to_vec()))), "");
    assert_eq!([&summary["published"], &summary["capture"]["shortened_pauses"]], [2, 1]);
}

/// The command reports a second feed in the file, and the user can choose it.
#[test]
fn a_second_session_is_told_and_can_be_chosen() {
    let host = Host::new();
    let mut datagrams = Vec::new();
    let other = Session::named("0000012345").unwrap();
    for n in 1..=50u64 {
        let message = [&other.as_bytes()[..], &n.to_be_bytes(), &[0, 1, 0, 1, b'x']].concat();
        let beat = heartbeat(other, n).to_vec();
        datagrams.extend([(n, 5_000, packet(n, 1)), (n, 5_000, message), (n, 5_000, beat)]);
    }
    let path = host.capture(&datagrams);
    let summary = host.publish_with_losses(&path, "--speed max --unwrap");
    let unwrapped = &summary["capture"]["unwrapped"];
    assert_eq!([&summary["published"], &unwrapped["other_sessions"]], [50, 100]);
    assert_eq!(unwrapped["left_sessions"]["0000012345"], 100);
    let names =
        ["packets", "copies", "heartbeats", "other_sessions", "stale", "implausible", "not_moldudp64"];
    let sum: i64 = names.iter().map(|name| unwrapped[*name].as_i64().unwrap()).sum();
    assert_eq!(summary["capture"]["datagrams"], sum);
    let said = host.0.run(&format!("replay {} --into d --speed max --unwrap", path.display())).stderr;
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("100 packets of other sessions (0000012345) LEFT OUT"), "{said}");
    let output = host.0.run(&format!("replay {} --into e --speed max --unwrap=0000012345", path.display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Packets that cannot be read might belong to the feed, so the command does not succeed.
#[test]
fn what_cannot_be_read_is_told_in_the_exit_code() {
    let host = Host::new();
    let path = host.capture(&[(0, 5_000, b"one".to_vec()), (1, 5_000, b"two".to_vec())]);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let summary = host.publish_with_losses(&path, "--speed max");
    assert_eq!(
        [&summary["published"], &summary["capture"]["cut_off"]],
        [&Value::from(1), &Value::from(true)]
    );
    // The packets before the damage are published.
    std::fs::write(&path, [&bytes[..], &vec![0xFF; 17 << 20]].concat()).unwrap();
    let output = host.try_publish(&path, "--speed max");
    assert_eq!(output.status.code(), Some(1));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["published"], 2);
    assert!(summary["capture"]["error"].as_str().unwrap().contains("after 2 packets"), "{summary}");
}

/// From a pipe, a message is published before the next packet comes. A signal ends the command, even if nobody writes to the pipe.
#[test]
fn a_pipe_is_played_as_it_comes_and_a_signal_ends_it() {
    let host = Host::new();
    let bytes = std::fs::read(host.capture(&[(0, 5_000, packet(1, 3)), (1, 5_000, packet(6, 1))])).unwrap();
    let pipe = host.0.dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let start = || host.0.start(&format!("replay {} --into c --unwrap --capacity 1MiB", pipe.display()));
    let publisher = start();
    let mut writer = std::fs::File::options().write(true).open(&pipe).unwrap();
    writer.write_all(&bytes).unwrap();
    wait_until("what has come", || {
        let output = host.0.run("stat c --json");
        serde_json::from_slice::<Value>(&output.stdout).is_ok_and(|status| status["next_sequence"] == 4)
    });
    command::interrupt(&publisher);
    assert_eq!(command::end(publisher).0, 130);
    drop(writer);
    // The message after the missing ones was held back, and is published when the signal comes.
    let mut expected = messages(1..4);
    expected.extend([(4, "-".to_owned()), (5, "-".to_owned()), (6, "m6".to_owned())]);
    assert_eq!(host.read(), expected);
    let publisher = start();
    command::interrupt(&publisher);
    assert_eq!(command::end(publisher).0, 130);
}

/// An earlier mistake: a capture without any feed was a success, with nothing published.
#[test]
fn a_capture_without_a_feed_is_an_error_that_says_what_is_in_it() {
    let host = Host::new();
    let path = host.capture(&[(0, 53, b"query".to_vec()), (1, 53, b"query".to_vec()), (2, 123, vec![7; 48])]);
    let output = host.try_publish(&path, "--speed max --unwrap");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["no feed of MoldUDP64", "UDP to port 53 (2), UDP to port 123 (1)", "not MoldUDP64"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_file_that_gives_nothing_is_an_error_that_says_why() {
    let host = Host::new();
    let path = host.capture(&[(0, 5_000, b"a".to_vec())]);
    let fails = |arguments: &str| -> String {
        let output = host.0.run(&format!("replay {arguments} --capacity 1MiB"));
        assert!(!output.status.success(), "{arguments}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = fails(&format!("{} --into c --port 7", path.display()));
    assert!(
        said.contains("no UDP datagram to publish: 1 packets")
            && said.contains("left out 1: to another port"),
        "{said}"
    );
    let text = host.0.dir.path().join("text");
    std::fs::write(&text, "time,price\n12:00,100.25\n12:01,100.26\n").unwrap();
    assert!(fails(&format!("{} --into c", text.display())).contains("not a capture file"), "{text:?}");
    assert!(fails("/nonexistent --into c").contains("open /nonexistent"));
    assert!(
        fails(&format!("{} --into c --from 2", path.display())).contains("--from and --to are for journals")
    );
    let dir = host.0.dir.path().display();
    assert!(fails(&format!("{dir} --into c --unwrap")).contains("are for captures"));
    let large = host.capture(&[(0, 5_000, vec![b'x'; 1_400])]);
    let said = fails(&format!("{} --into small --set max_message=1KiB", large.display()));
    assert!(said.contains("1400") && said.contains("1024"), "{said}");
}
