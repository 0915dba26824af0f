//! How many messages a second, nothing lost? One receiver, both ends bound to cores of their own, back to back. Rings
//! that would lose are held back by the rig's gate, all in the same way.

use super::{ask, busy_rings, one_to_one, table, table::Sheet};
use crate::rig::plan::{Answer, Case, Stage};
use crate::rig::spec::{Contestant, Spec, Wait};
use crate::transport::{IDEAL, SHMCAST};
use anyhow::Result;

/// What the answer's table is of.
const TITLE: &str = "Back to back, one receiver, bound to two CPUs, nothing lost";

/// Bytes of ring: more than one core's caches keep, so that a line comes back to the writer from the cache they share and
/// not from the reader's own. Every ring here is faster so.
const RING_BYTES: u64 = 8 << 20;

/// Payload sizes.
pub const SIZES: [usize; 3] = [32, 256, 1024];

/// Plays and answers. `extra` contestants join ours and the bound.
///
/// # Errors
/// When a round cannot be tried.
pub fn run(stage: &Stage, sizes: &[usize], extra: &[Contestant], messages: u64) -> Result<Answer> {
    let (warmup, messages) = if stage.quick { (1_000, 50_000) } else { (200_000, messages) };
    let ours = Contestant::new(SHMCAST, Wait::Burst);
    let who: Vec<Contestant> = [ours].into_iter().chain(busy_rings()).chain(extra.iter().cloned()).collect();
    let round = |who: &Contestant, size| Spec {
        warmup,
        messages,
        gated: true,
        ring_bytes: RING_BYTES,
        ..one_to_one(who.clone(), size)
    };
    let case = |&size: &usize| Case {
        name: format!("{size} B"),
        specs: who.iter().map(|who| round(who, size)).collect(),
    };
    ask(stage, "throughput", &sizes.iter().map(case).collect::<Vec<_>>())
}

/// Rates by size and transport.
pub fn sheet(answer: &Answer) -> Sheet {
    let mut sheet =
        Sheet::new(TITLE, &["payload", "transport", "M msg/s", "GB/s", "/ideal", "lost", "rounds"]);
    for case in answer.cases() {
        let contestants = answer.contestants(&case);
        let ideal = contestants.iter().find(|c| c.transport == IDEAL);
        for who in &contestants {
            let rate = answer.median(&case, who, |o| o.rate);
            let bytes = answer.median(&case, who, |o| o.rate * o.spec.size as f64);
            let ratio = ideal.and_then(|ideal| answer.ratio(&case, (who, ideal), |o| o.rate));
            sheet.add(
                who,
                [
                    case.clone(),
                    who.name(),
                    rate.map_or("-".into(), |r| format!("{:.2}", r / 1e6)),
                    bytes.map_or("-".into(), |b| format!("{:.2}", b / 1e9)),
                    ratio.map_or("-".into(), |r| format!("{r:.2}")),
                    table::lost(answer, &case, who),
                    table::rounds(answer, &case, who),
                ],
            );
        }
    }
    sheet
}
