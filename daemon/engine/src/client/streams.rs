//! Finds out whether the log has blocks of a stream.

use super::{Log, MOST_DAMAGED};
use crate::proto::block::{Head, Stream, parse};
use crate::proto::writer::Last;

/// The greatest number of sessions in the log that the search for a stream examines.
const MOST_SESSIONS: usize = 1_000;

impl Log {
    /// Returns the end of the log for a writer of `stream`. If the last block belongs to another stream, `had_ours` says whether the log
    /// had `stream` before.
    pub(crate) async fn last_for(&self, stream: Stream) -> Option<Last> {
        let mut last = self.last().await?;
        if last.head.is_some_and(|head| head.stream != stream) {
            last.had_ours = self.had_stream(stream, self.bounds().await?).await?;
        }
        Some(last)
    }

    /// Whether one of the entries `first..=last` is a block of `stream`. If that is uncertain, returns true. If the servers do not answer,
    /// returns `None`.
    ///
    /// All entries of a session are next to each other in the log. So for each session, the search reads one block, and then about 20
    /// entries to find the session's first entry.
    async fn had_stream(&self, stream: Stream, (first, last): (u64, u64)) -> Option<bool> {
        let mut end = last + 1;
        for _ in 0..MOST_SESSIONS {
            let oldest = first.max(end.saturating_sub(MOST_DAMAGED));
            let Some((number, head)) = self.newest_before(end, oldest).await? else {
                return Some(oldest > first);
            };
            if head.stream == stream {
                return Some(true);
            }
            end = self.begin_of(&head, first, number).await?;
        }
        Some(true)
    }

    /// Returns the newest whole block in `oldest..end`.
    async fn newest_before(&self, end: u64, oldest: u64) -> Option<Option<(u64, Head)>> {
        for at in (oldest..end).rev() {
            if let Some((number, block)) = self.get(at).await?
                && number == at
                && let Ok((head, _)) = parse(&block)
            {
                return Some(Some((number, head)));
            }
        }
        Some(None)
    }

    /// Returns the first entry of a run of blocks that all have the session of `head`. The run ends at `known`. A damaged entry does not
    /// belong to the run, so the run begins after it.
    async fn begin_of(&self, head: &Head, mut low: u64, known: u64) -> Option<u64> {
        let mut high = known;
        while low < high {
            let middle = low + (high - low) / 2;
            match self.get(middle).await? {
                Some((number, block)) if number < high => match parse(&block) {
                    Ok((found, _)) if found.session == head.session => high = middle,
                    _ => low = number + 1,
                },
                _ => high = middle,
            }
        }
        Some(high)
    }
}
