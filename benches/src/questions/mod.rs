//! The questions: which rounds to play, and the table that answers.

use crate::rig::plan::{Answer, Case, Stage, play};
use crate::rig::spec::{Contestant, Spec, Wait};
use anyhow::Result;
use std::path::PathBuf;

pub mod bridge;
pub mod churn;
pub mod fanout;
pub mod latency;
pub mod oversubscribed;
pub mod soak;
pub mod table;
pub mod throughput;

/// Bytes of ring for every transport that has one, unless the question is about something else: large enough for any
/// burst here, small enough to stay in a core's own cache, as a user who cares for latency would choose.
pub const RING_BYTES: u64 = 1 << 19;

/// A round of one receiver, each end bound to a CPU of its own.
pub(crate) fn one_to_one(contestant: Contestant, size: usize) -> Spec {
    Spec {
        contestant,
        receivers: 1,
        size,
        warmup: 0,
        messages: 0,
        interval_ns: 0,
        ring_bytes: RING_BYTES,
        gated: false,
        publisher_cpu: Some(0),
        receiver_cpus: vec![1],
        spin_between: true,
        dir: PathBuf::new(),
        window_ns: 0,
        churn: None,
        daemon: None,
        wire: None,
    }
}

/// A round of many receivers, none bound to a CPU, whose publisher sleeps between its sends.
pub(crate) fn crowd(contestant: Contestant, receivers: usize, size: usize) -> Spec {
    Spec {
        receivers,
        ring_bytes: 4 << 20,
        publisher_cpu: None,
        receiver_cpus: Vec::new(),
        spin_between: false,
        ..one_to_one(contestant, size)
    }
}

/// Ours and the bound, busy.
pub(crate) fn busy_rings() -> Vec<Contestant> {
    vec![
        Contestant::new(crate::transport::SHMCAST, Wait::Spin),
        Contestant::new(crate::transport::IDEAL, Wait::Spin),
    ]
}

/// These transports waiting in these ways, and `extra`. Who parks takes part only where a daemon can wake him.
pub(crate) fn contestants(stage: &Stage, who: &[(&str, Wait)], extra: &[Contestant]) -> Vec<Contestant> {
    let can_take_part = |(transport, wait): &&(&str, Wait)| {
        let can = *wait != Wait::Park || stage.daemon.is_some();
        if !can {
            eprintln!(
                "SKIPPED {transport}/park: no shmcastd beside this program (cargo build --release builds it)"
            );
        }
        can
    };
    let who = who.iter().filter(can_take_part).map(|(transport, wait)| Contestant::new(transport, *wait));
    who.chain(extra.iter().cloned()).collect()
}

/// The answer's table, if the question is one of these.
pub fn sheet(answer: &Answer) -> Option<table::Sheet> {
    let sheet = match answer.question.as_str() {
        "latency" => latency::sheet,
        "throughput" => throughput::sheet,
        "fanout" => fanout::sheet,
        "oversubscribed" => oversubscribed::sheet,
        "churn" => churn::sheet,
        "soak" => soak::sheet,
        "bridge" => bridge::sheet,
        _ => return None,
    };
    Some(sheet(answer))
}

/// Plays all cases and returns the answer.
pub(crate) fn ask(stage: &Stage, question: &str, cases: &[Case]) -> Result<Answer> {
    let mut answer = Answer::begin(question, stage.quick);
    let plays = |spec: &Spec| stage.only.is_empty() || stage.only.contains(&spec.contestant);
    let cases: Vec<Case> = cases
        .iter()
        .map(|case| Case {
            name: case.name.clone(),
            specs: case.specs.iter().filter(|s| plays(s)).cloned().collect(),
        })
        .collect();
    anyhow::ensure!(
        cases.iter().any(|case| !case.specs.is_empty()),
        "none of those that --only names plays in {question}: name others, or add them by --with"
    );
    play(stage, &cases, &mut answer)?;
    Ok(answer)
}
