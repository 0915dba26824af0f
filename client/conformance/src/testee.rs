//! A testee: a process that receives requests and answers them. Each request and each answer is one line.

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// The time limit of an answer. If a testee takes longer, it counts as hanging.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The first line that a testee writes.
#[derive(Debug, Clone, Deserialize)]
pub struct Hello {
    /// The testee's language.
    pub testee: String,
    /// The version of the testee's client.
    pub version: String,
    /// The levels that the testee can play.
    pub levels: Vec<u8>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, untagged)]
pub enum Answer {
    /// The request succeeded.
    Done {
        /// Always true.
        ok: bool,
    },
    /// The request failed.
    Refused {
        /// The reason, in one or two words.
        refused: String,
    },
    /// The events that were received.
    Events {
        /// The events in their order.
        events: Vec<String>,
    },
}

impl Answer {
    /// Makes the answer to a request that succeeded.
    pub const fn done() -> Self {
        Self::Done { ok: true }
    }

    /// Makes the answer to a request that failed for this reason.
    pub fn refused(why: impl Into<String>) -> Self {
        Self::Refused { refused: why.into() }
    }

    /// Returns the number in the event that begins with this name.
    ///
    /// # Errors
    /// If no event consists of this name and a number.
    pub fn number(&self, name: &str) -> Result<u64> {
        let events = if let Self::Events { events } = self { events.as_slice() } else { &[] };
        let found = events.iter().find_map(|event| event.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        found.with_context(|| format!("no number of {name} in {self:?}"))
    }
}

/// The running process.
#[derive(Debug)]
pub struct Testee {
    command: Vec<OsString>,
    child: Child,
    asked: ChildStdin,
    said: Receiver<String>,
    /// The first line that the testee wrote.
    pub hello: Hello,
}

impl Testee {
    /// Starts the testee.
    ///
    /// # Errors
    /// If the testee cannot be started, or if its first line is not valid.
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
        let hello = serde_json::from_str(&next(&said, PATIENCE)?)
            .context("the testee's first line is not its name")?;
        Ok(Self { command: command.to_vec(), child, asked, said, hello })
    }

    /// Kills the testee with SIGKILL, and starts it again.
    ///
    /// # Errors
    /// If the testee does not start.
    pub fn restart(&mut self) -> Result<()> {
        let command = self.command.clone();
        self.kill()?;
        *self = Self::start(&command)?;
        Ok(())
    }

    /// Kills the testee with SIGKILL.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request, and returns the answer.
    ///
    /// # Errors
    /// If the testee has ended, takes too long, or gives an answer that is not valid.
    pub fn ask(&mut self, request: &str) -> Result<Answer> {
        self.tell(request)?;
        self.hear(PATIENCE).with_context(|| format!("it was asked {request}"))
    }

    /// Sends a request, and does not wait for the answer.
    ///
    /// # Errors
    /// If the testee has ended.
    pub fn tell(&mut self, request: &str) -> Result<()> {
        let lost = |e| anyhow!("the testee has ended: {e}");
        writeln!(self.asked, "{request}").map_err(lost)?;
        self.asked.flush().map_err(lost)
    }

    /// Returns the answer to the last request.
    ///
    /// # Errors
    /// If the testee has ended, takes longer than `patience`, or gives an answer that is not valid.
    pub fn hear(&mut self, patience: Duration) -> Result<Answer> {
        parse(&next(&self.said, patience)?)
    }

    /// Returns the answer to the last request, or `None` if no answer arrives within this time.
    ///
    /// # Errors
    /// If the testee has ended, or gives an answer that is not valid.
    pub fn hear_within(&mut self, limit: Duration) -> Result<Option<Answer>> {
        match self.said.recv_timeout(limit) {
            Ok(line) => parse(&line).map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the testee has ended"),
        }
    }
}

fn parse(line: &str) -> Result<Answer> {
    serde_json::from_str(line).with_context(|| format!("it answered {line}"))
}

fn next(said: &Receiver<String>, patience: Duration) -> Result<String> {
    match said.recv_timeout(patience) {
        Ok(line) => Ok(line),
        Err(RecvTimeoutError::Timeout) => bail!("the testee did not answer within {} s", patience.as_secs()),
        Err(RecvTimeoutError::Disconnected) => bail!("the testee has ended"),
    }
}

impl Drop for Testee {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
