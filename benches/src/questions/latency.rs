//! How long from one core to another, one message at a time? One receiver, both ends bound to cores of their own,
//! one message each 10 us.

use super::table::{self, Sheet, ns};
use super::{ask, busy_rings, one_to_one};
use crate::rig::plan::{Answer, Case, Stage};
use crate::rig::spec::{Contestant, Spec, Wait};
use crate::transport::{IDEAL, UDP};
use anyhow::Result;

/// What the answer's table is of.
const TITLE: &str =
    "One way, one receiver, bound to two CPUs, one message each 10 us; ns from the intended send";

/// Payload sizes; 1400 is what fits an Ethernet frame.
pub const SIZES: [usize; 5] = [32, 64, 256, 1024, 1400];

/// The case that is long enough for the 99.999th percentile, and has the kernel's UDP in it.
pub const LONG: &str = "256 B beside UDP";
/// Its messages.
const LONG_MESSAGES: u64 = 1_000_000;

/// Plays and answers. `extra` contestants join ours and the bound.
///
/// # Errors
/// When a round cannot be tried.
pub fn run(stage: &Stage, sizes: &[usize], extra: &[Contestant], messages: u64) -> Result<Answer> {
    let (warmup, messages) = if stage.quick { (500, 5_000) } else { (5_000, messages) };
    let who: Vec<Contestant> = busy_rings().into_iter().chain(extra.iter().cloned()).collect();
    let round = |who: &Contestant, size, messages| Spec {
        warmup,
        messages,
        interval_ns: 10_000,
        ..one_to_one(who.clone(), size)
    };
    let case = |&size: &usize| Case {
        name: format!("{size} B"),
        specs: who.iter().map(|who| round(who, size, messages)).collect(),
    };
    let mut cases: Vec<Case> = sizes.iter().map(case).collect();
    if sizes.contains(&256) {
        let messages = if stage.quick { messages } else { LONG_MESSAGES };
        let udp = [Wait::Spin, Wait::Block].map(|wait| Contestant::new(UDP, wait));
        let who = who.iter().chain(&udp);
        cases.push(Case { name: LONG.into(), specs: who.map(|who| round(who, 256, messages)).collect() });
    }
    ask(stage, "latency", &cases)
}

/// Percentiles by size and transport, in nanoseconds from the intended send.
pub fn sheet(answer: &Answer) -> Sheet {
    let header = [
        "payload",
        "transport",
        "avg",
        "min",
        "p50",
        "p75",
        "p90",
        "p99",
        "p99.9",
        "p99.99",
        "p99.999",
        "max",
        "p50/ideal",
        "lost",
        "rounds",
    ];
    let mut sheet = Sheet::new(TITLE, &header);
    for case in answer.cases() {
        let contestants = answer.contestants(&case);
        let ideal = contestants.iter().find(|c| c.transport == IDEAL);
        for who in &contestants {
            let at = |figure: fn(&crate::rig::stats::Distribution) -> f64| {
                answer.median(&case, who, |o| figure(&o.response)).map_or("-".into(), ns)
            };
            let ratio = ideal.and_then(|ideal| answer.ratio(&case, (who, ideal), |o| o.response.p50 as f64));
            sheet.add(
                who,
                [
                    case.clone(),
                    who.name(),
                    at(|d| d.mean),
                    at(|d| d.min as f64),
                    at(|d| d.p50 as f64),
                    at(|d| d.p75 as f64),
                    at(|d| d.p90 as f64),
                    at(|d| d.p99 as f64),
                    at(|d| d.p999 as f64),
                    at(|d| d.p9999 as f64),
                    at(|d| d.p99999 as f64),
                    at(|d| d.max as f64),
                    ratio.map_or("-".into(), |r| format!("{r:.2}")),
                    table::lost(answer, &case, who),
                    table::rounds(answer, &case, who),
                ],
            );
        }
    }
    sheet
}
