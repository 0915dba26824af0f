//! The peers' transports live in a program of their own (`peers/` beside this package), with a lock file of its own, so that
//! a build of shmcast does not build them. It plays the same roles by the same rules: the rig starts it with the same
//! `play TASK`, and asks it with `list` for its transports.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;

/// A transport that a peers' program offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The name to ask for it by.
    pub name: String,
    /// The release that was built in.
    pub version: String,
}

/// Asks the peers' program for its transports.
///
/// # Errors
/// When it cannot be started or does not answer as a peers' program does.
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
