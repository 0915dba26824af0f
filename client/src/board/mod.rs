//! Boards: the last message of each key, beside the stream of all messages.
//!
//! A channel that was made with a [`BoardSpec`] has a board in the same memory as its ring. Each publisher of the channel updates the
//! board. A subscriber with [`Start::Board`](crate::Start::Board) begins with the messages of the board. [`Board`] reads single keys.

mod reader;
mod spec;

pub use reader::{Board, BoardEntries, BoardEntry};
pub use shmcast_layout::board::{Counters as BoardCounters, JoinError};
pub use shmcast_layout::layout::board::BoardError as BoardSizes;
pub use spec::BoardSpec;
