//! The programs for playing a story.

use super::clock::Clock;
use super::pipes::{Piped, Pipes};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The paths of the programs.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The command of this package, which is also the actor.
    pub chaos: PathBuf,
    /// The daemon.
    pub shmcastd: PathBuf,
    /// The command.
    pub shmcast: PathBuf,
    /// Commands of testees in other languages. Some readers are such testees.
    pub testees: Vec<String>,
    /// The corrected mistake that is planted again, if any. Then the programs must have been built with `--cfg shmcast_faults`.
    pub fault: Option<String>,
    /// The pipes through which processes under limits write their logs and stderr. `None` for plain files.
    pub pipes: Option<Pipes>,
    /// The wall clock that the programs have. `None` for the true one.
    pub clock: Option<Clock>,
}

impl Programs {
    /// Finds the programs in `dir`.
    ///
    /// # Errors
    /// The name of the missing program, and the command that builds it.
    pub fn in_dir(dir: &Path) -> Result<Self> {
        let program = |name: &str| {
            let path = dir.join(name);
            if path.is_file() {
                return Ok(path);
            }
            bail!("no {name} in {}: cargo build -p shmcast-daemon -p shmcast-chaos", dir.display())
        };
        Ok(Self {
            chaos: program("shmcast-chaos")?,
            shmcastd: program("shmcastd")?,
            shmcast: program("shmcast")?,
            testees: Vec::new(),
            fault: None,
            pipes: None,
            clock: None,
        })
    }

    /// Finds the programs in the directory of this program.
    ///
    /// # Errors
    /// The name of the missing program, and the command that builds it.
    pub fn beside_this() -> Result<Self> {
        let this = std::env::current_exe().context("find this program")?;
        Self::in_dir(this.parent().context("this program lies in no directory")?)
    }

    /// Makes a command for `program`. The command does not inherit the environment variables that would lead it to other channels.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        self.cleanse(&mut command);
        command
    }

    /// Removes the environment variables that would lead a command to other channels, and sets the planted
    /// fault.
    pub(super) fn cleanse(&self, command: &mut Command) {
        for variable in
            ["SHMCAST_DIR", "SHMCAST_SOCKET", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "RUST_LOG"]
        {
            command.env_remove(variable);
        }
        if let Some(clock) = &self.clock {
            clock.give(command);
        }
        match &self.fault {
            Some(fault) => command.env("SHMCAST_FAULT", fault),
            None => command.env_remove("SHMCAST_FAULT"),
        };
    }
    /// Lets a program append its stderr to the file at `path`, through a pipe if the story has limits.
    pub(super) fn words_to(&self, command: &mut Command, path: &Path) -> Result<Option<Piped>> {
        let Some(pipes) = &self.pipes else {
            command.stderr(File::options().create(true).append(true).open(path)?);
            return Ok(None);
        };
        let (writer, piped) = pipes.to(path)?;
        command.stderr(writer);
        Ok(Some(piped))
    }
}
