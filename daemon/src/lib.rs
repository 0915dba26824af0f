//! The daemon and the `shmcast` command. Both use the client library, and have no logic of the ring.
//!
//! Each verb of the command is a file in [`cli`]. The daemon is in [`server`], and its configuration in [`config`].
//!
//! The features `captures`, `http`, `nats`, `top` and `tune` are on by default. If a feature is off, the verbs and settings that need it
//! are refused with an error that names the feature.
#![forbid(unsafe_code)]
// The command prints only through `cli::say`, which does not panic if the output cannot be written.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod cli;
pub mod config;
pub mod cpu_list;
pub mod doctor;
pub mod hiccups;
pub mod server;
#[cfg(feature = "tune")]
pub mod tune;

/// Returns a clause for an error text. The clause says that this build lacks `feature`, and how to build with `feature`.
fn without(feature: &str) -> String {
    format!(
        "this build is without the feature `{feature}`, which `cargo build -p shmcast-daemon --features {feature}` has"
    )
}
