//! The command line: verbs, their common options, and exit codes.
//!
//! A verb prints its data to stdout. It prints messages for the user to stderr (`say`).
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | success |
//! | 1 | error |
//! | 2 | wrong usage |
//! | 3 | messages were missed |
//! | 4 | a file of a journal is damaged |
//! | 130, 143, 129 | a signal came before the work was done (`stop`) |

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use place::{Host, HostArg};
use shmcast_demo::exit::{FAILED, describe, end, parse};
use shmcast_demo::{say, stop};
use std::ffi::CStr;
use std::process::ExitCode;

#[cfg(not(all(feature = "top", feature = "tune")))]
mod absent;
mod board;
mod bridge;
mod check;
pub mod daemon;
mod death;
mod doctor;
mod events;
mod figures;
mod framing;
mod hiccups;
mod journal;
mod ls;
mod man;
mod moved;
mod pace;
mod place;
mod publish;
mod record;
mod replay;
mod ring;
mod rm;
mod seccomp;
mod set;
mod stat;
mod subscribe;
mod takeover;
#[cfg(feature = "top")]
mod top;
#[cfg(feature = "tune")]
mod tune;
mod units;
mod verify_release;
mod waiting;
mod wanted;

#[cfg(not(feature = "top"))]
use absent::top;
#[cfg(not(feature = "tune"))]
use absent::tune;

/// Exit code when messages were missed.
const MISSED: u8 = 3;

/// Returns the exit code of a verb that has ended well, or has missed messages.
fn code_if(is_missed: bool) -> ExitCode {
    if is_missed { ExitCode::from(MISSED) } else { ExitCode::SUCCESS }
}

/// One publisher, a hundred local readers, one cache line a message.
#[derive(Debug, Parser)]
#[command(name = "shmcast", version, arg_required_else_help = true, max_term_width = 110)]
#[command(after_help = "Example: shmcast demo --readers 50\n\n\
    Exit codes: 0 success, 1 error, 2 wrong usage, 3 messages were missed, 4 a journal is damaged;\n\
    130 (Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP) if it came before the work was done. Verbs without\n\
    an end of their own are ended by Ctrl-C: it is no failure of theirs. If the reader of a pipe\n\
    leaves, the command ends with 0.")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure shared memory beside kernel multicast on this machine; needs no daemon and no configuration
    Demo(shmcast_demo::Args),
    /// Publish lines or length-prefixed messages from a file or stdin
    Pub(publish::Args),
    /// Receive a channel's messages to stdout
    Sub(subscribe::Args),
    /// Record a channel into files that survive a power cut
    Record(record::Args),
    /// Publish a journal or a capture of a network on a channel
    Replay(replay::Args),
    /// Show the last message of each key
    Board(board::Args),
    /// List channels
    Ls(ls::Args),
    /// Show one channel and its readers
    Stat(stat::Args),
    /// Show all channels and their readers, live
    Top(top::Args),
    /// Show what happens on the daemon's channels, as it happens
    Events(events::Args),
    /// Take a strict channel away from a publisher that runs but does not answer
    Takeover(takeover::Args),
    /// Remove a channel that nobody uses
    Rm(rm::Args),
    /// Carry a channel between hosts
    Bridge(bridge::Args),
    /// Look into a channel's journal
    Journal(journal::Args),
    /// Check a daemon's configuration file
    Check(check::Args),
    Doctor(doctor::Args),
    Tune(tune::Args),
    Hiccups(hiccups::Args),
    Seccomp(seccomp::Args),
    VerifyRelease(verify_release::Args),
    /// Write the manual pages of both programs
    Man(man::ManArgs),
    /// Print a completion script for a shell
    Completions(man::CompletionsArgs),
    #[command(hide = true)]
    DemoReader(shmcast_demo::reader::Args),
}

/// Parses the arguments of this process, and runs the verb.
pub fn main() -> ExitCode {
    match man::complete() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        // The error is not printed, because it would appear in the middle of the command line that the user types.
        Err(_) => return ExitCode::from(FAILED),
    }
    let cli: Cli = match parse(moved::shown) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    if let Err(e) = stop::survive_file_size_limit() {
        return ExitCode::from(end(&e.into()));
    }
    let result = match cli.verb {
        Verb::Demo(args) => shmcast_demo::run(&args),
        Verb::Pub(args) => publish::run(&args),
        Verb::Sub(args) => subscribe::run(&args),
        Verb::Record(args) => record::run(&args),
        Verb::Replay(args) => replay::run(&args),
        Verb::Board(args) => board::run(&args),
        Verb::Ls(args) => ls::run(&args),
        Verb::Stat(args) => stat::run(&args),
        Verb::Top(args) => top::run(&args),
        Verb::Events(args) => events::run(&args),
        Verb::Takeover(args) => takeover::run(&args),
        Verb::Rm(args) => rm::run(&args),
        Verb::Bridge(args) => bridge::run(&args),
        Verb::Journal(args) => journal::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Seccomp(args) => seccomp::run(&args),
        Verb::VerifyRelease(args) => verify_release::run(&args),
        Verb::Tune(args) => tune::run(&args),
        Verb::Hiccups(args) => hiccups::run(&args),
        Verb::Man(args) => man::manuals(&args),
        Verb::Completions(args) => man::completions(&args),
        Verb::DemoReader(args) => shmcast_demo::reader::run(&args),
    };
    result.unwrap_or_else(|error| ExitCode::from(end(&error)))
}

/// Sets the name that tools show for this process, if the user gave one. If the user gave a CPU, pins this thread to it.
fn name_and_pin(name: Option<&CStr>, cpu: Option<usize>) -> Result<()> {
    name.map_or(Ok(()), nix::sys::prctl::set_name)?;
    match cpu {
        Some(cpu) => shmcast::pin_current_thread(cpu).with_context(|| format!("pin to --cpu {cpu}")),
        None => Ok(()),
    }
}
