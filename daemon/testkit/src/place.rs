//! Places for a test, and what this machine lacks.

use std::fmt::Display;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A directory for one test, in memory if the machine has `/dev/shm`. It is removed when dropped.
pub fn scratch() -> TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix("shmcast-test-");
    builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir()).expect("a directory for scratch files")
}

/// Prints that a test cannot run here, and why. CI counts these lines.
pub fn skip(test: &str, reason: impl Display) {
    eprintln!("SKIPPED {test}: {reason}");
}

/// Whether this process is root's.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Whether a command exists and succeeds.
pub fn works(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A TCP port of the loopback interface that nobody has at the moment. Another process may take it before the test does.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A program of this workspace, as cargo built it for the profile of the running test.
///
/// # Panics
/// If it is not there. Cargo builds the programs of a package before the tests of that package, and those of other packages only
/// when they are named or with `--workspace`.
pub fn program(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("this program's own path");
    let profile = this.parent().and_then(|deps| deps.parent()).expect("tests lie in the directory deps");
    let program = profile.join(name);
    assert!(program.exists(), "{} is not built: cargo build -p shmcast-daemon", program.display());
    program
}
