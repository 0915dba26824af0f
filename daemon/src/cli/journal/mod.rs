//! `shmcast journal`: looks into what a recorder kept of a channel.

mod cut;
mod dump;
mod export;
mod hold;
mod join;
mod ls;
mod new;
pub(super) mod span;
mod stat;
mod verify;

use super::stop::Stop;
use anyhow::{Context, Result};
use shmcast::journal::Journal;
use std::path::Path;
use std::process::ExitCode;

const EXAMPLE: &str = "\
Examples:
  shmcast journal ls /var/lib/shmcast/ticks
  shmcast journal verify /var/lib/shmcast/ticks && echo whole";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List the files of a journal
    Ls(ls::Args),
    /// Show what a journal has, as a whole
    Stat(stat::Args),
    /// Check every byte of a journal
    Verify(verify::Args),
    /// Print a journal's messages, losses and control records
    Dump(dump::Args),
    /// Copy a part of a journal into a journal of its own
    Cut(cut::Args),
    /// Make one journal of parts of it
    Join(join::Args),
    /// Write a journal as a capture of a feed
    Export(export::Args),
    /// Keep files that would be removed by their age or by the journal's size
    Hold(hold::HoldArgs),
    /// End a hold
    Release(hold::ReleaseArgs),
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        Verb::Ls(args) => ls::run(args),
        Verb::Stat(args) => stat::run(args),
        Verb::Verify(args) => verify::run(args),
        Verb::Dump(args) => dump::run(args),
        Verb::Cut(args) => cut::run(args),
        Verb::Join(args) => join::run(args),
        Verb::Export(args) => export::run(args),
        Verb::Hold(args) => hold::run(args),
        Verb::Release(args) => hold::release(args),
    }
}

fn open(dir: &Path) -> Result<Journal> {
    Journal::open(dir).context("journal")
}

/// The directory that has the file at `path`.
fn above(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The error of a verb that was stopped before `path` was whole.
fn not_written(stop: &Stop, path: &Path) -> anyhow::Error {
    stop.interrupted(format!("{}: INTERRUPTED, and not written", path.display())).into()
}
