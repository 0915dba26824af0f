//! Laps, takeovers and changes of segment: where a subscriber goes on when the stream does not simply go on, and what of
//! it is void.

use super::{Outcome, Subscriber};
use crate::keeper::Attachment;
use crate::message::{Event, Lapped, RecvError};
use shmcast_layout::layout::geometry::{GRANULE, record_bytes};
use shmcast_layout::layout::header::{FIRST_SEQUENCE, GENERATION, State};
use shmcast_layout::layout::record::Control;
use shmcast_layout::mem::Preparation;
use shmcast_layout::ring::locate::{LocateError, Place};
use shmcast_layout::ring::reader::{Copied, Poll};
use shmcast_layout::segment::{Access, Segment};
use std::sync::atomic::{Ordering, fence};

impl Subscriber {
    /// A new epoch that the segment's state tells of and whose record this reader has jumped over.
    pub(super) fn epoch_in_force(&mut self) -> Option<Outcome> {
        // While a successor is recovering, its record is yet to come; one that has closed is news no more.
        let (epoch, State::Active) = self.reader.state()? else { return None };
        if epoch <= self.epoch {
            return None;
        }
        if self.has_more() {
            return None;
        }
        self.tell_epoch(epoch)
    }

    /// Called where nothing is left to receive after a lap: a takeover that was not told in its place, since its record was
    /// overwritten, is told now.
    #[cold]
    pub(super) fn hidden_epoch(&mut self) -> Option<Outcome> {
        let state = self.reader.state();
        if self.has_more() {
            return None;
        }
        // Records from here on are read in their places.
        self.is_epoch_in_doubt = false;
        let (epoch, State::Active) = state? else { return None };
        if epoch <= self.epoch.max(self.began_in) {
            return None;
        }
        self.epoch = epoch;
        Some(Outcome::Other(Event::NewEpoch { epoch }))
    }

    /// Whether there is something to receive that was there when a state looked at before was set.
    fn has_more(&self) -> bool {
        fence(Ordering::Acquire);
        self.reader.locator().is_ready(self.position())
    }

    /// Who has not been told of any publisher has nobody for this one to succeed.
    fn tell_epoch(&mut self, epoch: u64) -> Option<Outcome> {
        let told = std::mem::replace(&mut self.epoch, epoch);
        (told > 0).then_some(Outcome::Other(Event::NewEpoch { epoch }))
    }

    /// Tells one who asked for a sequence that is no longer here what it missed.
    #[cold]
    pub(super) fn begin(&mut self) -> Result<Option<Outcome>, RecvError> {
        let Some(sequence) = self.behind else { return Ok(None) };
        // Whatever the poll made of a place that is not this reader's.
        self.reader.jump(Place { position: 0, sequence });
        self.skip()
    }

    /// Goes on behind what is lost.
    #[cold]
    pub(super) fn skip(&mut self) -> Result<Option<Outcome>, RecvError> {
        let before = self.reader.place();
        let missed = self.reader.resume(self.resume)?;
        if self.is_strict && self.is_void(self.next_sequence()) {
            // Cut off meanwhile: what was found are void messages, which must not count as missed.
            self.reader.jump(before);
            return self.follow();
        }
        // Looked at after the jump: whatever record it skipped, the state was set before that was committed.
        fence(Ordering::Acquire);
        let known = self.epoch.max(self.began_in);
        self.is_epoch_in_doubt = self.reader.state().is_some_and(|(epoch, _)| epoch > known);
        self.behind = None;
        self.count(|page, place| page.lapped(missed, place));
        Ok(Some(Outcome::Other(Event::Lapped(Lapped { missed, resumed_at: self.next_sequence() }))))
    }

    #[inline]
    pub(super) fn is_void(&self, sequence: u64) -> bool {
        self.page.as_ref().is_some_and(|page| page.page.is_void(self.generation, sequence))
    }

    /// Whether anything but a message comes from a publisher that was cut off. Where the cut is, everything valid has
    /// been read, so that nothing found there can matter.
    #[cold]
    pub(super) fn is_void_news(&mut self, poll: &Poll) -> bool {
        let next = self.next_sequence();
        match poll {
            // Its void messages may overrun us: they count for nothing.
            Poll::Lapped => self.is_void(u64::MAX),
            Poll::Control(Control::Gap { from, .. }) if self.is_void(*from) => {
                let position = self.reader.place().position - GRANULE;
                self.reader.jump(Place { position, sequence: *from });
                true
            }
            // An end right at the cut is valid if it came before the segment was given up; a later one has put its own
            // state in place of that.
            Poll::Control(Control::End) => {
                let is_given_up = matches!(self.reader.state(), Some((_, State::Superseded)));
                self.is_void(next) && (self.is_void(next - 1) || !is_given_up)
            }
            Poll::Control(_) | Poll::TooSmall { .. } | Poll::Corrupt(_) => self.is_void(next),
            Poll::Empty | Poll::Message(_) | Poll::Superseded => false,
        }
    }

    /// Takes back the reading of a message that turned out to be void.
    #[cold]
    pub(super) fn step_back(&mut self, copied: Copied) {
        let position = self.reader.place().position - record_bytes(copied.length as u64);
        self.reader.jump(Place { position, sequence: copied.sequence });
    }

    /// Called where nothing valid is left here: goes on in the next segment if the daemon has sent it.
    ///
    /// The daemon sends it after the last word on what is void, so the segment must have been here *before* the poll
    /// that found nothing: the first call only takes it, and has everything looked at once more.
    #[inline]
    pub(super) fn follow(&mut self) -> Result<Option<Outcome>, RecvError> {
        if self.next_segment.is_some() {
            return self.go_on();
        }
        self.next_segment = self.attachment.as_deref().and_then(Attachment::moved);
        Ok(None)
    }

    #[cold]
    fn go_on(&mut self) -> Result<Option<Outcome>, RecvError> {
        let Some(file) = self.next_segment.take() else { return Ok(None) };
        let segment = Segment::open(&file, Access::Read).map_err(|_| RecvError::Superseded)?;
        let generation = segment.header_word(GENERATION);
        if generation < self.generation {
            // From a daemon that has not yet been shown the newest one.
            return Ok(None);
        }
        self.steps = segment.prepare(Preparation { prefault: true, ..Preparation::NONE });
        let mut expected = self.next_sequence();
        if generation > self.generation {
            // Who joined behind void messages expects more than there is.
            expected = expected.min(segment.header_word(FIRST_SEQUENCE).max(1));
        }
        let place = seek(&segment, expected)?;
        self.reader = segment.reader(place.unwrap_or(Place { position: 0, sequence: expected }));
        (self.generation, self.is_strict) = (generation, generation != 0);
        self.segment = segment;
        self.behind = place.is_none().then_some(expected);
        if self.behind.is_some() {
            return self.begin();
        }
        // The place lies behind the record that says so.
        let successor = self.reader.state().filter(|(epoch, _)| *epoch > self.epoch);
        Ok(successor.and_then(|(epoch, _)| self.tell_epoch(epoch)))
    }
}

/// The place of message `sequence`; `None` if it is no longer there.
pub(super) fn seek(segment: &Segment, sequence: u64) -> Result<Option<Place>, LocateError> {
    match segment.locator().seek(sequence) {
        Err(LocateError::TooOld { .. }) => Ok(None),
        found => found.map(Some),
    }
}
