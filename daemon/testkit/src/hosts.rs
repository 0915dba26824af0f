//! Hosts for a test, as network namespaces, and the processes that run in them.

use crate::clock::WallClock;
use crate::daemon::count_event;
use crate::place::{program, skip};
use crate::process::{Process, as_role};
use crate::turn::{Turn, turn};
use crate::unit;
use crate::wait::{wait_for, wait_until};
use nix::sys::signal::Signal;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs `ip` with words that are separated by single blanks.
pub fn ip(words: &str) -> Result<(), String> {
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
    C,
    D,
}

const HOSTS: [Host; 4] = [Host::A, Host::B, Host::C, Host::D];
/// The name of the namespace of the switch.
const SWITCH: &str = "switch";

fn letter(host: Host) -> &'static str {
    ["a", "b", "c", "d"][host as usize]
}

/// Hosts with wires between them. Each test has its own names of namespaces. Other names, and the addresses, are the same in all tests.
///
/// | made by | hosts | wires |
/// |---|---|---|
/// | [`new`](Self::new), [`with_daemons`](Self::with_daemons) | A and B | wire `n` from A's 10.77.n.1 (va`n`) to B's 10.77.n.2 (vb`n`) |
/// | [`at_a_switch`](Self::at_a_switch) | A to D | each to the switch, with 10.77.0.1 (va0) to 10.77.0.4 (vd0) |
/// | [`in_a_ring`](Self::in_a_ring) | as many of A to D as wanted | host `n` from its 10.78.n.1 (out) to the next host's 10.78.n.2 (in) |
pub struct Hosts {
    names: Vec<String>,
    pub dir: tempfile::TempDir,
    /// Whether programs use the channels of a daemon.
    daemons: bool,
    /// The unit that restricts the daemons, if there is one.
    unit: Option<PathBuf>,
    /// The wall clocks that hosts have of their own.
    clocks: Vec<(Host, WallClock)>,
    _turn: Turn,
}

impl Hosts {
    /// Makes two hosts. Returns `None`, and prints the reason, if that is not possible here.
    pub fn new(test: &str, wires: usize) -> Option<Self> {
        Self::make(test, &["a", "b"], |hosts| hosts.wire(wires))
    }

    /// Makes four hosts at a switch, which can cut off each host.
    pub fn at_a_switch(test: &str) -> Option<Self> {
        Self::make(test, &["a", "b", "c", "d", SWITCH], Self::connect)
    }

    /// Makes `count` hosts. Each host has a wire to the next host. The last host has a wire to the first host. There are no routes, so a
    /// host reaches only its neighbours.
    pub fn in_a_ring(test: &str, count: usize) -> Option<Self> {
        let kinds = HOSTS[..count].iter().map(|host| letter(*host)).collect::<Vec<_>>();
        Self::make(test, &kinds, Self::close_the_ring)
    }

    fn make(test: &str, kinds: &[&str], connect: impl Fn(&Self) -> Result<(), String>) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let turn = turn();
        let id = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let names = kinds.iter().map(|kind| format!("shmcast-{kind}-{id}")).collect();
        let dir = tempfile::Builder::new().prefix("shmcast-bridge-").tempdir_in("/dev/shm").unwrap();
        // A daemon might run as another user.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let hosts = Self { names, dir, daemons: false, unit: unit::asked(), clocks: Vec::new(), _turn: turn };
        let made = hosts.names.iter().try_for_each(|name| {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))
        });
        match made.and_then(|()| connect(&hosts)) {
            Ok(()) => Some(hosts),
            Err(reason) => {
                skip(test, format_args!("no network namespaces: {reason}"));
                None
            }
        }
    }

    /// Sets whether programs that are started later use the channels of a daemon.
    pub fn use_daemons(&mut self, are_used: bool) {
        self.daemons = are_used;
    }

    /// Does the same as [`new`](Self::new), but programs use the channels of daemons. The test must start the daemons.
    pub fn with_daemons(test: &str, wires: usize) -> Option<Self> {
        let mut hosts = Self::new(test, wires)?;
        hosts.daemons = true;
        Some(hosts)
    }

    /// Adds an IPv6 address to each end of each wire: A has fd77:`n`::1, B has fd77:`n`::2. If the machine has no IPv6, prints that `test`
    /// is skipped, and returns `None`.
    pub fn and_v6(self, test: &str, wires: usize) -> Option<Self> {
        if let Err(reason) = (0..wires).try_for_each(|n| self.plug_v6(n)) {
            skip(test, format_args!("no IPv6: {reason}"));
            return None;
        }
        Some(self)
    }

    /// Does the same as [`with_daemons`](Self::with_daemons), but the daemons run under the restrictions of `unit`.
    pub fn under(test: &str, wires: usize, unit: PathBuf) -> Option<Self> {
        let mut hosts = Self::with_daemons(test, wires)?;
        hosts.unit = Some(unit);
        Some(hosts)
    }

    fn wire(&self, wires: usize) -> Result<(), String> {
        (0..wires).try_for_each(|n| self.plug(n))
    }

    fn plug(&self, n: usize) -> Result<(), String> {
        let (a, b) = (self.name(Host::A), self.name(Host::B));
        ip(&format!("link add va{n} netns {a} type veth peer name vb{n} netns {b}"))?;
        ip(&format!("-n {a} addr add 10.77.{n}.1/24 dev va{n}"))?;
        ip(&format!("-n {b} addr add 10.77.{n}.2/24 dev vb{n}"))?;
        ip(&format!("-n {a} link set va{n} up"))?;
        ip(&format!("-n {b} link set vb{n} up"))
    }

    fn plug_v6(&self, n: usize) -> Result<(), String> {
        let (a, b) = (self.name(Host::A), self.name(Host::B));
        ip(&format!("-n {a} addr add fd77:{n}::1/64 dev va{n} nodad"))?;
        ip(&format!("-n {b} addr add fd77:{n}::2/64 dev vb{n} nodad"))
    }

    /// Deletes both interfaces of a wire, runs `meanwhile`, and makes new interfaces of the same names.
    pub fn remake(&self, wire: usize, meanwhile: impl FnOnce(), has_v6: bool) {
        ip(&format!("-n {} link del va{wire}", self.name(Host::A))).unwrap();
        meanwhile();
        self.plug(wire).unwrap();
        if has_v6 {
            self.plug_v6(wire).unwrap();
        }
    }

    fn connect(&self) -> Result<(), String> {
        let switch = &self.names[HOSTS.len()];
        ip(&format!("-n {switch} link add switch type bridge mcast_snooping 0"))?;
        ip(&format!("-n {switch} link set switch up"))?;
        for (n, host) in HOSTS.into_iter().enumerate() {
            let (name, interface) = (self.name(host), format!("v{}0", letter(host)));
            ip(&format!("link add {interface} netns {name} type veth peer name port{n} netns {switch}"))?;
            ip(&format!("-n {switch} link set port{n} master switch up"))?;
            ip(&format!("-n {name} addr add 10.77.0.{}/24 dev {interface}", n + 1))?;
            ip(&format!("-n {name} link set {interface} up"))?;
        }
        Ok(())
    }

    fn close_the_ring(&self) -> Result<(), String> {
        for (n, here) in self.names.iter().enumerate() {
            let next = &self.names[(n + 1) % self.names.len()];
            ip(&format!("link add out netns {here} type veth peer name in netns {next}"))?;
            for (name, end, host) in [(here, "out", 1), (next, "in", 2)] {
                ip(&format!("-n {name} addr add 10.78.{n}.{host}/24 dev {end}"))?;
                ip(&format!("-n {name} link set {end} up"))?;
            }
        }
        Ok(())
    }

    /// Sets whether the switch drops everything at a host's port. The host's interface stays up.
    pub fn cut_off(&self, host: Host, is_cut: bool) {
        // States of a port: 0 disabled, 3 forwarding.
        let (port, state) = (format!("port{}", host as usize), if is_cut { "0" } else { "3" });
        let words = ["-n", &self.names[HOSTS.len()], "link", "set", "dev", &port, "state", state];
        let output = Command::new("bridge").args(words).output().unwrap();
        assert!(output.status.success(), "bridge {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Moves this thread, and threads that it starts later, to a host.
    pub fn enter(&self, host: Host) {
        let namespace = File::open(format!("/run/netns/{}", self.name(host))).unwrap();
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// The name of a host's network namespace.
    pub fn name(&self, host: Host) -> &str {
        &self.names[host as usize]
    }

    pub fn cut(&self, wire: usize) {
        ip(&format!("-n {} link set va{wire} down", self.name(Host::A))).unwrap();
    }

    /// The directory of a host's channels.
    pub fn channels(&self, host: Host) -> PathBuf {
        self.dir.path().join(letter(host))
    }

    /// Gives a host a wall clock of its own. Only programs that are started later use this clock. Returns `None`, and prints the reason, if
    /// the test's environment does not permit the clock.
    pub fn own_clock(&mut self, test: &str, host: Host) -> Option<()> {
        if self.unit.is_some() {
            skip(test, "the unit has its own environment");
            return None;
        }
        let dir = self.dir.path().join(format!("clock-{}", letter(host)));
        fs::create_dir(&dir).unwrap();
        self.clocks.push((host, WallClock::make(test, &dir)?));
        Some(())
    }

    /// Sets a host's own clock this many seconds ahead of the true time, or behind the true time if `seconds` is negative.
    pub fn set_clock(&self, host: Host, seconds: i64) {
        let (_, clock) = self.clocks.iter().find(|(of, _)| *of == host).expect("a clock of its own");
        clock.set(seconds);
    }

    fn command_in(&self, host: Host, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.name(host)]).arg(program).env_remove("NOTIFY_SOCKET");
        if let Some((_, clock)) = self.clocks.iter().find(|(of, _)| *of == host) {
            clock.give(&mut command);
        }
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

    fn config(&self, host: Host) -> PathBuf {
        self.channels(host).with_extension("toml")
    }

    /// Writes the configuration of a host's daemon. The daemon reads the configuration at its start and on SIGHUP.
    pub fn configure(&self, host: Host, config: &str) {
        fs::write(self.config(host), config).unwrap();
    }

    /// Makes a host's daemon reload the configuration `config`, and waits until the daemon's log has `event` once more.
    pub fn reload(&self, host: Host, daemon: &Running, config: &str, event: &str) {
        let before = daemon.told(event);
        self.configure(host, config);
        daemon.signal(Signal::SIGHUP);
        wait_until(event, || daemon.told(event) > before);
    }

    /// Starts a host's daemon and waits until it answers.
    pub fn daemon(&self, host: Host, config: &str) -> Running {
        self.configure(host, config);
        let (program, runtime) = (program("shmcastd"), self.runtime(host));
        fs::create_dir_all(&runtime).unwrap();
        let mut command = match &self.unit {
            Some(unit) => {
                let words = unit::launcher(unit, &runtime);
                let mut command = self.command_in(host, Path::new(&words[0]));
                command.args(&words[1..]).arg(program).env("SHMCAST_SOCKET", unit::SOCKET);
                command
            }
            None => self.command_in(host, &program),
        };
        command.arg("--config").arg(self.config(host));
        let daemon = self.start(command, format!("the daemon of host {host:?}"));
        wait_for("the daemon's answer", || shmcast::Client::at(self.socket(host)).ok());
        // The keys file must belong to the daemon's user. Under the restrictions of a unit, the daemon runs as another user than the test.
        let keys = self.keys();
        if keys.exists() {
            let user = fs::metadata(self.socket(host)).unwrap().uid();
            chown(keys, Some(user), None).unwrap();
        }
        daemon
    }

    /// The path for the keys of native lines.
    pub fn keys(&self) -> PathBuf {
        self.dir.path().join("keys")
    }

    /// Starts `shmcast WORDS` on a host.
    pub fn shmcast(&self, host: Host, words: &str) -> Running {
        self.program(host, program("shmcast"), words)
    }

    /// Runs `shmcast WORDS` on a host until it ends. The command is allowed to fail.
    pub fn run(&self, host: Host, words: &str) -> Output {
        let mut command = self.command_in(host, &program("shmcast"));
        command.args(words.split_whitespace()).output().unwrap()
    }

    /// Starts a program on a host.
    pub fn program(&self, host: Host, program: impl AsRef<Path>, words: &str) -> Running {
        let mut command = self.command_in(host, program.as_ref());
        command.args(words.split_whitespace());
        self.start(command, words.to_owned())
    }

    /// Starts this test program in a role on a host.
    pub fn role(&self, host: Host, role: &str, words: &str) -> Running {
        let mut command = self.command_in(host, &std::env::current_exe().unwrap());
        as_role(&mut command, "", &format!("{role} {words}"));
        self.start(command, format!("{role} {words}"))
    }

    /// Runs a command on a host, and returns its output. The command must succeed.
    pub fn output(&self, host: Host, program: impl AsRef<Path>, arguments: &[&str]) -> String {
        let program = program.as_ref();
        let output = self.command_in(host, program).args(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "{} {arguments:?}: {}",
            program.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn start(&self, mut command: Command, what: String) -> Running {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let [out, log] = ["out", "log"].map(|kind| self.dir.path().join(format!("{count}.{kind}")));
        command.stdin(Stdio::null()).stdout(File::create(&out).unwrap()).stderr(File::create(&log).unwrap());
        Running { process: Process::start(&mut command), what, out, log }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// A process on a host. Dropping this value kills the process.
pub struct Running {
    process: Process,
    what: String,
    out: PathBuf,
    log: PathBuf,
}

impl Running {
    pub fn signal(&self, signal: Signal) {
        // `ip netns exec` replaces itself by the program, so the process id of `ip` is the program's process id.
        self.process.signal(signal);
    }

    pub fn kill(mut self) {
        self.process.end_by(Signal::SIGKILL);
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn log_path(&self) -> PathBuf {
        self.log.clone()
    }

    pub fn wait_for_log(&self, text: &str) {
        wait_for(&format!("{text:?} from {}", self.what), || self.log().contains(text).then_some(()));
    }

    /// Returns how often the log has this event.
    pub fn told(&self, event: &str) -> usize {
        count_event(&self.log(), event)
    }

    /// Waits for the end of the process. Returns its exit code, and the last JSON line that it printed.
    pub fn end(mut self) -> (i32, Value) {
        let status = wait_for(&format!("the end of {}", self.what), || self.process.try_wait());
        let out = fs::read_to_string(&self.out).unwrap();
        let json = out.lines().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap_or(Value::Null);
        let code = status.code().unwrap_or_else(|| panic!("{}: {status}\n{}", self.what, self.log()));
        (code, json)
    }

    /// Does the same as [`end`](Self::end), but the process must succeed. Returns only the JSON line.
    pub fn end_well(self) -> Value {
        let (what, log) = (self.what.clone(), self.log.clone());
        let (code, json) = self.end();
        assert_eq!(code, 0, "{what}\n{}", fs::read_to_string(log).unwrap_or_default());
        json
    }

    /// Sends SIGTERM to the process, and waits for its end. Returns the same as [`end`](Self::end).
    pub fn stop(self) -> (i32, Value) {
        self.signal(Signal::SIGTERM);
        self.end()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.what, self.log());
        }
    }
}
