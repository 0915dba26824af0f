//! Runs the daemon under the restrictions of the shipped unit, on hosts where PID 1 is not systemd. `shmcast_under_unit` applies the
//! restrictions.
//!
//! Some tests always use the restrictions. With `SHMCAST_UNDER_UNIT=1`, all daemons of a test have them: `SHMCAST_UNDER_UNIT=1 cargo test
//! -p shmcast-daemon --test bridge`.
//!
//! The test program starts itself again. The new process restricts itself, and then executes the daemon. For this, each test program that
//! starts daemons has an ignored test `launch` at its root, which calls [`launch`].

use crate::place::skip;
use shmcast_under_unit::{Settings, exec, missing};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that makes all daemons run under the unit.
const ASKED: &str = "SHMCAST_UNDER_UNIT";
/// The socket's path of a daemon under the unit: `control.sock` in the unit's runtime directory.
pub const SOCKET: &str = "/run/shmcast/control.sock";
const UNIT: &str = "SHMCAST_TEST_UNIT";
const RUNTIME: &str = "SHMCAST_TEST_RUNTIME";

/// The path of the shipped unit.
pub fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../systemd/shmcastd.service")
}

/// Returns the shipped unit if `SHMCAST_UNDER_UNIT=1` requests it for every daemon.
///
/// # Panics
/// If the unit is requested and cannot be applied here. Without the panic, the tests would pass, and seem to have tested the unit.
pub fn asked() -> Option<PathBuf> {
    std::env::var_os(ASKED).filter(|value| value == "1")?;
    if let Some(reason) = missing() {
        panic!("{ASKED}=1, and {reason}");
    }
    Some(shipped())
}

/// Returns the shipped unit, for a test that cannot run without it. If the unit cannot be applied here, prints the reason and returns
/// `None`. The test must then end.
pub fn shipped_for(test: &str) -> Option<PathBuf> {
    match missing() {
        None => Some(shipped()),
        Some(reason) => {
            skip(test, reason);
            None
        }
    }
}

/// Returns the beginning of a command line. If a program is appended, the program runs under `unit`, and sees the directory `runtime` as
/// `/run/shmcast`.
pub fn launcher(unit: &Path, runtime: &Path) -> Vec<OsString> {
    let pair = |name: &str, value: &Path| OsString::from(format!("{name}={}", value.display()));
    let mut words = vec![OsString::from("env"), pair(UNIT, unit), pair(RUNTIME, runtime)];
    words.push(std::env::current_exe().unwrap().into());
    let harness = ["launch", "--exact", "--ignored", "--nocapture", "--test-threads=1", "-q", "--"];
    words.extend(harness.map(OsString::from));
    words
}

/// Returns a command that runs `program` under `unit`.
pub fn command(unit: &Path, runtime: &Path, program: &Path) -> Command {
    let words = launcher(unit, runtime);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(program);
    command
}

/// The body of a test program's ignored test `launch`. Restricts this process, and then executes the program that the command line names
/// after `--`. Returns only if the test was not started by [`launcher`].
pub fn launch() {
    let (Some(unit), Some(runtime)) = (std::env::var_os(UNIT), std::env::var_os(RUNTIME)) else { return };
    let program: Vec<OsString> = std::env::args_os().skip_while(|word| word != "--").skip(1).collect();
    let settings = Settings::read(&fs::read_to_string(unit).unwrap()).unwrap();
    let Err(e) = exec(&settings, Path::new(&runtime), &program);
    panic!("{e:#}");
}
