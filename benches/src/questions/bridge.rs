//! Measures the cost of sending messages to another host.
//!
//! A channel is published on one host, sent by `shmcast bridge`, and read on the other host. For comparison, the question measures bare UDP
//! datagrams and Aeron over the same wire, in the same laps. The hosts are network namespaces of this machine.

use super::rounds::ask;
use super::table::{Figures, Sheet, Unit};
use crate::rig::bridge::{BridgeMode, BridgeReport, PAYLOAD_MAX};
use crate::rig::hosts::Hosts;
use crate::rig::names::{
    AERON_UDP, AERON_UDP_INVOKED, BRIDGE, BRIDGE_BUSY_POLL, BRIDGE_DEFAULT, BRIDGE_INVOKED,
    BRIDGE_INVOKED_NATIVE, BRIDGE_INVOKED_SEALED, BRIDGE_INVOKED_UNICAST, BRIDGE_NATIVE, BRIDGE_SEALED,
    BRIDGE_TO_RING, BRIDGE_UNBOUND, WIRE_MULTICAST, WIRE_UDP,
};
use crate::rig::plan::{Answer, Case, Stage};
use crate::rig::round::Outcome;
use crate::rig::spec::{Contestant, Spec, Wait};
use crate::rig::stats::Distribution;
use anyhow::Result;

/// The title of the answer's table.
const TITLE: &str = "From host to host over a virtual wire; times are in us from the send";
/// Payload sizes of the one-way cases, in bytes.
pub const SIZES: [usize; 2] = [64, 256];
/// The payload size of the cases with full packets, in bytes. In the plain and the native format, one such message nearly fills a packet.
const PACKET: usize = 1_320;
/// The size of the ring in bytes. It limits the messages on their way, so that they do not overflow a socket's buffer.
const RING_BYTES: u64 = 4 << 20;

/// Plays the rounds, and returns the answer. Of the `peers`, only those that can send between hosts take part.
///
/// # Errors
/// When a round cannot be started.
pub fn run(stage: &Stage, hosts: &Hosts, sizes: &[usize], messages: u64, peers: &[&str]) -> Result<Answer> {
    let aeron = [(AERON_UDP_INVOKED, Wait::Spin), (AERON_UDP, Wait::Yield)].into_iter();
    let aeron: Vec<_> = aeron.filter(|(name, _)| is_there(name, peers)).collect();
    let base = |transport: &str, wait, size| {
        let contestant = Contestant::new(transport, wait);
        // A reader that only polls the ring runs on CPU 0, so that the bridge's receiving thread has CPU 1 for itself.
        let only_looks = BridgeMode::of(&contestant).is_some_and(|mode| mode.to_ring);
        Spec {
            ring_bytes: RING_BYTES,
            wire: Some(hosts.wire.clone()),
            receiver_cpus: vec![usize::from(!only_looks)],
            ..Spec::one_to_one(contestant, size)
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
            (BRIDGE_INVOKED_NATIVE, Wait::Spin),
            (BRIDGE_INVOKED_SEALED, Wait::Spin),
            (BRIDGE, Wait::Yield),
            (BRIDGE_TO_RING, Wait::Spin),
        ];
        let who = [&who[..], &aeron].concat();
        let spec = |&(name, wait): &(&str, Wait)| Spec {
            warmup,
            messages,
            interval_ns: 100_000,
            ..base(name, wait, size)
        };
        cases.push(Case { name: format!("{size} B each 100 us"), specs: who.iter().map(spec).collect() });
    }
    let (warmup, many) = if stage.quick { (1_000, 50_000) } else { (50_000, 1_000_000) };
    let who = [
        (WIRE_UDP, Wait::Spin),
        (BRIDGE, Wait::Burst),
        (BRIDGE_NATIVE, Wait::Burst),
        (BRIDGE_SEALED, Wait::Burst),
    ];
    let aeron: Vec<_> = aeron.into_iter().map(|(name, _)| (name, Wait::Burst)).collect();
    let who = [&who[..], &aeron].concat();
    for size in [64, PACKET] {
        // Cases with full packets have fewer messages, because the rig checks each byte of a message, which slows the sender down.
        let (warmup, many) = if size == PACKET { (warmup / 10, many / 5) } else { (warmup, many) };
        let spec = |&(name, wait): &(&str, Wait)| Spec {
            warmup,
            messages: many,
            gated: true,
            ..base(name, wait, size)
        };
        cases.push(Case { name: format!("{size} B back to back"), specs: who.iter().map(spec).collect() });
    }
    cases.push(waits(stage, hosts, base));
    ask(stage, "bridge", &cases)
}

/// Whether a peer is available. If it is not, prints how to make it available.
fn is_there(name: &str, peers: &[&str]) -> bool {
    let is_there = peers.contains(&name);
    if !is_there {
        eprintln!("SKIPPED {name}: it needs Java, and --peers \"$(benches/peers/java/build.sh)\"");
    }
    is_there
}

/// Returns a case with a round for each way in which the bridge's receiving thread can wait.
fn waits(stage: &Stage, hosts: &Hosts, base: impl Fn(&str, Wait, usize) -> Spec) -> Case {
    let mut who = vec![
        (BRIDGE_DEFAULT, Wait::Block),
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

/// Makes the table of latencies and rates by case, with the resources that the bridge's receiving thread used.
pub fn sheet(answer: &Answer) -> Sheet {
    let figures = [
        "mean",
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
    Sheet::of(answer, TITLE, ("case", figures), Unit::Us, figures_of)
}

/// Returns the cells of one contestant. In a paced case it has latencies but no rate. In a case with messages back to back, it has a rate
/// but no latencies.
fn figures_of(f: &Figures<'_>) -> [String; 17] {
    let rounds = f.answer.comparable(f.case, f.who);
    let paced = rounds.iter().any(|(_, o)| o.spec.interval_ns > 0);
    let bridged = rounds.iter().any(|(_, o)| o.bridge.is_some());
    let unless_paced = |text: String| if paced { "-".into() } else { text };
    let if_paced = |text: String| if paced { text } else { "-".into() };
    let at = |figure: fn(&Distribution) -> f64| if_paced(f.time(|o| figure(&o.one_way)));
    let of = |decimals, figure: fn(&BridgeReport, f64) -> f64| {
        let of_round = |o: &Outcome| o.bridge.as_ref().map(|report| figure(report, o.spec.total() as f64));
        if bridged { f.number(decimals, |o| of_round(o).unwrap_or_default()) } else { "-".into() }
    };
    let udp = f.find(|who| who.transport == WIRE_UDP).filter(|udp| udp != f.who);
    let udp = udp.as_ref();
    [
        at(|d| d.mean),
        at(|d| d.min as f64),
        at(|d| d.p50 as f64),
        at(|d| d.p90 as f64),
        at(|d| d.p99 as f64),
        at(|d| d.p999 as f64),
        at(|d| d.max as f64),
        if_paced(f.ratio(udp, |o| o.one_way.p50 as f64)),
        unless_paced(f.number(2, |o| o.rate / 1e6)),
        unless_paced(f.ratio(udp, |o| o.rate)),
        of(1, |report, messages| messages / report.packets.max(1) as f64),
        of(0, |report, _| 100.0 * report.ingress.cpu_ns as f64 / report.ingress.wall_ns.max(1) as f64),
        of(2, |report, messages| report.ingress.voluntary_switches as f64 / messages),
        of(2, |report, messages| report.ingress.involuntary_switches as f64 / messages),
        of(0, |report, _| report.repaired as f64),
        f.lost(),
        f.rounds(),
    ]
}
