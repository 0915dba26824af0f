//! A log and a ring in memory, for tests.

use bytes::Bytes;
use fastrand::Rng;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::Meta;
use std::collections::BTreeMap;

use super::super::block::{Cut, Head, MIN_BYTES, Packing, Stream, max_whole_bytes};
use super::super::seal::Sealer;
use super::{Entries, Ring, Unread};

/// A feed: each message is a function of its number and its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Feed {
    pub(super) number: u64,
    /// Whether it says one thing over and over.
    pub(super) is_dull: bool,
    /// The time of its beginning, in nanoseconds since 1970.
    pub(super) begin_ns: u64,
}

impl Feed {
    pub(super) fn message(&self, sequence: u64) -> (Vec<u8>, Meta) {
        let mut rng = Rng::with_seed(self.number << 32 ^ sequence);
        let size = match (self.is_dull, rng.u8(..40)) {
            (true, _) => 3,
            (false, 0) => rng.usize(900..3_000),
            (false, _) => rng.usize(..60),
        };
        let mut bytes = vec![7; size];
        if !self.is_dull {
            rng.fill(&mut bytes);
        }
        (bytes, Meta { tag: rng.u16(..3), key: rng.bool(), time_ns: self.begin_ns + sequence * 1_000 })
    }
}

/// A log.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) entries: BTreeMap<u64, Vec<u8>>,
    pub(super) last: u64,
    pub(super) is_away: bool,
    pub(super) gets: u64,
}

impl Log {
    /// Appends the messages `from..to` of a feed, in blocks of up to so many messages.
    pub(super) fn append(
        &mut self,
        (feed, session, stream): (Feed, Session, u8),
        (mut from, to): (u64, u64),
        most: u64,
    ) {
        let mut packing = Packing::new(MIN_BYTES);
        while from < to {
            let (data, meta) = feed.message(from);
            if data.len() > max_whole_bytes(MIN_BYTES) {
                let mut offset = 0;
                while offset < data.len() {
                    let cut = Cut::part(from, &data, meta, offset, MIN_BYTES);
                    offset += cut.part_bytes();
                    self.push(cut, session, stream);
                }
                from += 1;
                continue;
            }
            let end = to.min(from + most);
            while from < end {
                let (data, meta) = feed.message(from);
                if data.len() > max_whole_bytes(MIN_BYTES) || !packing.push(from, &data, meta) {
                    break;
                }
                from += 1;
            }
            let cut = packing.cut().expect("the first message fits");
            self.push(cut, session, stream);
        }
    }

    fn push(&mut self, cut: Cut, session: Session, stream: u8) {
        self.last += 1;
        let head = Head::new(Stream([stream; 16]), session, (1, self.last));
        self.entries.insert(self.last, cut.finish(head, &Sealer::default()).0);
    }
}

impl Entries for Log {
    fn bounds(&mut self) -> Result<(u64, u64), Unread> {
        let first = self.entries.keys().next().map_or(self.last + 1, |first| *first);
        if self.is_away { Err(Unread) } else { Ok((first, self.last)) }
    }

    fn get(&mut self, from: u64) -> Result<Option<(u64, Bytes)>, Unread> {
        self.gets += 1;
        let found = self.entries.range(from..).next();
        match self.is_away {
            true => Err(Unread),
            false => Ok(found.map(|(number, block)| (*number, Bytes::copy_from_slice(block)))),
        }
    }

    fn get_some(&mut self, from: u64, most: usize) -> Result<Vec<(u64, Bytes)>, Unread> {
        let some = self.entries.range(from..).take(most);
        match self.is_away {
            true => Err(Unread),
            false => Ok(some.map(|(number, block)| (*number, Bytes::copy_from_slice(block))).collect()),
        }
    }
}

/// The ring of the receiver: `oldest..next` of a feed, which came so long after its publication.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocalRing {
    pub(super) feed: Feed,
    pub(super) oldest: u64,
    pub(super) next: u64,
    pub(super) later_ns: u64,
    /// A message that a line has brought behind a hole; 0 if there is none.
    pub(super) sample: u64,
}

impl Ring for LocalRing {
    fn span(&mut self) -> Option<(u64, u64)> {
        (self.oldest < self.next).then_some((self.oldest, self.next))
    }

    fn samples(&self) -> Vec<u64> {
        if self.sample > 0 { vec![self.sample] } else { Vec::new() }
    }

    fn read(&mut self, sequence: u64, into: &mut Vec<u8>) -> Option<u64> {
        let (bytes, meta) = self.feed.message(sequence);
        into.extend_from_slice(&bytes);
        let is_there = (self.oldest..self.next).contains(&sequence) || sequence == self.sample;
        is_there.then_some(meta.time_ns + self.later_ns)
    }
}
