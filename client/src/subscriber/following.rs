//! Finds the place where a subscriber continues after a lap, a takeover or a change of the segment. Also withholds messages that are not
//! valid because their publisher was cut off.

use super::past::Entered;
use super::{Buffer, Doubt, Outcome, Resume, Subscriber};
use crate::clock::Clock;
use crate::message::{Event, Lapped, RecvError};
use shmcast_layout::charter::Charter;
use shmcast_layout::control::Generation;
use shmcast_layout::fault;
use shmcast_layout::layout::charter::Verdict;
use shmcast_layout::layout::header::State;
use shmcast_layout::layout::record::ControlRecord;
use shmcast_layout::ring::locate::{LocateError, Place};
use shmcast_layout::ring::reader::Poll;
use shmcast_layout::segment::{Access, Segment};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// The time for which a reader pauses while it waits for a journal, or for the daemon that passes it the journal's files.
const WAIT_FOR_FILES: Duration = Duration::from_micros(200);

impl Subscriber {
    /// If the reader has skipped the record that announces a new epoch, returns the event of this epoch. The number of the epoch comes from
    /// the segment's state word.
    pub(super) fn epoch_in_force(&mut self) -> Option<Outcome> {
        // While a new publisher is recovering, the record of its epoch has not come yet. A publisher that has closed is not reported any
        // more.
        let (epoch, State::Active) = self.reader.state()? else { return None };
        if epoch <= self.epoch {
            return None;
        }
        if self.has_more() || self.is_withheld() {
            return None;
        }
        self.tell_epoch(epoch)
    }

    /// Called when nothing is left to receive after a lap. If the lap overwrote the record of a takeover, returns the event of the
    /// takeover.
    #[cold]
    pub(super) fn hidden_epoch(&mut self) -> Option<Outcome> {
        let state = self.reader.state();
        if self.has_more() || self.is_withheld() {
            return None;
        }
        // From here on, the reader reads records as usual.
        self.doubt = Doubt::None;
        let (epoch, State::Active) = state? else { return None };
        if epoch <= self.epoch.max(self.began_in) {
            return None;
        }
        self.epoch = epoch;
        Some(Outcome::Other(Event::NewEpoch { epoch }))
    }

    /// Treats `epoch` as the last reported epoch. So each later publisher is reported, even one that had taken over before this subscriber
    /// was opened. Use this for a reader that continues where an earlier reader ended.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::{Event, Publisher, Start, Subscriber};
    /// let open = || Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open();
    /// drop(open()?);
    /// let _second = open()?;
    /// let mut reader = Subscriber::builder("t").dir(dir.path()).start(Start::Oldest).open()?;
    /// reader.go_on_after_epoch(1);
    /// assert_eq!(reader.recv()?, Event::End);
    /// assert_eq!(reader.recv()?, Event::NewEpoch { epoch: 2 });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn go_on_after_epoch(&mut self, epoch: u64) {
        (self.epoch, self.began_in) = (epoch, epoch);
    }

    /// Whether there is a record to receive. The caller must load the segment's state before this call. Then the call finds every record
    /// that was committed before the publisher stored the loaded state.
    pub(super) fn has_more(&self) -> bool {
        fence(Ordering::Acquire);
        self.reader.locator().is_ready(self.position())
    }

    /// Stores the epoch. Returns the event of a new epoch, but only if the epoch of an earlier publisher was known.
    fn tell_epoch(&mut self, epoch: u64) -> Option<Outcome> {
        let told = std::mem::replace(&mut self.epoch, epoch);
        (told > 0).then_some(Outcome::Other(Event::NewEpoch { epoch }))
    }

    /// Called when the reader began at a sequence that was already overwritten. Returns the event with the number of lost messages.
    #[cold]
    pub(super) fn begin(&mut self) -> Result<Option<Outcome>, RecvError> {
        let Some(sequence) = self.behind else { return Ok(None) };
        // The poll was made before the reader was at the sequence with which it begins, so the result of the poll is ignored.
        self.reader.jump(Place::nowhere(sequence));
        self.skip()
    }

    /// Continues after a lap, or at a sequence older than everything in the ring. If a journal has the missing messages, continues in the
    /// journal, and returns no event. The caller then polls again.
    #[cold]
    pub(super) fn skip(&mut self) -> Result<Option<Outcome>, RecvError> {
        if self.is_conflating() {
            let place = self.reader.place();
            if self.conflate(place.sequence) {
                return Ok(None);
            }
            self.reader.jump(place);
        }
        let is_wanted = self.behind.is_some() || self.resume == Resume::Oldest;
        let entered = if is_wanted { self.enter_past(self.next_sequence()) } else { Entered::Not };
        match entered {
            // The ledger does not count messages that come from a journal. So the ledger notes them as lost.
            Entered::Past => {
                self.track_loss();
                return Ok(None);
            }
            // The next poll tries again. The pause is here, because a reader that parked now would be woken immediately.
            Entered::NotYet => {
                std::thread::sleep(WAIT_FOR_FILES);
                return Ok(None);
            }
            Entered::Not => {}
        }
        if is_wanted && self.past.as_ref().is_some_and(|past| past.is_undecided()) {
            return Err(RecvError::Stalled { sequence: self.next_sequence() });
        }
        self.skip_in_ring()
    }

    /// Continues in the ring after a loss.
    #[cold]
    pub(super) fn skip_in_ring(&mut self) -> Result<Option<Outcome>, RecvError> {
        let before = self.reader.place();
        let resumed = self.reader.resume(self.resume);
        // Messages of a publisher that was cut off must not count as missed. If no valid message is left in this segment, the reader moves
        // to the next segment, and reports the loss of valid messages there.
        let nothing_left = match self.verdict_on_read() {
            Verdict::Open => false,
            Verdict::Closing => true,
            Verdict::Cut { below, .. } => resumed.is_err() || self.next_sequence() >= below,
        };
        if nothing_left {
            self.reader.jump(before);
            return self.try_next_segment();
        }
        let missed = resumed?;
        (self.doubt, self.behind) = (self.doubt_after_jump(), None);
        Ok(Some(self.tell_loss(missed, self.next_sequence())))
    }

    /// Counts lost messages, and returns their event.
    pub(super) fn tell_loss(&mut self, missed: u64, resumed_at: u64) -> Outcome {
        self.track_loss();
        self.count(|page, place| page.lapped(missed, place));
        Outcome::Other(Event::Lapped(Lapped { missed, resumed_at }))
    }

    /// Returns [`Doubt::Epoch`] if the reader might have skipped the event of a new epoch by a jump, and otherwise [`Doubt::None`].
    pub(super) fn doubt_after_jump(&self) -> Doubt {
        // A publisher sets the state before it commits its first record. So the state that is read after the jump includes the epoch of
        // each skipped record.
        fence(Ordering::Acquire);
        let known = self.epoch.max(self.began_in);
        let is_in_doubt = self.reader.state().is_some_and(|(epoch, _)| epoch > known);
        if is_in_doubt { Doubt::Epoch } else { Doubt::None }
    }

    /// Returns the daemon's verdict on a message that the caller read before this call. A channel that is a file has no daemon, so its
    /// messages are always valid.
    #[inline]
    pub(super) fn verdict_on_read(&self) -> Verdict {
        self.hosted.as_ref().map_or(Verdict::Open, |hosted| hosted.verdict_on_read())
    }

    /// Whether the channel is strict and must not return a message now, because its publisher was cut off or is about to be cut off.
    pub(super) fn is_withheld(&self) -> bool {
        self.is_strict() && self.verdict_on_read() != Verdict::Open
    }

    /// Whether this generation has ended.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.verdict_on_read(), Verdict::Cut { .. })
    }

    /// Whether the record that was just read from a strict channel must be withheld, either now or for ever.
    #[inline]
    pub(super) fn withholds(&self, poll: &Poll) -> bool {
        if fault!("void_messages_are_handed_out") {
            return false;
        }
        is_kept_back(self.verdict_on_read(), poll, || self.next_sequence())
    }

    /// Called when no valid message is left in this segment. Continues in the next segment if the daemon has sent it.
    ///
    /// The first call only takes the next segment, and the caller then polls once more. The daemon sends that segment only after this
    /// generation has ended. So if a poll finds nothing *after* the segment has arrived, this generation has no more messages.
    #[inline]
    pub(super) fn try_next_segment(&mut self) -> Result<Option<Outcome>, RecvError> {
        let Some(hosted) = &mut self.hosted else { return Ok(None) };
        let was_here = !hosted.next.is_empty();
        if hosted.look_ahead() && was_here && hosted.may_go_on() { self.go_on() } else { Ok(None) }
    }

    /// Continues in a later segment if message `sequence` is there. Returns whether the reader moved.
    ///
    /// # Errors
    /// If the sequence belongs to a later segment and cannot be received there. The reader keeps its place.
    pub(super) fn seek_ahead(&mut self, sequence: u64) -> Result<bool, LocateError> {
        let Some(hosted) = &mut self.hosted else { return Ok(false) };
        let Some(found) = hosted.find_ahead(sequence) else { return Ok(false) };
        let (before, place) = found?;
        hosted.next.drain(..before);
        // This cannot fail, because the segment is mapped and its charter (the file of the daemon's verdicts) is the present one.
        let _ = self.go_on();
        self.reader.jump(place);
        Ok(true)
    }

    #[cold]
    pub(super) fn go_on(&mut self) -> Result<Option<Outcome>, RecvError> {
        // If a loss from an earlier move has not been reported yet, the reader reports it in the next segment.
        let expected = self.behind.unwrap_or_else(|| self.next_sequence());
        let Some(hosted) = &mut self.hosted else { return Ok(None) };
        let Some(next) = hosted.next.front_mut() else { return Ok(None) };
        if next.charter.is_none() && next.generation.generation <= hosted.generation.generation {
            // A daemon sent this old segment before it had the newest one. The reader is in the old segment, or in a later one.
            hosted.next.pop_front();
            return Ok(None);
        }
        // The following steps can fail. Until they are done, this reader does not change.
        let charter =
            next.charter.as_ref().map(Charter::open).transpose().map_err(|_| RecvError::Unmapped)?;
        let (segment, steps) = match next.ready.take() {
            Some(ready) => ready,
            None => {
                let segment = Segment::open(&next.segment, Access::Read).map_err(|_| RecvError::Unmapped)?;
                (segment, Vec::new())
            }
        };
        let generation = next.generation;
        let is_restart = hosted.is_restarted_next();
        let expected = expected_in(generation, is_restart, expected);
        hosted.charter = charter.unwrap_or_else(|| hosted.charter.clone());
        hosted.generation = generation;
        hosted.next.pop_front();
        self.leave_past();
        self.leave_board();
        self.begin_in(segment, generation.first);
        (self.is_checked, self.steps, self.moves) = (self.must_check(), steps, self.moves + 1);
        self.behind = (expected < generation.first).then_some(expected);
        self.doubt = if self.behind.is_some() { Doubt::Behind } else { Doubt::None };
        if let Some(expected) = self.behind {
            // No message is returned before the loss is reported, or before the missing messages are read from the journal.
            self.reader.jump(Place::nowhere(expected));
        }
        if is_restart {
            if let Some(past) = &mut self.past {
                past.forget();
            }
            (self.epoch, self.began_in) = (0, 0);
            self.joining.iter_mut().for_each(|joining| joining.forget());
            if let Some(watch) = &mut self.watch {
                watch.forget();
            }
            return Ok(Some(Outcome::Other(Event::Restarted)));
        }
        // The next poll reports a loss, or reads the record of the next publisher.
        Ok(None)
    }

    /// Reads `segment` from its start on.
    fn begin_in(&mut self, segment: Segment, first: u64) {
        let header = segment.header();
        let room = Buffer::room_for(header);
        if room > self.buffer.bytes() && !fault!("the_buffer_stays_as_it_was") {
            self.buffer = Buffer::with_room(room);
        }
        self.clock = Clock::of_segment(header);
        self.reader = segment.reader(Place { position: 0, sequence: first });
        if let Some(gate) = &mut self.gate {
            gate.go_on(header.uuid);
        }
        (self.burst_mark, self.burst_target) = ((first, 0), 0);
        self.follow_board(&segment);
        self.segment = segment;
    }
}

/// Whether a record that was just read must be withheld, either now or for ever. `verdict` was loaded after the record was read. `next`
/// returns the sequence after the record.
#[inline]
pub(super) fn is_kept_back(verdict: Verdict, poll: &Poll, next: impl FnOnce() -> u64) -> bool {
    match (verdict, poll) {
        (Verdict::Open, _) | (_, Poll::Empty | Poll::Lapped | Poll::Superseded) => false,
        (Verdict::Closing, _) => true,
        (Verdict::Cut { below, .. }, Poll::Message(copied)) => copied.sequence >= below,
        (Verdict::Cut { below, .. }, Poll::Control(ControlRecord::Gap { from, .. })) => *from >= below,
        // The charter (the daemon's verdicts) says whether an end record exactly at the cut was written before the cut was made.
        (Verdict::Cut { below, ended }, Poll::Control(ControlRecord::End)) => {
            let next = next();
            next > below || next == below && !ended
        }
        (Verdict::Cut { below, .. }, Poll::Control(_) | Poll::TooSmall { .. } | Poll::Corrupt(_)) => {
            next() >= below
        }
    }
}

/// The sequence that a reader expects in the next generation. `expected` is the sequence that it expects in the present generation.
pub(super) fn expected_in(generation: Generation, is_restart: bool, expected: u64) -> u64 {
    match is_restart {
        // A reader that joined after invalid messages expects a higher sequence than the generation's first.
        false => expected.min(generation.first),
        // A stream can begin after a journal, and not with sequence 1.
        true if generation.restarted == generation.generation => generation.first,
        true => 1,
    }
}

/// Finds the place of message `sequence`. Returns `None` if the message was overwritten.
pub(super) fn seek(segment: &Segment, sequence: u64) -> Result<Option<Place>, LocateError> {
    match segment.locator().seek(sequence) {
        Err(LocateError::TooOld { .. }) => Ok(None),
        found => found.map(Some),
    }
}
