//! Finds places in a ring: its tail, its oldest safe record, or a given sequence.
//!
//! Readers that join or were lapped, tools, and a publisher's successor use these searches.
//!
//! The searches rely on the index. For each sequence, the index has the position of its record, or of the pads right before the record. For
//! the next sequence, the index has the position of the tail, or of the gap right before the tail. Another process writes these words. So a
//! search returns a place only after the record's own sequence and the frontier have confirmed it, and every loop is bounded.

use crate::error::Corrupt;
use crate::fault::mutant;
use crate::layout::geometry::{GRANULE, Geometry, MAX_COUNT, MAX_SEQUENCE, WORD};
use crate::layout::header::FIRST_SEQUENCE;
use crate::layout::record::{Commit, ControlRecord, Flags};
use crate::ring::cells::RingCells;
use crate::ring::sync_points::{commit, index, lazy, window};
use crate::sync::Ordering;
use std::cmp::Ordering::{Equal, Greater, Less};
use thiserror::Error;

/// The number of times that a search starts again because the writer overtook it. After the last time, the search for the tail returns a
/// place that is already overwritten.
#[cfg(not(loom))]
const ATTEMPTS: usize = 100;
#[cfg(loom)]
const ATTEMPTS: usize = 1;
/// The limit for the records that a walk to the tail passes. Between the place where a walk begins and the tail, there are never more
/// records than this.
pub(crate) const TAIL_STEPS: u64 = 4 * lazy::EVERY;

/// A search reads the lazy line (the writer's count of messages), then an index entry, and then the lazy line again. If the line advanced by
/// less than this limit in between, the low half of a sequence cannot have repeated. Otherwise the search starts again.
const LOW_HALF: u64 = 1 << 31;

/// A record boundary and the sequence that is due there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Byte position, a multiple of a granule.
    pub position: u64,
    /// The sequence of the next message at or after the position.
    pub sequence: u64,
}

impl Place {
    /// The beginning of every ring.
    pub const START: Self = Self { position: 0, sequence: 1 };

    /// Makes a place that no ring has, with `sequence` as its sequence. A reader there never finds a message, because the position is
    /// beyond every frontier.
    pub const fn nowhere(sequence: u64) -> Self {
        Self { position: 1 << 63, sequence }
    }
}

/// The reason why a place could not be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LocateError {
    /// The message has been overwritten.
    #[error("sequence {sequence} is no longer in the ring: the oldest is {oldest}")]
    TooOld {
        /// The requested sequence.
        sequence: u64,
        /// The oldest sequence that a reader can still start from.
        oldest: u64,
    },
    /// The message has not been published.
    #[error("sequence {sequence} is not published yet: the next is {next}")]
    NotYet {
        /// The requested sequence.
        sequence: u64,
        /// The sequence of the next message.
        next: u64,
    },
    /// Another program wrote to the segment.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The subscriber is a copy that `fork` made in a child process. The copy keeps its place.
    #[error("this subscriber belongs to the process that was forked: open one of its own here")]
    Forked,
}

/// The reason why a search begins again, or cannot succeed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Miss {
    /// The writer was faster: it might have overwritten the record that the search read.
    Overrun,
    /// Another program wrote to the segment.
    Corrupt(Corrupt),
}

impl From<Corrupt> for Miss {
    fn from(corrupt: Corrupt) -> Self {
        Self::Corrupt(corrupt)
    }
}

/// The contents of a place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Found {
    /// Nothing committed yet.
    Nothing,
    /// A record, and the place after it.
    Record { commit: Commit, sequence: u64, after: Place },
}

/// Searches a ring without moving any reader.
#[derive(Debug, Clone)]
pub struct Locator {
    pub(super) cells: RingCells,
    geometry: Geometry,
}

impl Locator {
    /// A locator over `cells`, whose lengths match `geometry`.
    pub fn new(cells: RingCells, geometry: Geometry) -> Self {
        Self { cells, geometry }
    }

    /// Finds the place after all messages that were published before this call. A message that was published during the call can already be
    /// at this place.
    ///
    /// If the publisher is too fast for the search, the result is an overwritten place. A reader that begins at this place learns that it
    /// was lapped, and how many messages it missed.
    ///
    /// # Errors
    /// [`LocateError::Corrupt`].
    pub fn tail(&self) -> Result<Place, LocateError> {
        if crate::fault!("searches_give_up_before_fast_publishers") {
            let found = self.retry(|_| Ok(self.walk(self.hint()?, u64::MAX, TAIL_STEPS)?.0))?;
            return found.ok_or(Corrupt { position: 0, sequence: 0, word: 0 }.into());
        }
        match self.retry(|_| self.tail_now())? {
            Some(place) => Ok(place),
            None => self.overwritten(),
        }
    }

    fn tail_now(&self) -> Result<Place, Miss> {
        let mut place = self.hint()?;
        for _ in 0..=TAIL_STEPS {
            match self.inspect(place)? {
                Found::Record { after, .. } => place = after,
                Found::Nothing => break,
            }
        }
        Ok(place)
    }

    /// Returns a place that the writer has overwritten. The place's sequence is the one after the last message that the writer has counted.
    fn overwritten(&self) -> Result<Place, LocateError> {
        let frontier = window::frontier_before_loads(&self.cells.header);
        let published = lazy::peek(&self.cells.header);
        if frontier > MAX_COUNT || published >= MAX_SEQUENCE {
            return Err(Corrupt { position: frontier, sequence: 0, word: published }.into());
        }
        let behind = frontier.checked_sub(self.geometry.capacity + GRANULE).map(|p| p & !(GRANULE - 1));
        // If nothing in the ring has been overwritten yet, the ring's start is readable.
        Ok(behind.map_or(self.start(), |position| Place { position, sequence: published + 1 }))
    }

    /// Finds the oldest place that the writer will not overwrite with its next chunk. The index has a limited number of entries. If gaps
    /// use up the entries, the search does not find older messages that are still in the ring.
    ///
    /// If the publisher overwrites the place before the search has read it, the search tries again with a later place. Each attempt doubles
    /// the distance between the place and the bytes that the publisher overwrites next. If every attempt fails, the result is the same as
    /// that of [`tail`](Self::tail).
    ///
    /// # Errors
    /// [`LocateError::Corrupt`].
    pub fn oldest(&self) -> Result<Place, LocateError> {
        match self.retry(|attempt| self.oldest_now(attempt))? {
            Some(place) => Ok(place),
            None => self.tail(),
        }
    }

    fn oldest_now(&self, attempt: usize) -> Result<Place, Miss> {
        let Geometry { capacity, chunk, .. } = self.geometry;
        let newest = self.verify(self.hint()?)?;
        let frontier = window::frontier(&self.cells.header);
        let room = (chunk << attempt.min(6)).min(capacity / 2);
        let safe = frontier.saturating_add(room).saturating_sub(capacity);
        if safe == 0 {
            return self.verify(self.start());
        }
        // Positions in the index grow with the sequence. If the writer has reused an entry meanwhile, the entry names one of the newest
        // positions, and its old sequence counts as too old.
        let (mut low, mut high) =
            (newest.sequence.saturating_sub(self.geometry.index_entries - 1).max(1), newest.sequence);
        let mut oldest = newest;
        while low < high {
            let middle = low + (high - low) / 2;
            let position = self.indexed(middle);
            if (safe..newest.position).contains(&position) {
                oldest = Place { position, sequence: middle };
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        self.verify(oldest)
    }

    /// Finds the place of message `sequence`, of the gap that includes it, or of the next message to come. The search takes O(1). If gaps
    /// have pushed the message out of the index, the search walks from the oldest place to the message, if it can.
    ///
    /// # Errors
    /// [`LocateError::TooOld`] with the oldest sequence that is left, [`LocateError::NotYet`], or [`LocateError::Corrupt`].
    pub fn seek(&self, sequence: u64) -> Result<Place, LocateError> {
        if let Some(sought) = self.retry(|attempt| self.seek_now(sequence, attempt))? {
            return sought;
        }
        // The writer overwrites each place before the search has read it.
        let tail = self.tail()?;
        match sequence.cmp(&tail.sequence) {
            Less => Err(LocateError::TooOld { sequence, oldest: tail.sequence }),
            Equal => Ok(tail),
            Greater => Err(LocateError::NotYet { sequence, next: tail.sequence }),
        }
    }

    /// Finds the place right after the message or gap before `sequence`. A reader that starts at this place also reads the control records
    /// before `sequence`. Returns `None` if the message or gap was overwritten, or if the publisher is faster than the search.
    pub fn behind(&self, sequence: u64) -> Option<Place> {
        if sequence == self.start().sequence {
            return self.verify(self.start()).ok().filter(|place| place.sequence == sequence);
        }
        let before = self.seek(sequence.checked_sub(1)?).ok()?;
        match self.walk(before, sequence - 1, TAIL_STEPS) {
            Ok((_, Found::Record { after, .. })) if after.sequence == sequence => Some(after),
            _ => None,
        }
    }

    fn seek_now(&self, sequence: u64, attempt: usize) -> Result<Result<Place, LocateError>, Miss> {
        let newest = self.verify(self.hint()?)?;
        if sequence >= newest.sequence {
            return Ok(match self.walk(newest, sequence, TAIL_STEPS)? {
                (Place { sequence: next, .. }, Found::Nothing) if next < sequence => {
                    Err(LocateError::NotYet { sequence, next })
                }
                (place, _) => Ok(place),
            });
        }
        let position = self.indexed(sequence);
        // Entries of sequences before the ring's first were never written.
        let in_index =
            newest.sequence - sequence < self.geometry.index_entries && sequence >= self.start().sequence;
        if in_index && position < newest.position {
            match self.verify(Place { position, sequence }) {
                Err(Miss::Overrun) => {}
                other => return Ok(Ok(other?)),
            }
        }
        let start = self.verify(self.start()).or_else(|_| self.oldest_now(attempt))?;
        if sequence >= start.sequence
            && let Ok((place, _)) = self.walk(start, sequence, self.geometry.index_entries)
        {
            return Ok(Ok(place));
        }
        Ok(Err(LocateError::TooOld { sequence, oldest: start.sequence }))
    }

    /// The ring's first place.
    pub(crate) fn start(&self) -> Place {
        let first = self.cells.header[FIRST_SEQUENCE].load(Ordering::Relaxed);
        Place { position: 0, sequence: first.clamp(1, MAX_SEQUENCE) }
    }

    /// A recent place at or before the tail.
    pub(crate) fn hint(&self) -> Result<Place, Miss> {
        let published = lazy::see(&self.cells.header);
        if !(self.start().sequence - 1..MAX_SEQUENCE).contains(&published) {
            return Err(Corrupt { position: 0, sequence: 0, word: published }.into());
        }
        let sequence = published + 1;
        let position = self.indexed(sequence);
        index::follow();
        let place = Place { position, sequence };
        // The writer reuses no entry before the lazy line (the writer's count of messages) has moved on from this entry.
        let ahead = lazy::peek(&self.cells.header).wrapping_sub(published);
        match ahead {
            0 => Ok(place),
            _ if mutant!("no_lazy_recheck") => Ok(place),
            // The entry can belong to a later sequence by now. If so, the record at its position has another low half of the sequence, and
            // `inspect` refuses it. If not, the place is right: the lazy line also moves on at each key message.
            1..LOW_HALF => match self.inspect(place) {
                Ok(Found::Record { .. }) => Ok(place),
                _ => Err(Miss::Overrun),
            },
            _ => Err(Miss::Overrun),
        }
    }

    /// The position in the index entry of a sequence. The position is valid for the next sequence, and for those sequences in the lazy line
    /// (the writer's count of messages, which it updates rarely) that are still in the index. If the writer has reused the entry for a
    /// later sequence, the position is at or after the position of the next sequence.
    pub(super) fn indexed(&self, sequence: u64) -> u64 {
        let entry = (sequence & (self.geometry.index_entries - 1)) as usize;
        index::peek(&self.cells.index, entry) & !(GRANULE - 1)
    }

    /// Checks a place. Accepts it if it has no record yet, or if its record has the expected sequence. If its record is a gap that includes
    /// the expected sequence, the result has the gap's first sequence. If the gap ends right before the expected sequence, the result is
    /// the place after the gap.
    fn verify(&self, place: Place) -> Result<Place, Miss> {
        Ok(match self.inspect(place)? {
            Found::Nothing => place,
            Found::Record { sequence, after, .. }
                if sequence < place.sequence && after.sequence == place.sequence =>
            {
                after
            }
            Found::Record { sequence, .. } => Place { sequence, ..place },
        })
    }

    /// Whether a reader that waits at `position` must wake up, because there is a record or because the reader was lapped. The daemon's
    /// waker calls this for sleeping readers. If the answer is not certain, the result is true.
    pub fn is_ready(&self, position: u64) -> bool {
        let commit = commit::peek(self.cells.data.word_at(position & !(GRANULE - 1)));
        let frontier = window::frontier(&self.cells.header);
        commit.word() != 0 || frontier.wrapping_sub(position) > self.geometry.capacity
    }

    /// Walks from a place to the record that has or includes `sequence`, or to the tail.
    pub(crate) fn walk(&self, mut place: Place, sequence: u64, steps: u64) -> Result<(Place, Found), Miss> {
        for _ in 0..=steps {
            match self.inspect(place)? {
                Found::Record { after, .. } if after.sequence <= sequence => place = after,
                found => return Ok((place, found)),
            }
        }
        Err(Miss::Overrun)
    }

    /// Reads the header of the record at a place, and a control record's body.
    pub(crate) fn inspect(&self, place: Place) -> Result<Found, Miss> {
        let Geometry { capacity, max_message, .. } = self.geometry;
        let offset = place.position & (capacity - 1);
        let record = &self.cells.data[(offset / WORD) as usize..][..(GRANULE / WORD) as usize];
        let commit = commit::see_on_walk(&record[0]);
        let control = if commit.flags().has(Flags::CONTROL) && !commit.flags().has(Flags::PAD) {
            Some(ControlRecord::from_words([2, 3, 4].map(|i: usize| record[i].load(Ordering::Relaxed))))
        } else {
            None
        };
        let frontier = window::frontier_after_walk(&self.cells.header);
        let Place { position, sequence } = place;
        let corrupt = Miss::Corrupt(Corrupt { position, sequence, word: commit.word() });
        if position > frontier || frontier > MAX_COUNT {
            return Err(corrupt);
        }
        if frontier - position > capacity && !mutant!("no_walk_window_check") {
            return Err(Miss::Overrun);
        }
        if commit.word() == 0 {
            return Ok(Found::Nothing);
        }
        let (sequence, next) = match control {
            // The index names a gap for each sequence in the gap, and for the next sequence.
            Some(Some(gap @ ControlRecord::Gap { from, to })) if (from..=to + 1).contains(&sequence) => {
                (from, gap.next_sequence(from))
            }
            _ if commit.flags().has(Flags::PAD) || control.is_some() => (sequence, sequence),
            _ => (sequence, sequence + 1),
        };
        let end = position + commit.record_bytes();
        if control == Some(None)
            || end > frontier
            || !commit.is_plausible(sequence, capacity - offset, max_message)
        {
            return Err(corrupt);
        }
        Ok(Found::Record { commit, sequence, after: Place { position: end, sequence: next } })
    }

    /// Repeats a search as long as the writer overtakes it. Returns `None` if the writer overtook every attempt.
    fn retry<T>(&self, mut search: impl FnMut(usize) -> Result<T, Miss>) -> Result<Option<T>, Corrupt> {
        for attempt in 0..ATTEMPTS {
            match search(attempt) {
                Ok(found) => return Ok(Some(found)),
                Err(Miss::Corrupt(corrupt)) => return Err(corrupt),
                Err(Miss::Overrun) => std::hint::spin_loop(),
            }
        }
        Ok(None)
    }
}
