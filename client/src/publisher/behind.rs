//! Makes a channel in a new file continue after the journal that has the channel's earlier messages. The first sequence in the file is
//! greater than each sequence in the journal.

use super::PublisherBuilder;
use crate::error::ChannelError;
use crate::hosting::LAST_EPOCH;
use crate::journal::{Ending, JournalError, create_for, folder_of, wait_for_reserve};
use shmcast_layout::layout::stream::StreamId;
use shmcast_layout::segment::Segment;
use std::path::{Path, PathBuf};

/// The journal after which a channel continues, and pointers to the functions that use the journal. Only [`of`](Self::of) names these
/// functions. So a program that never calls `of`, such as one in C, is linked without the code for journals.
#[derive(Debug, Clone)]
pub(super) struct Behind {
    dir: PathBuf,
    find: fn(&Path, &str) -> Result<PastOf, JournalError>,
    begin: fn(PastOf, &Path, &Segment, u64) -> Result<(), JournalError>,
    resume: fn(&Path, &Segment) -> Result<(), JournalError>,
}

impl Behind {
    pub(super) fn of(dir: PathBuf) -> Self {
        Self { dir, find, begin, resume }
    }
}

/// The end of the journal after which a channel continues. It is empty if there is no journal, or if the journal has no file.
#[derive(Debug, Default)]
pub(super) struct PastOf(Option<Ending>);

impl PastOf {
    /// The stream that continues.
    pub(super) fn stream(&self) -> Option<StreamId> {
        self.0.as_ref().map(Ending::stream)
    }
}

impl PublisherBuilder {
    /// Finds the end of the journal, and holds its lock until a segment continues after it.
    pub(super) fn find_past(&self) -> Result<PastOf, ChannelError> {
        let Some(Behind { dir, find, .. }) = &self.behind else { return Ok(PastOf::default()) };
        find(dir, &self.name).map_err(|e| self.refused_by_journal(e))
    }

    /// Makes `segment` continue the sequences of the journal, and notes this continuation in the journal. The first sequence is at least
    /// `least`. `segment` is new: no other process has seen it.
    pub(super) fn go_on_behind(
        &self,
        past: PastOf,
        segment: &Segment,
        least: u64,
    ) -> Result<(), ChannelError> {
        let Some(Behind { dir, begin, .. }) = &self.behind else { return Ok(()) };
        begin(past, dir, segment, least).map_err(|e| self.refused_by_journal(e))
    }

    /// Writes to the journal that the channel continues in its existing ring. Call this before the first message is published in the ring.
    pub(super) fn tell_journal(&self, segment: &Segment) -> Result<(), ChannelError> {
        let Some(Behind { dir, resume, .. }) = &self.behind else { return Ok(()) };
        resume(dir, segment).map_err(|e| self.refused_by_journal(e))
    }

    pub(super) fn refused_by_journal(&self, source: JournalError) -> ChannelError {
        ChannelError::Journal { name: self.name.clone(), source: Box::new(source) }
    }
}

/// Returns the sequence of the next message in a ring in which no process publishes. Returns 1 if the ring is damaged.
pub(super) fn next_of(segment: &Segment) -> u64 {
    segment.locator().tail().map_or(1, |tail| tail.sequence)
}

fn find(dir: &Path, channel: &str) -> Result<PastOf, JournalError> {
    match Ending::of(dir, channel, None) {
        Err(JournalError::Empty { .. }) => Ok(PastOf(None)),
        ending => Ok(PastOf(Some(ending?))),
    }
}

fn begin(past: PastOf, dir: &Path, segment: &Segment, least: u64) -> Result<(), JournalError> {
    let Some(ending) = past.0 else { return create_for(dir, segment.header(), 1..1) };
    let first = ending.next_sequence()?.max(least);
    segment.continue_from(first, ending.epoch().min(LAST_EPOCH), 0);
    ending.begin(segment.header(), first)
}

fn resume(dir: &Path, segment: &Segment) -> Result<(), JournalError> {
    let (first, next) = (segment.first_sequence(), next_of(segment));
    let stream = segment.header().stream;
    let ending = match Ending::of(dir, &segment.header().channel, Some(stream)) {
        // While a recorder runs, it renews the reserve by itself, and the journal does not end with a clean record. But after a gap, the
        // next sequence can be beyond the reserve that the recorder has written. Then the publisher waits.
        Err(JournalError::Busy { .. }) => return wait_for_reserve(&folder_of(dir, stream), next),
        Err(JournalError::Empty { .. }) => return create_for(dir, segment.header(), first..next),
        ending => ending?,
    };
    let due = ending.due();
    if next < due {
        return Err(JournalError::Behind { path: dir.to_owned(), due, next });
    }
    if ending.needs_reopening(next) { ending.reopen(next) } else { Ok(()) }
}
