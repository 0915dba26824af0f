//! What a subscriber hands out.

use shmcast_layout::error::Corrupt;
use shmcast_layout::ring::locate::LocateError;
use thiserror::Error;

/// A message, copied out of the ring and verified: nothing can change it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Its bytes. In a subscriber's own buffer they start on a 16-byte boundary.
    pub payload: &'a [u8],
    /// Its number in the channel, from 1; the same on every host.
    pub sequence: u64,
    /// The publisher's own mark.
    pub tag: u16,
    /// Whether a reader may start afresh from it.
    pub key: bool,
    /// When it was published: low 48 bits of the channel's clock, for [`Clock::ns_since`](crate::Clock::ns_since).
    pub time: u64,
}

/// The next thing in a channel's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A message.
    Message(Message<'a>),
    /// The publisher overtook this reader, which goes on at `resumed_at`.
    Lapped(Lapped),
    /// Messages that never reached this host: a bridge gave them up.
    Gap {
        /// First missing sequence.
        from: u64,
        /// Last missing sequence, inclusive.
        to: u64,
    },
    /// Another publisher took over; sequences continue.
    NewEpoch {
        /// Its incarnation.
        epoch: u64,
    },
    /// The publisher died without closing the channel, and no other has taken over yet. Told once a death, after all that it
    /// published, and only to those who asked by [`watch_publisher`](crate::SubscriberBuilder::watch_publisher). Receiving
    /// again waits for the next publisher. If the next one is there before this reader looked, only
    /// [`NewEpoch`](Self::NewEpoch) is told.
    PublisherGone {
        /// Its incarnation.
        epoch: u64,
    },
    /// The remote publisher behind a bridge began a new session.
    NewSession {
        /// The session's identity on the wire.
        session: [u8; 10],
    },
    /// The channel began again: the next sequences count from 1. The daemon lost its memory, or it was told to begin anew, as
    /// by a bridge whose source did. What was published before and is not received by now is over.
    Restarted,
    /// The publisher closed the channel. Receiving again waits for the next publisher.
    End,
}

/// Messages overwritten before they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lapped {
    /// How many, exactly.
    pub missed: u64,
    /// The sequence that comes next.
    pub resumed_at: u64,
}

/// Why nothing more can be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecvError {
    /// The buffer given is too small. Nothing was consumed: receive again into a larger one.
    #[error("the next message has {needed} B, the buffer {available} B: receive into a larger buffer")]
    TooSmall {
        /// Bytes the message needs.
        needed: usize,
        /// Bytes the buffer has.
        available: usize,
    },
    /// Another program wrote to the segment.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A lapped reader found no place to go on from.
    #[error(transparent)]
    Locate(#[from] LocateError),
    /// The channel goes on in a segment that this process cannot map. Nothing was consumed: receive again.
    #[error(
        "the channel goes on in memory that this process cannot map: free descriptors or address space, then receive \
         again"
    )]
    Unmapped,
    /// The segment has been replaced by another.
    #[error("the channel has moved to a new segment: subscribe again")]
    Superseded,
}
