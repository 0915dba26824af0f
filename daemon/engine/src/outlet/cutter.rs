//! Cuts the ring's events into blocks.

use shmcast::journal::Cause;
use shmcast::{Clock, Event, Message, RecvError, Subscriber};
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::Meta;
use shmcast_bridge::times::Moment;
use std::collections::VecDeque;
use std::ops::ControlFlow;

use crate::proto::block::{Cut, Packing, max_whole_bytes};

/// An event of the ring that the sender's thread must handle; `None` if there is nothing to handle.
#[derive(Debug)]
pub(super) enum RingEvent {
    None,
    End,
    Restarted,
    Session(Session),
    /// The publisher has overtaken the bridge, and the bridge continues at this sequence.
    Lapped(u64),
    Error(RecvError),
}

/// Whether the sender has read the channel's end, and whether it has made the block that reports this end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The last event was a message.
    None,
    /// The last event was the end of a publisher. Another publisher might have followed, so this is not always the channel's end.
    Read,
    /// The last event was the channel's end, and the block that reports this end to the log was made.
    Said,
}

/// A message that is sent in parts.
#[derive(Debug)]
struct Large {
    sequence: u64,
    bytes: Vec<u8>,
    meta: Meta,
    offset: usize,
}

/// Packs the ring's events into blocks, and keeps the blocks until they can be appended.
#[derive(Debug)]
pub(super) struct Cutter {
    block_bytes: usize,
    max_whole: usize,
    packing: Packing,
    /// Blocks that cannot be appended yet.
    cuts: VecDeque<Cut>,
    large: Option<Large>,
    /// The next sequence that the cutter expects from the ring.
    due: u64,
    /// All lost sequences below this sequence have been counted.
    counted_to: u64,
    /// The ring's clock and the wall clock, read at the same moment.
    moment: Option<Moment>,
    /// The publish time of the message that is being taken, if the message comes from the journal.
    past_ns: Option<u64>,
    pub(super) messages: u64,
    pub(super) messages_missed: u64,
    pub(super) gap_messages: u64,
}

impl Cutter {
    pub(super) fn new(block_bytes: usize) -> Cutter {
        Cutter {
            block_bytes,
            max_whole: max_whole_bytes(block_bytes),
            packing: Packing::new(block_bytes),
            cuts: VecDeque::new(),
            large: None,
            due: 0,
            counted_to: 0,
            moment: None,
            past_ns: None,
            messages: 0,
            messages_missed: 0,
            gap_messages: 0,
        }
    }

    pub(super) fn due(&self) -> u64 {
        self.due
    }

    pub(super) fn set_due(&mut self, due: u64) {
        self.due = due;
    }

    /// Reads the ring's clock and the wall clock again.
    pub(super) fn look_at_clocks(&mut self, clock: Option<Clock>) {
        self.moment = clock.map(Moment::now);
    }

    /// Notes the clock of the ring whose messages are taken next. The channel can have moved to another ring, with another clock.
    #[inline]
    pub(super) fn set_clock(&mut self, clock: Clock) {
        self.moment = Some(self.moment.map_or_else(|| Moment::now(clock), |moment| moment.on(clock)));
    }

    /// Takes up to `most` events from the journal. Stops early if [`take`](Self::take) returns `Break`. Returns the number of events, and
    /// the event that the thread must handle. Messages get the times in the journal, because the journal can have messages of an earlier
    /// boot.
    #[cold]
    pub(super) fn take_past(
        &mut self,
        subscriber: &mut Subscriber,
        most: usize,
    ) -> Result<(usize, RingEvent), RecvError> {
        let mut taken = 0;
        while taken < most
            && !subscriber.is_in_ring()
            && let Some((event, past_ns)) = subscriber.try_recv_dated()?
        {
            self.past_ns = past_ns;
            let flow = self.take(event);
            self.past_ns = None;
            taken += 1;
            if let ControlFlow::Break(news) = flow {
                return Ok((taken, news));
            }
        }
        Ok((taken, RingEvent::None))
    }

    /// Drops everything that has not been appended.
    pub(super) fn clear(&mut self) {
        self.packing.clear();
        self.cuts.clear();
        self.large = None;
    }

    /// The first sequence of the blocks that wait until they can be appended. Call this after [`close`](Self::close).
    pub(super) fn first(&self) -> u64 {
        let large = || self.large.as_ref().map(|large| large.sequence);
        self.cuts.front().map(|cut| cut.first).or_else(large).unwrap_or(self.due)
    }

    /// Drops the waiting blocks and the waiting large message that end before the sequence `first`, and keeps the others. Call this if the
    /// ring cannot be read again. If the first kept block or message begins after `first`, records the sequences from `first` up to its
    /// beginning as lost.
    pub(super) fn keep_from(&mut self, first: u64) {
        self.cuts.retain(|cut| cut.first >= first || cut.first + u64::from(cut.count) > first);
        self.large = self.large.take().filter(|large| large.sequence >= first);
        if let Some(large) = &mut self.large {
            large.offset = 0;
        }
        let (here, due) = (self.first(), self.due.max(first));
        let kept = std::mem::take(&mut self.cuts);
        self.due = first;
        self.messages_missed += here.saturating_sub(first);
        self.skip_to(here);
        self.cuts.extend(kept);
        self.due = due;
    }

    /// Whether blocks wait until they can be appended.
    pub(super) fn is_blocked(&self) -> bool {
        !self.cuts.is_empty() || self.large.is_some()
    }

    /// Whether anything has not been appended yet.
    pub(super) fn has_any(&self) -> bool {
        self.is_blocked() || !self.packing.is_empty()
    }

    /// Takes the buffer of a stored block, to reuse it.
    pub(super) fn give(&mut self, buffer: Vec<u8>) {
        self.packing.give(buffer);
    }

    /// Returns the next block to append.
    pub(super) fn next_cut(&mut self) -> Option<Cut> {
        if let Some(cut) = self.cuts.pop_front() {
            return Some(cut);
        }
        let large = self.large.as_mut()?;
        let cut = Cut::part(large.sequence, &large.bytes, large.meta, large.offset, self.block_bytes);
        large.offset += cut.part_bytes();
        if cut.count > 0 {
            self.large = None;
        }
        Some(cut)
    }

    /// Ends the block that is being filled.
    pub(super) fn close(&mut self) {
        self.cuts.extend(self.packing.cut());
    }

    #[inline]
    fn meta_of(&self, message: &Message<'_>) -> Meta {
        let in_ring_ns = || self.moment.as_ref().map_or(0, |moment| moment.wall_of(message.time));
        let time_ns = self.past_ns.unwrap_or_else(in_ring_ns);
        Meta { tag: message.tag, key: message.key, time_ns }
    }

    /// Handles an event of the ring. Call this only while no block waits to be appended.
    ///
    /// Returns `Continue` if the next event can be read immediately. Returns `Break` if blocks now wait, or if the thread must handle the
    /// event.
    #[inline(always)]
    pub(super) fn take(&mut self, event: Event<'_>) -> ControlFlow<RingEvent> {
        let news = match event {
            Event::Message(message) if self.add(&message) => return ControlFlow::Continue(()),
            Event::Message(message) => {
                self.take_other(&message);
                RingEvent::None
            }
            event => self.take_news(event),
        };
        match self.is_blocked() || !matches!(news, RingEvent::None) {
            true => ControlFlow::Break(news),
            false => ControlFlow::Continue(()),
        }
    }

    /// Adds a message to the current block. Returns false, and changes nothing, if the message is not the next one or does not fit. Both
    /// cases are rare.
    #[inline(always)]
    fn add(&mut self, message: &Message<'_>) -> bool {
        if message.sequence != self.due || message.payload.len() > self.max_whole {
            return false;
        }
        let fits = self.packing.push(message.sequence, message.payload, self.meta_of(message));
        self.due += u64::from(fits);
        self.messages += u64::from(fits);
        fits
    }

    #[cold]
    fn take_other(&mut self, message: &Message<'_>) {
        if message.sequence < self.due {
            return;
        }
        if message.sequence > self.due {
            self.messages_missed += self.not_counted(message.sequence);
            self.skip_to(message.sequence);
        }
        if self.add(message) {
            return;
        }
        self.close();
        if message.payload.len() > self.max_whole {
            let (bytes, meta) = (message.payload.to_vec(), self.meta_of(message));
            self.large = Some(Large { sequence: message.sequence, bytes, meta, offset: 0 });
            self.due = message.sequence + 1;
            self.messages += 1;
        } else {
            let fits = self.add(message);
            debug_assert!(fits, "a message of this size fits an empty block");
        }
    }

    #[cold]
    fn take_news(&mut self, event: Event<'_>) -> RingEvent {
        match event {
            Event::Lapped(lapped) => RingEvent::Lapped(lapped.resumed_at),
            // Sequences in a journal's reserve were never used, so they are no lost messages.
            Event::Gap { to, .. } | Event::Lost { to, cause: Cause::Reserve, .. } => {
                self.gap_messages += self.not_counted(to + 1);
                self.skip_to(to + 1);
                RingEvent::None
            }
            Event::Lost { to, .. } => {
                self.messages_missed += self.not_counted(to + 1);
                self.skip_to(to + 1);
                RingEvent::None
            }
            Event::End => {
                self.close();
                RingEvent::End
            }
            Event::NewSession { session } => {
                self.close();
                RingEvent::Session(Session::from_bytes(session))
            }
            Event::Restarted => RingEvent::Restarted,
            _ => RingEvent::None,
        }
    }

    /// Records that the sequences before `next` were overwritten.
    pub(super) fn lapse(&mut self, next: u64) {
        self.messages_missed += self.not_counted(next);
        self.skip_to(next);
    }

    /// Records that the channel ends here.
    pub(super) fn end(&mut self) {
        self.close();
        self.cuts.push_back(Cut::end(self.due));
    }

    /// Returns how many of the sequences `due..next` have not been counted yet, and notes that they are counted now. After a failed
    /// append, the cutter finds the same gap again, and must not count it twice.
    fn not_counted(&mut self, next: u64) -> u64 {
        let from = self.due.max(self.counted_to);
        self.counted_to = self.counted_to.max(next);
        next.saturating_sub(from)
    }

    /// Forgets up to which sequence losses were counted. Called when the channel continues in another ring, which has its own sequences.
    pub(super) fn begin(&mut self) {
        self.counted_to = 0;
    }

    /// Records that the sequences before `next` will never arrive.
    fn skip_to(&mut self, next: u64) {
        self.close();
        while self.due < next {
            let cut = Cut::gap(self.due, next - 1);
            self.due += u64::from(cut.count);
            self.cuts.push_back(cut);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::block::Kind;
    use shmcast::Lapped;

    #[test]
    fn a_loss_that_is_cut_again_and_again_is_counted_once() {
        let mut cutter = Cutter::new(1 << 10);
        for (resumed_at, missed) in [(50, 40), (50, 40), (70, 60), (60, 60)] {
            cutter.clear();
            cutter.set_due(10);
            let flow = cutter.take(Event::Lapped(Lapped { missed: resumed_at - 10, resumed_at }));
            assert!(matches!(flow, ControlFlow::Break(RingEvent::Lapped(next)) if next == resumed_at));
            cutter.lapse(resumed_at);
            assert!(cutter.is_blocked(), "a gap waits for a place");
            assert_eq!((cutter.messages_missed, cutter.due()), (missed, resumed_at));
            assert_eq!(cutter.next_cut(), Some(Cut::gap(10, resumed_at - 1)));
        }
        cutter.begin();
        cutter.set_due(1);
        assert!(cutter.take(Event::Gap { from: 1, to: 5 }).is_break());
        assert_eq!((cutter.gap_messages, cutter.messages_missed), (5, 60));
    }

    #[test]
    fn what_cannot_be_read_again_is_kept_from_the_logs_end_on() {
        for (from, kept, missed) in [
            (3, vec![(Kind::Gap, 3, 2), (Kind::Gap, 5, 4), (Kind::Gap, 9, 1)], 2),
            (5, vec![(Kind::Gap, 5, 4), (Kind::Gap, 9, 1)], 0),
            (7, vec![(Kind::Gap, 5, 4), (Kind::Gap, 9, 1)], 0),
            (9, vec![(Kind::Gap, 9, 1)], 0),
            (12, vec![], 0),
        ] {
            let mut cutter = Cutter::new(1 << 10);
            cutter.set_due(5);
            for (from, to) in [(5, 8), (9, 9)] {
                assert!(cutter.take(Event::Gap { from, to }).is_break());
            }
            assert_eq!(cutter.first(), 5);
            cutter.keep_from(from);
            let cuts: Vec<_> = std::iter::from_fn(|| cutter.next_cut()).collect();
            let found: Vec<_> = cuts.iter().map(|cut| (cut.kind, cut.first, cut.count)).collect();
            assert_eq!((found, cutter.messages_missed, cutter.due()), (kept, missed, from.max(10)));
        }
    }

    #[test]
    fn messages_fill_blocks_in_order_whatever_their_size() {
        let (mut cutter, bytes) = (Cutter::new(1 << 10), vec![7; 3_000]);
        let message = |sequence, size: usize| {
            Event::Message(Message {
                payload: &bytes[..size],
                sequence,
                tag: 0,
                key: false,
                time: 0,
                conflated: None,
            })
        };
        cutter.set_due(1);
        let mut blocks = Vec::new();
        for (sequence, size, waits) in [
            (1, 400, false),
            (1, 9, false), // came before
            (2, 400, false),
            (3, 400, true),   // does not fit, and begins another block
            (4, 3_000, true), // goes in parts
            (5, 0, false),
            (8, 0, true), // two are missing
        ] {
            assert_eq!(cutter.take(message(sequence, size)).is_break(), waits, "{sequence} of {size} B");
            blocks.extend(std::iter::from_fn(|| cutter.next_cut()));
        }
        cutter.close();
        blocks.extend(std::iter::from_fn(|| cutter.next_cut()));
        let found: Vec<_> = blocks.iter().map(|cut| (cut.kind, cut.first, cut.count)).collect();
        let (data, part, gap) = (Kind::Data, Kind::Fragment, Kind::Gap);
        let meant = [
            (data, 1, 2),
            (data, 3, 1),
            (part, 4, 0),
            (part, 4, 0),
            (part, 4, 0),
            (part, 4, 1),
            (data, 5, 1),
            (gap, 6, 2),
            (data, 8, 1),
        ];
        assert_eq!((found, cutter.messages, cutter.messages_missed), (meant.to_vec(), 6, 2));
    }
}
