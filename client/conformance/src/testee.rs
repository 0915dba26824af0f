//! A testee: a process that is asked and answers, one line each.

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// How long an answer may take. A testee that needs more hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The first line of a testee.
#[derive(Debug, Clone, Deserialize)]
pub struct Hello {
    /// Its language.
    pub testee: String,
    /// The version of its client.
    pub version: String,
    /// The levels that it can play.
    pub levels: Vec<u8>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, untagged)]
pub enum Answer {
    /// Done.
    Done {
        /// Always true.
        ok: bool,
    },
    /// Not done.
    Refused {
        /// The reason in a word or two.
        refused: String,
    },
    /// The events that were received.
    Events {
        /// In their order.
        events: Vec<String>,
    },
}

/// The running process.
#[derive(Debug)]
pub struct Testee {
    child: Child,
    asked: ChildStdin,
    said: Receiver<String>,
    /// Its first line.
    pub hello: Hello,
}

impl Testee {
    /// Starts it.
    ///
    /// # Errors
    /// If it cannot be started, or says something else than its name.
    pub fn start(command: &[OsString]) -> Result<Self> {
        let (program, arguments) = command.split_first().context("no testee: name its command")?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the testee {}", program.display()))?;
        let asked = child.stdin.take().context("no stdin")?;
        let lines = BufReader::new(child.stdout.take().context("no stdout")?).lines();
        let (say, said) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| say.send(line)));
        let hello = serde_json::from_str(&next(&said)?).context("the testee's first line is not its name")?;
        Ok(Self { child, asked, said, hello })
    }

    /// Asks, and gives the answer.
    ///
    /// # Errors
    /// If it ended, takes too long, or its answer is none.
    pub fn ask(&mut self, request: &str) -> Result<Answer> {
        let lost = |e| anyhow!("the testee has ended: {e}");
        writeln!(self.asked, "{request}").map_err(lost)?;
        self.asked.flush().map_err(lost)?;
        let line = next(&self.said)?;
        serde_json::from_str(&line).with_context(|| format!("to {request} it answered {line}"))
    }
}

fn next(said: &Receiver<String>) -> Result<String> {
    match said.recv_timeout(PATIENCE) {
        Ok(line) => Ok(line),
        Err(RecvTimeoutError::Timeout) => bail!("the testee did not answer within {} s", PATIENCE.as_secs()),
        Err(RecvTimeoutError::Disconnected) => bail!("the testee has ended"),
    }
}

impl Drop for Testee {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
