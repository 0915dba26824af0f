//! Functions that every child process of a round uses: they exchange lines with the rig, and bind the process
//! to a CPU.

use anyhow::{Context, Result, ensure};
use std::io::Write;

/// Prints one line for the rig.
///
/// # Errors
/// If the rig has ended.
pub fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("the rig has ended")
}

/// Waits for the rig's next line, which must be this word.
///
/// # Errors
/// If the rig has ended, or sends another line.
pub fn wait_for(word: &str) -> Result<()> {
    let mut line = String::new();
    ensure!(std::io::stdin().read_line(&mut line)? > 0, "the rig is gone");
    let said = line.trim_end();
    ensure!(said == word, "expected {word}, the rig said {said}");
    Ok(())
}

/// Binds the calling thread to `cpu`. Does nothing for `None`.
///
/// # Errors
/// If the CPU does not exist.
pub fn bind(cpu: Option<usize>) -> Result<()> {
    cpu.map_or(Ok(()), |cpu| shmcast::pin_current_thread(cpu).with_context(|| format!("bind to CPU {cpu}")))
}
