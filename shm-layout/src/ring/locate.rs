//! Finding places in a ring: its tail, its oldest safe record, a given sequence.
//!
//! The cold path of joiners, lapped readers, tools and successors. Relies on the index, which holds for each sequence
//! the position from which to look for it (its record, or the pads and control records right before it), and for the
//! next sequence the tail. Everything read is a claim: every place returned was verified by the record's own sequence
//! and the frontier, and every loop is bounded.

use crate::error::Corrupt;
use crate::layout::geometry::{GRANULE, Geometry, MAX_COUNT, WORD};
use crate::layout::header::{FRONTIER, LAZY_PUBLISHED};
use crate::layout::record::{Commit, Control, Flags};
use crate::ring::cells::RingCells;
use crate::sync::{Ordering, fence};
use thiserror::Error;

/// How often a search starts again because the writer overran it, before it gives up.
#[cfg(not(loom))]
const ATTEMPTS: usize = 1000;
#[cfg(loom)]
const ATTEMPTS: usize = 2;

/// A record boundary and the sequence that is due there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Byte position, a multiple of a granule.
    pub position: u64,
    /// The sequence of the next message at or after it.
    pub sequence: u64,
}

/// Why a place could not be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LocateError {
    /// The message has been overwritten.
    #[error("sequence {sequence} is no longer in the ring: the oldest is {oldest}")]
    TooOld {
        /// The sequence asked for.
        sequence: u64,
        /// The oldest that a reader can still start from.
        oldest: u64,
    },
    /// The message has not been published.
    #[error("sequence {sequence} is not published yet: the next is {next}")]
    NotYet {
        /// The sequence asked for.
        sequence: u64,
        /// The sequence of the next message.
        next: u64,
    },
    /// The writer overran the search each time: it laps the ring faster than a few records can be looked at.
    #[error("the publisher overruns the ring faster than it can be searched: raise the capacity")]
    Overrun,
    /// Something else wrote to the segment.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

/// What stands at a place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Found {
    /// Nothing committed yet.
    Nothing,
    /// A record, and the place after it.
    Record { commit: Commit, sequence: u64, after: Place },
}

/// Looks into a ring without moving any reader.
#[derive(Debug, Clone)]
pub struct Locator {
    cells: RingCells,
    geometry: Geometry,
}

impl Locator {
    /// A locator over `cells`, whose lengths match `geometry`.
    pub fn new(cells: RingCells, geometry: Geometry) -> Self {
        Self { cells, geometry }
    }

    /// The place where the next message will stand.
    ///
    /// # Errors
    /// [`LocateError::Overrun`] or [`LocateError::Corrupt`].
    pub fn tail(&self) -> Result<Place, LocateError> {
        self.retry(|| {
            let mut place = self.hint();
            // One record a granule is the most a ring can hold: more steps than that mean a writer outrunning us.
            for _ in 0..self.geometry.index_entries {
                match self.inspect(place)? {
                    Found::Nothing => return Ok(place),
                    Found::Record { after, .. } => place = after,
                }
            }
            Err(LocateError::Overrun)
        })
    }

    /// The oldest place that the writer will not overwrite before its next chunk.
    ///
    /// # Errors
    /// [`LocateError::Overrun`] or [`LocateError::Corrupt`].
    pub fn oldest(&self) -> Result<Place, LocateError> {
        self.retry(|| {
            let newest = self.hint();
            let frontier = self.cells.header[FRONTIER].load(Ordering::Relaxed);
            let safe = frontier.saturating_add(self.geometry.chunk).saturating_sub(self.geometry.capacity);
            if safe == 0 {
                return self.verify(Place { position: 0, sequence: 1 });
            }
            // Positions in the index grow with the sequence; entries that the writer has reused meanwhile lie beyond
            // the newest and count as too old, which they are.
            let (mut low, mut high) =
                (newest.sequence.saturating_sub(self.geometry.index_entries - 1).max(1), newest.sequence);
            while low < high {
                let middle = low + (high - low) / 2;
                if (safe..=newest.position).contains(&self.indexed(middle)) {
                    high = middle;
                } else {
                    low = middle + 1;
                }
            }
            self.verify(Place { position: self.indexed(low), sequence: low })
        })
    }

    /// The place of message `sequence`, or of the next one to come. O(1).
    ///
    /// # Errors
    /// [`LocateError::TooOld`] with the oldest left, [`LocateError::NotYet`], [`LocateError::Overrun`] or
    /// [`LocateError::Corrupt`].
    pub fn seek(&self, sequence: u64) -> Result<Place, LocateError> {
        let tail = self.tail()?;
        if sequence > tail.sequence {
            return Err(LocateError::NotYet { sequence, next: tail.sequence });
        }
        if sequence == tail.sequence {
            return Ok(tail);
        }
        let position = self.indexed(sequence);
        let reused = tail.sequence - sequence >= self.geometry.index_entries || position > tail.position;
        if sequence > 0 && !reused {
            match self.verify(Place { position, sequence }) {
                Err(LocateError::Overrun) => {}
                other => return other,
            }
        }
        Err(LocateError::TooOld { sequence, oldest: self.oldest()?.sequence })
    }

    /// A recent place at or before the tail.
    pub(crate) fn hint(&self) -> Place {
        let sequence = self.cells.header[LAZY_PUBLISHED].load(Ordering::Relaxed).min(MAX_COUNT) + 1;
        fence(Ordering::Acquire); // SYNC POINT: lazy
        Place { position: self.indexed(sequence), sequence }
    }

    fn indexed(&self, sequence: u64) -> u64 {
        let position =
            self.cells.index[(sequence & (self.geometry.index_entries - 1)) as usize].load(Ordering::Relaxed);
        if !cfg!(mutant = "no_join_fence") {
            fence(Ordering::Acquire); // SYNC POINT: index
        }
        position & !(GRANULE - 1)
    }

    /// Accepts a place from the index if the record there has its sequence, or is a gap that covers it.
    fn verify(&self, place: Place) -> Result<Place, LocateError> {
        Ok(match self.inspect(place)? {
            Found::Nothing => place,
            Found::Record { sequence, .. } => Place { sequence, ..place },
        })
    }

    /// Reads the header of the record at a place, and a control record's body.
    pub(crate) fn inspect(&self, place: Place) -> Result<Found, LocateError> {
        let Geometry { capacity, max_message, .. } = self.geometry;
        let offset = place.position & (capacity - 1);
        let record = &self.cells.data[(offset / WORD) as usize..][..(GRANULE / WORD) as usize];
        let commit = Commit::from_word(record[0].load(Ordering::Relaxed));
        fence(Ordering::Acquire); // SYNC POINT: commit
        let control = if commit.flags().has(Flags::CONTROL) && !commit.flags().has(Flags::PAD) {
            Some(Control::from_words([2, 3, 4].map(|i: usize| record[i].load(Ordering::Relaxed))))
        } else {
            None
        };
        fence(Ordering::Acquire); // SYNC POINT: window
        let frontier = self.cells.header[FRONTIER].load(Ordering::Relaxed);
        let Place { position, sequence } = place;
        let corrupt = LocateError::Corrupt(Corrupt { position, sequence, word: commit.word() });
        if position > frontier || frontier > MAX_COUNT {
            return Err(corrupt);
        }
        if frontier - position > capacity {
            return Err(LocateError::Overrun);
        }
        if commit.word() == 0 {
            return Ok(Found::Nothing);
        }
        let (sequence, next) = match control {
            Some(Some(gap @ Control::Gap { from, to })) if (from..=to).contains(&sequence) => {
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

    fn retry<T>(&self, mut search: impl FnMut() -> Result<T, LocateError>) -> Result<T, LocateError> {
        for _ in 0..ATTEMPTS {
            match search() {
                Err(LocateError::Overrun) => std::hint::spin_loop(),
                other => return other,
            }
        }
        Err(LocateError::Overrun)
    }
}
