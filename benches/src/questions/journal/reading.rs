//! Rows about reading a journal. They measure the time to catch up, to find a point in time, to verify a journal, and to recover the
//! journal of a killed recorder.

use super::answer::{JournalAnswer, Lap, Sense};
use super::plan::{FILE_BYTES, Plan, journal_in};
use crate::rig::journal::reader::forget_all;
use crate::rig::journal::role::{
    CatchUp, CaughtUp, Done, LookedUp, Lookup, Pace, Publish, Record, Role, Sync,
};
use crate::rig::journal::scene::{crash, together};
use crate::rig::probe::{Load, Quiet};
use crate::rig::spec::ring_messages;
use crate::rig::stats::median;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::time::{Duration, Instant};

const MB: f64 = 1e6;
/// The size in bytes of the journals that are read.
const JOURNAL: u64 = 3 << 29;
/// The time limit for writing a journal.
const LONGEST: Duration = Duration::from_secs(300);
/// The number of readers that catch up at the same time.
const CROWD: usize = 50;
/// The number of bytes that each of many readers reads.
const EACH: u64 = 128 << 20;
/// The size of a file in bytes and the number of files, for a journal of many files.
const MANY: (u64, u64) = (1 << 20, 1024);

/// Runs a function, and measures how quiet the machine is meanwhile.
fn watched<T>(run: impl FnOnce() -> Result<T>) -> Result<(T, Quiet)> {
    let load = Load::begin(std::iter::empty())?;
    let done = run()?;
    Ok((done, load.end()?))
}

/// Records messages with payloads of `size` bytes. Their number is chosen so that payloads and headers have `bytes` bytes in all. Then
/// calls `then` while the publisher and the recorder still run.
fn with_journal(
    plan: &Plan<'_>,
    (size, bytes, pace): (usize, u64, Pace),
    record: Record,
    then: impl FnOnce(&Path, u64) -> Result<()>,
) -> Result<()> {
    let messages = bytes / (size as u64 + 16);
    let publish = Publish { messages, time_ns: LONGEST.as_nanos() as u64, ..plan.publish(size, pace, 0.0) };
    let deadline = Instant::now() + LONGEST;
    let record = Record { keep_bytes: 0, ..record };
    plan.play_beside(publish, record, |dir, running| {
        while running.standing()?.durable < messages {
            ensure!(Instant::now() < deadline, "{messages} messages are not durable in time");
            std::thread::sleep(Duration::from_millis(10));
        }
        then(dir, messages)
    })
    .map(drop)
}

/// Returns a reader's speed in bytes of journal a second.
fn speed(reader: &CaughtUp, size: usize) -> f64 {
    (reader.messages * (size as u64 + 16)) as f64 * 1e9 / reader.ns as f64
}

/// Row 13: the time until a lapped reader is live again.
pub(super) fn catching_up(plan: &Plan<'_>, answer: &mut JournalAnswer) -> Result<()> {
    let bytes = plan.bytes(JOURNAL);
    for size in [1024, 32] {
        let to = journal_in(plan.disk)?;
        let record = plan.record(to.path(), Sync::Ms(10));
        with_journal(plan, (size, bytes, Pace::Gated), record, |dir, messages| {
            let behind = |from, cpu| {
                Role::CatchUp(CatchUp { dir: dir.to_owned(), journal: to.path().to_owned(), from, cpu })
            };
            let one = || -> Result<(CaughtUp, Quiet)> {
                let play = || together::<CaughtUp>(&plan.stage.program, &[behind(1, Some(1))]);
                let (read, quiet) = watched(play)?;
                Ok((read[0], quiet))
            };
            forget_all(to.path())?;
            let cold = one()?;
            let cached = one()?;
            if size == 32 {
                small(answer, cached);
                return Ok(());
            }
            large(plan, answer, size, cached, cold);
            let part = plan.bytes(EACH) / (size as u64 + 16);
            // The reader must be behind by more than the ring holds. Otherwise it would not read the journal.
            let ring = ring_messages(plan.publish(size, Pace::Gated, 0.0).ring_bytes, size);
            let from = messages.saturating_sub(part.max(2 * ring)).max(1);
            let roles = vec![behind(from, None); if plan.stage.quick { 5 } else { CROWD }];
            let start = Instant::now();
            let (read, quiet) = watched(|| together::<CaughtUp>(&plan.stage.program, &roles))?;
            let all: u64 = read.iter().map(|reader| reader.messages).sum();
            let rate = all as f64 / start.elapsed().as_secs_f64() / 1e6;
            let whole = read.iter().filter(|reader| reader.messages > 0).count();
            let limit = format!("{all} messages in order and once, {rate:.2} M msg/s together");
            let lap = Lap { value: whole as f64, bound: roles.len() as f64, limit, quiet };
            answer.add(13, "readers live again at the same time", ("all", "readers"), Sense::AtLeast, lap);
            Ok(())
        })?;
    }
    Ok(())
}

fn small(answer: &mut JournalAnswer, (read, quiet): (CaughtUp, Quiet)) {
    let rate = read.messages as f64 * 1e3 / read.ns as f64;
    let limit = format!("{:.0} MB/s of the journal", speed(&read, 32) / MB);
    let lap = Lap { value: rate, bound: 15.0, limit, quiet };
    answer.add(13, "a lapped reader back to live, 32 B, cached", (">= 15", "M msg/s"), Sense::AtLeast, lap);
}

fn large(
    plan: &Plan<'_>,
    answer: &mut JournalAnswer,
    size: usize,
    (cached, quiet): (CaughtUp, Quiet),
    (cold, cold_quiet): (CaughtUp, Quiet),
) {
    let limits = &plan.limits;
    let limit = format!("R cached {:.0}, M {:.0}", limits.cached / MB, limits.copy / MB);
    let lap = Lap { value: speed(&cached, size) / MB, bound: 3000.0, limit, quiet };
    let measure = "a lapped reader back to live, 1 KiB, cached";
    answer.add(13, measure, (">= 3 GB/s", "MB/s"), Sense::AtLeast, lap);
    let limit = format!("R cold {:.0}", limits.cold / MB);
    let bound = 0.8 * limits.cold / MB;
    let lap = Lap { value: speed(&cold, size) / MB, bound, limit, quiet: cold_quiet };
    answer.add(13, "the same, cold", (">= 0.8 R", "MB/s"), Sense::AtLeast, lap);
}

/// Row 14: the time to find the first message at or after a point in time, without the page cache.
pub(super) fn lookup(plan: &Plan<'_>, answer: &mut JournalAnswer) -> Result<()> {
    let many = (MANY.0, plan.bytes(MANY.0 * MANY.1));
    // The recorder must keep up with its publisher. If the recorder were late, the times of its frames would be later than the times of the
    // messages.
    for (file_bytes, bytes) in [many, (plan.bytes(FILE_BYTES), plan.bytes(5 << 28))] {
        let to = journal_in(plan.disk)?;
        let record = Record { file_bytes, ..plan.record(to.path(), Sync::Ms(10)) };
        with_journal(plan, (256, bytes, Pace::Every(2_000)), record, |_, _| Ok(()))?;
        let files = shmcast::journal::Journal::open(to.path())?.files().len();
        let count = if plan.stage.quick { 2 } else { 20 };
        let role = Role::Lookup(Lookup { journal: to.path().to_owned(), count });
        let (found, quiet) = watched(|| together::<LookedUp>(&plan.stage.program, &[role]))?;
        let found = &found[0];
        let time = median(found.times.iter().copied()).context("no time was looked up")?;
        let most = found.times.iter().max().copied().unwrap_or_default();
        let what = format!("first message by time, cold, {files} files of {} MiB", file_bytes >> 20);
        let limit = format!("largest {:.2} of {count}", most as f64 / MB);
        let lap = Lap { value: time as f64 / MB, bound: 5.0, limit, quiet };
        answer.add(14, &what, ("<= 5 ms", "ms"), Sense::AtMost, lap);
        match median(found.reads.iter().copied()) {
            Some(reads) => {
                let limit = format!("largest {}", found.reads.iter().max().unwrap_or(&reads));
                let lap = Lap { value: reads as f64, bound: 3.0, limit, quiet };
                answer.add(14, &format!("{what}: reads"), ("<= 3", "reads"), Sense::AtMost, lap);
            }
            None => answer.skip("row 14: this kernel does not count reads".into()),
        }
    }
    Ok(())
}

/// Row 12: the time to recover a journal whose recorder was killed.
pub(super) fn recovery(plan: &Plan<'_>, answer: &mut JournalAnswer) -> Result<()> {
    let (to, size) = (journal_in(plan.disk)?, 256);
    let dir = tempfile::tempdir_in(&plan.stage.dir).context("make a directory for the round")?;
    let record_bytes = size as u64 + 16;
    let many = plan.bytes(MANY.0 * MANY.1);
    let large = plan.bytes(1 << 30);
    let publish = Publish {
        dir: dir.path().to_owned(),
        time_ns: LONGEST.as_nanos() as u64,
        ..plan.publish(size, Pace::Gated, 0.0)
    };
    let record = |file_bytes| Record {
        dir: dir.path().to_owned(),
        file_bytes,
        keep_bytes: 0,
        gate_messages: ring_messages(publish.ring_bytes, size),
        ..plan.record(to.path(), Sync::Ms(10))
    };
    // The second recorder ends before its file is full.
    let first = many / record_bytes;
    let both = first + large / 20 * 17 / record_bytes;
    crash(&plan.stage.program, &publish, &[(record(MANY.0), first), (record(large), both)])?;
    forget_all(to.path())?;
    let role = Role::Mend(to.path().to_owned());
    let (mended, quiet) = watched(|| together::<Done>(&plan.stage.program, &[role]))?;
    let Done { bytes, ns, files } = mended[0];
    let bound = 0.5 + bytes as f64 / plan.limits.cold;
    let limit =
        format!("{:.0} MB unsealed of {files} files, R {:.0}", bytes as f64 / MB, plan.limits.cold / MB);
    let lap = Lap { value: ns as f64 / 1e9, bound, limit, quiet };
    let measure = "recovery behind the page cache, 1024 files of 1 MiB, one of 1 GiB unsealed";
    answer.add(12, measure, ("<= 0.5 s + unsealed / R", "s"), Sense::AtMost, lap);
    let (again, _) = watched(|| together::<Done>(&plan.stage.program, &[Role::Verify(to.path().into())]))?;
    ensure!(again[0].files == files, "{} files, and not {files}", again[0].files);
    Ok(())
}

/// Row 18: the speed of a check of every byte.
pub(super) fn verify(plan: &Plan<'_>, answer: &mut JournalAnswer) -> Result<()> {
    let to = journal_in(plan.disk)?;
    let bytes = plan.bytes(JOURNAL);
    with_journal(plan, (1024, bytes, Pace::Gated), plan.record(to.path(), Sync::Ms(10)), |_, _| Ok(()))?;
    let limits = plan.limits.clone();
    for (name, reading, is_cold) in [("cold", limits.cold, true), ("cached", limits.cached, false)] {
        if is_cold {
            forget_all(to.path())?;
        }
        let role = Role::Verify(to.path().to_owned());
        let (done, quiet) = watched(|| together::<Done>(&plan.stage.program, &[role]))?;
        let rate = done[0].bytes as f64 * 1e9 / done[0].ns as f64;
        let limit = format!("R {:.0}, M {:.0}, one job", reading / MB, limits.copy / MB);
        let bound = 0.9 * reading.min(limits.copy) / MB;
        let lap = Lap { value: rate / MB, bound, limit, quiet };
        answer.add(18, &format!("verify, {name}"), (">= 0.9 min(R, M)", "MB/s"), Sense::AtLeast, lap);
    }
    Ok(())
}
