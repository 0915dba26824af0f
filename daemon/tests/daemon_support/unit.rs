//! The daemon as the shipped unit runs it, on hosts where PID 1 is not systemd; see `shmcast_under_unit`.
//!
//! With `SHMCAST_UNDER_UNIT=1`, every daemon of a suite runs so: `SHMCAST_UNDER_UNIT=1 cargo test -p shmcast-daemon --test bridge`. Some
//! tests always use the unit. The test program starts itself again, restricts itself, and replaces itself by the daemon.
#![allow(dead_code, reason = "each test file uses a part of it")]

use shmcast_under_unit::{Settings, exec, missing};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that makes all daemons run under the unit.
const ASKED: &str = "SHMCAST_UNDER_UNIT";
/// The path of the socket of a daemon under the unit: `control.sock` in its runtime directory.
pub(crate) const SOCKET: &str = "/run/shmcast/control.sock";
const UNIT: &str = "SHMCAST_TEST_UNIT";
const RUNTIME: &str = "SHMCAST_TEST_RUNTIME";

/// The path of the shipped unit.
pub(crate) fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd/shmcastd.service")
}

/// The shipped unit, if every daemon must run under it.
///
/// # Panics
/// If the unit is requested and cannot be applied here. Otherwise the tests would pass, and seem to have tested the unit.
pub(crate) fn asked() -> Option<PathBuf> {
    std::env::var_os(ASKED).filter(|value| value == "1")?;
    if let Some(reason) = missing() {
        panic!("{ASKED}=1, and {reason}");
    }
    Some(shipped())
}

/// The shipped unit, for a test that always runs under it. If it cannot be applied here, prints the reason and returns
/// `None`.
pub(crate) fn shipped_for(test: &str) -> Option<PathBuf> {
    match missing() {
        None => Some(shipped()),
        Some(reason) => {
            eprintln!("SKIPPED {test}: {reason}");
            None
        }
    }
}

/// The beginning of a command line. A program that is appended to it runs under the restrictions of `unit`, and sees `runtime` as
/// `/run/shmcast`.
pub(crate) fn launcher(unit: &Path, runtime: &Path) -> Vec<OsString> {
    let (_, module) = module_path!().split_once("::").expect("this is a module of a test program");
    let pair = |name: &str, value: &Path| OsString::from(format!("{name}={}", value.display()));
    let mut words = vec![OsString::from("env"), pair(UNIT, unit), pair(RUNTIME, runtime)];
    words.push(std::env::current_exe().unwrap().into());
    let launch = format!("{module}::launch");
    let harness = [&launch, "--exact", "--ignored", "--nocapture", "--test-threads=1", "-q", "--"];
    words.extend(harness.map(OsString::from));
    words
}

/// A command that runs `program` under the restrictions of `unit`.
pub(crate) fn command(unit: &Path, runtime: &Path, program: &Path) -> Command {
    let words = launcher(unit, runtime);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(program);
    command
}

#[test]
#[ignore = "becomes the program that its command line ends with"]
fn launch() {
    let (Some(unit), Some(runtime)) = (std::env::var_os(UNIT), std::env::var_os(RUNTIME)) else {
        return; // Somebody runs all ignored tests.
    };
    let program: Vec<OsString> = std::env::args_os().skip_while(|word| word != "--").skip(1).collect();
    let settings = Settings::read(&fs::read_to_string(unit).unwrap()).unwrap();
    let Err(e) = exec(&settings, Path::new(&runtime), &program);
    panic!("{e:#}");
}
