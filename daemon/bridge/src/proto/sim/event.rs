//! The events of a simulated network, and the requests that wait in it.

use super::super::native::ask::Entry;
use super::super::receiver::Origin;
use super::super::session::Session;
use super::net::Arrival;

#[derive(Debug)]
pub(super) enum Event {
    Publish,
    SenderWakes,
    Forge { forged: u64 },
    SenderReturns { fresh: bool },
    PeerWakes { peer: usize },
    PeerReturns { peer: usize },
    ToPeer { peer: usize, life: u32, origin: Origin, arrival: Arrival },
    ToServer { server: usize, peer: usize, life: u32, bytes: Vec<u8>, copy: bool },
    DiskAnswers { server: usize, session: usize, first: u64 },
}

/// A request that waits for a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Waiting {
    Plain { at: usize, life: u32, request: Vec<u8> },
    Native { at: usize, session: Session, entry: Entry, size: usize },
}
