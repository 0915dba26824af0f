//! Parts of a journal by time, where the wall clock was set back and forward, and where messages carry no time.
//!
//! An earlier mistake: `--to` ended before the first message of its time. So it left out all messages of this time, and everything after a
//! clock that was set back.

use serde_json::{Value, json};
use shmcast::journal::{Entry, Journal};
use shmcast::{Mark, Preparation, Publisher, Stamps};
use shmcast_testkit::command::{Host, dump, text};
use std::path::Path;

/// Publishes and records messages. Each has a time in milliseconds after a moment that was a minute ago, or has no time.
fn recorded(host: &Host, times_ms: impl Iterator<Item = Option<u64>>) -> String {
    let builder = Publisher::builder("ticks").dir(host.dir.path().join("channels")).capacity(4 << 20);
    let builder = builder.prepare(Preparation::NONE).stamps(Stamps::Given);
    let mut publisher = builder.open().unwrap();
    let clock = publisher.clock();
    let begun = clock.now() - 60 * clock.hz();
    for time_ms in times_ms {
        let payload = [b'x'; 100];
        match time_ms {
            Some(ms) => publisher.publish_at(&payload, Mark::default(), begun + ms * clock.hz() / 1_000),
            None => publisher.publish(&payload),
        }
        .unwrap();
    }
    publisher.close();
    let journal = host.dir.path().join("journal").display().to_string();
    let output = host.run(&format!("record ticks --to {journal} --set file=1MiB --until-end"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    journal
}

/// Each sequence with its wall clock.
fn walls(dir: impl AsRef<Path>) -> Vec<(u64, Option<u64>)> {
    let mut reader = Journal::open(dir).unwrap().read_from(1).unwrap();
    let mut walls = Vec::new();
    while let Some(entry) = reader.next().unwrap() {
        let Entry::Message(message) = entry else { continue };
        let (sequence, time) = (message.sequence, message.time);
        walls.push((sequence, reader.wall_ns(time)));
    }
    walls
}

fn at(ns: u64) -> String {
    format!("@{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// The first and the last sequence of a part.
fn ends(host: &Host, journal: &str, span: &str) -> (u64, u64) {
    let messages = dump(host, journal, span);
    let messages: Vec<&Value> = messages.iter().filter(|line| line["event"].is_null()).collect();
    let sequence = |line: &&Value| line["sequence"].as_u64().unwrap();
    (messages.first().map_or(0, sequence), messages.last().map_or(0, sequence))
}

/// Two messages of each time; the clock is set back by 6 s, set ahead by 16 s, and set back again.
#[test]
fn a_part_has_every_message_of_its_times_however_the_clock_was_set() {
    let host = Host::new();
    let ahead = |n: u64| match n {
        0..1_000 => 0,
        1_000..2_000 => 4_000,
        2_000..3_000 => 30_000,
        _ => 14_000,
    };
    let journal = recorded(&host, (0..4_000).map(|n| Some(ahead(n) + n % 1_000 / 2 * 20)));
    let walls: Vec<(u64, u64)> = walls(&journal).into_iter().map(|(n, ns)| (n, ns.unwrap())).collect();
    assert_eq!(walls.len(), 4_000);
    let last = |ns: u64| walls.iter().rfind(|wall| wall.1 <= ns).unwrap().0;
    let first = |ns: u64| walls.iter().find(|wall| wall.1 >= ns).unwrap().0;
    let begun = walls[0].1;
    for sequence in [1, 2, 500, 801, 1_000, 1_001, 1_500, 1_801, 2_000, 2_400, 3_000, 3_001, 3_601, 4_000] {
        let ns = walls[sequence - 1].1;
        assert_eq!(ends(&host, &journal, &format!("--to {}", at(ns))), (1, last(ns)), "to {sequence}");
    }
    // Each time lies between the times of two messages that are 20 ms apart, because a search might read the clocks again.
    for (from_ms, to_ms) in [
        (1_010, 3_010),
        (5_010, 9_990),
        (9_990, 10_010),
        (12_010, 20_010),
        (13_990, 35_010),
        (22_010, 60_000),
    ] {
        let [from, to] = [from_ms, to_ms].map(|ms| begun + ms * 1_000_000);
        let span = format!("--from {} --to {}", at(from), at(to));
        assert_eq!(ends(&host, &journal, &span), (first(from), last(to)), "{span}");
        let out = host.dir.path().join(format!("{from_ms}"));
        let sums = host.json(&format!("journal cut {journal} {} {span} --json", out.display()));
        let wanted = [json!(first(from)), json!(last(to) + 1), json!(0)];
        assert_eq!([&sums["first_sequence"], &sums["next_sequence"], &sums["missing"]], wanted.each_ref());
        let pcap = out.with_extension("pcap");
        let sums = host.json(&format!("journal export {journal} {} {span} --json", pcap.display()));
        assert_eq!(sums["messages"], last(to) + 1 - first(from), "{span}");
    }
    let span = format!(
        "--from {} --to {} --speed max --json",
        at(begun + 9_990_000_000),
        at(begun + 10_010_000_000)
    );
    let replayed = host.json(&format!("replay {journal} --into again {span}"));
    assert_eq!(replayed["first_sequence"], first(begun + 9_990_000_000));
    assert_eq!(replayed["next_sequence"], last(begun + 10_010_000_000) + 1);
    let nothing = host.run(&format!("journal dump {journal} --to {}", at(begun - 1_000_000_000)));
    assert_eq!(nothing.status.code(), Some(1));
    assert!(text(&nothing.stderr).contains("nothing is between"), "{}", text(&nothing.stderr));
}

/// A message without a time counts as published at the journal's last reading of the clock before it. Here this is the time of the
/// recording.
#[test]
fn messages_without_a_time_count_as_of_their_recording() {
    let host = Host::new();
    let begun = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let journal = recorded(&host, (0..2_000).map(|_| None));
    assert!(walls(&journal).iter().all(|wall| wall.1.is_none()));
    let (before, behind) = (at(begun - 10_000_000_000), at(begun + 3_600_000_000_000));
    for (span, wanted) in [
        (format!("--from {before}"), (1, 2_000)),
        (format!("--to {behind}"), (1, 2_000)),
        (format!("--from {before} --to {behind}"), (1, 2_000)),
        (format!("--from {behind}"), (0, 0)),
        (format!("--to {before}"), (0, 0)),
    ] {
        assert_eq!(ends(&host, &journal, &span), wanted, "{span}");
    }
    // If some messages have times, messages without a time do not move the ends. Two of three messages were published half a minute ago.
    let mixed = Host::new();
    let journal = recorded(&mixed, (0..3_000).map(|n| (n % 3 > 0).then_some(20_000 + n)));
    assert_eq!(ends(&mixed, &journal, &format!("--to {behind}")), (1, 3_000));
    // The packets of an export have times near the recording, and no packet is of 1970.
    let pcap = host.dir.path().join("export.pcap").display().to_string();
    let untimed = host.dir.path().join("journal").display().to_string();
    host.json(&format!("journal export {untimed} {pcap} --json"));
    let bytes = std::fs::read(&pcap).unwrap();
    let seconds = u32::from_le_bytes(bytes[24..28].try_into().unwrap());
    assert!(u64::from(seconds) + 10 > begun / 1_000_000_000, "{seconds}");
}
