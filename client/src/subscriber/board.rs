//! The board of a subscriber. A subscriber takes the last message of each key from the board when it begins, or when it cannot keep up.
//!
//! ```text
//!            begun with the board                     lapped, or far behind, and conflating
//!    OPEN  ----------------------->  BOARD  <-------------------------------------------------  RING
//!                                      |                                                         ^
//!                                      +-- every listed message was handed out: Live ------------+
//! ```
//! In the state BOARD, the subscriber's reader of the ring stands at a position that no ring has. Each poll of the ring then finds no
//! message, and leads to the code for [`Doubt::Board`] in this module. So the code for live messages needs no further check.
//! `shmcast_layout::board` has the proof that no message is missing or comes twice.

use super::ledger::Ledger;
use super::{Doubt, Outcome, Subscriber};
use crate::error::ChannelError;
use crate::message::{Event, Lapped, RecvError};
use shmcast_layout::board::{JoinError, Snapshot, View};
use shmcast_layout::layout::charter::Verdict;
use shmcast_layout::layout::header::State;
use shmcast_layout::ring::locate::Place;
use shmcast_layout::ring::reader::{Copied, Poll, Reader};
use shmcast_layout::segment::Segment;
use std::time::{Duration, Instant};

/// The time for which a starting reader waits for the segment in which the channel continues.
const PATIENCE: Duration = Duration::from_secs(5);

/// The largest lag of a conflating reader, which can skip old messages of a key. With a larger lag, the reader gets the newest messages
/// from the board instead of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    /// The largest lag is half of the ring.
    Half,
    Bytes(u64),
}

/// A subscriber's copy of the board. It also counts which messages of the board the subscriber has returned.
#[derive(Debug)]
pub(super) struct Joining {
    snapshot: Snapshot,
    conflation: Option<Conflation>,
    step: Step,
    /// The number of listed messages. `next` is the number of listed messages that were returned.
    listed: usize,
    next: usize,
    /// Number of missed messages that no message of the board replaces.
    missed: u64,
    /// The place in the ring from which the reader continues.
    place: Place,
}

#[derive(Debug)]
struct Conflation {
    behind: Behind,
    ledger: Ledger,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The reader fell too far behind. At the next call for an event it reads the board.
    Due,
    /// The reader gets removals of keys that the board has forgotten.
    Forgotten,
    /// The reader gets the listed messages.
    Messages,
}

impl Joining {
    /// Allocates all memory for reading the board. Returns `None` if the segment has no board.
    pub(super) fn new(segment: &Segment, behind: Option<Behind>) -> Option<Box<Self>> {
        let snapshot = Snapshot::new(segment.board()?);
        let conflation = behind.map(|behind| Conflation { behind, ledger: Ledger::for_board(&snapshot) });
        let place = Place::nowhere(1);
        Some(Box::new(Self {
            snapshot,
            conflation,
            step: Step::Messages,
            listed: 0,
            next: 0,
            missed: 0,
            place,
        }))
    }

    /// Forgets which messages the reader got, because sequences begin at 1 again.
    pub(super) fn forget(&mut self) {
        if let Some(conflation) = &mut self.conflation {
            conflation.ledger.forget();
        }
    }

    /// Makes a copy of the board for the segment in which the channel continues. If the keys are the same bytes of the payload, takes over
    /// the counts of the messages that the reader got, because the new board continues the counts of the old one.
    fn followed_to(self: Box<Self>, segment: &Segment) -> Option<Box<Self>> {
        let behind = self.conflation.as_ref().map(|conflation| conflation.behind);
        let mut now = Self::new(segment, behind)?;
        if let (Some(conflation), Some(old)) = (&mut now.conflation, &self.conflation) {
            let was = self.snapshot.view().geometry().spec;
            conflation.ledger = Ledger::after_move(&now.snapshot);
            if was.key() == now.snapshot.view().geometry().spec.key() {
                conflation.ledger.take_over(&old.ledger, was.keys, now.snapshot.view());
            }
        }
        Some(now)
    }
}

impl Subscriber {
    /// Whether the next event comes from the journal or the board, and not from the ring.
    #[inline(always)]
    pub(super) fn is_elsewhere(&self) -> bool {
        matches!(self.doubt, Doubt::Past | Doubt::Board)
    }

    pub(super) fn poll_elsewhere(&mut self, out: Option<&mut [u8]>) -> Result<Option<Outcome>, RecvError> {
        if self.doubt == Doubt::Board { self.poll_board(out) } else { self.poll_past(out) }
    }

    pub(super) fn is_conflating(&self) -> bool {
        self.joining.as_ref().is_some_and(|joining| joining.conflation.is_some())
    }

    /// The place in the ring from which this subscriber continues after the board.
    pub(super) fn place_after_board(&self) -> Option<Place> {
        self.joining.as_ref().map(|joining| joining.place)
    }

    /// Begins with the board. If `is_told`, the subscriber will return the board's messages. Otherwise the subscriber only takes the counts
    /// of these messages.
    pub(super) fn begin_with_board(&mut self, is_told: bool) -> Result<(), ChannelError> {
        let name = self.header().channel.clone();
        let start = Instant::now();
        loop {
            let Some(joining) = &mut self.joining else { return Err(ChannelError::NoBoard { name }) };
            let joined = joining.snapshot.join(&mut self.reader, self.buffer.payload_mut());
            let verdict = self.verdict_on_read();
            let joined = match (joined, verdict) {
                (Ok(joined), Verdict::Open) => joined,
                (Err(source), Verdict::Open) => return Err(ChannelError::Join { name, source }),
                // Without the verdict `Open`, the copied messages can be invalid. The channel continues in the next segment, and this
                // reader follows it there if the segment arrives in time.
                _ if start.elapsed() >= PATIENCE => {
                    return Err(ChannelError::Join { name, source: JoinError::TooFast });
                }
                _ => {
                    if self.hosted.as_mut().is_some_and(|hosted| hosted.look_ahead() && hosted.may_go_on()) {
                        let _ = self.go_on();
                    } else {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    continue;
                }
            };
            self.epoch = self.epoch.max(joined.epoch);
            (self.behind, self.burst_mark) = (None, (joined.place.sequence, 0));
            let Some(joining) = &mut self.joining else { continue };
            joining.place = joined.place;
            (joining.listed, joining.missed) = if is_told { joining.snapshot.list(0, true) } else { (0, 0) };
            if let Some(conflation) = &mut joining.conflation {
                conflation.ledger.take_from(&joining.snapshot);
            }
            if is_told {
                self.hand_out_from(Step::Messages);
            } else {
                self.doubt = self.doubt_after_jump();
            }
            self.note_passed();
            return Ok(());
        }
    }

    /// A view of the channel's board, if its present segment has one.
    pub(crate) fn board_view(&self) -> Option<View> {
        self.segment.board()
    }

    /// Number of times that the channel has continued in another segment since this subscriber was opened.
    pub(crate) fn moves_made(&self) -> u64 {
        self.moves
    }

    /// Continues in the next segment if the channel has moved there. Fails if the channel's files were removed or moved, which is checked
    /// once a second. This function is for a caller that receives no messages.
    pub(crate) fn follow_without_receiving(&mut self) -> Result<(), RecvError> {
        self.check_process()?;
        while self.hosted.as_mut().is_some_and(|hosted| hosted.look_ahead() && hosted.may_go_on()) {
            self.go_on()?;
        }
        let is_over = matches!(self.reader.state(), Some((_, State::Superseded)));
        if is_over && self.hosted.is_none() {
            return Err(RecvError::Superseded);
        }
        self.look_for_name().map(|_| ())
    }

    /// The daemon's verdict on everything that the caller read before this call.
    pub(crate) fn verdict_now(&self) -> Verdict {
        self.verdict_on_read()
    }

    /// Merges the caller's copy of the board with the ring. While a channel moves to another segment, the copy can contain messages that
    /// are not valid: those of a publisher that was cut off. So the caller must check [`verdict_now`](Self::verdict_now) afterwards.
    pub(crate) fn join_into(&mut self, snapshot: &mut Snapshot) -> Result<(), RecvError> {
        snapshot.join(&mut self.reader, self.buffer.payload_mut())?;
        Ok(())
    }

    /// A reader of the ring at message `sequence`; `None` if this message was overwritten or is not published yet.
    pub(crate) fn reader_at(&self, sequence: u64) -> Option<Reader> {
        Some(self.segment.reader(self.reader.locator().seek(sequence).ok()?))
    }

    /// This subscriber's own payload buffer.
    pub(crate) fn own_payload(&self) -> &[u8] {
        self.buffer.payload()
    }

    /// This subscriber's own payload buffer, to be written.
    pub(crate) fn own_payload_mut(&mut self) -> &mut [u8] {
        self.buffer.payload_mut()
    }

    /// Continues with the board of the segment in which the channel continues.
    pub(super) fn follow_board(&mut self, segment: &Segment) {
        let Some(joining) = self.joining.take() else { return };
        self.joining = joining.followed_to(segment);
    }

    /// Makes the following events come from the board.
    fn hand_out_from(&mut self, step: Step) {
        let Some(joining) = &mut self.joining else { return };
        (joining.step, joining.next) = (step, 0);
        (self.doubt, self.is_checked, self.came_close) = (Doubt::Board, true, false);
        self.reader.jump(Place::nowhere(joining.place.sequence));
    }

    /// Drops the board's messages that were not returned yet, because the caller moves the reader.
    pub(super) fn leave_board(&mut self) {
        if self.doubt == Doubt::Board {
            (self.doubt, self.is_checked) = (Doubt::None, self.must_check());
        }
    }

    /// Returns the next event from the board. Copies a message to `out`, or to this subscriber's own buffer.
    #[cold]
    #[inline(never)]
    fn poll_board(&mut self, out: Option<&mut [u8]>) -> Result<Option<Outcome>, RecvError> {
        if self.joining.as_ref().is_some_and(|joining| joining.step == Step::Due) {
            self.conflate_or_go_on();
            if self.doubt != Doubt::Board {
                return Ok(None);
            }
        }
        match out {
            Some(out) => self.hand_out(out),
            None => {
                let mut buffer = std::mem::take(&mut self.buffer);
                let handed = self.hand_out(buffer.payload_mut());
                self.buffer = buffer;
                handed
            }
        }
    }

    fn hand_out(&mut self, out: &mut [u8]) -> Result<Option<Outcome>, RecvError> {
        let Some(joining) = &mut self.joining else { return Ok(None) };
        let Joining { snapshot, conflation, step, next, listed, place, .. } = &mut **joining;
        if let (Step::Forgotten, Some(Conflation { ledger, .. })) = (*step, conflation) {
            if let Some(copied) = ledger.next_forgotten(snapshot, out)? {
                return Ok(Some(Outcome::Board(copied, 0)));
            }
            ledger.take_from(snapshot);
            *step = Step::Messages;
        }
        let Some(message) = snapshot.listed(*next).filter(|_| *next < *listed) else {
            return Ok(Some(self.leave_for_the_ring()));
        };
        let copied = message.message;
        let (needed, available) = (copied.length, out.len());
        let Some(to) = out.get_mut(..needed) else {
            return Err(RecvError::TooSmall { needed, available });
        };
        to.copy_from_slice(snapshot.value(&message));
        let left_out = snapshot.left_out(*next);
        *next += 1;
        if let Some(page) = &self.page {
            page.page.received(1, *place);
        }
        Ok(Some(Outcome::Board(copied, left_out)))
    }

    /// Called after all messages of the board were returned. Returns `Lapped` for missed messages that the board did not replace, and
    /// `Live` when the reader is in the ring again.
    fn leave_for_the_ring(&mut self) -> Outcome {
        let place = self.joining.as_ref().map_or(self.reader.place(), |joining| joining.place);
        let sequence = place.sequence;
        if let Some(joining) = &mut self.joining
            && joining.missed > 0
        {
            let missed = std::mem::take(&mut joining.missed);
            self.count(|page, _| page.lapped(missed, place));
            return Outcome::Other(Event::Lapped(Lapped { missed, resumed_at: sequence }));
        }
        self.leave_board();
        self.reader.jump(place);
        (self.doubt, self.behind) = (self.doubt_after_jump(), None);
        self.burst_mark = (sequence, 0);
        Outcome::Other(Event::Live { sequence })
    }

    /// Counts a received message. If the reader conflates (can skip old messages of a key) and is too far behind, its next event comes from
    /// the board.
    pub(super) fn track(&mut self, copied: Copied, payload: &[u8]) {
        let Some(joining) = &mut self.joining else { return };
        let Some(conflation) = &mut joining.conflation else { return };
        let has_room = conflation.ledger.note(joining.snapshot.view(), copied, payload);
        let is_far = match conflation.behind {
            Behind::Half => self.reader.is_far_behind(),
            Behind::Bytes(bytes) => self.reader.bytes_behind() > bytes,
        };
        if is_far || !has_room {
            joining.place = self.reader.place();
            self.hand_out_from(Step::Due);
        }
    }

    /// Does the same as [`track`](Self::track) for a message in this subscriber's own buffer.
    pub(super) fn track_own(&mut self, copied: Copied) {
        let buffer = std::mem::take(&mut self.buffer);
        self.track(copied, &buffer.payload()[..copied.length]);
        self.buffer = buffer;
    }

    /// Returns the message in `poll`, if there is one that the caller must pass to [`track`](Self::track).
    #[inline(always)]
    pub(super) fn tracks(&self, poll: &Poll) -> Option<Copied> {
        match poll {
            Poll::Message(copied) if self.is_conflating() => Some(*copied),
            _ => None,
        }
    }

    /// Notes that the reader has received a loss of messages that the board does not replace.
    pub(super) fn track_loss(&mut self) {
        let conflation = self.joining.as_mut().and_then(|joining| joining.conflation.as_mut());
        if let Some(conflation) = conflation {
            conflation.ledger.note_loss();
        }
    }

    /// Lets a reader that was far behind read the board. If that fails, the reader continues at its place in the ring.
    fn conflate_or_go_on(&mut self) {
        let Some(place) = self.joining.as_ref().map(|joining| joining.place) else { return };
        self.leave_board();
        if !self.conflate(place.sequence) {
            self.reader.jump(place);
            self.doubt = self.doubt_after_jump();
        }
    }

    /// Reads the board. `due` is the reader's next sequence. The reader will get the newest message of each key that has a message with the
    /// sequence `due` or a later one. Returns false if the board cannot be read. The reader's place is then undefined.
    pub(super) fn conflate(&mut self, due: u64) -> bool {
        let verdict = self.verdict_on_read();
        let Some(joining) = &mut self.joining else { return false };
        let Joining { snapshot, conflation: Some(Conflation { ledger, .. }), .. } = &mut **joining else {
            return false;
        };
        let Ok(joined) = snapshot.join(&mut self.reader, self.buffer.payload_mut()) else { return false };
        let place = joined.place;
        ledger.seek_forgotten(snapshot.view(), place.sequence);
        // The copied messages must have been valid before and after the copy, as each message of the ring must be.
        let is_valid = verdict == Verdict::Open
            && self.hosted.as_ref().is_none_or(|hosted| hosted.verdict_on_read() == Verdict::Open);
        if place.sequence < due || !is_valid {
            return false;
        }
        let bridged = snapshot.list_since(due, |listed| ledger.given(listed));
        (joining.listed, joining.place) = (bridged.listed, place);
        joining.missed = (place.sequence - due).saturating_sub(bridged.messages);
        self.behind = None;
        self.epoch = self.epoch.max(joined.epoch);
        let left_out = bridged.messages - bridged.listed as u64;
        self.count(|page, _| page.conflated(left_out, place));
        self.hand_out_from(Step::Forgotten);
        self.note_passed();
        true
    }
}
