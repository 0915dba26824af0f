//! A name service that hangs. A program that needs names waits for a limited time, and then counts as a user without names. No other
//! program waits.
//!
//! In the daemon's own mount namespace, `/etc/passwd` and `/etc/group` are pipes without a writer, so every look-up hangs.

use super::{DAEMON, NOBODY};
use shmcast::{Client, Subscriber};
use shmcast_testkit::daemon::channel;
use shmcast_testkit::place::program;
use shmcast_testkit::process::at_socket;
use shmcast_testkit::{Process, Waited, role_as, scratch, skip, wait_for};
use std::fs::{self, File};
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
