//! Records channels into files that survive a power cut: the writing side of a journal. `shm-layout/JOURNAL.md` has the format.
//!
//! A recorder reads a channel as any reader does. The publisher does not know about it: the recorder causes no wait and no system call, and
//! writes no word of memory that `publish` reads.
//!
//! | module | what it does | may not |
//! |---|---|---|
//! | [`core`] | decides what is written when, what an error means, and what a crash has left | open files, ask the time, start threads |
//! | [`directory`] | does on a real file system what the logic wants | decide anything |
//! | [`Keep`], [`hold`] | removes the oldest files, and keeps those that are held | look at bytes |
//! | [`Cut`] | writes a part of a journal, by the same logic on one thread | read one |
//! | [`Recorder`] | the threads: one reads the ring, three write | decide what an error means |
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod core;
mod cutting;
pub mod directory;
mod error;
mod holds;
mod keeping;
mod recorder;

pub use cutting::Cut;
pub use error::RecordError;
pub use holds::{RetentionHold, hold, holds, release};
pub use keeping::{Keep, Trimmed};
pub use recorder::{Progress, Recorder};
