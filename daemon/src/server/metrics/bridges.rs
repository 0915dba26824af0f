//! Metrics of the bridges: messages and packets that were sent, received, repaired, lost, dropped and refused.
//!
//! The tables of the bridge and the engine have the counters and their names. This module adds metrics that are computed from counters.

use super::exposition::Text;
use super::families::{Families, cumulative, each};
use crate::server::bridges::{BridgeFigures, Counted};
use shmcast_bridge::proto::counters::{
    Histogram, JournalReplies, LeaseCounters, LineCounters, MalformedCounters, ReceiverTotals,
    RefusedCounters, ReplayTotals, ServerCounters,
};
use shmcast_bridge::proto::replay::PastCounters;
use shmcast_bridge::spec::BridgeSpec;
use shmcast_bridge::status::{HostCounters, ReceiveCounters, SendCounters, ServingCounters, SocketCounters};
use shmcast_engine::status as engine;

/// Returns one of the histograms of a bridge, if the bridge has it.
type Times = fn(&Counted) -> Option<&Histogram>;

/// Families of histograms. Each has a name, a help text, and a function that returns a bridge's histogram.
const TIMES: [(&str, &str, Times); 3] = [
    (
        "recovery_seconds",
        "From noticing a loss to having the message, from servers.",
        |counted| match counted {
            Counted::Receive(_, times) => Some(&times.recovery),
            _ => None,
        },
    ),
    ("receive_to_ring_seconds", "From the kernel's time stamp of a packet to the ring.", |counted| {
        match counted {
            Counted::Receive(_, times) => Some(&times.to_ring),
            _ => None,
        }
    }),
    ("engine_answer_seconds", "Time from an append to the answer of the servers.", |counted| match counted {
        Counted::EngineSend(_, acks) => Some(acks),
        _ => None,
    }),
];

/// The names of a bridge's lines and servers.
struct Names {
    lines: Vec<String>,
    servers: Vec<String>,
}

impl Names {
    fn of(spec: &BridgeSpec) -> Names {
        let servers = || spec.receive.iter().flat_map(|receive| &receive.servers);
        let groups = spec.lines.iter().enumerate().map(|(index, line)| format!("{index}:{}", line.group));
        // Unicast leases come after the configured lines, one for each server.
        let is_unicast = spec.receive.as_ref().is_some_and(|receive| receive.unicast);
        let leases = servers().filter(|_| is_unicast).map(|server| format!("unicast:{server}"));
        Names {
            lines: groups.chain(leases).collect(),
            servers: servers().enumerate().map(|(index, server)| format!("{index}:{server}")).collect(),
        }
    }
}

/// Writes all families of all bridges.
pub(super) fn render(text: &mut Text, bridges: &[BridgeFigures]) {
    let name = "shmcast_bridge_up";
    text.family(name, "gauge", "1 while the bridge runs, 0 while it waits or has failed.");
    for bridge in bridges {
        let direction = if bridge.spec.send.is_some() { "send" } else { "receive" };
        let labels =
            [("bridge", bridge.spec.title()), ("channel", &bridge.spec.channel), ("direction", direction)];
        let is_up = matches!(bridge.state, "running" | "listening" | "standby" | "ending" | "leaving");
        text.sample(name, &labels, u64::from(is_up));
    }
    let names: Vec<Names> = bridges.iter().map(|bridge| Names::of(&bridge.spec)).collect();
    let mut families = declared();
    for (bridge, names) in bridges.iter().zip(&names) {
        add(&mut families, bridge, names);
    }
    families.render(text);
    figured_out(text, bridges, &names);
    for (name, help, of) in TIMES {
        let name = format!("shmcast_bridge_{name}");
        text.family(&name, "histogram", help);
        for bridge in bridges {
            let Some(times) = bridge.counted.as_ref().and_then(of) else { continue };
            let sum = times.steps().map(|(limit_ns, count)| limit_ns as f64 * count as f64).sum::<f64>();
            let labels = [("bridge", bridge.spec.title())];
            text.histogram(&name, &labels, cumulative(times), times.count(), sum / 1e9);
        }
    }
}

/// The families of all tables, without a sample.
fn declared<'a>() -> Families<'a> {
    Families::default()
        .declare::<SendCounters>()
        .declare::<ServingCounters>()
        .declare::<ReplayTotals>()
        .declare::<JournalReplies>()
        .declare::<PastCounters>()
        .declare::<RefusedCounters>()
        .declare::<LeaseCounters>()
        .declare::<HostCounters>()
        .declare::<ReceiverTotals>()
        .declare::<MalformedCounters>()
        .declare::<SocketCounters>()
        .declare::<LineCounters>()
        .declare::<ServerCounters>()
        .declare::<engine::SendCounters>()
        .declare::<engine::ReceiveCounters>()
}

/// Adds the tables of one bridge.
fn add<'a>(families: &mut Families<'a>, bridge: &'a BridgeFigures, names: &'a Names) {
    let own = ("bridge", bridge.spec.title());
    match &bridge.counted {
        Some(Counted::Send(counters, repair)) => {
            families.add(&**counters, &[own]);
            if let Some(repair) = repair {
                families.add(&repair.serving, &[own]);
                families.add(&repair.replay, &[own]);
                families.add(&repair.journal.replies, &[own]);
                families.add(&repair.journal.past, &[own]);
                families.add(&repair.refused, &[own]);
                families.add(&repair.leases, &[own]);
            }
        }
        Some(Counted::Receive(counters, _)) => {
            families.add(&counters.host, &[own]);
            families.add(&counters.feed, &[own]);
            families.add(&counters.malformed, &[own]);
            for (line, counted) in names.lines.iter().zip(&counters.lines) {
                families.add(&counted.socket, &[own, ("line", line)]);
                families.add(&counted.feed, &[own, ("line", line)]);
            }
            for (server, counted) in names.servers.iter().zip(&counters.servers) {
                families.add(counted, &[own, ("server", server)]);
            }
        }
        Some(Counted::EngineSend(counters, _)) => families.add(&**counters, &[own]),
        Some(Counted::EngineReceive(counters)) => families.add(&**counters, &[own]),
        None => {}
    }
}

/// Gauges that are computed from counters.
fn figured_out(text: &mut Text, bridges: &[BridgeFigures], names: &[Names]) {
    let help = "1 while the bridge sends, 0 while it stands by for a peer.";
    each(text, bridges, "sending", help, |bridge| sent(bridge).map(|c| u64::from(!c.is_standing_by())));
    let help = "The speed of the link that packets are held to, in bytes a second; 0 if none.";
    each(text, bridges, "link_rate_bytes", help, |bridge| sent(bridge).map(|c| c.link_bits / 8));
    let help = "Messages known to be published and not in the channel yet.";
    let behind = |c: &ReceiveCounters| c.host.horizon.saturating_sub(c.host.next_sequence);
    each(text, bridges, "behind_messages", help, |bridge| received(bridge).map(behind));
    let help =
        "Messages that are published and not acknowledged; no sample before the first answer of the servers.";
    each(text, bridges, "engine_behind_messages", help, |bridge| match &bridge.counted {
        Some(Counted::EngineSend(counters, _)) => counters.behind(),
        _ => None,
    });
    let name = "shmcast_bridge_server_rtt_seconds";
    text.family(name, "gauge", "Smoothed round trip to the server; 0 before the first.");
    for (bridge, names) in bridges.iter().zip(names) {
        let Some(counters) = received(bridge) else { continue };
        for (server, counted) in names.servers.iter().zip(&counters.servers) {
            let labels = [("bridge", bridge.spec.title()), ("server", server.as_str())];
            text.sample(name, &labels, counted.rtt_ns as f64 / 1e9);
        }
    }
}

fn sent(bridge: &BridgeFigures) -> Option<&SendCounters> {
    match &bridge.counted {
        Some(Counted::Send(counters, _)) => Some(counters),
        _ => None,
    }
}

fn received(bridge: &BridgeFigures) -> Option<&ReceiveCounters> {
    match &bridge.counted {
        Some(Counted::Receive(counters, _)) => Some(counters),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test of the families: Prometheus refuses an answer that has the same family twice.
    #[test]
    fn each_family_stands_once_and_is_named_for_its_kind() {
        let mut text = Text::default();
        render(&mut text, &[]);
        let families: Vec<&str> = text.0.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert!(families.len() > 100, "{families:?}");
        let mut names: Vec<&str> = families.iter().filter_map(|family| family.split(' ').next()).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        for family in families {
            let (name, kind) = family.split_once(' ').unwrap();
            assert_eq!(name.ends_with("_total"), kind == "counter", "{family}");
        }
    }
}
