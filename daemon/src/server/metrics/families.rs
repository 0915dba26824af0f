//! Families of figures, of which each bridge has a sample.

use super::exposition::Text;
use crate::server::bridges::BridgeFigures;
use shmcast_bridge::proto::counters::Histogram;

/// The ends of the buckets, as exponents of two in nanoseconds: 256 ns to 17 s.
const EXPONENTS: [u32; 19] = [8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 24, 26, 28, 30, 34];

/// Reads one figure from a set of counters.
pub(super) type Figure<C> = fn(&C) -> u64;

/// One family with a sample for each bridge that has one.
pub(super) fn each(
    text: &mut Text,
    bridges: &[BridgeFigures],
    name: &str,
    kind: &str,
    help: &str,
    figure: impl Fn(&BridgeFigures) -> Option<u64>,
) {
    let name = format!("shmcast_bridge_{name}");
    text.family(&name, kind, help);
    for bridge in bridges {
        if let Some(value) = figure(bridge) {
            text.sample(&name, &[("bridge", bridge.spec.title())], value);
        }
    }
}

/// Families of one kind, each of one figure.
pub(super) fn families<C>(
    text: &mut Text,
    bridges: &[BridgeFigures],
    kind: &str,
    figures: &[(&str, &str, Figure<C>)],
    counters: impl Fn(&BridgeFigures) -> Option<C>,
) {
    for (name, help, figure) in figures {
        each(text, bridges, name, kind, help, |bridge| counters(bridge).map(|counters| figure(&counters)));
    }
}

/// One family of counters with a sample for each bridge and each value of a label.
pub(super) fn by<C>(
    text: &mut Text,
    bridges: &[BridgeFigures],
    (name, label): (&str, &str),
    help: &str,
    figures: &[(&str, Figure<C>)],
    counters: impl Fn(&BridgeFigures) -> Option<C>,
) {
    let name = format!("shmcast_bridge_{name}");
    text.family(&name, "counter", help);
    for bridge in bridges {
        let Some(counters) = counters(bridge) else { continue };
        for (value, figure) in figures {
            text.sample(&name, &[("bridge", bridge.spec.title()), (label, value)], figure(&counters));
        }
    }
}

/// The buckets of a histogram of durations: the end of each in seconds, and how many values are below it.
pub(super) fn cumulative(histogram: &Histogram) -> impl Iterator<Item = (f64, u64)> {
    EXPONENTS.into_iter().map(|exponent| {
        // Steps end right before powers of two, so no step lies on both sides of a bucket's end.
        let end_ns = 1u64 << exponent;
        let below = histogram.steps().take_while(|(limit_ns, _)| *limit_ns < end_ns);
        (end_ns as f64 / 1e9, below.map(|(_, count)| count).sum())
    })
}
