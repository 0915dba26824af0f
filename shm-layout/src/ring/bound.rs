//! Finds the tail of a ring, or an upper bound of the tail. A daemon needs the tail when it ends a ring. The ring's publisher is possibly
//! still publishing, and has possibly damaged the ring.

use crate::error::Corrupt;
use crate::layout::geometry::{GRANULE, MAX_COUNT, MAX_SEQUENCE};
use crate::layout::record::Flags;
use crate::ring::locate::{Found, Locator, Miss, Place, TAIL_STEPS};
use crate::ring::sync_points::{lazy, window};

/// The limit for searches of the exact tail in [`Locator::tail_bound`].
const BOUND_ATTEMPTS: usize = 16;

/// The tail of a ring. If the publisher is possibly still publishing, this can be an upper bound of the tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailBound {
    /// The place of the next message.
    Exact(Place),
    /// The publisher is too fast for the search. When the search began, the next sequence was at most this one.
    AtMost {
        /// A sequence above those of all messages and gaps that were committed before the search began.
        next: u64,
    },
}

impl TailBound {
    /// The first sequence that was not committed when the search began, or a later sequence.
    pub fn next_sequence(self) -> u64 {
        match self {
            Self::Exact(place) => place.sequence,
            Self::AtMost { next } => next,
        }
    }
}

impl Locator {
    /// Finds the tail, or an upper bound of the tail. A daemon uses this when it ends a segment. The segment's publisher is possibly still
    /// publishing.
    ///
    /// - Every message and gap that had been committed before the call has a sequence below [`TailBound::next_sequence`]. This also holds
    ///   for a message that a reader copied: the reader must execute a `SeqCst` fence after the copy, and the caller must execute a
    ///   `SeqCst` fence later, but before this call.
    /// - A bound that is not exact is at most 64 sequences above the tail that the ring has when the call returns.
    /// - The work is at most 16 searches of 256 records each, which take a few milliseconds. The call waits for nothing, and no bytes in
    ///   the segment make it panic.
    ///
    /// A commit word has only the low half of a sequence. The high half comes from the lazy line and from gap records. So a malicious
    /// publisher can claim any sequence. This is no new danger, because a valid gap can also skip to any sequence.
    ///
    /// # Errors
    /// [`Corrupt`] when the lazy line, the index and the records contradict each other. A correct publisher never causes this error,
    /// however fast it publishes.
    pub fn tail_bound(&self) -> Result<TailBound, Corrupt> {
        let before = self.progress();
        for _ in 0..BOUND_ATTEMPTS {
            match self.proved_tail() {
                Ok(place) => return Ok(TailBound::Exact(place)),
                Err(Miss::Corrupt(corrupt)) => return Err(corrupt),
                Err(Miss::Overrun) => std::hint::spin_loop(),
            }
        }
        // By now, every message that was committed before the call is in the count, or is one of the at most 64 messages after the count.
        // Every gap is in the count, because the publisher has published more meanwhile, and counts a gap before it publishes more.
        let now = self.progress();
        let (published, frontier) = now;
        let count = self.start().sequence - 1..MAX_SEQUENCE;
        if now == before || !count.contains(&published) || frontier > MAX_COUNT {
            return Err(Corrupt { position: 0, sequence: 0, word: published });
        }
        Ok(TailBound::AtMost { next: (published + 1 + lazy::EVERY).min(MAX_SEQUENCE) })
    }

    /// Returns two values: the count in the lazy line (which the writer updates every 64 messages), and the frontier. If a publisher is too
    /// fast for a search, at least one of the two values is different after the search.
    fn progress(&self) -> (u64, u64) {
        let frontier = window::frontier_before_loads(&self.cells.header);
        (lazy::peek(&self.cells.header), frontier)
    }

    /// Finds the tail from the lazy line (the count of messages, which the writer updates rarely), and confirms the tail by another word of
    /// the ring.
    fn proved_tail(&self) -> Result<Place, Miss> {
        let hint = self.hint()?;
        let (place, found) = self.walk(hint, u64::MAX, TAIL_STEPS)?;
        // If the walk passed a record, the record's sequence has confirmed the hint. Otherwise another word must confirm the hint.
        if place == hint && matches!(found, Found::Nothing) {
            self.confirm(hint)?;
        }
        Ok(place)
    }

    /// Checks an empty place. The lazy line (the writer's count of messages) says which sequence is next there, and another word of the
    /// ring must confirm this sequence.
    pub(crate) fn confirm(&self, place: Place) -> Result<(), Miss> {
        if self.is_explained(place)? {
            return Ok(());
        }
        match self.inspect(place)? {
            // A record came meanwhile, so the words that were read before can be out of date.
            Found::Record { .. } => Err(Miss::Overrun),
            Found::Nothing => {
                let Place { position, sequence } = place;
                Err(Corrupt { position, sequence, word: 0 }.into())
            }
        }
    }

    /// Whether the ring confirms that the next record at an empty place will have the sequence of `place`. There are three cases: the place
    /// is the first of the ring; a control record or a small pad ends at the place; or the message or gap before the place leads to it.
    fn is_explained(&self, place: Place) -> Result<bool, Miss> {
        if place == self.start() {
            return Ok(true);
        }
        let Place { position, sequence } = place;
        if let Some(position) = position.checked_sub(GRANULE)
            && let Ok(Found::Record { commit, after, .. }) = self.inspect(Place { position, sequence })
            && commit.flags().has(Flags::PAD) | commit.flags().has(Flags::CONTROL)
            && after == place
        {
            return Ok(true);
        }
        let before = sequence.saturating_sub(1).max(1);
        match self.walk(Place { position: self.indexed(before), sequence: before }, sequence, TAIL_STEPS) {
            Ok((end, _)) => Ok(end == place),
            Err(Miss::Overrun) => Err(Miss::Overrun),
            Err(Miss::Corrupt(_)) => Ok(false),
        }
    }
}
