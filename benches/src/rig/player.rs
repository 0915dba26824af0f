//! A process of a round. The rig starts the process, sends it words, and reads its lines. At the end of the round, the rig kills a process
//! that still runs. The process runs [`publish`](crate::rig::publish) or [`receive`](crate::rig::receive), which use the same protocol.

use crate::rig::hosts;
use crate::rig::names::{CHANNEL, is_peer_between_hosts};
use crate::rig::spec::{Spec, Task};
use crate::rig::windows::{PREFIX, Window};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The environment variable with the rate of the clock, for a peer that cannot measure it.
const TICKS_PER_SECOND: &str = "SHMCAST_BENCH_TICKS_PER_SECOND";

/// A child process that exchanges lines with the rig.
#[derive(Debug)]
pub(super) struct Player {
    pub(super) child: Child,
    lines: mpsc::Receiver<String>,
    windows: mpsc::Receiver<String>,
    pub(super) name: String,
}

impl Player {
    /// Starts `program` with a task. A peer that sends between hosts is started on its task's host. Other programs move to their host by
    /// themselves.
    pub(super) fn start(program: &Path, task: &Task, name: String) -> Result<Self> {
        let words = serde_json::to_string(task)?;
        match &task.spec().wire {
            Some(wire) if is_peer_between_hosts(task.spec().contestant.transport_name()) => {
                let host = hosts::name_of(wire, task);
                let program = program.to_str().context("a peers' program whose path is no text")?;
                Self::with(Path::new("ip"), &["netns", "exec", host, program, "play", &words], name)
            }
            _ => Self::with(program, &["play", &words], name),
        }
    }

    /// Starts `program` with these arguments.
    pub(super) fn with(program: &Path, arguments: &[&str], name: String) -> Result<Self> {
        let mut child = Command::new(program)
            .args(arguments)
            .env(TICKS_PER_SECOND, shmcast::Clock::of_this_host().hz().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {name}"))?;
        let (lines, windows) = hear(child.stdout.take().expect("it was piped"));
        Ok(Self { child, lines, windows, name })
    }

    /// Returns the next line, or the reason why there is none.
    pub(super) fn line(&self, deadline: Instant, what: &str) -> Result<String> {
        self.lines
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            .map_err(|e| anyhow::anyhow!("{} gave no {what}: {e}", self.name))
    }

    pub(super) fn expect_ready(&self, deadline: Instant) -> Result<()> {
        match self.line(deadline, "sign of being ready")?.as_str() {
            "ready" => Ok(()),
            other => bail!("{} said: {other}", self.name),
        }
    }

    /// Returns the windows that the child has printed so far.
    pub(super) fn windows(&self) -> Result<Vec<Window>> {
        let window = |line: String| serde_json::from_str(&line).context("a window that is none");
        self.windows.try_iter().map(window).collect()
    }

    pub(super) fn tell(&mut self, word: &str) -> Result<()> {
        let stdin = self.child.stdin.as_mut().expect("it was piped");
        writeln!(stdin, "{word}").with_context(|| format!("tell {} to {word}", self.name))
    }

    pub(super) fn wait(&mut self) -> Result<()> {
        self.child.wait().map(drop).with_context(|| format!("wait for {}", self.name))
    }

    /// Kills the process without letting it clean up, and waits for its end.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("kill {}", self.name))?;
        self.wait()
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it has ended already unless the round failed
        let _ = self.child.wait();
    }
}

/// Splits a child's lines into answers and windows.
fn hear(out: ChildStdout) -> (mpsc::Receiver<String>, mpsc::Receiver<String>) {
    let (line_sender, lines) = mpsc::channel();
    let (window_sender, windows) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let sent = match line.strip_prefix(PREFIX) {
                Some(window) => window_sender.send(window.to_owned()),
                None => line_sender.send(line),
            };
            if sent.is_err() {
                break;
            }
        }
    });
    (lines, windows)
}

/// The daemon of one round, which has the round's channel.
#[derive(Debug)]
pub(super) struct Daemon(Child);

impl Daemon {
    /// Starts the daemon if the round needs one, and waits until it answers.
    pub(super) fn of(spec: &Spec) -> Result<Option<Self>> {
        let Some(program) = &spec.daemon else { return Ok(None) };
        let config = spec.dir.join("daemon.toml");
        let text = format!(
            "[limits]\nrequests_per_second = 100000\nrequest_burst = 100000\n[[channel]]\nname = \"{CHANNEL}\"\n\
             capacity = \"{}B\"\nmlock = false\nhugepages = false\n",
            spec.ring_bytes
        );
        std::fs::write(&config, text).context("write the daemon's configuration")?;
        let child = Command::new(program)
            .arg("--config")
            .arg(&config)
            .arg("--socket")
            .arg(spec.socket())
            .env("RUST_LOG", "warn")
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let daemon = Self(child);
        let deadline = Instant::now() + Duration::from_secs(20);
        while shmcast::Client::at(spec.socket()).is_err() {
            anyhow::ensure!(Instant::now() < deadline, "{} does not answer", program.display());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Some(daemon))
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill(); // its channel's memory lives in it and in the round's processes only
        let _ = self.0.wait();
    }
}
