//! The event that a call will return, in a form that does not borrow the buffer yet.

use crate::message::{Event, Message};
use shmcast_layout::ring::reader::Copied;

/// An event without its payload. The event gets its payload when it borrows the buffer.
pub(super) enum Outcome {
    Message(Copied),
    /// A message of the board, and the number of older messages of its key that were left out.
    Board(Copied, u64),
    Other(Event<'static>),
}

impl Outcome {
    #[inline]
    pub(super) fn into_event(self, buffer: &[u8]) -> Event<'_> {
        match self {
            Self::Message(copied) => Event::Message(message(copied, buffer)),
            Self::Board(copied, left_out) => {
                Event::Message(Message { conflated: Some(left_out), ..message(copied, buffer) })
            }
            Self::Other(event) => event,
        }
    }
}

/// Makes a message whose payload is at the start of the buffer.
#[inline(always)]
pub(super) fn message(copied: Copied, buffer: &[u8]) -> Message<'_> {
    let Copied { length, sequence, tag, key, time } = copied;
    Message { payload: &buffer[..length], sequence, tag, key, time, conflated: None }
}
