//! Functions that the questions share: they choose contestants, and play a list of cases.

use crate::rig::names::{IDEAL, SHMCAST, SHMCAST_PLAIN, SHMCAST_UNTIMED};
use crate::rig::plan::{Answer, Case, Stage, play};
use crate::rig::spec::{Contestant, Spec, Wait};
use anyhow::Result;

/// Returns four contestants: shmcast by its fastest calls, shmcast by its plainest calls with and without time stamps, and the ideal ring.
/// All receivers spin.
pub(crate) fn busy_rings() -> Vec<Contestant> {
    [SHMCAST, SHMCAST_PLAIN, SHMCAST_UNTIMED, IDEAL].map(|ring| Contestant::new(ring, Wait::Spin)).into()
}

/// Returns the contestants in `who` and in `extra`. A contestant in `who` with parked readers takes part only if there is a daemon that can
/// wake them.
pub(crate) fn contestants(stage: &Stage, who: &[(&str, Wait)], extra: &[Contestant]) -> Vec<Contestant> {
    let can_take_part = |(transport, wait): &&(&str, Wait)| {
        let can = *wait != Wait::Park || stage.daemon.is_some();
        if !can {
            eprintln!(
                "SKIPPED {transport}/park: no shmcastd beside this program (cargo build --profile dist -p shmcast-daemon builds it)"
            );
        }
        can
    };
    let who = who.iter().filter(can_take_part).map(|(transport, wait)| Contestant::new(transport, *wait));
    who.chain(extra.iter().cloned()).collect()
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
