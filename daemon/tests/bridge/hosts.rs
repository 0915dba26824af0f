//! Two hosts on one or two wires: namespaces, veth pairs, and the processes that run in them.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::unit;

/// Time limit of each wait.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// One test at a time: each uses all of a small machine.
static TURN: Mutex<()> = Mutex::new(());

pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number from the environment, for longer runs.
pub fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// Waits until `ready` returns a value.
pub fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn ip(words: &str) -> Result<(), String> {
    let output =
        Command::new("ip").args(words.split(' ')).output().map_err(|e| format!("no ip command: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    A,
    B,
}

/// Hosts A and B with a wire `n` between A's 10.77.n.1 (va`n`) and B's 10.77.n.2 (vb`n`).
pub struct Hosts {
    names: [String; 2],
    pub dir: tempfile::TempDir,
    /// Whether a daemon owns a host's channels.
    daemons: bool,
    /// The unit that restricts the daemons, if there is one.
    unit: Option<PathBuf>,
    _turn: MutexGuard<'static, ()>,
}

impl Hosts {
    /// Makes the hosts. If that is not possible here, prints the reason and returns `None`.
    pub fn new(test: &str, wires: usize) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let turn = turn();
        let id = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let names = [format!("shmcast-a-{id}"), format!("shmcast-b-{id}")];
        let dir = tempfile::Builder::new().prefix("shmcast-bridge-").tempdir_in("/dev/shm").unwrap();
        // A daemon may run as another user.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let hosts = Self { names, dir, daemons: false, unit: unit::asked(), _turn: turn };
        match hosts.wire(wires) {
            Ok(()) => Some(hosts),
            Err(reason) => {
                eprintln!("SKIPPED {test}: no network namespaces: {reason}");
                None
            }
        }
    }

    /// As `new`, but the channels are those of daemons, which the test must start.
    pub fn with_daemons(test: &str, wires: usize) -> Option<Self> {
        let mut hosts = Self::new(test, wires)?;
        hosts.daemons = true;
        Some(hosts)
    }

    /// Gives each end of each wire an address of IPv6 too: A fd77:`n`::1, B fd77:`n`::2. Without IPv6 here, prints the
    /// reason and returns `None`.
    pub fn and_v6(self, test: &str, wires: usize) -> Option<Self> {
        let [a, b] = &self.names;
        let added = (0..wires).try_for_each(|n| {
            ip(&format!("-n {a} addr add fd77:{n}::1/64 dev va{n} nodad"))?;
            ip(&format!("-n {b} addr add fd77:{n}::2/64 dev vb{n} nodad"))
        });
        if let Err(reason) = added {
            eprintln!("SKIPPED {test}: no IPv6: {reason}");
            return None;
        }
        Some(self)
    }

    /// As `with_daemons`, but the daemons run as `unit` says.
    pub fn under(test: &str, wires: usize, unit: PathBuf) -> Option<Self> {
        let mut hosts = Self::with_daemons(test, wires)?;
        hosts.unit = Some(unit);
        Some(hosts)
    }

    fn wire(&self, wires: usize) -> Result<(), String> {
        let [a, b] = &self.names;
        for name in [a, b] {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        for n in 0..wires {
            ip(&format!("link add va{n} netns {a} type veth peer name vb{n} netns {b}"))?;
            ip(&format!("-n {a} addr add 10.77.{n}.1/24 dev va{n}"))?;
            ip(&format!("-n {b} addr add 10.77.{n}.2/24 dev vb{n}"))?;
            ip(&format!("-n {a} link set va{n} up"))?;
            ip(&format!("-n {b} link set vb{n} up"))?;
        }
        Ok(())
    }

    fn name(&self, host: Host) -> &str {
        match host {
            Host::A => &self.names[0],
            Host::B => &self.names[1],
        }
    }

    pub fn cut(&self, wire: usize) {
        ip(&format!("-n {} link set va{wire} down", self.names[0])).unwrap();
    }

    /// The directory of a host's channels.
    pub fn channels(&self, host: Host) -> PathBuf {
        self.dir.path().join(if host == Host::A { "a" } else { "b" })
    }

    fn command_in(&self, host: Host, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.name(host)]).arg(program).env_remove("NOTIFY_SOCKET");
        match self.daemons {
            true => command.env("SHMCAST_SOCKET", self.socket(host)).env_remove("SHMCAST_DIR"),
            false => command.env("SHMCAST_DIR", self.channels(host)),
        };
        command
    }

    /// The directory in which a host's daemon makes its socket.
    fn runtime(&self, host: Host) -> PathBuf {
        self.channels(host).with_extension("run")
    }

    pub fn socket(&self, host: Host) -> PathBuf {
        self.runtime(host).join("control.sock")
    }

    /// Starts a host's daemon and waits until it answers.
    pub fn daemon(&self, host: Host, config: &str) -> Running {
        let path = self.channels(host).with_extension("toml");
        fs::write(&path, config).unwrap();
        let (program, runtime) = (env!("CARGO_BIN_EXE_shmcastd"), self.runtime(host));
        fs::create_dir_all(&runtime).unwrap();
        let mut command = match &self.unit {
            Some(unit) => {
                let words = unit::launcher(unit, &runtime);
                let mut command = self.command_in(host, Path::new(&words[0]));
                command.args(&words[1..]).arg(program).env("SHMCAST_SOCKET", unit::SOCKET);
                command
            }
            None => self.command_in(host, Path::new(program)),
        };
        command.arg("--config").arg(path);
        let daemon = self.start(command, format!("the daemon of host {host:?}"));
        wait_for("the daemon's answer", || shmcast::Client::at(self.socket(host)).ok());
        // Keys must belong to the daemon's user, who is another one under the unit.
        let keys = self.keys();
        if keys.exists() {
            let user = fs::metadata(self.socket(host)).unwrap().uid();
            chown(keys, Some(user), None).unwrap();
        }
        daemon
    }

    /// The place for the keys of native lines.
    pub fn keys(&self) -> PathBuf {
        self.dir.path().join("keys")
    }

    /// `shmcast WORDS` on a host.
    pub fn shmcast(&self, host: Host, words: &str) -> Running {
        let mut command = self.command_in(host, Path::new(env!("CARGO_BIN_EXE_shmcast")));
        command.args(words.split_whitespace());
        self.start(command, words.to_owned())
    }

    /// This test program on a host, playing a role.
    pub fn role(&self, host: Host, role: &str, words: &str) -> Running {
        let mut command = self.command_in(host, &std::env::current_exe().unwrap());
        command.args(["play", "--exact", "--ignored", "--nocapture", "--test-threads=1", "-q"]);
        command.env(super::roles::ROLE, role).env(super::roles::WORDS, words);
        self.start(command, format!("{role} {words}"))
    }

    /// Runs a command on a host, and returns its output.
    pub fn output(&self, host: Host, program: &str, arguments: &[&str]) -> String {
        let output = self.command_in(host, Path::new(program)).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn start(&self, mut command: Command, what: String) -> Running {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let [out, log] = ["out", "log"].map(|kind| self.dir.path().join(format!("{count}.{kind}")));
        command.stdin(Stdio::null()).stdout(File::create(&out).unwrap()).stderr(File::create(&log).unwrap());
        Running { child: command.spawn().unwrap(), what, out, log }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// A process on a host. Killed when dropped.
pub struct Running {
    child: Child,
    what: String,
    out: PathBuf,
    log: PathBuf,
}

impl Running {
    pub fn signal(&self, signal: Signal) {
        // `ip netns exec` replaces itself by the program, so this is the program's own process id.
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn wait_for_log(&self, text: &str) {
        wait_for(&format!("{text:?} from {}", self.what), || self.log().contains(text).then_some(()));
    }

    /// Waits for its end. Returns the exit code, and the last line of its output as JSON.
    pub fn end(mut self) -> (i32, Value) {
        let status = wait_for(&format!("the end of {}", self.what), || self.child.try_wait().unwrap());
        let out = fs::read_to_string(&self.out).unwrap();
        let json = out.lines().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap_or(Value::Null);
        let code = status.code().unwrap_or_else(|| panic!("{}: {status}\n{}", self.what, self.log()));
        (code, json)
    }

    /// As `end`, but it must have succeeded.
    pub fn end_well(self) -> Value {
        let (what, log) = (self.what.clone(), self.log.clone());
        let (code, json) = self.end();
        assert_eq!(code, 0, "{what}\n{}", fs::read_to_string(log).unwrap_or_default());
        json
    }

    /// Tells it to stop, and waits for that.
    pub fn stop(self) -> (i32, Value) {
        self.signal(Signal::SIGTERM);
        self.end()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.what, self.log());
        }
    }
}
