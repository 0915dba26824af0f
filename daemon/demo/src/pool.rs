//! The reader processes of one transport, as the demo controls them.

use crate::multicast::Group;
use crate::plan::Plan;
use crate::stop::Stop;
use crate::talk::{DONE, GO, LOST, READY, REPORT, STARTED};
use anyhow::{Context, Result, bail};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::path::PathBuf;
use std::process::{Child, Command};

/// The time between two checks for an interrupt or a dead reader, while the demo waits for answers.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The source of the readers' messages.
#[derive(Debug)]
pub(crate) enum Source {
    Channel { dir: PathBuf, spin: bool },
    Multicast(Group),
}

/// The messages that all readers of a transport received.
#[derive(Debug)]
pub(crate) struct Received {
    /// For each message number, the latency of the last reader in ticks; `None` if some reader lost the message.
    pub(crate) last: Vec<Option<u64>>,
    /// Messages received by all readers together.
    pub(crate) delivered: u64,
}

/// The reader processes. Dropping this value kills them, so that an error leaves none behind.
pub(crate) struct Pool {
    readers: Vec<Child>,
    orders: PipeWriter,
    answers: PipeReader,
}

impl Pool {
    /// Starts the readers and waits until each has opened its source.
    pub(crate) fn start(readers: u32, plan: &Plan, source: &Source, stop: &Stop) -> Result<Self> {
        let program = std::env::current_exe().context("find this program to start readers from")?;
        let (their_orders, orders) = pipe()?;
        let (answers, their_answers) = pipe()?;
        let mut pool = Self { readers: Vec::with_capacity(readers as usize), orders, answers };
        for _ in 0..readers {
            let mut command = Command::new(&program);
            command.arg("demo-reader").arg("--messages").arg(plan.messages.to_string());
            command.arg("--messages-a-turn").arg(plan.messages_a_turn.to_string());
            match source {
                Source::Channel { dir, spin } => {
                    command.arg("--dir").arg(dir).args(spin.then_some("--spin"));
                }
                Source::Multicast(group) => {
                    command.arg("--group").arg(group.0.to_string());
                }
            }
            command.stdin(their_orders.try_clone()?).stdout(their_answers.try_clone()?);
            pool.readers.push(command.spawn().context("start a reader")?);
        }
        // The demo closes its own copy of the answers' pipe. So the pipe ends when all readers have ended.
        drop(their_answers);
        pool.hear_all(READY, stop, || Ok(()))?;
        Ok(pool)
    }

    /// The processes.
    pub(crate) fn pids(&self) -> impl Iterator<Item = Pid> {
        self.readers.iter().map(|child| Pid::from_raw(child.id().cast_signed()))
    }

    /// Wakes all readers for a turn. Returns when each of them is about to look for the first message.
    pub(crate) fn begin_turn(&mut self, stop: &Stop) -> Result<()> {
        let orders = vec![GO; self.readers.len()];
        self.orders.write_all(&orders)?;
        self.hear_all(STARTED, stop, || Ok(()))
    }

    /// Waits until all readers have the messages of this turn and sleep again. Calls `remind` from time to time until
    /// then.
    pub(crate) fn end_turn(&mut self, stop: &Stop, remind: impl FnMut() -> Result<()>) -> Result<()> {
        self.hear_all(DONE, stop, remind)
    }

    /// Waits for the readers to end and returns what they received.
    pub(crate) fn collect(mut self, messages: u64, stop: &Stop) -> Result<Received> {
        let messages = messages as usize;
        let mut received = Received { last: vec![Some(0); messages], delivered: 0 };
        let mut bytes = vec![0; messages * 8];
        for _ in 0..self.readers.len() {
            self.orders.write_all(&[REPORT])?;
            self.hear(&mut bytes, stop, || Ok(()))?;
            let words = bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("of eight")));
            for (last, ticks) in received.last.iter_mut().zip(words) {
                let ticks = (ticks != LOST).then_some(ticks);
                received.delivered += u64::from(ticks.is_some());
                *last = last.zip(ticks).map(|(last, ticks)| last.max(ticks));
            }
        }
        for mut child in std::mem::take(&mut self.readers) {
            let status = child.wait()?;
            if !status.success() {
                bail!("a reader failed ({status}); its error is above");
            }
        }
        Ok(received)
    }

    /// Waits until each reader has sent this answer.
    fn hear_all(&mut self, answer: u8, stop: &Stop, idle: impl FnMut() -> Result<()>) -> Result<()> {
        let mut answers = vec![0; self.readers.len()];
        self.hear(&mut answers, stop, idle)?;
        match answers.iter().find(|&&given| given != answer) {
            None => Ok(()),
            Some(given) => bail!("a reader answered {given:?} in place of {answer:?}"),
        }
    }

    /// Waits until `answers` is full. Calls `idle` whenever no answer has arrived for some time.
    fn hear(&mut self, answers: &mut [u8], stop: &Stop, mut idle: impl FnMut() -> Result<()>) -> Result<()> {
        let mut heard = 0;
        while heard < answers.len() {
            let is_there = match poll(&mut [PollFd::new(&self.answers, PollFlags::IN)], Some(&LOOK)) {
                Ok(ready) => ready > 0,
                Err(rustix::io::Errno::INTR) => false,
                Err(e) => return Err(e.into()),
            };
            if stop.is_set() {
                return Err(stop
                    .interrupted("INTERRUPTED: nothing is shown of a demo that did not end")
                    .into());
            }
            if is_there {
                heard += match self.answers.read(&mut answers[heard..])? {
                    0 => bail!("the readers ended too early; their error is above"),
                    bytes => bytes,
                };
                continue;
            }
            if let Some(status) = self.dead_reader()? {
                bail!("a reader failed ({status}); its error is above");
            }
            idle()?;
        }
        Ok(())
    }

    /// The status of a reader that has ended with an error.
    fn dead_reader(&mut self) -> Result<Option<std::process::ExitStatus>> {
        for child in &mut self.readers {
            if let Some(status) = child.try_wait()?.filter(|status| !status.success()) {
                return Ok(Some(status));
            }
        }
        Ok(None)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for child in &mut self.readers {
            // This call fails for a process that has already ended, which is harmless.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
