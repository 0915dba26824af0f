//! Measures the cost and the latency of each way to wait. In one case, a single receiver has its own CPU. In the other cases, there are far
//! more receivers than CPUs.
//!
//! One message of 256 bytes is sent each millisecond. The question measures the latency to the last receiver, the CPU time and the context
//! switches.

use super::rounds::{ask, contestants};
use super::table::{Sheet, Unit};
use crate::rig::names::{MULTICAST, SHMCAST};
use crate::rig::plan::{Answer, Case, Stage};
use crate::rig::round::Outcome;
use crate::rig::spec::{Contestant, Spec, Wait};
use anyhow::Result;

/// The title of the answer's table.
const TITLE: &str =
    "Ways to wait, 256 B each ms; times are in us, inside the send and from it to the last receiver";

/// The numbers of receivers in the cases without binding.
pub const RECEIVERS: [usize; 3] = [4, 16, 50];

const WAITS: [(&str, Wait); 11] = [
    (SHMCAST, Wait::Spin),
    (SHMCAST, Wait::SpinYield),
    (SHMCAST, Wait::Yield),
    (SHMCAST, Wait::Backoff),
    (SHMCAST, Wait::Sleep),
    (SHMCAST, Wait::Park),
    (MULTICAST, Wait::Spin),
    (MULTICAST, Wait::SpinHint),
    (MULTICAST, Wait::Yield),
    (MULTICAST, Wait::Block),
    (MULTICAST, Wait::Tokio),
];

/// Plays the rounds, and returns the answer. The contestants in `extra` take part as well.
///
/// # Errors
/// When a round cannot be started.
pub fn run(stage: &Stage, receivers: &[usize], extra: &[Contestant], messages: u64) -> Result<Answer> {
    let (warmup, messages) = if stage.quick { (20, 150) } else { (200, messages) };
    let who = contestants(stage, &WAITS, extra);
    let round = |who: &Contestant, receivers| Spec {
        warmup,
        messages,
        interval_ns: 1_000_000,
        ..Spec::crowd(who.clone(), receivers, 256)
    };
    let case = |name: String, receivers, cpus: &[usize]| Case {
        name,
        specs: who
            .iter()
            .map(|who| Spec { receiver_cpus: cpus.to_vec(), ..round(who, receivers) })
            .map(|spec| Spec { publisher_cpu: (!cpus.is_empty()).then_some(0), ..spec })
            .collect(),
    };
    let mut cases = vec![case("1 receiver, bound".into(), 1, &[1]), case("1 receiver, free".into(), 1, &[])];
    cases.extend(receivers.iter().map(|&n| case(format!("{n} receivers"), n, &[])));
    ask(stage, "oversubscribed", &cases)
}

/// Returns a receiver's CPU time per message, in ns.
pub fn cpu_ns(outcome: &Outcome) -> f64 {
    let usage = &outcome.received.usage;
    (usage.user_ns + usage.system_ns) as f64 / outcome.expected.max(1) as f64
}

/// Returns a receiver's context switches per message.
pub fn switches(outcome: &Outcome) -> f64 {
    let usage = &outcome.received.usage;
    (usage.voluntary_switches + usage.involuntary_switches) as f64 / outcome.expected.max(1) as f64
}

/// Makes the table of latency, CPU time and context switches, by number of receivers and way of waiting.
pub fn sheet(answer: &Answer) -> Sheet {
    let figures = [
        "send p50",
        "last p50",
        "last p99",
        "last max",
        "CPU a message and receiver",
        "CPUs",
        "switches a message and receiver",
        "of them voluntary",
        "lost",
        "rounds",
    ];
    Sheet::of(answer, TITLE, ("receivers", figures), Unit::Us, |f| {
        [
            f.time(|o| o.cost.p50 as f64),
            f.time(|o| o.last.p50 as f64),
            f.time(|o| o.last.p99 as f64),
            f.time(|o| o.last.max as f64),
            f.time(cpu_ns),
            f.number(2, cpus),
            f.number(2, switches),
            f.number(2, |o| o.received.usage.voluntary_switches as f64 / o.expected.max(1) as f64),
            f.lost(),
            f.rounds(),
        ]
    })
}

/// Returns the number of CPUs that all receivers and the publisher together keep busy.
pub fn cpus(outcome: &Outcome) -> f64 {
    let used = outcome.received.usage.sum(&outcome.published.usage);
    (used.user_ns + used.system_ns) as f64 / used.wall_ns.max(1) as f64
}
