//! Waits of a reader for a journal that cannot give the next message now.

use super::origin::STALL;
use super::{Outcome, Subscriber};
use crate::journal::Reader;
use crate::message::RecvError;
use std::time::Instant;

impl Subscriber {
    /// Called if it is unknown whether the journal has the next message. The subscriber stays in the journal until an answer
    /// decides this, or until the ring has the message.
    pub(super) fn ask_again(&mut self) -> Result<Option<Outcome>, RecvError> {
        let pause = self.past_reader().map(Reader::pause);
        if let Some(past) = &mut self.past {
            past.asks_again_at = pause.map(|pause| Instant::now() + pause);
        }
        match self.try_live(false)? {
            None => self.wait_for_past(),
            live => Ok(live),
        }
    }

    /// Whether the subscriber still pauses before its next request for the journal's next file.
    pub(super) fn asks_later(&self) -> bool {
        let again_at = self.past.as_ref().and_then(|past| past.asks_again_at);
        again_at.is_some_and(|at| Instant::now() < at)
    }

    /// Waits for the journal. After each [`STALL`] without progress, returns an error, and the next call waits again.
    pub(super) fn wait_for_past(&mut self) -> Result<Option<Outcome>, RecvError> {
        let sequence = self.reader.place().sequence;
        let Some(past) = &mut self.past else { return Ok(None) };
        if past.waits_since.get_or_insert_with(Instant::now).elapsed() < STALL {
            return Ok(None);
        }
        past.waits_since = None;
        Err(RecvError::Stalled { sequence })
    }

    /// Whether to wait for a journal that cannot be read now. The cause might pass soon, such as a file that is being replaced.
    pub(super) fn may_wait_for_past(&mut self) -> bool {
        let Some(past) = &mut self.past else { return false };
        past.waits_since.get_or_insert_with(Instant::now).elapsed() < STALL
    }
}
