//! A name service that hangs. A program that needs names waits for a limited time, and then counts as a user without names. No other
//! program waits.
//!
//! In the daemon's own mount namespace, `/etc/passwd` and perhaps `/etc/group` are pipes. As long as a pipe has no writer, every look-up
//! hangs.

use super::{DAEMON, NOBODY};
use shmcast::{Client, Subscriber};
use shmcast_testkit::daemon::channel;
use shmcast_testkit::place::program;
use shmcast_testkit::process::at_socket;
use shmcast_testkit::raw::Raw;
use shmcast_testkit::{Process, Waited, role_as, scratch, skip, wait_for, wait_until};
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// In this script, `$1` is a pipe. The other arguments are the daemon and its arguments.
const SCRIPT: &str = r#"
pipe=$1; shift
mount --bind "$pipe" /etc/passwd && mount --bind "$pipe" /etc/group || exit 9
WATCHDOG_PID=$$ exec "$@"
"#;

/// The daemon's watchdog in this test.
const WATCHDOG: Duration = Duration::from_secs(3);
/// The longest permitted wait for an answer of a user who needs no names.
const BOUND: Duration = Duration::from_secs(1);

/// Attaches to a channel whose list has the user's number. Is refused on a channel whose list has a group's name.
pub(crate) fn read_once(socket: &Path) {
    let client = wait_for("the daemon's answer", || Client::at(socket).ok());
    Subscriber::builder("by-number").client(&client).open().unwrap();
    let refused = Subscriber::builder("by-group").client(&client).open().unwrap_err().to_string();
    println!("{refused}");
    assert!(refused.contains("name service"), "{refused}");
}

/// Attaches by the user's number, tells that it has attached, and prints the daemon's next packet.
pub(crate) fn wait_for_the_next_segment(socket: &Path) {
    let raw = Raw::greeted(socket);
    raw.subscribe("ticks");
    println!("attached");
    let (packet, _) = raw.receive().unwrap();
    println!("{packet}");
}

/// Attaches to a channel whose list has a group's name, as soon as the name service answers.
pub(crate) fn read_by_group(socket: &Path) {
    let client = Client::at(socket).unwrap();
    wait_for("the names", || Subscriber::builder("by-group").client(&client).open().ok());
}

/// A daemon whose `/etc/passwd` is the pipe `$1`.
const SLOW_NAMES: &str = "mount --bind \"$1\" /etc/passwd || exit 9; shift; exec \"$@\"";

/// An earlier mistake: the names that the reader had when it attached decided for ever.
#[test]
fn the_names_that_a_user_has_now_decide_whether_a_reader_gets_the_next_segment() {
    let test = "the_names_that_a_user_has_now_decide_whether_a_reader_gets_the_next_segment";
    let Some(mut reader) = role_as!(in "front", test, NOBODY, "waiter") else { return };
    let Some(mut by_group) = role_as!(in "front", test, NOBODY, "by-group") else { return };
    let tried = Command::new("unshare").args(["-m", "mount", "--bind", "/etc/group", "/etc/passwd"]).status();
    if !tried.is_ok_and(|status| status.success()) {
        return skip(test, "no mount namespace of its own");
    }
    let dir = scratch();
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let at = |name: &str| dir.path().join(name);
    let configure = |subscriber: &str| {
        let ticks = channel("ticks", &format!("mode = \"strict\"\nsubscribers = [\"{subscriber}\"]"));
        let by_group = channel("by-group", "subscribers = [\"group:nogroup\"]");
        fs::write(at("shmcast.toml"), [ticks, by_group].concat().replace("16MiB", "64KiB")).unwrap();
    };
    configure("uid:65534");
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::from_bits_truncate(0o644)).unwrap();
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", SLOW_NAMES, "sh"]).arg(at("pipe")).arg(program("shmcastd"));
    command.arg("--config").arg(at("shmcast.toml")).arg("--socket").arg(at("control.sock"));
    command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stderr(File::create(at("log")).unwrap());
    let daemon = Process::start(&mut command);
    let client = wait_for("the daemon's answer", || Client::at(at("control.sock")).ok());
    let mut reader =
        Process::start(at_socket(&mut reader, &at("control.sock")).stdout(File::create(at("out")).unwrap()));
    let said = || fs::read_to_string(at("out")).unwrap();
    wait_until("the reader", || said().contains("attached"));
    assert!(fs::read_to_string(at("log")).unwrap().contains("name-service"), "its names are not known");
    let by_group = at_socket(&mut by_group, &at("control.sock")).stdout(Stdio::null());
    let mut by_group = Process::start(by_group);
    wait_until("the user's group", || {
        // A pipe that has come to its end lets the look-up end.
        let _ = File::options().write(true).custom_flags(nix::libc::O_NONBLOCK).open(at("pipe"));
        by_group.try_wait().is_some()
    });
    assert!(by_group.wait().success());
    configure("group:nogroup");
    daemon.signal(nix::sys::signal::Signal::SIGHUP);
    wait_until("the reload", || fs::read_to_string(at("log")).unwrap().contains("event=\"reloaded\""));
    client.take_over("ticks").unwrap();
    wait_until("the next packet", || said().contains("reply"));
    assert!(said().contains("\"moved\""), "{}", said());
    assert!(reader.wait().success());
}

#[test]
fn a_name_service_that_hangs_holds_up_nobody_and_feeds_no_watchdog_late() {
    let test = "a_name_service_that_hangs_holds_up_nobody_and_feeds_no_watchdog_late";
    let Some(mut reader) = role_as!(in "front", test, NOBODY, "reader") else { return };
    let Some(mut other) = role_as!(in "front", test, DAEMON, "reader") else { return };
    let dir = scratch();
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let at = |name: &str| dir.path().join(name);
    let tried = Command::new("unshare").args(["-m", "mount", "--bind", "/etc/group", "/etc/passwd"]).status();
    if !tried.is_ok_and(|status| status.success()) {
        return skip(test, "no mount namespace of its own");
    }
    let by_number = channel("by-number", "subscribers = [\"uid:65534\", \"uid:1\"]");
    let by_group = channel("by-group", "subscribers = [\"group:nogroup\", \"group:daemon\"]");
    fs::write(at("shmcast.toml"), [by_number, by_group].concat().replace("16MiB", "64KiB")).unwrap();
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::from_bits_truncate(0o644)).unwrap();
    let notices = UnixDatagram::bind(at("notify")).unwrap();
    notices.set_read_timeout(Some(WATCHDOG)).unwrap();

    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", SCRIPT, "sh"]).arg(at("pipe")).arg(program("shmcastd"));
    command.arg("--config").arg(at("shmcast.toml")).arg("--socket").arg(at("control.sock"));
    command.env("NOTIFY_SOCKET", at("notify")).env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
    let mut daemon = Process::start(command.stdin(Stdio::null()).stderr(File::create(at("log")).unwrap()));
    let log = || fs::read_to_string(at("log")).unwrap();
    let client = wait_for("the daemon's answer", || {
        assert!(daemon.try_wait().is_none(), "it ended: {}", log());
        Client::at(at("control.sock")).ok()
    });

    let daemon_pid = daemon.id(); // `unshare` and the shell have become the daemon

    // The look-ups of two users hang, while root, who needs none, sends requests.
    let mut slow = [&mut reader, &mut other].map(|command| {
        let command = at_socket(command, &at("control.sock")).stdout(Stdio::null());
        Process::start(command)
    });
    let mut worst = Duration::ZERO;
    let mut fed = 0;
    let mut buffer = [0; 4096];
    notices.set_nonblocking(true).unwrap();
    let started = Instant::now();
    let mut last_fed = Waited::for_process(daemon_pid);
    wait_for("the slow ones to be told", || {
        let asked = Waited::for_process(daemon_pid);
        assert_eq!(client.channels().unwrap().len(), 2);
        worst = worst.max(asked.elapsed());
        while let Ok(length) = notices.recv(&mut buffer) {
            if String::from_utf8_lossy(&buffer[..length]).contains("WATCHDOG=1") {
                fed += 1;
                last_fed = Waited::for_process(daemon_pid);
            }
        }
        assert!(last_fed.elapsed() < WATCHDOG, "the watchdog would have ended the daemon");
        let over = slow.iter_mut().all(|reader| reader.try_wait().is_some());
        (over && started.elapsed() > WATCHDOG).then_some(())
    });
    for reader in &mut slow {
        assert!(reader.wait().success(), "{}", log());
    }
    println!("the slowest answer to somebody else after {worst:?}; fed {fed} times");
    assert!(worst < BOUND, "somebody who needs no name waited {worst:?}");
    wait_for("the event", || log().lines().any(|line| line.contains("name-service")).then_some(()));
    // A look-up that still hangs must not keep the daemon from ending.
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(daemon.wait().success());
}
