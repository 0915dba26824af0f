//! Measures how late the timers of the daemon's event loop are. This is a cheap way to see whether the host gives the daemon enough CPU
//! time.
//!
//! The delay is measured ten times a second, on any CPU on which the event loop runs. For the stalls that readers see, use `shmcast
//! hiccups`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time between two measurements.
const PERIOD: Duration = Duration::from_millis(100);
/// Upper ends of the buckets in milliseconds. Timers have a resolution of a millisecond, so smaller ends would be useless.
const ENDS_MS: [u64; 8] = [2, 5, 10, 20, 50, 100, 500, 2000];

/// A histogram of the event loop's delays.
#[derive(Debug, Default)]
pub struct Hiccups {
    /// Counts by bucket. The last bucket has all longer delays.
    counts: [AtomicU64; ENDS_MS.len() + 1],
    sum_us: AtomicU64,
}

impl Hiccups {
    pub(super) fn record(&self, late: Duration) {
        let bucket = ENDS_MS.iter().position(|end| late <= Duration::from_millis(*end));
        self.counts[bucket.unwrap_or(ENDS_MS.len())].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(u64::try_from(late.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the upper ends of the buckets in seconds, each with the number of delays up to it.
    pub(super) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut sum = 0;
        ENDS_MS.iter().zip(&self.counts).map(move |(end, count)| {
            sum += count.load(Ordering::Relaxed);
            (*end as f64 / 1e3, sum)
        })
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub(super) fn sum_seconds(&self) -> f64 {
        self.sum_us.load(Ordering::Relaxed) as f64 / 1e6
    }
}

/// Measures the delay for ever.
pub(super) async fn watch(hiccups: Arc<Hiccups>) {
    loop {
        let due = Instant::now() + PERIOD;
        tokio::time::sleep_until(due.into()).await;
        hiccups.record(due.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_beyond_the_last_bucket_is_not_lost() {
        let hiccups = Hiccups::default();
        for ms in [0, 2, 3, 60_000] {
            hiccups.record(Duration::from_millis(ms));
        }
        let counts: Vec<u64> = hiccups.cumulative().map(|(_, count)| count).collect();
        assert_eq!(counts, [2, 3, 3, 3, 3, 3, 3, 3]);
        assert_eq!((hiccups.count(), hiccups.sum_seconds()), (4, 60.005));
    }
}
