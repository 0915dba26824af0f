//! Plans of alternating rounds. Each contestant plays once in every lap, so that changes of the machine affect all contestants in the same
//! way. If the machine was not quiet during a round, the round is played again. If too many rounds of a case are disturbed, the figures are
//! marked instead.

use crate::rig::machine::Machine;
use crate::rig::names::is_ours;
use crate::rig::probe::{Placement, round_trip_ns};
use crate::rig::round::{self, Outcome};
use crate::rig::spec::{Contestant, Spec, Wait};
use crate::rig::stats::median;
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The programs that play, and the limits of a run.
#[derive(Debug, Clone)]
pub struct Stage {
    /// This program, which knows our transports.
    pub program: PathBuf,
    /// The program that knows the peers' transports, if it was built.
    pub peers: Option<PathBuf>,
    /// The parent directory of the rounds' files, in memory.
    pub dir: PathBuf,
    /// The number of laps that count.
    pub laps: usize,
    /// The greatest number of repeated rounds of a case, over all laps.
    pub retries: usize,
    /// The contestants that play; empty for all.
    pub only: Vec<Contestant>,
    /// Whether only delivery is checked.
    pub quick: bool,
    /// The size of the ring in bytes, in place of the question's own size.
    pub ring_bytes: Option<u64>,
    /// The daemon's program, if it was built.
    pub daemon: Option<PathBuf>,
}

impl Stage {
    fn program_of<'a>(&'a self, contestant: &'a Contestant) -> Result<&'a Path> {
        if let Some((_, program)) = contestant.transport.split_once('@') {
            return Ok(Path::new(program));
        }
        if is_ours(&contestant.transport) {
            return Ok(&self.program);
        }
        self.peers.as_deref().with_context(|| {
            format!(
                "{} needs the peers' program: run `benches/peers/build.sh`, or name it with --peers",
                contestant.transport
            )
        })
    }
}

/// The answer to a question: every round, good or bad.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answer {
    /// The question.
    pub question: String,
    /// The time when the question was asked, in seconds since 1970.
    pub asked_at: u64,
    /// Whether only delivery was checked. If so, the times in the answer mean nothing.
    pub quick: bool,
    /// The machine on which the question was asked.
    pub machine: Machine,
    /// Every round that was played.
    pub rounds: Vec<Played>,
}

/// A round and its place in the plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Played {
    /// The lap. Only rounds of the same lap are compared with each other.
    pub lap: usize,
    /// The case, such as `256 B` or `50 receivers`. Only rounds of the same case are compared with each other.
    pub case: String,
    /// Whether the round counts. The machine must have been quiet, and the probes before and after the round must agree.
    pub counts: bool,
    /// The result, or the reason why it failed.
    pub outcome: std::result::Result<Outcome, String>,
}

impl Played {
    /// Returns the outcome, if the round counts.
    pub fn counted(&self) -> Option<&Outcome> {
        self.outcome.as_ref().ok().filter(|_| self.counts)
    }
}

impl Answer {
    /// Makes an answer without rounds.
    pub fn begin(question: &str, quick: bool) -> Self {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self {
            question: question.into(),
            asked_at: now.as_secs(),
            quick,
            machine: Machine::look(),
            rounds: Vec::new(),
        }
    }

    /// Returns the cases in the order of their first rounds.
    pub fn cases(&self) -> Vec<String> {
        let mut cases: Vec<String> = Vec::new();
        for round in &self.rounds {
            if !cases.contains(&round.case) {
                cases.push(round.case.clone());
            }
        }
        cases
    }

    /// Returns the contestants of a case in the order of their first rounds.
    pub fn contestants(&self, case: &str) -> Vec<Contestant> {
        let mut found: Vec<Contestant> = Vec::new();
        for outcome in self.rounds.iter().filter(|r| r.case == case).filter_map(|r| r.outcome.as_ref().ok()) {
            if !found.contains(&outcome.spec.contestant) {
                found.push(outcome.spec.contestant.clone());
            }
        }
        found
    }

    /// Returns the comparable rounds of a contestant in a case. These are the quiet rounds with the most frequent placement of the CPUs. If
    /// there is no quiet round, returns all rounds that did not fail, and [`is_quiet`](Self::is_quiet) is false.
    pub fn comparable(&self, case: &str, contestant: &Contestant) -> Vec<(usize, &Outcome)> {
        let placement = self.placement(case);
        let all = self.rounds.iter().filter(|r| r.case == case);
        let ours = all.filter_map(|r| Some((r, r.outcome.as_ref().ok()?)));
        let ours: Vec<_> = ours.filter(|(_, o)| o.spec.contestant == *contestant).collect();
        let good = ours.iter().filter(|(r, o)| r.counts && Some(o.quiet.placement()) == placement);
        let good: Vec<_> = good.map(|(r, o)| (r.lap, *o)).collect();
        if good.is_empty() { ours.into_iter().map(|(r, o)| (r.lap, o)).collect() } else { good }
    }

    /// Whether the figures of a contestant in a case come from quiet rounds.
    pub fn is_quiet(&self, case: &str, contestant: &Contestant) -> bool {
        self.rounds
            .iter()
            .filter(|r| r.case == case)
            .filter_map(Played::counted)
            .any(|outcome| outcome.spec.contestant == *contestant)
    }

    /// Returns the placement of the CPUs that most counted rounds of a case had. If both placements are equally frequent, returns `near`.
    pub fn placement(&self, case: &str) -> Option<Placement> {
        let rounds = self.rounds.iter().filter(|r| r.case == case).filter_map(Played::counted);
        let (mut near, mut far) = (0, 0);
        rounds.for_each(|outcome| match outcome.quiet.placement() {
            Placement::Near => near += 1,
            Placement::Far => far += 1,
            Placement::Mixed => {}
        });
        match (near, far) {
            (0, 0) => None,
            _ if near >= far => Some(Placement::Near),
            _ => Some(Placement::Far),
        }
    }

    /// Returns the median of `figure` over the comparable rounds.
    pub fn median(&self, case: &str, who: &Contestant, figure: impl Fn(&Outcome) -> f64) -> Option<f64> {
        median(self.comparable(case, who).into_iter().map(|(_, outcome)| figure(outcome)))
    }

    /// Returns the ratios of `a`'s figure to `b`'s figure, one for each lap in which both have a figure.
    pub fn ratios(
        &self,
        case: &str,
        (a, b): (&Contestant, &Contestant),
        figure: impl Fn(&Outcome) -> f64,
    ) -> Vec<f64> {
        let theirs = self.comparable(case, b);
        let ratio = |(lap, ours): (usize, &Outcome)| {
            let (_, theirs) = theirs.iter().find(|(other, _)| *other == lap)?;
            let below = figure(theirs);
            (below > 0.0).then(|| figure(ours) / below)
        };
        self.comparable(case, a).into_iter().filter_map(ratio).collect()
    }

    /// Returns the median of the [`ratios`](Self::ratios).
    pub fn ratio(
        &self,
        case: &str,
        pair: (&Contestant, &Contestant),
        figure: impl Fn(&Outcome) -> f64,
    ) -> Option<f64> {
        median(self.ratios(case, pair, figure))
    }

    /// Returns two counts: of the rounds in which every receiver got every message, and of the other rounds.
    pub fn passed_and_failed(&self) -> (usize, usize) {
        let complete = |r: &&Played| r.outcome.as_ref().is_ok_and(Outcome::is_complete);
        let passed = self.rounds.iter().filter(complete).count();
        (passed, self.rounds.len() - passed)
    }
}

/// One case, with a round for each contestant.
#[derive(Debug, Clone)]
pub struct Case {
    /// The name.
    pub name: String,
    /// One round for each contestant. The rig sets the directory of a round just before it plays the round.
    pub specs: Vec<Spec>,
}

/// Plays the cases and adds the rounds to `answer`.
///
/// # Errors
/// When a round cannot be started. A round that fails later is part of the answer.
pub fn play(stage: &Stage, cases: &[Case], answer: &mut Answer) -> Result<()> {
    let rounds: usize = cases.iter().map(|case| case.specs.len()).sum();
    let bar = ProgressBar::new((rounds * stage.laps) as u64).with_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} rounds  {elapsed} of {duration}  {msg}")
            .expect("a template of known fields"),
    );
    if cases.iter().flat_map(|case| &case.specs).any(|spec| spec.window_ns > 0) {
        bar.enable_steady_tick(std::time::Duration::from_secs(1)); // so that the bar also moves during a long round
    }
    for case in cases {
        let mut retries = stage.retries;
        for lap in 0..stage.laps {
            // Each lap starts with another contestant, so that no contestant is always the first of a lap.
            for turn in 0..case.specs.len() {
                let spec = &case.specs[(turn + lap) % case.specs.len()];
                bar.set_message(format!("{}, {}", spec.contestant.name(), case.name));
                bar.tick();
                loop {
                    let outcome = play_one(stage, spec);
                    let good = outcome.as_ref().is_ok_and(|outcome| {
                        stage.quick
                            || (outcome.quiet.is_quiet() && outcome.quiet.placement() != Placement::Mixed)
                    });
                    let again = outcome.is_ok() && !good && retries > 0;
                    let outcome = outcome.map_err(|e| format!("{e:#}"));
                    answer.rounds.push(Played { lap, case: case.name.clone(), counts: good, outcome });
                    if !again {
                        break;
                    }
                    retries -= 1;
                    // The pause gives the program that disturbed the round time to end.
                    std::thread::sleep(std::time::Duration::from_millis(500));
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn play_one(stage: &Stage, spec: &Spec) -> Result<Outcome> {
    let dir = tempfile::tempdir_in(&stage.dir).context("make a directory for the round")?;
    let ring_bytes = stage.ring_bytes.unwrap_or(spec.ring_bytes);
    // A check of delivery must also succeed on a busy machine. So the gate makes the publisher wait for slow receivers.
    let gated = spec.gated || stage.quick;
    let daemon = if spec.contestant.wait == Wait::Park {
        Some(stage.daemon.clone().context("parked readers need shmcastd, built beside this program")?)
    } else {
        None
    };
    let spec = Spec { dir: dir.path().to_owned(), ring_bytes, gated, daemon, ..spec.clone() };
    let probe = || if stage.quick || spec_cpus() < 2 { Ok(0) } else { round_trip_ns(0, 1) };
    let before_ns = probe()?;
    let mut outcome = round::run(stage.program_of(&spec.contestant)?, &spec)?;
    outcome.quiet.before_ns = before_ns;
    outcome.quiet.after_ns = probe()?;
    Ok(outcome)
}

fn spec_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
