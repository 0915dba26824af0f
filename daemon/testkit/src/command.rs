//! Runs the command `shmcast` for tests, with a private directory of channels.

use crate::place::{program, scratch};
use crate::process::Process;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use shmcast::{Mark, Preparation, Publisher};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A private directory of channels for a test, and calls of the command `shmcast` in this directory.
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

    /// Starts the command, whose stdout and stderr are pipes.
    pub fn start(&self, arguments: &str) -> Process {
        Process::start(&mut self.shmcast(arguments))
    }

    /// Runs the command until it ends.
    pub fn run(&self, arguments: &str) -> Output {
        self.start(arguments).output()
    }

    /// Does the same as [`start`](Self::start), but the test writes the command's stdin.
    pub fn start_with_input(&self, arguments: &str) -> Process {
        Process::start(self.shmcast(arguments).stdin(Stdio::piped()))
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

/// Runs `shmcast journal dump`, and returns the lines that concern the channel. Lines about clocks, rings, reserves, repairs and clean ends
/// are left out.
pub fn dump(host: &Host, dir: &str, span: &str) -> Vec<Value> {
    let output = host.run(&format!("journal dump {dir} {span}"));
    let lines = text(&output.stdout);
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let about = ["clock", "source", "reserve", "mended", "clean"].map(|event| json!(event));
    lines.filter(|line| !about.contains(&line["event"])).collect()
}

/// Publishes on a channel, and records it into a journal. Returns the journal's directory.
pub fn recorded(host: &Host, arguments: &str) -> String {
    // The memory of the ring and the space of a file are allocated in full at the start, so both sizes are as small as possible.
    assert!(host.run(&format!("pub ticks --capacity 32MiB {arguments}")).status.success());
    record(host)
}

/// Publishes `lines` on the channel `ticks` with chosen publish times, and records the channel as [`recorded`] does. Line `n`, counted from
/// 0, is published `after_ms(n)` ms after a moment that is 61 s before this call.
pub fn recorded_at(host: &Host, lines: &[u8], after_ms: impl Fn(u64) -> u64) -> String {
    let builder = Publisher::builder("ticks").dir(host.dir.path().join("channels")).capacity(32 << 20);
    let mut publisher = builder.prepare(Preparation::NONE).open().unwrap();
    let clock = publisher.clock();
    let ticks = |ms: u64| ms * clock.hz() / 1_000;
    let begun = clock.now() - ticks(61_000);
    for (line, n) in lines.split_inclusive(|byte| *byte == b'\n').zip(0..) {
        let message = line.strip_suffix(b"\n").unwrap_or(line);
        publisher.publish_at(message, Mark::default(), begun + ticks(after_ms(n))).unwrap();
    }
    publisher.close();
    record(host)
}

/// Records the closed channel `ticks`.
fn record(host: &Host) -> String {
    let journal = host.dir.path().join("journal").display().to_string();
    let output = host.run(&format!("record ticks --to {journal} --set file=16MiB --until-end"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    journal
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits for the end of a process. Returns its exit code, or -1 if a signal ended the process, and its stderr.
pub fn end(process: Process) -> (i32, String) {
    let output = process.output();
    (output.status.code().unwrap_or(-1), text(&output.stderr))
}

/// Makes `count` lines of different lengths, so that the records of a channel differ in size.
pub fn lines(count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for i in 0..count {
        writeln!(bytes, "{i} {}", "x".repeat(i * 7919 % 300)).unwrap();
    }
    bytes
}

/// Waits until the process handles Ctrl-C, and then sends SIGINT to the process.
pub fn interrupt(process: &Process) {
    process.wait_until_it_handles(Signal::SIGINT);
    process.signal(Signal::SIGINT);
}
