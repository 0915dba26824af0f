//! Measures the time that one message takes from one core to another.
//!
//! There is one receiver. The publisher and the receiver are bound to separate cores. One message is sent every 10 us.

use super::rounds::{ask, busy_rings};
use super::table::{Sheet, Unit};
use crate::rig::names::{IDEAL, UDP};
use crate::rig::plan::{Answer, Case, Stage};
use crate::rig::spec::{Contestant, Spec, Wait};
use crate::rig::stats::Distribution;
use anyhow::Result;

/// The title of the answer's table.
const TITLE: &str = "One way to one receiver, both ends bound to a CPU, one message each 10 us; times are in ns from the intended send";

/// Payload sizes in bytes. A message of 1400 bytes fits into an Ethernet frame.
pub const SIZES: [usize; 5] = [32, 64, 256, 1024, 1400];

/// The default number of messages in a round.
const MESSAGES: u64 = 100_000;
/// The case with enough messages for the 99.999th percentile. The kernel's UDP also takes part in this case.
pub const LONG: &str = "256 B beside UDP";
/// The default number of messages in the case `256 B beside UDP`.
const LONG_MESSAGES: u64 = 1_000_000;

/// Plays the rounds, and returns the answer. The contestants in `extra` also take part.
///
/// # Errors
/// When a round cannot be started.
pub fn run(stage: &Stage, sizes: &[usize], extra: &[Contestant], messages: Option<u64>) -> Result<Answer> {
    let (warmup, quick) = if stage.quick { (500, Some(5_000)) } else { (5_000, None) };
    let given = quick.or(messages);
    let messages = given.unwrap_or(MESSAGES);
    let who: Vec<Contestant> = busy_rings().into_iter().chain(extra.iter().cloned()).collect();
    let round = |who: &Contestant, size, messages| Spec {
        warmup,
        messages,
        interval_ns: 10_000,
        ..Spec::one_to_one(who.clone(), size)
    };
    let case = |&size: &usize| Case {
        name: format!("{size} B"),
        specs: who.iter().map(|who| round(who, size, messages)).collect(),
    };
    let mut cases: Vec<Case> = sizes.iter().map(case).collect();
    if sizes.contains(&256) {
        let messages = given.unwrap_or(LONG_MESSAGES);
        let udp = [Wait::Spin, Wait::Block].map(|wait| Contestant::new(UDP, wait));
        let who = who.iter().chain(&udp);
        cases.push(Case { name: LONG.into(), specs: who.map(|who| round(who, 256, messages)).collect() });
    }
    ask(stage, "latency", &cases)
}

/// Makes the table of percentiles by size and transport. A time is measured from the intended send, in nanoseconds.
pub fn sheet(answer: &Answer) -> Sheet {
    let figures = [
        "mean",
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
    Sheet::of(answer, TITLE, ("payload", figures), Unit::Ns, |f| {
        let at = |figure: fn(&Distribution) -> f64| f.time(|o| figure(&o.response));
        let ideal = f.find(|who| who.transport == IDEAL);
        [
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
            f.ratio(ideal.as_ref(), |o| o.response.p50 as f64),
            f.lost(),
            f.rounds(),
        ]
    })
}
