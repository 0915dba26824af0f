//! Runs one round: starts the processes, waits until all are attached, lets them go, collects what they saw.
//!
//! The publisher comes first, because receivers attach to what it makes. Nobody is let go before everybody is ready,
//! so a message that is missing was lost and not merely early.

use crate::rig::probe::{Load, Quiet};
use crate::rig::spec::{Published, Received, Spec, Task, Usage};
use crate::rig::stats::{Distribution, histogram};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The files of a round, in its directory.
pub mod files {
    use super::{PathBuf, Spec};

    /// The gate's memory.
    pub fn gate(spec: &Spec) -> PathBuf {
        spec.dir.join("gate")
    }

    /// Latencies of one receiver.
    pub fn one_way(spec: &Spec, receiver: usize) -> PathBuf {
        spec.dir.join(format!("one-way-{receiver}"))
    }

    /// Lateness of each send.
    pub fn lateness(spec: &Spec) -> PathBuf {
        spec.dir.join("lateness")
    }

    /// What each send took.
    pub fn cost(spec: &Spec) -> PathBuf {
        spec.dir.join("cost")
    }
}

/// Writes 32-bit words, little-endian.
///
/// # Errors
/// What the file system says.
pub fn write_words(path: &Path, words: &[u32]) -> Result<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(path, bytes).with_context(|| format!("write {}", path.display()))
}

fn read_words(path: &Path) -> Result<Vec<u32>> {
    let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    Ok(bytes.chunks_exact(4).map(word).collect())
}

/// What a round gave. Latencies are in nanoseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// What was asked.
    pub spec: Spec,
    /// When it ended, in seconds since 1970.
    pub ended_at: u64,
    /// Messages that each receiver should have got, over all receivers.
    pub expected: u64,
    /// What the receivers counted, summed; the span is from the first receipt to the last.
    pub received: Received,
    /// What the publisher said.
    pub published: Published,
    /// From the send to the receipt, all receivers.
    pub one_way: Distribution,
    /// From the intended time of the send to the receipt, all receivers.
    pub response: Distribution,
    /// From the send to the receipt by the last receiver.
    pub last: Distribution,
    /// The publisher's time inside a send.
    pub cost: Distribution,
    /// Messages a second from the first send to the last receipt, of those delivered to the slowest receiver.
    pub rate: f64,
    /// How quiet the machine was.
    pub quiet: Quiet,
}

impl Outcome {
    /// Whether every receiver got every message once, in order, whole.
    pub fn is_complete(&self) -> bool {
        let r = &self.received;
        r.delivered == self.expected && r.lost + r.duplicated + r.out_of_order + r.corrupt == 0
    }
}

/// A child that speaks lines.
struct Player {
    child: Child,
    lines: mpsc::Receiver<String>,
    name: String,
}

impl Player {
    fn start(program: &Path, task: &Task, name: String) -> Result<Self> {
        let mut child = Command::new(program)
            .arg("play")
            .arg(serde_json::to_string(task)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let out = child.stdout.take().expect("it was piped");
        Ok(Self { child, lines: lines_of(out), name })
    }

    fn line(&self, deadline: Instant, what: &str) -> Result<String> {
        self.lines
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            .map_err(|e| anyhow::anyhow!("{} gave no {what}: {e}", self.name))
    }

    fn tell(&mut self, word: &str) -> Result<()> {
        let stdin = self.child.stdin.as_mut().expect("it was piped");
        writeln!(stdin, "{word}").with_context(|| format!("tell {} to {word}", self.name))
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill(); // has ended already unless the round failed
        let _ = self.child.wait();
    }
}

fn lines_of(out: ChildStdout) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// After the publisher has ended, receivers get this long for what is still on its way.
const GRACE: Duration = Duration::from_millis(1500);

/// Runs a round with the child program `program`.
///
/// # Errors
/// When a process fails, or does not end in time; the rest are killed then.
pub fn run(program: &Path, spec: &Spec) -> Result<Outcome> {
    let patience = Duration::from_secs(30)
        + Duration::from_nanos(spec.interval_ns * spec.total() * 3)
        + Duration::from_micros(spec.total() * spec.receivers as u64 * 5);
    let deadline = Instant::now() + patience;
    let mut publisher = Player::start(program, &Task::Publish(spec.clone()), "the publisher".into())?;
    expect_ready(&publisher, deadline)?;
    let mut receivers = (0..spec.receivers)
        .map(|i| Player::start(program, &Task::Receive(spec.clone(), i), format!("receiver {i}")))
        .collect::<Result<Vec<_>>>()?;
    receivers.iter().try_for_each(|receiver| expect_ready(receiver, deadline))?;
    std::thread::sleep(Duration::from_millis(5)); // let the last of them reach its first poll
    let load = Load::begin(receivers.iter().chain([&publisher]).map(|player| player.child.id()))?;
    publisher.tell("go")?;
    let published: Published = serde_json::from_str(&publisher.line(deadline, "report")?)?;
    let mut reports = Vec::with_capacity(spec.receivers);
    // Behind a gate nothing can be lost, so everything will come, however busy the machine.
    let grace = if spec.gated { deadline } else { Instant::now() + GRACE };
    let mut stopped = false;
    for i in 0..receivers.len() {
        let report = match receivers[i].line(grace, "report") {
            Ok(report) => report,
            Err(_) => {
                if !std::mem::replace(&mut stopped, true) {
                    // One that has reported and gone no longer listens.
                    receivers.iter_mut().for_each(|receiver| drop(receiver.tell("stop")));
                }
                receivers[i].line(Instant::now() + Duration::from_secs(10), "report")?
            }
        };
        let report: Received = serde_json::from_str(&report)
            .with_context(|| format!("the report of {}: {report}", receivers[i].name))?;
        reports.push(report);
    }
    publisher.tell("stop")?;
    for player in receivers.iter_mut().chain([&mut publisher]) {
        player.child.wait().with_context(|| format!("wait for {}", player.name))?;
    }
    let quiet = load.end()?;
    summarize(spec, published, &reports, quiet)
}

fn expect_ready(player: &Player, deadline: Instant) -> Result<()> {
    match player.line(deadline, "sign of being ready")?.as_str() {
        "ready" => Ok(()),
        other => bail!("{} said: {other}", player.name),
    }
}

fn summarize(spec: &Spec, published: Published, reports: &[Received], quiet: Quiet) -> Result<Outcome> {
    let (mut one_way, mut response, mut last) = (histogram(), histogram(), histogram());
    if spec.interval_ns > 0 {
        let lateness = read_words(&files::lateness(spec))?;
        let mut slowest = vec![0; lateness.len()];
        for i in 0..spec.receivers {
            let latencies = read_words(&files::one_way(spec, i))?;
            for ((&ns, &late), slowest) in latencies.iter().zip(&lateness).zip(&mut slowest) {
                if ns > 0 {
                    one_way.saturating_record(ns.into());
                    response.saturating_record(u64::from(ns) + u64::from(late));
                    *slowest = ns.max(*slowest);
                }
            }
        }
        slowest.iter().filter(|ns| **ns > 0).for_each(|&ns| last.saturating_record(ns.into()));
    }
    let cost = Distribution::of_values(read_words(&files::cost(spec))?.into_iter().map(u64::from));
    let received = sum(reports);
    let clock = shmcast::Clock::of_this_host();
    let span_ns = clock.ns_between(published.span.0, received.span.1);
    let least = reports.iter().map(|r| r.delivered).min().unwrap_or(0);
    let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Ok(Outcome {
        spec: spec.clone(),
        ended_at: since_1970.as_secs(),
        expected: spec.messages * spec.receivers as u64,
        received,
        one_way: Distribution::of(&one_way),
        response: Distribution::of(&response),
        last: Distribution::of(&last),
        cost,
        rate: if span_ns == 0 { 0.0 } else { least as f64 * 1e9 / span_ns as f64 },
        quiet,
        published,
    })
}

fn sum(reports: &[Received]) -> Received {
    let mut total = Received { span: (u64::MAX, 0), ..Received::default() };
    for r in reports {
        total.delivered += r.delivered;
        total.lost += r.lost;
        total.duplicated += r.duplicated;
        total.out_of_order += r.out_of_order;
        total.corrupt += r.corrupt;
        total.reported_lost += r.reported_lost;
        if r.delivered > 0 {
            total.span = (total.span.0.min(r.span.0), total.span.1.max(r.span.1));
        }
        total.usage = Usage::sum(&total.usage, &r.usage);
    }
    total
}
