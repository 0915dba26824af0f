//! `shmcast hiccups`: measures the machine's own stalls for some time and shows them. The measurement is in [`crate::hiccups`]; this module
//! has the timing and the texts.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::IsTerminal,
    os::fd::AsFd,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};
use serde::Serialize;

use super::figures::{Ns, table};
use super::say;
use super::units::parse_duration;
use crate::{
    cpu_list::CpuList,
    hiccups::{CpuRecord, Log, Recorder, Stalls, allowed_cpus, steal_ns_by_cpu},
};

/// Measure how often and for how long the machine itself stalls.
///
/// One thread per CPU reads the clock in a loop. Every gap above the threshold is a stall that no program on that CPU could have avoided.
/// The threads keep their CPUs fully busy. Ctrl-C ends early and still shows the result.
///
/// Measure the CPUs that your programs use, and leave at least one CPU out. The thread that collects and prints the results needs a CPU,
/// too. If all CPUs are measured, this thread causes a stall once per interval on one of them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// CPUs to measure [default: all this process may use]
    #[arg(long, value_name = "LIST")]
    cpu: Option<CpuList>,

    /// How long to measure
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    duration: Duration,

    /// Record gaps longer than this many nanoseconds
    #[arg(long, value_name = "NS", default_value_t = 1000)]
    threshold_ns: u64,

    /// Interval at which a line is printed (on a terminal) and the log is written
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    interval: Duration,

    /// Write an HdrHistogram interval log, one entry per CPU and interval, tagged cpu0, cpu1, ...
    ///
    /// Any HdrHistogram log viewer opens it. Values are nanoseconds.
    #[arg(long, value_name = "FILE.hlog")]
    log: Option<PathBuf>,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  shmcast hiccups --cpu 2-7 --duration 60s       the CPUs of a publisher and its readers
  shmcast hiccups --threshold-ns 10000 --log night.hlog --duration 8h --interval 1m
  shmcast hiccups --json | jq '.cpus[] | {cpu, max_ns}'";

/// Shortest interval. With shorter intervals, the collection of the results would dominate the measurement.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug, Serialize)]
struct Outcome {
    kernel: Option<String>,
    threshold_ns: u64,
    duration_ns: u64,
    ended_by: Ended,
    cpus: Vec<CpuOutcome>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Ended {
    Duration,
    Signal,
}

#[derive(Debug, Serialize)]
struct CpuOutcome {
    cpu: usize,
    stalls: u64,
    p50_ns: u64,
    p99_ns: u64,
    p99_9_ns: u64,
    max_ns: u64,
    stalled_ns: u64,
    stalled_percent: f64,
    /// The time for which the hypervisor kept the CPU from this machine, with a resolution of one tick, usually 10 ms. It is null if the
    /// kernel does not report it.
    steal_ns: Option<u64>,
    /// The number of times that the kernel ran another task on the CPU. It is null if the kernel does not report it.
    preemptions: Option<u64>,
    watched_ns: u64,
    clock_readings: u64,
}

/// Measures and prints. The exit code is always 0: stalls are a result, not an error.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(args.interval >= MIN_INTERVAL, "--interval must be at least {MIN_INTERVAL:?}");
    anyhow::ensure!(!args.duration.is_zero(), "--duration must be longer than nothing");
    let cpus = args.cpu.clone().map_or_else(allowed_cpus, Ok)?;
    // The signals are blocked before any thread starts. So all threads inherit the mask, and only the
    // descriptor gets the signal.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    signals.thread_block().context("cannot block SIGINT")?;
    let interrupt =
        SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC).context("cannot watch for Ctrl-C")?;
    let outcome = args.measure(&cpus, &interrupt)?;
    let text = if args.json { serde_json::to_string_pretty(&outcome)? } else { for_eyes(&outcome) };
    say::print(text)?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn measure(&self, cpus: &CpuList, interrupt: &SignalFd) -> anyhow::Result<Outcome> {
        let steal_before = steal_ns_by_cpu();
        let recorder = Recorder::start(cpus, self.threshold_ns)?;
        let mut log = match &self.log {
            Some(path) => Some(Log::create(path, cpus, self.threshold_ns)?),
            None => None,
        };
        let begun = Instant::now();
        let mut totals: BTreeMap<usize, Stalls> = cpus.iter().map(|cpu| (cpu, Stalls::none())).collect();
        let (ended_by, last) = self.collect(&recorder, interrupt, begun, log.as_mut(), &mut totals)?;
        let records = recorder.finish();
        let steal_after = steal_ns_by_cpu();
        // The stalls that were recorded after the last collection.
        let rest: Vec<_> = records
            .iter()
            .filter(|record| record.rest.count() > 0)
            .map(|record| (record.cpu, record.rest.clone()))
            .collect();
        if let Some(log) = &mut log {
            log.write(last, begun.elapsed() - last, &rest)?;
        }
        add(&mut totals, &rest);
        let steal_ns = |cpu| {
            let (after, before) = (steal_after.get(&cpu)?, steal_before.get(&cpu)?);
            Some(after.saturating_sub(*before))
        };
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        Ok(Outcome {
            kernel: release.ok().map(|release| release.trim().to_owned()),
            threshold_ns: self.threshold_ns,
            duration_ns: as_ns(begun.elapsed()),
            ended_by,
            cpus: records
                .iter()
                .map(|record| summarize(record, &totals[&record.cpu], steal_ns(record.cpu)))
                .collect(),
        })
    }

    /// Collects, shows and logs the recorder's results until the duration is over or a signal arrives. Returns whether a signal arrived,
    /// and the time from `begun` to the last collection.
    fn collect(
        &self,
        recorder: &Recorder,
        interrupt: &SignalFd,
        begun: Instant,
        mut log: Option<&mut Log>,
        totals: &mut BTreeMap<usize, Stalls>,
    ) -> anyhow::Result<(Ended, Duration)> {
        let lines = std::io::stdout().is_terminal() && !self.json;
        let mut last = Duration::ZERO;
        loop {
            // If no interval is shown or logged, the collector sleeps until the end, so that it does not disturb the measured CPUs.
            let wake = match lines || log.is_some() {
                true => self.duration.min(last + self.interval),
                false => self.duration,
            };
            let signalled = interrupted_before(interrupt, begun, wake)?;
            let now = begun.elapsed();
            let stalls = recorder.drain();
            if lines {
                say::line(interval_line(now, now - last, &stalls));
            }
            if let Some(log) = log.as_mut() {
                log.write(last, now - last, &stalls)?;
            }
            add(totals, &stalls);
            last = now;
            if signalled {
                return Ok((Ended::Signal, now));
            }
            if now >= self.duration {
                return Ok((Ended::Duration, now));
            }
        }
    }
}

fn add(totals: &mut BTreeMap<usize, Stalls>, stalls: &[(usize, Stalls)]) {
    for (cpu, stalls) in stalls {
        totals.entry(*cpu).or_insert_with(Stalls::none).add(stalls);
    }
}

fn summarize(record: &CpuRecord, stalls: &Stalls, steal_ns: Option<u64>) -> CpuOutcome {
    let watched_ns = as_ns(record.watched);
    CpuOutcome {
        cpu: record.cpu,
        stalls: stalls.count(),
        p50_ns: stalls.quantile_ns(0.5),
        p99_ns: stalls.quantile_ns(0.99),
        p99_9_ns: stalls.quantile_ns(0.999),
        max_ns: stalls.max_ns,
        stalled_ns: stalls.sum_ns,
        stalled_percent: stalls.sum_ns as f64 * 100.0 / watched_ns.max(1) as f64,
        steal_ns,
        preemptions: record.preemptions,
        watched_ns,
        clock_readings: record.readings,
    }
}

fn as_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Sleeps until `wake` after `begun`, or until a signal arrives. Returns true after a signal.
fn interrupted_before(interrupt: &SignalFd, begun: Instant, wake: Duration) -> anyhow::Result<bool> {
    loop {
        let left = wake.saturating_sub(begun.elapsed());
        // `poll` counts in whole milliseconds. The timeout is rounded up, because the last wait would
        // otherwise be a busy loop.
        let timeout = PollTimeout::try_from(left.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(interrupt.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) if begun.elapsed() >= wake => return Ok(false),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => {
                return Ok(interrupt.read_signal().context("cannot read the signal")?.is_some());
            }
            Err(error) => return Err(error).context("cannot wait"),
        }
    }
}

fn interval_line(now: Duration, length: Duration, stalls: &[(usize, Stalls)]) -> String {
    let count: u64 = stalls.iter().map(|(_, stalls)| stalls.count()).sum();
    let sum_ns: u64 = stalls.iter().map(|(_, stalls)| stalls.sum_ns).sum();
    let watched_ns = length.as_nanos() as f64 * stalls.len() as f64;
    let worst = stalls.iter().max_by_key(|(_, stalls)| stalls.max_ns);
    let (cpu, max_ns) = worst.map_or((0, 0), |(cpu, stalls)| (*cpu, stalls.max_ns));
    let percent = sum_ns as f64 * 100.0 / watched_ns.max(1.0);
    let longest = if count == 0 { String::new() } else { format!("   longest {} on CPU {cpu}", Ns(max_ns)) };
    format!("{:8.1} s {count:8} stalls   {percent:6.3} % stalled{longest}", now.as_secs_f64())
}

fn for_eyes(outcome: &Outcome) -> String {
    let header = ["CPU", "STALLS", "P50", "P99", "P99.9", "MAX", "STALLED %", "STEAL", "PREEMPTED"];
    let mut rows = table(header, 0);
    for cpu in &outcome.cpus {
        let percentile = |ns| {
            if cpu.stalls == 0 { "-".to_owned() } else { Ns(ns).to_string() }
        };
        rows.add_row([
            cpu.cpu.to_string(),
            cpu.stalls.to_string(),
            percentile(cpu.p50_ns),
            percentile(cpu.p99_ns),
            percentile(cpu.p99_9_ns),
            percentile(cpu.max_ns),
            format!("{:.4}", cpu.stalled_percent),
            cpu.steal_ns.map_or_else(|| "-".to_owned(), |ns| Ns(ns).to_string()),
            cpu.preemptions.map_or_else(|| "-".to_owned(), |count| count.to_string()),
        ]);
    }
    let mut out = format!("{}\n", rows.trim_fmt());
    let readings: u64 = outcome.cpus.iter().map(|cpu| cpu.clock_readings).sum();
    let watched_ns: u64 = outcome.cpus.iter().map(|cpu| cpu.watched_ns).sum();
    let _ = writeln!(
        out,
        "\nStalls longer than {} in {:.1} s{}.\nThe clock was read every {} on average; kernel {}.",
        Ns(outcome.threshold_ns),
        outcome.duration_ns as f64 / 1e9,
        if outcome.ended_by == Ended::Signal { ", ended by a signal" } else { "" },
        Ns(watched_ns / readings.max(1)),
        outcome.kernel.as_deref().unwrap_or("unknown"),
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_too_wide_for_a_terminal() {
        let cpu = CpuOutcome {
            cpu: 255,
            stalls: 123_456_789,
            p50_ns: 1_230,
            p99_ns: 12_300,
            p99_9_ns: 123_000,
            max_ns: 1_230_000_000,
            stalled_ns: 5,
            stalled_percent: 12.345_6,
            steal_ns: Some(120_000_000),
            preemptions: Some(1_234_567),
            watched_ns: 600_000_000_000,
            clock_readings: 30_000_000_000,
        };
        let outcome = Outcome {
            kernel: Some("6.1.0-18-cloud-amd64".into()),
            threshold_ns: 1000,
            duration_ns: 600_000_000_000,
            ended_by: Ended::Signal,
            cpus: vec![cpu],
        };
        let text = for_eyes(&outcome);
        assert!(text.lines().all(|line| line.trim_end().chars().count() <= 80), "{text}");
        assert!(text.contains("123456789") && text.contains("every 20 ns"), "{text}");
        let line =
            interval_line(Duration::from_secs(100_000), Duration::from_secs(1), &[(255, Stalls::none())]);
        assert!(line.chars().count() <= 80, "{line}");
    }
}
