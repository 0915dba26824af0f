//! A service manager passes as many descriptors as the unit lets it keep.

use shmcast::Client;
use shmcast::sys::handoff;
use shmcast_testkit::daemon::{FOR_ALL, channel};
use shmcast_testkit::place::program;
use shmcast_testkit::{Process, scratch, skip, wait_for};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

/// Opens descriptors 3 to `$1`. The last one is the listening socket, which the script has as its standard input.
const SCRIPT: &str = r#"
last=$1; shift
ulimit -n $((last + 200)) || exit 9
names=
for ((i = 3; i < last; i++)); do eval "exec $i</dev/null"; names+="other:"; done
eval "exec $last<&0"
export LISTEN_FDS=$((last - 2)) LISTEN_FDNAMES="${names}control" LISTEN_PID=$$
exec "$@" </dev/null
"#;

/// Starts a daemon with `count` descriptors. Returns whether it serves on the last one, and its log.
fn serves_on_the_last_of(count: usize) -> (bool, String) {
    let dir = scratch();
    let path = dir.path().join("control.sock");
    let listener: OwnedFd = handoff::listen(&path).unwrap();
    fs::write(dir.path().join("shmcast.toml"), channel("ticks", FOR_ALL).replace("16MiB", "64KiB")).unwrap();
    let log = dir.path().join("log");
    let mut command = Command::new("bash");
    command.args(["-c", SCRIPT, "bash"]).arg((count + 2).to_string()).arg(program("shmcastd"));
    command
        .arg("--config")
        .arg(dir.path().join("shmcast.toml"))
        .arg("--socket")
        .arg(dir.path().join("elsewhere.sock"));
    command.env_remove("NOTIFY_SOCKET").stdin(Stdio::from(listener)).stderr(File::create(&log).unwrap());
    let mut daemon = Process::start(&mut command);
    let read = || fs::read_to_string(&log).unwrap();
    wait_for("the daemon to be ready", || {
        assert!(daemon.try_wait().is_none(), "it ended: {}", read());
        read().lines().any(|line| line.contains("ready")).then_some(())
    });
    let elsewhere = dir.path().join("elsewhere.sock").exists();
    assert!(elsewhere || Client::at(&path).is_ok());
    (!elsewhere, read())
}

#[test]
fn as_many_descriptors_are_taken_as_the_unit_lets_systemd_keep() {
    let can_open = Command::new("bash").args(["-c", "ulimit -n 9000"]).status();
    if !can_open.is_ok_and(|status| status.success()) {
        return skip(
            "as_many_descriptors_are_taken_as_the_unit_lets_systemd_keep",
            "no bash, or no 9000 descriptors",
        );
    }
    // Two descriptors for each of 4096 channels, and the socket after them.
    assert!(serves_on_the_last_of(8193).0, "the socket behind 8192 descriptors was dropped");
}
