//! The messages, events and errors that a subscriber returns.

use crate::clock::Clock;
use crate::gate::GateName;
use shmcast_layout::board::JoinError;
use shmcast_layout::error::Corrupt;
use shmcast_layout::journal::Cause;
use shmcast_layout::layout::record::NO_TIME;
use shmcast_layout::ring::locate::LocateError;
use thiserror::Error;

/// A message. It was copied out of the ring and checked, so it cannot change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// The bytes of the message. In a subscriber's own buffer they start on a 16-byte boundary.
    pub payload: &'a [u8],
    /// The number of the message in its channel, counted from 1. It is the same on every host.
    pub sequence: u64,
    /// The tag that the publisher gave the message; see [`Mark::tag`](crate::Mark::tag).
    pub tag: u16,
    /// Whether a reader can start from this message without the messages before it; see [`Mark::key`](crate::Mark::key).
    pub key: bool,
    /// The time of publication for [`Clock::ns_since`](crate::Clock::ns_since): the low 48 bits of the channel's clock. The time is 0 if
    /// the publisher does not stamp the message; see [`Stamps`](crate::Stamps).
    pub time: u64,
    /// For a message from the channel's board: the number of messages of the same key that were left out since the reader last got a
    /// message of this key. The number is 0 if the reader has just begun with the board. It is also 0 if the reader has received a loss
    /// since it last read the board, because all messages that were left out then count as lost. `None` for a message in the order of the
    /// stream.
    pub conflated: Option<u64>,
}

impl Message<'_> {
    /// Nanoseconds since the message was published; `None` if it has no time. Reads the clock, which takes 8 to 25 ns. See
    /// [`Clock::ns_since`](crate::Clock::ns_since) for the limits.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// publisher.publish(b"x")?;
    /// let clock = subscriber.clock();
    /// if let shmcast::Event::Message(m) = subscriber.recv()? {
    ///     println!("{:?} ns old", m.latency_ns(&clock));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn latency_ns(&self, clock: &Clock) -> Option<u64> {
        (self.time != NO_TIME).then(|| clock.ns_since(self.time))
    }
}

/// The next event in a channel's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A message.
    Message(Message<'a>),
    /// The publisher overtook this reader. The reader continues at `resumed_at`.
    Lapped(Lapped),
    /// Messages that never reached this host, because a bridge gave up repairing them.
    Gap {
        /// First missing sequence.
        from: u64,
        /// Last missing sequence, inclusive.
        to: u64,
    },
    /// Messages that neither the channel's journal nor the ring has. Only a reader that reads the journal gets this event; see
    /// [`SubscriberBuilder::history`](crate::SubscriberBuilder::history).
    Lost {
        /// First missing sequence.
        from: u64,
        /// Last missing sequence, inclusive.
        to: u64,
        /// The reason, as the journal names it.
        cause: Cause,
    },
    /// The reader has caught up: it now reads from the ring, and no longer from the journal or the board. No message is missing at this
    /// point.
    Live {
        /// The sequence of the next message.
        sequence: u64,
    },
    /// Another publisher took over. Sequences continue.
    NewEpoch {
        /// The epoch of the new publisher.
        epoch: u64,
    },
    /// The publisher is gone without an end of the stream. It died, or it left the channel open for the next publisher, as a bridge does
    /// when it ends. No other publisher has taken over yet. Request this event with
    /// [`watch_publisher`](crate::SubscriberBuilder::watch_publisher). The event arrives once for each publisher that is gone, after all
    /// messages of that publisher.
    ///
    /// The next call that receives waits for the next publisher. If the next publisher takes over before this reader polls, the reader gets
    /// only [`NewEpoch`](Self::NewEpoch).
    PublisherGone {
        /// The epoch of the publisher that is gone.
        epoch: u64,
    },
    /// The remote publisher behind a bridge began a new session.
    NewSession {
        /// The session's identity, as in its packets.
        session: [u8; 10],
    },
    /// The channel began again, with another stream. Earlier messages that the reader has not received by now are lost. The new sequences
    /// count from 1, or continue after the journal of the new stream. There are three possible reasons:
    ///
    /// - the daemon lost the memory of a channel without a journal;
    /// - a reload gave the channel the journal of another stream;
    /// - a publisher restarted the channel, as a bridge does if the source of the feed was restarted.
    Restarted,
    /// A publisher closed the channel. The next call that receives continues with the next publisher, and waits if there is none yet. A
    /// subscriber that reads from the journal gets this event for each publisher that closed the channel. Call
    /// [`is_at_end`](crate::Subscriber::is_at_end) to find out whether the channel is at its end now.
    End,
}

/// The loss of a reader that the publisher overtook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lapped {
    /// The exact number of missed messages.
    pub missed: u64,
    /// The sequence of the next message.
    pub resumed_at: u64,
}

/// The reason why a call received nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecvError {
    /// The given buffer is too small. Nothing was consumed: receive again into a larger buffer.
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
    /// A lapped reader found no place at which to continue.
    #[error(transparent)]
    Locate(#[from] LocateError),
    /// The subscriber could not join the board to the ring.
    #[error("the channel's board: {0}")]
    Board(#[from] JoinError),
    /// The channel has moved to a segment without a board. Nothing was consumed.
    #[error("the channel goes on without a board: give its configuration one again, or read the stream")]
    NoBoard,
    /// The next message is not in the ring, and for two seconds it has been unknown whether the journal has this message. There are three
    /// possible reasons:
    ///
    /// - The journal's recorder runs, but has neither written this message nor reported it as lost.
    /// - The daemon that lends the journal is silent or gone.
    /// - Descriptors or memory are short, in the daemon or in this process.
    ///
    /// Nothing was consumed: receive again to wait longer, or seek. The error comes every two seconds as long as the reason lasts.
    #[error(
        "sequence {sequence} is no longer in the ring, and the journal cannot give it yet, because its recorder or daemon stands still or \
         descriptors are short: receive again to wait for it, or go on elsewhere"
    )]
    Stalled {
        /// The sequence for which the reader waits.
        sequence: u64,
    },
    /// The channel continues in a segment that this process cannot map. Nothing was consumed: receive again.
    #[error(
        "the channel goes on in memory that this process cannot map: free descriptors or address space, then receive \
         again"
    )]
    Unmapped,
    /// Another segment has replaced this one, or the segment's file was removed. A reader that receives no messages notices a removal
    /// within about a second. New subscribers do not receive messages that are published into a removed file.
    #[error("the channel was removed, or has moved to a new segment: subscribe again")]
    Superseded,
    /// The page of this subscriber's gate was removed or moved. Publishers that open the channel from now on do not wait for this
    /// subscriber. A reader that receives no messages notices this within about a second.
    #[error(
        "the page of gate {gate} was removed or moved, so publishers stop waiting for this reader: subscribe again"
    )]
    GateLost {
        /// The gate.
        gate: GateName,
    },
    /// This subscriber is a copy that `fork` made in a child process. Nothing was consumed.
    #[error("this subscriber belongs to the process that was forked: open one of its own here")]
    Forked,
}
