//! The daemon's user is not allowed to start more threads, as under a full `TasksMax`. A journal that begins or returns then is reported
//! and shown as failed. The daemon tries it again, and the journal then has everything that the ring still had.
//!
//! An earlier mistake: only a reload tried the journal's thread again, although the alert said that the daemon tries again.

use nix::sys::signal::Signal;
use shmcast::control::JournalStatus;
use shmcast::journal::{Entry, Journal};
use shmcast::{Client, Publisher};
use shmcast_testkit::daemon::{FOR_ALL, channel, publishing};
use shmcast_testkit::place::{program, scratch};
use shmcast_testkit::process::as_user;
use shmcast_testkit::{Process, skip, wait_for, wait_until};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;

const NAME: &str = "a_journal_that_gets_no_thread_is_told_tried_again_and_misses_nothing";
/// A user without other processes.
const UID: u32 = 54_327;

/// Sets the limit for threads and processes of the daemon's user, or removes the limit. A process of the same user is allowed to do this on
/// every system.
fn limit(daemon: &Process, most: &str) {
    let mut command = as_user(NAME, UID, Path::new("/usr/bin/prlimit")).unwrap();
    command.args(["--pid", &daemon.id().to_string(), &format!("--nproc={most}:")]);
    assert!(command.status().unwrap().success());
}

/// The highest limit that the daemon is allowed to have.
fn hard_limit(daemon: &Process) -> Option<String> {
    let words = ["--pid", &daemon.id().to_string(), "--nproc", "--output=HARD", "--noheadings"];
    let output = as_user(NAME, UID, Path::new("/usr/bin/prlimit"))?.args(words).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()).filter(|hard| !hard.is_empty())
}

fn status(client: &Client) -> Option<JournalStatus> {
    client.channel("ticks").unwrap().journal
}

fn publish(publisher: &mut Publisher, last: u64) {
    while publisher.next_sequence() <= last {
        let sequence = publisher.next_sequence();
        publisher.publish(&sequence.to_le_bytes()).unwrap();
    }
}

/// The sequences of a journal, which has no loss.
fn whole(dir: &Path) -> Vec<u64> {
    let mut reader = Journal::open(dir).unwrap().read_from(1).unwrap();
    let mut sequences = Vec::new();
    while let Some(entry) = reader.next().unwrap() {
        match entry {
            Entry::Message(message) => sequences.push(message.sequence),
            Entry::Lost(loss) => panic!("{loss:?}"),
            _ => {}
        }
    }
    sequences
}

/// Waits until the journal is shown as failed for lack of a thread.
fn wait_until_refused(client: &Client) {
    let is_refused = |journal: &JournalStatus| {
        let why = journal.why.as_deref().unwrap_or_default();
        journal.state == "failed" && why.contains("thread") && why.contains("temporarily unavailable")
    };
    wait_until("the refusal", || status(client).is_some_and(|journal| is_refused(&journal)));
}

#[test]
fn a_journal_that_gets_no_thread_is_told_tried_again_and_misses_nothing() {
    let Some(mut command) = as_user(NAME, UID, &program("shmcastd")) else { return };
    let room = scratch();
    let path = |name: &str| -> PathBuf { room.path().join(name) };
    fs::set_permissions(room.path(), Permissions::from_mode(0o755)).unwrap();
    chown(room.path(), Some(UID), None).unwrap();
    let (config, socket, journal) = (path("c.toml"), path("s"), path("journal"));
    fs::write(&config, channel("ticks", FOR_ALL)).unwrap();
    command.arg("--config").arg(&config).arg("--socket").arg(&socket).env_remove("NOTIFY_SOCKET");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(path("log")).unwrap());
    let mut daemon = Process::start(&mut command);
    let client = wait_for("the daemon", || Client::at(&socket).ok());
    let Some(hard) = hard_limit(&daemon) else { return skip(NAME, "there is no prlimit") };
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publish(&mut publisher, 1_000);
    limit(&daemon, "1");
    let recorded = format!("{FOR_ALL}\njournal = {{ dir = \"{}\", file = \"1MiB\" }}", journal.display());
    fs::write(&config, channel("ticks", &recorded)).unwrap();
    daemon.signal(Signal::SIGHUP);
    wait_until_refused(&client);
    let told = fs::read_to_string(path("log")).unwrap();
    let is_loud =
        |line: &str| line.contains("WARN") && line.contains("journal-failed") && line.contains("TasksMax");
    assert!(told.lines().any(is_loud), "{told}");
    publish(&mut publisher, 2_000);
    limit(&daemon, &hard);
    let durable = |last: u64| {
        wait_until("the journal", || {
            status(&client).is_some_and(|journal| journal.durable >= last && journal.state == "recording")
        });
    };
    durable(2_000);
    assert_eq!(whole(&journal), (1..=2_000).collect::<Vec<_>>());
    // The volume goes away, and comes back while there is no thread for its recorder.
    limit(&daemon, "1");
    fs::rename(&journal, path("away")).unwrap();
    publish(&mut publisher, 3_000);
    wait_until_refused(&client);
    publish(&mut publisher, 4_000);
    limit(&daemon, &hard);
    let _ = fs::remove_dir_all(&journal);
    fs::rename(path("away"), &journal).unwrap();
    durable(4_000);
    assert_eq!(whole(&journal), (1..=4_000).collect::<Vec<_>>());
    let log = fs::read_to_string(path("log")).unwrap();
    assert!(!log.contains("panicked"), "{log}");
    assert!(daemon.end_by(Signal::SIGTERM).success());
}
