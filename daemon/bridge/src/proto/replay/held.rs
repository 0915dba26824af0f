//! The range of messages that a server holds, the place where the server can read the messages, and the receiver that asks for them.

use super::super::session::Session;
use std::net::SocketAddr;

/// The sequences that a server holds: from `oldest` up to `next`, which is not included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The oldest sequence that can be read.
    pub oldest: u64,
    /// The sequence after the newest one that can be read.
    pub next: u64,
    /// The place of the first message asked for, if the server holds it.
    pub place: Place,
    /// Whether the journal might have the messages if the ring overwrites them now.
    pub is_backed: bool,
}

/// The session whose messages a server sends again, and the range of messages that the server holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// The session.
    pub session: Session,
    /// The messages.
    pub held: Held,
}

/// The source of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    /// The source's address.
    pub from: SocketAddr,
    /// Whether the source has proved that it receives at this address.
    pub is_proved: bool,
    /// Whether the same request was handled before, and its messages have been read from the journal meanwhile. Such a request is not
    /// counted again.
    pub has_waited: bool,
}

/// The memory from which the first message asked for can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The message is in the ring.
    Ring,
    /// The message is in memory, and was read from the journal.
    Shelf,
    /// The message is in the journal. The request can wait until the journal has been read.
    Disk,
    /// The message is in the journal, but this request cannot wait until the journal has been read. Either the queue is full, or the
    /// request is in the queue already.
    Busy,
}

impl Held {
    /// Returns the range of the messages that a ring holds.
    pub(crate) fn of_ring(oldest: u64, next: u64) -> Held {
        Held { oldest, next, place: Place::Ring, is_backed: false }
    }
}
