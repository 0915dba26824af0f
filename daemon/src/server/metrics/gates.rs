//! Metrics of gates. They show which readers delay publishers, how often, and for how long.

use super::exposition::Text;
use super::snapshot::ChannelFigures;
use shmcast::control::GateReport;

/// A family: its name, kind and help, and the figure.
type Family = (&'static str, &'static str, &'static str, fn(&GateReport) -> Option<u64>);

/// A family of durations. The function returns nanoseconds, and the metric is in seconds.
type Times = (&'static str, &'static str, &'static str, fn(&GateReport) -> u64);

const FAMILIES: [Family; 9] = [
    ("readers", "gauge", "1 while a reader has the gate, and 0 while nobody has.", |gate| {
        Some(u64::from(gate.reader.is_some()))
    }),
    ("in_force", "gauge", "1 while the publisher waits for the gate's reader.", |gate| {
        Some(u64::from(gate.state == "in-force"))
    }),
    ("dropped", "gauge", "1 while the gate's reader may be lapped because it took too long.", |gate| {
        Some(u64::from(gate.state == "dropped"))
    }),
    ("behind_bytes", "gauge", "How far the gate's reader is behind, in bytes of the ring.", |gate| {
        gate.behind_bytes
    }),
    ("held_messages_total", "counter", "Messages that waited for the gate's reader.", |gate| Some(gate.held)),
    ("dropped_total", "counter", "Times that the gate was dropped.", |gate| Some(gate.dropped)),
    (
        "refused_messages_total",
        "counter",
        "Messages that the gate refused, after a wait or to calls that never wait.",
        |gate| Some(gate.refused.saturating_add(gate.turned_away)),
    ),
    (
        "impossible_claims_total",
        "counter",
        "Positions that the gate's reader claimed and the ring had not reached.",
        |gate| Some(gate.impossible),
    ),
    ("lag_limit_bytes", "gauge", "How far the reader may be behind before the publisher waits.", |gate| {
        Some(gate.terms.lag_bytes)
    }),
];

/// Writes all families of all gates.
pub(super) fn render(text: &mut Text, channels: &[ChannelFigures]) {
    let all = || channels.iter().filter(|channel| !channel.status.gates.is_empty());
    let seconds = |ns: u64| format!("{:.9}", ns as f64 / 1e9);
    for (name, kind, help, figure) in FAMILIES {
        let name = format!("shmcast_gate_{name}");
        text.family(&name, kind, help);
        for channel in all() {
            for gate in &channel.status.gates {
                if let Some(value) = figure(gate) {
                    text.sample(&name, &labels(channel, gate), value);
                }
            }
        }
    }
    let families: [Times; 2] = [
        (
            "shmcast_gate_held_seconds_total",
            "counter",
            "The sum of all waits for the gate's reader.",
            |gate| gate.total_ns,
        ),
        ("shmcast_gate_longest_wait_seconds", "gauge", "The longest wait of one message.", |gate| {
            gate.longest_ns
        }),
    ];
    for (name, kind, help, figure) in families {
        text.family(name, kind, help);
        for channel in all() {
            for gate in &channel.status.gates {
                text.sample(name, &labels(channel, gate), seconds(figure(gate)));
            }
        }
    }
    waits(text, all());
}

/// The upper ends of the buckets of waits, as exponents of two in nanoseconds: 1 us to 1 s in factors of four.
const EXPONENTS: [usize; 11] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30];

/// Writes the histogram of the waits.
fn waits<'a>(text: &mut Text, channels: impl Iterator<Item = &'a ChannelFigures>) {
    let name = "shmcast_gate_wait_seconds";
    text.family(
        name,
        "histogram",
        "How long messages waited for the gate's reader. Each message that waited counts once.",
    );
    for channel in channels {
        for gate in &channel.status.gates {
            let (count, sum) = (gate.waits.iter().sum(), gate.total_ns as f64 / 1e9);
            text.histogram(name, &labels(channel, gate), cumulative(&gate.waits), count, sum);
        }
    }
}

/// Returns the upper ends of the buckets in seconds, each with the number of waits below it. `waits[n]` counts the waits from 2^n ns on.
fn cumulative(waits: &[u64]) -> impl Iterator<Item = (f64, u64)> {
    EXPONENTS.into_iter().map(|exponent| {
        let below = waits.iter().take(exponent).sum();
        ((1u64 << exponent) as f64 / 1e9, below)
    })
}

fn labels<'a>(channel: &'a ChannelFigures, gate: &'a GateReport) -> [(&'static str, &'a str); 2] {
    [("channel", &channel.status.channel), ("gate", &gate.terms.gate)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wait_is_below_the_ends_that_are_longer() {
        let mut waits = vec![0; 32];
        // Waits of 0.5 us, of 1 us, of some milliseconds, and of some seconds.
        (waits[9], waits[10], waits[22], waits[31]) = (1, 2, 4, 8);
        let buckets: Vec<(f64, u64)> = cumulative(&waits).collect();
        assert_eq!(buckets[..2], [(1.024e-6, 1), (4.096e-6, 3)]);
        assert_eq!(buckets[6..8], [(4.194304e-3, 3), (16.777216e-3, 7)]);
        assert_eq!(buckets.last(), Some(&(1.073741824, 7)), "longer ones are only in the count");
        assert!(cumulative(&[]).all(|(_, count)| count == 0));
    }
}
