//! Measures the machine's own stalls. On each chosen CPU, one thread reads the clock in a loop, and records each gap between two readings
//! that is longer than a threshold.
//!
//! No program on a measured CPU can do better than the measuring thread. So the stalls are a lower bound of the worst latency of programs
//! on this CPU. They do not show the cause, which `perf` and `shmcast doctor` might find.
//!
//! The loop makes no system call and allocates nothing. If the caller of [`Recorder::drain`] runs on a measured CPU, its own work is
//! recorded as stalls.

mod log;

pub use log::{Log, LogError};

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use nix::{
    errno::Errno,
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    sys::resource::{UsageWho, getrusage},
    unistd::Pid,
};

use crate::cpu_list::CpuList;

/// The longest stall that is recorded: an hour. A longer gap is recorded as an hour.
pub const MAX_STALL_NS: u64 = 3_600_000_000_000;

/// Significant digits of the histograms. With three digits, values are exact within 0.1 %.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Clock readings between two checks of the flag `stop`.
const READINGS_PER_CHECK: u32 = 64;

/// The reason why recording cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no CPU to measure.
    #[error("no CPU to measure; name some with --cpu, such as --cpu 0,2-3")]
    NoCpu,
    /// This process is not allowed to run on a CPU that the caller wants to measure.
    #[error(
        "CPU {cpu} is not among those this process may use, {allowed}; choose from these or widen them with taskset"
    )]
    NotAllowed {
        /// The CPU that the caller wants to measure.
        cpu: usize,
        /// The CPUs that this process may use.
        allowed: CpuList,
    },
    /// The kernel does not say which CPUs this process may use.
    #[error("cannot read the CPUs of this process: {0}")]
    Affinity(Errno),
    /// A thread could not be started.
    #[error("cannot start a thread for CPU {cpu}: {cause}; check the limit on processes (ulimit -u)")]
    Thread {
        /// The CPU of the thread.
        cpu: usize,
        /// The system's error.
        cause: io::Error,
    },
    /// A thread could not be pinned.
    #[error("cannot pin a thread to CPU {cpu}: {cause}; is it online?")]
    Pin {
        /// The CPU of the thread.
        cpu: usize,
        /// The kernel's error.
        cause: Errno,
    },
}

/// Returns the CPUs on which this process is allowed to run.
///
/// # Errors
/// [`StartError::Affinity`] if the kernel does not report them.
pub fn allowed_cpus() -> Result<CpuList, StartError> {
    let set = sched_getaffinity(Pid::from_raw(0)).map_err(StartError::Affinity)?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect())
}

/// Returns the nanoseconds for which the hypervisor has taken each CPU since boot. Such times explain stalls that have no cause in the
/// guest. The result is empty if /proc/stat has no such times.
#[must_use]
pub fn steal_ns_by_cpu() -> BTreeMap<usize, u64> {
    shmcast_demo::cpu_times().into_iter().map(|(cpu, times)| (cpu, times.steal_ns)).collect()
}

/// The stalls of one CPU over some time.
#[derive(Debug, Clone)]
pub struct Stalls {
    /// The lengths of the stalls in nanoseconds, exact within 0.1 %.
    pub histogram: Histogram<u64>,
    /// The exact sum of the lengths of the stalls in nanoseconds.
    pub sum_ns: u64,
    /// The exact length of the longest stall in nanoseconds.
    pub max_ns: u64,
}

impl Stalls {
    /// Makes a record without stalls. Allocates about 260 KiB and touches all of this memory, so that recording causes no page fault.
    #[must_use]
    pub fn none() -> Self {
        let mut histogram = Histogram::new_with_bounds(1, MAX_STALL_NS, SIGNIFICANT_DIGITS)
            .expect("1 ns to an hour in three digits is within what a histogram can hold");
        histogram.reset();
        Self { histogram, sum_ns: 0, max_ns: 0 }
    }

    /// The number of stalls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the length in nanoseconds that a share of the stalls did not exceed. `quantile` is this share, from 0.0 to 1.0. Returns 0 if
    /// there were no stalls.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        // The histogram gives the top of a bucket, which can be longer than the longest stall.
        self.histogram.value_at_quantile(quantile).min(self.max_ns)
    }

    /// Adds the stalls of `other`.
    pub fn add(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("both histograms have the same bounds");
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    fn record(&mut self, gap_ns: u64) {
        self.histogram.saturating_record(gap_ns);
        self.sum_ns += gap_ns;
        self.max_ns = self.max_ns.max(gap_ns);
    }

    fn clear(&mut self) {
        self.histogram.reset();
        self.sum_ns = 0;
        self.max_ns = 0;
    }
}

/// Two tallies: one is read while the other is written.
#[derive(Debug)]
struct Tallies {
    tallies: [Mutex<Stalls>; 2],
    active: AtomicUsize,
    stop: AtomicBool,
}

impl Tallies {
    fn new() -> Self {
        let tallies = [Mutex::new(Stalls::none()), Mutex::new(Stalls::none())];
        Self { tallies, active: AtomicUsize::new(0), stop: AtomicBool::new(false) }
    }

    /// Locks a tally, even if its lock is poisoned. A panic leaves the counters valid, so this is safe.
    fn lock(&self, index: usize) -> MutexGuard<'_, Stalls> {
        self.tallies[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Worker {
    cpu: usize,
    shared: Arc<Tallies>,
    thread: JoinHandle<Watched>,
}

/// The figures of a measuring thread over its whole run.
#[derive(Debug, Clone, Copy)]
struct Watched {
    elapsed: Duration,
    readings: u64,
    preemptions: Option<u64>,
}

/// The results of one CPU over the whole run.
#[derive(Debug, Clone)]
pub struct CpuRecord {
    /// The CPU's number.
    pub cpu: usize,
    /// The time for which the CPU was watched.
    pub watched: Duration,
    /// The number of clock readings in that time.
    pub readings: u64,
    /// The number of times that the kernel ran another task in place of the measuring thread; `None` if the kernel does not report it.
    pub preemptions: Option<u64>,
    /// The stalls that have not been drained yet.
    pub rest: Stalls,
}

/// Threads that each watch one CPU until [`finish`](Recorder::finish). If the recorder is dropped, the threads stop too, but the drop does
/// not wait for them.
#[derive(Debug)]
pub struct Recorder {
    workers: Vec<Worker>,
}

impl Recorder {
    /// Starts one busy thread on each of `cpus`. The thread records every gap of more than `threshold_ns` nanoseconds.
    ///
    /// # Errors
    /// [`StartError`]. Threads that were already started are stopped again.
    pub fn start(cpus: &CpuList, threshold_ns: u64) -> Result<Self, StartError> {
        let allowed = allowed_cpus()?;
        if cpus.is_empty() {
            return Err(StartError::NoCpu);
        }
        if let Some(cpu) = cpus.minus(&allowed).iter().next() {
            return Err(StartError::NotAllowed { cpu, allowed });
        }
        let mut recorder = Self { workers: Vec::with_capacity(cpus.count()) };
        for cpu in cpus.iter() {
            let shared = Arc::new(Tallies::new());
            let its = Arc::clone(&shared);
            let (report, pinned) = mpsc::channel();
            let thread = std::thread::Builder::new()
                .name(format!("hiccups-{cpu}"))
                .spawn(move || {
                    // If the starting thread no longer waits for this result, that thread has also set `stop`. So a failed send does no
                    // harm.
                    let _ = report.send(pin(cpu));
                    watch(&its, threshold_ns)
                })
                .map_err(|cause| StartError::Thread { cpu, cause })?;
            recorder.workers.push(Worker { cpu, shared, thread });
            pinned
                .recv()
                .expect("the thread reports before it does anything else")
                .map_err(|cause| StartError::Pin { cpu, cause })?;
        }
        Ok(recorder)
    }

    /// Takes the stalls since the last call, one entry per CPU. Copies about 260 KiB per CPU. The measuring threads continue.
    pub fn drain(&self) -> Vec<(usize, Stalls)> {
        let drain = |worker: &Worker| {
            let shared = &worker.shared;
            // The flip only directs the thread to the other tally. The lock orders the data. A thread that read the old index before the
            // flip might still record in the old tally. Such a record is drained two flips later.
            let old = shared.active.fetch_xor(1, Ordering::Relaxed);
            let mut tally = shared.lock(old);
            let stalls = tally.clone();
            tally.clear();
            (worker.cpu, stalls)
        };
        self.workers.iter().map(drain).collect()
    }

    /// Stops all threads, waits for them, and takes the remaining stalls, one entry per CPU.
    #[must_use]
    pub fn finish(mut self) -> Vec<CpuRecord> {
        self.stop();
        let finish = |worker: Worker| {
            let watched = worker.thread.join().expect("a measuring thread has nothing to panic about");
            let mut rest = worker.shared.lock(0).clone();
            rest.add(&worker.shared.lock(1));
            CpuRecord {
                cpu: worker.cpu,
                watched: watched.elapsed,
                readings: watched.readings,
                preemptions: watched.preemptions,
                rest,
            }
        };
        std::mem::take(&mut self.workers).into_iter().map(finish).collect()
    }

    fn stop(&self) {
        for worker in &self.workers {
            worker.shared.stop.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop();
    }
}

fn pin(cpu: usize) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

fn watch(shared: &Tallies, threshold_ns: u64) -> Watched {
    let preempted_before = involuntary_switches();
    let begun = Instant::now();
    let mut last = begun;
    let mut readings = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        for _ in 0..READINGS_PER_CHECK {
            let now = Instant::now();
            // The conversion cannot overflow: 64 bits of nanoseconds last five centuries.
            let gap_ns = now.duration_since(last).as_nanos() as u64;
            last = now;
            if gap_ns > threshold_ns {
                shared.lock(shared.active.load(Ordering::Relaxed)).record(gap_ns);
            }
        }
        readings += u64::from(READINGS_PER_CHECK);
    }
    let preempted = involuntary_switches().zip(preempted_before);
    Watched {
        elapsed: last.duration_since(begun),
        readings,
        preemptions: preempted.map(|(after, before)| after.saturating_sub(before)),
    }
}

/// Returns how often the kernel took the CPU from this thread although the thread was ready to run; `None` if the kernel does not report
/// it.
fn involuntary_switches() -> Option<u64> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).ok()?;
    u64::try_from(usage.involuntary_context_switches()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_lost_between_two_drains() {
        // With a threshold of 0, every reading at which the clock has advanced is a stall. So the thread records so often that it races
        // with the drains.
        let cpus: CpuList = allowed_cpus().expect("affinity").iter().take(1).collect();
        // The number of drains is once even and once odd, so that each of the two tallies is in use at the end of a run.
        for drains in [50, 51] {
            let recorder = Recorder::start(&cpus, 0).expect("an allowed CPU");
            let mut all = Stalls::none();
            for _ in 0..drains {
                for (_, stalls) in recorder.drain() {
                    all.add(&stalls);
                }
            }
            let records = recorder.finish();
            all.add(&records[0].rest);
            // The gaps follow one another without a hole, so their sum is the time watched, to the nanosecond.
            assert_eq!(u128::from(all.sum_ns), records[0].watched.as_nanos());
            assert!(all.count() <= records[0].readings);
            assert!(all.count() > 0);
        }
    }

    #[test]
    fn a_cpu_this_process_may_not_use() {
        let beyond = CpuList::from_iter([8191]);
        assert!(matches!(Recorder::start(&beyond, 1000), Err(StartError::NotAllowed { cpu: 8191, .. })));
        assert!(matches!(Recorder::start(&CpuList::default(), 1000), Err(StartError::NoCpu)));
    }

    #[test]
    fn a_quantile_above_the_longest_stall() {
        let mut stalls = Stalls::none();
        assert_eq!((stalls.count(), stalls.quantile_ns(0.99)), (0, 0));
        stalls.record(1_000_001);
        assert_eq!(stalls.quantile_ns(1.0), 1_000_001);
        stalls.record(u64::MAX / 4);
        assert_eq!(stalls.max_ns, u64::MAX / 4);
        assert!(stalls.quantile_ns(1.0) <= MAX_STALL_NS * 1001 / 1000);
    }
}
