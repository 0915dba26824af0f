//! Child processes of a test. None outlives the test that started it.
//!
//! A test program can start itself again in a *role*: the child runs the ignored test `play`, which looks at [`my_role`]. So
//! a test has real processes without programs of their own.

use crate::place::{is_root, skip};
use crate::wait::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

/// The variable that names a child's role.
pub const ROLE: &str = "SHMCAST_TEST_ROLE";
const DIR: &str = "SHMCAST_TEST_DIR";

/// A child process. It is killed and reaped when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts it.
    pub fn start(command: &mut Command) -> Self {
        let child = command.spawn().unwrap_or_else(|e| panic!("{:?}: {e}", command.get_program()));
        Self { child }
    }

    /// The child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its process id, for calls of nix.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("a child that was not waited for");
    }

    /// Stops it, and waits until all of it has stopped.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
        wait_for("the process to stop", || (self.state() == 'T').then_some(()));
    }

    /// Continues it after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// The letter of its state in `/proc/PID/stat`.
    fn state(&self) -> char {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?')
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("a child of ours").is_none()
    }

    /// Its exit status, if it has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of ours")
    }

    /// Kills it with SIGKILL, and waits for its end. It must not have ended by itself.
    pub fn kill(mut self) {
        self.child.kill().expect("a child of ours");
        let status = self.child.wait().expect("a child of ours");
        assert!(status.code().is_none(), "it had ended by itself: {status}");
    }

    /// Waits until it ends by itself. Returns its exit status.
    pub fn wait(&mut self) -> ExitStatus {
        wait_for("the end of a process", || self.try_wait())
    }

    /// Waits until it ends by itself. It must succeed.
    pub fn end(mut self) {
        let status = self.wait();
        assert!(status.success(), "{status}: its output is above");
    }

    /// Waits until it ends by itself, and reads its pipes meanwhile, so that a full one does not hold it up.
    pub fn output(mut self) -> Output {
        let (out, err) = (self.child.stdout.take(), self.child.stderr.take());
        let (out, err) = (std::thread::spawn(|| read_all(out)), std::thread::spawn(|| read_all(err)));
        let status = self.wait();
        Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
    }

    /// Sends a signal that ends it, and waits for its end.
    pub fn end_by(&mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail for a child that was waited for, which is fine.
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

/// Runs a command to its end. If it failed, the error is its status and what it wrote to stderr.
pub fn run(command: &mut Command) -> Result<Output, String> {
    let output = command.output().map_err(|e| format!("{:?}: {e}", command.get_program()))?;
    match output.status.success() {
        true => Ok(output),
        false => Err(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

/// A command that starts this test program again in the role `name`: it runs the ignored test `play` of the caller's module
/// or of the one that is named. The role is the whole text; words behind the first blank are the role's arguments.
///
/// `role!("read 5")` runs `play` of the module in which it stands; `role!(in "front", "read 5")` runs `front::play`;
/// `role!(under ["strace", "-f"], "read 5")` has the command that is given start it.
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

/// A path of a module without the crate's name.
pub fn within(module_path: &str) -> &str {
    module_path.split_once("::").map_or("", |(_, module)| module)
}

/// As [`role!`] with a module, whose path has no name of a crate; the empty path is the program's root.
pub fn role_in(module: &str, name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program's own path"));
    as_role(&mut command, module, name);
    command
}

/// As [`role_in`], started by `command`, whose last words become this program and what it needs to play the role.
pub fn role_under(command: &[&str], module: &str, name: &str) -> Command {
    let (program, arguments) = command.split_first().expect("a command has a program");
    let mut command = Command::new(program);
    command.args(arguments).arg(std::env::current_exe().expect("this program's own path"));
    as_role(&mut command, module, name);
    command
}

/// As [`role_in`], under another user. If that is not possible here, prints the reason and returns `None`.
pub fn role_as(test: &str, uid: u32, module: &str, name: &str) -> Option<Command> {
    let program = std::env::current_exe().expect("this program's own path");
    let mut command = as_user(test, uid, &program)?;
    as_role(&mut command, module, name);
    Some(command)
}

/// Appends the words to `command`, which is this program or starts it, that make it play a role.
pub fn as_role(command: &mut Command, module: &str, name: &str) {
    let play = if module.is_empty() { "play".to_owned() } else { format!("{module}::play") };
    command.args([&play, "--exact", "--ignored", "--nocapture", "--test-threads=1", "-q"]).env(ROLE, name);
    command.stdin(Stdio::null()).stdout(Stdio::null());
}

/// The role that this process was started for; `None` in the test program itself.
pub fn my_role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Gives a role the directory that [`my_dir`] returns.
pub fn in_dir<'a>(command: &'a mut Command, dir: &Path) -> &'a mut Command {
    command.env(DIR, dir)
}

/// The directory of the role that this process was started for.
pub fn my_dir() -> PathBuf {
    PathBuf::from(std::env::var_os(DIR).expect("this role is started with a directory"))
}

/// A command that runs `program` as user and group `uid`, without other groups. If that is not possible here, prints the
/// reason and returns `None`.
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
