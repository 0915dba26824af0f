//! The messages between a sender's thread with the connection and its other threads.

use std::sync::mpsc;
use tokio::sync::mpsc::UnboundedSender;

use crate::proto::block::Stream;
use crate::proto::writer::{Append, Last, Trouble};

/// Requests of the other threads to the thread with the connection.
pub(crate) enum Order {
    Append(Append),
    /// Request the end of the log for this round. Also find out whether the log has this stream.
    Last(u64, Stream),
    /// Announce that the writer with this number writes. If the flag is set, also check how many servers keep the log.
    Pulse(u64, bool),
    /// Send a reader the messages that the log lacks.
    Answer(async_nats::Subject, Vec<u8>),
}

/// Answers of the thread with the connection.
pub(crate) enum Reply {
    /// The answer to an append: its round, the time of its arrival, and the result.
    Ack(u64, u64, Result<u64, Trouble>),
    /// The end of the log, if the servers returned it.
    Last(u64, Option<Last>),
    /// The writer with this number announced that it writes. The announcement might come from the sender's own writer.
    Pulse(u64),
}

/// The ends of both queues that the ring's thread uses.
pub(crate) type Queues = (UnboundedSender<Order>, mpsc::Receiver<Reply>);
