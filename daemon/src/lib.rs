//! The daemon and the `shmcast` command. Both are built on the client library, and hold no logic of the ring.
//!
//! Each verb of the command is one file under [`cli`]. The daemon is under [`server`], its configuration under
//! [`config`].
#![forbid(unsafe_code)]
// The command prints only through `cli::say`, which does not panic if the output cannot be written.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod cli;
pub mod config;
pub mod cpu_list;
pub mod doctor;
pub mod hiccups;
pub mod server;
pub mod tune;
