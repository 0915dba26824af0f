//! What does it cost to cross to another host? A channel published on one, carried by `shmcast bridge` and read on the other,
//! beside bare UDP datagrams over the same wire in the same laps. The hosts are network namespaces of this machine.

use super::{ask, one_to_one, table, table::Sheet, table::ns};
use crate::rig::carrier::Carried;
use crate::rig::hosts::Hosts;
use crate::rig::plan::{Answer, Case, Stage};
use crate::rig::spec::{Contestant, Spec, Wait};
use crate::rig::stats::Distribution;
use crate::transport::bridge::{
    BRIDGE, BRIDGE_BUSY_POLL, BRIDGE_INVOKED, BRIDGE_INVOKED_UNICAST, BRIDGE_TO_RING, BRIDGE_UNBOUND, Mode,
    PAYLOAD_MAX, WIRE_MULTICAST, WIRE_UDP,
};
use anyhow::Result;

/// What the answer's table is of.
const TITLE: &str = "From host to host over a virtual wire; ns from the send";
/// Payload sizes of the one-way cases.
pub const SIZES: [usize; 2] = [64, 256];
/// Bytes of ring: what is on its way may fill a socket's buffer and not overflow it.
const RING_BYTES: u64 = 4 << 20;

/// Plays and answers.
///
/// # Errors
/// When a round cannot be tried.
pub fn run(stage: &Stage, hosts: &Hosts, sizes: &[usize], messages: u64) -> Result<Answer> {
    let base = |transport: &str, wait, size| {
        let contestant = Contestant::new(transport, wait);
        // A reader that only looks at the ring leaves the receiving thread's CPU alone.
        let only_looks = Mode::of(&contestant).is_some_and(|mode| mode.to_ring);
        Spec {
            ring_bytes: RING_BYTES,
            wire: Some(hosts.wire.clone()),
            receiver_cpus: vec![usize::from(!only_looks)],
            ..one_to_one(contestant, size)
        }
    };
    let mut cases = Vec::new();
    for &size in sizes.iter().filter(|size| **size as u64 <= PAYLOAD_MAX) {
        let (warmup, messages) = if stage.quick { (100, 1_000) } else { (1_000, messages) };
        let who = [
            (WIRE_UDP, Wait::Spin),
            (WIRE_MULTICAST, Wait::Spin),
            (BRIDGE_INVOKED, Wait::Spin),
            (BRIDGE_INVOKED_UNICAST, Wait::Spin),
            (BRIDGE, Wait::Yield),
            (BRIDGE_TO_RING, Wait::Spin),
        ];
        let spec = |&(name, wait): &(&str, Wait)| Spec {
            warmup,
            messages,
            interval_ns: 100_000,
            ..base(name, wait, size)
        };
        cases.push(Case { name: format!("{size} B each 100 us"), specs: who.iter().map(spec).collect() });
    }
    let (warmup, many) = if stage.quick { (1_000, 50_000) } else { (50_000, 1_000_000) };
    let who = [(WIRE_UDP, Wait::Spin), (BRIDGE, Wait::Burst)];
    let spec =
        |&(name, wait): &(&str, Wait)| Spec { warmup, messages: many, gated: true, ..base(name, wait, 64) };
    cases.push(Case { name: "64 B back to back".into(), specs: who.iter().map(spec).collect() });
    cases.push(waits(stage, hosts, base));
    ask(stage, "bridge", &cases)
}

/// Every way for the receiving thread to wait.
fn waits(stage: &Stage, hosts: &Hosts, base: impl Fn(&str, Wait, usize) -> Spec) -> Case {
    let mut who = vec![
        (BRIDGE_UNBOUND, Wait::Block),
        (BRIDGE_TO_RING, Wait::Block),
        (BRIDGE_TO_RING, Wait::Yield),
        (BRIDGE_TO_RING, Wait::Spin),
    ];
    match &hosts.no_busy_poll {
        None => who.extend([(BRIDGE_BUSY_POLL, Wait::Block), (BRIDGE_BUSY_POLL, Wait::Spin)]),
        Some(why) => eprintln!("SKIPPED {BRIDGE_BUSY_POLL}: {why}"),
    }
    let (warmup, messages) = if stage.quick { (20, 200) } else { (200, 3_000) };
    let spec = |(name, wait)| Spec {
        warmup,
        messages,
        interval_ns: 1_000_000,
        spin_between: false,
        ..base(name, wait, 256)
    };
    Case { name: "256 B each ms, to the ring".into(), specs: who.into_iter().map(spec).collect() }
}

/// Latencies and rates by case, and what the bridge's receiving thread used.
pub fn sheet(answer: &Answer) -> Sheet {
    let header = [
        "case",
        "transport",
        "avg",
        "min",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
        "p50/UDP",
        "M msg/s",
        "rate/UDP",
        "msg/packet",
        "CPU %",
        "slept/msg",
        "yielded/msg",
        "repaired",
        "lost",
        "rounds",
    ];
    let mut sheet = Sheet::new(TITLE, &header);
    for case in answer.cases() {
        let contestants = answer.contestants(&case);
        let udp = contestants.iter().find(|c| c.transport == WIRE_UDP);
        for who in &contestants {
            let paced = answer.comparable(&case, who).iter().any(|(_, o)| o.spec.interval_ns > 0);
            let text =
                |value: Option<f64>, digits: usize| value.map_or("-".into(), |v| format!("{v:.digits$}"));
            let at = |figure: fn(&Distribution) -> f64| {
                let value = answer.median(&case, who, |o| figure(&o.one_way)).filter(|_| paced);
                value.map_or("-".into(), ns)
            };
            let of = |figure: fn(&Carried, f64) -> f64| {
                let with = |o: &crate::rig::round::Outcome| {
                    let carried = o.carried.as_ref()?;
                    Some(figure(carried, o.spec.total() as f64))
                };
                answer
                    .comparable(&case, who)
                    .iter()
                    .any(|(_, o)| o.carried.is_some())
                    .then(|| answer.median(&case, who, |o| with(o).unwrap_or_default()))
                    .flatten()
            };
            let ratio = |figure: fn(&crate::rig::round::Outcome) -> f64| {
                udp.filter(|udp| *udp != who).and_then(|udp| answer.ratio(&case, (who, udp), figure))
            };
            sheet.add(
                who,
                [
                    case.clone(),
                    who.name(),
                    at(|d| d.mean),
                    at(|d| d.min as f64),
                    at(|d| d.p50 as f64),
                    at(|d| d.p90 as f64),
                    at(|d| d.p99 as f64),
                    at(|d| d.p999 as f64),
                    at(|d| d.max as f64),
                    text(ratio(|o| o.one_way.p50 as f64).filter(|_| paced), 2),
                    text(answer.median(&case, who, |o| o.rate / 1e6).filter(|_| !paced), 2),
                    text(ratio(|o| o.rate).filter(|_| !paced), 2),
                    text(of(|c, messages| messages / c.packets.max(1) as f64), 1),
                    text(of(|c, _| 100.0 * c.ingress.cpu_ns as f64 / c.ingress.wall_ns.max(1) as f64), 0),
                    text(of(|c, messages| c.ingress.voluntary_switches as f64 / messages), 2),
                    text(of(|c, messages| c.ingress.involuntary_switches as f64 / messages), 2),
                    text(of(|c, _| c.repaired as f64), 0),
                    table::lost(answer, &case, who),
                    table::rounds(answer, &case, who),
                ],
            );
        }
    }
    sheet
}
