//! Waits with a time limit. If the limit is reached, a wait panics and reports what it waited for.

use std::fmt::Debug;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The time limit of a wait that names no other limit. It is far above any wait on a busy machine, so only a failing test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The way in which a test's reader waits for messages. It sleeps, because other tests need the CPUs.
#[cfg(feature = "journal")]
pub const REST: shmcast::Wait = shmcast::Wait::Sleep(Duration::from_millis(1));

/// The longest pause between two checks.
const PAUSE: Duration = Duration::from_millis(20);

/// Calls `ready` until it returns a value, and returns that value.
///
/// The pauses between the calls grow from 0.2 ms to 20 ms. So short waits stay short, and a daemon that limits the rate of requests is not
/// asked too often.
///
/// # Panics
/// If `ready` has returned no value within [`PATIENCE`]. The text is `what`.
#[track_caller]
pub fn wait_for<T>(what: &str, ready: impl FnMut() -> Option<T>) -> T {
    wait_within(PATIENCE, what, ready)
}

/// Does the same as [`wait_for`], with the time limit `limit`.
#[track_caller]
pub fn wait_within<T>(limit: Duration, what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let (started, mut pause) = (Instant::now(), Duration::from_micros(200));
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(started.elapsed() < limit, "waited {limit:?} for {what}");
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE);
    }
}

/// Waits until `is_so` returns true; see [`wait_for`].
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// Measures how long a daemon makes a thread wait. While the thread or the daemon is ready to run but has no CPU, the time does not count.
/// So a busy machine does not change the result.
#[derive(Debug)]
pub struct Waited {
    since: Instant,
    queued: Duration,
    of: u32,
}

impl Waited {
    /// Begins to measure a wait for an answer from the process `of`. The first thread of this process gives the answer.
    pub fn for_process(of: u32) -> Self {
        Self { since: Instant::now(), queued: Self::queued(of), of }
    }

    /// Returns for how long the daemon has made this thread wait.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed().saturating_sub(Self::queued(self.of) - self.queued)
    }

    /// Returns the time for which this thread and the process's first thread have waited for a CPU so far. It is the second number of
    /// `schedstat`.
    fn queued(of: u32) -> Duration {
        let of_thread = |path: &str| -> u64 {
            let stat = std::fs::read_to_string(path).unwrap_or_default();
            stat.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0)
        };
        let paths = ["/proc/thread-self/schedstat", &format!("/proc/{of}/task/{of}/schedstat")];
        Duration::from_nanos(paths.map(of_thread).iter().sum())
    }
}

/// Returns the value of an environment variable that makes a test longer. Returns `usual` if the variable is not set.
///
/// # Panics
/// If the value is not a number.
pub fn number<T: FromStr<Err: Debug>>(variable: &str, usual: T) -> T {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("{variable}={text:?} is not a number: {e:?}")),
        Err(_) => usual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_returns_the_first_value() {
        let mut looks = 0;
        let found = wait_for("the third look", || {
            looks += 1;
            (looks == 3).then_some("there")
        });
        assert_eq!((found, looks), ("there", 3));
    }

    #[test]
    fn time_on_a_cpu_and_asleep_is_waited_and_time_without_a_cpu_is_not() {
        let (started, waited) = (Instant::now(), Waited::for_process(std::process::id()));
        std::thread::sleep(Duration::from_millis(20));
        let found = waited.elapsed();
        assert!(found > Duration::ZERO && found <= started.elapsed(), "{found:?}");
    }

    #[test]
    fn a_number_that_is_not_set_is_the_usual_one() {
        assert_eq!(number("SHMCAST_TESTKIT_IS_NEVER_SET", 7u64), 7);
    }
}
