//! Child processes of a test. No child process outlives the test that started it.
//!
//! A test program can start itself again in a *role*. The child then runs the ignored test `play`, which reads [`my_role`]. So a test can
//! use several processes without additional programs.

use crate::place::{is_root, skip};
use crate::wait::{PATIENCE, wait_for, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{PidfdFlags, pidfd_open};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

/// The variable that names a child's role.
pub const ROLE: &str = "SHMCAST_TEST_ROLE";
const DIR: &str = "SHMCAST_TEST_DIR";
const SOCKET: &str = "SHMCAST_TEST_SOCKET";

/// A child process. Dropping this value kills and reaps the process.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// The command as text, for the messages of a failed test.
    what: String,
}

impl Process {
    /// Starts the command.
    pub fn start(command: &mut Command) -> Self {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let what = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let child = command.spawn().unwrap_or_else(|e| panic!("{what}: {e}"));
        Self { child, what }
    }

    /// The child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The process id, for calls of nix.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("a child that was not waited for");
    }

    /// Waits until the process has a handler for a signal. A signal that came earlier would end the process or be ignored.
    pub fn wait_until_it_handles(&self, signal: Signal) {
        wait_until(&format!("{} to handle {signal}", self.what), || {
            assert!(
                self.states().any(|state| state != 'Z'),
                "{} has ended before it handled {signal}",
                self.what
            );
            self.handles(signal)
        });
    }

    /// Whether the process has a handler for a signal, according to `SigCgt` in `/proc/PID/status`.
    pub fn handles(&self, signal: Signal) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let handled = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(handled.trim(), 16).unwrap() >> (signal as i32 - 1) & 1 == 1
    }

    /// Stops the process, and waits until all its threads have stopped.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
        wait_until(&format!("a stop of {}", self.what), || self.states().all(|state| state == 'T'));
    }

    /// Continues the process after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// The states of the process's threads: the letters in `/proc/PID/task/THREAD/stat`.
    fn states(&self) -> impl Iterator<Item = char> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
        // A thread that has ended since the directory was listed has no state.
        let stats = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
        stats.filter_map(|stat| stat.rsplit_once(") ")?.1.chars().next())
    }

    /// Whether the process still runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("a child of ours").is_none()
    }

    /// The exit status, if the process has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of ours")
    }

    /// Kills the process with SIGKILL, and waits for its end. Panics if the process had ended by itself.
    pub fn kill(mut self) {
        self.child.kill().expect("a child of ours");
        let status = self.child.wait().expect("a child of ours");
        assert!(status.code().is_none(), "{} had ended by itself: {status}", self.what);
    }

    /// Waits until the process ends by itself. Returns its exit status.
    pub fn wait(&mut self) -> ExitStatus {
        let what = format!("the end of {}", self.what);
        let Ok(it) = pidfd_open(rustix::process::Pid::from_child(&self.child), PidfdFlags::empty()) else {
            return wait_for(&what, || self.try_wait());
        };
        let limit = PATIENCE.try_into().expect("two minutes");
        retry_on_intr(|| poll(&mut [PollFd::new(&it, PollFlags::IN)], Some(&limit)))
            .expect("a process of ours");
        self.try_wait().unwrap_or_else(|| panic!("waited {PATIENCE:?} for {what}"))
    }

    /// Waits until the process ends by itself. It must succeed.
    pub fn end(mut self) {
        let status = self.wait();
        assert!(status.success(), "{}: {status}: its output is above", self.what);
    }

    /// Waits until the process ends by itself. During the wait, this call reads the process's pipes, so that a full pipe does not block the
    /// process.
    pub fn output(mut self) -> Output {
        let (out, err) = (self.child.stdout.take(), self.child.stderr.take());
        let (out, err) = (std::thread::spawn(|| read_all(out)), std::thread::spawn(|| read_all(err)));
        let status = self.wait();
        Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
    }

    /// Sends a signal that ends the process, and waits for its end.
    pub fn end_by(&mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // For a child whose end was already awaited, both calls do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_all(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut bytes).unwrap();
    }
    bytes
}

/// Runs a command until it ends. If the command fails, the error is its status and its stderr.
pub fn run(command: &mut Command) -> Result<Output, String> {
    let output = command.output().map_err(|e| format!("{:?}: {e}", command.get_program()))?;
    match output.status.success() {
        true => Ok(output),
        false => Err(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

/// Makes a command that starts this test program again in a role.
///
/// | call | runs |
/// |---|---|
/// | `role!("read 5")` | `play` of the calling module |
/// | `role!(in "front", "read 5")` | `front::play` |
/// | `role!(under ["strace", "-f"], "read 5")` | `play` of the calling module, started by the given command |
///
/// The first word of the text is the role's name. The words after it are the role's arguments.
#[macro_export]
macro_rules! role {
    (in $module:expr, $name:expr) => {
        $crate::process::role_in($module, $name)
    };
    (under $command:expr, $name:expr) => {
        $crate::process::role_under(&$command, $crate::process::within(module_path!()), $name)
    };
    ($name:expr) => {
        $crate::process::role_in($crate::process::within(module_path!()), $name)
    };
}

/// Returns a module's path without the crate's name.
pub fn within(module_path: &str) -> &str {
    module_path.split_once("::").map_or("", |(_, module)| module)
}

/// Does the same as [`role!`], but the role runs as another user: `role_as!("name_of_the_test", 65534, "read 5")`. If this process cannot
/// start programs of that user, prints the reason and returns `None`. `role_as!(in "front", ...)` runs `front::play`, as [`role!`] does.
#[macro_export]
macro_rules! role_as {
    (in $module:expr, $test:expr, $uid:expr, $name:expr) => {
        $crate::process::role_as($test, $uid, $module, $name)
    };
    ($test:expr, $uid:expr, $name:expr) => {
        $crate::process::role_as(
            $test,
            $uid,
            module_path!().split_once("::").map_or("", |(_, module)| module),
            $name,
        )
    };
}

/// Makes a command that starts this test program again in the role `name` of a module. `module` is the module's path without the crate's
/// name. An empty path means the program's root.
pub fn role_in(module: &str, name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program's own path"));
    as_role(&mut command, module, name);
    command
}

/// Does the same as [`role_in`], but `command` starts the role. This program and the words for the role are appended to `command`.
pub fn role_under(command: &[&str], module: &str, name: &str) -> Command {
    let (program, arguments) = command.split_first().expect("a command has a program");
    let mut command = Command::new(program);
    command.args(arguments).arg(std::env::current_exe().expect("this program's own path"));
    as_role(&mut command, module, name);
    command
}

/// Does the same as [`role_in`], but the role runs as the user `uid`. If this process cannot start programs of that user, prints the reason
/// and returns `None`.
pub fn role_as(test: &str, uid: u32, module: &str, name: &str) -> Option<Command> {
    let program = std::env::current_exe().expect("this program's own path");
    let mut command = as_user(test, uid, &program)?;
    as_role(&mut command, module, name);
    Some(command)
}

/// Appends the words that start a role to `command`. `command` is this program, or a command that starts this program.
pub fn as_role(command: &mut Command, module: &str, name: &str) {
    let play = if module.is_empty() { "play".to_owned() } else { format!("{module}::play") };
    command.args([&play, "--exact", "--ignored", "--nocapture", "--test-threads=1", "-q"]).env(ROLE, name);
    command.stdin(Stdio::null()).stdout(Stdio::null());
}

/// The role in which this process was started; `None` in the test program itself.
pub fn my_role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Sets the directory that [`my_dir`] returns in a role.
pub fn in_dir<'a>(command: &'a mut Command, dir: &Path) -> &'a mut Command {
    command.env(DIR, dir)
}

/// The directory that the test chose for this process's role.
pub fn my_dir() -> PathBuf {
    PathBuf::from(std::env::var_os(DIR).expect("this role is started with a directory"))
}

/// Sets the daemon's socket for a role. The role reads it with [`my_socket`].
pub fn at_socket<'a>(command: &'a mut Command, socket: &Path) -> &'a mut Command {
    command.env(SOCKET, socket)
}

/// The daemon's socket that the test chose for this process's role.
pub fn my_socket() -> PathBuf {
    PathBuf::from(std::env::var_os(SOCKET).expect("this role is started with a socket"))
}

/// Makes a command that runs `program` as user and group `uid`, without other groups. Returns `None`, and prints the reason, if that is not
/// possible here.
pub fn as_user(test: &str, uid: u32, program: &Path) -> Option<Command> {
    if !is_root() {
        skip(test, "only root can start a process of another user");
        return None;
    }
    let setpriv = |program: &Path| {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={uid}"), format!("--regid={uid}")]).arg("--clear-groups").arg(program);
        command
    };
    let tried = setpriv(Path::new("test")).arg("-x").arg(program).status();
    if tried.is_ok_and(|status| status.success()) {
        return Some(setpriv(program));
    }
    skip(
        test,
        format!(
            "no setpriv, or uid {uid} may not run {}: give it a target directory that all can read",
            program.display()
        ),
    );
    None
}
