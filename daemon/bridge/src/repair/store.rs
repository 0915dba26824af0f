//! The messages for retransmissions. They come from the ring, or from the channel's journal if the ring no longer has them.

use shmcast::{ChannelJournal, Subscriber};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::disk::Disk;
use super::ring::{Place as InRing, Ring};
use crate::BridgeError;
use crate::proto::native::ask::Entry;
use crate::proto::replay::{Held, PATIENCE_NS, Past, PastCounters, Piece, Place};
use crate::proto::session::Session;
use crate::proto::wire::REQUEST_BYTES;
use crate::times::Moment;

/// A request that waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// A plain request, as it was received.
    Plain { from: SocketAddr, datagram: [u8; REQUEST_BYTES] },
    /// An entry of a native request, and the size of the datagram in which it was sent.
    Native { from: SocketAddr, session: Session, entry: Entry, bytes: usize },
}

/// The ring and the journal.
pub(super) struct Store {
    pub(super) ring: Ring,
    /// The channel's journal, once it has one.
    found: Option<Arc<ChannelJournal>>,
    /// The thread that reads the journal, and the blocks that it has read. `None` if the channel has no journal, or while the thread cannot
    /// be started.
    journal: Option<Journal>,
    /// The time since which the thread cannot be started, in nanoseconds.
    missed_ns: Option<u64>,
    /// The sequence of the session's first message.
    floor: u64,
    earlier: PastCounters,
    /// Whether the messages of the present request are first looked for in the blocks from the journal, and then in the ring.
    from_shelf: bool,
}

struct Journal {
    past: Past<Request>,
    disk: Disk,
}

impl Store {
    /// Makes the store of a ring. `change` is the number of the sending thread's change to this ring. The session's first message is
    /// `floor`.
    pub(super) fn new(subscriber: Subscriber, change: u64, floor: u64) -> Store {
        let (ring, earlier) = (Ring::new(subscriber, change), PastCounters::default());
        Store { ring, found: None, journal: None, missed_ns: None, floor, earlier, from_shelf: false }
    }

    /// Switches to another ring. Waiting requests are dropped, because they belong to another session.
    pub(super) fn change(&mut self, subscriber: Subscriber, change: u64, floor: u64) {
        let earlier = self.counters();
        *self = Store { earlier, ..Store::new(subscriber, change, floor) };
    }

    /// Notes the session's first message. A session can begin in a ring that also has messages of the previous session.
    ///
    /// An earlier mistake: the journal's messages of the previous session were sent as answers to requests of the next session.
    pub(super) fn set_floor(&mut self, floor: u64) {
        if floor != self.floor {
            self.floor = floor;
            self.journal.iter_mut().for_each(|journal| journal.past.set_floor(floor));
        }
    }

    /// Takes the channel's journal if the channel has one by now, and starts the thread that reads the journal. Call this every few
    /// milliseconds, because a channel can get its journal later.
    ///
    /// # Errors
    /// [`BridgeError`] if the thread cannot be started. Receivers are then told to ask again later, as for a journal that cannot be read.
    pub(super) fn find_journal(&mut self) -> Result<(), BridgeError> {
        if self.journal.is_some() {
            return Ok(());
        }
        if self.found.is_none() {
            self.found = self.ring.take_journal().map(Arc::new);
        }
        let Some(found) = &self.found else { return Ok(()) };
        self.journal = Some(Journal { past: Past::new(self.floor), disk: Disk::start(found.clone())? });
        self.missed_ns = None;
        Ok(())
    }

    /// Of the messages from `first` on, returns the range that the server holds. `next` is the sequence after the last sent message.
    pub(super) fn held(&mut self, now_ns: u64, first: u64, next: u64, request: &Request) -> Held {
        self.from_shelf = false;
        let is_backed = self.found.is_some();
        if first < self.floor {
            return Held { is_backed, ..Held::of_ring(self.floor.min(next), next) };
        }
        let place = self.ring.place(first, next);
        let is_missed = is_backed && self.journal.is_none() && matches!(place, InRing::TooOld(_));
        if is_missed && !self.is_missed_for_long(now_ns) {
            return Held { place: Place::Busy, is_backed, ..Held::of_ring(first, next) };
        }
        let oldest = match (place, &mut self.journal) {
            (InRing::Here, _) => first,
            (InRing::Lost(behind), _) | (InRing::TooOld(behind), None) => behind,
            (InRing::TooOld(oldest), Some(journal)) => {
                let held = journal.past.held(now_ns, first, (oldest, next), request);
                self.from_shelf = held.place == Place::Shelf;
                if self.from_shelf
                    && let Some(sequence) = journal.past.poll_ahead(now_ns, first, oldest)
                {
                    journal.disk.order(sequence);
                }
                return held;
            }
        };
        Held { is_backed, ..Held::of_ring(oldest, next) }
    }

    // Whether the thread for the journal could not be started for so long that the journal's messages count as gone.
    fn is_missed_for_long(&mut self, now_ns: u64) -> bool {
        let since_ns = *self.missed_ns.get_or_insert(now_ns);
        now_ns.saturating_sub(since_ns) >= PATIENCE_NS
    }

    /// Returns the same as [`held`](Self::held), for a request that [`ready`](Self::ready) returned. Such a request does not wait again.
    pub(super) fn held_again(&mut self, now_ns: u64, first: u64, next: u64, request: &Request) -> Held {
        let held = self.held(now_ns, first, next, request);
        match held.place {
            Place::Disk => Held { place: Place::Busy, ..held },
            _ => held,
        }
    }

    /// Copies the message `sequence` to the start of the slice, and returns its size. Returns `None` if the message does not fit.
    pub(super) fn read(&mut self, sequence: u64, room: &mut [u8]) -> Option<usize> {
        if let Some(piece) = self.read_shelf(sequence, 0, room) {
            return (piece.size == piece.total).then_some(piece.size);
        }
        self.ring.read(sequence, room)
    }

    /// Copies a part of a message, as [`Ring::read_part`] does.
    pub(super) fn read_part(
        &mut self,
        sequence: u64,
        offset: u32,
        room: &mut [u8],
        moment: Option<&Moment>,
    ) -> Option<Piece> {
        self.read_shelf(sequence, offset, room)
            .or_else(|| self.ring.read_part(sequence, offset, room, moment))
    }

    fn read_shelf(&self, sequence: u64, offset: u32, room: &mut [u8]) -> Option<Piece> {
        let journal = self.journal.as_ref().filter(|_| self.from_shelf)?;
        journal.past.read(sequence, offset, room)
    }

    /// Makes a request wait for the journal.
    pub(super) fn wait(&mut self, first: u64, request: Request) {
        if let Some(journal) = &mut self.journal {
            journal.past.wait(first, request);
        }
    }

    /// Takes the answer of the disk, if there is one.
    pub(super) fn take(&mut self, now_ns: u64) {
        if let Some(Journal { past, disk }) = &mut self.journal
            && let Some(fetched) = disk.take()
        {
            past.take(now_ns, fetched);
        }
    }

    /// Sends the disk its next order, if it is idle.
    pub(super) fn order(&mut self, now_ns: u64) {
        if let Some(Journal { past, disk }) = &mut self.journal
            && let Some(sequence) = past.poll_fetch(now_ns)
        {
            disk.order(sequence);
        }
    }

    /// Returns the next request that need not wait any longer.
    pub(super) fn ready(&mut self, now_ns: u64) -> Option<Request> {
        self.journal.as_mut()?.past.poll_ready(now_ns)
    }

    /// Returns a descriptor that is readable when the disk has answered.
    pub(super) fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.journal.as_ref().map(|journal| journal.disk.bell())
    }

    /// Returns the counters of all journals so far.
    pub(super) fn counters(&self) -> PastCounters {
        let counters = self.journal.as_ref().map(|journal| *journal.past.counters());
        self.earlier.plus(&counters.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmcast::Publisher;

    /// A promoted channel continues in its ring, with another session.
    #[test]
    fn a_session_is_not_answered_with_messages_of_the_session_before() {
        let dir = tempfile::tempdir().unwrap();
        let mut publisher = Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open().unwrap();
        publisher.publish_batch(vec![b"x"; 10]).unwrap();
        let mut store = Store::new(Subscriber::builder("t").dir(dir.path()).open().unwrap(), 0, 1);
        let request = Request::Plain { from: "127.0.0.1:9".parse().unwrap(), datagram: [0; REQUEST_BYTES] };
        assert_eq!(store.held(0, 2, 11, &request), Held::of_ring(2, 11));
        store.set_floor(6);
        assert_eq!(store.held(0, 2, 11, &request), Held::of_ring(6, 11));
        assert_eq!(store.held(0, 7, 11, &request), Held::of_ring(7, 11));
    }
}
