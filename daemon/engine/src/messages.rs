//! The messages between the threads of a sender: one thread has the connection to the servers, and the other threads give it orders.

use std::sync::mpsc;
use tokio::sync::mpsc::UnboundedSender;

use crate::proto::block::Stream;
use crate::proto::writer::{Append, Last, Trouble};

/// An order of another thread to the thread that has the connection to the servers.
pub(crate) enum Order {
    Append(Append),
    /// Request the end of the log for this round. Also find out whether the log has this stream.
    Last(u64, Stream),
    /// Announce that the writer with this number writes. If the flag is set, also check how many servers keep the log.
    Pulse(u64, bool),
    /// Send a reader the messages that the log lacks.
    Answer(async_nats::Subject, Vec<u8>),
}

/// A reply of the thread that has the connection to the servers.
pub(crate) enum Reply {
    /// The answer to an append: its round, the time of its arrival, and the result.
    Ack(u64, u64, Result<u64, Trouble>),
    /// The end of the log, if the servers returned it.
    Last(u64, Option<Last>),
    /// Another sender's writer, which has this number, announced that it writes.
    Pulse(u64),
}

/// The two queues of the thread that reads the ring: orders go out, and replies come in.
pub(crate) type Queues = (UnboundedSender<Order>, mpsc::Receiver<Reply>);
