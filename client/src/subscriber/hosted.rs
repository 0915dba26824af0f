//! Follows a daemon's channel from one generation to the next, for one of its readers.
//!
//! A channel of a daemon uses one segment after another. The daemon writes a charter for the channel, which says which segments have ended,
//! and at which sequence. A reader is in one of three states:
//! ```text
//!                 the charter withholds or cuts what comes next
//!    READING  ------------------------------------------------->  WAITING   hands out nothing, keeps its deadlines
//!       ^  ^                                                         |  |
//!       |  +---------------- the daemon takes it back ---------------+  |
//!       |                                                               | the daemon has sent the next segment
//!       |      nothing valid is left in the old segment, and            v
//!       +------------- the next one is mapped ------------------  FOLLOWING
//!          tells Restarted, or Lapped for what lies between;
//!          a failure leaves it in FOLLOWING, to be tried again
//! ```
//! The reader stores no mark that distinguishes READING from WAITING. It reads the charter each time instead. In FOLLOWING, `next` is not
//! empty.

use super::origin::Origin;
use crate::attach::keeper::{Attachment, MOST_WAITING, Successor};
use shmcast_layout::charter::Charter;
use shmcast_layout::control::Generation;
use shmcast_layout::layout::charter::Verdict;
use shmcast_layout::ring::locate::{LocateError, Place};
use std::collections::VecDeque;

/// A subscriber's attachment to a daemon.
#[derive(Debug)]
pub(super) struct Hosted {
    pub(super) attachment: Attachment,
    pub(super) charter: Charter,
    /// The source of the journal, for a channel that can get a journal later.
    pub(super) journal: Option<Origin>,
    /// The generation that the subscriber reads.
    pub(super) generation: Generation,
    /// The segments in which the channel continues, in their order. Usually the list has one entry or none.
    pub(super) next: VecDeque<Successor>,
}

impl Hosted {
    /// Returns the daemon's verdict on a message that the caller read before this call.
    #[inline]
    pub(super) fn verdict_on_read(&self) -> Verdict {
        self.charter.verdict_on_read(self.generation.generation)
    }

    /// Takes a segment that the daemon has sent. Returns whether there is a next segment. Costs one load while the daemon has sent nothing.
    #[inline]
    pub(super) fn look_ahead(&mut self) -> bool {
        if self.next.is_empty() {
            self.next.extend(self.attachment.moved());
        }
        !self.next.is_empty()
    }

    /// Whether a later segment has arrived, mapped or not.
    pub(super) fn has_next(&self) -> bool {
        !self.next.is_empty() || self.attachment.has_moved()
    }

    /// Whether the next segment has arrived and the present segment has ended. If the next segment came with a new charter, the present
    /// segment has ended, whatever the old charter says.
    pub(super) fn may_go_on(&self) -> bool {
        let is_over = || matches!(self.verdict_on_read(), Verdict::Cut { .. });
        self.next.front().is_some_and(|next| next.charter.is_some() || is_over())
    }

    /// Whether sequences begin at 1 again in the next segment. If so, the same sequence means another message in the next segment.
    pub(super) fn is_restarted_next(&self) -> bool {
        let before = self.generation.generation;
        self.next.front().is_some_and(|next| next.charter.is_some() || next.generation.restarted > before)
    }

    /// Takes all segments that the daemon has sent. Returns those that continue the sequences of the current segment, in their order.
    pub(super) fn later(&mut self) -> impl Iterator<Item = &mut Successor> {
        while self.next.len() < MOST_WAITING
            && let Some(next) = self.attachment.moved()
        {
            self.next.push_back(next);
        }
        let mut last = self.generation.generation;
        // After a restart, sequences belong to other messages.
        self.next.iter_mut().take_while(move |next| {
            let before = std::mem::replace(&mut last, next.generation.generation);
            let is_later = next.generation.generation > before;
            next.charter.is_none() && is_later && next.generation.restarted <= before
        })
    }

    /// Searches for message `sequence` in the segments in which the channel continues. Returns the message's place, and how many segments
    /// come before the segment that has the message. Returns `None` if the message belongs to the current segment.
    ///
    /// The reader keeps its place.
    pub(super) fn find_ahead(&mut self, sequence: u64) -> Option<Result<(usize, Place), LocateError>> {
        if !self.look_ahead() || !self.may_go_on() {
            return None;
        }
        let reaches = |next: &&mut Successor| next.generation.first <= sequence;
        let (at, next) = self.later().take_while(reaches).enumerate().last()?;
        next.map();
        let Some((segment, _)) = &next.ready else {
            // The next call tries to map the segment again. Until then the sequence counts as not published yet.
            return Some(Err(LocateError::NotYet { sequence, next: next.generation.first }));
        };
        Some(segment.locator().seek(sequence).map(|place| (at, place)))
    }
}
