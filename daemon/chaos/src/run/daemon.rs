//! A daemon of a story: its configuration, its process, and the state that outlives the process.

use super::journals;
use super::manager::Manager;
use super::pipes::Piped;
use super::programs::Programs;
use super::wire::free_port;
use crate::keys::Keys;
use crate::story::{Board, Channel, Shape, gate_name};
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The time after a new daemon's start during which programs of the previous daemon can attach.
const RETURN: Duration = Duration::from_secs(5);

/// A daemon is allowed this many more open descriptors than at the first count, because its pools might not have been filled then.
const SPARE: usize = 2;
/// A recorder is allowed this many more open files than at the first count, because it opens files to prepare or seal them.
const SPARE_FILES: usize = 4;

/// A channel as the configuration describes it.
#[derive(Debug, Clone)]
pub(super) struct Configured {
    pub(super) channel: Channel,
    pub(super) is_there: bool,
    /// Whether the configured size of the ring differs from the existing ring's size.
    pub(super) is_other: bool,
    /// Whether the configuration has a journal for the channel.
    pub(super) records: bool,
}

/// The daemon, running or not.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) name: &'static str,
    dir: PathBuf,
    logs: PathBuf,
    child: Option<Child>,
    manager: Option<Manager>,
    /// The pipe through which the process writes its log, in a story of limits.
    piped: Option<Piped>,
    port: u16,
    /// More tables of the daemon's configuration.
    tables: String,
    /// Two limits for the requests of a user: the number per second, and the number in one burst.
    pub(super) limits: [u32; 2],
    /// The command and arguments through which the daemon's program is started; empty for a direct start.
    pub(super) through: Vec<String>,
    pub(super) channels: Vec<Configured>,
    pub(super) is_stopped: bool,
    /// The start time of the present process, plus the time for which the process was stopped.
    since: Instant,
    /// The time for which the process had run when it was stopped.
    ran: Duration,
    /// Two counts just after the daemon's start, when nobody was attached: the daemon's open descriptors, and the descriptors that the
    /// service manager kept for it.
    at_first: Option<(usize, usize)>,
}

impl Daemon {
    /// Makes a daemon, but does not start it. `tables` is the part of its configuration that describes bridges, and channels that differ
    /// from the channels of the story.
    pub(super) fn new(
        name: &'static str,
        dir: &Path,
        logs: &Path,
        channels: &[Channel],
        keeps: bool,
        tables: String,
    ) -> Result<Self> {
        let manager = if keeps { Some(Manager::start(&dir.join(format!("{name}.notify")))?) } else { None };
        let port = free_port()?;
        let channels = channels
            .iter()
            .map(|c| {
                let records = c.journal.is_some();
                Configured { channel: c.clone(), is_there: true, is_other: false, records }
            })
            .collect();
        Ok(Self {
            name,
            tables,
            limits: [1_000_000; 2],
            through: Vec::new(),
            dir: dir.to_owned(),
            logs: logs.to_owned(),
            child: None,
            manager,
            piped: None,
            port,
            channels,
            is_stopped: false,
            since: Instant::now(),
            ran: Duration::ZERO,
            at_first: None,
        })
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.join(format!("{}.sock", self.name))
    }

    fn config(&self) -> PathBuf {
        self.dir.join(format!("{}.toml", self.name))
    }

    pub(super) fn keeps(&self) -> bool {
        self.manager.is_some()
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Writes the configuration.
    pub(super) fn configure(&self, is_broken: bool) -> Result<()> {
        let mut text = format!("[daemon]\nhttp = \"127.0.0.1:{}\"\n", self.port);
        let [rate, burst] = self.limits;
        writeln!(text, "[limits]\nrequests_per_second = {rate}\nrequest_burst = {burst}")?;
        for Configured { channel, is_there, records, .. } in &self.channels {
            if *is_there {
                let Channel { name, capacity, largest, strict, .. } = channel;
                let mode = if *strict { "strict" } else { "takeover" };
                writeln!(
                    text,
                    "[[channel]]\nname = \"{name}\"\ncapacity = \"{}KiB\"\nmax_message = \"{largest}B\"\nmode = \"{mode}\"\n\
                     publishers = [\"*\"]\nsubscribers = [\"*\"]\nmlock = false\nhugepages = false",
                    capacity >> 10
                )?;
                if *records {
                    text.push_str(&journals::line(&self.dir, channel));
                }
                text.push_str(&shape_of(channel));
            }
        }
        // The configuration must not name a bridge whose channel is left out.
        if self.channels.iter().all(|c| c.is_there) {
            text.push_str(&self.tables);
        }
        if is_broken {
            text.push_str("[[channel]]\nname = \"c\"\ncapacity = \"3 apples\"\n");
        }
        // The whole file is replaced, because a daemon might be reading it for the previous reload.
        let part = self.config().with_extension("part");
        fs::write(&part, text)
            .and_then(|()| fs::rename(&part, self.config()))
            .context("write the configuration")
    }

    /// Starts a process, if none is running.
    pub(super) fn start(&mut self, programs: &Programs) -> Result<()> {
        let log = self.logs.join(format!("{}.stderr", self.name));
        // `LISTEN_PID` must be the daemon's process id, which only the new process knows.
        let mut command = programs.command(Path::new("/bin/sh"));
        command.args(["-c", "LISTEN_PID=$$ exec \"$@\"", "sh"]).args(&self.through).arg(&programs.shmcastd);
        command.arg("--config").arg(self.config()).arg("--socket").arg(self.socket());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.piped = programs.words_to(&mut command, &log)?;
        if let Some(manager) = &self.manager {
            manager.pass_to(&mut command)?;
        }
        self.child = Some(spawn(&mut command)?);
        self.since = Instant::now();
        self.is_stopped = false;
        Ok(())
    }

    /// Whether the daemon answers within `patience`.
    pub(super) fn answers(&mut self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if shmcast::Client::at(self.socket()).is_ok() {
                return true;
            }
            if self.ended().is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(3));
        }
        false
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        if let Some(pid) = self.pid() {
            match signal {
                Signal::SIGSTOP if !self.is_stopped => {
                    (self.is_stopped, self.ran) = (true, self.since.elapsed())
                }
                Signal::SIGCONT if self.is_stopped => {
                    (self.is_stopped, self.since) = (false, Instant::now() - self.ran);
                }
                _ => {}
            }
            let _ = kill(Pid::from_raw(pid as i32), signal);
        }
    }

    /// Whether programs that were attached to the previous daemon can still attach to this daemon.
    pub(super) fn is_young(&self) -> bool {
        let ran = if self.is_stopped { self.ran } else { self.since.elapsed() };
        ran < RETURN
    }

    /// Returns the daemon's exit status if its process has ended. Later calls return `None`.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok().flatten()?;
        self.child = None;
        Some(status)
    }

    /// Waits until the process has ended. Returns `None` if it does not end in time.
    pub(super) fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + patience;
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Notes the number of the daemon's descriptors just after its start, when nobody is attached.
    pub(super) fn note_descriptors(&mut self) {
        self.at_first = self.descriptors();
    }

    /// Waits until the daemon has no more open descriptors than after its start. If the daemon still has too many, returns a text about
    /// them.
    pub(super) fn left_descriptors(&self, patience: Duration) -> Option<String> {
        let (open, kept) = self.at_first?;
        let spare = SPARE + SPARE_FILES * self.channels.iter().filter(|c| c.records).count();
        let until = Instant::now() + patience;
        loop {
            let (open_now, kept_now) = self.descriptors()?;
            if open_now <= open + spare && kept_now <= kept {
                return None;
            }
            if Instant::now() > until {
                return Some(format!(
                    "the daemon has {open_now} descriptors open, and had {open} at first; {kept_now} are kept for it, and \
                     {kept} were"
                ));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns two counts: the daemon's open descriptors, and the descriptors that the manager keeps for it.
    fn descriptors(&self) -> Option<(usize, usize)> {
        let open = fs::read_dir(format!("/proc/{}/fd", self.pid()?)).ok()?.count();
        Some((open, self.manager.as_ref().map_or(Some(0), Manager::count)?))
    }

    /// Returns the daemon's output.
    pub(super) fn said(&self) -> String {
        if let (None, Some(piped)) = (&self.child, &self.piped) {
            piped.settle();
        }
        fs::read_to_string(self.logs.join(format!("{}.stderr", self.name))).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(command: &mut Command) -> Result<Child> {
    command.spawn().context("start the daemon")
}

/// Returns the lines of a channel's table, and the tables of its gates, in a daemon's configuration.
fn shape_of(channel: &Channel) -> String {
    let (Some(Shape { board, gates }), Some(keys)) = (&channel.shape, Keys::of(&channel.name)) else {
        return String::new();
    };
    let mut text = String::new();
    if let Some(Board { keys: room, value }) = board {
        let Keys { start, end, .. } = keys;
        text = format!("board = {{ key = \"{start}..{end}\", keys = {room}, value = \"{value}B\" }}\n");
    }
    for (number, gate) in gates.iter().enumerate() {
        let lag = gate.lag_bytes(channel.capacity, channel.largest);
        let (name, wait, then) =
            (gate_name(number), gate.wait_us, if gate.refuse { "refuse" } else { "drop" });
        let _ = write!(
            text,
            "[[channel.gate]]\nname = \"{name}\"\nusers = [\"*\"]\nlag = \"{lag}B\"\nwait = \"{wait}us\"\nthen = \"{then}\"\n"
        );
    }
    text
}
