//! Measures how receivers that come, leave and die affect the publisher and the receivers that stay.
//!
//! Ten receivers stay for the whole round, and must get every message. Meanwhile visitors join, and leave or are killed.

use super::rounds::{ask, contestants};
use super::table::{Sheet, Unit};
use crate::rig::names::{MULTICAST, SHMCAST};
use crate::rig::plan::{Answer, Case, Stage};
use crate::rig::spec::{Churn, Contestant, Spec, Wait};
use crate::rig::visitors::Visits;
use anyhow::Result;

const STAYING: usize = 10;
/// The title of the answer's table.
const TITLE: &str = "Ten receivers stay, others come, leave and die; 256 B each 0.5 ms; times are in us";

/// A new visitor comes every 50 ms. A few visitors are there at the same time.
const CHURN: Churn = Churn { every_ns: 50_000_000, stay_ns: 200_000_000 };
const QUICK: Churn = Churn { every_ns: 20_000_000, stay_ns: 60_000_000 };

/// Plays the rounds, and returns the answer. The contestants in `extra` take part as well.
///
/// # Errors
/// When a round cannot be started.
pub fn run(stage: &Stage, extra: &[Contestant], messages: u64) -> Result<Answer> {
    let (churn, messages) = if stage.quick { (QUICK, 1_000) } else { (CHURN, messages) };
    let who = [
        (SHMCAST, Wait::Yield),
        (SHMCAST, Wait::Backoff),
        (SHMCAST, Wait::Park),
        (MULTICAST, Wait::Block),
        (MULTICAST, Wait::Tokio),
    ];
    let who = contestants(stage, &who, extra);
    let round = |who: &Contestant, churn| Spec {
        warmup: 100,
        messages,
        interval_ns: 500_000,
        churn,
        ..Spec::crowd(who.clone(), STAYING, 256)
    };
    let case = |name: &str, churn: Option<Churn>| Case {
        name: name.into(),
        specs: who.iter().map(|who| round(who, churn)).collect(),
    };
    ask(stage, "churn", &[case("nobody comes or goes", None), case("visitors", Some(churn))])
}

/// Makes the table of cost and latency with and without visitors, and of the visitors' reports.
pub fn sheet(answer: &Answer) -> Sheet {
    let figures = [
        "send p50",
        "send p99",
        "send max",
        "last p50",
        "last p99",
        "last max",
        "joined",
        "left",
        "killed",
        "visitors missed, unsaid",
        "lost by those who stay",
        "rounds",
    ];
    Sheet::of(answer, TITLE, ("case", figures), Unit::Us, |f| {
        let sum = |count: fn(&Visits) -> u64| -> String {
            let rounds = answer.comparable(f.case, f.who);
            rounds.iter().filter_map(|(_, o)| o.visits.as_ref()).map(count).sum::<u64>().to_string()
        };
        [
            f.time(|o| o.cost.p50 as f64),
            f.time(|o| o.cost.p99 as f64),
            f.time(|o| o.cost.max as f64),
            f.time(|o| o.last.p50 as f64),
            f.time(|o| o.last.p99 as f64),
            f.time(|o| o.last.max as f64),
            sum(|v| v.joined),
            sum(|v| v.left),
            sum(|v| v.killed + v.killed_at_once),
            sum(|v| v.received.lost.saturating_sub(v.received.reported_lost)),
            f.lost(),
            f.rounds(),
        ]
    })
}
