//! The real daemon `shmcastd`, with one channel.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running `shmcastd` of this suite, with the channel `t`. Dropping this value ends the daemon.
#[derive(Debug)]
pub struct Daemon {
    program: PathBuf,
    config: PathBuf,
    /// The daemon's socket.
    pub socket: PathBuf,
    child: Child,
}

impl Daemon {
    /// Starts a daemon whose files are in `dir`, and waits until it answers. `more` is added to the channel's configuration.
    ///
    /// # Errors
    /// If the daemon does not answer, or if `shmcastd` is neither in `$SHMCAST_BIN` nor beside this program.
    pub fn start(dir: &Path, capacity: u64, more: &str) -> Result<Self> {
        let program = match std::env::var_os("SHMCAST_BIN") {
            Some(bin) => PathBuf::from(bin).join("shmcastd"),
            None => beside()?,
        };
        let (config, socket) = (dir.join("shmcast.toml"), dir.join("control.sock"));
        let text = format!(
            "[daemon]\nsocket = {socket:?}\n\n[[channel]]\nname = \"t\"\ncapacity = \"{} KiB\"\nmlock = false\n{more}",
            capacity >> 10
        );
        fs::write(&config, text)?;
        let child = spawn(&program, &config)?;
        let this = Self { program, config, socket, child };
        this.wait()?;
        Ok(this)
    }

    /// Kills the daemon with SIGKILL.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts the daemon again after a kill.
    ///
    /// # Errors
    /// If the daemon does not answer.
    pub fn restart(&mut self) -> Result<()> {
        self.child = spawn(&self.program, &self.config)?;
        self.wait()
    }

    fn wait(&self) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(30);
        while shmcast::Client::at(&self.socket).is_err() {
            if Instant::now() > until {
                bail!("{} does not answer at {}", self.program.display(), self.socket.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// Returns the path of `shmcastd`, which is in the directory of this program. For tests, it is in the parent directory.
fn beside() -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let mut places = this.ancestors().skip(1).take(2).map(|dir| dir.join("shmcastd"));
    places.find(|path| path.exists()).context("no shmcastd beside this program: build it, or set SHMCAST_BIN")
}

fn spawn(program: &Path, config: &Path) -> Result<Child> {
    let mut command = Command::new(program);
    command.arg("--config").arg(config).stdin(Stdio::null()).stderr(Stdio::null());
    command.spawn().with_context(|| format!("cannot start {}", program.display()))
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
