//! Records channels into files that survive a power cut. This crate is the writing side of a journal. `shm-layout/JOURNAL.md` has the
//! format.
//!
//! A recorder is an ordinary reader of a channel, and writes no memory that `publish` reads. Unless the recorder takes a gate, it never
//! delays the publisher.
//!
//! | module | task | must not |
//! |---|---|---|
//! | [`core`] | decides what is written when, what an error means, and what remains after a crash | open files, read clocks, start threads |
//! | [`directory`] | performs the logic's operations on a real file system | decide anything |
//! | [`ByName`] | gives recovery the files of a folder | decide anything |
//! | [`Keep`], [`hold`] | removes the oldest files; keeps files that are held | read records |
//! | [`Cut`] | copies a part of a journal, with the same logic on one thread | read a journal |
//! | [`Recorder`] | the threads: one reads the ring, three write | decide what an error means |
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod by_name;
mod complete;
pub mod core;
mod cutting;
pub mod directory;
mod error;
mod holds;
mod keeping;
mod names;
mod recorder;

pub use by_name::ByName;
pub use cutting::Cut;
pub use error::{DiskError, RecordError};
pub use holds::{RetentionHold, hold, holds, release};
pub use keeping::{Keep, Trimmed};
pub use recorder::{Progress, Recorder};
