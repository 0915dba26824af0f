//! The command line: verbs, their common options, and exit codes.
//!
//! Data goes to stdout, everything said about it to stderr. Exit code 0 is success, 1 an error, 2 wrong usage, 3 that
//! messages were missed.

use anyhow::Result;
use clap::{Parser, Subcommand};
use shmcast::Directory;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

mod demo;
mod figures;
mod framing;
mod ls;
mod publish;
mod rm;
mod stat;
mod subscribe;

/// One publisher, a hundred local readers, one cache line a message.
#[derive(Debug, Parser)]
#[command(name = "shmcast", version, arg_required_else_help = true, max_term_width = 110)]
#[command(
    after_help = "Example: shmcast demo --readers 50\n\nExit codes: 0 success, 1 error, 2 wrong usage, 3 messages were missed."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure shared memory beside kernel multicast on this machine; needs nothing else running
    Demo(demo::Args),
    /// Publish lines or length-prefixed messages from a file or stdin
    Pub(publish::Args),
    /// Receive a channel's messages to stdout
    Sub(subscribe::Args),
    /// List channels
    Ls(ls::Args),
    /// Show one channel and its readers
    Stat(stat::Args),
    /// Remove a channel that nobody uses
    Rm(rm::Args),
    #[command(hide = true)]
    DemoReader(demo::reader::Args),
}

/// Where channels are.
#[derive(Debug, Clone, clap::Args)]
struct DirArg {
    /// Directory of the channels [default: $SHMCAST_DIR or /dev/shm/shmcast]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl DirArg {
    fn directory(&self) -> Directory {
        self.dir.as_ref().map_or_else(Directory::default, Directory::at)
    }
}

/// Runs the command line this process was given.
pub fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Demo(args) => demo::run(&args),
        Verb::Pub(args) => publish::run(&args),
        Verb::Sub(args) => subscribe::run(&args),
        Verb::Ls(args) => ls::run(&args),
        Verb::Stat(args) => stat::run(&args),
        Verb::Rm(args) => rm::run(&args),
        Verb::DemoReader(args) => demo::reader::run(&args),
    };
    result.unwrap_or_else(|error| {
        // Whoever reads our output has left: that is his decision, not an error.
        let pipe_closed = error.chain().filter_map(|e| e.downcast_ref::<std::io::Error>());
        if pipe_closed.into_iter().any(|e| e.kind() == std::io::ErrorKind::BrokenPipe) {
            return ExitCode::SUCCESS;
        }
        let mut text = error.to_string();
        for cause in error.chain().skip(1).map(ToString::to_string) {
            // Some errors quote their cause, some leave it to the chain.
            if !text.contains(&cause) {
                text = format!("{text}: {cause}");
            }
        }
        eprintln!("shmcast: {text}");
        ExitCode::FAILURE
    })
}

/// Becomes true at the first Ctrl-C or SIGTERM; a second one ends the process at once.
fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

fn stopped(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed)
}

/// Prints a value as one line of JSON.
fn print_json(value: &impl serde::Serialize) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, value).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}
