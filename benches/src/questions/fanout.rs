//! Measures the cost of many receivers.
//!
//! There are 1 to 100 receiver processes that are bound to no CPU. One message of 256 bytes is sent each millisecond. The question measures
//! the duration of a send, and the latency to the last receiver.

use super::oversubscribed::cpus;
use super::rounds::ask;
use super::table::{Sheet, Unit};
use crate::rig::names::{IDEAL, MULTICAST, SHMCAST, UNIX_DATAGRAM, UNIX_SEQPACKET};
use crate::rig::plan::{Answer, Case, Stage};
use crate::rig::spec::{Contestant, Spec, Wait};
use anyhow::Result;

/// The title of the answer's table.
const TITLE: &str = "256 B each ms, no process bound to a CPU; times are in us, inside the send and from it to the last receiver";

/// The numbers of receivers.
pub const RECEIVERS: [usize; 5] = [1, 10, 20, 50, 100];

/// Returns every transport that this program knows. A transport whose receivers never yield their CPU takes part only if there is a CPU for
/// each receiver and for the publisher.
fn contestants(receivers: usize) -> Vec<Contestant> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let busy = receivers < cpus;
    let all = [
        (SHMCAST, Wait::Yield),
        (IDEAL, Wait::Yield),
        (MULTICAST, Wait::Block),
        (MULTICAST, Wait::Tokio),
        (MULTICAST, Wait::Yield),
        (UNIX_DATAGRAM, Wait::Block),
        (UNIX_SEQPACKET, Wait::Block),
        (SHMCAST, Wait::SpinYield),
        (SHMCAST, Wait::Backoff),
        (SHMCAST, Wait::Sleep),
        (SHMCAST, Wait::Spin),
        (MULTICAST, Wait::Spin),
    ];
    all.into_iter()
        .filter(|(_, wait)| busy || *wait != Wait::Spin)
        .map(|(transport, wait)| Contestant::new(transport, wait))
        .collect()
}

/// Plays the rounds, and returns the answer. The contestants in `extra` take part as well.
///
/// # Errors
/// When a round cannot be started.
pub fn run(
    stage: &Stage,
    receivers: &[usize],
    size: usize,
    extra: &[Contestant],
    messages: u64,
) -> Result<Answer> {
    let (warmup, messages) = if stage.quick { (20, 200) } else { (200, messages) };
    let round = |contestant, receivers| Spec {
        warmup,
        messages,
        interval_ns: 1_000_000,
        ..Spec::crowd(contestant, receivers, size)
    };
    let case = |&receivers: &usize| Case {
        name: format!("{receivers} receivers"),
        specs: contestants(receivers)
            .into_iter()
            .chain(extra.iter().cloned())
            .map(|who| round(who, receivers))
            .collect(),
    };
    ask(stage, "fanout", &receivers.iter().map(case).collect::<Vec<_>>())
}

/// Makes the table of the send cost and of the latency to the last receiver, by number of receivers and transport.
pub fn sheet(answer: &Answer) -> Sheet {
    let figures = [
        "send p50",
        "send p99",
        "send max",
        "last p50",
        "last p99",
        "last p99.9",
        "last max",
        "send/shmcast",
        "last/shmcast",
        "CPUs",
        "lost",
        "rounds",
    ];
    let ours = Contestant::new(SHMCAST, Wait::Yield);
    Sheet::of(answer, TITLE, ("receivers", figures), Unit::Us, |f| {
        [
            f.time(|o| o.cost.p50 as f64),
            f.time(|o| o.cost.p99 as f64),
            f.time(|o| o.cost.max as f64),
            f.time(|o| o.last.p50 as f64),
            f.time(|o| o.last.p99 as f64),
            f.time(|o| o.last.p999 as f64),
            f.time(|o| o.last.max as f64),
            f.ratio(Some(&ours), |o| o.cost.p50 as f64),
            f.ratio(Some(&ours), |o| o.last.p50 as f64),
            f.number(2, cpus),
            f.lost(),
            f.rounds(),
        ]
    })
}
