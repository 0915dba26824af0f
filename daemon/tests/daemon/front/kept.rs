//! Memory that the service manager kept, and a daemon that cannot open it.

use shmcast::sys::handoff;
use shmcast::{Client, Event, Start, Subscriber};
use shmcast_testkit::daemon::{FOR_ALL, channel};
use shmcast_testkit::place::program;
use shmcast_testkit::{Process, scratch, wait_for};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Starts a program with at most `$1` KiB of address space. The program gets the test's following descriptors as kept ones with the names
/// `$2`.
const SCRIPT: &str = r#"
ulimit -v "$1" || exit 9
export LISTEN_FDNAMES=$2 LISTEN_PID=$$
shift 2
i=3
while [ "$1" != -- ]; do eval "exec $i<>/proc/$PPID/fd/$1"; i=$((i + 1)); shift; done
shift
export LISTEN_FDS=$((i - 3))
exec "$@" </dev/null
"#;

/// Starts a daemon of the directory, which gets the kept descriptors.
fn start(dir: &Path, address_space: &str, kept: &[(String, File)]) -> Process {
    let names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
    let mut command = Command::new("bash");
    command.args(["-c", SCRIPT, "bash", address_space]).arg(names.join(":"));
    command.args(kept.iter().map(|(_, file)| file.as_raw_fd().to_string())).arg("--");
    command.arg(program("shmcastd")).arg("--config").arg(dir.join("shmcast.toml"));
    command.arg("--socket").arg(dir.join("control.sock")).env("NOTIFY_SOCKET", dir.join("notify"));
    command.stdin(Stdio::null()).stderr(File::create(dir.join("log")).unwrap());
    Process::start(&mut command)
}

/// Listens to a daemon's notices to its service manager, up to the next notice that contains `last`. Returns the descriptors that the
/// daemon passes, and whether it removes any.
fn hear_until(manager: &UnixDatagram, last: &str) -> (Vec<(String, File)>, bool) {
    let (mut kept, mut gave_up) = (Vec::new(), false);
    let mut buffer = [0; 4096];
    loop {
        let packet = handoff::receive(manager, &mut buffer).expect("a daemon that speaks");
        let text = String::from_utf8_lossy(&buffer[..packet.length]).into_owned();
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or_default();
        kept.extend(packet.descriptors.into_iter().map(|file| (name.to_owned(), file)));
        gave_up |= text.contains("FDSTOREREMOVE=1");
        if text.contains(last) {
            return (kept, gave_up);
        }
    }
}

/// A daemon cannot open kept memory if it lacks memory, address space or descriptors. If it continued, it would begin the channel again,
/// and the channel's messages would be lost. So the daemon ends, the memory stays kept, and attached programs continue among themselves.
#[test]
fn a_channel_whose_kept_memory_cannot_be_opened_begins_again() {
    let dir = scratch();
    let dir = dir.path();
    let config = channel("big", FOR_ALL).replace("16MiB", "256MiB");
    fs::write(dir.join("shmcast.toml"), config).unwrap();
    let manager = UnixDatagram::bind(dir.join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();

    let daemon = start(dir, "unlimited", &[]);
    let (kept, _) = hear_until(&manager, "READY=1");
    assert_eq!(kept.len(), 2, "a segment and its lock");
    let client = Client::at(dir.join("control.sock")).unwrap();
    let uuid = client.channel("big").unwrap().uuid;
    let mut publisher = shmcast::Publisher::builder("big").client(&client).open().unwrap();
    publisher.publish_batch(["1", "2", "3"]).unwrap();
    publisher.close();
    daemon.kill();

    // 250,000 KiB of address space are less than the ring needs.
    let mut cramped = start(dir, "250000", &kept);
    let ended = wait_for("the daemon to end", || cramped.try_wait());
    let log = fs::read_to_string(dir.join("log")).unwrap();
    assert_eq!(ended.code(), Some(1), "{log}");
    for word in ["big", "stays kept", "start it again", "Cannot allocate memory"] {
        assert!(log.contains(word), "no {word:?} in {log}");
    }

    let _daemon = start(dir, "unlimited", &kept);
    let (_, gave_up) = hear_until(&manager, "READY=1");
    assert!(!gave_up, "memory that could not be opened was given up");
    let client = Client::at(dir.join("control.sock")).unwrap();
    let found = client.channel("big").unwrap();
    assert_eq!((found.uuid, found.next_sequence), (uuid, Some(4)));
    let mut reader = Subscriber::builder("big").client(&client).start(Start::Oldest).open().unwrap();
    assert!(matches!(reader.recv().unwrap(), Event::Message(m) if m.payload == b"1"));
}
