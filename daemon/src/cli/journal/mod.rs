//! `shmcast journal`: shows, checks and copies the journals that recorders wrote.

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

use super::say::note;
use super::stop::Stop;
use anyhow::{Context, Result, bail};
use shmcast::journal::{Journal, Streams};
use std::path::{Path, PathBuf};
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
    /// List the streams of a journal and their files
    Ls(ls::Args),
    /// Show a summary of a journal
    Stat(stat::Args),
    /// Check every byte of a journal
    Verify(verify::Args),
    /// Print a journal's messages, losses and control records
    Dump(dump::Args),
    /// Copy a part of a journal into a journal of its own
    Cut(cut::Args),
    /// Join parts of a journal into one journal
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

/// A journal that a verb reads.
#[derive(Debug, clap::Args)]
pub(super) struct Source {
    /// Directory of the journal, or the folder of one stream in it. With the directory, the newest stream is used
    #[arg(id = "journal", value_name = "JOURNAL")]
    pub(super) dir: PathBuf,
}

impl Source {
    /// Opens the journal.
    fn open(&self) -> Result<Journal> {
        open(&self.dir)
    }

    /// Opens the journal. If the directory has several streams, prints which stream was chosen. Prints which files are not used.
    fn open_and_say(&self) -> Result<Journal> {
        open_and_say(&self.dir)
    }
}

fn open(dir: &Path) -> Result<Journal> {
    let journal = Journal::open(dir).context("journal")?;
    if journal.files().is_empty() {
        let folder = journal.path().display();
        bail!(
            "no file in {folder}, the newest stream, can be used: see `shmcast journal verify {folder}`, or give the folder of another stream"
        );
    }
    Ok(journal)
}

pub(super) fn open_and_say(dir: &Path) -> Result<Journal> {
    let journal = open(dir)?;
    say_stream(dir, &journal);
    for problem in journal.unusable() {
        let dir = dir.display();
        note!("{} is not used: {}: see `shmcast journal verify {dir}`", problem.name, problem.why);
    }
    Ok(journal)
}

/// If the directory has several streams, prints which stream was chosen.
fn say_stream(dir: &Path, journal: &Journal) {
    let others = Streams::open(dir).map_or(0, |streams| {
        let has_any = |journal: &&Journal| !journal.files().is_empty() || !journal.problems().is_empty();
        let there = streams.journals().iter().filter(has_any);
        there.filter(|other| other.stream() != journal.stream()).count()
    });
    if let (1.., Some(stream)) = (others, journal.stream()) {
        let dir = dir.display();
        note!(
            "{dir}: this is of stream {stream}, the newest; `shmcast journal ls {dir}` shows {others} more: give the folder {dir}/STREAM of one"
        );
    }
}

/// The directory that has the file at `path`.
fn above(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Checks that `path` can get a name in a directory: the directory exists.
pub(super) fn check_above(path: &Path) -> Result<()> {
    let above = above(path);
    if !above.is_dir() {
        let above = above.display();
        bail!("{}: {above} is no directory: make it first (mkdir -p {above})", path.display());
    }
    Ok(())
}

/// Returns the error of a verb that a signal stopped before `path` was written.
fn not_written(stop: &Stop, path: &Path) -> anyhow::Error {
    stop.interrupted(format!("{}: INTERRUPTED, and not written", path.display())).into()
}
