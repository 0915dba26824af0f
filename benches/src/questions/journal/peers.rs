//! The recorders of other projects, compared with ours. A launcher starts each recorder in a separate process. The process publishes,
//! records, flushes and reads everything back. At the end, the process removes the recording.

use super::answer::{JournalAnswer, Lap, Sense};
use super::plan::Plan;
use crate::rig::probe::{Load, Quiet};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::path::Path;
use std::process::{Command, Stdio};

/// The peers that the launcher knows.
const PEERS: [&str; 6] = ["aeron0", "aeron0-crc", "aeron1", "chronicle", "chronicle-sync", "plain"];
/// The required ratio for some peers: our rate of recorded payload, divided by the peer's rate.
const MUST: [(&str, f64); 2] = [("aeron0", 1.0), ("aeron1", 3.0)];

/// A peer's report.
#[derive(Debug, Clone, Deserialize)]
struct Report {
    version: String,
    promise: String,
    messages: u64,
    payload_bytes: u64,
    /// The time until everything was recorded and the files were flushed, in seconds.
    flushed_seconds: f64,
    verified: u64,
    file_bytes: u64,
}

/// Plays the recorders of all other projects. Compares the rates in payload bytes a second.
pub(super) fn beside(
    plan: &Plan<'_>,
    answer: &mut JournalAnswer,
    launcher: &Path,
    (size, ours): (usize, Lap),
) -> Result<()> {
    let bytes = |rate: f64| rate / 1e6;
    let payload = ours.value;
    let measure = format!("payload of {size} B, durable at the end: shmcast");
    answer.add(3, &measure, ("-", "MB/s"), Sense::Shown, ours);
    for peer in PEERS {
        let (report, quiet) = play(plan, launcher, peer, size)?;
        let rate = bytes((report.messages * report.payload_bytes) as f64 / report.flushed_seconds);
        let Report { version, promise, messages, flushed_seconds, file_bytes, .. } = report;
        let a_message = file_bytes as f64 / messages as f64;
        let limit = format!(
            "{version}; {messages} messages, flushed after {flushed_seconds:.1} s, {a_message:.1} B each; after a power cut: {promise}"
        );
        let lap = |value, bound, limit| Lap { value, bound, limit, quiet };
        let measure = format!("payload of {size} B, flushed at the end: {peer}");
        answer.add(3, &measure, ("-", "MB/s"), Sense::Shown, lap(rate, 0.0, limit));
        if let Some((_, must)) = MUST.iter().find(|(name, _)| *name == peer) {
            let measure = format!("payload of {size} B to that of {peer}");
            let limit = format!("{payload:.0} beside {rate:.0} MB/s");
            let text = if *must > 1.0 { format!(">= {must}") } else { "> 1".into() };
            answer.add(3, &measure, (&text, "times"), Sense::AtLeast, lap(payload / rate, *must, limit));
        }
    }
    Ok(())
}

/// Plays one peer. The peer must read back the messages that it published.
fn play(plan: &Plan<'_>, launcher: &Path, peer: &str, size: usize) -> Result<(Report, Quiet)> {
    let seconds = if plan.stage.quick { 1.0 } else { plan.ask.seconds };
    let load = Load::begin(std::iter::empty())?;
    let output = Command::new(launcher)
        .arg(peer)
        .args(["--size", &size.to_string(), "--seconds", &seconds.to_string(), "--dir"])
        .arg(plan.disk)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {}", launcher.display()))?;
    let quiet = load.end()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{peer}: {}", said.lines().last().unwrap_or("it failed without a word"));
    let report: Report =
        serde_json::from_slice(&output.stdout).with_context(|| format!("the report of {peer}"))?;
    let Report { messages, verified, payload_bytes, .. } = report;
    ensure!(messages > 0 && verified == messages, "{peer}: of {messages} messages {verified} came back");
    ensure!(payload_bytes == size as u64, "{peer} published {payload_bytes} B a message, and not {size}");
    Ok((report, quiet))
}
