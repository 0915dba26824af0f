//! The load of the machine by other programs while the demo measures.
//!
//! The demo computes the CPU time of other programs as a difference: the time of all CPUs of the demo, without the time of its own
//! processes, the idle time, and the time that the hypervisor took. The kernel counts idle time in ticks of 10 ms. So the load in one turn
//! is known only within some percent, and the load in all turns much better.

use crate::cpu_times::cpu_times;
use crate::stop::Stop;
use anyhow::Result;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// The load between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Load {
    /// The time of all CPUs together.
    pub(crate) cpus_ns: u64,
    /// The part of `cpus_ns` that other programs and the kernel used.
    pub(crate) others_ns: u64,
    /// The part of `cpus_ns` that the hypervisor took.
    pub(crate) stolen_ns: u64,
    /// The number of tasks of other programs that were ready to run at the end of the turn. At that time, none of the demo's readers was
    /// ready to run.
    pub(crate) ready: u64,
}

impl Load {
    /// The share of the CPUs' time that other programs and the hypervisor used, from 0 to 1.
    pub(crate) fn foreign_share(&self) -> f64 {
        (self.others_ns + self.stolen_ns) as f64 / self.cpus_ns.max(1) as f64
    }
}

/// Counters of CPU time since boot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    at: Instant,
    idle_ns: u64,
    stolen_ns: u64,
    ours_ns: u64,
}

/// Reads the counters of the CPUs that this process may use.
#[derive(Debug)]
pub(crate) struct Meter {
    cpus: Vec<usize>,
    /// The demo's reader processes.
    readers: Vec<Pid>,
}

impl Meter {
    pub(crate) fn new() -> Self {
        let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
        let cpus = (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect();
        Self { cpus, readers: Vec::new() }
    }

    /// Counts these processes as the demo's own from now on.
    pub(crate) fn count_as_ours(&mut self, readers: impl Iterator<Item = Pid>) {
        self.readers.extend(readers);
    }

    /// The number of CPUs that this process may use.
    pub(crate) fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Reads the present counters. Returns `None` if this system does not have them.
    pub(crate) fn read(&self) -> Option<Reading> {
        let times = cpu_times();
        let times = self.cpus.iter().map(|cpu| times.get(cpu)).collect::<Option<Vec<_>>>()?;
        let idle_ns = times.iter().map(|times| times.idle_ns).sum();
        if idle_ns == 0 {
            // In some sandboxes, the file has no figures.
            return None;
        }
        let stolen_ns = times.iter().map(|times| times.steal_ns).sum();
        Some(Reading { at: Instant::now(), idle_ns, stolen_ns, ours_ns: self.ours_ns()? })
    }

    /// Returns the load since a reading. Call this when no reader runs.
    pub(crate) fn since(&self, before: &Reading) -> Option<Load> {
        let now = self.read()?;
        let loadavg = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let cpus_ns = (now.at - before.at).as_nanos() as u64 * self.cpus.len() as u64;
        Some(load(cpus_ns, before, &now, ready_tasks(&loadavg)?))
    }

    /// CPU time of this process and of its readers.
    fn ours_ns(&self) -> Option<u64> {
        let mut sum = clock_ns(ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
        for reader in &self.readers {
            sum += clock_ns(ClockId::pid_cpu_clock_id(*reader).ok()?)?;
        }
        Some(sum)
    }

    /// Waits until other programs have used at most `share` of the CPUs for the length of one second. Returns whether this happened within
    /// `patience`.
    pub(crate) fn wait_for_quiet(&self, patience: Duration, share: f64, stop: &Stop) -> Result<bool> {
        let deadline = Instant::now() + patience;
        while let Some(before) = self.read().filter(|_| Instant::now() < deadline) {
            let second = Instant::now() + Duration::from_secs(1);
            while Instant::now() < second {
                std::thread::sleep(Duration::from_millis(50));
                if stop.is_set() {
                    return Err(stop.interrupted("INTERRUPTED: the demo had not begun yet").into());
                }
            }
            if self.since(&before).is_some_and(|load| load.foreign_share() <= share) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn load(cpus_ns: u64, before: &Reading, now: &Reading, ready: u64) -> Load {
    let idle_ns = now.idle_ns.saturating_sub(before.idle_ns);
    let stolen_ns = now.stolen_ns.saturating_sub(before.stolen_ns).min(cpus_ns);
    let ours_ns = now.ours_ns.saturating_sub(before.ours_ns);
    let others_ns = cpus_ns.saturating_sub(idle_ns + stolen_ns + ours_ns);
    Load { cpus_ns, others_ns, stolen_ns, ready }
}

fn clock_ns(clock: ClockId) -> Option<u64> {
    let time = Duration::from(clock_gettime(clock).ok()?);
    u64::try_from(time.as_nanos()).ok()
}

/// The number of tasks that run or are ready to run. The calling task is left out. The number comes from the fourth field of
/// `/proc/loadavg`, which is `ready/all`.
fn ready_tasks(loadavg: &str) -> Option<u64> {
    let ready: u64 = loadavg.split(' ').nth(3)?.split('/').next()?.parse().ok()?;
    Some(ready.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(idle_ms: u64, stolen_ms: u64, ours_ms: u64) -> Reading {
        let [idle_ns, stolen_ns, ours_ns] = [idle_ms, stolen_ms, ours_ms].map(|ms| ms * 1_000_000);
        Reading { at: Instant::now(), idle_ns, stolen_ns, ours_ns }
    }

    #[test]
    fn what_is_neither_idle_nor_stolen_nor_ours_is_of_others() {
        let (before, now) = (reading(1000, 50, 10), reading(1100, 70, 190));
        let half_a_second_of_two = load(1_000_000_000, &before, &now, 3);
        assert_eq!(half_a_second_of_two.others_ns, 700_000_000);
        assert_eq!(half_a_second_of_two.stolen_ns, 20_000_000);
        assert_eq!(half_a_second_of_two.ready, 3);
        assert!((half_a_second_of_two.foreign_share() - 0.72).abs() < 1e-9);
    }

    #[test]
    fn ticks_that_are_counted_late_make_no_load() {
        let quiet = load(500_000_000, &reading(0, 0, 0), &reading(300, 0, 210), 0);
        assert_eq!((quiet.others_ns, quiet.foreign_share()), (0, 0.0));
    }

    #[test]
    fn tasks_that_are_ready_are_counted_without_this_one() {
        assert_eq!(ready_tasks("13.12 10.86 6.29 16/213 7309\n"), Some(15));
        assert_eq!(ready_tasks("0.00 0.00 0.00 0/1 1\n"), Some(0));
        assert_eq!(ready_tasks(""), None);
    }
}
