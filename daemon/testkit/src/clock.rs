//! Wall clocks that a test sets, one for each process or host. Other clocks, such as the clocks of waits and leases, are not changed.

use crate::place::skip;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A library that shifts the wall clock of each process into which it is preloaded. The library reads the offset from a file.
pub struct WallClock {
    library: PathBuf,
    offset: PathBuf,
}

impl WallClock {
    /// Makes a clock that shows the true time until [`set`](Self::set) is called. Its files are in `dir`. If the machine has no C compiler,
    /// prints that `test` is skipped, and returns `None`.
    pub fn make(test: &str, dir: &Path) -> Option<Self> {
        let (library, offset) = (dir.join("clock.so"), dir.join("clock-offset"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/clock.c");
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
        let built = command.arg(&library).arg(source).stdin(Stdio::null()).output();
        let Ok(built) = built else {
            skip(test, "cc is not installed");
            return None;
        };
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        std::fs::write(&offset, 0i64.to_ne_bytes()).unwrap();
        Some(Self { library, offset })
    }

    /// Makes a command run with this clock. Call this before the command starts.
    pub fn give(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("SHMCAST_TEST_CLOCK", &self.offset);
    }

    /// Sets the clock this many seconds ahead of the true time, or behind the true time if `seconds` is negative. Running processes see the
    /// new time immediately.
    pub fn set(&self, seconds: i64) {
        let file = File::options().write(true).open(&self.offset).unwrap();
        file.write_all_at(&(seconds * 1_000_000_000).to_ne_bytes(), 0).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_the_clock_that_is_set() {
        let dir = tempfile::tempdir().unwrap();
        let Some(clock) = WallClock::make("a_process_has_the_clock_that_is_set", dir.path()) else { return };
        let shown = || {
            let mut date = Command::new("date");
            clock.give(date.arg("+%s"));
            String::from_utf8(date.output().unwrap().stdout).unwrap().trim().parse::<i64>().unwrap()
        };
        let now = shown();
        for seconds in [144_000, -144_000, 0] {
            clock.set(seconds);
            let ahead = shown() - now;
            assert!((seconds..seconds + 60).contains(&ahead), "{ahead} instead of {seconds}");
        }
    }
}
