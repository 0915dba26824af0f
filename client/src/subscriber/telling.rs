//! The part of polling that is not time-critical. This module decides which event the caller gets for the result of a poll.

use super::{Doubt, Outcome, Subscriber, note_latency};
use crate::message::{Event, RecvError};
use shmcast_layout::fault;
use shmcast_layout::layout::geometry::record_bytes;
use shmcast_layout::layout::record::{ControlRecord, session_identity};
use shmcast_layout::reader_page::ReaderPage;
use shmcast_layout::ring::locate::Place;
use shmcast_layout::ring::reader::{Copied, Poll};
use shmcast_layout::sys::fork;

/// The greatest number of bytes of records that a poll leaves out before it returns to the caller, because the caller can have a deadline
/// or other tasks. Leaving out this many bytes takes some 100 us.
pub(super) const MOST_LEFT_OUT: u64 = 256 << 10;

impl Subscriber {
    /// Returns an error in a forked child, because the reader page and the attachment belong to the parent.
    #[inline(always)]
    pub(super) fn check_process(&self) -> Result<(), RecvError> {
        if self.forks == fork::count() { Ok(()) } else { Err(RecvError::Forked) }
    }

    /// Counts a message on the page.
    #[inline(always)]
    pub(super) fn note_received(&self, time: u64) {
        if let Some(page) = &self.page {
            page.page.received(1, self.reader.place());
            if self.record_latency {
                note_latency(&page.page, &self.clock, time);
            }
        }
    }

    /// Makes the event that a call returns. The event borrows the buffer.
    #[inline]
    pub(super) fn lend(&self, outcome: Outcome) -> Event<'_> {
        outcome.into_event(self.buffer.payload())
    }

    /// Does the same as [`receive`](Self::receive), but never waits, and is not optimized for speed. Skips records that cause no event.
    /// Ends after a move to another ring, so that all events that the caller takes in a row belong to one ring, and have times of one
    /// clock. When it has left out messages of at least [`MOST_LEFT_OUT`] bytes, returns `None` and sets `stopped_early`.
    #[inline(never)]
    pub(super) fn poll(&mut self) -> Result<Option<Outcome>, RecvError> {
        self.check_process()?;
        let moves = self.moves;
        let start = self.reader.place().position;
        loop {
            if self.is_elsewhere() {
                let told = self.poll_elsewhere(None)?;
                if told.is_none() && self.is_conflating() && !self.is_elsewhere() {
                    continue; // the board could not be read, so the reader continues in the ring
                }
                return Ok(told);
            }
            let before = self.reader.place();
            let poll = self.reader.poll(self.buffer.payload_mut());
            let outcome = self.admit(before, poll, self.buffer.payload().len())?;
            if outcome.is_none() && self.is_elsewhere() {
                continue;
            }
            self.track_if_taken(poll, (before, moves), None);
            let is_news = outcome.is_some() || self.reader.place() == before || self.moves != moves;
            if is_news || fault!("records_without_news_end_a_poll") {
                return Ok(outcome.or_else(|| self.publisher_gone()));
            }
            if self.has_left_out_enough(start) {
                return Ok(None);
            }
        }
    }

    /// Whether this poll, which began at the position `start` of the ring, must end although there can be more.
    #[inline]
    fn has_left_out_enough(&mut self, start: u64) -> bool {
        let is_enough = self.reader.place().position.wrapping_sub(start) >= MOST_LEFT_OUT;
        self.stopped_early |= is_enough;
        is_enough
    }

    /// Does the same as [`poll`](Self::poll), with a message's payload copied to the start of `buffer`.
    #[inline(never)]
    pub(super) fn poll_into(&mut self, buffer: &mut [u8]) -> Result<Option<Outcome>, RecvError> {
        self.check_process()?;
        let before = self.reader.place();
        let poll = self.reader.poll(buffer);
        self.go_on_into(before, poll, buffer)
    }

    /// Returns the result of a poll into a caller's buffer. A message with a tag that the caller did not ask for needs no room in this
    /// buffer. So if the subscriber selects tags, a message that does not fit is polled again, into this subscriber's own buffer. `before`
    /// is the place before the poll.
    #[inline]
    fn without_unasked(&mut self, before: Place, poll: Poll) -> Poll {
        match (&self.tags, poll) {
            (Some(_), Poll::TooSmall { .. }) => self.look_at_tag(before, poll),
            _ => poll,
        }
    }

    #[cold]
    fn look_at_tag(&mut self, before: Place, too_small: Poll) -> Poll {
        match self.reader.poll(self.buffer.payload_mut()) {
            Poll::Message(copied) if self.asks_for(copied.tag) => {
                self.reader.jump(before);
                too_small
            }
            other => other,
        }
    }

    /// Whether the caller asked for messages with this tag.
    #[inline]
    pub(super) fn asks_for(&self, tag: u16) -> bool {
        self.tags.as_ref().is_none_or(|tags| tags.contains(tag))
    }

    /// Does the same as [`poll_into`](Self::poll_into) for a caller that has made the first poll. `before` is the place at which that poll
    /// began, and `poll` is its result.
    #[inline(never)]
    pub(super) fn go_on_into(
        &mut self,
        mut before: Place,
        mut poll: Poll,
        buffer: &mut [u8],
    ) -> Result<Option<Outcome>, RecvError> {
        if self.is_elsewhere() {
            // While the next event comes from the journal or the board, the result of a poll of the ring has no meaning.
            self.reader.jump(before);
            return self.poll_elsewhere(Some(buffer));
        }
        let (moves, start) = (self.moves, before.position);
        loop {
            poll = self.without_unasked(before, poll);
            let outcome = self.admit(before, poll, buffer.len())?;
            if outcome.is_none() && self.is_elsewhere() {
                return self.poll_elsewhere(Some(buffer));
            }
            self.track_if_taken(poll, (before, moves), Some(buffer));
            if outcome.is_some() || self.reader.place() == before || self.moves != moves {
                return Ok(outcome.or_else(|| self.publisher_gone()));
            }
            if self.has_left_out_enough(start) {
                return Ok(None);
            }
            before = self.reader.place();
            poll = self.reader.poll(buffer);
        }
    }

    /// Does the same as [`tell`](Self::tell) for a poll that found nothing.
    #[inline(never)]
    pub(super) fn tell_nothing(&mut self) -> Result<Option<Outcome>, RecvError> {
        let told = if self.is_elsewhere() { None } else { self.tell(Poll::Empty, 0)? };
        if told.is_none() && self.is_elsewhere() { self.poll() } else { Ok(told) }
    }

    /// Does the same as [`admit`](Self::admit) for a message that was just read. If the message is not returned, continues as
    /// [`poll`](Self::poll) does.
    #[inline(never)]
    pub(super) fn admit_message(&mut self, copied: Copied) -> Result<Option<Outcome>, RecvError> {
        if self.is_elsewhere() {
            // While the next event comes from the journal or the board, a message of the ring has no meaning.
            self.reader.jump(Place::nowhere(copied.sequence));
            return self.poll();
        }
        let position = self.reader.place().position - record_bytes(copied.length as u64);
        let before = Place { position, sequence: copied.sequence };
        let moves = self.moves;
        let told = self.admit(before, Poll::Message(copied), 0)?;
        self.track_if_taken(Poll::Message(copied), (before, moves), None);
        match told {
            None if self.reader.place() != before && self.moves == moves => self.poll(),
            outcome => Ok(outcome),
        }
    }

    /// Counts the message for its key, if this reader conflates (can skip old messages of a key) and the message was accepted. The payload
    /// is in `buffer`, or in this subscriber's own buffer. `before` has two values from before the poll: the place, and the number of moves
    /// to other segments.
    #[inline(always)]
    fn track_if_taken(&mut self, poll: Poll, before: (Place, u64), buffer: Option<&[u8]>) {
        let Some(copied) = self.tracks(&poll) else { return };
        if self.reader.place() == before.0 || self.moves != before.1 {
            return; // it is withheld
        }
        match buffer {
            Some(buffer) => self.track(copied, &buffer[..copied.length]),
            None => self.track_own(copied),
        }
    }

    /// Accepts the result of a poll. But if the charter (the daemon's verdicts) says that the record must be withheld, the reader goes back
    /// to `before`, its place before the poll, and tries the next segment.
    #[inline]
    pub(super) fn admit(
        &mut self,
        before: Place,
        poll: Poll,
        available: usize,
    ) -> Result<Option<Outcome>, RecvError> {
        if self.is_checked && self.is_strict() && self.withholds(&poll) {
            self.reader.jump(before);
            return self.try_next_segment();
        }
        self.note_passed();
        // The poll skipped a record that causes no event. There can be more after the record, so this is not the end.
        let is_passed_over = poll == Poll::Empty && self.reader.place() != before;
        if is_passed_over && self.doubt != Doubt::Behind {
            return Ok(None);
        }
        let told = self.tell(poll, available);
        self.note_passed();
        told
    }

    /// Counts the result of a poll, and decides which event the caller gets.
    #[inline(never)]
    pub(super) fn tell(&mut self, poll: Poll, available: usize) -> Result<Option<Outcome>, RecvError> {
        match poll {
            Poll::Empty if self.is_all_in_the_ring() => Ok(None),
            _ if self.doubt == Doubt::Behind => self.begin(),
            Poll::Empty if self.doubt == Doubt::Epoch => match self.hidden_epoch() {
                None => self.try_next_segment(),
                told => Ok(told),
            },
            Poll::Empty => self.try_next_segment(),
            Poll::Message(copied) => {
                self.note_received(copied.time);
                Ok(self.asks_for(copied.tag).then_some(Outcome::Message(copied)))
            }
            other => self.tell_rare(other, available),
        }
    }

    #[cold]
    pub(super) fn tell_rare(&mut self, poll: Poll, available: usize) -> Result<Option<Outcome>, RecvError> {
        let event = match poll {
            Poll::Empty | Poll::Message(_) => return Ok(None),
            Poll::Control(control) => match control {
                // The event was reported already, from the segment's state or from the journal.
                ControlRecord::Epoch { epoch } if epoch <= self.epoch => return Ok(None),
                ControlRecord::Epoch { epoch } => {
                    let told = std::mem::replace(&mut self.epoch, epoch);
                    if told == 0 && fault!("a_new_epoch_needs_an_old_one") {
                        return Ok(None);
                    }
                    Event::NewEpoch { epoch }
                }
                ControlRecord::End | ControlRecord::Session { .. } if !self.note_told(control) => {
                    return Ok(None);
                }
                ControlRecord::End => Event::End,
                ControlRecord::Gap { from, to } => {
                    self.count(|page, place| page.missed(to - from + 1, place));
                    Event::Gap { from, to }
                }
                ControlRecord::Session { high, low } => {
                    Event::NewSession { session: session_identity([high, low]) }
                }
                ControlRecord::Unknown { .. } => return Ok(None),
            },
            Poll::Lapped => return self.skip(),
            Poll::TooSmall { needed } => return Err(RecvError::TooSmall { needed, available }),
            // A program that can write to the segment can have stored the state `Superseded`. If there is a charter (the daemon's
            // verdicts), only the charter decides.
            Poll::Superseded if self.hosted.is_some() => return self.try_next_segment(),
            Poll::Superseded => return Err(RecvError::Superseded),
            // The reader reports the loss of the messages after this record in the next segment.
            Poll::Corrupt(_) if self.is_over() => return self.try_next_segment(),
            Poll::Corrupt(corrupt) => return Err(corrupt.into()),
        };
        Ok(Some(Outcome::Other(event)))
    }

    pub(super) fn count(&self, note: impl FnOnce(&ReaderPage, Place)) {
        if let Some(page) = &self.page {
            note(&page.page, Place { position: self.position(), sequence: self.next_sequence() });
        }
    }

    /// Whether the channel is strict: each publisher has a generation of its own, and the messages of a publisher that was cut off are not
    /// valid.
    pub(super) fn is_strict(&self) -> bool {
        self.hosted.as_ref().is_some_and(|hosted| hosted.generation.strict)
    }
}
