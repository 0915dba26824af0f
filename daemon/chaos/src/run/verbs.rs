//! Commands that run under a limit from their start.

use super::errands::SPARE;
use super::{Known, World};
use crate::log::Deed;
use crate::story::{Bound, Verb};
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A command that needs longer than this time is interrupted.
const LONG: Duration = Duration::from_millis(1500);
/// The time limit of a command.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the option of `prlimit` for a limit.
fn option(bound: Bound, most: u32) -> String {
    match bound {
        Bound::FileSize => format!("--fsize={}:", u64::from(most) << 10),
        Bound::Locked => format!("--memlock={}:", u64::from(most) << 10),
        Bound::Descriptors => format!("--nofile={most}:"),
        Bound::Threads => format!("--nproc={most}:"),
        Bound::Address => format!("--as={}:", u64::from(most) << 20),
    }
}

impl World<'_> {
    /// Runs a command under a limit. The command must do its work, or name what it lacks.
    pub(super) fn call_a_verb(&mut self, verb: Verb, channel: u8, bound: Bound, most: u32) -> Result<bool> {
        let Known { host, channel, .. } = self.channel(channel);
        let name = channel.name;
        let streams = super::journals::streams_of(&self.dir, &name);
        let journal = streams.first().map(|dir| dir.display().to_string()).unwrap_or_default();
        let input = self.dir.join("precious/id_ed25519").display().to_string();
        let arguments: Vec<&str> = match verb {
            Verb::Ls => vec!["ls", "--json"],
            Verb::Stat => vec!["stat", &name, "--json"],
            Verb::Sub => vec!["sub", &name, "--from", "oldest", "--count", "1"],
            Verb::Pub if self.daemons.is_empty() => {
                vec!["pub", SPARE, "--capacity", "2MiB", "--input", &input]
            }
            Verb::JournalStat if !journal.is_empty() => vec!["journal", "stat", &journal, "--json"],
            Verb::JournalVerify if !journal.is_empty() => vec!["journal", "verify", &journal, "--json"],
            _ => return Ok(false),
        };
        let deed = self.run_under(host, &arguments, &option(bound, most))?;
        let is_done = matches!(deed, Deed::Limited { code: Some(0), .. });
        self.note(deed)?;
        let made = self.channels_dir().join(SPARE);
        if verb == Verb::Pub && is_done {
            self.run_tool(0, &["rm", SPARE])?;
        } else if verb == Verb::Pub && made.exists() {
            self.note(Deed::Left { what: format!("{} of a command that failed", made.display()) })?;
        }
        Ok(true)
    }

    fn run_under(&mut self, host: usize, arguments: &[&str], limit: &str) -> Result<Deed> {
        let mut command = self.command_of_a_host(&PathBuf::from("prlimit"));
        command.arg(limit).arg(&self.programs.shmcast).args(arguments);
        match self.daemons.get(host) {
            Some(daemon) => command.env("SHMCAST_SOCKET", daemon.socket()),
            None => command.env("SHMCAST_DIR", self.channels_dir()),
        };
        let number = self.actors;
        self.actors += 1;
        let [out, err] = ["out", "err"].map(|kind| self.logs.join(format!("verb{number}.{kind}")));
        let pipes = self.programs.pipes.clone().context("a story of limits has pipes")?;
        let ((out_pipe, out_copied), (err_pipe, err_copied)) = (pipes.to(&out)?, pipes.to(&err)?);
        command.stdin(Stdio::null()).stdout(out_pipe).stderr(err_pipe);
        let started = Instant::now();
        let mut child = command.spawn().context("start a command")?;
        // `command` has copies of the pipes' ends. Without this call, the pipes would stay open
        // after the child's end.
        drop(command);
        let mut was_interrupted = false;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if started.elapsed() > LONG && !was_interrupted {
                was_interrupted = true;
                let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGINT);
            }
            if started.elapsed() > PATIENCE {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        out_copied.settle();
        err_copied.settle();
        let text = |path| std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(Deed::Limited {
            verb: arguments.join(" "),
            limit: limit.to_owned(),
            code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            was_interrupted,
            out: text(out)?,
            err: text(err)?,
        })
    }
}
