//! The C library, and programs in C and C++ that are compiled against it as it was built.

#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

mod abi;
mod conformance;
mod header;
mod install;
mod journal;
mod programs;
mod quick_starts;
mod support;
