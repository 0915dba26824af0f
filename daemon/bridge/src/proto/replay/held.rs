//! Which messages a server holds, and where they are.

/// The sequences that the server holds: from `oldest` up to, not including, `next`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The oldest sequence that can be read.
    pub oldest: u64,
    /// The sequence after the newest.
    pub next: u64,
    /// The place of the first message asked for, if it is held.
    pub place: Place,
    /// Whether a journal may have messages that the ring overwrites meanwhile.
    pub is_backed: bool,
}

/// The place of the first message asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the ring.
    Ring,
    /// In memory, read from the journal.
    Shelf,
    /// In the journal. The request can wait until the journal was read.
    Disk,
    /// In the journal, but no request can wait now, or this request waits already.
    Busy,
}

impl Held {
    /// The messages that a ring holds.
    pub fn of_ring(oldest: u64, next: u64) -> Held {
        Held { oldest, next, place: Place::Ring, is_backed: false }
    }
}
