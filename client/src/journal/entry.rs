//! The entries of a journal, as a reader returns them.

use super::{JournalControl, Loss};
use crate::message::Message;

/// One entry of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Entry<'a> {
    /// A message. Its time is in ticks of the clock of the ring from which it was recorded.
    Message(Message<'a>),
    /// The journal does not have these sequences. The next entry is at `to + 1`.
    Lost(Loss),
    /// A control record, of the ring or of the journal.
    Control {
        /// The sequence due at the record.
        sequence: u64,
        /// The record's time in ticks of the ring's clock; 0 if the record has no time.
        time: u64,
        /// The content.
        control: JournalControl,
    },
}

impl Entry<'_> {
    /// The sequences that the journal does not have: a loss, or a gap of the ring, whose cause is [`Cause::Gap`](super::Cause::Gap).
    ///
    /// ```
    /// use shmcast::journal::{Cause, Entry, Loss};
    /// let loss = Loss { from: 8, to: 12, cause: Cause::Overrun };
    /// assert_eq!(Entry::Lost(loss).missing(), Some(loss));
    /// ```
    pub const fn missing(&self) -> Option<Loss> {
        match self {
            Self::Message(_) => None,
            Self::Lost(loss) => Some(*loss),
            Self::Control { control, .. } => control.missing(),
        }
    }
}
