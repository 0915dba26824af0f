//! The logic of channels through a log, without any input or output.
//!
//! ```text
//!   ring ──> Writer ──append_if──> log ──read──> Reader ──> ring
//!              └──last──────────────┘      └──want──> any writer, or the log's leader      what the reader's copy lacks
//! ```
//! The state machines use the log by three calls:
//!
//! 1. Append a block, if the log's last entry is the expected one.
//! 2. Read the last block.
//! 3. Read blocks from an entry number on.
//!
//! The log is not trusted. It can lose, reorder, repeat or damage blocks, even blocks that it has acknowledged. For this reason, a reader
//! judges a block only by the block's own fields.
//!
//! Each new block of a writer continues the sequences of the block before it in the log, no matter which writer made that block. So the
//! messages of two neighbouring blocks follow each other without overlap or hole.
//!
//! Time is `u64` nanoseconds of any monotonic clock. No bytes from a peer make this code panic, and every loop ends.

pub mod block;
pub mod lookup;
pub(crate) mod mutant;
pub mod reader;
pub mod requests;
pub mod seal;
pub mod want;
pub mod writer;

#[cfg(test)]
mod sim;
