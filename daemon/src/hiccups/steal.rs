//! The time that the hypervisor has taken from each CPU. It explains stalls that nothing in the guest caused.

use std::collections::BTreeMap;

use nix::unistd::{SysconfVar, sysconf};

/// Stolen nanoseconds since boot by CPU, with the resolution of a tick (usually 10 ms). Empty if /proc/stat does not
/// give them.
#[must_use]
pub fn steal_ns_by_cpu() -> BTreeMap<usize, u64> {
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

fn parse(stat: &str, ns_a_tick: u64) -> BTreeMap<usize, u64> {
    let steal = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split(' ');
        let cpu = fields.next()?.parse().ok()?;
        // The fields are: user nice system idle iowait irq softirq steal.
        let ticks: u64 = fields.nth(7)?.parse().ok()?;
        Some((cpu, ticks.saturating_mul(ns_a_tick)))
    };
    stat.lines().filter_map(steal).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_all_cpus_taken_for_one() {
        let stat =
            "cpu  9 9 9 9 9 9 9 21 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu11 0 0 0 0 0 0 0 13 0 0\nintr 5 0\n";
        let steal = parse(stat, 10_000_000);
        assert_eq!(steal, BTreeMap::from([(0, 80_000_000), (11, 130_000_000)]));
        assert!(parse("cpu0 1 2 3\ncpu1\ngarbage", 1).is_empty());
    }
}
