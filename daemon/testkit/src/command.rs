//! Runs the command for tests, in a directory of channels of the test's own.

use crate::place::{program, scratch};
use crate::process::Process;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A test's own directory of channels, and the command that uses it.
pub struct Host {
    pub dir: TempDir,
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Host {
    pub fn new() -> Self {
        Self { dir: scratch() }
    }

    pub fn shmcast(&self, arguments: &str) -> Command {
        let mut command = Command::new(program("shmcast"));
        command.args(arguments.split_whitespace()).env("SHMCAST_DIR", self.dir.path().join("channels"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn run(&self, arguments: &str) -> Output {
        self.shmcast(arguments).output().unwrap()
    }

    /// Starts the command, whose stdout and stderr are pipes.
    pub fn start(&self, arguments: &str) -> Process {
        Process::start(&mut self.shmcast(arguments))
    }

    /// Runs a verb that must succeed, and reads its stdout as JSON.
    pub fn json(&self, arguments: &str) -> Value {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{arguments}: {e}"))
    }

    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    pub fn subscribe_to(&self, arguments: &str, output: &Path) -> Process {
        let mut command = self.shmcast(&format!("sub {arguments}"));
        Process::start(command.stdout(fs::File::create(output).unwrap()))
    }
}

/// The directory of the golden journal.
pub fn golden() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shm-layout/tests/golden/journal").display().to_string()
}

/// The lines of a dump that tell of the channel: not of clocks, rings, reserves and mends.
pub fn dump(host: &Host, dir: &str, span: &str) -> Vec<Value> {
    let output = host.run(&format!("journal dump {dir} {span}"));
    let lines = text(&output.stdout);
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let about = ["clock", "source", "reserve", "mended", "clean"].map(|event| json!(event));
    lines.filter(|line| !about.contains(&line["event"])).collect()
}

/// Publishes on a channel, and records it into a journal whose directory is returned.
pub fn recorded(host: &Host, arguments: &str) -> String {
    assert!(host.run(&format!("pub ticks {arguments}")).status.success());
    let journal = host.dir.path().join("journal").display().to_string();
    let output = host.run(&format!("record ticks --to {journal} --until-end"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    journal
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits for the end of a process. Returns its exit code, or -1 after a signal, and its stderr, which failed assertions show.
pub fn end(process: Process) -> (i32, String) {
    let output = process.output();
    (output.status.code().unwrap_or(-1), text(&output.stderr))
}

/// Lines of many lengths, so that records of many sizes follow one another.
pub fn lines(count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for i in 0..count {
        writeln!(bytes, "{i} {}", "x".repeat(i * 7919 % 300)).unwrap();
    }
    bytes
}

/// Sends what Ctrl-C sends.
pub fn interrupt(process: &Process) {
    process.signal(Signal::SIGINT);
}
