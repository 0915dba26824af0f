//! The logic of channels through a log, without any input or output.
//!
//! ```text
//!   ring ──> Writer ──append_if──> log ──read──> Reader ──> ring
//!              └──last──────────────┘      └──want──> any writer      what the log has lost
//! ```
//! The state machines use the log by three calls:
//!
//! 1. Append a block, if the log's last entry is the expected one.
//! 2. Read the last block.
//! 3. Read blocks from a number on.
//!
//! The log is not trusted: it may lose, reorder, repeat or damage blocks, even after it acknowledged them. A writer builds each block on
//! the last block of the log, so neighbours join without overlap or hole, whichever writers made them. A reader judges a block only by the
//! block's own fields.
//!
//! Time is `u64` nanoseconds of any monotonic clock. No code here panics on bytes of a peer, and every loop ends.

pub mod block;
pub(crate) mod mutant;
pub mod reader;
pub mod seal;
pub mod want;
pub mod writer;

#[cfg(test)]
mod sim;
