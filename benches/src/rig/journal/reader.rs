//! Readers of a journal. Each is a separate process, with one of these tasks: to catch up, to look up times, to verify the journal, or to
//! recover the journal.

use super::limits::forget;
use super::role::{CatchUp, CaughtUp, Done, LookedUp, Lookup};
use crate::rig::child::{bind, say, wait_for};
use crate::rig::names::CHANNEL;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use shmcast::journal::{Entry, Journal, Reader, Verdict, Verify};
use shmcast::{Event, History, Start, Subscriber};
use shmcast_journal::ByName;
use shmcast_journal::core::{Io, recover};
use shmcast_journal::directory::Directory;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

/// The greatest number of events in one batch.
const BATCH: usize = 4096;

/// Answers `ready`, waits for `go`, runs `run`, and reports its result.
fn report<T: Serialize>(run: impl FnOnce() -> Result<T>) -> Result<()> {
    say("ready")?;
    wait_for("go")?;
    say(&serde_json::to_string(&run()?)?)
}

fn ns(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}

/// Removes all files of a journal from the page cache.
///
/// # Errors
/// The file system's error.
pub fn forget_all(journal: &Path) -> Result<()> {
    let journal = Journal::open(journal)?;
    for file in journal.files() {
        forget(&File::open(journal.path().join(&file.name))?)?;
    }
    Ok(())
}

/// Reads the journal from a sequence on, until the event which says that the reader has caught up. Each sequence must come exactly once.
pub(super) fn catch_up(role: &CatchUp) -> Result<()> {
    bind(role.cpu)?;
    report(|| {
        let start = Instant::now();
        let builder = Subscriber::builder(CHANNEL).dir(&role.dir).history(History::Dir(role.journal.clone()));
        let mut subscriber = builder.start(Start::Sequence(role.from)).open().context("subscribe")?;
        let (mut due, mut bytes, mut live) = (role.from, 0, None);
        let mut wrong = None;
        while live.is_none() && wrong.is_none() {
            subscriber.recv_batch(BATCH, |event| match event {
                Event::Message(message) if message.sequence == due => {
                    due += 1;
                    bytes += message.payload.len() as u64;
                    ControlFlow::Continue(())
                }
                Event::Live { sequence } => {
                    live = Some(sequence);
                    ControlFlow::Break(())
                }
                Event::NewEpoch { .. } => ControlFlow::Continue(()),
                other => {
                    wrong = Some(format!("{other:?}, and not message {due}"));
                    ControlFlow::Break(())
                }
            })?;
        }
        let took = ns(start);
        ensure!(wrong.is_none(), "{wrong:?}");
        ensure!(live == Some(due), "live at {live:?}, and {due} is due");
        Ok(CaughtUp { messages: due - role.from, payload_bytes: bytes, ns: took })
    })
}

/// Returns the number of read calls of this process so far, if the kernel counts them.
fn reads() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("syscr: "))?.parse().ok()
}

/// Returns the sequence and the time of a reader's next message.
fn message(reader: &mut Reader) -> Result<Option<(u64, u64)>> {
    loop {
        let (sequence, time) = match reader.next()? {
            Some(Entry::Message(message)) => (message.sequence, message.time),
            Some(_) => continue,
            None => return Ok(None),
        };
        return Ok(Some((sequence, reader.wall_ns(time).context("a message without a time")?)));
    }
}

/// Looks up times that are spread over a journal. Removes the journal from the page cache before each lookup.
pub(super) fn look_up(role: &Lookup) -> Result<()> {
    /// The allowed error of a time. The clock might have been adjusted by this much during the recording.
    const NEAR_NS: u64 = 1_000_000;
    report(|| {
        let journal = Journal::open(&role.journal)?;
        let first = journal.first_sequence().context("no file")?;
        let next = journal.files().iter().rev().find_map(|file| file.trailer).context("no sealed file")?.next;
        let mut found = LookedUp::default();
        for place in 1..=role.count {
            let sequence = first + (next - first) / (role.count + 1) * place;
            let mut reader = Journal::open(&role.journal)?.read_from(sequence)?;
            let (_, wanted) = message(&mut reader)?.context("the journal ends")?;
            let journal = Journal::open(&role.journal)?;
            // Opening the journal has read headers and trailers. They must not stay in the page cache.
            forget_all(&role.journal)?;
            let (before, start) = (reads(), Instant::now());
            let mut reader = journal.read_since(wanted)?;
            let (_, at) = message(&mut reader)?.context("nothing of that time or later")?;
            found.times.push(ns(start));
            // Reading this count itself makes one or two read calls.
            let (after, own) = (reads(), reads());
            if let (Some(before), Some(after), Some(own)) = (before, after, own) {
                found.reads.push((after - before).saturating_sub(own - after));
            }
            ensure!(at.abs_diff(wanted) <= NEAR_NS, "a message of {at}, and not of {wanted}");
        }
        Ok(found)
    })
}

/// Checks every byte of a journal. A listed loss is not damage.
pub(super) fn verify(journal: &Path) -> Result<()> {
    report(|| {
        let start = Instant::now();
        let journal = Journal::open(journal)?;
        let verified = Verify::new(&journal).run(|_| ())?;
        ensure!(verified.verdict() != Verdict::Damaged, "{:?}", verified.damages);
        Ok(Done { bytes: verified.bytes, ns: ns(start), files: verified.files })
    })
}

/// Repairs a journal whose recorder was killed.
pub(super) fn mend(journal: &Path) -> Result<()> {
    report(|| {
        let start = Instant::now();
        let folder = Journal::open(journal)?.path().to_owned();
        let directory = Directory::lock(&folder, Io::default()).context("lock the journal")?;
        let recovered = recover(&mut ByName::new(&directory))?;
        let (took, last) = (ns(start), recovered.last.context("nothing was found")?.file);
        drop(directory);
        let found = Journal::open(journal)?;
        let mended = found.files().iter().find(|file| file.header.file == last);
        // The footer begins at the end of the last whole frame.
        let bytes = mended.and_then(|file| file.trailer).context("it is not sealed")?.footer;
        Ok(Done { bytes, ns: took, files: found.files().len() as u64 })
    })
}
