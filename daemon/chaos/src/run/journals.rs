//! The journals of a story. Daemons write some of them. The others are written by `shmcast record`, which the runner starts.

use super::{Known, PATIENCE, Piped, World, ended};
use crate::actor::Order;
use crate::log::Deed;
use crate::story::{Channel, Recorded, Step, Whom};
use crate::words::names_a_limit;
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The beginning of the names of recorders that the runner starts by `shmcast record`.
pub const RECORDER: &str = "recorder";
/// The setting for the size of a journal's files: the smallest possible size.
const FILE: &str = "1MiB";
/// The time within which a daemon must begin to record. A daemon tries again every few seconds after a failure.
const BEGIN: Duration = Duration::from_secs(15);

/// The runner's own recorder of one channel (`shmcast record`), running or not.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    child: Option<Child>,
    /// The number of the recorder's directory. After the channel restarts, the recorder gets another directory.
    dir: u32,
    is_doomed: bool,
    /// The pipe through which the recorder writes its output, in a story of limits.
    piped: Option<Piped>,
}

impl Recorder {
    fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok().flatten()?;
        self.child = None;
        Some(status)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the directory of all journals of a story.
pub(super) fn journals_dir(dir: &Path) -> PathBuf {
    dir.join("journals")
}

/// Returns the line of a daemon's configuration that makes the daemon record a channel. Returns an empty line if the daemon should not
/// record the channel.
pub(super) fn line(dir: &Path, channel: &Channel) -> String {
    let Some(Recorded { sync, roll_ms, keeps }) = &channel.journal else { return String::new() };
    let dir = journals_dir(dir).join(&channel.name);
    let roll = roll_ms.map_or_else(String::new, |ms| format!(", roll_after = \"{ms}ms\""));
    let keep = if *keeps { ", keep_bytes = \"2MiB\", keep_age = \"400ms\"" } else { "" };
    format!("journal = {{ dir = {dir:?}, sync = \"{sync}\", file = \"{FILE}\"{roll}{keep} }}\n")
}

/// Returns the folders of the streams in a journal's directory.
fn streams_in(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Returns the streams of a channel's journal that have a file.
pub(super) fn streams_of(dir: &Path, channel: &str) -> Vec<PathBuf> {
    streams_in(&journals_dir(dir).join(channel)).into_iter().filter(|stream| is_begun(stream)).collect()
}

/// Whether a stream has a file yet.
fn is_begun(stream: &Path) -> bool {
    let mut files = fs::read_dir(stream).into_iter().flatten().flatten();
    files.any(|entry| entry.path().extension().is_some_and(|it| it == "smj"))
}

/// Returns the recorder that a step concerns.
fn recorder_of(step: &Step) -> Option<u8> {
    match *step {
        Step::Start { whom: Whom::Recorder(at) }
        | Step::Restart { whom: Whom::Recorder(at) }
        | Step::Crash { whom: Whom::Recorder(at) }
        | Step::Kill { whom: Whom::Recorder(at), .. }
        | Step::Stop { whom: Whom::Recorder(at) }
        | Step::Continue { whom: Whom::Recorder(at) } => Some(at),
        _ => None,
    }
}

impl World<'_> {
    /// Carries out a step for a recorder that the runner starts itself by `shmcast record`. Returns `None` for any other step.
    pub(super) fn carry_out_by_hand(&mut self, step: &Step) -> Result<Option<bool>> {
        let Some(at) = recorder_of(step) else { return Ok(None) };
        let at = at % self.channels.len() as u8;
        let was_done = match step {
            Step::Start { .. } => self.start_recorder(at)?,
            Step::Restart { .. } => self.end_recorder(at, Signal::SIGTERM)? && self.start_recorder(at)?,
            Step::Crash { .. } => self.end_recorder(at, Signal::SIGKILL)? && self.start_recorder(at)?,
            Step::Kill { .. } => self.end_recorder(at, Signal::SIGKILL)?,
            Step::Stop { .. } => self.signal_recorder(at, Signal::SIGSTOP)?,
            _ => self.signal_recorder(at, Signal::SIGCONT)?,
        };
        Ok(Some(was_done))
    }

    fn start_recorder(&mut self, at: u8) -> Result<bool> {
        let Known { host, channel, .. } = self.channel(at);
        let Some(socket) = self.daemons.get(host).map(|daemon| daemon.socket()) else { return Ok(false) };
        let said = self.said_by(at);
        let mut command = self.command_of_a_host(&self.programs.shmcast);
        let recorder = self.recorders.entry(at).or_default();
        if recorder.child.is_some() {
            return Ok(false);
        }
        let dir = journals_dir(&self.dir).join(format!("{}-by-hand-{}", channel.name, recorder.dir));
        command.args(["record", &channel.name, "--set", &format!("file={FILE}"), "--to"]).arg(dir);
        command.env("SHMCAST_SOCKET", socket);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        recorder.piped = self.programs.words_to(&mut command, &said)?;
        let child = command.spawn().context("start a recorder")?;
        let pid = child.id();
        (recorder.child, recorder.is_doomed) = (Some(child), false);
        self.note(Deed::Started { who: format!("{RECORDER}{at}"), pid })?;
        Ok(true)
    }

    pub(super) fn pid_of_recorder(&self, at: u8) -> Option<u32> {
        let at = at % self.channels.len() as u8;
        self.recorders.get(&at)?.child.as_ref().map(Child::id)
    }

    fn said_by(&self, at: u8) -> PathBuf {
        self.logs.join(format!("{RECORDER}{at}.stderr"))
    }

    fn signal_recorder(&mut self, at: u8, signal: Signal) -> Result<bool> {
        let child = self.recorders.get(&at).and_then(|recorder| recorder.child.as_ref());
        let Some(pid) = child.map(Child::id) else { return Ok(false) };
        let _ = kill(Pid::from_raw(pid as i32), signal);
        let signal = signal.as_str().trim_start_matches("SIG").to_owned();
        self.note(Deed::Signalled { who: format!("{RECORDER}{at}"), signal })?;
        Ok(true)
    }

    fn end_recorder(&mut self, at: u8, by: Signal) -> Result<bool> {
        if !self.signal_recorder(at, by)? {
            return Ok(false);
        }
        self.signal_recorder(at, Signal::SIGCONT)?;
        let Some(recorder) = self.recorders.get_mut(&at) else { return Ok(false) };
        recorder.is_doomed = by == Signal::SIGKILL;
        let until = Instant::now() + PATIENCE;
        loop {
            self.reap_recorders()?;
            let is_there = self.recorders.get(&at).is_some_and(|recorder| recorder.child.is_some());
            if !is_there {
                return Ok(true);
            }
            if Instant::now() > until {
                let (who, order) = (format!("{RECORDER}{at}"), "to end".to_owned());
                self.note(Deed::NoAnswer { who, order })?;
                self.recorders.remove(&at);
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Logs the recorders that have ended.
    pub(super) fn reap_recorders(&mut self) -> Result<()> {
        let over: Vec<(u8, ExitStatus, bool)> = self
            .recorders
            .iter_mut()
            .filter_map(|(at, recorder)| Some((*at, recorder.ended()?, recorder.is_doomed)))
            .collect();
        for (at, status, is_doomed) in over {
            if let Some(piped) = self.recorders.get(&at).and_then(|recorder| recorder.piped.as_ref()) {
                piped.settle();
            }
            let said = fs::read_to_string(self.said_by(at)).unwrap_or_default();
            // A recorder that a limit ended continues its journal. Any other recorder that failed gets a new directory.
            let is_over = self.limited.is_none() || !said.lines().last().is_some_and(names_a_limit);
            if status.code() == Some(1)
                && is_over
                && let Some(recorder) = self.recorders.get_mut(&at)
            {
                recorder.dir += 1;
            }
            self.note(ended(format!("{RECORDER}{at}"), Some(status), is_doomed, said))?;
        }
        Ok(())
    }

    /// Lets all stopped recorders continue. Waits until the daemons record all channels that they should record.
    pub(super) fn heal_recorders(&mut self) -> Result<()> {
        let by_hand: Vec<u8> = self.recorders.keys().copied().collect();
        for at in by_hand {
            self.signal_recorder(at, Signal::SIGCONT)?;
        }
        self.wait_for_recorders()
    }

    /// Waits until the daemons record all channels that they should record.
    pub(super) fn wait_for_recorders(&mut self) -> Result<()> {
        let until = Instant::now() + BEGIN;
        let mut missing = Vec::new();
        for daemon in &self.daemons {
            for configured in daemon.channels.iter().filter(|c| c.is_there && c.records) {
                let name = &configured.channel.name;
                let state = || {
                    let status = shmcast::Client::at(daemon.socket()).and_then(|client| client.channel(name));
                    Some(status.ok()?.journal?.state)
                };
                let mut now = state();
                while now.as_deref() != Some("recording") && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(10));
                    now = state();
                }
                if now.as_deref() != Some("recording") {
                    let order = format!("to record {name}: {now:?}");
                    missing.push(Deed::NoAnswer { who: daemon.name.to_owned(), order });
                }
            }
        }
        missing.into_iter().try_for_each(|deed| self.note(deed))
    }

    /// Waits until the runner's own recorders are attached again, if they run. A recorder tries again some time after a refusal.
    pub(super) fn wait_for_recorders_by_hand(&mut self) -> Result<()> {
        let until = Instant::now() + BEGIN;
        let by_hand: Vec<u8> = self.recorders.keys().copied().collect();
        for at in by_hand {
            let Known { host, channel, .. } = self.channel(at);
            let Some(socket) = self.daemons.get(host).map(|daemon| daemon.socket()) else { continue };
            let is_attached = |pid: u32| {
                let status = shmcast::Client::at(&socket).and_then(|client| client.channel(&channel.name));
                let readers = status.map(|status| status.readers).unwrap_or_default();
                readers.iter().any(|reader| reader.process.pid == Some(pid))
            };
            while let Some(pid) = self.pid_of_recorder(at)
                && !is_attached(pid)
            {
                if Instant::now() > until {
                    let (who, order) = (format!("{RECORDER}{at}"), "to come back to the daemon".to_owned());
                    self.note(Deed::NoAnswer { who, order })?;
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
                self.reap_recorders()?;
            }
        }
        Ok(())
    }

    /// Verifies the daemon's journal of a channel. The daemon can be writing the journal at the same time.
    pub(super) fn verify(&mut self, name: &str) -> Result<bool> {
        let dir = journals_dir(&self.dir).join(name);
        self.verify_in(&dir)
    }

    /// Verifies the journals of all streams in a directory. Returns false if no stream has a file yet.
    fn verify_in(&mut self, dir: &Path) -> Result<bool> {
        let begun: Vec<PathBuf> = streams_in(dir).into_iter().filter(|stream| is_begun(stream)).collect();
        for stream in &begun {
            self.run_tool(0, &["journal", "verify", &stream.display().to_string(), "--json"])?;
        }
        Ok(!begun.is_empty())
    }

    /// Ends the recorders by a signal, and waits for their end.
    pub(super) fn end_recorders(&mut self) -> Result<()> {
        let by_hand: Vec<u8> = self.recorders.keys().copied().collect();
        for at in by_hand {
            self.end_recorder(at, Signal::SIGTERM)?;
        }
        Ok(())
    }

    /// Verifies all journals and reads them completely. All recorders must have ended before this call.
    pub(super) fn read_journals(&mut self) -> Result<()> {
        if let Some(limited) = &self.limited {
            limited.publish();
        }
        let entries = fs::read_dir(journals_dir(&self.dir)).into_iter().flatten().flatten();
        let mut dirs: Vec<PathBuf> = entries.flat_map(|entry| streams_in(&entry.path())).collect();
        dirs.sort();
        if dirs.is_empty() {
            return Ok(());
        }
        let mut actor = self.start_actor('j')?;
        for dir in dirs {
            if is_begun(&dir) {
                self.run_tool(0, &["journal", "verify", &dir.display().to_string(), "--json"])?;
                self.ask(&mut actor, Order::ReadJournal { dir })?;
            }
        }
        self.dismiss(actor)
    }
}
