//! The transports of peers. They are in a separate program (`peers/` beside this package) with its own lock file, so that a build of
//! shmcast does not build other projects. The rig starts this program with `play TASK`. With `list`, the program prints the names of its
//! transports.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;

/// A transport that a peers' program offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The name by which the transport is requested.
    pub name: String,
    /// The version of the project that was built into the program.
    pub version: String,
}

/// Asks the peers' program for its transports.
///
/// # Errors
/// When the program cannot be started, or gives an answer that is not valid.
pub fn list(program: &Path) -> Result<Vec<Peer>> {
    let out = Command::new(program).arg("list").output().with_context(|| {
        format!("start {}: build it with `benches/peers/build.sh`, which prints its path", program.display())
    })?;
    ensure!(
        out.status.success(),
        "{} list: {}\n{}",
        program.display(),
        out.status,
        String::from_utf8_lossy(&out.stderr).trim()
    );
    serde_json::from_slice(&out.stdout).with_context(|| {
        format!("{} list answered no list of peers; is it a peers' program?", program.display())
    })
}
