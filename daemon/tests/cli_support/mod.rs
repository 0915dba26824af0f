//! Runs the command for tests, in a directory of channels of the test's own.
#![allow(dead_code, reason = "each test program uses its part")]
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A test's own directory of channels, and the command that uses it.
pub(crate) struct Host {
    pub(crate) dir: TempDir,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("shmcast-test-").tempdir_in("/dev/shm").unwrap() }
    }

    pub(crate) fn shmcast(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shmcast"));
        command.args(arguments.split_whitespace()).env("SHMCAST_DIR", self.dir.path().join("channels"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, arguments: &str) -> Output {
        self.shmcast(arguments).output().unwrap()
    }

    /// Runs a verb that must succeed, and reads its stdout as JSON.
    pub(crate) fn json(&self, arguments: &str) -> Value {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{arguments}: {e}"))
    }

    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn subscribe_to(&self, arguments: &str, output: &Path) -> Child {
        let mut command = self.shmcast(&format!("sub {arguments}"));
        command.stdout(fs::File::create(output).unwrap()).spawn().unwrap()
    }
}

/// The directory of the golden journal.
pub(crate) fn golden() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shm-layout/tests/golden/journal").display().to_string()
}

/// The lines of a dump that tell of the channel: not of clocks, rings, reserves and mends.
pub(crate) fn dump(host: &Host, dir: &str, span: &str) -> Vec<Value> {
    let output = host.run(&format!("journal dump {dir} {span}"));
    let lines = text(&output.stdout);
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let about = ["clock", "source", "reserve", "mended", "clean"].map(|event| json!(event));
    lines.filter(|line| !about.contains(&line["event"])).collect()
}

/// Publishes on a channel, and records it into a journal whose directory is returned.
pub(crate) fn recorded(host: &Host, arguments: &str) -> String {
    assert!(host.run(&format!("pub ticks {arguments}")).status.success());
    let journal = host.dir.path().join("journal").display().to_string();
    let output = host.run(&format!("record ticks --to {journal} --until-end"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    journal
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits for a child. Returns its exit code and its stderr, which failed assertions show.
pub(crate) fn end(child: Child) -> (i32, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code().unwrap_or(-1), text(&output.stderr))
}

pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Lines of many lengths, so that records of many sizes follow one another.
pub(crate) fn lines(count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for i in 0..count {
        writeln!(bytes, "{i} {}", "x".repeat(i * 7919 % 300)).unwrap();
    }
    bytes
}

pub(crate) fn interrupt(child: &Child) {
    let pid = nix::unistd::Pid::from_raw(child.id().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
}
