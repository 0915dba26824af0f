//! The logic of channels through a log, without any input or output.
//!
//! ```text
//!   ring ──> Writer ──append_if──> log ──read──> Reader ──> ring
//!              └──last──────────────┘      └──want──> any writer      what the log has lost
//! ```
//! The log is used only by three calls: append a block if the last one is still the one that the writer knows; read the last block; read
//! blocks from a place on. The log is trusted for none of them: it may lose what it acknowledged, or reorder, repeat or damage blocks. The
//! writer builds each block from what the last block says, so two neighbours join without overlap or hole, whoever wrote them. The reader
//! judges a block only by its own fields.
//!
//! Time is `u64` nanoseconds of any monotonic clock. Nothing here panics on bytes of a peer, and every loop ends.

pub mod block;
pub(crate) mod mutant;
pub mod reader;
pub mod seal;
pub mod want;
pub mod writer;

#[cfg(test)]
mod sim;
