//! The daemon `shmcastd` as a child process of a test, with its directory, configuration and log.

use crate::clock::WallClock;
use crate::place::{program, scratch};
use crate::process::Process;
use crate::unit;
use crate::wait::{wait_for, wait_until};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use shmcast::{Client, Preparation, Publisher, PublisherBuilder};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the section of a configuration for a channel. `more` has additional lines.
pub fn channel(name: &str, more: &str) -> String {
    format!(
        "[[channel]]\nname = \"{name}\"\ncapacity = \"16MiB\"\nmlock = false\nhugepages = false\n{more}\n"
    )
}

pub const FOR_ALL: &str = "publishers = [\"*\"]\nsubscribers = [\"*\"]";

/// `shmcastd` as a process.
pub struct Daemon {
    dir: tempfile::TempDir,
    /// The unit that restricts the daemon, if there is one.
    unit: Option<PathBuf>,
    process: Process,
}

impl Daemon {
    pub fn start(config: &str) -> Self {
        let daemon = Self::spawn(scratch(), config);
        daemon.client();
        daemon
    }

    /// Starts a daemon under the restrictions of `unit`.
    pub fn start_under(unit: PathBuf, config: &str) -> Self {
        let daemon = Self::spawn_under(Some(unit), scratch(), config);
        daemon.client();
        daemon
    }

    /// Starts a daemon without waiting until it answers.
    pub fn spawn(dir: tempfile::TempDir, config: &str) -> Self {
        Self::spawn_under(unit::asked(), dir, config)
    }

    fn spawn_under(unit: Option<PathBuf>, dir: tempfile::TempDir, config: &str) -> Self {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.path().join("shmcast.toml"), config).unwrap();
        let process = spawn(unit.as_deref(), dir.path(), None);
        Self { dir, unit, process }
    }

    /// Waits until the daemon ends by itself, and returns its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        self.process.wait().code()
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn socket(&self) -> PathBuf {
        runtime(self.dir.path()).join("control.sock")
    }

    /// The marker file, which exists while the daemon runs. If the daemon does not stop in an orderly way, the file stays.
    pub fn marker(&self) -> PathBuf {
        self.socket().with_extension("running")
    }

    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Returns a client of the daemon. Waits until the daemon answers.
    pub fn client(&self) -> Client {
        wait_for("the daemon's answer", || Client::at(self.socket()).ok())
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Waits for a line of the log with all of `words`.
    pub fn wait_for_log(&self, words: &[&str]) {
        let is_it = |line: &str| words.iter().all(|word| line.contains(word));
        wait_for(&format!("{words:?} in the log"), || self.log().lines().any(is_it).then_some(()));
    }

    pub fn configure(&self, config: &str) {
        fs::write(self.dir.path().join("shmcast.toml"), config).unwrap();
    }

    /// Returns how often the log has this event.
    pub fn told(&self, event: &str) -> usize {
        count_event(&self.log(), event)
    }

    /// Reloads this configuration, and waits until the log reports the reload.
    pub fn reload(&self, config: &str) {
        self.reload_until(config, "reloaded");
    }

    /// Reloads this configuration, and waits until the log has `event` once more.
    pub fn reload_until(&self, config: &str, event: &str) {
        let before = self.told(event);
        self.configure(config);
        self.signal(Signal::SIGHUP);
        wait_until(event, || self.told(event) > before);
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Stops the daemon, and waits until all its threads have stopped.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Continues the daemon after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Returns the command `shmcast`, set to use this daemon.
    pub fn shmcast(&self, arguments: &str) -> Command {
        let mut command = Command::new(program("shmcast"));
        command.args(arguments.split_whitespace()).env("SHMCAST_SOCKET", self.socket());
        command.env_remove("SHMCAST_DIR");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn kill(&mut self) {
        self.end(Signal::SIGKILL);
    }

    /// Sends a signal that ends the daemon, and waits for its end.
    pub fn end(&mut self, by: Signal) {
        self.process.end_by(by);
    }

    /// Starts another daemon in the same directory, and waits until it answers. The previous daemon must have ended.
    pub fn restart(&mut self) {
        self.process = spawn(self.unit.as_deref(), self.dir.path(), None);
        self.client();
    }

    /// Does the same as [`restart`](Self::restart), but the new daemon reads `clock` instead of the system's wall clock.
    pub fn restart_with(&mut self, clock: &WallClock) {
        self.process = spawn(self.unit.as_deref(), self.dir.path(), Some(clock));
        self.client();
    }

    /// Kills the daemon, immediately starts another daemon in the same directory, and waits until it answers.
    pub fn crash(&mut self) {
        self.kill();
        self.restart();
    }

    /// Whether the daemon still runs.
    pub fn is_alive(&mut self) -> bool {
        self.process.is_alive()
    }

    pub fn open_descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap().count()
    }

    /// Returns the daemon's anonymous memory in KiB.
    pub fn anonymous_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("the end of the daemon's log:\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        }
    }
}

/// Returns the directory in which a daemon creates its socket. `dir` is the directory of the daemon's files.
fn runtime(dir: &Path) -> PathBuf {
    dir.join("run")
}

fn spawn(unit: Option<&Path>, dir: &Path, clock: Option<&WallClock>) -> Process {
    let log = File::options().create(true).append(true).open(dir.join("log")).unwrap();
    let (program, runtime) = (program("shmcastd"), runtime(dir));
    fs::create_dir_all(&runtime).unwrap();
    let (mut command, socket) = match unit {
        Some(unit) => (unit::command(unit, &runtime, &program), unit::SOCKET.into()),
        None => (Command::new(program), runtime.join("control.sock")),
    };
    command.arg("--config").arg(dir.join("shmcast.toml")).arg("--socket").arg(socket);
    command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    clock.inspect(|clock| clock.give(&mut command));
    Process::start(&mut command)
}

/// Makes a builder for a publisher that does not prepare its memory, because the preparation can take half a minute on a loaded machine.
pub fn publishing(client: &Client, channel: &str) -> PublisherBuilder {
    Publisher::builder(channel).client(client).prepare(Preparation::NONE)
}

/// Returns how often a daemon's log has this event.
pub(crate) fn count_event(log: &str, event: &str) -> usize {
    log.matches(&format!("event=\"{event}\"")).count()
}
