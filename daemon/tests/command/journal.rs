//! `shmcast journal`: the verbs that read, on the golden journal and on damaged copies of it.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use shmcast::journal::format::{Cause, FileHeader};
use shmcast::journal::{Loss, header_of};
use shmcast::{Message, Publisher};
use shmcast_journal::Cut;
use shmcast_testkit::Process;
use shmcast_testkit::command::{Host, end, golden, lines, recorded, text};
use shmcast_testkit::journal::folder;
use shmcast_testkit::place::program;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// A dump that a signal ends says how far it came, and its exit code names the signal.
#[test]
fn a_dump_that_is_interrupted_says_how_far_it_came() {
    let host = Host::new();
    let input = host.file("input", &lines(60_000));
    let journal = recorded(&host, &format!("--input {}", input.display()));
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129)] {
        let mut child = host.start(&format!("journal dump {journal}"));
        // The pipe holds little of the output, so the dump cannot end before the signal.
        child.child().stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child.signal(signal);
        let (ended, said) = end(child);
        assert_eq!(ended, code, "{said}");
        assert!(said.contains("INTERRUPTED, dumped up to sequence "), "{said}");
    }
}

/// A program that ignores SIGHUP, as under `nohup`, goes on ignoring it.
#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let host = Host::new();
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" pub t --capacity 64KiB --wait-readers 1"]);
    command
        .arg(program("shmcast"))
        .stdin(std::process::Stdio::null())
        .env("SHMCAST_DIR", host.dir.path().join("channels"));
    let child = Process::start(&mut command);
    child.wait_until_it_handles(Signal::SIGTERM);
    assert!(!child.handles(Signal::SIGHUP));
    child.kill();
}

/// A gap of the ring is missing in every verb, as a loss is.
#[test]
fn a_gap_of_the_ring_is_missing_in_every_verb() {
    let host = Host::new();
    let [journal, cut, joined] = ["gap", "cut", "joined"].map(|name| host.dir.path().join(name));
    let builder = Publisher::builder("ticks").dir(host.dir.path().join("channels")).capacity(1 << 20);
    let mut publisher = builder.open().unwrap();
    publisher.publish(b"one").unwrap();
    publisher.gap(100).unwrap();
    publisher.publish(b"a hundred and one").unwrap();
    publisher.close();
    let record = host.run(&format!("record ticks --to {} --until-end --json", journal.display()));
    let sums: Value = serde_json::from_slice(&record.stdout).unwrap();
    assert_eq!((record.status.code(), &sums["missing"]), (Some(3), &json!(99)), "{sums}");
    assert_eq!(sums["gaps"], 99, "{sums}");
    let gap = json!({"from": 2, "to": 100, "cause": "gap"});
    let verbs = [
        format!("journal cut {} {} --json", journal.display(), cut.display()),
        format!("journal join {} {} --json", joined.display(), journal.display()),
        format!("journal export {} {} --json", journal.display(), host.dir.path().join("pcap").display()),
        format!("replay {} --into again --speed max --json", journal.display()),
    ];
    for verb in verbs {
        let output = host.run(&verb);
        let sums: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), &sums["missing"]), (Some(3), &json!(99)), "{verb}: {sums}");
    }
    for made in [&journal, &cut, &joined] {
        let made = made.display();
        let output = host.run(&format!("journal verify {made} --json"));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), &report["verdict"]), (Some(3), &json!("losses")), "{report}");
        assert_eq!(report["losses"], json!([gap]));
        let said = text(&host.run(&format!("journal verify {made}")).stderr);
        assert!(said.contains("2 to 100 (99 messages) never reached this host"), "{said}");
        let dump = host.run(&format!("journal dump {made}"));
        assert_eq!(dump.status.code(), Some(3));
        assert!(text(&dump.stdout).contains(r#""event":"lost""#), "{}", text(&dump.stdout));
    }
}

/// The only file in the folder of a stream.
fn only_file(folder: &Path) -> PathBuf {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.into_iter().find(|path| path.extension().is_some_and(|it| it == "smj")).unwrap()
}

/// The newest stream's only file has a damaged header. No verb takes the older stream instead.
#[test]
fn a_newest_stream_that_cannot_be_read_is_not_replaced_by_an_older_one() {
    let host = Host::new();
    let dir = host.dir.path().join("journal");
    let shown = dir.display();
    let input = host.file("input", b"1\n2\n");
    for _ in 0..2 {
        assert!(
            host.run(&format!("pub ticks --capacity 64KiB --input {}", input.display())).status.success()
        );
        assert!(host.run(&format!("record ticks --to {shown} --until-end")).status.success());
        assert!(host.run("rm ticks").status.success());
    }
    let newest = folder(&dir);
    damage(&only_file(&newest));
    let name = newest.file_name().unwrap().to_str().unwrap();
    for verb in [
        format!("journal dump {shown}"),
        format!("journal cut {shown} {}", host.dir.path().join("cut").display()),
        format!("journal export {shown} {}", host.dir.path().join("pcap").display()),
        format!("journal stat {shown}"),
        format!("journal hold {shown} audit"),
        format!("replay {shown} --into again --speed max"),
    ] {
        let output = host.run(&verb);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(name), "{verb}: {said}");
        assert_eq!(text(&output.stdout), "", "{verb}");
    }
    for dir in [&dir, &newest] {
        let output = host.run(&format!("journal verify {}", dir.display()));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains("DAMAGED") && said.contains("file header"), "{said}");
    }
    // The other stream is sound, and a command that names its folder reads it.
    let streams = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let older = streams.into_iter().find(|path| path.is_dir() && *path != newest).unwrap();
    assert!(host.run(&format!("journal dump {}", older.display())).status.success());
    let verify = host.run(&format!("journal verify {}", older.display()));
    assert!(verify.status.success(), "{}", text(&verify.stderr));
}

/// A file in the middle has lost its end. The check names this file, and not the next one.
#[test]
fn a_truncated_file_is_blamed_itself() {
    let host = Host::new();
    let input = host.file("input", &lines(20_000));
    assert!(host.run(&format!("pub ticks --capacity 32MiB --input {}", input.display())).status.success());
    let dir = host.dir.path().join("journal");
    let record = host.run(&format!("record ticks --to {} --set file=1MiB --until-end", dir.display()));
    assert!(record.status.success(), "{}", text(&record.stderr));
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder(&dir)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|it| it == "smj"));
    files.sort();
    assert!(files.len() > 2, "{files:?}");
    fs::File::options().write(true).open(&files[1]).unwrap().set_len(4096).unwrap();
    let output = host.run(&format!("journal verify {} --json", dir.display()));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let blamed: Vec<_> = report["damages"].as_array().unwrap().iter().map(|damage| &damage["file"]).collect();
    let truncated = json!(files[1].file_name().unwrap().to_str().unwrap());
    assert_eq!((output.status.code(), blamed), (Some(4), vec![&truncated]), "{report}");
    let ls = text(&host.run(&format!("journal ls {}", dir.display())).stdout);
    assert_eq!(ls.matches("unsealed").count(), 1, "{ls}");
}

/// The directory of the environment variable must exist. The journal in it can be absent, and `sub` says so.
#[test]
fn a_directory_of_journals_that_is_not_there_is_an_error() {
    let host = Host::new();
    let input = host.file("input", b"1\n2\n");
    assert!(host.run(&format!("pub t --capacity 64KiB --input {}", input.display())).status.success());
    let sub = |journals: &Path| {
        let mut command = host.shmcast("sub t --from oldest");
        Process::start(command.env("SHMCAST_JOURNALS", journals)).output()
    };
    let absent = sub(&host.dir.path().join("nowhere"));
    let said = text(&absent.stderr);
    assert!(absent.status.code() == Some(1) && said.contains("nowhere"), "{said}");
    let there = sub(host.dir.path());
    assert_eq!((text(&there.stdout).as_str(), there.status.code()), ("1\n2\n", Some(0)));
    let said = text(&there.stderr);
    assert!(said.contains("has no journal of this stream: begins at 1"), "{said}");
}

#[test]
fn the_folder_of_one_stream_is_no_directory_to_record_into() {
    let host = Host::new();
    let input = host.file("input", b"1\n2\n");
    let journal = recorded(&host, &format!("--input {}", input.display()));
    let stream = folder(Path::new(&journal));
    let record = host.run(&format!("record ticks --to {} --until-end", stream.display()));
    let said = text(&record.stderr);
    assert_eq!(record.status.code(), Some(1), "{said}");
    assert!(said.contains("this is the folder of one stream: give its directory"), "{said}");
}

/// Damages the header of a file.
fn damage(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    bytes[..4].fill(b'X');
    fs::write(file, bytes).unwrap();
}

/// A test for an earlier mistake: a journal whose first or last file cannot be read was copied, dumped and replayed with exit code 0.
#[test]
fn a_file_that_cannot_be_read_is_told_by_every_verb() {
    let host = Host::new();
    let input = host.file("input", &lines(20_000));
    assert!(host.run(&format!("pub ticks --capacity 32MiB --input {}", input.display())).status.success());
    for (name, is_last) in [("first", false), ("last", true)] {
        let dir = host.dir.path().join(name);
        let shown = dir.display();
        let record = host.run(&format!("record ticks --to {shown} --set file=1MiB --until-end"));
        assert!(record.status.success(), "{}", text(&record.stderr));
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder(&dir)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|it| it == "smj"));
        files.sort();
        assert!(files.len() > 2, "{files:?}");
        let damaged = if is_last { files.last().unwrap() } else { &files[0] };
        let whole = host.dir.path().join(format!("{name}-whole"));
        assert!(Command::new("cp").arg("-r").args([&dir, &whole]).status().unwrap().success());
        damage(damaged);
        let place = |what: &str| host.dir.path().join(format!("{name}-{what}")).display().to_string();
        for verb in [
            format!("journal dump {shown} --framing none"),
            format!("journal dump {shown} --framing none --from @1"),
            format!("journal cut {shown} {}", place("cut")),
            format!("journal join {} {shown}", place("joined")),
            format!("journal export {shown} {}", place("pcap")),
            format!("replay {shown} --into {name} --speed max"),
        ] {
            let output = host.run(&verb);
            let said = text(&output.stderr);
            let note = format!("{} is not used", damaged.file_name().unwrap().to_str().unwrap());
            assert!(output.status.code() == Some(3) && said.contains(&note), "{verb}: {said}");
        }
        // A whole copy has what the damaged file lacks.
        let output = host.run(&format!("journal join {} {shown} {}", place("mended"), whole.display()));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let few = host.run(&format!("journal dump {shown} --count 5 --framing none"));
        assert_eq!(few.status.code(), Some(if is_last { 0 } else { 3 }), "{}", text(&few.stderr));
        // A part that is in the other files lacks nothing.
        let part = host.run(&format!("journal dump {shown} --from 9000 --to 9001 --framing lines"));
        assert_eq!(part.status.code(), Some(0), "{}", text(&part.stderr));
        assert_eq!(text(&part.stdout).lines().count(), 2);
    }
}

/// An error says what was refused, where, and what to do next.
#[test]
fn errors_name_the_next_step() {
    let host = Host::new();
    let (dir, there) = (golden(), host.dir.path().display().to_string());
    let make = format!("{there}/absent is no directory: make it first (mkdir -p {there}/absent)");
    let expected = [
        (format!("journal cut {dir} {there}/absent/cut"), &*make),
        (format!("journal join {there}/absent/joined {dir}"), &*make),
        (format!("journal export {dir} {there}/absent/pcap"), &*make),
        (format!("record ticks --to {there}/absent/journal"), &*make),
        (format!("journal export {dir} {there}"), "is a directory: give the name of a new file in it"),
        (format!("journal stat {there}/absent"), "give the directory that was recorded to"),
    ];
    for (verb, step) in expected {
        let output = host.run(&verb);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(step), "{verb}: {said}");
    }
    // The program has its three standard streams, and one descriptor more.
    let program = program("shmcast");
    let script = format!("ulimit -n 4; exec {} journal dump {dir} --framing none", program.display());
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("raise the limit on open files (ulimit -n"), "{said}");
}
