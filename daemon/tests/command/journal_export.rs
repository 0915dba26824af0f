//! `shmcast journal export`: exported messages come back unchanged.

use serde_json::{Value, json};
use shmcast_testkit::command::{Host, golden, lines, recorded, text};
use shmcast_testkit::place::program;
use shmcast_testkit::skip;
use std::process::Command;

#[test]
fn what_is_exported_comes_back() {
    let host = Host::new();
    let bytes = lines(30_000);
    let input = host.file("input", &bytes);
    let journal = recorded(&host, &format!("--input {} --rate 100000/s", input.display()));
    let pcap = host.dir.path().join("ticks.pcap").display().to_string();
    let sums = host.json(&format!("journal export {journal} {pcap} --json"));
    assert_eq!([&sums["messages"], &sums["missing"]], [&json!(30_000), &json!(0)]);
    assert!(host.run(&format!("replay {pcap} --into again --unwrap --speed max")).status.success());
    assert!(host.run("sub again --from oldest").stdout == bytes);
    let output = host.run(&format!("journal export {journal} {pcap}"));
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("give another name"));
}

/// Losses, gaps, and a leap of four billion sequences.
#[test]
fn gaps_come_back_as_gaps() {
    let host = Host::new();
    let pcap = host.dir.path().join("golden.pcap").display().to_string();
    let output = host.run(&format!("journal export {} {pcap} --json", golden()));
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let output = host.run(&format!("replay {pcap} --into again --unwrap --speed max --json"));
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let published: Value = serde_json::from_slice(&output.stdout).unwrap();
    let unwrapped = &published["capture"]["unwrapped"];
    assert_eq!([&unwrapped["messages"], &unwrapped["implausible"]], [&json!(7), &json!(0)], "{published}");
    let output = host.run("sub again --from oldest --framing json");
    let events: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let messages: Vec<&Value> =
        events.iter().filter(|event| event["event"].is_null()).map(|event| &event["sequence"]).collect();
    let last = (1u64 << 32) + 2;
    assert_eq!(
        messages,
        [&json!(1), &json!(2), &json!(3), &json!(7), &json!(13), &json!(last - 1), &json!(last)]
    );
    for (from, to) in [(4, 6), (8, 12), (14, 1u64 << 32)] {
        assert!(
            events.contains(&json!({"event": "gap", "from": from, "to": to})),
            "{from} to {to}: {events:?}"
        );
    }
}

/// A single message before a leap of four billion sequences is no packet that is wrong and far off.
#[test]
fn what_lies_before_an_early_leap_comes_back() {
    let host = Host::new();
    let dir = host.dir.path().join("journal").display().to_string();
    for line in [&b"first\n"[..], b"second\n"] {
        let input = host.file("input", line).display().to_string();
        let publish = format!("pub ticks --capacity 64KiB --input {input} --set continue_from={dir}");
        for words in [&publish, &format!("record ticks --to {dir} --until-end"), "rm ticks"] {
            let output = host.run(words);
            assert!(matches!(output.status.code(), Some(0 | 3)), "{words}: {}", text(&output.stderr));
        }
    }
    let pcap = host.dir.path().join("leap.pcap").display().to_string();
    let output = host.run(&format!("journal export {dir} {pcap}"));
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let output = host.run(&format!("replay {pcap} --into again --unwrap --speed max"));
    assert!(!text(&output.stderr).contains("LEFT OUT"), "{}", text(&output.stderr));
    assert_eq!(text(&host.run("sub again --from oldest").stdout), "first\nsecond\n");
}

#[test]
fn a_message_that_no_packet_can_carry_is_named_and_leaves_no_file() {
    let host = Host::new();
    let input = host.file("input", &[b"small\n".to_vec(), vec![b'x'; 65_486], b"\n".to_vec()].concat());
    let journal = recorded(&host, &format!("--input {}", input.display()));
    let pcap = host.dir.path().join("big.pcap");
    let output = host.run(&format!("journal export {journal} {}", pcap.display()));
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("message 2 has 65486 B"), "{said}");
    assert!(!pcap.exists());
    assert!(host.run(&format!("journal export {journal} {} --to 1", pcap.display())).status.success());
}

/// An earlier mistake: an export that could not be written said why, and not where.
#[test]
fn an_export_that_cannot_be_written_names_its_file() {
    let host = Host::new();
    let input = host.file("input", &lines(10_000));
    let journal = recorded(&host, &format!("--input {}", input.display()));
    let pcap = host.dir.path().join("ticks.pcap").display().to_string();
    let script =
        format!("ulimit -f 8; exec {} journal export {journal} {pcap}", program("shmcast").display());
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("{pcap}: File too large")), "{said}");
}

#[test]
fn tshark_reads_it() {
    let host = Host::new();
    let input = host.file("input", &lines(1_000));
    let journal = recorded(&host, &format!("--input {}", input.display()));
    let pcap = host.dir.path().join("ticks.pcap").display().to_string();
    assert!(host.run(&format!("journal export {journal} {pcap}")).status.success());
    let arguments = ["-r", &pcap, "-d", "udp.port==26400,moldudp64", "-T", "fields", "-e", "moldudp64.count"];
    let Ok(output) = Command::new("tshark").args(arguments).output() else {
        return skip("tshark_reads_it", "tshark is not installed");
    };
    assert!(output.status.success(), "{}", text(&output.stderr));
    let counts = text(&output.stdout);
    let messages: u64 =
        counts.lines().filter_map(|line| line.parse::<u64>().ok()).filter(|count| *count != 65_535).sum();
    assert_eq!(messages, 1_000, "{counts}");
}
