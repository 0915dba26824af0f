//! The C interface of shmcast. `include/shmcast.h` is its contract: what each function does, its errors, and which threads can call it.
//!
//! This crate has the types of that header and the functions that it declares. A function checks its arguments and calls the
//! library `shmcast`. It returns the result as a code, and writes other values through pointers. No panic leaves a function.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod board;
pub mod codes;
mod error;
mod event;
mod guard;
mod options;
mod publisher;
mod select;
mod subscriber;

pub use board::{BoardCounters, BoardEntry};
pub use event::{Batch, Conflated, Event, Gap, Lapped, What};
pub use options::{Gate, PublishOptions, SubscribeOptions};
pub use publisher::GateStatus;
