//! The inputs, outputs and counters of a writer.

use bytes::Bytes;
use shmcast_bridge::proto::session::Session;

use crate::proto::block::{BlockId, Damaged, Head, parse};
use crate::proto::seal::Opener;

/// The reason why an append failed, or why the log was read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The log's last block is not the expected one.
    Refused,
    /// There was no answer in time.
    Silent,
    /// The servers are busy, or have no leader.
    Busy,
    /// There is no connection.
    Disconnected,
    /// Another writer announced itself.
    Rival,
}

/// The kinds of [`Trouble`], in the order of their counters.
pub const TROUBLES: [&str; 5] = ["refused", "silent", "busy", "disconnected", "rival"];

/// The end of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Last {
    /// The number of the log's last entry, valid or not; 0 if the log never had an entry.
    pub sequence: u64,
    /// The last valid block that can be opened; `None` if there is none.
    pub head: Option<Head>,
    /// The CRC of the last valid block, even if this block cannot be opened.
    pub crc: Option<u32>,
    /// The name of the last entry, valid or not; `None` if the servers have no name for it.
    pub id: Option<BlockId>,
    /// The reason why the last valid block cannot be opened; `None` if it can be opened.
    pub unopened: Option<Damaged>,
    /// The number of the log's last entry according to the server's last refusal of an append. This number differs from `sequence` only if
    /// the log has lost its last entries, and the server still counts them. `None` if no append was refused, or if several servers keep
    /// the log.
    pub stores_after: Option<u64>,
    /// Whether the last block belongs to another stream, although the log has an earlier block of the writer's stream.
    pub had_ours: bool,
}

impl Last {
    /// Describes a log whose last entry has the number `sequence`. The entry was not read yet.
    pub fn new(sequence: u64) -> Last {
        Last {
            sequence,
            head: None,
            crc: None,
            id: None,
            unopened: None,
            stores_after: None,
            had_ours: false,
        }
    }

    /// Reads an entry. Call this for the last entry first, and then for each entry before it, until the call returns true. The block is
    /// then valid and can be opened. Invalid entries at the end are ignored, and their messages are sent again.
    pub fn look(&mut self, (number, id): (u64, Option<BlockId>), block: &[u8], opener: &mut Opener) -> bool {
        if number == self.sequence {
            self.id = id;
        }
        let Ok((open, _)) = parse(block) else { return false };
        let opened = opener.head(block);
        if self.crc.is_none() {
            (self.crc, self.unopened) = (Some(open.crc), opened.err());
        }
        self.head = opened.ok();
        self.head.is_some()
    }
}

/// The reason why a writer does not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The log has another stream, which has a later session or a living writer.
    #[error(
        "the log carries session {theirs}, which is not older than {ours}: two publishers write one channel; stop one of them, \
         or remove the log by `shmcast bridge stream rm`"
    )]
    OtherStream {
        /// The session in the log.
        theirs: Session,
        /// The session of this writer.
        ours: Session,
    },
    /// The log's blocks are sealed, and this writer has no key.
    #[error("the log's blocks are sealed: give this bridge the keys file of the others (keys)")]
    Sealed,
    /// The log has messages that the channel does not have.
    #[error(
        "the log goes up to sequence {theirs} of this stream, and the channel only to {ours}: the channel lost its end; \
         remove the log by `shmcast bridge stream rm`, or begin the channel anew"
    )]
    Ahead {
        /// The last sequence in the log.
        theirs: u64,
        /// The last sequence of the channel.
        ours: u64,
    },
}

/// The sequence at which to continue to read the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// Continue at this sequence.
    At(u64),
    /// Start at the beginning, because the log has nothing of the stream.
    Beginning,
}

/// The state of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The writer requests the last block.
    Start,
    /// The writer appends blocks to the log.
    Run,
    /// The writer requests the last block, because an append failed.
    Resync,
    /// Since this time, the log has had more messages than the channel.
    Ahead(u64),
    /// Another writer writes. The value is the time of its last pulse or block.
    Fenced(u64),
    /// The last block cannot be opened, because its writer has other keys.
    Shut(Damaged),
}

/// The counters of a writer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriterCounters {
    /// Blocks that the log has stored.
    pub blocks: u64,
    /// The bytes of the blocks that the log has stored.
    pub bytes: u64,
    /// The number of times that the last block was requested again, for each [`Trouble`].
    pub resyncs: [u64; TROUBLES.len()],
    /// The number of times that this writer's stream changed to a later session, so that it comes after another stream in the log. This is
    /// necessary if this host's clock was slow.
    pub successions: u64,
    /// The number of times that another writer owned the last block.
    pub fenced: u64,
    /// The number of times that the last block could not be opened.
    pub shut_out: u64,
    /// Sequences that the log had acknowledged and has lost.
    pub lost_by_engine: u64,
    /// The number of times that the log had lost messages that it had acknowledged.
    pub losses: u64,
}

/// A block to be appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// The number of the attempt to which the append belongs.
    pub round: u64,
    /// The time at which the writer returned the append.
    pub at_ns: u64,
    /// The number of the entry after which the block must be stored. The log must not store the block anywhere else.
    pub after: u64,
    /// The name of the entry `after`; `None` if only its number counts.
    pub behind: Option<BlockId>,
    /// The block's own name.
    pub id: BlockId,
    /// The bytes of the block.
    pub block: Bytes,
}
