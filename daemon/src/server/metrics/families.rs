//! Families of bridge metrics. The samples of a family come from counters of bridges, and differ in their labels.

use super::exposition::Text;
use crate::server::bridges::BridgeFigures;
use shmcast_bridge::proto::counters::Histogram;
use shmcast_bridge::table::{Field, Metric, Table};

/// The upper ends of the buckets, as exponents of two in nanoseconds: 256 ns to 17 s.
const EXPONENTS: [u32; 19] = [8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 24, 26, 28, 30, 34];

/// The help texts of families with a label. A family without a label has the help text of its counter.
const LABELLED: [(&str, &str); 6] = [
    ("repair_refused_total", "Requests that drew no messages, by reason."),
    ("lease_events_total", "What became of requests for leases."),
    ("recovered_messages_total", "Missing messages that came after all, by where from."),
    ("malformed_datagrams_total", "Datagrams dropped unread because they are damaged, by reason."),
    ("ignored_packets_total", "Sound packets that were not for this bridge, by reason."),
    ("engine_resyncs_total", "Times that the sender asked for the end of the stream again, by cause."),
];

/// The families with their samples so far, in the order of their first use.
#[derive(Default)]
pub(super) struct Families<'a>(Vec<Family<'a>>);

struct Family<'a> {
    name: &'static str,
    kind: &'static str,
    help: String,
    samples: Vec<(Vec<(&'static str, &'a str)>, u64)>,
}

impl<'a> Families<'a> {
    /// Adds the families of a table, but no samples. So metrics list these families even if no bridge has this table.
    pub(super) fn declare<T: Table>(mut self) -> Self {
        for Field { help, metric, .. } in T::FIELDS {
            if let Some(metric) = metric {
                self.family(metric, help);
            }
        }
        self
    }

    /// Adds each counter of a table to its family, as a sample with `labels`.
    pub(super) fn add<T: Table>(&mut self, table: &T, labels: &[(&'static str, &'a str)]) {
        for Field { help, metric, read } in T::FIELDS {
            if let Some(metric) = metric {
                let labels = labels.iter().copied().chain(metric.label).collect();
                self.family(metric, help).samples.push((labels, read(table)));
            }
        }
    }

    fn family(&mut self, metric: &Metric, help: &str) -> &mut Family<'a> {
        let at = self.0.iter().position(|family| family.name == metric.name).unwrap_or_else(|| {
            let labelled = LABELLED.iter().find(|(labelled, _)| *labelled == metric.name);
            let help = labelled.map_or(help.trim(), |(_, help)| help).to_owned();
            self.0.push(Family { name: metric.name, kind: metric.kind, help, samples: Vec::new() });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// Writes all families.
    pub(super) fn render(self, text: &mut Text) {
        for Family { name, kind, help, samples } in self.0 {
            let name = format!("shmcast_bridge_{name}");
            text.family(&name, kind, &help);
            samples.iter().for_each(|(labels, value)| text.sample(&name, labels, value));
        }
    }
}

/// Writes a gauge that is in no table of counters. Each bridge for which `figure` returns a value has a sample.
pub(super) fn each<V: std::fmt::Display>(
    text: &mut Text,
    bridges: &[BridgeFigures],
    name: &str,
    help: &str,
    figure: impl Fn(&BridgeFigures) -> Option<V>,
) {
    let name = format!("shmcast_bridge_{name}");
    text.family(&name, "gauge", help);
    for bridge in bridges {
        if let Some(value) = figure(bridge) {
            text.sample(&name, &[("bridge", bridge.spec.title())], value);
        }
    }
}

/// Returns the upper ends of the buckets in seconds, each with the number of durations below it.
pub(super) fn cumulative(histogram: &Histogram) -> impl Iterator<Item = (f64, u64)> {
    EXPONENTS.into_iter().map(|exponent| {
        // One of the histogram's steps ends right before each power of two, so no step lies on both sides of a bucket's end.
        let end_ns = 1u64 << exponent;
        let below = histogram.steps().take_while(|(limit_ns, _)| *limit_ns < end_ns);
        (end_ns as f64 / 1e9, below.map(|(_, count)| count).sum())
    })
}
