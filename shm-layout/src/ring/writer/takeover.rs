//! Finds the place where a successor continues.

use crate::error::Corrupt;
use crate::layout::geometry::Geometry;
use crate::layout::header::{LAZY_BYTES, LAZY_KEY};
use crate::layout::record::Flags;
use crate::ring::cells::RingCells;
use crate::ring::locate::{Found, LocateError, Locator, Miss, Place};
use crate::ring::sync_points::lazy;
use crate::sync::Ordering;
use thiserror::Error;

/// The reason why a writer could not take over a ring. The ring is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TakeOverError {
    /// Another segment has replaced this one. Readers see this in the segment's state.
    #[error("the segment was given up for another: open the channel again")]
    Superseded,
    /// The place to continue from could not be found.
    #[error(transparent)]
    Locate(#[from] LocateError),
}

impl From<Miss> for TakeOverError {
    fn from(miss: Miss) -> Self {
        match miss {
            Miss::Corrupt(corrupt) => corrupt.into(),
            // No other process writes to the ring, and no correct writer leaves a lazy line that names an overwritten place.
            Miss::Overrun => Corrupt { position: 0, sequence: 0, word: 0 }.into(),
        }
    }
}

impl From<Corrupt> for TakeOverError {
    fn from(corrupt: Corrupt) -> Self {
        Self::Locate(corrupt.into())
    }
}

/// The state from which a successor continues.
pub(super) struct Tail {
    pub(super) place: Place,
    /// The position and the first sequence of the last committed gap, if the lazy line (the writer's count of messages, updated rarely)
    /// does not count the gap yet.
    pub(super) gap: Option<Place>,
    pub(super) last_key: u64,
    pub(super) bytes: u64,
}

/// Finds the tail of a ring to which no process writes. The walk begins at the place in the lazy line, a cache line that the writer updated
/// rarely. A record must confirm this place, because a forged lazy line could make the sequences jump.
pub(super) fn walk(cells: &RingCells, geometry: Geometry) -> Result<Tail, TakeOverError> {
    let cold = |word: usize| cells.header[word].load(Ordering::Relaxed);
    let locator = Locator::new(cells.clone(), geometry);
    let hint = locator.hint()?;
    if matches!(locator.inspect(hint)?, Found::Nothing) && !crate::fault!("any_count_is_gone_on_from") {
        locator.confirm(hint)?;
    }
    let mut tail = Tail { place: hint, gap: None, last_key: cold(LAZY_KEY), bytes: cold(LAZY_BYTES) };
    let mut steps = 0;
    while let Found::Record { commit, sequence, after } = locator.inspect(tail.place)? {
        // A writer updates the lazy line at least once in `lazy::EVERY` messages, and at each gap.
        if steps > 2 * lazy::EVERY || tail.gap.is_some() {
            return Err(Corrupt { position: tail.place.position, sequence, word: commit.word() }.into());
        }
        steps += 1;
        if commit.flags().has(Flags::CONTROL) {
            let is_new_gap = after.sequence > tail.place.sequence;
            tail.gap = is_new_gap.then_some(Place { sequence, ..tail.place });
        } else if after.sequence > sequence {
            tail.bytes = tail.bytes.wrapping_add(commit.length());
            if commit.flags().has(Flags::KEY) {
                tail.last_key = sequence;
            }
        }
        tail.place = after;
    }
    Ok(tail)
}
