//! Changes from the ring to the channel's journal and back, without a missing or repeated message.
//!
//! ```text
//!            lapped, or begun before all that the ring has, and the journal has it
//!    RING  ------------------------------------------------------------------>  PAST
//!     ^                                                                           |
//!     +--- the sequence due is in the ring with a quarter of it to spare: Live ---+
//!          or it is there, and the journal has no more
//! ```
//! For this module, the whole state of a subscriber is the sequence that is due. Each lower sequence was delivered once, or reported as
//! missing by one event. The ring and the journal have the same stream, and both find a message by its sequence. So the subscriber can
//! change between them at any message.
//!
//! While a recorder lives, only the recorder decides which messages are lost, and a subscriber waits for its decision. When the recorder is
//! gone, the subscriber reports a lap for sequences that neither the ring nor the journal has.
//!
//! While the subscriber reads the journal, its reader of the ring stands at a position that no ring has. Each poll of the ring then finds
//! no message, and `Doubt::Past` leads the subscriber to this module. So the code for live messages needs no further check.

use super::hosted::Hosted;
use super::origin::{Missing, Past};
use super::telling::MOST_LEFT_OUT;
use super::{Buffer, Doubt, Outcome, Subscriber};
use crate::journal::format::FileHeader;
use crate::journal::{Cause, Entry, JournalControl, Loss, Reader};
use crate::message::{Event, Message, RecvError};
use crate::wait::Wait;
use shmcast_layout::fault;
use shmcast_layout::layout::charter::Verdict;
use shmcast_layout::layout::geometry::{GRANULE, record_bytes};
use shmcast_layout::layout::record::ControlRecord;
use shmcast_layout::ring::locate::{LocateError, Place};
use shmcast_layout::ring::reader::{Copied, Poll};
use std::time::Duration;

/// The wait of a reader of the journal when there is nothing to read. A shorter wait would find no new data.
const WAIT: Wait = Wait::Sleep(Duration::from_micros(200));

/// The result of an attempt to continue in the journal.
pub(super) enum Entered {
    Past,
    /// The journal might be available soon.
    NotYet,
    Not,
}

impl Subscriber {
    /// Whether each message of the ring must be checked before it is returned.
    pub(super) fn must_check(&self) -> bool {
        self.is_strict() || self.tags.is_some() || self.gate.is_some() || self.is_conflating()
    }

    /// Continues in the journal at `sequence`, if there is a journal of this stream. Otherwise changes nothing.
    #[cold]
    pub(super) fn enter_past(&mut self, sequence: u64) -> Entered {
        let stream = self.header().stream;
        let is_early = fault!("the_past_begins_one_too_early") && sequence > 1;
        let sequence = sequence - u64::from(is_early);
        self.find_journal();
        let Some(past) = &mut self.past else { return Entered::Not };
        match past.open(stream, sequence, |files| Reader::open_behind(files, sequence)) {
            Ok(reader) => {
                self.read_past(sequence, reader);
                Entered::Past
            }
            Err(Missing::NotYet) => Entered::NotYet,
            Err(Missing::None | Missing::Unknown(_)) => Entered::Not,
        }
    }

    /// Finds the journal of a channel that got its journal after the reader attached.
    pub(super) fn find_journal(&mut self) {
        if let Some(hosted) = &mut self.hosted
            && self.past.is_none()
            && hosted.charter.has_journal()
            && let Some(journal) = hosted.journal.take()
        {
            self.past = Some(Box::new(Past::new(journal)));
        }
    }

    /// Continues in the journal at `sequence`, and returns true. Returns false if the journal cannot be opened or read, or has no entry for
    /// exactly this sequence. If the stream's journal has not begun yet, or the daemon is restarting, first waits a limited time for the
    /// journal.
    pub(super) fn seek_past(&mut self, sequence: u64) -> bool {
        let stream = self.header().stream;
        self.find_journal();
        let Some(past) = &mut self.past else { return false };
        let opened = past.open_and_wait(stream, sequence, |files| Reader::open(files, sequence));
        let Ok(Some(mut reader)) = opened else { return false };
        if reader.due() != sequence || !matches!(reader.next(), Ok(Some(_))) {
            return false;
        }
        reader.unread();
        // The entry can be a loss that has no record of its own. Then there is no record to go back to, and the reader searches for the
        // sequence again.
        if reader.due() != sequence && reader.seek(sequence).is_err() {
            return false;
        }
        self.read_past(sequence, reader);
        true
    }

    fn read_past(&mut self, sequence: u64, reader: Reader) {
        let Some(past) = &mut self.past else { return };
        past.reader = Some(reader);
        (past.waits_since, past.asks_again_at, past.is_final) = (None, None, false);
        past.told.go_over();
        if self.doubt != Doubt::Past {
            past.wait = std::mem::replace(&mut self.wait, WAIT);
        }
        (self.behind, self.doubt, self.is_checked, self.came_close) = (None, Doubt::Past, true, false);
        self.reader.jump(Place::nowhere(sequence));
        self.note_passed();
    }

    /// Returns to the ring. The caller then sets the place of the ring's reader.
    pub(super) fn leave_past(&mut self) {
        if self.doubt != Doubt::Past {
            return;
        }
        self.doubt = Doubt::None;
        self.is_checked = self.must_check();
        if let Some(past) = &mut self.past {
            past.reader = None;
            self.wait = past.wait;
        }
    }

    /// Polls the journal, or returns to the ring. Copies a message to `out`, or to this subscriber's own buffer.
    #[cold]
    #[inline(never)]
    pub(super) fn poll_past(&mut self, mut out: Option<&mut [u8]>) -> Result<Option<Outcome>, RecvError> {
        let mut left_out = 0;
        let error = loop {
            if left_out >= MOST_LEFT_OUT {
                self.stopped_early = true;
                return Ok(None);
            }
            let is_time = self.past_reader().is_none_or(Reader::is_between_frames);
            if is_time && let Some(live) = self.try_live(true)? {
                return Ok(Some(live));
            }
            if self.asks_later() {
                return self.wait_for_past();
            }
            let batch_ring = self.past.as_ref().and_then(|past| past.batch_ring);
            let Some(reader) = self.past.as_mut().and_then(|past| past.reader.as_mut()) else {
                return self.give_up_past();
            };
            let due = self.reader.place().sequence;
            if reader.due() > due {
                // Retention removed the messages between the sequence due and the journal's next one.
                let (missed, resumed_at) = (reader.due() - due, reader.due());
                return self.lose_to_retention(missed, resumed_at);
            }
            match reader.next() {
                Ok(Some(Entry::Message(message))) => {
                    let copied = copied(&message);
                    // A message that the caller did not ask for needs no room.
                    if self.tags.as_ref().is_some_and(|tags| !tags.contains(copied.tag)) {
                        self.take_message(copied);
                        left_out += record_bytes(copied.length as u64);
                        continue;
                    }
                    let is_copied = copy_out(message.payload, out.as_deref_mut(), &mut self.buffer);
                    let ring = reader.header().map(|file| file.ring.uuid);
                    let is_of_next_batch = batch_ring.is_some() && batch_ring != ring;
                    if is_of_next_batch || is_copied.is_err() {
                        reader.unread();
                        self.stopped_early |= is_of_next_batch;
                        return is_copied.map(|()| None);
                    }
                    self.take_message(copied);
                    return Ok(Some(Outcome::Message(copied)));
                }
                Ok(Some(Entry::Lost(loss))) => return self.take_loss(loss, due),
                Ok(Some(Entry::Control { control, .. })) => {
                    if let Some(told) = self.take_control(control)? {
                        return Ok(Some(told));
                    }
                    left_out += GRANULE;
                }
                Ok(None) => match self.at_the_end_of_the_past()? {
                    Some(told) => return Ok(told),
                    None => continue,
                },
                Err(e) => break e,
            }
        };
        if self.past.as_mut().is_some_and(|past| past.leaves_open(&error)) {
            return self.ask_again();
        }
        if error.is_passing() && self.may_wait_for_past() { Ok(None) } else { self.give_up_past() }
    }

    /// The header of the journal file that contained the last event; `None` if the event came from the ring.
    pub(crate) fn in_past(&self) -> Option<&FileHeader> {
        self.in_past_reader()?.header()
    }

    /// The reader of the journal, if the last event came from it.
    pub(super) fn in_past_reader(&self) -> Option<&Reader> {
        if self.doubt == Doubt::Past { self.past_reader() } else { None }
    }

    pub(super) fn past_reader(&self) -> Option<&Reader> {
        self.past.as_ref()?.reader.as_ref()
    }

    fn take_message(&mut self, copied: Copied) {
        self.reader.jump(Place::nowhere(copied.sequence + 1));
        self.note_progress();
        self.count(|page, place| page.received(1, place));
    }

    fn take_loss(&mut self, Loss { from, to, cause }: Loss, due: u64) -> Result<Option<Outcome>, RecvError> {
        let resumed_at = to + 1;
        if self.past_reader().is_some_and(|reader| reader.was_trimmed_to(resumed_at)) {
            return self.lose_to_retention(resumed_at - due, resumed_at);
        }
        self.reader.jump(Place::nowhere(to + 1));
        self.note_progress();
        // Most sequences of a reserve were never published, and it is unknown which of them were. So none of them counts as missed.
        let missed = if cause == Cause::Reserve { 0 } else { to - from + 1 };
        self.count(|page, place| page.missed(missed, place));
        Ok(Some(Outcome::Other(Event::Lost { from, to, cause })))
    }

    fn take_control(&mut self, control: JournalControl) -> Result<Option<Outcome>, RecvError> {
        let JournalControl::Ring(control) = control else { return Ok(None) };
        let due = self.reader.place().sequence;
        self.reader.jump(Place::nowhere(control.next_sequence(due)));
        self.note_progress();
        self.tell_rare(Poll::Control(control), 0)
    }

    fn note_progress(&mut self) {
        if let Some(past) = &mut self.past {
            (past.waits_since, past.asks_again_at, past.is_final) = (None, None, false);
            past.failed_since = None;
        }
    }

    /// Remembers a control record that is about to be reported. Returns false if the record was already reported at this sequence. This can
    /// happen, because both the ring and the journal have the record.
    pub(super) fn note_told(&mut self, control: ControlRecord) -> bool {
        let due = self.reader.place().sequence;
        self.past.as_mut().is_none_or(|past| past.told.note(due, control))
    }

    /// Returns to the ring if the ring has the next sequence. If `with_room` is true, returns only if the reader then has some room before
    /// the publisher can lap it again.
    pub(super) fn try_live(&mut self, with_room: bool) -> Result<Option<Outcome>, RecvError> {
        let due = self.reader.place().sequence;
        match self.seek_ahead(due) {
            Ok(true) => {
                let place = self.reader.place();
                return Ok(self.go_on_in_ring(due, place));
            }
            Ok(false) => {}
            // The sequence belongs to a later segment, to which the reader could not move. So the end of the present segment is not the
            // place of the sequence.
            Err(_) if fault!("the_end_of_a_segment_is_live") => {}
            Err(_) => return Ok(None),
        }
        let Ok(place) = self.reader.locator().seek(due) else { return Ok(None) };
        let enough = if with_room { self.header().geometry.capacity / 4 } else { 0 };
        // A gap in the ring can cover the sequence. Then the next record is the gap, which begins at an earlier sequence.
        if !self.is_of_this_segment(due) || place.sequence != due || self.reader.spare(place) < enough {
            return Ok(None);
        }
        Ok(self.go_on_in_ring(due, place))
    }

    /// Whether a message belongs to the current segment. A message that is not valid can have the same sequence as a valid message in a
    /// later segment. The sequence at which a segment ends does not belong to that segment, because the segment never gets a valid message
    /// with this sequence.
    fn is_of_this_segment(&self, sequence: u64) -> bool {
        match self.verdict_on_read() {
            Verdict::Open => true,
            Verdict::Closing => false,
            Verdict::Cut { below, .. } => {
                sequence < below || sequence == below && fault!("the_end_of_a_segment_is_live")
            }
        }
    }

    fn go_live(&mut self) -> Outcome {
        self.leave_past();
        if let Some(past) = &mut self.past {
            past.told.go_over();
        }
        (self.doubt, self.behind) = (self.doubt_after_jump(), None);
        self.burst_mark = (self.next_sequence(), 0);
        self.note_passed();
        Outcome::Other(Event::Live { sequence: self.next_sequence() })
    }

    /// Called at the present end of the journal. The inner `None` means that there is nothing to read. The outer `None` means that the
    /// caller must poll the journal again.
    fn at_the_end_of_the_past(&mut self) -> Result<Option<Option<Outcome>>, RecvError> {
        if let Some(live) = self.try_live(false)? {
            return Ok(Some(Some(live)));
        }
        if self.is_restarted() {
            self.leave_past();
            return Ok(Some(self.go_on()?));
        }
        let due = self.reader.place().sequence;
        let ahead = self.find_ahead(due);
        match ahead.unwrap_or_else(|| self.reader.locator().seek(due)) {
            // The message has arrived, or a gap of the ring covers the sequence. In the second case, the gap begins at an earlier sequence.
            Ok(place) if place.sequence == due || ahead.is_some() => return Ok(Some(None)),
            Ok(place) => return Ok(Some(self.go_on_in_a_gap(due, place))),
            Err(LocateError::NotYet { .. }) => return Ok(Some(None)),
            Err(LocateError::Corrupt(corrupt)) => return Err(corrupt.into()),
            Err(_) => {}
        }
        let Some(past) = &mut self.past else { return Ok(Some(None)) };
        if !past.reader.as_ref().is_some_and(Reader::is_recording) {
            // The recorder might have written its last frames just before it ended, so the journal is read once more.
            if !past.is_final {
                past.is_final = true;
                past.reader.iter_mut().for_each(Reader::look_now);
                return Ok(None);
            }
            return self.give_up_past().map(Some);
        }
        past.is_final = false;
        self.wait_for_past().map(Some)
    }

    /// Whether the channel restarts in its next segment, and that segment has arrived.
    fn is_restarted(&mut self) -> bool {
        let is_next = |hosted: &mut Box<Hosted>| {
            hosted.look_ahead() && hosted.may_go_on() && hosted.is_restarted_next()
        };
        self.hosted.as_mut().is_some_and(is_next)
    }

    /// Continues in the ring at `place`, where the ring has the next sequence. Either the message itself is there, or a gap that includes
    /// its sequence.
    fn go_on_in_ring(&mut self, due: u64, place: Place) -> Option<Outcome> {
        if place.sequence != due {
            return self.go_on_in_a_gap(due, place);
        }
        // There can be records to report before the message: another epoch, or a session.
        let behind = if fault!("records_at_the_seam_are_passed_over") {
            None
        } else {
            self.reader.locator().behind(due)
        };
        let place = behind.unwrap_or(place);
        if fault!("live_is_one_too_late")
            && let Ok(next) = self.reader.locator().seek(due + 1)
        {
            self.reader.jump(next);
            return Some(self.go_live());
        }
        self.reader.jump(place);
        Some(self.go_live())
    }

    /// Called if a gap in the ring includes the next sequence. Continues after the gap, and reports the remaining sequences of the gap as
    /// missing.
    fn go_on_in_a_gap(&mut self, due: u64, place: Place) -> Option<Outcome> {
        self.reader.jump(place);
        let Poll::Control(ControlRecord::Gap { to, .. }) = self.reader.poll(self.buffer.payload_mut()) else {
            self.reader.jump(Place::nowhere(due));
            return None;
        };
        let behind = self.reader.place();
        let _ = self.go_live();
        self.reader.jump(behind);
        self.count(|page, place| page.missed(to - due + 1, place));
        Some(Outcome::Other(Event::Gap { from: due, to }))
    }

    /// Called if the reader cannot continue in the journal. Messages that the ring does not have are lost to this reader.
    fn give_up_past(&mut self) -> Result<Option<Outcome>, RecvError> {
        let due = self.reader.place().sequence;
        match self.find_ahead(due) {
            None => {}
            // The next segments have the message, and the next poll finds it.
            Some(Ok(_)) => return self.try_live(false),
            Some(Err(LocateError::TooOld { oldest, .. })) => return Ok(self.skip_ahead(due, oldest)),
            Some(Err(LocateError::Corrupt(corrupt))) => return Err(corrupt.into()),
            Some(Err(_)) => return Ok(None),
        }
        if self.is_restarted() {
            self.leave_past();
            return self.go_on();
        }
        if !self.is_of_this_segment(due) {
            // The next segment is about to arrive, and a later poll continues in it.
            return Ok(None);
        }
        self.leave_past();
        if let Some(past) = &mut self.past {
            past.rest_briefly();
        }
        match self.reader.locator().seek(due) {
            Ok(place) => match self.go_on_in_ring(due, place) {
                None => self.skip_in_ring(),
                told => Ok(told),
            },
            Err(LocateError::Corrupt(corrupt)) => Err(corrupt.into()),
            Err(_) => self.skip_in_ring(),
        }
    }

    /// Finds the place of a message in the later segments of the channel. Returns `None` if the message belongs to the segment that this
    /// reader reads now.
    fn find_ahead(&mut self, sequence: u64) -> Option<Result<Place, LocateError>> {
        let found = self.hosted.as_mut()?.find_ahead(sequence)?;
        Some(found.map(|(_, place)| place))
    }

    /// Continues at message `oldest` in a later segment. This reader expected message `due`, which is older and is lost. Returns `None` if
    /// the publisher has overwritten `oldest` meanwhile. Then the next poll tries again.
    fn skip_ahead(&mut self, due: u64, oldest: u64) -> Option<Outcome> {
        if !matches!(self.seek_ahead(oldest), Ok(true)) {
            return None;
        }
        if let Some(past) = &mut self.past {
            past.rest();
        }
        let resumed_at = self.next_sequence();
        (self.doubt, self.behind) = (self.doubt_after_jump(), None);
        let missed = resumed_at.saturating_sub(due);
        Some(self.tell_loss(missed, resumed_at))
    }

    /// Called if the next sequence is older than everything in the journal.
    fn lose_to_retention(&mut self, missed: u64, resumed_at: u64) -> Result<Option<Outcome>, RecvError> {
        // The ring can have older messages than the journal.
        let due = self.reader.place().sequence;
        let sought = self.find_ahead(due).unwrap_or_else(|| self.reader.locator().seek(due));
        match sought {
            Err(LocateError::TooOld { oldest, .. }) if oldest > resumed_at => {}
            Err(LocateError::NotYet { .. }) => {}
            Ok(_) => match self.try_live(false)? {
                None => return self.give_up_past(),
                live => return Ok(live),
            },
            Err(_) => return self.give_up_past(),
        }
        self.reader.jump(Place::nowhere(resumed_at));
        Ok(Some(self.tell_loss(missed, resumed_at)))
    }

    /// Reads ahead in the journal on a thread that can block, so that no other task waits for the disk.
    #[cfg(feature = "tokio")]
    pub(super) async fn read_ahead_async(&mut self) {
        if self.doubt != Doubt::Past {
            return;
        }
        if let Some(ahead) = self.past_reader().and_then(Reader::read_ahead) {
            // The task only fills the kernel's cache, so a caller that drops this future loses nothing.
            let _ = tokio::task::spawn_blocking(ahead).await;
        }
    }
}

/// Copies a payload to `out`, or to the subscriber's own buffer.
fn copy_out(payload: &[u8], out: Option<&mut [u8]>, own: &mut Buffer) -> Result<(), RecvError> {
    let needed = payload.len();
    let to = match out {
        Some(out) => out,
        None => {
            own.make_room(needed);
            own.payload_mut()
        }
    };
    let available = to.len();
    let to = to.get_mut(..needed).ok_or(RecvError::TooSmall { needed, available })?;
    to.copy_from_slice(payload);
    Ok(())
}

fn copied(message: &Message<'_>) -> Copied {
    let Message { payload, sequence, tag, key, time, .. } = *message;
    Copied { length: payload.len(), sequence, tag, key, time }
}
