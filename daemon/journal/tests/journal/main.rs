//! Recorders with their threads, on real file systems.

#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

mod cutting;
mod epochs;
mod keeping;
mod lost_names;
mod recorder;
mod shutdown;
mod times;
