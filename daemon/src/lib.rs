//! The daemon and the `shmcast` command: a shell around the client library, with no logic of the ring in it.
//!
//! One verb, one file, under [`cli`]; what the daemon does is under [`server`], what it is told under [`config`].
#![forbid(unsafe_code)]
// The command speaks through `cli::say` alone, which never panics where nothing can be written.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod cli;
pub mod config;
pub mod cpu_list;
pub mod doctor;
pub mod hiccups;
pub mod metrics;
pub mod server;
pub mod tune;
