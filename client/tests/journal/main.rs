//! Reading journals: in order, by sequence, by time, damaged, and by a stranger's program.

#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

mod book;
mod lookup;
mod merge;
mod rot;
mod stranger;
