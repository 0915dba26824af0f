//! `shmcast journal hold` and `release`. `hold` makes the daemon keep files of a journal, and `release` ends such a hold.

use super::span::sequence_at;
use super::{Source, above, say_stream};
use crate::cli::code_if;
use crate::cli::figures::grouped;
use crate::cli::say::{note, print_json};
use crate::cli::units::{Place, parse_place, words};
use anyhow::{Context, Result, bail};
use serde_json::json;
use shmcast::StreamId;
use shmcast::journal::Journal;
use std::path::Path;
use std::process::ExitCode;

const HOLD_EXAMPLE: &str = "\
Example: shmcast journal hold /var/lib/shmcast/ticks audit-2026 --from 09:30

Files that have this sequence or later ones stay, whatever keep_bytes and keep_age say, until
`shmcast journal release` ends the hold. If less than keep_free is free on the file system they go all
the same, and the daemon says so. A hold of the same name is replaced; `shmcast journal stat` shows all.

Exit codes: 0 held, 3 held, and files of the part that was asked for are gone already, 1 error.";

#[derive(Debug, clap::Args)]
#[command(after_help = HOLD_EXAMPLE)]
pub(super) struct HoldArgs {
    #[command(flatten)]
    source: Source,
    /// Name of the hold: 1 to 64 letters, digits, ., _ and -
    name: String,
    /// First sequence to keep, or the time of the first message: HH:MM[:SS[.FRACTION]] of today (UTC), a date and time, or
    /// @SECONDS since 1970 [default: the oldest]
    #[arg(long, value_name = "SEQ|TIME", value_parser = words(&[], parse_place))]
    from: Option<Place>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: shmcast journal release /var/lib/shmcast/ticks audit-2026")]
pub(super) struct ReleaseArgs {
    #[command(flatten)]
    source: Source,
    /// Name of the hold
    name: String,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &HoldArgs) -> Result<ExitCode> {
    let HoldArgs { source, name, .. } = args;
    let dir = &source.dir;
    let journal = source.open_and_say()?;
    let (home, stream) = home(source, &journal)?;
    let oldest = journal.first_sequence();
    let oldest = oldest
        .with_context(|| format!("no file in {} can be used: see `shmcast journal verify`", dir.display()))?;
    let from = args.from.map_or(Ok(oldest), |place| sequence_at(journal, place))?;
    shmcast_journal::hold(home, stream, name, from).with_context(|| format!("hold {}", dir.display()))?;
    // Files from `from` on might have been removed before the hold existed.
    let oldest = Journal::open_stream(home, stream)?.first_sequence().unwrap_or(from);
    let gone = oldest.saturating_sub(from);
    if args.json {
        print_json(&json!({ "directory": dir, "hold": name, "from": from, "oldest": oldest, "gone": gone }))?;
    } else {
        note!("{}: {name} keeps everything from sequence {}", dir.display(), grouped(from.max(oldest)));
        if gone > 0 {
            let (gone, last) = (grouped(gone), grouped(oldest - 1));
            note!("{}: {} to {last} ({gone}) are gone already", dir.display(), grouped(from));
        }
    }
    Ok(code_if(gone > 0))
}

pub(super) fn release(args: &ReleaseArgs) -> Result<ExitCode> {
    let ReleaseArgs { source, name, json } = args;
    let dir = &source.dir;
    // A hold can be released even if no file of the stream can be used.
    let journal = Journal::open(dir).context("journal")?;
    say_stream(dir, &journal);
    let (home, stream) = home(source, &journal)?;
    let was_there =
        shmcast_journal::release(home, stream, name).with_context(|| format!("release {}", dir.display()))?;
    if !was_there {
        let dir = dir.display();
        bail!("{dir}: no hold {name}: `shmcast journal stat {dir}` shows those that are there");
    }
    match json {
        true => print_json(&json!({ "directory": dir, "hold": name }))?,
        false => note!("{}: hold {name} is over", dir.display()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the journal's directory, and the stream to which the journal belongs.
fn home<'a>(source: &'a Source, journal: &Journal) -> Result<(&'a Path, StreamId)> {
    let dir = &source.dir;
    let stream = journal
        .stream()
        .with_context(|| format!("no file in {} can be used: see `shmcast journal verify`", dir.display()))?;
    let is_folder = journal.path() == dir;
    let is_named = dir.file_name().is_some_and(|name| name == stream.to_string().as_str());
    match (is_folder, is_named) {
        (false, _) => Ok((dir, stream)),
        (true, true) => Ok((above(dir), stream)),
        (true, false) => bail!(
            "{}: its files lie in the directory itself, and a hold is for the folder {stream} in a journal's directory",
            dir.display()
        ),
    }
}
