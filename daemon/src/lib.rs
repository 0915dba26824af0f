//! The `shmcast` command: a face over the client library, with no logic of the ring in it.
//!
//! One verb, one file, under [`cli`].
#![forbid(unsafe_code)]

pub mod cli;
