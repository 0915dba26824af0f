//! Measures how many messages a second a transport can carry without loss.
//!
//! There is one receiver. The publisher and the receiver are bound to separate cores. The publisher sends back to back. Before a ring would
//! lose messages, the rig's gate makes the publisher wait. `shmcast-gate` uses a gate of its channel instead.

use super::rounds::{ask, busy_rings};
use super::table::{Sheet, Unit};
use crate::rig::names::{IDEAL, SHMCAST, SHMCAST_GATE};
use crate::rig::plan::{Answer, Case, Stage};
use crate::rig::spec::{Contestant, Spec, Wait};
use anyhow::Result;

/// The title of the answer's table.
const TITLE: &str = "Back to back to one receiver, both ends bound to a CPU, nothing lost; rates are in millions of messages a second";

/// The size of the ring in bytes. The ring is larger than the caches of one core. This makes every ring here faster, because the writer
/// then gets old lines from the cache that both cores share. With a smaller ring, the writer would get old lines from the cache of the
/// reader's core.
const RING_BYTES: u64 = 8 << 20;

/// Payload sizes in bytes.
pub const SIZES: [usize; 3] = [32, 256, 1024];

/// Plays the rounds, and returns the answer. The contestants in `extra` also take part.
///
/// # Errors
/// When a round cannot be started.
pub fn run(stage: &Stage, sizes: &[usize], extra: &[Contestant], messages: u64) -> Result<Answer> {
    let (warmup, messages) = if stage.quick { (1_000, 50_000) } else { (200_000, messages) };
    let ours = [Contestant::new(SHMCAST, Wait::Burst), Contestant::new(SHMCAST_GATE, Wait::Spin)];
    let who: Vec<Contestant> = ours.into_iter().chain(busy_rings()).chain(extra.iter().cloned()).collect();
    let round = |who: &Contestant, size| Spec {
        warmup,
        messages,
        gated: true,
        ring_bytes: RING_BYTES,
        ..Spec::one_to_one(who.clone(), size)
    };
    let case = |&size: &usize| Case {
        name: format!("{size} B"),
        specs: who.iter().map(|who| round(who, size)).collect(),
    };
    ask(stage, "throughput", &sizes.iter().map(case).collect::<Vec<_>>())
}

/// Makes the table of rates by size and transport.
pub fn sheet(answer: &Answer) -> Sheet {
    let figures = ["M msg/s", "GB/s", "rate/ideal", "lost", "rounds"];
    Sheet::of(answer, TITLE, ("payload", figures), Unit::Ns, |f| {
        let ideal = f.find(|who| who.transport == IDEAL);
        [
            f.number(2, |o| o.rate / 1e6),
            f.number(2, |o| o.rate * o.spec.size as f64 / 1e9),
            f.ratio(ideal.as_ref(), |o| o.rate),
            f.lost(),
            f.rounds(),
        ]
    })
}
