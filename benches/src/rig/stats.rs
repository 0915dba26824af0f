//! Histograms, and the figures that are computed from them. Latencies are in HdrHistograms with three significant digits, in ns. Such
//! histograms can be added without loss, and any HdrHistogram tool can read them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

/// The largest time that a histogram can hold, in ns. Longer times count as this time.
const LONGEST_NS: u64 = 60_000_000_000;

/// Makes an empty histogram with fixed bounds. The bounds are fixed, because `saturating_record` clamps values, and does not make a
/// histogram grow.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3)
        .expect("the bounds are in order, and three digits are allowed")
}

/// A distribution: the figures for tables and plots. Until the answer is written, it also has the whole histogram. In JSON, it is a list of
/// its fields in their order. The list is empty if nothing was measured.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Distribution {
    /// The number of samples.
    pub count: u64,
    /// The smallest sample.
    pub min: u64,
    /// The arithmetic mean. It is only for comparison with other projects' tables.
    pub mean: f64,
    /// The median.
    pub p50: u64,
    /// 75th percentile.
    pub p75: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// 99.99th percentile.
    pub p9999: u64,
    /// 99.999th percentile.
    pub p99999: u64,
    /// The largest sample.
    pub max: u64,
    /// The histogram: HdrHistogram V2, deflated, base64. An answer that was read from a file has no histogram, so this is empty there.
    pub histogram: String,
}

impl Serialize for Distribution {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { count, min, mean, p50, p75, p90, p99, p999, p9999, p99999, max, histogram } = self;
        if *count == 0 {
            return [(); 0].serialize(serializer);
        }
        let mean = (mean * 1e3).round() / 1e3;
        let figures = (count, min, mean, p50, p75, p90, p99, p999, p9999, p99999, max);
        if histogram.is_empty() {
            return figures.serialize(serializer);
        }
        (count, min, mean, p50, p75, p90, p99, p999, p9999, p99999, max, histogram).serialize(serializer)
    }
}

impl Distribution {
    /// Computes the distribution from a histogram of nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile);
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(histogram, &mut bytes)
            .expect("a histogram serializes into memory");
        Self {
            count: histogram.len(),
            min: histogram.min(),
            mean: histogram.mean(),
            p50: at(0.5),
            p75: at(0.75),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            p99999: at(0.99999),
            max: histogram.max(),
            histogram: STANDARD.encode(bytes),
        }
    }

    /// Computes the distribution of values in nanoseconds.
    pub fn of_values(values: impl IntoIterator<Item = u64>) -> Self {
        let mut histogram = histogram();
        values.into_iter().for_each(|value| histogram.saturating_record(value));
        Self::of(&histogram)
    }

    /// Returns the stored percentiles and the maximum, each with its quantile. The maximum has the quantile 1 - 0.5 / `count`. Percentiles
    /// above this quantile are left out.
    pub fn curve(&self) -> Vec<(f64, u64)> {
        let last = 1.0 - 0.5 / self.count.max(1) as f64;
        let kept = [
            (0.0, self.min),
            (0.5, self.p50),
            (0.75, self.p75),
            (0.9, self.p90),
            (0.99, self.p99),
            (0.999, self.p999),
            (0.9999, self.p9999),
            (0.99999, self.p99999),
        ];
        kept.into_iter().filter(|(q, _)| *q < last).chain([(last, self.max)]).collect()
    }

    /// Returns the histogram of this distribution.
    ///
    /// # Errors
    /// When there is no valid histogram, as in an answer that was read from a file.
    pub fn decode(&self) -> anyhow::Result<Histogram<u64>> {
        let bytes = STANDARD.decode(&self.histogram)?;
        Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .map_err(|e| anyhow::anyhow!("not an HdrHistogram: {e:?}"))
    }
}

/// The times at which a spinning thread did not run (hiccups). In JSON, this is a list of the fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct HiccupLog {
    /// The number of hiccups, each longer than [`HICCUP_NS`].
    pub count: u64,
    /// The total length of the hiccups, in ns.
    pub total_ns: u64,
    /// The five hundred longest hiccups. Each has two values in ns: its start, from the start of the measurement, and its length.
    #[serde(default)]
    pub longest: Vec<(u64, u64)>,
}

impl Serialize for HiccupLog {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { count, total_ns, longest } = self;
        if longest.is_empty() {
            return (count, total_ns).serialize(serializer);
        }
        (count, total_ns, longest).serialize(serializer)
    }
}

/// The shortest pause of a spinning loop that counts as a hiccup, in ns.
pub const HICCUP_NS: u64 = 2_000;
/// The number of hiccups that are kept one by one.
const KEPT: usize = 500;

impl HiccupLog {
    /// Notes a pause that began at `at_ns`. Allocates memory only at the first call.
    pub fn note(&mut self, at_ns: u64, length_ns: u64) {
        self.count += 1;
        self.total_ns += length_ns;
        self.keep(at_ns, length_ns);
    }

    /// Adds the pauses of another CPU.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.total_ns += other.total_ns;
        other.longest.iter().for_each(|&(at_ns, length_ns)| self.keep(at_ns, length_ns));
    }

    /// Drops all hiccups but the `most` longest, and sorts these by time.
    pub fn shorten(&mut self, most: usize) {
        self.longest.sort_unstable_by_key(|(_, length_ns)| std::cmp::Reverse(*length_ns));
        self.longest.truncate(most);
        self.longest.sort_unstable();
    }

    fn keep(&mut self, at_ns: u64, length_ns: u64) {
        if self.longest.len() < KEPT {
            self.longest.reserve_exact(KEPT - self.longest.len());
            self.longest.push((at_ns, length_ns));
        } else if let Some(shortest) = self.longest.iter_mut().min_by_key(|(_, length)| *length)
            && shortest.1 < length_ns
        {
            *shortest = (at_ns, length_ns);
        }
    }
}

/// Returns the median. For an even number of values, this is the lower of the two in the middle. Returns `None` if there are no values.
pub fn median<T: PartialOrd + Copy>(values: impl IntoIterator<Item = T>) -> Option<T> {
    let mut values: Vec<T> = values.into_iter().collect();
    values.sort_by(|a, b| a.partial_cmp(b).expect("no round gives a NaN"));
    (!values.is_empty()).then(|| values[(values.len() - 1) / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_survives_its_text() {
        let d = Distribution::of_values((1..=1000).map(|i| i * 100));
        let d = Distribution { mean: 50_050.125, ..d };
        let json = serde_json::to_string(&d).unwrap();
        let back: Distribution = serde_json::from_str(&json).unwrap();
        assert_eq!((&back, back.decode().unwrap().len()), (&d, 1000));
        assert!((50_000..=50_100).contains(&back.p50), "{}", back.p50);
        assert!((100_000..=100_100).contains(&back.max));
        let small = Distribution { histogram: String::new(), ..d };
        let json = serde_json::to_string(&small).unwrap();
        assert!(json.len() < 100, "{json}");
        assert_eq!(serde_json::from_str::<Distribution>(&json).unwrap(), small);
        let nothing = Distribution::default();
        assert_eq!(serde_json::to_string(&nothing).unwrap(), "[]");
        assert_eq!(serde_json::from_str::<Distribution>("[]").unwrap(), nothing);
    }

    #[test]
    fn a_curve_ends_with_the_largest_value() {
        let curve = Distribution::of_values(1..=1000).curve();
        let quantiles: Vec<f64> = curve.iter().map(|(q, _)| *q).collect();
        assert_eq!(quantiles, [0.0, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9995]);
        assert_eq!((curve[0].1, curve[1].1, curve[6].1), (1, 500, 1000));
    }

    #[test]
    fn medians_are_of_the_middle() {
        assert_eq!(median([3, 1, 2]), Some(2));
        assert_eq!(median([4.0, 1.0]), Some(1.0));
        assert_eq!(median::<u64>([]), None);
    }

    #[test]
    fn the_longest_hiccups_are_kept() {
        let mut log = HiccupLog::default();
        (0..5000).for_each(|i| log.note(i, 2_000 + i));
        assert_eq!((log.count, log.longest.len()), (5000, KEPT));
        assert!(log.longest.iter().all(|(_, length)| *length >= 6_500));
        let mut short = log.clone();
        short.shorten(2);
        assert_eq!(short.longest, [(4_998, 6_998), (4_999, 6_999)]);
        for log in [&log, &short, &HiccupLog { longest: Vec::new(), ..short.clone() }] {
            let json = serde_json::to_string(log).unwrap();
            assert_eq!(serde_json::from_str::<HiccupLog>(&json).unwrap(), *log);
        }
        let mut all = HiccupLog::default();
        all.add(&log);
        all.add(&log);
        assert_eq!((all.count, all.total_ns, all.longest.len()), (10_000, 2 * log.total_ns, KEPT));
    }
}
