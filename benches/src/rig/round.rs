//! Runs one round: starts the processes, waits until all are attached, lets them begin, and collects their reports.
//!
//! The publisher starts first, because receivers attach to its channel. No message is sent before all receivers have attached, so a missing
//! message was certainly lost.

use crate::rig::bridge::{BridgeProcesses, BridgeReport};
use crate::rig::files::{self, read_words};
use crate::rig::player::{Daemon, Player};
use crate::rig::probe::{Load, Quiet, resident_kib};
use crate::rig::program::Program;
use crate::rig::spec::{Published, Received, Spec, Task};
use crate::rig::stats::{Distribution, histogram};
use crate::rig::visitors::{self, Visits};
use crate::rig::windows::Window;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The result of a round. Latencies are in nanoseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// The round that was requested.
    pub spec: Spec,
    /// The time when the round ended, in seconds since 1970.
    pub ended_at: u64,
    /// The number of messages that all receivers together should have received.
    pub expected: u64,
    /// The sum of the receivers' reports. `span` is the time from the first receipt of any receiver to the last receipt of any receiver.
    pub received: Received,
    /// The publisher's report.
    pub published: Published,
    /// Latency from the send to the receipt, at all receivers.
    pub one_way: Distribution,
    /// The latency from the intended time of the send to the receipt, at all receivers.
    pub response: Distribution,
    /// Latency from the send to the receipt by the last receiver.
    pub last: Distribution,
    /// The duration of a send.
    pub cost: Distribution,
    /// Messages a second from the first send to the last receipt. Only the messages that the slowest receiver got are counted.
    pub rate: f64,
    /// The state of the machine during the round: quiet or not.
    pub quiet: Quiet,
    /// The worst values of `response` over time: one value for each of up to 200 equal parts of the round. The report shows these values
    /// above the hiccups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worst: Vec<u64>,
    /// The windows of a long round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Moment>,
    /// The counts of receivers that came and went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visits: Option<Visits>,
    /// The bridge's report, if the messages crossed a bridge.
    #[serde(default, alias = "carried", skip_serializing_if = "Option::is_none")]
    pub bridge: Option<BridgeReport>,
}

/// One window of a long round.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Moment {
    /// The end of the window, in ns since the round began to count.
    pub at_ns: u64,
    /// The latencies of all messages at all receivers, from the intended send.
    pub response: Distribution,
    /// The duration of a send.
    pub cost: Distribution,
    /// The resident memory of the publisher in KiB; 0 if the kernel did not report it.
    pub publisher_kib: u64,
    /// The resident memory of the largest receiver in KiB; 0 if the kernel did not report it.
    pub receiver_kib: u64,
}

impl Outcome {
    /// Whether every receiver got every message once, in order, and with the right bytes.
    pub fn is_complete(&self) -> bool {
        let r = &self.received;
        r.delivered == self.expected
            && r.lost + r.duplicated + r.out_of_order + r.corrupt == 0
            && self.visits.as_ref().is_none_or(Visits::is_exact)
    }
}

/// The time for which receivers continue to receive after the end of the publisher.
const GRACE: Duration = Duration::from_millis(1500);

/// Runs a round with the child program `program`.
///
/// # Errors
/// When a process fails, or does not end in time. The other processes are then killed.
pub fn run(program: &Path, spec: &Spec) -> Result<Outcome> {
    let patience = Duration::from_secs(30)
        + Duration::from_nanos(spec.interval_ns * spec.total() * 3)
        + Duration::from_micros(spec.total() * spec.receivers as u64 * 5);
    let deadline = Instant::now() + patience;
    let daemon = Daemon::of(spec)?;
    let program = Program::copied(program)?;
    let program = &program.path();
    let mut publisher = Player::start(program, &Task::Publish(spec.clone()), "the publisher".into())?;
    publisher.expect_ready(deadline)?;
    let mut bridge = BridgeProcesses::of(spec)?;
    let mut receivers = (0..spec.receivers)
        .map(|i| Player::start(program, &Task::Receive(spec.clone(), i), format!("receiver {i}")))
        .collect::<Result<Vec<_>>>()?;
    receivers.iter().try_for_each(|receiver| receiver.expect_ready(deadline))?;
    std::thread::sleep(Duration::from_millis(5)); // let the last receiver reach its first poll
    let pids: Vec<u32> = receivers.iter().chain([&publisher]).map(|player| player.child.id()).collect();
    let bridges = bridge.iter().flat_map(BridgeProcesses::ids);
    let load = Load::begin(pids.iter().copied().chain(daemon.as_ref().map(Daemon::id)).chain(bridges))?;
    bridge.as_mut().map_or(Ok(()), BridgeProcesses::begin)?;
    publisher.tell("go")?;
    let aside = Aside::begin(program, spec, pids);
    let published = publisher.line(deadline, "report")?;
    let published: Published =
        serde_json::from_str(&published).with_context(|| format!("the publisher's report: {published}"))?;
    let (visits, memory) = aside.end()?;
    let reports = collect(spec, &mut receivers, deadline)?;
    let bridge = bridge.map(BridgeProcesses::end).transpose()?;
    publisher.tell("stop")?;
    receivers.iter_mut().chain([&mut publisher]).try_for_each(Player::wait)?;
    drop(daemon);
    let quiet = load.end()?;
    let windows = receivers.iter().map(Player::windows).collect::<Result<Vec<_>>>()?;
    let series = series(spec, &windows.concat(), &publisher.windows()?, &memory)?;
    let mut outcome = summarize(spec, published, &reports, quiet)?;
    (outcome.visits, outcome.bridge) = (visits, bridge);
    if !series.is_empty() {
        outcome.response = merged(series.iter().map(|moment| &moment.response))?;
        outcome.cost = merged(series.iter().map(|moment| &moment.cost))?;
        outcome.series = series;
    }
    Ok(outcome)
}

fn collect(spec: &Spec, receivers: &mut [Player], deadline: Instant) -> Result<Vec<Received>> {
    let mut reports = Vec::with_capacity(spec.receivers);
    // A gated round loses nothing, so every message arrives, however busy the machine is.
    let grace = if spec.gated { deadline } else { Instant::now() + GRACE };
    let mut stopped = false;
    for i in 0..receivers.len() {
        let report = match receivers[i].line(grace, "report") {
            Ok(report) => report,
            Err(_) => {
                if !std::mem::replace(&mut stopped, true) {
                    // A receiver that has sent its report has ended, so its pipe is closed.
                    receivers.iter_mut().for_each(|receiver| drop(receiver.tell("stop")));
                }
                receivers[i].line(Instant::now() + Duration::from_secs(10), "report")?
            }
        };
        let report: Received = serde_json::from_str(&report)
            .with_context(|| format!("the report of {}: {report}", receivers[i].name))?;
        reports.push(report);
    }
    Ok(reports)
}

/// The resident memory at the end of a window in KiB: that of the publisher, and that of the largest receiver.
type Memory = (u64, u64);

/// Additional threads of a round: a thread that plays the visitors, and a thread that measures the memory in use.
struct Aside {
    stop: Vec<mpsc::Sender<()>>,
    visits: Option<std::thread::JoinHandle<Result<Visits>>>,
    memory: Option<std::thread::JoinHandle<Vec<Memory>>>,
}

impl Aside {
    /// Starts the threads that the round needs. The last of `pids` is the publisher.
    fn begin(program: &Path, spec: &Spec, pids: Vec<u32>) -> Self {
        let mut stop = Vec::new();
        let mut stopped = || {
            let (sender, stopped) = mpsc::channel();
            stop.push(sender);
            stopped
        };
        let visits = spec.churn.is_some().then(|| {
            let (program, spec, stopped) = (program.to_owned(), spec.clone(), stopped());
            std::thread::spawn(move || visitors::host(&program, &spec, &stopped))
        });
        let memory = (spec.window_ns > 0).then(|| {
            let (stopped, every) = (stopped(), Duration::from_nanos(spec.window_ns));
            std::thread::spawn(move || {
                let mut memory = Vec::new();
                while stopped.recv_timeout(every).is_err_and(|e| e == mpsc::RecvTimeoutError::Timeout) {
                    let (publisher, receivers) = pids.split_last().expect("a round has a publisher");
                    let largest = receivers.iter().map(|pid| resident_kib(*pid)).max();
                    memory.push((resident_kib(*publisher), largest.unwrap_or(0)));
                }
                memory
            })
        });
        Self { stop, visits, memory }
    }

    fn end(self) -> Result<(Option<Visits>, Vec<Memory>)> {
        drop(self.stop);
        let visits = self.visits.map(|thread| thread.join().expect("it does not panic")).transpose()?;
        let memory = self.memory.map(|thread| thread.join().expect("it does not panic"));
        Ok((visits, memory.unwrap_or_default()))
    }
}

fn merged<'a>(distributions: impl Iterator<Item = &'a Distribution>) -> Result<Distribution> {
    let mut all = histogram();
    for distribution in distributions.filter(|distribution| distribution.count > 0) {
        all.add(distribution.decode()?).context("add a histogram")?;
    }
    Ok(Distribution::of(&all))
}

fn series(spec: &Spec, received: &[Window], published: &[Window], memory: &[Memory]) -> Result<Vec<Moment>> {
    let Some(last) = received.iter().chain(published).map(|window| window.index).max() else {
        return Ok(Vec::new());
    };
    let of = |windows: &[Window], index| {
        merged(windows.iter().filter(|window| window.index == index).map(|window| &window.distribution))
    };
    let moment = |index: u64| {
        let (publisher_kib, receiver_kib) = memory.get(index as usize).copied().unwrap_or_default();
        Ok(Moment {
            at_ns: (index + 1) * spec.window_ns,
            response: of(received, index)?,
            cost: of(published, index)?,
            publisher_kib,
            receiver_kib,
        })
    };
    (0..=last).map(moment).collect()
}

/// The number of parts of a round. The worst latency of each part is kept.
const PARTS: u64 = 200;

fn summarize(spec: &Spec, published: Published, reports: &[Received], quiet: Quiet) -> Result<Outcome> {
    let (mut one_way, mut response, mut last) = (histogram(), histogram(), histogram());
    let parts = spec.messages.min(PARTS) as usize;
    let mut worst = vec![0; parts];
    if spec.is_kept_each() {
        let lateness = read_words(&files::lateness(spec))?;
        let mut slowest = vec![0; lateness.len()];
        for i in 0..spec.receivers {
            let latencies = read_words(&files::one_way(spec, i))?;
            ensure!(
                latencies.len() == lateness.len() && lateness.len() as u64 == spec.messages,
                "{} messages, {} times of sends and {} of receipts: the program's report is no report of this round",
                spec.messages,
                lateness.len(),
                latencies.len()
            );
            for (place, ((&ns, &late), slowest)) in
                latencies.iter().zip(&lateness).zip(&mut slowest).enumerate()
            {
                if ns > 0 {
                    let response_ns = u64::from(ns) + u64::from(late);
                    one_way.saturating_record(ns.into());
                    response.saturating_record(response_ns);
                    *slowest = ns.max(*slowest);
                    let part = &mut worst[place * parts / lateness.len()];
                    *part = response_ns.max(*part);
                }
            }
        }
        slowest.iter().filter(|ns| **ns > 0).for_each(|&ns| last.saturating_record(ns.into()));
    }
    let cost = Distribution::of_values(read_words(&files::cost(spec))?.into_iter().map(u64::from));
    let mut received = Received::default();
    reports.iter().for_each(|report| received.add(report));
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
        worst: if spec.is_kept_each() { worst } else { Vec::new() },
        series: Vec::new(),
        visits: None,
        bridge: None,
        published,
    })
}
