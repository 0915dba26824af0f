//! The two services that every child process of a round uses: a line to the rig, and a CPU of its own.

use anyhow::{Context, Result};
use std::io::Write;

/// Prints one line for the rig.
///
/// # Errors
/// When the rig has ended.
pub fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("the rig has ended")
}

/// Binds the calling thread to `cpu`. Does nothing for `None`.
///
/// # Errors
/// When there is no such CPU.
pub fn bind(cpu: Option<usize>) -> Result<()> {
    cpu.map_or(Ok(()), |cpu| shmcast::pin_current_thread(cpu).with_context(|| format!("bind to CPU {cpu}")))
}
