//! A real daemon for tests, traffic that must not be disturbed, and clients that break the rules.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::{Value, json};
use shmcast::sys::handoff;
use shmcast::{Client, Event, Preparation, Publisher, PublisherBuilder, Subscriber, Wait};
use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) mod unit;

/// Time limit of each wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const ROLE: &str = "SHMCAST_TEST_ROLE";

/// A number from the environment, for longer runs.
pub(crate) fn number<T: FromStr<Err: Debug>>(variable: &str, default: T) -> T {
    std::env::var(variable).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// Waits until `ready` returns a value. The longer it takes, the less often it calls `ready`, since a daemon limits its
/// users' requests.
pub(crate) fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let (started, mut pause) = (Instant::now(), Duration::from_millis(1));
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(30));
    }
}

/// Waits until `is_so` returns true.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// A temporary directory in memory, so that no test waits for a disk.
pub(crate) fn memory_dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("shmcast-test-").tempdir_in("/dev/shm").unwrap()
}

/// A section of a configuration. `more` has additional lines.
pub(crate) fn channel(name: &str, more: &str) -> String {
    format!(
        "[[channel]]\nname = \"{name}\"\ncapacity = \"16MiB\"\nmlock = false\nhugepages = false\n{more}\n"
    )
}

pub(crate) const FOR_ALL: &str = "publishers = [\"*\"]\nsubscribers = [\"*\"]";

/// `shmcastd` as a process.
pub(crate) struct Daemon {
    dir: tempfile::TempDir,
    /// The unit that restricts the daemon, if there is one.
    unit: Option<PathBuf>,
    child: Child,
}

impl Daemon {
    pub(crate) fn start(config: &str) -> Self {
        let daemon = Self::spawn(memory_dir(), config);
        daemon.client();
        daemon
    }

    /// Starts a daemon under the restrictions of `unit`.
    pub(crate) fn start_under(unit: PathBuf, config: &str) -> Self {
        let daemon = Self::spawn_under(Some(unit), memory_dir(), config);
        daemon.client();
        daemon
    }

    /// Starts a daemon without waiting until it answers.
    pub(crate) fn spawn(dir: tempfile::TempDir, config: &str) -> Self {
        Self::spawn_under(unit::asked(), dir, config)
    }

    fn spawn_under(unit: Option<PathBuf>, dir: tempfile::TempDir, config: &str) -> Self {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.path().join("shmcast.toml"), config).unwrap();
        let child = spawn(unit.as_deref(), dir.path());
        Self { dir, unit, child }
    }

    /// Waits until the daemon ends by itself, and returns its exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        runtime(self.dir.path()).join("control.sock")
    }

    /// The marker file. It exists unless this daemon has stopped in an orderly way.
    pub(crate) fn marker(&self) -> PathBuf {
        self.socket().with_extension("running")
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Returns a client of the daemon. Waits until the daemon answers.
    pub(crate) fn client(&self) -> Client {
        wait_for("the daemon's answer", || Client::at(self.socket()).ok())
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Waits for a line of the log with all of `words`.
    pub(crate) fn wait_for_log(&self, words: &[&str]) {
        let is_it = |line: &str| words.iter().all(|word| line.contains(word));
        wait_for(&format!("{words:?} in the log"), || self.log().lines().any(is_it).then_some(()));
    }

    pub(crate) fn configure(&self, config: &str) {
        fs::write(self.dir.path().join("shmcast.toml"), config).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// The command `shmcast`, set to use this daemon.
    pub(crate) fn shmcast(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shmcast"));
        command.args(arguments.split_whitespace()).env("SHMCAST_SOCKET", self.socket());
        command.env_remove("SHMCAST_DIR");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn kill(&mut self) {
        self.end(Signal::SIGKILL);
    }

    /// Sends a signal that ends the daemon, and waits for its end.
    pub(crate) fn end(&mut self, by: Signal) {
        self.signal(by);
        self.child.wait().unwrap();
    }

    /// Starts the next daemon after this one has ended.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.unit.as_deref(), self.dir.path());
        self.client();
    }

    /// Kills the daemon, and immediately starts the next one.
    pub(crate) fn crash(&mut self) {
        self.kill();
        self.restart();
    }

    /// Whether the daemon still runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn open_descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// The daemon's anonymous memory in KiB.
    pub(crate) fn anonymous_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("the end of the daemon's log:\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        }
    }
}

/// The directory in which the daemon of `dir` makes its socket.
fn runtime(dir: &Path) -> PathBuf {
    dir.join("run")
}

fn spawn(unit: Option<&Path>, dir: &Path) -> Child {
    let log = File::options().create(true).append(true).open(dir.join("log")).unwrap();
    let (program, runtime) = (Path::new(env!("CARGO_BIN_EXE_shmcastd")), runtime(dir));
    fs::create_dir_all(&runtime).unwrap();
    let (mut command, socket) = match unit {
        Some(unit) => (unit::command(unit, &runtime, program), unit::SOCKET.into()),
        None => (Command::new(program), runtime.join("control.sock")),
    };
    command.arg("--config").arg(dir.join("shmcast.toml")).arg("--socket").arg(socket);
    command
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// A builder of a publisher that does not prepare its memory, because locking pages can take half a minute on a loaded machine.
pub(crate) fn publishing(client: &Client, channel: &str) -> PublisherBuilder {
    Publisher::builder(channel).client(client).prepare(Preparation::NONE)
}

/// A publisher and a reader that are not part of the test, and must not be disturbed by it.
pub(crate) struct Bystanders {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Bystanders {
    /// Publishes and reads on `channel` until stopped. Each message holds its sequence.
    pub(crate) fn start(client: &Client, channel: &str) -> Self {
        let (stop, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut publisher = publishing(client, channel).open().unwrap();
        let reader = Subscriber::builder(channel).client(client);
        let mut reader = reader.wait(Wait::Sleep(Duration::from_micros(500))).open().unwrap();
        let (stopped, count) = (stop.clone(), received.clone());
        let publishing = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for _ in 0..5 {
                    let next = publisher.next_sequence();
                    publisher.publish(&next.to_le_bytes()).unwrap();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let reading = std::thread::spawn(move || {
            let mut expected = reader.next_sequence();
            loop {
                match reader.recv().unwrap() {
                    Event::Message(message) => {
                        assert_eq!(message.sequence, expected, "a bystander missed a message");
                        assert_eq!(message.payload, expected.to_le_bytes(), "a bystander misread a message");
                        expected += 1;
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    Event::End => return,
                    other => panic!("a bystander got {other:?}"),
                }
            }
        });
        Self { stop, received, threads: vec![publishing, reading] }
    }

    /// Waits until more messages are received.
    pub(crate) fn assert_flowing(&self) {
        let before = self.received.load(Ordering::Relaxed);
        wait_for("the bystanders' messages", || {
            assert!(!self.threads.iter().any(JoinHandle::is_finished), "a bystander stopped");
            (self.received.load(Ordering::Relaxed) > before + 20).then_some(())
        });
    }

    /// Ends the stream. Returns how many messages were received; all of them were in order.
    pub(crate) fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        self.received.load(Ordering::Relaxed)
    }
}

/// A connection on which a test can send any packet.
pub(crate) struct Raw {
    pub(crate) socket: OwnedFd,
}

impl Raw {
    pub(crate) fn connect(socket: &Path) -> Self {
        let socket = handoff::connect(socket).unwrap();
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(20))).unwrap();
        set_socket_timeout(&socket, Timeout::Send, Some(Duration::from_secs(20))).unwrap();
        Self { socket }
    }

    /// Connects to a daemon, and sends the greeting.
    pub(crate) fn greeted(socket: &Path) -> Self {
        let raw = Self::connect(socket);
        assert_eq!(raw.ask(&json!({"request": "hello", "version": 2}), &[])["reply"], "welcome");
        raw
    }

    pub(crate) fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        handoff::send(&self.socket, bytes, descriptors)
    }

    pub(crate) fn ask(&self, request: &Value, descriptors: &[BorrowedFd<'_>]) -> Value {
        self.ask_for_files(request, descriptors).0
    }

    pub(crate) fn ask_for_files(
        &self,
        request: &Value,
        descriptors: &[BorrowedFd<'_>],
    ) -> (Value, Vec<File>) {
        self.send(request.to_string().as_bytes(), descriptors).unwrap();
        self.receive().expect("an answer")
    }

    /// The next packet; `None` when the daemon has hung up.
    pub(crate) fn receive(&self) -> Option<(Value, Vec<File>)> {
        let mut buffer = vec![0; handoff::MAX_PACKET];
        match handoff::receive(&self.socket, &mut buffer) {
            Ok(packet) if packet.length == 0 => None,
            Ok(packet) => {
                let value = serde_json::from_slice(&buffer[..packet.length]).expect("the daemon speaks JSON");
                Some((value, packet.descriptors))
            }
            // The daemon hung up before it had read all our packets. Its last reply, if there is one, still follows.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => self.receive(),
            Err(e) => panic!("the daemon neither answered nor hung up: {e}"),
        }
    }

    /// Reads all packets up to the end. The last one must be a refusal with `code`.
    pub(crate) fn assert_cut_off(&self, code: &str) {
        let mut last = Value::Null;
        while let Some((said, _)) = self.receive() {
            last = said;
        }
        assert_eq!((&last["reply"], &last["code"]), (&json!("refused"), &json!(code)), "{last}");
        assert!(last["why"].as_str().is_some_and(|why| why.len() > 5), "{last}");
    }

    /// Sends a request, which must be refused with `code`. The connection must stay open. Returns the daemon's reason.
    pub(crate) fn assert_refused(
        &self,
        request: &Value,
        descriptors: &[BorrowedFd<'_>],
        code: &str,
    ) -> String {
        let answer = self.ask(request, descriptors);
        assert_eq!((&answer["reply"], &answer["code"]), (&json!("refused"), &json!(code)), "{answer}");
        assert_eq!(self.ask(&json!({"request": "mapped"}), &[])["reply"], "done", "after {request}");
        answer["why"].as_str().unwrap().to_owned()
    }

    /// Attaches as a reader: segment, lock, page and charter.
    pub(crate) fn subscribe(&self, channel: &str) -> [File; 4] {
        let (answer, files) = self.ask_for_files(&subscribe(channel, false), &[]);
        assert_eq!(answer["reply"], "subscribed", "{answer}");
        files.try_into().unwrap()
    }
}

pub(crate) fn subscribe(channel: &str, resume: bool) -> Value {
    json!({"request": "subscribe", "channel": channel, "resume": resume, "park": false})
}

pub(crate) fn publish(channel: &str, resume: bool) -> Value {
    json!({"request": "publish", "channel": channel, "resume": resume, "anew": false})
}

pub(crate) fn fds(files: &[File]) -> Vec<BorrowedFd<'_>> {
    files.iter().map(AsFd::as_fd).collect()
}

/// A command that starts this test program again in a role: it runs the test `play` of the same file.
pub(crate) fn role(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    as_role(&mut command, name);
    command
}

/// As [`role`], under another user. If that is not possible here, prints the reason and returns `None`.
pub(crate) fn role_as(test: &str, uid: u32, name: &str) -> Option<Command> {
    let program = std::env::current_exe().unwrap();
    let mut command = as_user(test, uid, &program)?;
    as_role(&mut command, name);
    Some(command)
}

/// A command that runs `program` as user and group `uid`, without other groups.
pub(crate) fn as_user(test: &str, uid: u32, program: &Path) -> Option<Command> {
    let setpriv = |program: &Path| {
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={uid}"))
            .arg(format!("--regid={uid}"))
            .arg("--clear-groups")
            .arg(program);
        command
    };
    let tried = setpriv(Path::new("test")).arg("-x").arg(program).status();
    if tried.is_ok_and(|status| status.success()) {
        return Some(setpriv(program));
    }
    let program = program.display();
    eprintln!(
        "SKIPPED {test}: cannot run {program} as uid {uid}: be root, with setpriv, and a target directory all can read"
    );
    None
}

fn as_role(command: &mut Command, name: &str) {
    command.args(["play", "--exact", "--ignored", "--nocapture", "--test-threads=1", "-q"]).env(ROLE, name);
    command.stdin(Stdio::null()).stdout(Stdio::null());
}

/// The role that this process was started for.
pub(crate) fn my_role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// A process that is killed when this value is dropped.
pub(crate) struct Guarded(pub(crate) Child);

impl Guarded {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }

    /// Stops the process, and waits until it is stopped.
    pub(crate) fn pause(&self) {
        self.signal(Signal::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.0.id());
        wait_for("the process to stop", || {
            let stat = fs::read_to_string(&stat).unwrap();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')).then_some(())
        });
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
