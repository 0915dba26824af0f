//! The format of figures: durations, counts, percentiles and tables.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use std::fmt;

/// Percentiles of a set of durations, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50: u64,
    /// The 99th percentile: 99 of 100 durations are not longer.
    pub p99: u64,
    /// The 99.9th percentile: 999 of 1000 durations are not longer.
    pub p999: u64,
    /// The longest duration.
    pub max: u64,
}

impl Percentiles {
    /// Nearest-rank percentiles; `None` if there are no samples.
    #[must_use]
    pub fn of(mut samples: Vec<u64>) -> Option<Self> {
        samples.sort_unstable();
        let max = *samples.last()?;
        let rank = |q: f64| samples[((samples.len() as f64 * q).ceil() as usize).clamp(1, samples.len()) - 1];
        Some(Self { p50: rank(0.5), p99: rank(0.99), p999: rank(0.999), max })
    }

    /// The four cells of a table's row.
    #[must_use]
    pub fn cells(percentiles: Option<Self>) -> [String; 4] {
        match percentiles {
            Some(p) => [p.p50, p.p99, p.p999, p.max].map(|ns| Ns(ns).to_string()),
            None => [(); 4].map(|()| "-".to_owned()),
        }
    }
}

/// A duration in nanoseconds, shown with three digits and a unit.
#[derive(Debug, Clone, Copy)]
pub struct Ns(pub u64);

impl fmt::Display for Ns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        let (value, unit) = match self.0 {
            0..1_000 => return f.pad(&format!("{} ns", self.0)),
            1_000..1_000_000 => (ns / 1e3, "us"),
            1_000_000..1_000_000_000 => (ns / 1e6, "ms"),
            _ => (ns / 1e9, "s"),
        };
        let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
        f.pad(&format!("{value:.decimals$} {unit}"))
    }
}

/// A count with a separator every three digits.
#[must_use]
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Makes an empty table in the style of the project. Columns from `first_number` on are aligned to the right.
#[must_use]
pub fn table<const N: usize>(header: [&str; N], first_number: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for column in table.column_iter_mut().skip(first_number) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_three_digits() {
        let shown = [7, 999, 1_000, 12_345, 123_456, 1_234_567, 2_000_000_000].map(|ns| Ns(ns).to_string());
        assert_eq!(shown, ["7 ns", "999 ns", "1.00 us", "12.3 us", "123 us", "1.23 ms", "2.00 s"]);
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn percentiles_are_nearest_rank_and_never_beyond_the_samples() {
        assert_eq!(Percentiles::of(vec![]), None);
        assert_eq!(Percentiles::of(vec![5]), Some(Percentiles { p50: 5, p99: 5, p999: 5, max: 5 }));
        let p = Percentiles::of((1..=1000).rev().collect()).unwrap();
        assert_eq!((p.p50, p.p99, p.p999, p.max), (500, 990, 999, 1000));
    }
}
