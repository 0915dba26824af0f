//! Plays many stories, several at the same time. Judges each story as soon as it has ended.

use crate::generate;
use crate::matrix::played::{Pair, pairs};
use crate::oracle::{Violation, judge};
use crate::run::{Programs, play};
use crate::standstill;
use crate::story::{Profile, Story};
use anyhow::Result;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The number of times that a story is played again because another program took one of its ports.
const PORTS_LOST: u32 = 3;

/// The plan of a campaign: which stories are played, and how.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The first seed.
    pub seed: u64,
    /// Number of seeds; `None` for no limit.
    pub seeds: Option<u64>,
    /// The time after which no new story begins; `None` for no limit.
    pub time: Option<Duration>,
    /// The profiles of stories. Each seed is played in each profile, one after the other.
    pub profiles: Vec<Profile>,
    /// Whether to skip a story whose pairs of a feature and an event were all played in earlier stories.
    pub pairs: bool,
    /// Number of stories that are played at the same time.
    pub at_a_time: usize,
    /// The directory in which stories are played.
    pub under: PathBuf,
}

/// A story that was played.
#[derive(Debug)]
pub struct Played {
    /// The story.
    pub story: Story,
    /// The violations that were found.
    pub violations: Vec<Violation>,
    /// The directory with its logs, if they were kept.
    pub kept: Option<PathBuf>,
    /// The time that the story took.
    pub took: Duration,
}

/// Plays one story. Keeps its directory if `keeps` returns true for the violations. Plays the story again if the whole machine stalled, or
/// if another program took one of the story's ports.
///
/// # Errors
/// The reason why the story could not be played or judged.
pub fn play_one(
    story: Story,
    programs: &Programs,
    under: &Path,
    keeps: impl Fn(&[Violation]) -> bool,
) -> Result<Played> {
    let mut ports_lost = 0;
    loop {
        let started = Instant::now();
        standstill::since(started);
        let dir = match play(&story, programs, under) {
            Err(e) if ports_lost < PORTS_LOST && lost_a_port(&e) => {
                ports_lost += 1;
                eprintln!("seed {}: {e:#}: the story is played again", story.seed);
                continue;
            }
            played => played?,
        };
        let violations = judge(&dir.path().join("logs"))?;
        match standstill::since(started).filter(|_| !violations.is_empty()) {
            Some(length) => eprintln!(
                "seed {}: the machine stood still for {:.1} s: the story is played again",
                story.seed,
                length.as_secs_f64()
            ),
            None => {
                let kept = keeps(&violations).then(|| dir.keep());
                return Ok(Played { story, violations, kept, took: started.elapsed() });
            }
        }
    }
}

/// Whether another program took a port after this program had found the port free, and before this program used it.
fn lost_a_port(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|cause| cause.kind() == io::ErrorKind::AddrInUse)
    })
}

/// Whether the story plays a pair of a feature and an event that no earlier story has played.
fn plays_another(story: &Story, met: &Mutex<BTreeSet<Pair>>) -> bool {
    let mut met = met.lock().unwrap_or_else(PoisonError::into_inner);
    let before = met.len();
    met.extend(pairs(story));
    met.len() > before
}

/// Plays stories until the plan is done or `each` returns false.
///
/// # Errors
/// The reason why a story could not be played.
pub fn play_all(plan: &Plan, programs: &Programs, mut each: impl FnMut(Played) -> bool) -> Result<()> {
    let started = Instant::now();
    let (next, is_enough) = (AtomicU64::new(0), AtomicBool::new(false));
    let (sender, played) = channel();
    let met = Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for _ in 0..plan.at_a_time {
            let sender: Sender<Result<Played>> = sender.clone();
            let (next, is_enough, met) = (&next, &is_enough, &met);
            scope.spawn(move || {
                while !is_enough.load(Ordering::Relaxed)
                    && plan.time.is_none_or(|time| started.elapsed() < time)
                {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if plan.seeds.is_some_and(|seeds| at >= seeds) {
                        return;
                    }
                    let profile = plan.profiles[(at % plan.profiles.len() as u64) as usize];
                    let story = generate::story(plan.seed.wrapping_add(at), profile);
                    if plan.pairs && !plays_another(&story, met) {
                        continue;
                    }
                    let played = play_one(story, programs, &plan.under, |found| !found.is_empty());
                    if sender.send(played).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut result = Ok(());
        for played in played {
            match played {
                Ok(played) => {
                    if !each(played) {
                        is_enough.store(true, Ordering::Relaxed);
                    }
                }
                Err(e) => {
                    is_enough.store(true, Ordering::Relaxed);
                    result = Err(e);
                }
            }
        }
        result
    })
}
