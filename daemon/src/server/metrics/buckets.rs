//! Latency histograms for Prometheus. They have few and large buckets, which are sums of the many small buckets in reader pages.

use shmcast::hosting::{BUCKETS, bucket_limit_ns};

/// The upper ends of the buckets in nanoseconds, as exponents of two. The ends go from 64 ns to 1 ms in factors of two, and then to 1 s in
/// factors of four. Each bucket consists of whole buckets of the reader pages, so the counts are exact.
const EXPONENTS: [u32; 20] = [6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 26, 28, 30];

/// A histogram of latencies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Latencies {
    /// Counts of the fine buckets, as in a reader page.
    fine: Box<[u64]>,
}

impl Latencies {
    /// A histogram without latencies.
    pub(super) fn none() -> Self {
        Self { fine: vec![0; BUCKETS].into() }
    }

    /// Adds the counts of a reader page. A reader can write any counts there, so the sums saturate and do not wrap.
    pub(super) fn add(&mut self, fine: &[u64]) {
        for (sum, count) in self.fine.iter_mut().zip(fine) {
            *sum = sum.saturating_add(*count);
        }
    }

    /// The number of latencies.
    pub(super) fn count(&self) -> u64 {
        self.fine.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the sum of all latencies in seconds. Each latency counts as the upper end of its fine bucket, so the sum is up to 6.25 % too
    /// high.
    pub(super) fn sum_seconds(&self) -> f64 {
        let ns = |(bucket, count): (usize, &u64)| bucket_limit_ns(bucket) as f64 * *count as f64;
        self.fine.iter().enumerate().map(ns).sum::<f64>() / 1e9
    }

    /// Returns the upper ends of the buckets in seconds, each with the number of latencies up to it.
    pub(super) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut fine = self.fine.iter().enumerate().peekable();
        let mut sum = 0u64;
        EXPONENTS.into_iter().map(move |exponent| {
            let end_ns = 1u64 << exponent;
            while let Some((_, count)) = fine.next_if(|(bucket, _)| bucket_limit_ns(*bucket) < end_ns) {
                sum = sum.saturating_add(*count);
            }
            (end_ns as f64 / 1e9, sum)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coarse_bucket_that_cuts_a_fine_one_in_two() {
        for exponent in EXPONENTS {
            let end_ns = 1u64 << exponent;
            let last = (0..BUCKETS).rfind(|bucket| bucket_limit_ns(*bucket) < end_ns).unwrap();
            assert_eq!(bucket_limit_ns(last), end_ns - 1, "2^{exponent}");
        }
    }

    #[test]
    fn counts_that_fall_or_overflow() {
        let mut latencies = Latencies::none();
        latencies.add(&vec![u64::MAX; BUCKETS]);
        latencies.add(&vec![1; BUCKETS]);
        let counts: Vec<u64> = latencies.cumulative().map(|(_, count)| count).collect();
        assert!(counts.is_sorted());
        assert!(counts.last() <= Some(&latencies.count()));
        assert!(latencies.sum_seconds().is_finite());
    }

    #[test]
    fn every_latency_is_in_one_bucket() {
        let mut latencies = Latencies::none();
        latencies.add(&(0..BUCKETS as u64).collect::<Vec<_>>());
        let up_to_1024_ns: u64 = (0..BUCKETS as u64).filter(|b| bucket_limit_ns(*b as usize) < 1024).sum();
        let found = latencies.cumulative().find(|(end, _)| *end > 1.0e-6).map(|(_, count)| count);
        assert_eq!(found, Some(up_to_1024_ns));
        assert_eq!(latencies.count(), (0..BUCKETS as u64).sum::<u64>());
    }
}
