//! Records channels into files that survive a power cut: the writing side of a journal. `shm-layout/JOURNAL.md` has the format.
//!
//! A recorder reads a channel as any reader does. The publisher does not know of it: there is no wait, no system call and no word of
//! memory that the recorder writes and `publish` reads.
//!
//! | module | what it does | may not |
//! |---|---|---|
//! | [`core`] | decides what is written when, what an error means, and what a crash has left | open files, ask the time, start threads |
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod core;
