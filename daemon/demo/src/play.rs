//! Plays the transports in turns.

use crate::args::Args;
use crate::load::{Load, Meter};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::side::{Figures, Side, Stalls};
use crate::stop::Stop;
use crate::verdict::Meanwhile;
use anyhow::{Error, Result};

/// The results of all turns.
pub(crate) struct Played {
    pub(crate) shm: Figures,
    /// The figures of kernel multicast, or the reason why it could not run; `None` if the user left it out.
    pub(crate) multicast: Option<Result<Figures, Error>>,
    /// The load of the machine by other programs; `None` if it cannot be measured here.
    pub(crate) meanwhile: Option<Meanwhile>,
}

/// Plays all turns. The readers of both transports are started before the first turn.
pub(crate) fn play(args: &Args, plan: &Plan, cpus: usize, mut meter: Meter, stop: &Stop) -> Result<Played> {
    let progress = Progress::new();
    progress.show("starting readers");
    let mut shm = Side::shared_memory(args, plan, cpus, stop)?;
    meter.count_as_ours(shm.pids());
    let mut multicast = (!args.no_multicast).then(|| Side::multicast(args, plan, stop));
    if let Some(Ok(multicast)) = &multicast {
        meter.count_as_ours(multicast.pids());
    }
    let mut loads: Vec<Option<Vec<Load>>> = Vec::with_capacity(plan.turns() as usize);
    for turn in 0..plan.turns() {
        progress.show(&format!("turn {} of {} of each transport", turn + 1, plan.turns()));
        let mut pair = vec![shm.play(plan, turn, &meter, stop)?];
        if let Some(Ok(side)) = &mut multicast {
            match side.play(plan, turn, &meter, stop) {
                Ok(load) => pair.push(load),
                Err(e) => multicast = Some(Err(e)),
            }
        }
        if stop.is_set() {
            // The interruption itself might have caused the error of kernel multicast.
            return Err(stop.interrupted("INTERRUPTED: nothing is shown of a demo that did not end").into());
        }
        loads.push(pair.into_iter().collect());
    }
    progress.show("collecting what the readers measured");
    let shm = shm.figures(args, stop)?;
    let multicast = multicast.map(|side| side.and_then(|side| side.figures(args, stop)));
    let theirs = multicast.iter().flatten().next().map_or(Stalls::default(), |figures| figures.stalls);
    let stalls = shm.stalls.and(theirs);
    let pairs: Option<Vec<Vec<Load>>> = loads.into_iter().collect();
    let meanwhile = pairs.map(|pairs| Meanwhile::of(&pairs, meter.cpus(), stalls));
    Ok(Played { shm, multicast, meanwhile })
}
