//! The reasons why a reader could not join a board to its ring.

use crate::error::Corrupt;
use thiserror::Error;

/// The number of passes over the board after which a reader gives up. Each pass copies only the slots that changed since the previous pass,
/// so later passes are short.
pub(super) const PASSES: u32 = if cfg!(loom) { 2 } else { 200 };

/// The reason why a reader could not join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The ring is overwritten faster than the board can be read.
    #[error("the ring holds less than what is published while the board is read: make it larger")]
    TooFast,
    /// The board is out of date. Its publisher writes to the ring, but not to the board.
    #[error(
        "the board ends at sequence {through}, and the ring begins after that: its publisher does not keep it; use the same release"
    )]
    Left {
        /// The sequence of the last message on the board.
        through: u64,
    },
    /// Another program wrote to the ring.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// Another program wrote to the board, or the segment was replaced during the call.
    #[error("the board names messages that the ring does not have: remove the channel, or begin it anew")]
    Damaged,
}

/// Counts the failed passes of a join by their reasons.
#[derive(Default)]
pub(super) struct Failures {
    /// The number of passes in which the board had messages that the ring did not have.
    pub(super) ahead: u32,
    /// The newest message on the board in the last pass that failed because the ring no longer had the next message.
    through: Option<u64>,
    /// Counts passes that failed because the ring no longer had the message after the board's newest message. A pass counts only if the
    /// board's newest message is the same as in the previous pass that failed for this reason.
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
