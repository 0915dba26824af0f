//! `top`, `events`, `man` and `completions` as an operator uses them: a real daemon, real readers, a real terminal.

use serde_json::Value;
use shmcast::{Event, Publisher, Subscriber};
use shmcast_testkit::daemon::Daemon;
use shmcast_testkit::place::program;
use shmcast_testkit::{skip, wait_until};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const CONFIG: &str = "[limits]\nrequests_per_second = 10000\n\n[[channel]]\nname = \"ticks\"\ncapacity = \"1MiB\"\n\
                      mlock = false\nhugepages = false\n";

/// A publisher, and a hundred readers that read all available messages on request.
struct Traffic {
    publisher: Publisher,
    readers: Vec<Subscriber>,
}

impl Traffic {
    fn on(daemon: &Daemon) -> Self {
        let client = daemon.client();
        let publisher = Publisher::builder("ticks").client(&client).open().expect("the channel is free");
        let reader = |_| Subscriber::builder("ticks").client(&client).record_latency(true).open();
        let readers = (0..100).map(|i| reader(i).expect("readers are welcome")).collect();
        Self { publisher, readers }
    }

    /// Publishes, and lets all but the first reader read.
    fn flow(&mut self, messages: usize) {
        for _ in 0..messages {
            self.publisher.publish(&[7; 100]).expect("it fits");
        }
        for reader in &mut self.readers[1..] {
            while let Ok(Some(Event::Message(_) | Event::Lapped(_))) = reader.try_recv() {}
        }
    }
}

#[test]
fn what_top_tells_programs() {
    let daemon = Daemon::start(CONFIG);
    let mut traffic = Traffic::on(&daemon);
    traffic.flow(100);
    let child = daemon.shmcast("top --json --interval 1s").spawn().expect("it runs");
    std::thread::sleep(Duration::from_millis(500));
    traffic.flow(400);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let top: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let ticks = &top["channels"][0];
    assert_eq!((&ticks["channel"], &ticks["state"]), (&"ticks".into(), &"active".into()));
    assert_eq!(ticks["readers"].as_array().map(Vec::len), Some(100));
    let lag = ticks["worst_lag"].as_u64().expect("readers with a lag");
    assert!(lag == 100 || lag == 500, "of the one that does not read: {lag}");
    assert!(ticks["messages_per_second"].is_number(), "{ticks}");
    assert!(ticks["worst_latency_ns"]["p99"].as_u64() > Some(0), "{ticks}");
}

#[test]
fn what_top_shows_of_gates_and_of_a_board() {
    let more = "board = { key = \"0..1\", keys = 1 }\n[[channel.gate]]\nname = \"risk\"\nwait = \"1ms\"\nthen = \"refuse\"\n";
    let daemon = Daemon::start(&format!("{CONFIG}{more}"));
    let client = daemon.client();
    let mut publisher = Publisher::builder("ticks").client(&client).open().expect("the channel is free");
    let reader = Subscriber::builder("ticks").client(&client).gate("risk").open().expect("it is free");
    // The first key gets the board's only place, and the second one finds none.
    let mut published = 0;
    while publisher.publish(&[published as u8 % 2; 100]).is_ok() {
        published += 1;
    }
    let output = daemon.shmcast("top --json --interval 100ms").output().expect("it runs");
    let top: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let (gate, board) = (&top["channels"][0]["gates"][0], &top["channels"][0]["board"]);
    assert_eq!((&gate["gate"], &gate["state"]), (&"risk".into(), &"in-force".into()));
    assert!(gate["behind_bytes"].as_u64() > Some(0) && gate["total_ns"].as_u64() > Some(0), "{gate}");
    assert_eq!(gate["refused"], 1, "{gate}");
    assert_eq!(board["refused"], published / 2, "{board}");
    if is_without_tmux("what_top_shows_of_gates_and_of_a_board") {
        return;
    }
    let command = format!(
        "SHMCAST_SOCKET={} SHMCAST_DIR= {} top",
        daemon.socket().display(),
        program("shmcast").display()
    );
    let terminal = Terminal::run("gates", 100, 24, &command);
    terminal.wait_for("1 channel, 1 reader");
    terminal.press("Enter");
    let screen = terminal.wait_for("GATE");
    let line = screen.lines().find(|line| line.starts_with("board 1 of 1 keys")).unwrap_or_default();
    assert!(line.ends_with(&format!("{} no room", published / 2)), "{screen}");
    let gate = screen.lines().find(|line| line.starts_with("risk")).unwrap_or_default();
    assert!(gate.contains("in-force") && gate.contains(&std::process::id().to_string()), "{screen}");
    terminal.press("b");
    terminal.wait_for("\n0x00 "); // the key is one zero byte
    terminal.press("Escape");
    terminal.wait_for("PID");
    drop(reader);
    terminal.wait_for("absent");
    terminal.press("q");
    terminal.wait_for("ended with 0");
}

#[test]
fn top_into_a_pipe() {
    let daemon = Daemon::start(CONFIG);
    let output = daemon.shmcast("top").output().expect("it runs");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--json"), "{output:?}");
    let output = daemon.shmcast("top --json --interval 1ms").output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
}

/// Whether tmux is missing. In that case, prints the name of the test that is skipped.
fn is_without_tmux(test: &str) -> bool {
    let is_missing = Command::new("tmux").arg("-V").output().is_err();
    if is_missing {
        skip(test, "no tmux");
    }
    is_missing
}

/// A terminal for one test, which ends when this value is dropped.
struct Terminal {
    server: String,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

impl Terminal {
    fn tmux(&self, arguments: &[&str]) -> Output {
        Command::new("tmux").arg("-L").arg(&self.server).args(arguments).output().expect("tmux runs")
    }

    /// Runs `command` and then shows its exit code, for as long as the terminal lives.
    fn run(name: &str, columns: u16, lines: u16, command: &str) -> Self {
        let terminal = Self { server: format!("shmcast-test-{name}-{}", std::process::id()) };
        let (columns, lines) = (columns.to_string(), lines.to_string());
        let command = format!("{command}; echo ended with $?; exec sleep 600");
        let output =
            terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", &columns, "-y", &lines, &command]);
        assert!(output.status.success(), "{output:?}");
        terminal
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p"]).stdout).into_owned()
    }

    fn wait_for(&self, what: &str) -> String {
        let mut screen = String::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !screen.contains(what) {
            assert!(Instant::now() < deadline, "waited a minute for {what:?}:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
            screen = self.screen();
        }
        screen
    }
}

#[test]
fn top_with_a_hundred_readers_in_a_terminal() {
    if is_without_tmux("top_with_a_hundred_readers_in_a_terminal") {
        return;
    }
    let mut daemon = Daemon::start(CONFIG);
    let mut traffic = Traffic::on(&daemon);
    traffic.flow(1000);
    for (columns, lines) in [(80, 24), (200, 50)] {
        let command = format!(
            "SHMCAST_SOCKET={} SHMCAST_DIR= {} top",
            daemon.socket().display(),
            program("shmcast").display()
        );
        let terminal = Terminal::run(&columns.to_string(), columns, lines, &command);
        let screen = terminal.wait_for("1 channel, 100 readers");
        assert!(screen.contains("ticks") && screen.contains("READERS"), "{screen}");
        assert!(screen.lines().count() <= usize::from(lines), "{screen}");
        terminal.press("?");
        terminal.wait_for("Any key closes this.");
        terminal.press("x");
        terminal.wait_for("enter readers");
        terminal.press("Enter");
        let screen = terminal.wait_for("reader 1 of 100");
        assert!(screen.contains("sort by lag"), "{screen}");
        let first = screen.lines().nth(3).expect("a row");
        assert!(first.contains(" 1000 "), "the one that does not read comes first:\n{screen}");
        terminal.press("End");
        terminal.wait_for("reader 100 of 100");
        terminal.press("Escape");
        terminal.wait_for("enter readers");
        terminal.press("q");
        let screen = terminal.wait_for("ended with 0");
        assert!(!screen.contains("READERS"), "the terminal is not given back:\n{screen}");
    }

    // `top` must not end when the daemon goes away.
    let command = format!(
        "SHMCAST_SOCKET={} SHMCAST_DIR= {} top",
        daemon.socket().display(),
        program("shmcast").display()
    );
    let terminal = Terminal::run("gone", 80, 24, &command);
    terminal.wait_for("1 channel, 100 readers");
    daemon.kill();
    terminal.wait_for("what is shown is older");
    daemon.restart();
    terminal.wait_for("q quit");
    terminal.press("C-c");
    terminal.wait_for("ended with 0");
}

/// `top` ends even if the shell that began it ignores SIGHUP, as `nohup` does.
#[test]
fn top_ends_with_its_terminal() {
    if is_without_tmux("top_ends_with_its_terminal") {
        return;
    }
    let daemon = Daemon::start(CONFIG);
    let room = tempfile::tempdir().expect("a directory");
    let file = room.path().join("pid");
    let top = format!(
        "SHMCAST_SOCKET={} SHMCAST_DIR= exec {} top",
        daemon.socket().display(),
        program("shmcast").display()
    );
    let command = format!("sh -c 'trap \"\" HUP; echo $$ >{}; {top}'", file.display());
    let terminal = Terminal::run("lost", 80, 24, &command);
    terminal.wait_for("q quit");
    let stat = format!("/proc/{}/stat", fs::read_to_string(&file).expect("its number").trim());
    let is_over = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z"));
    assert!(!is_over());
    drop(terminal);
    wait_until("the end of top", is_over);
}

#[test]
fn events_in_the_order_they_happen_and_through_a_restart() {
    let mut daemon = Daemon::start(CONFIG);
    let mut follower = daemon.shmcast("events --follow --json").spawn().expect("it runs");
    let stdout = BufReader::new(follower.stdout.take().expect("a pipe"));
    let mut lines = stdout.lines().map(|line| line.expect("text"));
    let mut next = |event: &str| {
        let found = lines.by_ref().map(|line| serde_json::from_str::<Value>(&line).expect("JSON"));
        let mut found = found.skip_while(|told| told["event"] != event);
        found.next().unwrap_or_else(|| panic!("no {event}"))
    };
    // The command misses events from before it begins to follow, so the test causes events repeatedly.
    let client = daemon.client();
    // A refusal that repeats is told once, so each asks for another channel.
    let mut asked = 0;
    let mut ask = || {
        asked += 1;
        let _ = Subscriber::builder(format!("nonesuch{asked}")).client(&client).open();
    };
    let heard = std::thread::scope(|scope| {
        let heard = scope.spawn(|| next("refused"));
        wait_until("the follower", || {
            ask();
            heard.is_finished()
        });
        heard.join().expect("it heard")
    });
    assert!(heard["channel"].as_str().is_some_and(|channel| channel.starts_with("nonesuch")), "{heard}");
    let publisher = Publisher::builder("ticks").client(&client).open().expect("it is free");
    let attached = next("attached");
    assert_eq!((&attached["channel"], &attached["role"]), (&"ticks".into(), &"publisher".into()));
    assert_eq!(attached["process"]["pid"], std::process::id());
    publisher.close();
    assert_eq!(next("detached")["role"], "publisher");

    daemon.crash();
    let heard = std::thread::scope(|scope| {
        let heard = scope.spawn(|| next("refused"));
        wait_until("the follower to be back", || {
            ask();
            heard.is_finished()
        });
        heard.join().expect("it heard")
    });
    let is_back = heard["channel"].as_str().is_some_and(|channel| channel.starts_with("nonesuch"));
    assert!(is_back, "{heard}: {}", daemon.log());
    follower.kill().expect("it is ours");
    let output = follower.wait_with_output().expect("it ran");
    assert!(String::from_utf8_lossy(&output.stderr).contains("it is back"), "{output:?}");
}

#[test]
fn what_happened_before_somebody_asked_is_known_to_nobody() {
    let daemon = Daemon::start(CONFIG);
    let client = daemon.client();
    let past = |arguments: &str| -> Vec<Value> {
        let output = daemon.shmcast(&format!("events --json {arguments}")).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        let lines = String::from_utf8(output.stdout).expect("text");
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    Publisher::builder("ticks").client(&client).open().expect("it is free").close();
    assert!(Subscriber::builder("nonesuch").client(&client).open().is_err());
    let names = |past: &[Value]| -> Vec<String> {
        past.iter().filter_map(|event| Some(event["event"].as_str()?.to_owned())).collect()
    };
    // The daemon might notice the end of a connection only after it has refused the next one.
    wait_until("the publisher's end", || names(&past("--last 100")).contains(&"detached".to_owned()));
    let all = past("--last 100");
    let at = |name: &str| all.iter().position(|event| event["event"] == name).expect("it happened");
    assert!(at("attached") < at("detached") && at("attached") < at("refused"), "{all:?}");
    assert_eq!(past("--last 1"), all[all.len() - 1..]);
    assert_eq!(past("--since 1h"), all);
    assert_eq!(past("--since 1h --last 2"), all[all.len() - 2..]);
    assert_eq!(daemon.shmcast("events --last 0").output().expect("it runs").status.code(), Some(2));
}

#[test]
fn events_without_a_daemon() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = Command::new(program("shmcast"))
        .args(["events", "--follow"])
        .env("SHMCAST_DIR", dir.path())
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("shmcastd"), "{output:?}");
}

#[test]
fn a_verb_without_a_manual_page_or_a_completion() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = |arguments: &[&str]| {
        let output = Command::new(program("shmcast")).args(arguments).output().expect("it runs");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    run(&["man", &dir.path().display().to_string()]);
    let help = run(&["--help"]);
    let verbs: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|verb| !verb.is_empty() && *verb != "help")
        .collect();
    assert!(verbs.len() > 10, "{verbs:?}");
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]);
        assert!(script.contains("SHMCAST_COMPLETE") && script.contains("shmcast"), "{shell}: {script}");
        assert!(run(&["completions", shell, "shmcastd"]).contains("print-default-config"), "{shell}");
    }
    let pages = verbs.iter().map(|verb| format!("man1/shmcast-{verb}.1"));
    let others = ["man1/shmcast.1", "man1/shmcast-bridge-send.1", "man8/shmcastd.8"].map(str::to_owned);
    for page in pages.chain(others) {
        let text = fs::read_to_string(dir.path().join(&page)).unwrap_or_else(|e| panic!("{page}: {e}"));
        let name = page[5..page.len() - 2].to_owned();
        for expected in [".SH NAME", ".SH SYNOPSIS", &name.replace('-', "\\-")] {
            assert!(text.contains(expected), "{page} lacks {expected}:\n{text}");
        }
    }
    assert!(!dir.path().join("man1/shmcast-demo-reader.1").exists(), "hidden");
    let surroundings = [
        ("man1/shmcast.1", ["SHMCAST_SOCKET", "/dev/shm/shmcast"]),
        ("man1/shmcast-sub.1", ["SHMCAST_DIR", "/dev/shm/shmcast"]),
        ("man8/shmcastd.8", ["RUST_LOG", "/etc/shmcast/shmcast.toml"]),
    ];
    for (page, names) in surroundings {
        let text = fs::read_to_string(dir.path().join(page)).expect("a page");
        let sections = [".SH ENVIRONMENT", ".SH FILES", ".SH \"SEE ALSO\""];
        for expected in sections.into_iter().chain(names) {
            assert!(text.contains(expected), "{page} lacks {expected}");
        }
    }
    let config = fs::read_to_string(dir.path().join("man5/shmcast.toml.5")).expect("a page");
    assert!(config.contains(".SH [[channel]]") && config.contains("hugepages"), "{config}");
}

#[test]
fn a_completion_that_offers_files_where_none_belong() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("a-file"), "").expect("a file");
    let channels = dir.path().join("channels");
    for channel in ["ticks", "trades"] {
        let mut publish = Command::new(program("shmcast"));
        publish.args(["pub", channel, "--capacity", "64KiB"]).env("SHMCAST_DIR", &channels);
        assert!(publish.stdin(Stdio::null()).output().expect("it runs").status.success());
    }
    let script =
        Command::new(program("shmcast")).args(["completions", "bash"]).output().expect("it runs").stdout;
    fs::write(dir.path().join("script"), script).expect("a file");
    let program = program("shmcast");
    let programs = program.parent().expect("a directory").display();
    let complete = |line: &str, begun: &str| {
        let ask = format!(
            "PATH={programs}:$PATH; source ./script; COMP_WORDS=(shmcast {line} '{begun}'); COMP_TYPE=9
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _clap_complete_shmcast shmcast '{begun}' '' || true
             echo \"${{COMPREPLY[@]}}\""
        );
        let mut bash = Command::new("bash");
        bash.args(["-c", &ask]).current_dir(dir.path()).env("SHMCAST_DIR", &channels);
        let output = bash.output().expect("bash");
        String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
    };
    for (line, begun, words) in [
        ("", "t", "tune takeover top"),
        ("", "demo", "demo"),
        ("sub", "t", "ticks trades"),
        ("rm", "tr", "trades"),
        ("bridge send", "ti", "ticks"),
        ("sub ticks --wait", "", "spin burst yield spin-yield backoff sleep: park"),
        ("sub ticks --from", "", "latest oldest key board"),
        ("sub ticks --resume", "", "oldest latest key"),
        ("sub ticks --count", "", ""),
        ("pub ticks --capacity", "", ""),
        ("pub ticks --rate", "", "max"),
        ("bridge recv ticks --server", "", ""),
        ("pub ticks --input", "a-", "a-file"),
    ] {
        let [mut offered, mut expected] = [&complete(line, begun), words]
            .map(|words| words.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        offered.sort();
        expected.sort();
        assert_eq!(offered, expected, "shmcast {line} {begun}");
    }
}
