//! The `shmcast` command as people and scripts use it: real processes, real files, real exit codes.

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use serde_json::Value;
use shmcast::Publisher;
use shmcast_testkit::command::{Host, end, interrupt, lines, text};
use shmcast_testkit::place::program;
use shmcast_testkit::{Process, skip, wait_until};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

/// A bridge that carried nothing has no latencies.
#[test]
fn percentiles_of_no_messages() {
    let host = Host::new();
    // An address of this run's own, in case another run is under way at the same time.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let recv = host.start(&format!("bridge recv t --from 127.1.{high}.{low}:30001"));
    wait_until("the channel", || host.run("stat t").status.success());
    interrupt(&recv);
    let (code, stderr) = end(recv);
    assert_eq!((code, stderr.contains("0 repaired\n"), stderr.contains("p50")), (0, true, false), "{stderr}");
    let published = host.run("pub t");
    assert!(text(&published.stderr).contains("the next sequence is 1, "), "{published:?}");
}

#[test]
fn a_hundred_readers_each_get_the_file_byte_for_byte() {
    let host = Host::new();
    let content = lines(10_000);
    let input = host.file("input", &content);
    let readers: Vec<(PathBuf, Process)> = (0..100)
        .map(|i| {
            let path = host.dir.path().join(format!("out.{i}"));
            let child = host.subscribe_to("t --wait-channel --framing lines", &path);
            (path, child)
        })
        .collect();
    let published =
        host.json(&format!("pub t --input {} --wait-readers 100 --capacity 4MiB --json", input.display()));
    assert_eq!(published["published"], 10_000);
    for (path, child) in readers {
        let (code, stderr) = end(child);
        assert_eq!(code, 0, "{stderr}");
        assert!(fs::read(path).unwrap() == content, "an output differs from the input");
    }
    let channel = host.json("stat t --json");
    assert_eq!(
        (channel["state"].as_str(), channel["next_sequence"].as_u64()),
        (Some("closed"), Some(10_001))
    );
}

#[test]
fn a_reader_that_is_lapped_says_exactly_how_many_it_missed_and_exits_with_3() {
    let host = Host::new();
    let input = host.file("input", &lines(30_000));
    let publish = format!("pub t --input {} --wait-readers 2 --capacity 64KiB --loop 3", input.display());
    let publisher = host.start(&publish);
    let reader = host.start("sub t --wait-channel --wait sleep:20000 --framing none --summary --json");
    wait_until("the reader", || {
        let channel = host.run("stat t --json");
        serde_json::from_slice::<Value>(&channel.stdout)
            .is_ok_and(|it| it["readers"][0]["pid"] == reader.id())
    });
    // The ring holds a fraction of the input, which is all published before the reader looks again.
    reader.pause();
    let second = host.start("sub t --framing none --count 1");
    let (code, stderr) = end(publisher);
    assert_eq!(code, 0, "{stderr}");
    assert!([0, 3].contains(&end(second).0));
    reader.resume();
    let (code, stderr) = end(reader);
    assert_eq!(code, 3, "{stderr}");
    let summary: Value = serde_json::from_str(stderr.lines().last().unwrap()).unwrap();
    let count = |name: &str| summary[name].as_u64().unwrap();
    assert!(count("missed") > 0 && count("lapped") > 0);
    assert_eq!(count("received") + count("missed"), 90_000, "{stderr}");
    assert_eq!(count("next_sequence"), 90_001);
}

#[test]
fn length_prefixed_binary_survives_with_every_framing() {
    let host = Host::new();
    let mut content = Vec::new();
    for length in [0u16, 1, 47, 48, 49, 64, 1400, 9000] {
        content.extend_from_slice(&length.to_be_bytes());
        content.extend((0..length).map(|i| (i ^ length) as u8));
    }
    let input = host.file("input.itch", &content);
    let output = host.run(&format!("pub itch --framing u16be --capacity 1MiB --input {}", input.display()));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(host.run("sub itch --from oldest --framing u16be").stdout, content);
    let hex = text(&host.run("sub itch --from 2 --count 1 --framing hex").stdout);
    assert_eq!(hex, "2 0000 01\n");
    let json = text(&host.run("sub itch --from oldest --framing json").stdout);
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[0]["payload"], &lines[8]["event"]), (9, &"".into(), &"end".into()));

    let cut = host.file("cut.itch", &content[..content.len() - 1]);
    let output = host.run(&format!("pub itch --framing u16be --input {}", cut.display()));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("1 B short"), "{}", text(&output.stderr));
}

#[test]
fn a_second_publisher_is_refused_and_told_who_holds_the_channel() {
    let host = Host::new();
    let mut first = host.start_with_input("pub t --capacity 64KiB");
    wait_until("the publisher", || host.json("ls --json")[0]["publisher"]["pid"] == first.id());
    let second = host.run("pub t");
    assert_eq!(second.status.code(), Some(1));
    let stderr = text(&second.stderr);
    assert!(
        stderr.contains("in use by publisher shmcast") && stderr.contains(&first.id().to_string()),
        "{stderr}"
    );

    let refused = host.run("rm t");
    assert_eq!(refused.status.code(), Some(1), "removed under its publisher");
    drop(first.child().stdin.take());
    let (code, stderr) = end(first);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(host.json("rm t --json")["removed"], "t");
    assert_eq!(host.json("ls --json"), serde_json::json!([]));
}

#[test]
fn a_channel_with_a_reader_is_not_removed() {
    let host = Host::new();
    assert!(host.run("pub t --capacity 64KiB").status.success());
    let reader = host.start("sub t --wait-channel");
    wait_until("the reader", || host.json("stat t --json")["readers"][0]["pid"] == reader.id());
    let refused = host.run("rm t");
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains(&format!("a reader (pid {})", reader.id())),
        "{}",
        text(&refused.stderr)
    );
    // A killed reader leaves its page. The kernel reports that no process uses this page any more.
    reader.kill();
    let removed = host.run("rm t");
    assert!(removed.status.success(), "{}", text(&removed.stderr));
}

#[test]
fn readers_go_on_with_the_next_publisher_after_one_was_killed() {
    let host = Host::new();
    let output = host.dir.path().join("out");
    let reader = host.subscribe_to("t --wait-channel", &output);
    let mut first = host.start_with_input("pub t --capacity 64KiB --wait-readers 1");
    first.child().stdin.as_mut().unwrap().write_all(b"one\ntwo\n").unwrap();
    wait_until("the first messages", || fs::read(&output).unwrap() == b"one\ntwo\n");
    first.kill();
    assert_eq!(host.json("stat t --json")["state"], "orphaned");

    let mut second = host.start_with_input("pub t --json");
    second.child().stdin.take().unwrap().write_all(b"three\n").unwrap();
    let published = second.output();
    let summary: Value = serde_json::from_slice(&published.stdout).unwrap();
    assert_eq!((&summary["epoch"], &summary["first_sequence"]), (&2.into(), &3.into()));
    let (code, stderr) = end(reader);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("a new publisher took over (epoch 2)"), "{stderr}");
    assert_eq!(text(&fs::read(&output).unwrap()), "one\ntwo\nthree\n");
}

fn times_slept(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let slept = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    slept.trim().parse().unwrap()
}

/// The publisher waits for nobody, and might end before the reader looks again.
#[test]
fn a_reader_that_waited_for_the_channel_gets_its_first_messages() {
    let host = Host::new();
    let output = host.dir.path().join("out");
    let reader = host.subscribe_to("t --wait-channel", &output);
    // A reader that waits for a channel looks for it, sleeps, and looks again.
    wait_until("the reader to have slept", || times_slept(reader.id()) > 30);
    let input = host.file("input", b"1\n2\n3\n");
    assert!(host.run(&format!("pub t --input {} --capacity 64KiB", input.display())).status.success());
    let (code, stderr) = end(reader);
    assert_eq!((code, text(&fs::read(&output).unwrap()).as_str()), (0, "1\n2\n3\n"), "{stderr}");
}

/// A bridge that receives makes its channel again when its publisher begins a new session.
#[test]
fn a_reader_that_waits_for_publishers_reads_on_when_its_channel_is_made_again() {
    let host = Host::new();
    let output = host.dir.path().join("out");
    let publisher =
        || shmcast::Publisher::builder("t").dir(host.dir.path().join("channels")).capacity(64 << 10);
    publisher().open().unwrap().close();
    let reader = host.subscribe_to("t --wait-channel --wait sleep:1000", &output);
    wait_until("the reader", || host.json("stat t --json")["readers"][0]["pid"] == reader.id());
    // The reader is shown as attached before its last check of the channel. The next channel must come after this check.
    let before = times_slept(reader.id());
    wait_until("the reader to wait", || times_slept(reader.id()) > before + 30);
    let mut again = publisher().anew().open().unwrap();
    again.publish_batch(["one\n", "two\n"]).unwrap();
    again.close();
    let (code, stderr) = end(reader);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("the channel began again"), "{stderr}");
    assert_eq!(text(&fs::read(&output).unwrap()), "one\n\ntwo\n\n");
}

/// An earlier mistake: tools showed a channel that nobody could open yet. If the publisher dies while it makes a channel, tools show the
/// channel, so that it can be removed.
#[test]
fn a_channel_that_is_being_made_is_not_there_yet() {
    let host = Host::new();
    assert!(host.run("pub t --capacity 64KiB").status.success());
    let channel = host.dir.path().join("channels/t");
    fs::rename(channel.join("segment"), host.dir.path().join("made later")).unwrap();
    let listed = host.run("ls");
    assert!(text(&listed.stderr).contains("no segment"), "{}", text(&listed.stderr));
    assert_eq!(host.json("ls --json")[0]["state"], "damaged");
    let lock = fs::File::options().read(true).write(true).open(channel.join("lock")).unwrap();
    let whole_file = libc::flock {
        l_type: libc::F_WRLCK.try_into().unwrap(),
        l_whence: libc::SEEK_SET.try_into().unwrap(),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&lock, FcntlArg::F_OFD_SETLK(&whole_file)).unwrap();
    assert_eq!(host.json("ls --json"), serde_json::json!([]));
    let stat = host.run("stat t");
    assert!(!stat.status.success() && text(&stat.stderr).contains("no channel"), "{}", text(&stat.stderr));
    fs::rename(host.dir.path().join("made later"), channel.join("segment")).unwrap();
    assert_eq!(host.json("ls --json")[0]["channel"], "t");
}

#[test]
fn wrong_usage_exits_with_2_and_errors_with_1_and_a_next_step() {
    let host = Host::new();
    for wrong in [
        "",
        "nonsense",
        "sub",
        "sub t --wait fast",
        "sub t --from 0",
        "sub t --json",
        "pub t --rate -1/s",
        "pub t --capacity lots",
        "demo --readers 0",
        "demo --size 8",
    ] {
        assert_eq!(host.run(wrong).status.code(), Some(2), "shmcast {wrong}");
    }
    let group = "239.1.2.3:30001";
    for (wrong, hint) in [
        ("pub t --capacity lots", "as in 64KiB"),
        ("pub t --mode 750", "tip: write --set permissions=750"),
        ("pub t --loop 0", "1.."),
        ("pub t --cpu 100000", "online are"),
        ("bridge send t", "--to <GROUP:PORT>"),
        ("bridge send t --to 239.1.2.3", "as in 239.1.2.3:30001"),
        ("bridge recv t", "--from <GROUP:PORT>"),
        ("bridge recv t --from lo@239.1.2.3:1", "no address of a sender"),
        (&format!("bridge recv t --from {group} --set linger"), "write it like KEY=VALUE"),
    ] {
        let output = host.run(wrong);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "shmcast {wrong}: {stderr}");
        assert!(stderr.contains(hint), "shmcast {wrong}: {stderr}");
    }
    for (failing, hint) in [
        ("sub t", "--wait-channel"),
        ("stat t", "start its publisher first"),
        ("rm t", "`shmcast ls` shows"),
        ("takeover t", "only a daemon's channels"),
        ("bridge send t --to 0.0.0.0:1", "nobody has this address"),
        ("bridge recv t --from 239.1.2.3:1 --from 239.1.2.3:1", "there twice"),
        ("bridge send t --to 239.1.2.3:1 --repair 127.0.0.1:2", "list the networks that may ask"),
        ("bridge recv t --set receive.unicast=true", "give servers"),
        ("bridge recv t --from 239.1.2.3:1 --set payload_bytes=10", "write 64 to 65507"),
        ("bridge recv t --from 239.1.2.3:1 --set receive.gap=wait", "receive.gap: unknown value `wait`"),
        ("bridge recv t --from 239.1.2.3:1 --set receive.gaps=block", "did you mean `gap`?"),
        ("bridge recv t --from 239.1.2.3:1 --set cpu=100000", "CPU 100000"),
        ("bridge recv t --from 239.1.2.3:1 --set gate=g", "write it like gate.NAME.wait=10ms"),
        ("bridge stream rm .t nats://127.0.0.1:1", "channel name"),
        (
            "bridge stream rm t nats://127.0.0.1:1 --set send.from=oldest",
            "--set send.from: it is for a bridge",
        ),
        ("bridge recv t --from 239.1.2.3:1 --set receive.buffer_bytes=1_000_000_000_000", "buffer_bytes"),
        ("bridge recv t --from 239.1.2.3:1 --interface no-such", "give one of"),
        (
            "bridge recv t --from 239.1.2.3:1 --pcap /nonexistent/x",
            "cannot write a capture to /nonexistent/x: No such",
        ),
        ("bridge recv t --from 239.1.2.3:1 --pcap /dev/stdout --json", "give --pcap a file"),
        ("pub t --capacity 100KiB", "power of two"),
        ("pub t --capacity 64KiB --set max_message=1MiB", "raise the capacity"),
        ("pub t --set max_message=0", "at least one byte"),
        ("pub t --set max_mesage=5", "did you mean `max_message`?"),
        ("pub t --set x=5", "there are `capacity`, `max_message`, `permissions`, `board`"),
        ("pub t --set board=0..8", "board: cannot be string \"0..8\": write a table"),
        ("pub t --set permissions=644", "write 700 (yours alone)"),
        ("pub t --set permissions=1.5", "\"1.5\" is no mode of a directory of yours"),
        ("bridge send t --to 239.1.2.3:1 --set max_message=5", "unknown field `max_message`"),
        ("bridge recv t --from 239.1.2.3:1 --set capacity=100KiB", "power of two"),
        ("record t --to j --set fil=1MiB", "did you mean `file`?"),
        ("record t --to j --set file=1KiB", "--set file = 1024: must be from 1MiB"),
        ("record t --to j --set keep_age=1d", "no file is removed"),
        ("pub .t", "channel name"),
        ("pub t --input missing", "open --input missing"),
        ("pub t --input .", "open --input .: Is a directory"),
        ("pub t --loop 2", "--input"),
    ] {
        let output = host.run(failing);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "shmcast {failing}: {stderr}");
        assert!(stderr.contains(hint), "shmcast {failing}: {stderr}");
        assert!(output.stdout.is_empty(), "shmcast {failing} wrote to stdout");
    }
    assert_eq!(host.json("ls --json"), serde_json::json!([]), "a refused command left something behind");
}

#[test]
fn a_damaged_channel_is_shown_with_its_reason_and_without_figures() {
    let host = Host::new();
    let input = host.file("input", &lines(10));
    for name in ["whole", "damaged"] {
        let published = host.run(&format!("pub {name} --capacity 64KiB --input {}", input.display()));
        assert!(published.status.success(), "{}", text(&published.stderr));
    }
    let segment = host.dir.path().join("channels/damaged/segment");
    fs::File::options().write(true).open(segment).unwrap().set_len(100).unwrap();
    let output = host.run("ls");
    let (table, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}");
    let row = table.lines().find(|line| line.trim_start().starts_with("damaged")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells, ["damaged", "damaged", "-", "0", "-", "-", "-", "-"]);
    assert!(table.contains("64.0 KiB"), "{table}");
    assert!(said.contains("channel \"damaged\" is damaged:") && said.contains("100"), "{said}");
    let stat = text(&host.run("stat damaged").stdout);
    assert!(stat.contains("100") && !stat.contains("capacity") && !stat.contains("0 B\n"), "{stat}");
    let listed = host.json("ls --json");
    let reason = listed.as_array().unwrap().iter().find(|c| c["channel"] == "damaged").unwrap();
    assert!(reason["error"].as_str().unwrap().contains("100"), "{reason}");
}

#[test]
fn every_verb_has_help_with_an_example() {
    let host = Host::new();
    let verbs = [
        "",
        "demo",
        "pub",
        "sub",
        "record",
        "replay",
        "ls",
        "stat",
        "top",
        "events",
        "takeover",
        "rm",
        "check",
        "doctor",
        "tune",
        "hiccups",
        "bridge",
        "bridge send",
        "bridge recv",
        "bridge status",
        "journal ls",
        "journal stat",
        "journal verify",
        "journal dump",
        "journal cut",
        "journal join",
        "journal export",
    ];
    for verb in verbs {
        let output = host.run(&format!("{verb} --help"));
        assert!(output.status.success());
        let help = text(&output.stdout);
        assert!(help.contains("Example"), "{help}");
        assert!(verb.is_empty() || verb == "sub" || help.contains("--json"), "{help}");
        // A verb that a signal can end before its work is done names the code of each signal.
        let words: Vec<_> = help.split_whitespace().collect();
        let names_all = words.join(" ").contains("130 (Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP)");
        assert!(names_all || !help.contains("143"), "{help}");
    }
}

#[test]
fn a_reader_whose_output_is_closed_ends_quietly() {
    let host = Host::new();
    let input = host.file("input", &lines(5_000));
    assert!(host.run(&format!("pub t --input {} --capacity 4MiB", input.display())).status.success());
    let mut reader = host.start("sub t --from oldest");
    drop(reader.child().stdout.take());
    let (code, stderr) = end(reader);
    assert_eq!((code, stderr.as_str()), (0, ""));
}

#[test]
fn interrupted_programs_end_cleanly() {
    let host = Host::new();
    let mut publisher = host.start_with_input("pub t --capacity 64KiB --json");
    publisher.child().stdin.as_mut().unwrap().write_all(b"one\n").unwrap();
    let reader = host.start("sub t --from oldest --wait-channel --summary");
    wait_until("the channel", || host.run("stat t").status.success());
    wait_until("the message", || host.json("stat t --json")["readers"][0]["received"] == 1);
    interrupt(&reader);
    let output = reader.output();
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "one\n"));
    assert!(text(&output.stderr).contains("received 1, missed 0"), "{}", text(&output.stderr));

    // The publisher's input stays open, and nothing is written to it.
    let input = publisher.child().stdin.take();
    interrupt(&publisher);
    assert_eq!(publisher.output().status.code(), Some(130));
    drop(input);
    assert_eq!(host.json("stat t --json")["state"], "closed");
}

#[test]
fn the_demo_serves_every_reader_and_its_json_has_both_transports() {
    let host = Host::new();
    let report = host.json("demo --readers 8 --messages 300 --interval-us 500 --json");
    assert_eq!(report["readers"], 8);
    assert!(report["machine"]["cpus"].as_u64().unwrap() > 0);
    let [shm, multicast] = &report["transports"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!((&shm["name"], &multicast["name"]), (&"shm".into(), &"multicast".into()));
    assert_eq!((shm["published"].as_u64(), shm["delivered"].as_u64()), (Some(300), Some(2400)));
    assert_eq!(shm["lost"], 0);
    assert_eq!((report["turns"].as_u64(), report["messages_a_turn"].as_u64()), (Some(20), Some(15)));
    assert!(report["load"]["cpus"].as_u64().unwrap() > 0, "{report}");
    // The load of the machine decides whether there is a comparison.
    assert_ne!(report["ratio"].is_null(), report["why_no_ratio"].is_null(), "{report}");
    for figures in [&shm["publish_ns"], &shm["last_reader_ns"]] {
        let ns = ["p50", "p99", "p999", "max"].map(|name| figures[name].as_u64().unwrap());
        assert!(ns[0] > 0 && ns.is_sorted(), "{figures}");
    }
    if multicast["error"].is_null() {
        assert_eq!(
            multicast["delivered"].as_u64().unwrap() + multicast["lost"].as_u64().unwrap(),
            2400,
            "{multicast}"
        );
    } else {
        skip("multicast half of the demo", &multicast["error"]);
    }
}

#[test]
fn the_demo_says_why_multicast_cannot_run_and_goes_on() {
    let host = Host::new();
    // In a new network namespace the loopback interface is down.
    let mut command = Command::new("unshare");
    command.args(["--net", "--"]).arg(program("shmcast"));
    let output = command.args(["demo", "--readers", "2", "--messages", "50", "--json"]).output();
    let output = match output {
        Ok(output) if output.status.success() => output,
        other => {
            let test = "the_demo_says_why_multicast_cannot_run_and_goes_on";
            skip(test, format_args!("no network namespace: {other:?}"));
            return;
        }
    };
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["transports"][0]["lost"], 0);
    assert!(report["transports"][1]["error"].as_str().unwrap().contains("multicast"), "{report}");
    drop(host);
}

/// A recorder does not count as a reader, because it does not itself use the messages.
#[test]
fn a_recorder_is_no_reader_that_is_waited_for() {
    let host = Host::new();
    drop(Publisher::builder("t").dir(host.dir.path().join("channels")).capacity(1 << 20).open().unwrap());
    let journal = host.dir.path().join("journal");
    let recorder = host.start(&format!("record t --to {}", journal.display()));
    let attached = || host.json("stat t --json")["readers"].as_array().unwrap().clone();
    wait_until("the recorder", || attached().len() == 1);
    assert_eq!(attached()[0]["role"], "recorder");
    let shown = text(&host.run("stat t").stdout);
    assert!(shown.contains("0 readers, 1 recorder"), "{shown}");
    let publisher = host.start_with_input("pub t --wait-readers 1");
    wait_until("the publisher", || host.json("stat t --json")["state"] == "active");
    interrupt(&publisher);
    let (code, stderr) = end(publisher);
    assert!(code == 130 && stderr.contains("0 of 1 readers"), "{code} {stderr}");
    interrupt(&recorder);
    assert_eq!(end(recorder).0, 0);
}

#[test]
fn a_channel_with_a_schema_takes_no_lines_by_mistake() {
    let host = Host::new();
    let dir = host.dir.path().join("channels");
    drop(Publisher::builder("t").dir(dir).capacity(1 << 20).schema(7, "price/1").open().unwrap());
    let input = host.file("input", b"a line\n");
    let publish = format!("pub t --input {}", input.display());
    let refused = host.run(&publish);
    let said = text(&refused.stderr);
    assert!(
        refused.status.code() == Some(1) && said.contains("price/1") && said.contains("--set schema_id=7"),
        "{said}"
    );
    let stat = host.json("stat t --json");
    assert_eq!((&stat["epoch"], &stat["next_sequence"]), (&1.into(), &1.into()));
    assert!(host.run(&format!("{publish} --set schema_id=8")).status.code() == Some(1));
    assert!(host.run(&format!("{publish} --set schema_id=7")).status.success());
    assert_eq!(host.json("stat t --json")["next_sequence"], 2);
}
