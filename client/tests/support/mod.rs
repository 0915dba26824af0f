//! Helpers that the tests share: scratch directories in shared memory, other processes, and short checks of a stream.

#![allow(dead_code, reason = "each test file uses some of it")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmcast::{Event, Publisher, PublisherBuilder, Subscriber, SubscriberBuilder};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Bytes of the smallest possible ring.
pub(crate) const SMALL: u64 = 64 << 10;
const ROLE: &str = "SHMCAST_TEST_ROLE";

/// A directory for one test, in shared memory if the machine has it.
pub(crate) fn scratch() -> TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix("shmcast-test-");
    builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir()).expect("a directory for scratch files")
}

pub(crate) fn publisher(dir: &Path) -> PublisherBuilder {
    Publisher::builder("t").dir(dir)
}

pub(crate) fn subscriber(dir: &Path) -> SubscriberBuilder {
    Subscriber::builder("t").dir(dir)
}

/// Receives all that is there. It must be messages only. Returns their sequences and payloads.
pub(crate) fn drain(subscriber: &mut Subscriber) -> Vec<(u64, Vec<u8>)> {
    let mut messages = Vec::new();
    while let Some(event) = subscriber.try_recv().unwrap() {
        let Event::Message(m) = event else { panic!("{event:?} instead of a message") };
        messages.push((m.sequence, m.payload.to_vec()));
    }
    messages
}

/// Receives the next event, which must come and must not be a message.
pub(crate) fn rare(subscriber: &mut Subscriber) -> Event<'static> {
    let event = subscriber.recv_deadline(Instant::now() + Duration::from_secs(5)).unwrap();
    match event.expect("an event within five seconds") {
        Event::Lapped(lapped) => Event::Lapped(lapped),
        Event::Gap { from, to } => Event::Gap { from, to },
        Event::NewEpoch { epoch } => Event::NewEpoch { epoch },
        Event::NewSession { session } => Event::NewSession { session },
        Event::Restarted => Event::Restarted,
        Event::End => Event::End,
        other => panic!("{other:?} where something rare was due"),
    }
}

/// Whether no event comes within some milliseconds.
pub(crate) fn is_silent(subscriber: &mut Subscriber) -> bool {
    subscriber.recv_deadline(Instant::now() + Duration::from_millis(5)).unwrap().is_none()
}

/// Waits until `ready` returns a value, for at most 30 s.
pub(crate) fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "still no {what} after 30 s");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Prints that a test could not run here.
pub(crate) fn skip(name: &str, reason: impl std::fmt::Display) {
    eprintln!("SKIPPED {name}: {reason}");
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The role that this process was started for, if it was started for one.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The directory of the role that this process was started for.
pub(crate) fn role_dir() -> PathBuf {
    PathBuf::from(std::env::var_os("SHMCAST_TEST_DIR").expect("roles are started with a directory"))
}

/// A command that starts this test program again in a role: it runs the test `play`.
pub(crate) fn process(role: &str, dir: &Path) -> Command {
    process_under(&[], role, dir)
}

/// As [`process`], started by the command `under`, such as `["setpriv", ..]`.
pub(crate) fn process_under(under: &[&str], role: &str, dir: &Path) -> Command {
    let program = std::env::current_exe().expect("this program's own path");
    let mut words = under.iter().map(Into::into).collect::<Vec<std::ffi::OsString>>();
    words.push(program.into());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["play", "--exact", "--ignored", "--nocapture", "--test-threads=1", "-q"]);
    command.env(ROLE, role).env("SHMCAST_TEST_DIR", dir).env_remove(shmcast::DIR_VARIABLE);
    command.stdout(std::process::Stdio::null());
    command
}

/// Runs a command to its end. If it failed, the error is what it wrote to stderr.
pub(crate) fn run(mut command: Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{:?}: {e}", command.get_program()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

/// Runs a role as another user, if that is possible here.
pub(crate) fn as_nobody(name: &str, first: &[&str], role: &str, dir: &Path) {
    let setpriv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    if !is_root() {
        return skip(name, "only root can start a process of another user");
    }
    let program = std::env::current_exe().expect("this program's own path");
    let test = [&setpriv[1..], &["test", "-x", program.to_str().expect("a path in UTF-8")]].concat();
    if !works("setpriv", &test) {
        return skip(name, "no setpriv here, or another user may not run this test program");
    }
    run(process_under(&[first, &setpriv].concat(), role, dir)).unwrap_or_else(|e| panic!("{role}: {e}"));
}

/// Whether a command exists and succeeds.
pub(crate) fn works(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

/// A process that is killed when this is dropped.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        Self(command.spawn().expect("this program can be started again"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("a child of ours");
    }

    /// Kills it, and waits for its end.
    pub(crate) fn kill(mut self) {
        self.0.kill().expect("a child of ours");
        let status = self.0.wait().expect("a child of ours");
        assert!(status.code().is_none(), "it had ended by itself: {status}");
    }

    /// Waits until it ends by itself. It must succeed.
    pub(crate) fn end(mut self) {
        let status = wait_for("end of a reader", || self.0.try_wait().expect("a child of ours"));
        assert!(status.success(), "{status}: see above");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
