//! What does each way of waiting cost and give, with a CPU for the receiver and with far more receivers than CPUs? One
//! 256-byte message each millisecond; latency to the last receiver beside CPU time and context switches.

use super::{ask, contestants, crowd, table, table::Sheet, table::ns};
use crate::rig::plan::{Answer, Case, Stage};
use crate::rig::round::Outcome;
use crate::rig::spec::{Contestant, Spec, Wait};
use crate::transport::{MULTICAST, SHMCAST};
use anyhow::Result;

/// What the answer's table is of.
const TITLE: &str = "Ways to wait, 256 B each ms; ns inside the send, and from it to the last receiver";

/// Numbers of receivers, when nobody is bound to a CPU.
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

/// Plays and answers. `extra` contestants join.
///
/// # Errors
/// When a round cannot be tried.
pub fn run(stage: &Stage, receivers: &[usize], extra: &[Contestant], messages: u64) -> Result<Answer> {
    let (warmup, messages) = if stage.quick { (20, 150) } else { (200, messages) };
    let who = contestants(stage, &WAITS, extra);
    let round = |who: &Contestant, receivers| Spec {
        warmup,
        messages,
        interval_ns: 1_000_000,
        ..crowd(who.clone(), receivers, 256)
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

/// A receiver's CPU time a message, in ns.
pub fn cpu_ns(outcome: &Outcome) -> f64 {
    let usage = &outcome.received.usage;
    (usage.user_ns + usage.system_ns) as f64 / outcome.expected.max(1) as f64
}

/// A receiver's context switches a message.
pub fn switches(outcome: &Outcome) -> f64 {
    let usage = &outcome.received.usage;
    (usage.voluntary_switches + usage.involuntary_switches) as f64 / outcome.expected.max(1) as f64
}

/// Latency, CPU time and context switches, by receivers and way of waiting.
pub fn sheet(answer: &Answer) -> Sheet {
    let header = [
        "receivers",
        "transport",
        "send p50",
        "last p50",
        "p99",
        "max",
        "CPU a message and receiver",
        "CPUs",
        "switches a message and receiver",
        "voluntary",
        "lost",
        "rounds",
    ];
    let mut sheet = Sheet::new(TITLE, &header);
    for case in answer.cases() {
        for who in &answer.contestants(&case) {
            let at = |figure: fn(&Outcome) -> f64| answer.median(&case, who, figure).map_or("-".into(), ns);
            let plain = |figure: fn(&Outcome) -> f64| {
                answer.median(&case, who, figure).map_or("-".into(), |value| format!("{value:.2}"))
            };
            sheet.add(
                who,
                [
                    case.clone(),
                    who.name(),
                    at(|o| o.cost.p50 as f64),
                    at(|o| o.last.p50 as f64),
                    at(|o| o.last.p99 as f64),
                    at(|o| o.last.max as f64),
                    at(cpu_ns),
                    plain(cpus),
                    plain(switches),
                    plain(|o| o.received.usage.voluntary_switches as f64 / o.expected.max(1) as f64),
                    table::lost(answer, &case, who),
                    table::rounds(answer, &case, who),
                ],
            );
        }
    }
    sheet
}

/// CPUs kept busy by all receivers and the publisher together.
pub fn cpus(outcome: &Outcome) -> f64 {
    let used = outcome.received.usage.sum(&outcome.published.usage);
    (used.user_ns + used.system_ns) as f64 / used.wall_ns.max(1) as f64
}
