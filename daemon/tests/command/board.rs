//! `shmcast board`, and the other verbs on a channel with a board.

use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast_testkit::command::{Host, end, interrupt, text};
use shmcast_testkit::{Process, wait_until};

/// Prices of several keys. One key is removed, one message has no key, and one is too large.
const PRICES: &[u8] = b"EUR 1.08\nGBP 1.27\nEUR 1.09\nUSD 1\nUSD\n-\nJPY 0123456789012345678901234567890\n";
const WITH_BOARD: &str = "--set board.key=0..3 --set board.keys=9 --set board.value=16 --capacity 64KiB";

fn host() -> Host {
    let host = Host::new();
    let input = host.file("prices", PRICES);
    let output = host.run(&format!("pub prices --input {} {WITH_BOARD}", input.display()));
    assert!(output.status.success(), "{output:?}");
    host
}

/// The lines that a verb prints, as JSON, without the fields that depend on time.
fn lines(host: &Host, arguments: &str) -> Vec<Value> {
    let output = host.run(arguments);
    let lines = text(&output.stdout);
    let mut lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &mut lines {
        let line = line.as_object_mut().unwrap();
        line.remove("age_ns");
        line.remove("latency_ns");
    }
    lines
}

#[test]
fn the_last_value_of_each_key_is_shown_in_a_table_and_as_json() {
    let host = host();
    let table = host.run("board prices");
    let table = text(&table.stdout);
    for shown in ["EUR", "EUR 1.09", "GBP 1.27", "(not on the board)", "3 keys of 9", "up to sequence 7"] {
        assert!(table.contains(shown), "{shown} is missing:\n{table}");
    }
    for left_out in ["1 message too large for the board", "1 message without a key"] {
        assert!(table.contains(left_out), "{left_out} is missing:\n{table}");
    }
    assert!(!table.contains("USD") && !table.contains("1.08"), "{table}");
    let euro = host.json("board prices EUR --json");
    assert_eq!((&euro["key"], &euro["payload"]), (&"EUR".into(), &"EUR 1.09".into()));
    assert_eq!((euro["sequence"].as_u64(), euro["messages"].as_u64()), (Some(3), Some(2)));
    assert_eq!(host.json("board prices 0x455552 --json")["payload"], "EUR 1.09");
    assert_eq!(lines(&host, "board prices --json").len(), 3);
    for (arguments, why) in [
        ("board prices USD", "does not have this key"),
        ("board prices EURO", "4 bytes"),
        ("board nothing", "no channel"),
        ("pub prices --set board.key=0..4", "up to byte 3, not 4"),
        ("pub other --set board.key=4..4", "names no bytes"),
        ("sub prices --from oldest --conflate", "begins with the next message or with the board"),
    ] {
        let refused = host.run(arguments);
        assert!(!refused.status.success() && text(&refused.stderr).contains(why), "{arguments}: {refused:?}");
    }
    let watch = host.start("board prices --watch");
    wait_until("a look", || !host.run("board prices").stdout.is_empty());
    interrupt(&watch);
    assert_eq!(end(watch).0, 0);
    host.run(&format!("pub plain --input {} --capacity 64KiB", host.file("one", b"x\n").display()));
    assert!(text(&host.run("board plain").stderr).contains("has no board"));
}

#[test]
fn a_reader_begins_with_the_board_and_tags_choose_messages() {
    let host = host();
    let events = lines(&host, "sub prices --from board --framing json");
    let told: Vec<String> = events.iter().map(Value::to_string).collect();
    assert_eq!(
        told,
        [
            r#"{"conflated":0,"key":false,"payload":"GBP 1.27","sequence":2,"tag":0}"#,
            r#"{"conflated":0,"key":false,"payload":"EUR 1.09","sequence":3,"tag":0}"#,
            r#"{"event":"lapped","missed":1,"resumed_at":8}"#,
            r#"{"event":"live","sequence":8}"#,
            r#"{"event":"end"}"#,
        ]
    );
    let more = host.file("more", b"EUR 2\n");
    host.run(&format!("pub prices --input {} --tag 7 --key", more.display()));
    let chosen = lines(&host, "sub prices --from oldest --tags 7,8 --framing json");
    let messages: Vec<&Value> = chosen.iter().filter(|line| line.get("payload").is_some()).collect();
    let [message] = messages[..] else { panic!("{chosen:?}") };
    assert_eq!(
        (&message["payload"], &message["tag"], &message["key"]),
        (&"EUR 2".into(), &7.into(), &true.into())
    );
}

/// The board of a journal equals the channel's board. So does the board of a channel into which the journal is replayed.
#[test]
fn what_is_made_of_the_same_messages_is_the_same_board() {
    let host = Host::new();
    let messages: String = (0..5_000u64).map(|i| format!("{:03} {i}\n", i * i % 211)).collect();
    let input = host.file("messages", messages.as_bytes());
    let board = "--set board.key=0..3 --set board.keys=300 --capacity 1MiB";
    let journal = host.dir.path().join("journal");
    let output = host.run(&format!("pub ticks --input {} {board}", input.display()));
    assert!(output.status.success(), "{output:?}");
    let recorded = host.run(&format!("record ticks --to {} --set file=16MiB --until-end", journal.display()));
    assert!(recorded.status.success(), "{recorded:?}");
    let there = lines(&host, "board ticks --json");
    assert!(there.len() > 100, "{}", there.len());
    assert_eq!(lines(&host, &format!("board --journal {} --set key=0..3 --json", journal.display())), there);
    let replayed = host.run(&format!("replay {} --into mirror --speed max {board}", journal.display()));
    assert!(replayed.status.success(), "{replayed:?}");
    assert_eq!(lines(&host, "board mirror --json"), there);
    let one = host.json(&format!("board --journal {} --set key=0..3 --json 0x303031", journal.display()));
    assert_eq!(one["key"], "001");
}

/// A removed key keeps its count if the board gives its slot to no other key. A journal's board has room for every key.
#[test]
fn a_journals_board_counts_the_messages_of_a_key_that_was_removed_and_came_back() {
    let host = Host::new();
    let input = host.file("messages", b"EUR 1\nUSD 1\nEUR\nUSD\nEUR 2\n-\n");
    let journal = host.dir.path().join("journal");
    let output = host.run(&format!("pub ticks --input {} {WITH_BOARD}", input.display()));
    assert!(output.status.success(), "{output:?}");
    let recorded = host.run(&format!("record ticks --to {} --set file=16MiB --until-end", journal.display()));
    assert!(recorded.status.success(), "{recorded:?}");
    let there = lines(&host, "board ticks --json");
    assert_eq!((there.len(), there[0]["messages"].as_u64()), (1, Some(3)));
    let board = format!("board --journal {} --json", journal.display());
    assert_eq!(lines(&host, &format!("{board} --set key=0..3")), there);
    for (settings, why) in [
        ("--set key=0..3 --set keys=7", "unknown field `keys`"),
        ("--set key=0..3 --set value=7", "unknown field `value`"),
        ("--set key=0..300", "a key has 1 to 256 bytes"),
    ] {
        let refused = host.run(&format!("{board} {settings}"));
        assert!(!refused.status.success() && text(&refused.stderr).contains(why), "{settings}: {refused:?}");
    }
}

/// The ages of values that were published long ago are not the latencies of this reader.
#[test]
fn a_summary_has_no_latency_of_a_message_from_the_board() {
    let output = host().run("sub prices --from board --framing none --summary --json");
    let stderr = text(&output.stderr);
    let summary = stderr.lines().find(|line| line.starts_with('{')).expect("a summary");
    let summary: Value = serde_json::from_str(summary).unwrap();
    assert_eq!((summary["received"].as_u64(), &summary["latency_ns"]), (Some(2), &Value::Null), "{summary}");
    let refused = host().run("sub prices --from board --tags 7");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(text(&refused.stderr).contains("reader of some tags"), "{refused:?}");
}

/// A publisher that begins the channel anew makes another file. A reader that conflates, or that has a gate, continues in the new file.
#[test]
fn readers_that_conflate_or_hold_a_gate_wait_for_a_channel_that_is_made_anew() {
    let host = Host::new();
    let dir = host.dir.path().join("shm");
    std::fs::create_dir_all(&dir).unwrap();
    let open = || {
        let board = shmcast::BoardSpec::new(0..3);
        let builder = shmcast::Publisher::builder("t").dir(&dir).capacity(64 << 10).board(board);
        builder.gate(shmcast::Gate::new("risk").wait(std::time::Duration::ZERO)).anew().open().unwrap()
    };
    for options in ["--conflate", "--from board --conflate", "--gate risk", "--conflate --gate risk"] {
        let mut first = open();
        first.publish(b"EUR 1").unwrap();
        let output = host.dir.path().join("output");
        let arguments = format!("t --dir {} {options} --wait-channel --framing lines", dir.display());
        let reader = host.subscribe_to(&arguments, &output);
        let is_there = |text: &str| std::fs::read_to_string(&output).unwrap_or_default().contains(text);
        let mut number = 0;
        wait_until("the reader", || {
            number += 1;
            first.publish(format!("USD {number}").as_bytes()).unwrap();
            is_there("USD")
        });
        // The readers must not end here, as they would at the end of a closed channel.
        first.leave_open();
        let mut second = open();
        second.publish(b"GBP 2").unwrap();
        wait_until(&format!("{options}: the first message of the new channel"), || is_there("GBP 2"));
        second.publish(b"GBP 3").unwrap();
        second.close();
        let (code, stderr) = end(reader);
        assert_eq!(code, 0, "{options}: {stderr}");
        assert!(is_there("GBP 3"), "{options}");
    }
}

/// An earlier mistake: a watched board ended when its channel was removed, with a text that did not name the channel.
#[test]
fn a_watched_board_goes_on_with_a_channel_that_is_made_again() {
    let host = host();
    let [output, errors] = ["output", "errors"].map(|name| host.dir.path().join(name));
    let mut command = host.shmcast("board prices --watch --json");
    command.stdout(std::fs::File::create(&output).unwrap()).stderr(std::fs::File::create(&errors).unwrap());
    let mut board = Process::start(&mut command);
    let has = |path: &std::path::Path, text: &str| std::fs::read_to_string(path).unwrap().contains(text);
    wait_until("the board", || has(&output, "1.09"));
    assert!(host.run("rm prices").status.success());
    wait_until("the reason", || has(&errors, "prices: no channel \"prices\""));
    let input = host.file("prices", b"EUR 7.77\n");
    assert!(host.run(&format!("pub prices --input {} {WITH_BOARD}", input.display())).status.success());
    wait_until("the next board", || has(&output, "7.77"));
    assert_eq!(board.end_by(Signal::SIGTERM).code(), Some(0));
}
