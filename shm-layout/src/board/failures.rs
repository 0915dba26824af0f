//! Why a board could not be joined to its ring.

use crate::error::Corrupt;
use thiserror::Error;

/// Passes over the board before a reader gives up. Each pass copies what changed since the one before, so a second or third pass is short.
pub(super) const PASSES: u32 = if cfg!(loom) { 2 } else { 200 };

/// The reason why a reader could not join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The ring is overwritten faster than the board can be read.
    #[error("the ring holds less than what is published while the board is read: make it larger")]
    TooFast,
    /// The board has been left behind by a publisher that keeps none.
    #[error(
        "the board ends at sequence {through}, and the ring begins after that: its publisher does not keep it; use the same release"
    )]
    Left {
        /// The last message that is on it.
        through: u64,
    },
    /// Another program wrote to the ring.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// Another program wrote to the board, or the segment was replaced meanwhile.
    #[error("the board names messages that the ring does not have: remove the channel, or begin it anew")]
    Damaged,
}

/// Why joins failed so far.
#[derive(Default)]
pub(super) struct Failures {
    /// The board named messages that the ring did not have.
    pub(super) ahead: u32,
    /// The message after this one was gone from the ring.
    through: Option<u64>,
    /// How often the board had not moved on when that was found.
    still: u32,
}

impl Failures {
    pub(super) fn note_gone(&mut self, through: u64) {
        self.still += u32::from(self.through == Some(through));
        self.through = Some(through);
    }

    pub(super) fn reason(&self) -> JoinError {
        match self.through {
            _ if self.ahead > PASSES / 2 => JoinError::Damaged,
            Some(through) if self.still > PASSES / 2 => JoinError::Left { through },
            _ => JoinError::TooFast,
        }
    }
}
