//! The logic of channels through a log, without any input or output.
//!
//! ```text
//!   ring ──> Writer ──append_if──> log ──read──> Reader ──> ring
//!              └──last──────────────┘      └──want──> any writer      what the log has lost
//! ```
//! The log is used by three calls alone: append a block if the last one is still the one that the writer knows, the last
//! block, and blocks from a place on. The log is trusted for none of them: it may lose what it acknowledged, exchange
//! blocks, bring one twice or damage it. The writer builds each block from what the last block says, so two neighbours join
//! without overlap or hole, whoever wrote them. The reader takes a block for what its own fields say.
//!
//! Time is `u64` nanoseconds of any monotonic clock. Nothing here panics on bytes of a peer, and every loop ends.

pub mod block;
mod mutant;
pub mod reader;
pub mod seal;
pub mod want;
pub mod writer;

#[cfg(test)]
mod sim;
