//! Memory for channels, and the first sequence of that memory.

use shmcast::hosting::{Entry, HostedSegment, HostedSpec, STREAM_STEP_NS, fault};
use shmcast::journal::{Ending, Journal, JournalError, create};
use shmcast::{ChannelError, StreamId};
use std::fs::{remove_dir, remove_file};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The longest wait for the end of a recorder of the same channel.
const PATIENCE: Duration = Duration::from_secs(2);

/// Memory to be made for a channel's next generation.
#[derive(Debug, Clone)]
pub struct MemoryRequest {
    /// The spec of the segment.
    pub spec: HostedSpec,
    /// The stream that continues in the memory. `None` means the stream of the journal, or a new stream if there is no journal.
    pub stream: Option<StreamId>,
    /// The time at which the stream of the memory began, in nanoseconds since 1970.
    pub created_ns: u64,
    /// The journal after which the channel's sequences continue.
    pub after: Option<After>,
}

/// A journal after which a channel's sequences continue, because the channel's memory is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct After {
    /// The journal's directory.
    pub dir: PathBuf,
    /// The journal's next sequence. It has a value if the journal had a clean end when this daemon started, and no publisher was let in
    /// since then.
    pub clean: Option<u64>,
}

/// Memory that was made for a channel.
#[derive(Debug)]
pub struct Memory {
    /// The segment.
    pub hosted: HostedSegment,
    /// Whether the memory continues after the channel's journal.
    pub is_after_journal: bool,
    /// The problem with the channel's journal, if there is one: the channel does not continue after it, or the journal does not record the
    /// continuation.
    pub trouble: Option<String>,
    /// The directory of the journal that names this memory as the continuation of the channel; `None` if no journal names it.
    noted_in: Option<PathBuf>,
}

impl Memory {
    /// Removes what the journal says about this memory, which no program has used. The journal is then as if the memory had not been made.
    ///
    /// An earlier mistake: the records stayed after a refused reload, and the channel's sequences skipped a reserve.
    pub(super) fn give_back(&self) {
        let Some(dir) = &self.noted_in else { return };
        let header = self.hosted.header();
        if let Err(e) = forget(dir, header.stream, header.uuid) {
            tracing::error!(
                channel = header.channel,
                "the journal names memory that was never used, so sequences are skipped: {e}"
            );
        }
    }
}

impl MemoryRequest {
    /// Requests memory in which a channel's sequences begin at 1 again, or continue after a journal. `before` is the channel's previous
    /// generation.
    ///
    /// Bridges identify a stream by the time at which its sequences began. So the time of the new stream is later than that of the previous
    /// stream by at least `STREAM_STEP_NS`, even if the clock was set back.
    pub(super) fn of_next_stream(spec: HostedSpec, before: Option<&Entry>, after: Option<After>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let created_ns = next_stream_ns(before).max(now.as_nanos() as u64);
        Self { spec, stream: None, created_ns, after }
    }

    /// Makes the memory. This takes time in proportion to the capacity, and reads the journal, so do not call it on the event loop. If the
    /// journal cannot be read, the sequences begin at 1.
    ///
    /// # Errors
    /// The step that failed.
    pub fn make(&self) -> Result<Memory, ChannelError> {
        let found = self.after.as_ref().map(|after| (after, after.ending(&self.spec.name, self.stream)));
        let ending = found.as_ref().and_then(|(_, found)| found.as_ref().ok()?.as_ref());
        let stream = ending.map(Ending::stream).or(self.stream);
        let hosted = HostedSegment::create(&self.spec, stream, Some(self.created_ns))?;
        let noted = found.map_or(Ok(()), |(after, found)| after.begin(found?, &hosted));
        let noted_in = self.after.as_ref().filter(|_| noted.is_ok()).map(|after| after.dir.clone());
        let trouble = noted.err().map(|e| {
            let first = hosted.first_sequence();
            format!("sequences begin at {first}, and the journal does not say so: {e}")
        });
        Ok(Memory { hosted, is_after_journal: self.after.is_some(), trouble, noted_in })
    }
}

impl After {
    /// Returns the end of the journal of `stream`, or of the newest stream; `None` if the journal has no file.
    fn ending(&self, channel: &str, stream: Option<StreamId>) -> Result<Option<Ending>, JournalError> {
        let until = Instant::now() + PATIENCE;
        loop {
            match Ending::of(&self.dir, channel, stream) {
                Err(JournalError::Empty { .. }) => return Ok(None),
                Err(JournalError::Busy { .. }) if Instant::now() < until => sleep(Duration::from_millis(10)),
                ending => return ending.map(Some),
            }
        }
    }

    fn begin(&self, ending: Option<Ending>, hosted: &HostedSegment) -> Result<(), JournalError> {
        let Some(ending) = ending else { return create(&self.dir, hosted.header()) };
        let clean = self.clean.filter(|next| *next == ending.due());
        let first = clean.map_or_else(|| ending.next_sequence(), Ok)?;
        // This step comes before the write to the journal. So the channel skips sequences that might have been used, even if the write
        // fails.
        hosted.continue_from(first, ending.epoch());
        ending.begin(hosted.header(), first)
    }
}

/// Removes the files of a ring from the journal of a stream. Removes the stream's folder, too, if it has no other file.
fn forget(dir: &Path, stream: StreamId, ring: [u64; 2]) -> Result<(), JournalError> {
    let journal = Journal::open_stream(dir, stream)?;
    let (of_ring, others): (Vec<_>, Vec<_>) =
        journal.files().iter().partition(|file| file.header.ring.uuid == ring);
    let removed = of_ring.iter().try_for_each(|file| remove_file(journal.path().join(&file.name)));
    removed.map_err(|source| JournalError::Os {
        what: "remove a file of",
        path: journal.path().to_owned(),
        source,
    })?;
    if others.is_empty() && journal.problems().is_empty() {
        // If something else is in the folder, the folder stays.
        let _ = remove_file(journal.path().join("lock")).and_then(|()| remove_dir(journal.path()));
    }
    Ok(())
}

/// Returns the smallest `created_ns` that a channel's next stream may have. `before` is the channel's previous generation. Bridges
/// distinguish streams by `created_ns`.
pub(super) fn next_stream_ns(before: Option<&Entry>) -> u64 {
    let step = if fault!("streams_share_a_step") { 1 } else { STREAM_STEP_NS };
    before.map_or(0, |entry| entry.created_ns.saturating_add(step))
}

/// If a channel's journal has a clean end, records in the journal that the channel continues. If the channel's memory might still exist,
/// call this before anybody publishes. Returns the next sequence, or `None` if the journal has no clean end.
pub(super) fn reopen(dir: &Path, channel: &str, stream: StreamId) -> Option<u64> {
    // A journal that was not sealed has no clean end. In this case, its last file need not be read.
    Journal::open_stream(dir, stream).ok()?.files().last()?.trailer?;
    let ending = Ending::of(dir, channel, Some(stream)).ok().filter(Ending::is_clean)?;
    let due = ending.due();
    if let Err(e) = ending.reopen(due) {
        tracing::error!(channel, "the journal does not say that the channel goes on: {e}");
    }
    Some(due)
}
