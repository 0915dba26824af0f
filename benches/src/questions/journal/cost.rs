//! Rows about the cost of a recorder for its publisher, and about a disk that does not answer.

use super::answer::{JournalAnswer, Lap, Sense};
use super::plan::{Plan, RING_BYTES, journal_in};
use crate::rig::journal::frozen::FrozenDisk;
use crate::rig::journal::role::{Cost, Pace, Publish, Record, Sync};
use crate::rig::journal::scene::{Round, publisher_calls};
use crate::rig::spec::ring_messages;
use crate::rig::stats::median;
use anyhow::{Result, ensure};
use std::path::Path;
use std::time::{Duration, Instant};

/// The CPU of the publisher, and the CPU of the recorder. In rounds without a recorder, a reader has the recorder's CPU.
const CPUS: [Option<usize>; 2] = [Some(0), Some(1)];
/// The number of pairs of rounds in a lap.
const PAIRS: usize = 3;
/// The length of each round, in seconds.
const SECONDS: f64 = 1.0;
/// 100,000 messages per second.
const USUAL: Pace = Pace::Every(10_000);
/// The size in bytes of the file system that is frozen.
const DISK: u64 = 3 << 30;

/// One figure of a publisher's cost. `of` returns the figure from the cost in one round. `most` is the limit for a ratio: the figure of a
/// round with a recorder, divided by the figure of a round without one.
struct Share {
    name: &'static str,
    of: fn(&Cost) -> f64,
    most: f64,
}

const SHARES: [Share; 2] = [
    Share { name: "p50", of: |cost| cost.p50, most: 1.02 },
    Share { name: "p99", of: |cost| cost.p99, most: 1.10 },
];

/// Adds a figure for each of the two [`SHARES`]: the ratio of the publisher's cost with a recorder to its cost without a recorder.
fn add(answer: &mut JournalAnswer, (number, what): (u32, &str), pairs: &[(Round, Round)], more: &str) {
    let quiet = pairs.last().map(|(with, _)| with.quiet).unwrap_or_default();
    for Share { name, of, most } in SHARES {
        let of = |round: &Round| of(&round.published.cost);
        let middle = |get: &dyn Fn(&(Round, Round)) -> f64| median(pairs.iter().map(get)).unwrap_or(f64::NAN);
        let (with, without) = (middle(&|pair| of(&pair.0)), middle(&|pair| of(&pair.1)));
        let limit = format!("{with:.1} ns beside {without:.1}{more}");
        let lap = Lap { value: middle(&|pair| of(&pair.0) / of(&pair.1)), bound: most, limit, quiet };
        let must = format!("<= {most:.2}");
        answer.add(number, &format!("{what}, {name}"), (&must, "times"), Sense::AtMost, lap);
    }
}

/// Row 1: `publish` beside a recorder, compared with `publish` beside a plain reader.
pub(super) fn beside_a_reader(plan: &Plan<'_>, lap: usize, answer: &mut JournalAnswer) -> Result<()> {
    let pairs = if plan.stage.quick { 1 } else { PAIRS };
    for size in [32, 256, 1024] {
        for (pace, name) in [(USUAL, "100 k msg/s"), (Pace::FlatOut, "flat out")] {
            let publish = Publish { cpu: CPUS[0], ..plan.publish(size, pace, SECONDS) };
            let recorded = || -> Result<Round> {
                let to = journal_in(plan.disk)?;
                plan.play(publish.clone(), Record { cpu: CPUS[1], ..plan.record(to.path(), Sync::Ms(10)) })
            };
            let read = || plan.play_reader(publish.clone(), CPUS[1]);
            let mut played = Vec::new();
            for pair in 0..pairs {
                // The two kinds of rounds take turns in being played first.
                played.push(if (lap + pair).is_multiple_of(2) {
                    let with = recorded()?;
                    (with, read()?)
                } else {
                    let without = read()?;
                    (recorded()?, without)
                });
            }
            let what = format!("`publish` of {size} B with a recorder, to one with a reader instead, {name}");
            add(answer, (1, &what), &played, "");
        }
    }
    system_calls(plan, answer)
}

/// Row 1: plays a short and a long run. The figure is the number of additional system calls in the long run, divided by the number of its
/// additional messages.
fn system_calls(plan: &Plan<'_>, answer: &mut JournalAnswer) -> Result<()> {
    let more = plan.bytes(3 << 20);
    let calls = |messages| -> Result<u64> {
        let (to, dir) = (journal_in(plan.disk)?, tempfile::tempdir_in(&plan.stage.dir)?);
        let dir = dir.path().to_owned();
        let publish = Publish { messages, time_ns: u64::MAX >> 2, ..plan.publish(256, Pace::FlatOut, 0.0) };
        let record = Record { dir: dir.clone(), ..plan.record(to.path(), Sync::Ms(10)) };
        publisher_calls(&plan.stage.program, &Publish { dir, ..publish }, &record)
    };
    match calls(1 << 20).and_then(|few| Ok((few, calls((1 << 20) + more)?))) {
        Ok((few, many)) => {
            // The number of system calls at the start of a process varies, so the difference can be negative.
            let value = (many as f64 - few as f64).max(0.0) * 1e6 / more as f64;
            let limit = format!("{few} in the thread's whole life, {many} with {more} messages more");
            let lap = Lap { value, bound: 1.0, limit, quiet: Default::default() };
            let what = "system calls of `publish` with a recorder, flat out";
            answer.add(1, what, ("none", "in 1 M messages"), Sense::AtMost, lap);
        }
        Err(why) => answer.skip(format!("row 1: system calls are not counted: {why:#}")),
    }
    Ok(())
}

/// Makes a disk that can be frozen. If this is not possible, notes the reason and returns `None`.
fn disk(plan: &Plan<'_>, number: u32, answer: &mut JournalAnswer) -> Option<FrozenDisk> {
    let made = FrozenDisk::new(plan.disk, plan.bytes(DISK).max(128 << 20));
    made.inspect_err(|why| answer.skip(format!("row {number}: no disk that can stand still: {why:#}"))).ok()
}

/// Returns the role of a recorder that writes the journal `to`. The journal's disk is frozen later.
fn record(plan: &Plan<'_>, to: &Path) -> Record {
    let record = plan.record(to, Sync::Ms(10));
    Record { cpu: CPUS[1], ..record }
}

/// Waits 100 ms, so that the recorder writes. Then freezes the disk for `time`.
fn freeze(disk: &FrozenDisk, time: Duration) -> Result<()> {
    std::thread::sleep(Duration::from_millis(100));
    disk.freeze()?;
    std::thread::sleep(time);
    disk.thaw()
}

/// Row 2: the publisher's cost while the disk does not answer.
pub(super) fn on_a_frozen_disk(plan: &Plan<'_>, answer: &mut JournalAnswer) -> Result<()> {
    let Some(disk) = disk(plan, 2, answer) else { return Ok(()) };
    let (seconds, size) = (if plan.stage.quick { 0.1 } else { 10.0 }, 256);
    let publish = Publish { cpu: CPUS[0], ..plan.publish(size, USUAL, seconds + 1.0) };
    let play = |publish: &Publish, time: Option<Duration>| -> Result<Round> {
        let to = journal_in(disk.path())?;
        plan.play_while(publish.clone(), record(plan, to.path()), |_| {
            time.map_or(Ok(()), |time| freeze(&disk, time))
        })
    };
    let frozen = play(&publish, Some(Duration::from_secs_f64(seconds)))?;
    let working = play(&Publish { time_ns: plan.time(3.0), ..publish }, None)?;
    let lost = working.recorded.overrun;
    ensure!(lost == 0, "a disk that works lost {lost} messages");
    let named = frozen.recorded.overrun;
    let what = format!("`publish` of {size} B at 100 k msg/s while the disk stands still for {seconds:.0} s");
    let more = format!("; {named} messages lost, all of them named");
    add(answer, (2, &what), &[(frozen, working)], &more);
    Ok(())
}

/// Row 8: the time for which the disk can be frozen without a loss. The limit is the time in which messages fill the ring and the
/// recorder's buffer.
pub(super) fn stall(plan: &Plan<'_>, answer: &mut JournalAnswer) -> Result<()> {
    let Some(disk) = disk(plan, 8, answer) else { return Ok(()) };
    let (size, interval_ns) = (256, 20_000);
    let ring = ring_messages(RING_BYTES, size);
    let buffer = RING_BYTES / (size as u64 + 16);
    let seconds = (ring + buffer) as f64 * interval_ns as f64 / 1e9;
    let mut survived = (0.0, Round::default());
    for share in [0.95, 0.97] {
        let time = Duration::from_secs_f64(if plan.stage.quick { 0.1 } else { share * seconds });
        let publish = plan.publish(size, Pace::Every(interval_ns), time.as_secs_f64() + 0.5);
        let publish = Publish { cpu: CPUS[0], ring_bytes: RING_BYTES, ..publish };
        let to = journal_in(disk.path())?;
        let start = Instant::now();
        let round = plan.play_while(publish, record(plan, to.path()), |_| freeze(&disk, time))?;
        ensure!(start.elapsed() >= time, "the disk stood still for too short a time");
        if round.recorded.overrun == 0 {
            survived = (share, round);
        } else if survived.0 == 0.0 {
            survived.1 = round;
        }
    }
    let (share, round) = survived;
    let limit = format!(
        "{:.2} s at 50 k msg/s of {size} B; ring {ring} and buffer {buffer} messages",
        share * seconds
    );
    let lap = Lap { value: share, bound: 0.95, limit, quiet: round.quiet };
    let measure = "disk stall survived without loss, 64 MiB of ring and 64 MiB of buffer";
    answer.add(8, measure, (">= 0.95 of both", "of both"), Sense::AtLeast, lap);
    Ok(())
}
