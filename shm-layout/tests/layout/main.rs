//! What the layout and its ring promise, through their public calls. The model under loom is a program of its own,
//! `tests/loom.rs`, since it needs a build of its own.

#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

mod board;
mod bounded;
mod common;
mod documents;
mod foreign_segment;
mod forged_count;
mod golden;
mod journal;
mod killed;
mod model;
mod tail_bound;
mod two_processes;
