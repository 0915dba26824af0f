//! The demo as a program of its own, which is quick to build.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use shmcast_demo::exit::{WRONG_USAGE, end, parse};
use shmcast_demo::say::note;
use std::ffi::OsString;
use std::process::ExitCode;

/// The demo of shmcast: one publisher, a hundred local readers, one cache line a message.
#[derive(Debug, Parser)]
#[command(name = "shmcast-demo", version, arg_required_else_help = true, max_term_width = 110)]
#[command(after_help = "Example: cargo run --release -- demo --readers 50\n\n\
    This program is quick to build and has the demo alone. All verbs of shmcast, and the daemon:\n\
    cargo install --path daemon --locked --profile dist")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure shared memory beside kernel multicast on this machine; needs no daemon and no configuration
    Demo(shmcast_demo::Args),
    #[command(hide = true)]
    DemoReader(shmcast_demo::reader::Args),
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

fn main() -> ExitCode {
    let cli: Cli = match parse(str::to_owned) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let result = match cli.verb {
        Verb::Demo(args) => shmcast_demo::run(&args),
        Verb::DemoReader(args) => shmcast_demo::reader::run(&args),
        Verb::Other(arguments) => Ok(no_such_verb(&arguments)),
    };
    result.unwrap_or_else(|error| ExitCode::from(end(&error)))
}

/// Prints an error that names the program with the other verbs.
fn no_such_verb(arguments: &[OsString]) -> ExitCode {
    let all: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
    note!(
        "{:?}: this program has the verb `demo` alone. The whole command has the others: `cargo install --path daemon \
         --locked --profile dist` installs it, `cargo build --release -p shmcast-daemon` builds target/release/shmcast, and `cargo \
         run --release -p shmcast-daemon -- {}` runs it once",
        all[0],
        all.join(" ")
    );
    ExitCode::from(WRONG_USAGE)
}
