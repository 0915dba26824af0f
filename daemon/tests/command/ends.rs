//! `shmcast sub` and the ends of several publishers: an earlier publisher's end is not the channel's.

use nix::sys::signal::Signal;
use shmcast::Publisher;
use shmcast_testkit::command::{Host, end, interrupt, lines, text};
use shmcast_testkit::wait_until;
use std::fs;
use std::io::Write;

/// Publishes three messages, and closes the channel.
fn publish(host: &Host, name: &str) {
    let input = host.file(name, format!("{name}1\n{name}2\n{name}3\n").as_bytes());
    let output = host.run(&format!("pub t --capacity 64KiB --input {}", input.display()));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn every_way_of_beginning_leads_past_the_first_publishers_end() {
    let host = Host::new();
    ["a", "b", "c"].iter().for_each(|name| publish(&host, name));
    let all = "a1\na2\na3\nb1\nb2\nb3\nc1\nc2\nc3\n";
    let from = [
        ("--from oldest", all),
        ("--from 2", &all[3..]),
        // This sequence is after the last message of the first publisher, and before its end.
        ("--from 4", &all[9..]),
        ("--from key", all),
        ("--from 2000-01-01T00:00Z", all),
        ("--from oldest --history none", all),
        ("--from oldest --wait-channel", all),
        ("--from oldest --wait-channel --count 7", &all[..21]),
        ("--from oldest --wait spin", all),
    ];
    for (options, expected) in from {
        let output = host.run(&format!("sub t {options}"));
        assert_eq!(
            (text(&output.stdout).as_str(), output.status.code()),
            (expected, Some(0)),
            "{options}: {}",
            text(&output.stderr)
        );
    }
}

#[test]
fn a_reader_of_the_past_stays_while_somebody_publishes() {
    let host = Host::new();
    publish(&host, "a");
    let mut publisher = host.start_with_input("pub t");
    publisher.child().stdin.as_mut().unwrap().write_all(b"b1\n").unwrap();
    // A reader that came before the second publisher would rightly end with the first.
    wait_until("the second publisher", || host.json("stat t --json")["next_sequence"] == 5);
    let output = host.dir.path().join("out");
    let reader = host.subscribe_to("t --from oldest", &output);
    wait_until("what is there", || fs::read(&output).unwrap() == b"a1\na2\na3\nb1\n");
    publisher.child().stdin.take().unwrap().write_all(b"b2\n").unwrap();
    assert_eq!(end(publisher).0, 0);
    let (code, stderr) = end(reader);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(text(&fs::read(&output).unwrap()), "a1\na2\na3\nb1\nb2\n");
}

#[test]
fn a_channel_that_ends_before_the_count_is_an_error() {
    let host = Host::new();
    ["a", "b"].iter().for_each(|name| publish(&host, name));
    for options in ["--from oldest --count 10", "--from oldest --wait-channel --count 10"] {
        let output = host.run(&format!("sub t {options}"));
        assert_eq!((output.stdout.len(), output.status.code()), (18, Some(1)), "{options}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains("ENDED: received 6 of 10 messages"), "{options}: {stderr}");
    }
}

#[test]
fn the_journals_ends_are_those_of_earlier_publishers_too() {
    let host = Host::new();
    let journal = host.dir.path().join("journal");
    let input = host.file("input", &lines(4_000));
    let publish = format!("pub t --capacity 1MiB --input {}", input.display());
    assert!(host.run("pub t --capacity 1MiB").status.success());
    let recorder = host.start(&format!("record t --to {} --set file=1MiB", journal.display()));
    // The ring has room for one input, so the recorder is not lapped. It has no room for two.
    for count in [4_000, 8_000] {
        wait_until("the recorder", || host.json("stat t --json")["readers"][0]["pid"] == recorder.id());
        assert!(host.run(&publish).status.success());
        wait_until("all drained", || host.json("stat t --json")["readers"][0]["received"] == count);
    }
    interrupt(&recorder);
    let (code, stderr) = end(recorder);
    assert_eq!(code, 0, "{stderr}");
    for from in ["--from oldest", "--from 1", "--from key", "--from 2000-01-01T00:00Z"] {
        let output = host.run(&format!("sub t {from} --history {}", journal.display()));
        assert_eq!(output.status.code(), Some(0), "{from}: {}", text(&output.stderr));
        assert!(output.stdout == lines(4_000).repeat(2), "{from}: {} bytes", output.stdout.len());
    }
}

#[test]
fn a_recorder_stays_while_somebody_publishes() {
    let host = Host::new();
    publish(&host, "a");
    let mut publisher = host.start_with_input("pub t");
    publisher.child().stdin.as_mut().unwrap().write_all(b"b1\n").unwrap();
    wait_until("the second publisher", || host.json("stat t --json")["next_sequence"] == 5);
    let journal = host.dir.path().join("journal");
    let mut recorder = host.start(&format!("record t --to {} --until-end --json", journal.display()));
    wait_until("the recorder", || host.json("stat t --json")["readers"][0]["received"] == 4);
    // By now the recorder has met the first publisher's end. It checks every 100 ms.
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert!(recorder.is_alive(), "the first publisher's end is not the channel's");
    publisher.child().stdin.take().unwrap().write_all(b"b2\n").unwrap();
    assert_eq!(end(publisher).0, 0);
    let output = recorder.output();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let sums: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(sums["durable"], 5, "{sums}");
}

/// An earlier mistake: a script took the exit code 0 of an interrupted recorder for the channel's end.
#[test]
fn a_recorder_that_is_interrupted_before_the_channels_end_says_so() {
    let host = Host::new();
    let mut publisher = host.start_with_input("pub t --capacity 64KiB");
    publisher.child().stdin.as_mut().unwrap().write_all(b"a\n").unwrap();
    wait_until("the message", || host.run("stat t").status.success());
    let journal = host.dir.path().join("journal").display().to_string();
    for (arguments, number, code) in [
        (format!("record t --to {journal}-1 --until-end"), Signal::SIGINT, 130),
        (format!("record t --to {journal}-2 --until-end"), Signal::SIGTERM, 143),
        (format!("record later --to {journal}-3 --until-end --wait-channel"), Signal::SIGTERM, 143),
        ("bridge send later --to 127.0.0.1:9 --until-end --wait-channel".to_owned(), Signal::SIGINT, 130),
        (format!("record t --to {journal}-4"), Signal::SIGTERM, 0),
    ] {
        let verb = host.start(&arguments);
        verb.wait_until_it_handles(number);
        verb.signal(number);
        let (ended, said) = end(verb);
        assert_eq!(ended, code, "{arguments}: {said}");
        assert_eq!(said.contains("INTERRUPTED before"), code != 0, "{arguments}: {said}");
    }
}

/// An earlier mistake: with `--json`, `top` noticed a signal only after its interval.
#[test]
fn a_top_that_is_interrupted_prints_nothing() {
    let host = Host::new();
    let top = host.start("top --json --interval 1h");
    interrupt(&top);
    let output = top.output();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(130), 0), "{}", text(&output.stderr));
}

#[test]
fn a_recorder_follows_a_channel_that_begins_anew() {
    let host = Host::new();
    let channels = host.dir.path().join("channels");
    fs::create_dir_all(&channels).unwrap();
    let builder = || Publisher::builder("t").dir(&channels).capacity(64 << 10);
    let mut first = builder().open().unwrap();
    first.publish_batch(["1", "2", "3", "4", "5"]).unwrap();
    let journal = host.dir.path().join("journal").display().to_string();
    let recorder = host.start(&format!("record t --to {journal} --until-end --json"));
    wait_until("the first stream", || host.json("stat t --json")["readers"][0]["received"] == 5);
    first.leave_open();
    let mut second = builder().anew().open().unwrap();
    second.publish_batch(["a", "b", "c"]).unwrap();
    wait_until("the second stream", || host.json("stat t --json")["readers"][0]["received"] == 3);
    second.close();
    let output = recorder.output();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("began anew: goes on with the new stream"), "{said}");
    let sums: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&sums["streams"], &sums["messages"], &sums["durable"]),
        (&2.into(), &8.into(), &3.into()),
        "{sums}"
    );
    let newest = host.run(&format!("journal dump {journal}"));
    assert!(text(&newest.stdout).contains("\"payload\":\"c\",\"sequence\":3"), "{newest:?}");
    let folders = fs::read_dir(&journal).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir());
    assert_eq!(folders.count(), 2);
}

/// A cleaner removes the files of a channel, and its next publisher makes another one. A recorder and a bridge that only poll go on with it.
#[test]
fn a_recorder_and_a_bridge_follow_a_channel_that_is_removed_and_made_again() {
    let host = Host::new();
    let channels = host.dir.path().join("channels");
    fs::create_dir_all(&channels).unwrap();
    let open =
        || Publisher::builder("t").dir(&channels).capacity(64 << 10).max_message(1_000).open().unwrap();
    let mut first = open();
    first.publish_batch(["1", "2", "3"]).unwrap();
    let journal = host.dir.path().join("journal").display().to_string();
    let recorder = host.start(&format!("record t --to {journal} --json"));
    let bridge = host.start("bridge send t --to 127.0.0.1:9 --set send.from=oldest");
    let have = |received: u64| {
        let status = host.json("stat t --json");
        let readers = status["readers"].as_array().unwrap();
        readers.len() == 2 && readers.iter().all(|reader| reader["received"] == received)
    };
    wait_until("the first stream", || have(3));
    first.close();
    fs::remove_dir_all(channels.join("t")).unwrap();
    let mut second = open();
    second.publish_batch(["a", "b"]).unwrap();
    wait_until("the second stream", || have(2));
    interrupt(&recorder);
    let output = recorder.output();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("t: was removed or began anew: goes on with the new stream"), "{said}");
    let sums: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&sums["streams"], &sums["messages"]), (&2.into(), &5.into()), "{sums}");
    interrupt(&bridge);
    let (_, said) = end(bridge);
    assert_eq!(said.matches("t: sending session ").count(), 2, "{said}");
}

#[test]
fn a_feed_that_begins_a_new_session_ends_no_reader_that_waits() {
    let (far, near) = (Host::new(), Host::new());
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let line = format!("127.2.{high}.{low}:30001");
    let builder =
        || Publisher::builder("t").dir(far.dir.path().join("channels")).capacity(64 << 10).max_message(1_000);
    fs::create_dir_all(far.dir.path().join("channels")).unwrap();
    let mut first = builder().open().unwrap();
    first.publish_batch(["1", "2", "3"]).unwrap();
    let recv = near.start(&format!("bridge recv t --from {line} --set receive.from=1 --capacity 64KiB"));
    wait_until("the channel", || near.run("stat t").status.success());
    let send = far.start(&format!("bridge send t --to {line} --set send.from=oldest"));
    let outputs = ["yield", "spin"].map(|wait| (wait, near.dir.path().join(wait)));
    let readers = outputs.each_ref().map(|(wait, output)| {
        near.subscribe_to(&format!("t --from oldest --wait-channel --wait {wait}"), output)
    });
    let has = |expected: &[u8]| outputs.iter().all(|(_, output)| fs::read(output).unwrap() == expected);
    wait_until("the first session", || has(b"1\n2\n3\n"));
    first.leave_open();
    let mut second = builder().anew().open().unwrap();
    second.publish_batch(["one", "two"]).unwrap();
    wait_until("the second session", || has(b"1\n2\n3\none\ntwo\n"));
    second.close();
    for reader in readers {
        let (code, stderr) = end(reader);
        assert_eq!(code, 0, "{stderr}");
    }
    for bridge in [send, recv] {
        interrupt(&bridge);
        let (code, stderr) = end(bridge);
        assert_eq!(code, 0, "{stderr}");
    }
}
