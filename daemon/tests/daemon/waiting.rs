//! Readers that wait for a channel of a daemon, and the choice between a daemon and files.

use nix::sys::signal::Signal;
use shmcast::control::RefusalCode;
use shmcast::{ChannelError, Client, Publisher, Subscriber};
use shmcast_testkit::daemon::{Daemon, channel, publishing};
use shmcast_testkit::place::program;
use shmcast_testkit::{Process, scratch, skip, wait_for, wait_until};
use std::fs::{self, File};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// An earlier mistake: a program in C or Python that waited for its channel ended at once if the user had reached a limit.
#[test]
fn a_client_of_a_daemon_that_refuses_by_a_limit_waits_with_its_channel() {
    let limits = "[limits]\nrequests_per_second = 1\nrequest_burst = 1\n";
    let daemon = Daemon::start(&format!("{limits}{}", small("ticks")));
    let refused = || Client::at(daemon.socket()).and_then(|client| client.channels());
    wait_for("a refusal", || {
        let refused = refused().err()?;
        matches!(refused, ChannelError::Refused { code: RefusalCode::Limit, .. }).then_some(())
    });
    let client = Client::at(daemon.socket()).unwrap();
    daemon.reload(&format!("[limits]\nrequests_per_second = 10000\n{}", small("ticks")));
    let reader = Subscriber::builder("ticks").client(&client).wait_for_channel(Duration::from_secs(60));
    assert_eq!(reader.open().unwrap().next_sequence(), 1);
}

/// A command whose output goes into files, so that the test reads the output while the command runs.
struct Watched {
    process: Process,
    out: PathBuf,
    err: PathBuf,
}

impl Watched {
    fn start(daemon: &Daemon, name: &str, arguments: &str) -> Self {
        let [out, err] = ["out", "err"].map(|end| daemon.dir().join(format!("{name}.{end}")));
        let mut command = daemon.shmcast(arguments);
        command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        Self { process: Process::start(&mut command), out, err }
    }

    fn out(&self) -> String {
        fs::read_to_string(&self.out).unwrap()
    }

    fn err(&self) -> String {
        fs::read_to_string(&self.err).unwrap()
    }

    /// Waits for a text on stderr. The command must still run.
    fn wait_for_error(&mut self, text: &str) {
        wait_until(&format!("{text:?} on stderr"), || {
            assert!(self.process.is_alive(), "it has ended: {}", self.err());
            self.err().contains(text)
        });
    }
}

fn small(name: &str) -> String {
    channel(name, "").replace("16MiB", "64KiB")
}

/// Publishes three lines on the channel.
fn publish(daemon: &Daemon, channel: &str) -> Publisher {
    let mut publisher = publishing(&daemon.client(), channel).open().unwrap();
    for line in ["a", "b", "c"] {
        publisher.publish(line.as_bytes()).unwrap();
    }
    publisher
}

/// An earlier mistake: each waiting reader asked a hundred times a second, and the first refusal by the limit ended the reader.
#[test]
fn readers_that_wait_for_a_channel_outlast_the_limits_of_their_user() {
    let limits = "[limits]\nrequests_per_second = 5\nrequest_burst = 1\n";
    let daemon = Daemon::start(&format!("{limits}{}", small("ticks")));
    let arguments = "sub later --wait-channel --wait sleep:1000 --count 3";
    let mut readers: Vec<_> =
        (0..4).map(|number| Watched::start(&daemon, &format!("reader{number}"), arguments)).collect();
    // Each reader reports its first refusal by the limit.
    readers.iter_mut().for_each(|reader| reader.wait_for_error("; waiting"));
    daemon.reload(&format!("[limits]\nrequests_per_second = 10000\n{}{}", small("ticks"), small("later")));
    let _publisher = publish(&daemon, "later");
    for reader in &mut readers {
        let status = reader.process.wait();
        assert!(status.success(), "{status}: {}", reader.err());
        assert_eq!(reader.out(), "a\nb\nc\n");
    }
}

#[test]
fn a_reader_that_waits_is_told_of_once_and_pushes_no_other_event_out() {
    let daemon = Daemon::start(&format!("[limits]\nrequests_per_second = 10000\n{}", small("ticks")));
    let client = daemon.client();
    for _ in 0..30 {
        assert!(Subscriber::builder("later").client(&client).open().is_err());
    }
    assert!(Subscriber::builder("other").client(&client).open().is_err());
    let refused = |channel: &str| {
        let (past, _) = client.events_after(1000).unwrap();
        past.iter().filter(|event| event.channel.as_deref() == Some(channel)).count()
    };
    assert_eq!((refused("later"), refused("other"), daemon.told("refused")), (1, 1, 2));
}

/// An earlier mistake: with `--wait-channel`, a reader or recorder ended when the daemon was restarted, or had not been started yet.
#[test]
fn a_wait_for_a_channel_outlasts_its_daemon() {
    let mut daemon = Daemon::start(&small("ticks"));
    let journal = daemon.dir().join("journal").display().to_string();
    let arguments = [
        "sub later --wait-channel --count 3".to_owned(),
        format!("record later --to {journal} --wait-channel --until-end"),
    ];
    let mut early: Vec<_> = arguments.iter().map(|a| Watched::start(&daemon, &a[..3], a)).collect();
    wait_until("both to ask", || daemon.told("refused") == 2);
    daemon.kill();
    early.iter_mut().for_each(|waiting| waiting.wait_for_error("; waiting"));
    fs::remove_file(daemon.socket()).unwrap();
    let mut late = Watched::start(&daemon, "late", "sub later --wait-channel --count 3");
    late.wait_for_error("; waiting");
    daemon.configure(&format!("{}{}", small("ticks"), small("later")));
    daemon.restart();
    let publisher = publish(&daemon, "later");
    for reader in [&mut early[0], &mut late] {
        let status = reader.process.wait();
        assert!(status.success(), "{status}: {}", reader.err());
        assert_eq!((reader.out(), reader.err().matches("; waiting").count()), ("a\nb\nc\n".to_owned(), 1));
    }
    early[1].wait_for_error("recording into");
    publisher.close();
    let status = early[1].process.wait();
    assert!(status.success(), "{status}: {}", early[1].err());
    assert!(early[1].err().contains("3 messages up to sequence 3"), "{}", early[1].err());
}

#[test]
fn a_wait_for_a_daemon_ends_by_a_signal() {
    let mut daemon = Daemon::start(&small("ticks"));
    daemon.kill();
    for (number, (arguments, code)) in
        [("sub later --wait-channel", 0), ("sub later --wait-channel --count 1", 143)].into_iter().enumerate()
    {
        let mut waiting = Watched::start(&daemon, &number.to_string(), arguments);
        waiting.wait_for_error("; waiting");
        let status = waiting.process.end_by(Signal::SIGTERM);
        assert_eq!(status.code(), Some(code), "{arguments}: {}", waiting.err());
    }
}

#[test]
fn a_watched_channel_outlasts_its_daemon() {
    let mut daemon = Daemon::start(&small("ticks"));
    let mut views = ["stat ticks --watch --json", "stat ticks --watch"]
        .map(|a| Watched::start(&daemon, &a[a.len() - 3..], a));
    let lines = |view: &Watched, text: &str| view.out().matches(text).count();
    let text = ["\"channel\"", "CHANNEL"];
    for (view, text) in views.iter().zip(text) {
        wait_until("the channel", || lines(view, text) > 0);
    }
    daemon.kill();
    views[0].wait_for_error("start shmcastd");
    wait_until("the reason in place of the table", || lines(&views[1], "start shmcastd") > 0);
    let before = [0, 1].map(|number| lines(&views[number], text[number]));
    daemon.restart();
    for ((view, text), before) in views.iter_mut().zip(text).zip(before) {
        wait_until("the channel again", || lines(view, text) > before);
        assert_eq!(view.process.end_by(Signal::SIGTERM).code(), Some(0), "{}", view.err());
    }
}

#[test]
fn a_name_that_no_channel_can_have_is_refused_at_a_daemon() {
    let daemon = Daemon::start(&small("ticks"));
    let journal = daemon.dir().join("journal").display().to_string();
    let verbs: [&[&str]; 6] = [
        &["sub", "NAME", "--wait-channel"],
        &["record", "NAME", "--to", &journal, "--wait-channel"],
        &["bridge", "send", "NAME", "--to", "127.0.0.1:30001", "--wait-channel"],
        &["pub", "NAME"],
        &["stat", "NAME"],
        &["rm", "--", "NAME"],
    ];
    for verb in verbs {
        for name in ["a b", ".x", "", "\u{1b}[31mred\n", &"x".repeat(201)] {
            let mut command = daemon.shmcast("");
            command.args(verb.iter().map(|word| if *word == "NAME" { name } else { word }));
            let output = Process::start(&mut command).output();
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{verb:?} {name:?}: {told}");
            assert!(told.contains("channel name") && !told.contains('\u{1b}'), "{verb:?} {name:?}: {told}");
        }
    }
    let waiting = Subscriber::builder("a b").client(&daemon.client());
    let refused = waiting.wait_for_channel(std::time::Duration::MAX).open().unwrap_err();
    assert!(matches!(refused, shmcast::ChannelError::Name { .. }), "{refused}");
}

/// Runs the command in the environment of a user whose own daemon listens below `runtime`.
fn without_place(runtime: &Path, arguments: &str) -> Output {
    let mut command = Command::new(program("shmcast"));
    command.args(arguments.split_whitespace()).env("XDG_RUNTIME_DIR", runtime);
    command.env_remove("SHMCAST_DIR").env_remove("SHMCAST_SOCKET");
    Process::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped())).output()
}

/// An earlier mistake: while the daemon was down, `pub` published into files that no reader of the daemon's channels reads.
#[test]
fn files_are_used_only_where_there_is_no_socket_and_are_named() {
    if Path::new("/run/shmcast").exists() {
        return skip(
            "files_are_used_only_where_there_is_no_socket_and_are_named",
            "a daemon of the system is here",
        );
    }
    let runtime = scratch();
    let name = format!("shmcast-test-{}", std::process::id());
    let stderr = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let published = without_place(runtime.path(), &format!("pub {name} --capacity 64KiB"));
    let removed = without_place(runtime.path(), &format!("rm {name}"));
    assert!(published.status.success() && removed.status.success(), "{published:?}, {removed:?}");
    assert!(stderr(&published).contains(", in /dev/shm/shmcast"), "{}", stderr(&published));
    fs::create_dir(runtime.path().join("shmcast")).unwrap();
    // The socket of a daemon that was killed.
    drop(UnixListener::bind(runtime.path().join("shmcast/control.sock")).unwrap());
    for arguments in ["pub NAME --capacity 64KiB", "sub NAME", "ls", "rm NAME"] {
        let output = without_place(runtime.path(), &arguments.replace("NAME", &name));
        assert_eq!(output.status.code(), Some(1), "{arguments}: {}", stderr(&output));
        assert!(
            stderr(&output).contains("start shmcastd") && stderr(&output).contains("--dir DIR"),
            "{output:?}"
        );
    }
}
