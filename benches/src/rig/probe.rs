//! The state of the machine around a round: the distance between two CPUs, and the use of the CPUs by other programs.
//!
//! The host of a virtual machine sometimes moves the machine's CPUs. A cache line can then take several times as long as before from one
//! CPU to another. Therefore a probe runs before and after each round, and only rounds with the same placement of CPUs are compared. A
//! round is played again if its two probes disagree, or if other programs used the CPUs.

use crate::rig::child::bind;
use crate::rig::spec::Usage;
use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::{Deserialize, Serialize, Serializer};
use shmcast::Clock;
use shmcast_layout::counter::ticks;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The distance between two CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The CPUs share a cache.
    Near,
    /// The CPUs do not share a cache.
    Far,
    /// The placement of the CPUs changed during the round, or the probe is unclear. The round is then never compared with another round.
    Mixed,
}

/// The longest round trip between CPUs that are near, in ns.
const NEAR_NS: u64 = 220;
/// The shortest round trip between CPUs that are far, in ns.
const FAR_NS: u64 = 300;

impl Placement {
    fn of(round_trip_ns: u64) -> Self {
        match round_trip_ns {
            ..=NEAR_NS => Self::Near,
            FAR_NS.. => Self::Far,
            _ => Self::Mixed,
        }
    }

    /// Returns the name as it is printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Mixed => "mixed",
        }
    }
}

/// A measure of how quiet the machine was during a round. In JSON, it is a list of its fields in their order. Shares have five decimals.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Quiet {
    /// The share of all CPU time that other programs in this system used.
    pub others: f64,
    /// The share of all CPU time that the host took away.
    pub steal: f64,
    /// The round trip of a cache line before the round, in ns; 0 if it was not probed.
    pub before_ns: u64,
    /// The round trip of a cache line after the round, in ns; 0 if it was not probed.
    pub after_ns: u64,
}

impl Serialize for Quiet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let share = |share: f64| (share * 1e5).round() / 1e5;
        (share(self.others), share(self.steal), self.before_ns, self.after_ns).serialize(serializer)
    }
}

impl Quiet {
    /// Returns the placement of the CPUs. It is `Mixed` if the two probes disagree.
    pub fn placement(&self) -> Placement {
        let (before, after) = (Placement::of(self.before_ns), Placement::of(self.after_ns));
        if before == after { before } else { Placement::Mixed }
    }

    /// Whether other programs and the hypervisor used so little CPU time that the round counts.
    pub fn is_quiet(&self) -> bool {
        self.others < 0.03 && self.steal < 0.02
    }
}

/// Returns the time in which a cache line goes from CPU `a` to CPU `b` and back, in ns. It is a median; 0 on a machine with one CPU.
///
/// # Errors
/// When a CPU does not exist.
pub fn round_trip_ns(a: usize, b: usize) -> Result<u64> {
    const TRIPS: u64 = 4000;
    let clock = Clock::of_this_host();
    let ball = &Ball::default();
    std::thread::scope(|scope| {
        let other = scope.spawn(move || -> Result<()> {
            bind(Some(b))?;
            for trip in 0..TRIPS {
                ball.until(2 * trip + 1);
                ball.0.store(2 * trip + 2, Ordering::Release);
            }
            Ok(())
        });
        let one = scope.spawn(move || -> Result<Vec<u64>> {
            bind(Some(a))?;
            let mut times = Vec::with_capacity(TRIPS as usize);
            for trip in 0..TRIPS {
                let start = ticks();
                ball.0.store(2 * trip + 1, Ordering::Release);
                ball.until(2 * trip + 2);
                times.push(clock.ns_between(start, ticks()));
            }
            Ok(times)
        });
        let mut times = one.join().expect("it does not panic")?;
        other.join().expect("it does not panic")?;
        times.sort_unstable();
        Ok(times[times.len() / 2])
    })
}

/// A word that shares its cache lines with nothing else.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Ball(AtomicU64);

impl Ball {
    fn until(&self, value: u64) {
        let mut polls = 0u32;
        while self.0.load(Ordering::Acquire) != value {
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(1 << 16) {
                std::thread::yield_now(); // the other thread may wait for this CPU
            }
        }
    }
}

/// The kernel's counts of the time of all CPUs, in ticks.
#[derive(Debug, Clone, Copy)]
struct Account {
    busy: u64,
    steal: u64,
    total: u64,
}

impl Account {
    fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
        let line = text.lines().next().context("/proc/stat is empty")?;
        let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
        anyhow::ensure!(fields.len() >= 8, "/proc/stat has an unknown form: {line}");
        let (idle, steal) = (fields[3] + fields[4], fields[7]);
        let total: u64 = fields[..8].iter().sum();
        Ok(Self { busy: total - idle - steal, steal, total })
    }
}

/// Returns the CPU time of all children that have ended, in ns.
fn ended_children_ns() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("a process may ask for its children's usage");
    (usage.user_time().num_nanoseconds() + usage.system_time().num_nanoseconds()) as u64
}

/// Returns the CPU time that a running process has used, in ns; 0 if the kernel does not report it.
fn process_ns(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Returns the resident memory of a running process in KiB, including its share of a ring; 0 if the kernel does not report it.
pub fn resident_kib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Measures the machine's load during a round.
#[derive(Debug)]
pub struct Load {
    start: Account,
    since: Instant,
    /// The CPU time at the start of the round: the sum for the round's processes and for all children that had ended before the round.
    used_ns: u64,
}

impl Load {
    /// Begins the measurement. `pids` are the round's own processes, which must still run.
    ///
    /// # Errors
    /// When the kernel does not report the times.
    pub fn begin(pids: impl Iterator<Item = u32>) -> Result<Self> {
        let used_ns = pids.map(process_ns).sum::<u64>() + ended_children_ns();
        Ok(Self { start: Account::now()?, since: Instant::now(), used_ns })
    }

    /// Returns the shares of CPU time that other programs and the hypervisor used. Call this after the round's processes have ended and the
    /// rig has waited for them.
    ///
    /// # Errors
    /// When the kernel does not report the times.
    pub fn end(self) -> Result<Quiet> {
        let end = Account::now()?;
        let total = (end.total - self.start.total).max(1) as f64;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let ours_ns = ended_children_ns().saturating_sub(self.used_ns);
        let ours = ours_ns as f64 / (self.since.elapsed().as_nanos() as f64 * cpus);
        let busy = (end.busy - self.start.busy) as f64 / total;
        let steal = (end.steal - self.start.steal) as f64 / total;
        Ok(Quiet { others: (busy - ours).max(0.0), steal, ..Quiet::default() })
    }
}

impl Usage {
    /// Returns the resources that this process has used until now.
    pub fn now() -> Self {
        let usage = getrusage(UsageWho::RUSAGE_SELF).expect("a process may ask for its own usage");
        let ns = |time: nix::sys::time::TimeVal| time.num_nanoseconds() as u64;
        // The file has the run time, the wait time and the number of time slices. Without this file, the wait time stays 0.
        let wait = fs::read_to_string("/proc/self/schedstat");
        let wait = wait.ok().and_then(|text| text.split_whitespace().nth(1)?.parse().ok());
        Self {
            user_ns: ns(usage.user_time()),
            system_ns: ns(usage.system_time()),
            voluntary_switches: usage.voluntary_context_switches() as u64,
            involuntary_switches: usage.involuntary_context_switches() as u64,
            waited_ns: wait.unwrap_or(0),
            wall_ns: shmcast_layout::counter::monotonic_ns(),
        }
    }

    /// Returns the resources used since `before`.
    pub fn since(&self, before: &Self) -> Self {
        self.combine(before, u64::saturating_sub)
    }

    /// Returns the sum of the resources of two processes. The wall time is the longer of the two.
    pub fn sum(&self, other: &Self) -> Self {
        Self { wall_ns: self.wall_ns.max(other.wall_ns), ..self.combine(other, u64::saturating_add) }
    }

    fn combine(&self, other: &Self, with: fn(u64, u64) -> u64) -> Self {
        Self {
            user_ns: with(self.user_ns, other.user_ns),
            system_ns: with(self.system_ns, other.system_ns),
            voluntary_switches: with(self.voluntary_switches, other.voluntary_switches),
            involuntary_switches: with(self.involuntary_switches, other.involuntary_switches),
            waited_ns: with(self.waited_ns, other.waited_ns),
            wall_ns: with(self.wall_ns, other.wall_ns),
        }
    }
}
