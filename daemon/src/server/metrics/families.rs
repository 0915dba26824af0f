//! Families of figures, of which each bridge has a sample.

use super::exposition::Text;
use crate::server::bridges::BridgeFigures;

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
