//! The messages between the two threads of the end that sends.

use std::sync::mpsc;
use tokio::sync::mpsc::UnboundedSender;

use crate::proto::block::Stream;
use crate::proto::writer::{Append, Last, Trouble};

/// Requests to the thread with the connection.
pub(crate) enum Order {
    Append(Append),
    /// Ask for the end of the log, in this round, and whether the log has this stream.
    Last(u64, Stream),
    /// Announce to the other writers that this one writes, and check how many servers keep the log, if that is due.
    Pulse(u64, bool),
    /// Send a reader the messages that the log lacks.
    Answer(async_nats::Subject, Vec<u8>),
}

/// Answers of the thread with the connection.
pub(crate) enum Reply {
    /// The answer to an append of this round, and the time of its arrival.
    Ack(u64, u64, Result<u64, Trouble>),
    /// The end of the log, if the servers returned it.
    Last(u64, Option<Last>),
    /// A writer announced that it writes: another one, or this one.
    Pulse(u64),
}

/// The ends of both queues that the ring's thread uses.
pub(crate) type Queues = (UnboundedSender<Order>, mpsc::Receiver<Reply>);
