//! Measures the cost and the speed of a journal, and the failures that it survives. The rounds compare recorders and readers of journals
//! with bare system calls on the same file system, in the same minute.
//!
//! | file | what |
//! |---|---|
//! | [`answer`] | rows, figures, verdicts |
//! | [`sheet`] | the tables |
//! | `peers` | other projects' recorders |
//! | `plan` | options and rounds that all rows share |
//! | `cost` | the publisher's cost, also while the disk does not answer |
//! | `reading` | catching up, looking up a time, verifying, recovery |
//! | `writing` | recording: rates, latency to durable, bytes, CPU time |

pub mod answer;
mod cost;
mod peers;
mod plan;
mod reading;
pub mod sheet;
mod writing;

pub use plan::{Ask, NUMBERS, SIZES};

use crate::rig::journal::limits;
use crate::rig::journal::role::Way;
use crate::rig::journal::store::Store;
use crate::rig::plan::Stage;
use answer::JournalAnswer;
use anyhow::{Context, Result};
use plan::Plan;

/// Measures a row with each way to write to the disk.
fn each(
    plan: &Plan<'_>,
    answer: &mut JournalAnswer,
    row: fn(&Plan<'_>, &mut JournalAnswer, Way) -> Result<()>,
) -> Result<()> {
    plan.ask.ways.iter().try_for_each(|way| row(plan, answer, *way).with_context(|| way.name()))
}

/// Measures the requested rows. Each lap measures the limits first, and then plays every row once.
///
/// # Errors
/// When the limits cannot be measured. The failure of a row is not an error, but an entry of [`failed`](JournalAnswer::failed).
pub fn run(stage: &Stage, ask: &Ask) -> Result<JournalAnswer> {
    let mut answer = JournalAnswer::begin(stage.quick);
    let dir = tempfile::Builder::new().prefix("shmcast-bench-journal-").tempdir_in(&ask.dir);
    let dir = dir.with_context(|| format!("make a directory in {}", ask.dir.display()))?;
    answer.stores = vec![Store::look(dir.path())?, Store::look(&stage.dir)?];
    let mut plan = Plan::new(stage, ask, dir.path());
    for lap in 0..stage.laps {
        eprintln!("lap {} of {}: limits", lap + 1, stage.laps);
        plan.limits = limits::measure(dir.path(), plan.effort())?;
        answer.limits.push(plan.limits.clone());
        for &number in &ask.rows {
            eprintln!("lap {} of {}: row {number}", lap + 1, stage.laps);
            let played = match number {
                1 => cost::beside_a_reader(&plan, lap, &mut answer),
                2 => cost::on_a_frozen_disk(&plan, &mut answer),
                3 => each(&plan, &mut answer, writing::sustained),
                4 => writing::small(&plan, &mut answer),
                5 => each(&plan, &mut answer, writing::commit),
                6 => each(&plan, &mut answer, writing::durable_rate),
                7 => each(&plan, &mut answer, writing::processor),
                8 => cost::stall(&plan, &mut answer),
                12 => reading::recovery(&plan, &mut answer),
                13 => reading::catching_up(&plan, &mut answer),
                14 => reading::lookup(&plan, &mut answer),
                15 => writing::bytes(&plan, &mut answer),
                18 => reading::verify(&plan, &mut answer),
                _ => anyhow::bail!("no row {number} is measured here; there are {NUMBERS:?}"),
            };
            if let Err(why) = played {
                let what = format!("row {number} of lap {}: {why:#}", lap + 1);
                eprintln!("{what}");
                answer.failed.push(what);
            }
        }
    }
    answer.rows.sort_by_key(|row| row.number);
    Ok(answer)
}
