//! The messages between the two threads of the end that sends.

use std::sync::mpsc;
use tokio::sync::mpsc::UnboundedSender;

use crate::proto::writer::{Append, Last, Trouble};

/// Requests to the thread with the connection.
pub(crate) enum Order {
    Append(Append),
    /// Ask for the end of the log, in this round.
    Last(u64),
    /// Tell the other writers that this one writes, and look how many servers keep the log, if that is due.
    Pulse(u64, bool),
    /// Give a reader what the log lacks.
    Answer(async_nats::Subject, Vec<u8>),
}

/// Answers of the thread with the connection.
pub(crate) enum Reply {
    /// The answer to an append of this round, and when it came.
    Ack(u64, u64, Result<u64, Trouble>),
    /// The end of the log, if it could be had.
    Last(u64, Option<Last>),
    /// Another writer, or this one, writes.
    Pulse(u64),
}

/// The ends of both queues that the thread with the ring has.
pub(crate) type Queues = (UnboundedSender<Order>, mpsc::Receiver<Reply>);
