//! Reads from `/proc/stat` how long each CPU was idle, and for how long the hypervisor used it.

use nix::unistd::{SysconfVar, sysconf};
use std::collections::BTreeMap;

/// Times of a CPU since boot, with the resolution of a tick (usually 10 ms).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTimes {
    /// The time in which nothing was ready to run on the CPU.
    pub idle_ns: u64,
    /// The time in which the CPU had something to run, but the hypervisor did not let the CPU run.
    pub steal_ns: u64,
}

/// The times of each CPU. Empty if `/proc/stat` has no such times.
#[must_use]
pub fn cpu_times() -> BTreeMap<usize, CpuTimes> {
    let ticks_a_second = sysconf(SysconfVar::CLK_TCK).ok().flatten();
    let ticks_a_second = ticks_a_second.and_then(|ticks| u64::try_from(ticks).ok());
    match ticks_a_second.filter(|&ticks| ticks > 0) {
        Some(ticks) => {
            let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
            parse(&stat, 1_000_000_000 / ticks)
        }
        None => BTreeMap::new(),
    }
}

fn parse(stat: &str, ns_a_tick: u64) -> BTreeMap<usize, CpuTimes> {
    let times = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split(' ');
        let cpu = fields.next()?.parse().ok()?;
        // The fields are: user nice system idle iowait irq softirq steal. A CPU that waits for a disk is idle.
        let ticks = fields.take(8).map(|field| field.parse().ok()).collect::<Option<Vec<u64>>>()?;
        let &[_, _, _, idle, iowait, _, _, steal] = &ticks[..] else { return None };
        let ns = |ticks: u64| ticks.saturating_mul(ns_a_tick);
        Some((cpu, CpuTimes { idle_ns: ns(idle.saturating_add(iowait)), steal_ns: ns(steal) }))
    };
    stat.lines().filter_map(times).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_all_cpus_taken_for_one() {
        let stat =
            "cpu  9 9 9 9 9 9 9 21 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu11 0 0 0 0 0 0 0 13 0 0\nintr 5 0\n";
        let times =
            |idle: u64, steal: u64| CpuTimes { idle_ns: idle * 10_000_000, steal_ns: steal * 10_000_000 };
        assert_eq!(parse(stat, 10_000_000), BTreeMap::from([(0, times(9, 8)), (11, times(0, 13))]));
        assert!(parse("cpu0 1 2 3\ncpu1\ngarbage", 1).is_empty());
    }
}
