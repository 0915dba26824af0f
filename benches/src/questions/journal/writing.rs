//! Rows about recording: the rate, the time until messages are durable, the bytes per message, and the CPU time.

use super::answer::{JournalAnswer, Lap, Sense};
use super::peers;
use super::plan::{Plan, journal_in};
use crate::rig::journal::role::{Pace, Publish, Record, Recorded, Sync, Way};
use crate::rig::journal::scene::Round;
use crate::rig::stats::Distribution;
use anyhow::{Result, ensure};
use shmcast::journal::Journal;
use shmcast::journal::format::{FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FrameHeader, FrameKind};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The factor from a fraction of one core to percent.
const CORE: f64 = 100.0;
/// The number of bytes of a megabyte. It is decimal, as in the sizes of drives.
const MB: f64 = 1e6;

fn cpu_ns(recorded: &Recorded) -> f64 {
    (recorded.usage.user_ns + recorded.usage.system_ns) as f64
}

/// Returns the size of a message in a frame of the journal, in bytes.
const fn record_bytes(size: usize) -> usize {
    16 + size.next_multiple_of(8)
}

fn lap(value: f64, bound: f64, limit: String, round: &Round) -> Lap {
    Lap { value, bound, limit, quiet: round.quiet }
}

/// Rows 3 and 7: the greatest rate without loss over a long time, and the recorder's CPU time at this rate.
pub(super) fn sustained(plan: &Plan<'_>, answer: &mut JournalAnswer, way: Way) -> Result<()> {
    for &size in &plan.ask.sizes {
        let to = journal_in(plan.disk)?;
        let publish = plan.publish(size, Pace::Gated, plan.ask.seconds);
        let round = plan.play_all(publish, Record { way, ..plan.record(to.path(), Sync::Ms(10)) })?;
        let (bytes, seconds, disk) = (round.recorded.bytes as f64, round.seconds(), plan.limits.disk());
        let rate = round.published.messages as f64 / seconds / 1e6;
        let limit = format!("D {:.0}; {rate:.2} M msg/s for {seconds:.1} s, none lost", disk / MB);
        let figure = lap(bytes / seconds / MB, 0.9 * disk / MB, limit, &round);
        let measure = format!("sustained recording of {size} B, sync 10 ms, bytes of files, {}", way.name());
        answer.add(3, &measure, (">= 0.90 D", "MB/s"), Sense::AtLeast, figure);
        let cost = cpu_ns(&round.recorded) / bytes;
        let measure = format!("CPU time of the recorder in that round, {size} B, {}", way.name());
        let figure = lap(cost, 0.45, format!("M {:.2}", 1e9 / plan.limits.copy), &round);
        answer.add(7, &measure, ("<= 0.45", "core-s/GB"), Sense::AtMost, figure);
        // The peers take part only once, in the round with the first way to write.
        if let Some(launcher) = plan.ask.peers.as_ref().filter(|_| plan.ask.ways.first() == Some(&way)) {
            let payload = round.published.messages as f64 * size as f64 / seconds / MB;
            let ours =
                lap(payload, 0.0, format!("{}; after a power cut: all that was durable", way.name()), &round);
            drop(to);
            peers::beside(plan, answer, launcher, (size, ours))?;
        }
    }
    Ok(())
}

/// Row 4: the rate of small messages to a file system in memory.
pub(super) fn small(plan: &Plan<'_>, answer: &mut JournalAnswer) -> Result<()> {
    let (to, size) = (journal_in(&plan.stage.dir)?, 32);
    let publish = plan.publish(size, Pace::Gated, plan.ask.seconds.min(10.0));
    let round = plan.play_all(publish, plan.record(to.path(), Sync::Ms(10)))?;
    let rate = round.published.messages as f64 / round.seconds() / 1e6;
    let most = plan.limits.copy / record_bytes(size) as f64 / 1e6;
    let figure = lap(rate, 25.0, format!("M {most:.0}; none lost"), &round);
    answer.add(4, "32 B into memory", (">= 25", "M msg/s"), Sense::AtLeast, figure);
    Ok(())
}

/// Row 5: the time from `publish` until the message is durable.
pub(super) fn commit(plan: &Plan<'_>, answer: &mut JournalAnswer, way: Way) -> Result<()> {
    let to = journal_in(plan.disk)?;
    let publish = plan.publish(64, Pace::Every(1_000_000), plan.ask.seconds.min(10.0));
    let messages = publish.time_ns / 1_000_000;
    let publish = Publish { messages, keeps_sends: true, ..publish };
    let record = Record { way, keeps_moves: true, ..plan.record(to.path(), Sync::Each) };
    let round = plan.play_all(publish, record)?;
    let times = to_durable(&round)?;
    let sync = &plan.limits.sync;
    let ms = |ns: u64| ns as f64 / 1e6;
    let each = format!("`publish` to durable, each, 1 k msg/s, 64 B, {}", way.name());
    let p50 = lap(ms(times.p50), 1.3 * ms(sync.p50), format!("S p50 {:.3}", ms(sync.p50)), &round);
    answer.add(5, &format!("{each}: p50"), ("<= 1.3 S", "ms"), Sense::AtMost, p50);
    let limit = format!("S p99 {:.3}; max {:.3}", ms(sync.p99), ms(times.max));
    let p99 = lap(ms(times.p99), 2.0 * ms(sync.p99), limit, &round);
    answer.add(5, &format!("{each}: p99"), ("<= 2 S p99", "ms"), Sense::AtMost, p99);
    Ok(())
}

/// Returns for each message the time from its send until the recorder reported it as durable.
fn to_durable(round: &Round) -> Result<Distribution> {
    let clock = shmcast::Clock::of_this_host();
    let mut moves = round.recorded.moves.iter().peekable();
    let mut times = Vec::with_capacity(round.published.sends.len());
    for (sent, sequence) in round.published.sends.iter().zip(1..) {
        while moves.next_if(|(_, durable)| *durable < sequence).is_some() {}
        // The round can end before the recorder reports a message as durable. The message was durable at the end of the round.
        let at = moves.peek().map_or(round.recorded.durable_at, |(at, _)| *at);
        times.push(clock.ns_between(*sent, at));
    }
    ensure!(!times.is_empty(), "no message was sent");
    Ok(Distribution::of_values(times))
}

/// Row 6: the rate if each write is durable.
pub(super) fn durable_rate(plan: &Plan<'_>, answer: &mut JournalAnswer, way: Way) -> Result<()> {
    let (to, size) = (journal_in(plan.disk)?, 64);
    let publish = plan.publish(size, Pace::Gated, plan.ask.seconds.min(10.0));
    let round = plan.play_all(publish, Record { way, ..plan.record(to.path(), Sync::Each) })?;
    let rate = round.published.messages as f64 / round.seconds() / 1e6;
    let most = plan.limits.disk() / record_bytes(size) as f64 / 1e6;
    let figure = lap(rate, 5.0, format!("D {most:.1}; none lost"), &round);
    let measure = format!("durable, each, 64 B, {}", way.name());
    answer.add(6, &measure, (">= 5", "M msg/s"), Sense::AtLeast, figure);
    Ok(())
}

/// Row 7: the CPU time of a recorder at a usual rate.
pub(super) fn processor(plan: &Plan<'_>, answer: &mut JournalAnswer, way: Way) -> Result<()> {
    let to = journal_in(plan.disk)?;
    let publish = plan.publish(256, Pace::Every(10_000), plan.ask.seconds.min(10.0));
    let record = Record { way, ..plan.record(to.path(), Sync::Ms(10)) };
    let round = plan.play_all(Publish { cpu: Some(0), ..publish }, record)?;
    let usage = &round.recorded.usage;
    let share = CORE * cpu_ns(&round.recorded) / usage.wall_ns.max(1) as f64;
    let limit = format!(
        "user {:.1}, kernel {:.1}",
        CORE * usage.user_ns as f64 / usage.wall_ns.max(1) as f64,
        CORE * usage.system_ns as f64 / usage.wall_ns.max(1) as f64
    );
    let figure = lap(share, 5.0, limit, &round);
    let measure = format!("CPU of the recorder, 100 k msg/s of 256 B, {}", way.name());
    answer.add(7, &measure, ("<= 5", "% of a core"), Sense::AtMost, figure);
    Ok(())
}

/// Row 15: the number of bytes on the disk.
pub(super) fn bytes(plan: &Plan<'_>, answer: &mut JournalAnswer) -> Result<()> {
    for (size, most) in [(32, 48.1), (256, 272.2), (1024, 1040.6)] {
        let to = journal_in(&plan.stage.dir)?;
        let publish = plan.publish(size, Pace::Gated, 10.0);
        let messages = plan.bytes(256 << 20) / record_bytes(size) as u64;
        let round = plan.play_all(Publish { messages, ..publish }, plan.record(to.path(), Sync::Ms(10)))?;
        let Some(full) = bytes_a_message(to.path())? else {
            answer.skip(format!("row 15: no frame was full with messages of {size} B"));
            continue;
        };
        let all = round.recorded.bytes as f64 / round.published.messages as f64;
        let limit = format!("record {}; all frames {all:.2}", record_bytes(size));
        let figure = lap(full, most, limit, &round);
        let measure = format!("bytes a message of {size} B in full frames, index included");
        answer.add(15, &measure, (&format!("<= {most}"), "B"), Sense::AtMost, figure);
    }
    Ok(())
}

/// Returns the number of bytes that a message takes in full data frames. Each data frame has one entry in the index, and a share of this
/// entry is included. Returns `None` if no frame was full.
fn bytes_a_message(to: &Path) -> Result<Option<f64>> {
    const FULL: u32 = 250 << 10;
    let journal = Journal::open(to)?;
    let (mut bytes, mut messages, mut full, mut all, mut index) = (0, 0, 0, 0, 0);
    for info in journal.files() {
        let file = File::open(journal.path().join(&info.name))?;
        let (mut at, mut header) = (FILE_HEADER_BYTES as u64, [0; FRAME_HEADER_BYTES]);
        while file.read_exact_at(&mut header, at).is_ok() {
            let Ok(frame) = FrameHeader::decode(&header, info.header.salt) else { break };
            at += frame.frame_bytes() as u64;
            match frame.kind {
                FrameKind::Data => {
                    all += 1;
                    if frame.length >= FULL {
                        (bytes, messages) = (bytes + frame.frame_bytes(), messages + frame.messages);
                        full += 1;
                    }
                }
                FrameKind::Index => index += frame.frame_bytes(),
                FrameKind::Footer | FrameKind::Pad => {}
            }
        }
    }
    let share = index as f64 * f64::from(full) / f64::from(all);
    Ok((messages > 0).then(|| (bytes as f64 + share) / f64::from(messages)))
}
