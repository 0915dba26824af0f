//! Reads from the channel's journal the messages that the ring no longer has, and answers requests for them.
//!
//! A request waits in a short queue until the disk has read the request's messages. Then the server answers it like any other request. If
//! the queue is full, or the recorder has not written the messages yet, the server tells the receiver to ask again later. If the journal
//! does not have the messages, the server answers that they are gone.

use std::collections::VecDeque;

use super::shelf::{Fetched, Found, Shelf};
use super::{Held, Place};
use crate::counters;
use crate::proto::{MILLISECOND_NS, SECOND_NS};

/// The greatest number of requests that wait for the disk.
pub const MAX_WAITING: usize = 64;
/// The pause after a failed read of the journal, in nanoseconds.
const PAUSE_NS: u64 = 100 * MILLISECOND_NS;
/// If a journal cannot be read, the server assumes for this time that the journal still holds its messages. The unit is nanoseconds.
pub(crate) const PATIENCE_NS: u64 = 5 * SECOND_NS;

counters! {
    /// The counters of a server's journal.
    pub struct PastCounters {
        /// Requests that waited until the journal was read.
        waited: counter "repair_journal_waited_total",
        /// Requests for which the queue of the disk was full. Their receivers were told to ask later.
        queue_full: counter "repair_journal_queue_full_total",
        /// Requests for messages that the recorder had not written yet. Their receivers were told to ask later.
        not_yet: counter "repair_journal_not_yet_total",
        /// Blocks of messages read from the journal for retransmissions.
        blocks: counter "repair_journal_blocks_total",
        /// The number of times that the journal could not be read for retransmissions.
        errors: counter "repair_journal_errors_total",
        /// The number of times that there was no journal of this stream when one was needed.
        unusable: counter "repair_journal_unusable_total",
    }
}

impl PastCounters {
    /// Returns the sums of these counters and others.
    pub(crate) fn plus(&self, other: &PastCounters) -> PastCounters {
        PastCounters {
            waited: self.waited + other.waited,
            queue_full: self.queue_full + other.queue_full,
            not_yet: self.not_yet + other.not_yet,
            blocks: self.blocks + other.blocks,
            errors: self.errors + other.errors,
            unusable: self.unusable + other.unusable,
        }
    }
}

/// The requests for messages that the ring no longer has, and the blocks read from the journal for them. `Q` is a request.
#[derive(Debug)]
pub struct Past<Q> {
    shelf: Shelf,
    waiting: VecDeque<(u64, Q)>,
    /// The first sequence that was sent in the session. The journal might have older messages, which belong to no session that a receiver
    /// knows.
    floor: u64,
    /// Requests that wait for this sequence or a later one get the answer to ask again later.
    turned_away: Option<u64>,
    /// The time since which the journal cannot be read, in nanoseconds.
    failing_ns: Option<u64>,
    retry_ns: u64,
    counters: PastCounters,
}

impl<Q: PartialEq> Past<Q> {
    /// Makes a state in which no block was read. The session's first message is `floor`.
    pub(crate) fn new(floor: u64) -> Past<Q> {
        Past {
            shelf: Shelf::default(),
            waiting: VecDeque::with_capacity(MAX_WAITING),
            floor,
            turned_away: None,
            failing_ns: None,
            retry_ns: 0,
            counters: PastCounters::default(),
        }
    }

    /// Notes that another session has begun in the ring, with the message `floor`.
    pub(crate) fn set_floor(&mut self, floor: u64) {
        self.floor = floor;
    }

    /// If the ring no longer has the messages from `first` on, returns which of them the server holds. `ring` has the ring's oldest
    /// sequence, and the sequence after its newest one.
    pub(crate) fn held(&mut self, now_ns: u64, first: u64, ring: (u64, u64), request: &Q) -> Held {
        let (oldest, next) = ring;
        let of_ring = |oldest| Held { is_backed: true, ..Held::of_ring(oldest, next) };
        if first < self.floor {
            return of_ring(oldest.min(self.floor));
        }
        if self.is_given_up(now_ns) {
            return of_ring(oldest);
        }
        let place = match self.shelf.find(now_ns, first) {
            Found::Gone(behind) => return of_ring(behind.min(oldest)),
            Found::Here => Place::Shelf,
            Found::OnDisk => self.place_in_queue(now_ns, first, request),
        };
        Held { place, ..of_ring(first) }
    }

    fn place_in_queue(&mut self, now_ns: u64, first: u64, request: &Q) -> Place {
        // A request that already waits in the queue is answered when the disk has read its messages.
        if self.waiting.iter().any(|(waits_for, waits)| *waits_for == first && waits == request) {
            return Place::Busy;
        }
        if self.waiting.len() == MAX_WAITING || now_ns < self.retry_ns {
            self.counters.queue_full += 1;
            return Place::Busy;
        }
        Place::Disk
    }

    // Whether the journal could not be read for so long that its messages count as gone. The journal is still tried again now and then.
    fn is_given_up(&self, now_ns: u64) -> bool {
        let is_long = |since_ns| now_ns.saturating_sub(since_ns) >= PATIENCE_NS;
        self.failing_ns.is_some_and(is_long) && now_ns < self.retry_ns.saturating_add(SECOND_NS)
    }

    /// Puts a request into the queue, where the request waits until its messages have been read. If [`held`](Self::held) has just returned
    /// [`Place::Disk`], there is room in the queue.
    pub(crate) fn wait(&mut self, first: u64, request: Q) {
        if self.waiting.len() < MAX_WAITING {
            self.counters.waited += 1;
            self.waiting.push_back((first, request));
        }
    }

    /// Returns the sequence from which the disk must read now. Returns `None` if no request waits, or if the disk is busy.
    pub(crate) fn poll_fetch(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns < self.retry_ns {
            return None;
        }
        let (first, _) = self.waiting.front()?;
        self.shelf.fetch(*first)
    }

    /// Returns the sequence from which the disk must read ahead, after a receiver got the message `sequence`. `oldest` is the oldest
    /// sequence in the ring.
    pub(crate) fn poll_ahead(&mut self, now_ns: u64, sequence: u64, oldest: u64) -> Option<u64> {
        if now_ns < self.retry_ns { None } else { self.shelf.fetch_ahead(sequence, oldest) }
    }

    /// Takes the disk's answer.
    pub(crate) fn take(&mut self, now_ns: u64, fetched: Fetched) {
        match &fetched {
            Fetched::Block(_) => self.counters.blocks += 1,
            Fetched::NotYet(from) => self.turned_away = Some(*from),
            Fetched::End(_) => {}
            Fetched::Unusable => self.counters.unusable += 1,
            Fetched::Failed => {
                self.counters.errors += 1;
                self.failing_ns.get_or_insert(now_ns);
                (self.turned_away, self.retry_ns) = (Some(0), now_ns.saturating_add(PAUSE_NS));
            }
        }
        if !matches!(fetched, Fetched::Failed) {
            self.failing_ns = None;
        }
        self.shelf.take(now_ns, fetched);
    }

    /// Returns the next request that need not wait any longer. Either it can be answered, or its receiver is told to ask again later. After
    /// every [`take`](Self::take), call this until it returns `None`.
    pub(crate) fn poll_ready(&mut self, now_ns: u64) -> Option<Q> {
        let (turned_away, shelf) = (self.turned_away, &mut self.shelf);
        let mut is_ready = |first: u64| match shelf.find(now_ns, first) {
            Found::OnDisk => turned_away.is_some_and(|from| first >= from).then_some(true),
            Found::Here | Found::Gone(_) => Some(false),
        };
        let mut waiting = self.waiting.iter().enumerate();
        let ready = waiting.find_map(|(at, (first, _))| Some((at, is_ready(*first)?)));
        let Some((at, is_later)) = ready else {
            self.turned_away = None;
            return None;
        };
        self.counters.not_yet += u64::from(is_later && self.failing_ns.is_none());
        self.waiting.remove(at).map(|(_, request)| request)
    }

    /// Copies to `room` the bytes of a message on the shelf from `offset` on, as far as they fit. The shelf has the blocks that were read
    /// from the journal.
    pub(crate) fn read(&self, sequence: u64, offset: u32, room: &mut [u8]) -> Option<super::Piece> {
        let (data, meta) = self.shelf.get(sequence)?;
        Some(super::Piece::copy(data, offset, room, meta))
    }

    /// The counters so far.
    pub(crate) fn counters(&self) -> &PastCounters {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::super::shelf::Block;
    use super::*;

    const RING: (u64, u64) = (1_000, 2_000);

    fn block(first: u64, messages: u64) -> Fetched {
        let mut block = Block::new(first);
        for _ in 0..messages {
            block.push(b"message", Default::default());
        }
        Fetched::Block(block)
    }

    #[test]
    fn requests_wait_for_their_block_and_no_longer() {
        let mut past = Past::new(1);
        for first in [100, 110, 500] {
            assert_eq!(past.held(0, first, RING, &first).place, Place::Disk);
            past.wait(first, first);
        }
        assert_eq!(past.held(0, 110, RING, &110).place, Place::Busy, "it waits already");
        assert_eq!(past.held(0, 110, RING, &7).place, Place::Disk, "somebody else");
        assert_eq!((past.poll_fetch(0), past.poll_fetch(0)), (Some(100), None));
        past.take(0, block(100, 50));
        assert_eq!(
            [past.poll_ready(0), past.poll_ready(0), past.poll_ready(0)],
            [Some(100), Some(110), None]
        );
        assert_eq!(past.held(0, 110, RING, &110).place, Place::Shelf);
        assert_eq!(past.poll_fetch(0), Some(500));
        past.take(0, Fetched::NotYet(500));
        assert_eq!((past.poll_ready(0), past.poll_ready(0)), (Some(500), None));
        assert_eq!(past.held(0, 500, RING, &500).place, Place::Disk, "it may be written by now");
        assert_eq!((past.counters().waited, past.counters().not_yet), (3, 1));
    }

    #[test]
    fn the_queue_has_an_end_and_so_has_the_session() {
        let mut past = Past::new(100);
        for first in 100..100 + MAX_WAITING as u64 {
            past.wait(first, first);
        }
        assert_eq!(past.held(0, 700, RING, &700).place, Place::Busy);
        assert_eq!(past.counters().queue_full, 1);
        let held = past.held(0, 7, RING, &7);
        assert_eq!((held.place, held.oldest), (Place::Ring, 100), "what came before the session is gone");
    }

    #[test]
    fn what_lies_behind_the_journals_end_is_gone_for_a_second() {
        let mut past = Past::new(1);
        for first in [100, 300] {
            past.wait(first, first);
        }
        past.take(0, Fetched::End(200));
        assert_eq!((past.poll_ready(0), past.poll_ready(0)), (Some(300), None));
        assert_eq!(past.held(0, 300, RING, &300).oldest, RING.0, "it claims nothing of what the ring has");
        assert_eq!(past.held(2 * SECOND_NS, 300, RING, &300).place, Place::Disk);
    }

    #[test]
    fn a_journal_that_cannot_be_read_is_given_up_after_a_while_and_tried_again() {
        let mut past = Past::new(1);
        let mut gone = 0;
        for now_ns in (0..20 * SECOND_NS).step_by(10_000_000) {
            match past.held(now_ns, 100, RING, &100) {
                Held { place: Place::Disk, .. } => past.wait(100, 100),
                Held { place: Place::Busy, oldest, .. } => assert_eq!(oldest, 100, "the server holds it"),
                held => {
                    assert_eq!(held.oldest, 1_000);
                    assert!(now_ns >= PATIENCE_NS);
                    gone += 1;
                }
            }
            if past.poll_fetch(now_ns).is_some() {
                past.take(now_ns, Fetched::Failed);
            }
            while past.poll_ready(now_ns).is_some() {}
        }
        assert!(gone > 1_000 && past.counters().errors > 50, "{gone} {:?}", past.counters());
        // For an hour nobody sends a request, and the disk works again.
        let later_ns = 3_600 * SECOND_NS;
        assert_eq!(past.held(later_ns, 100, RING, &100).place, Place::Disk);
        past.wait(100, 100);
        assert_eq!(past.poll_fetch(later_ns), Some(100));
        past.take(later_ns, block(100, 50));
        assert_eq!(past.held(later_ns, 100, RING, &100).place, Place::Shelf);
    }
}
