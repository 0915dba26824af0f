//! The client through its public API: channels as files, streams, journals, and processes that die. Tests that fork are a program
//! of their own, `tests/forks.rs`.

#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

mod api;
mod board;
mod conflating;
mod crash;
mod deadlines;
mod files;
mod foreign;
mod full_board;
mod gated_board;
mod gates;
mod gates_lost;
mod gone;
mod host;
mod hostile;
mod joining;
mod journal;
mod opening;
mod owners;
mod publish_cost;
mod records;
mod select;
mod sequences;
mod stamps;
mod stream;
mod support;
mod swallowed;
#[cfg(all(feature = "pod", feature = "serde"))]
mod typed;
#[cfg(all(feature = "pod", feature = "serde", feature = "tokio"))]
mod typed_select;
