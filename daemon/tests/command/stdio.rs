//! The outputs of the command. Publishing and receiving do not depend on stderr, lines stay whole however many programs
//! share a file, and a failed write to stdout is an error.

use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use serde_json::Value;
use shmcast_testkit::command::{Host, interrupt, lines, text};
use shmcast_testkit::place::program;
use shmcast_testkit::{PATIENCE, Process, skip, wait_until};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A device that refuses every byte.
fn full() -> Stdio {
    Stdio::from(File::options().write(true).open("/dev/full").unwrap())
}

/// A pipe whose reader has gone.
fn left() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    Stdio::from(writer)
}

/// An output that shows each write as one packet, and its end as an empty one.
fn packets() -> (File, Stdio) {
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
    let limit = TimeVal::seconds(PATIENCE.as_secs() as i64);
    setsockopt(&ours, sockopt::ReceiveTimeout, &limit).unwrap();
    (File::from(ours), Stdio::from(theirs))
}

/// All writes to an output, until the last program that holds it has ended.
fn writes(mut output: File) -> Vec<String> {
    let mut packet = vec![0; 1 << 20];
    let mut read = || output.read(&mut packet).map(|length| text(&packet[..length])).unwrap();
    std::iter::from_fn(|| Some(read()).filter(|write| !write.is_empty())).collect()
}

/// A host with a channel of ten messages, and one whose first messages have been overwritten.
fn host_with_channels() -> Host {
    let host = Host::new();
    for (name, count) in [("t", 10), ("lapped", 5_000)] {
        let input = host.file("input", &lines(count));
        let published = host.run(&format!("pub {name} --capacity 64KiB --input {}", input.display()));
        assert!(published.status.success(), "{}", text(&published.stderr));
    }
    host
}

#[test]
fn a_terminal_that_takes_nothing_disturbs_no_message() {
    let config = "[[channel]]\nname = \"x\"\nmode = \"odd\"\n";
    for stderr in [full, left] {
        let host = host_with_channels();
        let wrong = host.file("wrong.toml", config.as_bytes());
        let run = |arguments: &str| -> Output { host.shmcast(arguments).stderr(stderr()).output().unwrap() };
        let input = host.file("input", &lines(10));
        for (arguments, code) in [
            (format!("pub t --input {}", input.display()), 0),
            ("sub t --from oldest --summary".to_owned(), 0),
            ("sub t --from oldest --summary --json".to_owned(), 0),
            ("sub lapped --from 1 --summary --json".to_owned(), 3),
            ("sub lapped --from 1".to_owned(), 3),
            ("ls".to_owned(), 0),
            ("stat t".to_owned(), 0),
            ("stat absent".to_owned(), 1),
            (format!("check {}", wrong.display()), 1),
            (format!("man {}", host.dir.path().join("man").display()), 0),
            ("rm lapped".to_owned(), 0),
            ("ls --dir /nonexistent".to_owned(), 0),
        ] {
            assert_eq!(run(&arguments).status.code(), Some(code), "shmcast {arguments}");
        }
        assert_eq!(host.json("stat t --json")["next_sequence"], 21);
        assert_eq!(text(&run("sub t --from 11").stdout), text(&lines(10)));
        assert_eq!(host.json("stat t --json")["state"], "closed", "its publisher did not come to its end");
    }
}

#[test]
fn a_daemon_whose_log_cannot_be_written_serves_on() {
    let host = Host::new();
    let config = host
        .file("shmcast.toml", b"[[channel]]\nname = \"x\"\ncapacity = \"64KiB\"\nsubscribers = [\"*\"]\n");
    let socket = host.dir.path().join("control.sock");
    let mut command = Command::new(program("shmcastd"));
    command.args([Path::new("--config"), &config, Path::new("--socket"), &socket]);
    let mut daemon = Process::start(command.env_remove("JOURNAL_STREAM").stderr(full()));
    let list = || {
        let mut list = host.shmcast("ls --json");
        list.env("SHMCAST_SOCKET", &socket).env_remove("SHMCAST_DIR").output().unwrap()
    };
    wait_until("the daemon to answer", || {
        assert!(daemon.is_alive(), "it has ended");
        list().status.success()
    });
    assert!(text(&list().stdout).contains("\"channel\":\"x\""), "{:?}", list());
    interrupt(&daemon);
    daemon.end();
}

#[test]
fn a_full_disk_is_an_error_that_says_so() {
    let host = host_with_channels();
    let valid = host.file("valid.toml", b"[[channel]]\nname = \"x\"\ncapacity = \"64KiB\"\n");
    for arguments in [
        "ls",
        "ls --json",
        "stat t",
        "stat t --json",
        "sub t --from oldest",
        "sub t --from oldest --framing json",
        "sub lapped --from oldest --framing u32le",
        "pub t --json",
        "completions bash",
        "doctor",
        "doctor --json",
        "hiccups --duration 20ms",
        "demo --readers 1 --messages 20 --no-multicast",
        "top --json --interval 100ms",
        "--help",
        "sub --help",
        &format!("check {} --json", valid.display()),
    ] {
        let output = host.shmcast(arguments).stdout(full()).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "shmcast {arguments}: {stderr}");
        assert!(stderr.contains("cannot write to stdout: No space left"), "shmcast {arguments}: {stderr}");
        assert!(!stderr.contains("panicked"), "shmcast {arguments}: {stderr}");
    }
    let daemon =
        Command::new(program("shmcastd")).arg("--print-default-config").stdout(full()).output().unwrap();
    assert_eq!(daemon.status.code(), Some(1));
    assert!(text(&daemon.stderr).contains("cannot write to stdout: No space left"), "{daemon:?}");
}

#[test]
fn a_pipe_whose_reader_left_ends_a_program_quietly() {
    let host = host_with_channels();
    for arguments in ["ls", "stat t --json", "sub t --from oldest", "completions bash", "doctor", "--help"] {
        let output = host.shmcast(arguments).stdout(left()).output().unwrap();
        assert_eq!(
            (output.status.code(), text(&output.stderr).as_str()),
            (Some(0), ""),
            "shmcast {arguments}"
        );
    }
}

#[test]
fn a_line_of_one_program_is_cut_by_a_line_of_another() {
    let host = host_with_channels();
    for arguments in [
        "sub t --from oldest --framing none --summary --json",
        "sub t --from oldest --framing none --summary",
        "stat absent",
    ] {
        let (output, stderr) = packets();
        let mut child = Process::start(host.shmcast(arguments).stderr(stderr));
        let writes = writes(output);
        child.wait();
        assert_eq!(writes.len(), 1, "shmcast {arguments}: {writes:#?}");
        assert!(writes[0].ends_with('\n') && writes[0].lines().count() == 1, "{writes:?}");
    }
    // The output takes many writes. Each must hold whole messages.
    let input = host.file("input", &lines(5_000));
    assert!(host.run(&format!("pub wide --capacity 4MiB --input {}", input.display())).status.success());
    for (arguments, least) in [("sub wide --from oldest --framing json", 2), ("ls --json", 1), ("ls", 1)] {
        let (output, stdout) = packets();
        let child = Process::start(host.shmcast(arguments).stdout(stdout));
        let writes = writes(output);
        child.end();
        assert!(writes.len() >= least, "shmcast {arguments}: {} writes", writes.len());
        let torn = writes.iter().find(|write| !write.ends_with('\n'));
        assert_eq!(torn, None, "shmcast {arguments}");
    }
}

#[test]
fn twenty_summaries_in_one_file_are_twenty_lines() {
    let host = host_with_channels();
    let path = host.dir.path().join("summaries");
    let children: Vec<Process> = (0..20)
        .map(|_| {
            let file = File::options().create(true).append(true).open(&path).unwrap();
            let mut reader = host.shmcast("sub t --from oldest --framing none --summary --json");
            Process::start(reader.stderr(file))
        })
        .collect();
    children.into_iter().for_each(Process::end);
    let summaries = fs::read_to_string(path).unwrap();
    let received: Vec<u64> = summaries
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["received"].as_u64().unwrap())
        .collect();
    assert_eq!(received, [10; 20]);
}

/// Sends SIGINT when `ready`, and returns how the program ended: code, stdout and stderr.
fn interrupted(mut child: Process, mut ready: impl FnMut() -> bool) -> (i32, String, String) {
    wait_until("the program to be under way", || {
        assert!(child.is_alive(), "it ended by itself");
        ready()
    });
    interrupt(&child);
    // The program's input stays open, and nothing is written to it.
    let input = child.child().stdin.take();
    let output = child.output();
    drop(input);
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_publisher_that_was_interrupted_passes_for_one_that_ended() {
    let host = Host::new();
    let start = |arguments: &str| {
        let mut child = host.start_with_input(arguments);
        child.child().stdin.as_mut().unwrap().write_all(b"one\ntwo\nthr").unwrap();
        child
    };
    let published = |count: u64| host.json("ls --json")[0]["next_sequence"] == count + 1;
    let child = start("pub t --capacity 64KiB");
    let (code, _, stderr) = interrupted(child, || published(2));
    assert_eq!(code, 130, "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(last.contains("INTERRUPTED") && last.contains("published 2 messages"), "{stderr}");
    assert!(last.contains("sequences 1 to 2,"), "{stderr}");
    // The third line was incomplete, so it is no message.
    assert_eq!(text(&host.run("sub t --from oldest").stdout), "one\ntwo\n");

    let child = start("pub t --json");
    let (code, stdout, stderr) = interrupted(child, || published(4));
    let summary: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (code, &summary["published"], &summary["interrupted"]),
        (130, &2.into(), &true.into()),
        "{stderr}"
    );

    let child = start("pub other --capacity 64KiB --wait-readers 1");
    let (code, _, stderr) = interrupted(child, || host.run("stat other").status.success());
    assert!(code == 130 && stderr.contains("published nothing"), "{code} {stderr}");
    assert_eq!(host.json("stat t --json")["state"], "closed");
}

#[test]
fn an_endless_verb_that_is_interrupted_has_not_failed_and_a_finite_one_has() {
    let host = Host::new();
    let mut publisher = host.start_with_input("pub t");
    publisher.child().stdin.as_mut().unwrap().write_all(&lines(10)).unwrap();
    wait_until("the messages", || host.json("ls --json")[0]["next_sequence"] == 11);
    let reads = || host.json("stat t --json")["readers"][0]["received"] == 10;
    let sub = host.start("sub t --from 1");
    let (code, _, stderr) = interrupted(sub, reads);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let sub = host.start("sub t --from 1 --count 11");
    let (code, _, stderr) = interrupted(sub, reads);
    assert_eq!(code, 130, "{stderr}");
    assert!(stderr.contains("received 10 of 11"), "{stderr}");

    let (mut output, stdout) = packets();
    let watch = Process::start(host.shmcast("stat t --watch --json").stdout(stdout));
    assert!(output.read(&mut [0; 1 << 16]).unwrap() > 0);
    assert_eq!(interrupted(watch, || true).0, 0);
    let demo = host.start("demo --readers 1 --messages 5000 --interval-us 50000 --no-multicast");
    let pid = demo.id();
    let has_reader = || fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap() != "";
    let (code, _, stderr) = interrupted(demo, has_reader);
    assert!(code == 130 && stderr.contains("INTERRUPTED"), "{code} {stderr}");
    let (code, _, stderr) = interrupted(publisher, || true);
    assert_eq!(code, 130, "{stderr}");
}

#[test]
fn a_subscriber_that_came_too_late_ends_without_a_word() {
    let host = Host::new();
    let input = host.file("input", b"1\n2\n3\n");
    assert!(host.run(&format!("pub t --input {} --capacity 64KiB", input.display())).status.success());
    for framing in ["lines", "json"] {
        let late = host.run(&format!("sub t --framing {framing}"));
        let stderr = text(&late.stderr);
        assert_eq!(late.status.code(), Some(0), "{stderr}");
        assert!(stderr.contains("closed; 3 messages are there: --from oldest"), "{stderr:?}");
    }
    assert_eq!(text(&host.run("sub t --from oldest").stderr), "");
    assert!(host.run("pub empty --capacity 64KiB").status.success());
    let stderr = text(&host.run("sub empty").stderr);
    assert!(stderr.contains("closed and holds no message: --wait-channel"), "{stderr:?}");
}

#[test]
fn a_first_publisher_is_greeted_in_jargon() {
    let host = Host::new();
    // The command runs with the limits of an ordinary user, who can lock hardly any memory.
    let publish = |arguments: &str| {
        let mut command = Command::new("prlimit");
        command.args(["--memlock=0:0", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-all"]);
        command.arg(program("shmcast")).args(arguments.split_whitespace());
        command.env("SHMCAST_DIR", host.dir.path().join("channels")).stdin(Stdio::null()).output()
    };
    let Some(output) = publish("pub t --capacity 1MiB").ok().filter(|output| output.status.success()) else {
        return skip("a_first_publisher_is_greeted_in_jargon", "no prlimit or setpriv, or not as root");
    };
    let stderr = text(&output.stderr);
    assert!(stderr.lines().count() == 1 && stderr.contains("published 0 messages"), "{stderr}");
    let memory = |more: &str| {
        let output = publish(&format!("pub t --json {more}")).unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        json["memory"]
            .as_array()
            .unwrap()
            .iter()
            .map(|step| step.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let quick = memory("");
    assert!(
        quick.len() == 2 && quick[0] == "prefault: yes" && quick[1].starts_with("lock: refused"),
        "{quick:?}"
    );
    let full = memory("--set prepare=full").join("\n");
    assert!(full.contains("huge pages: refused"), "{full}");
    assert_eq!(memory("--set prepare=none"), [""; 0]);
}

#[test]
fn a_rate_that_is_shown_to_a_ten_thousandth_of_a_message() {
    let host = Host::new();
    let input = host.file("input", &lines(30_000));
    let publish =
        format!("{} pub t --rate 40000/s --input {}", program("shmcast").display(), input.display());
    // `script` gives the command a terminal, and passes on its output.
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &publish, "/dev/null"]).env("SHMCAST_DIR", host.dir.path().join("channels"));
    let Ok(output) = terminal.env("TERM", "xterm").stdin(Stdio::null()).output() else {
        return skip("a_rate_that_is_shown_to_a_ten_thousandth_of_a_message", "no `script`");
    };
    let shown = text(&output.stdout);
    let rates: Vec<&str> =
        shown.split('(').skip(1).filter_map(|rest| rest.split_once("/s)")).map(|r| r.0).collect();
    assert!(shown.contains("published 4,096"), "{shown:?}");
    let is_count = |rate: &&str| rate.chars().all(|c| c.is_ascii_digit() || c == ',');
    assert!(rates.len() > 2 && rates.iter().all(is_count), "{rates:?}");
}

#[test]
fn a_hundred_readers_of_one_name() {
    let host = Host::new();
    let publisher = host.start_with_input("pub t --set process=feed-a --capacity 64KiB");
    let reader = host.start("sub t --name risk --wait-channel");
    wait_until("the reader", || {
        let listed = host.json("ls --json");
        listed[0]["readers"][0]["command"] == "risk" && listed[0]["publisher"]["command"] == "feed-a"
    });
    let refused = host.run("sub t --name a-name-of-16-char");
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("1 to 15"), "{refused:?}");
    interrupt(&reader);
    interrupt(&publisher);
    for child in [reader, publisher] {
        child.output();
    }
}

/// An earlier mistake: `pub` published into files that somebody had removed, and ended as if all were well.
#[test]
fn a_channel_that_is_removed_ends_pub_with_the_number_of_its_messages() {
    for more in [&b""[..], b"three\n"] {
        let host = Host::new();
        let mut publisher = Process::start(host.shmcast("pub ticks --capacity 64KiB").stdin(Stdio::piped()));
        let mut input = publisher.child().stdin.take().unwrap();
        input.write_all(b"one\ntwo\n").unwrap();
        let channels = host.dir.path().join("channels");
        wait_until("both messages", || {
            let reader = shmcast::Subscriber::builder("ticks").dir(&channels).open();
            reader.is_ok_and(|reader| reader.next_sequence() == 3)
        });
        fs::remove_dir_all(channels.join("ticks")).unwrap();
        // The names are checked at the first message after 10 ms, and at the end of the input.
        std::thread::sleep(std::time::Duration::from_millis(20));
        input.write_all(more).unwrap();
        drop(input);
        let output = publisher.output();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("published only 2 messages") && said.contains("files were removed or moved"),
            "{said}"
        );
    }
}
