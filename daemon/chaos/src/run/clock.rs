//! The wall clock that the programs of a story read. Steps set this clock.

use anyhow::Result;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use tempfile::TempDir;

/// The clock that steps set, and the library that gives it to programs.
#[derive(Debug, Clone)]
pub struct Clock {
    room: Arc<TempDir>,
}

impl Clock {
    /// Makes a clock that shows the true time. Returns `None` if there is no C compiler.
    pub(super) fn make() -> Result<Option<Self>> {
        let clock = Self { room: Arc::new(TempDir::new()?) };
        // The daemon can be another user's.
        fs::set_permissions(clock.room.path(), Permissions::from_mode(0o755))?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/src/clock.c");
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(clock.room.path().join("clock.so")).arg(source);
        let is_built = command.stdin(Stdio::null()).status().is_ok_and(|status| status.success());
        fs::write(clock.offset(), 0_i64.to_ne_bytes())?;
        Ok(is_built.then_some(clock))
    }

    fn offset(&self) -> PathBuf {
        self.room.path().join("offset")
    }

    /// Gives a program this clock.
    pub(super) fn give(&self, command: &mut Command) {
        command.env("LD_PRELOAD", self.room.path().join("clock.so")).env("SHMCAST_TEST_CLOCK", self.offset());
    }

    pub(super) fn set(&self, seconds: i64) -> Result<()> {
        let file = File::options().write(true).open(self.offset())?;
        Ok(file.write_all_at(&(seconds * 1_000_000_000).to_ne_bytes(), 0)?)
    }
}
