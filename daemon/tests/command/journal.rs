//! `shmcast journal`: the verbs that read, on the golden journal and on damaged copies of it.

use serde_json::{Value, json};
use shmcast::journal::format::{Cause, FileHeader};
use shmcast::journal::{Loss, header_of};
use shmcast::{Message, Publisher};
use shmcast_journal::Cut;
use shmcast_testkit::command::{Host, golden, text};
use std::fs;
use std::path::PathBuf;

const FIRST: &str = "0000000001-00000000000000000001.smj";

/// A copy of the golden journal, to be damaged.
fn copy(host: &Host) -> PathBuf {
    let dir = host.dir.path().join("journal");
    fs::create_dir(&dir).unwrap();
    for entry in fs::read_dir(golden()).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
    }
    dir
}

#[test]
fn files_and_the_whole_are_shown() {
    let host = Host::new();
    let dir = golden();
    let files = host.json(&format!("journal ls {dir} --json"));
    let files = files.as_array().unwrap();
    assert_eq!(files.len(), 2);
    assert_eq!(
        (&files[0]["name"], &files[0]["sealed"], &files[0]["next_sequence"]),
        (&json!(FIRST), &json!(true), &json!(14))
    );
    assert_eq!(files[0]["channel"], "ticks");
    let table = text(&host.run(&format!("journal ls {dir}")).stdout);
    assert!(table.contains(FIRST) && table.contains("sealed"), "{table}");
    let stat = host.json(&format!("journal stat {dir} --json"));
    assert_eq!(
        (&stat["files"], &stat["first_sequence"], &stat["recording"]),
        (&json!(2), &json!(1), &json!(false))
    );
    assert!(text(&host.run(&format!("journal stat {dir}")).stdout).contains("does not run"));
}

#[test]
fn a_check_ends_with_what_it_found() {
    let host = Host::new();
    let dir = copy(&host);
    let verify = |arguments: &str| {
        let output = host.run(&format!("journal verify {} {arguments}", dir.display()));
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    // The journal's losses are named, and nothing is damaged.
    let (code, _, said) = verify("");
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("8 to 12 (5 messages) are missing: overrun") && said.contains("LOSSES"), "{said}");
    let (code, report, _) = verify("--json");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((code, &report["verdict"], &report["damages"]), (3, &json!("losses"), &json!([])));
    // One bit is changed.
    let mut bytes = fs::read(dir.join(FIRST)).unwrap();
    bytes[4096 + 70] ^= 1;
    fs::write(dir.join(FIRST), bytes).unwrap();
    let (code, report, _) = verify("--json");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        (code, &report["verdict"], &report["damages"][0]["offset"]),
        (4, &json!("damaged"), &json!(4096))
    );
    assert_eq!(report["losses"][0], json!({"from": 1, "to": 2, "cause": "damaged"}));
    // There is no journal here.
    let output = host.run("journal verify /nowhere");
    assert_eq!(output.status.code(), Some(1));
    let empty = host.dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let output = host.run(&format!("journal verify {}", empty.display()));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no file of a journal"), "{}", text(&output.stderr));
}

#[test]
fn a_dump_has_messages_losses_and_control_records_in_order() {
    let host = Host::new();
    let dir = golden();
    let output = host.run(&format!("journal dump {dir}"));
    assert_eq!(output.status.code(), Some(3), "it has losses");
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sequences: Vec<u64> = lines
        .iter()
        .filter(|line| line.get("payload").is_some())
        .map(|line| line["sequence"].as_u64().unwrap())
        .collect();
    assert_eq!(sequences, [1, 2, 3, 7, 13, (1 << 32) + 1, (1 << 32) + 2]);
    assert!(lines.contains(&json!({"event": "lost", "from": 8, "to": 12, "cause": "overrun"})));
    assert!(lines.iter().any(|line| line["event"] == "source"));
    let some = host.run(&format!("journal dump {dir} --from 2 --count 1 --framing lines"));
    assert_eq!((text(&some.stdout).as_str(), some.status.code()), ("hello\n", Some(0)));
    let until = host.run(&format!("journal dump {dir} --from 1 --to 2 --framing lines"));
    assert_eq!(text(&until.stdout), "\nhello\n");
    let since = host.run(&format!("journal dump {dir} --from 2000-01-01T00:00Z --count 2 --framing lines"));
    assert_eq!(text(&since.stdout), "\nhello\n");
    let wrong = host.run(&format!("journal dump {dir} --from yesterday"));
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("HH:MM"), "{}", text(&wrong.stderr));
}

/// A journal of another ring does not belong to this channel. A reader that is told to use it reads only the ring.
#[test]
fn a_reader_does_not_take_another_channels_journal() {
    let host = Host::new();
    let input = host.file("input", b"a\nb\nc\n");
    assert!(host.run(&format!("pub t --input {}", input.display())).status.success());
    for arguments in
        [format!("--history {}", golden()), "--history none".into(), "--from 2000-01-01T00:00Z".into()]
    {
        let from = if arguments.contains("--from") { "" } else { "--from oldest" };
        let output = host.run(&format!("sub t {from} {arguments}"));
        assert_eq!(
            (text(&output.stdout).as_str(), output.status.code()),
            ("a\nb\nc\n", Some(0)),
            "{arguments}"
        );
    }
    let later = host.run("sub t --from @4000000000 --framing lines");
    assert_eq!((later.stdout.len(), later.status.code()), (0, Some(0)));
}

/// An earlier mistake: the text sent its readers to the JSON, which lists only the first losses.
#[test]
fn a_check_says_how_many_losses_the_json_lists_and_how_many_are_only_counted() {
    const LOSSES: u64 = 10_003;
    let host = Host::new();
    let (channels, dir) = (host.dir.path().join("channels"), host.dir.path().join("losses"));
    let publisher = Publisher::builder("t").dir(channels).capacity(64 << 10).open().unwrap();
    let header = FileHeader { sequence: 1, ..header_of(publisher.header()).unwrap() };
    let mut cut = Cut::begin(&dir, &header, 64 << 20, (header.wall_ns, 0)).unwrap();
    for turn in 0..LOSSES {
        let sequence = 2 * turn + 1;
        let message = Message { payload: b"one", sequence, tag: 0, key: false, time: 0, conflated: None };
        cut.message(&message, None).unwrap();
        cut.loss(Loss { from: sequence + 1, to: sequence + 1, cause: Cause::Overrun }).unwrap();
    }
    cut.finish().unwrap();
    let said = text(&host.run(&format!("journal verify {}", dir.display())).stderr);
    let report = host.run(&format!("journal verify {} --json", dir.display()));
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let listed = report["losses"].as_array().unwrap().len() as u64;
    let lines = said.lines().filter(|line| line.ends_with("are missing: overrun")).count() as u64;
    let count = |words: &str| {
        let (before, _) = said.split_once(words)?;
        let (_, count) = before.rsplit_once("and ")?;
        count.replace([',', ' '], "").parse::<u64>().ok()
    };
    assert_eq!(count(" more: --json lists them"), Some(listed - lines), "{said}");
    assert_eq!(count(" more, which are only counted"), Some(LOSSES - listed), "{said}");
    assert_eq!(report["losses_not_listed"], LOSSES - listed);
    assert_eq!(report["damages_not_listed"], 0);
}
