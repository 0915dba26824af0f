//! The inputs, requests, deliveries and counters of a reader.

use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::Meta;
use std::ops::Range;

use crate::proto::want::Want;

/// The settings of a reader.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReaderConfig {
    /// The first sequence to deliver if the ring is empty. `None` means the oldest sequence in the log.
    pub from: Option<u64>,
    /// If no writer sends a missing message for this time, the reader gives it up. `None` means that the reader never gives up a message.
    pub give_up_ns: Option<u64>,
}

/// One delivery of a reader to the local ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery<'a> {
    /// A message.
    Message {
        /// The sequence of the message.
        sequence: u64,
        /// The bytes of the message.
        data: &'a [u8],
        /// The message's tag, key flag and time.
        meta: Meta,
    },
    /// These messages will never arrive.
    Gap {
        /// The sequences of the missing messages.
        missing: Range<u64>,
    },
    /// A session begins, at the sequence `next`.
    Session {
        /// The session that begins.
        session: Session,
        /// The next sequence to be delivered.
        next: u64,
    },
    /// The publisher closed the channel.
    End,
}

/// A request to the log or to the writers. The answer goes to the method `handle_bounds`, `handle_get` or `handle_want`, together with the
/// request's round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// The numbers of the log's first and last entries.
    Bounds,
    /// The first entry at or after this number.
    Get(u64),
    /// All entries from this number on, as they are appended.
    Follow(u64),
    /// Messages that the log does not have.
    Want(Want),
}

/// The counters of a reader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReaderCounters {
    /// Blocks with new content.
    pub blocks: u64,
    /// Blocks that were not valid.
    pub damaged: u64,
    /// Blocks whose seal is missing, does not match, or has an unknown key. They also count as damaged.
    pub unopened: u64,
    /// Sequences that had arrived before in another block.
    pub repeated: u64,
    /// Blocks that break the chain. Each block stores a CRC for the block before it. In a block counted here, the stored CRC differs from the
    /// real CRC of the block before.
    pub chain_breaks: u64,
    /// The number of times that the reader searched the log for the block that it needs next.
    pub searches: u64,
    /// The number of times that the log's end had moved back.
    pub ends_moved: u64,
    /// Holes in the log. A hole that is found again counts once.
    pub holes: u64,
    /// Missing sequences that a writer sent.
    pub mended: u64,
    /// Requests to writers.
    pub wanted: u64,
    /// Missing sequences that the reader gave up, because no answer had them. Gaps that the log or a writer reports do not count.
    pub given_up: u64,
}
