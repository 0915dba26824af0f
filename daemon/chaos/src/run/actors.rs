//! The runner's view of an actor: its process, the orders to it, and its answers.

use super::programs::Programs;
use crate::actor::{Answer, Order, Told};
use anyhow::{Context, Result};
use command_fds::{CommandFdExt, FdMapping};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The descriptor by which an actor gets the pipe for its log.
const LOG: i32 = 9;

/// A running actor. Dropping this value kills the process, even if it is stopped.
#[derive(Debug)]
pub(super) struct Actor {
    pub(super) name: String,
    child: Child,
    /// The pipe for orders. `None` after the actor was told to end.
    orders: Option<ChildStdin>,
    answers: Receiver<Answer>,
    said: PathBuf,
    next_id: u64,
    /// The orders that have no answer yet, oldest first.
    pub(super) open: Vec<(u64, Order)>,
    pub(super) is_stopped: bool,
    /// Whether a signal that ends the actor was sent.
    pub(super) is_doomed: bool,
    /// The channel that the actor was last told to open.
    pub(super) channel: Option<usize>,
    /// Whether the actor has the channel open, as far as its answers show.
    pub(super) holds: bool,
}

impl Actor {
    pub(super) fn start(programs: &Programs, logs: &Path, name: String) -> Result<Self> {
        let said = logs.join(format!("{name}.stderr"));
        let mut command = programs.command(&programs.chaos);
        let log = logs.join(format!("{name}.actor"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        programs.words_to(&mut command, &said)?;
        match &programs.pipes {
            None => command.arg("actor").arg(log),
            Some(pipes) => {
                let (writer, _) = pipes.to(&log)?;
                let mapping = FdMapping { parent_fd: writer.into(), child_fd: LOG };
                command.fd_mappings(vec![mapping]).context("pass a pipe")?;
                command.arg("actor").arg(format!("/proc/self/fd/{LOG}"))
            }
        };
        let mut child = command.spawn().with_context(|| format!("start {}", programs.chaos.display()))?;
        let orders = Some(child.stdin.take().context("a pipe")?);
        let out = BufReader::new(child.stdout.take().context("a pipe")?);
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let Ok(answer) = serde_json::from_str(&line) else { continue };
                if sender.send(answer).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            name,
            child,
            orders,
            answers,
            said,
            next_id: 0,
            open: Vec::new(),
            is_stopped: false,
            is_doomed: false,
            channel: None,
            holds: false,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the actor can carry out another order immediately. It can if it has no order, or only a read, which ends when another order
    /// arrives.
    pub(super) fn is_free(&mut self) -> bool {
        self.collect(Duration::ZERO);
        self.open.iter().all(|(_, order)| is_endless_read(order))
    }

    /// Whether no order of the actor has a time limit. The result is also true if the actor has no orders.
    pub(super) fn is_patient(&self) -> bool {
        self.open.iter().all(|(_, order)| is_endless_read(order) || matches!(order, Order::Block { .. }))
    }

    /// Gives an order. If the actor has died, the order is lost.
    pub(super) fn order(&mut self, order: Order) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let mut line =
            serde_json::to_vec(&Told { id, order: order.clone() }).expect("an order is plain data");
        line.push(b'\n');
        if self.orders.as_mut().is_some_and(|orders| orders.write_all(&line).is_ok()) {
            self.open.push((id, order));
        }
        id
    }

    /// Waits for the answer to order `id`. Returns `None` if the answer does not arrive in time, or if the actor has
    /// died.
    pub(super) fn answer(&mut self, id: u64, patience: Duration) -> Option<Value> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left) {
                Ok(answer) => {
                    if let Some(at) = self.open.iter().position(|(open, _)| *open == answer.id) {
                        let (_, order) = self.open.remove(at);
                        self.holds = holds_after(&order, &answer.value).unwrap_or(self.holds);
                    }
                    if answer.id == id {
                        return Some(answer.value);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => {
                    self.open.clear();
                    return None;
                }
            }
        }
    }

    /// Takes in the answers that have arrived.
    pub(super) fn collect(&mut self, patience: Duration) {
        let _ = self.answer(u64::MAX, patience);
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        match signal {
            Signal::SIGSTOP => self.is_stopped = true,
            Signal::SIGCONT => self.is_stopped = false,
            Signal::SIGKILL => self.is_doomed = true,
            _ => {}
        }
        let _ = kill(Pid::from_raw(self.pid() as i32), signal);
    }

    /// Returns the exit status if the actor has ended.
    pub(super) fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Closes the actor's stdin and waits for the actor's end. An actor ends by itself when its stdin is closed.
    pub(super) fn end(mut self, patience: Duration) -> (Option<std::process::ExitStatus>, String) {
        self.orders = None;
        let until = Instant::now() + patience;
        let status = loop {
            match self.child.try_wait().ok().flatten() {
                Some(status) => break Some(status),
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
                None => {
                    self.kill();
                    break None;
                }
            }
        };
        (status, self.said())
    }

    /// Returns the actor's output on stderr.
    pub(super) fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Kills the actor if it still runs.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns whether the actor has a channel open after this answer. `None` if the answer does not change this.
fn holds_after(order: &Order, answer: &Value) -> Option<bool> {
    match order {
        Order::Open(_) => Some(answer.is_object()),
        Order::Subscribe(_) => Some(*answer == Value::Bool(true)),
        Order::Close {} => Some(false),
        _ => (answer["live"] == Value::Bool(false)).then_some(false),
    }
}

fn is_endless_read(order: &Order) -> bool {
    matches!(order, Order::Read { ms: 0, .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use std::process::Command;

    #[test]
    fn an_actor_that_stands_still_is_ended_when_it_is_dropped() {
        let spawned = Command::new("cat").stdin(Stdio::piped()).spawn();
        let mut child = spawned.expect("every system has `cat`");
        let mut actor = Actor {
            name: "still".into(),
            orders: child.stdin.take(),
            child,
            answers: channel().1,
            said: PathBuf::new(),
            next_id: 0,
            open: Vec::new(),
            is_stopped: false,
            is_doomed: false,
            channel: None,
            holds: false,
        };
        let pid = Pid::from_raw(actor.pid() as i32);
        actor.signal(Signal::SIGSTOP);
        assert_eq!(kill(pid, None), Ok(()));
        drop(actor);
        assert_eq!(kill(pid, None), Err(Errno::ESRCH));
    }
}
