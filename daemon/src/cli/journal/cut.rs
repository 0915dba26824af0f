//! `shmcast journal cut`: a part of a journal as a journal of its own.

use super::span::Span;
use super::{above, not_written, open};
use crate::cli::MISSED;
use crate::cli::figures::{grouped, size};
use crate::cli::say::{note, print_json};
use crate::cli::stop::Stop;
use crate::cli::units::parse_size;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressFinish};
use serde_json::json;
use shmcast::Message;
use shmcast::journal::format::{ControlRecord, FileHeader};
use shmcast::journal::{Entry, JournalControl};
use shmcast_journal::Cut;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLE: &str = "\
Example: shmcast journal cut /var/lib/shmcast/ticks --from 09:30 --to 10:00 /var/tmp/half-an-hour

OUT appears when all of it is written and safe from a power cut. Identity, sequences and times are
those of the journal; what is missing in the part is named with its cause.

Exit codes: 0 nothing missing, 3 sequences are missing and the journal names each, 1 error;
130 (Ctrl-C) or 143 (SIGTERM) if it came before the end: there is no OUT then.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Directory of the journal
    dir: PathBuf,
    /// Directory of the new journal, which must not be there
    out: PathBuf,
    #[command(flatten)]
    span: Span,
    /// Size at which a file is sealed and the next one begun: 1MiB to 64GiB
    #[arg(long, default_value = "1GiB", value_parser = parse_size)]
    file: u64,
    /// Print the sums as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    if !((1 << 20)..=shmcast::journal::format::MAX_FILE).contains(&args.file) {
        bail!("--file {}: give 1MiB to 64GiB", args.file);
    }
    let out = args.out.display();
    if args.out.symlink_metadata().is_ok() {
        bail!("{out} is there already: remove it, or give another directory");
    }
    let parent = above(&args.out);
    // It gets its name when it is whole. Dropped before, it is removed.
    let unfinished = tempfile::Builder::new().prefix(".shmcast-cut-").tempdir_in(parent);
    let unfinished = unfinished.with_context(|| format!("make a directory in {}", parent.display()))?;
    let sums = copy(args, unfinished.path(), &stop)?;
    File::open(unfinished.path()).and_then(|dir| dir.sync_all()).with_context(|| format!("sync {out}"))?;
    std::fs::rename(unfinished.path(), &args.out).with_context(|| format!("name {out}"))?;
    let _ = unfinished.keep();
    File::open(parent)
        .and_then(|dir| dir.sync_all())
        .with_context(|| format!("sync {}", parent.display()))?;
    if args.json {
        print_json(&json!({
            "directory": args.out, "first_sequence": sums.first, "next_sequence": sums.next,
            "messages": sums.messages, "missing": sums.missing, "too_old": sums.too_old, "bytes": sums.bytes,
        }))?;
    } else {
        let (messages, bytes, missing) = (grouped(sums.messages), size(sums.bytes), grouped(sums.missing));
        let missing =
            if sums.missing > 0 { format!("; {missing} are missing, and named") } else { String::new() };
        note!(
            "{out}: {messages} messages in {bytes}, sequences {} to {}{missing}",
            sums.first,
            sums.next - 1
        );
    }
    Ok(if sums.missing + sums.too_old > 0 { ExitCode::from(MISSED) } else { ExitCode::SUCCESS })
}

#[derive(Debug, Default)]
struct Sums {
    first: u64,
    next: u64,
    messages: u64,
    missing: u64,
    too_old: u64,
    bytes: u64,
}

fn copy(args: &Args, to: &Path, stop: &Stop) -> Result<Sums> {
    let mut part = args.span.open(&args.dir)?;
    let mut sums = Sums { first: part.due(), too_old: part.too_old, ..Sums::default() };
    let bar = ProgressBar::new_spinner().with_message("cutting").with_finish(ProgressFinish::AndClear);
    let (header, clock) = beginning(args, part.due(), stop, &bar)?;
    let mut cut = Cut::begin(to, &header, args.file, clock)?;
    while let Some((entry, wall_ns)) = part.next()? {
        if stop.is_set() {
            return Err(not_written(stop, &args.out));
        }
        match entry {
            Entry::Message(message) => {
                cut.message(&message, wall_ns)?;
                sums.messages += 1;
            }
            Entry::Lost(loss) => {
                sums.missing += loss.to + 1 - loss.from;
                cut.loss(loss)?;
            }
            Entry::Control { control, .. } => match control {
                JournalControl::Ring(_) | JournalControl::Source { .. } | JournalControl::Clock { .. } => {
                    cut.control(control)?;
                }
                // Reserves, mends and the end are of the files that were recorded.
                _ => {}
            },
            _ => {}
        }
        if sums.messages.is_multiple_of(4096) {
            bar.tick();
        }
    }
    sums.next = part.due();
    sums.bytes = cut.finish()?;
    Ok(sums)
}

/// The header of the file that has `first`, with what holds there; and a wall clock with its ticks that is right for what follows.
fn beginning(args: &Args, first: u64, stop: &Stop, bar: &ProgressBar) -> Result<(FileHeader, (u64, u64))> {
    let journal = open(&args.dir)?;
    let files = journal.files();
    let file = files.iter().rev().find(|file| file.header.sequence <= first).or(files.first());
    let mut header = file.context("the journal has no file: see `shmcast journal verify`")?.header.clone();
    let mut clock = None;
    let mut reader = journal.read_from(header.sequence)?;
    while let Some(entry) = reader.next()? {
        if stop.is_set() {
            return Err(not_written(stop, &args.out));
        }
        match entry {
            Entry::Control { sequence, control, .. } if sequence <= first => match control {
                JournalControl::Ring(ControlRecord::Epoch { epoch }) if sequence < first => {
                    header.epoch = epoch
                }
                JournalControl::Source { ring, generation, epoch, .. } => {
                    (header.ring.uuid, header.ring.generation, header.epoch) = (ring, generation, epoch);
                }
                JournalControl::Clock { wall_ns, ticks, .. } => clock = Some((wall_ns, ticks)),
                _ => {}
            },
            Entry::Message(Message { sequence, time, .. }) if sequence >= first => {
                if let Some(wall_ns) = reader.wall_ns(time) {
                    clock = Some((wall_ns, time));
                }
                break;
            }
            Entry::Message(message) if message.sequence.is_multiple_of(4096) => bar.tick(),
            Entry::Lost(loss) if loss.to >= first => break,
            Entry::Control { sequence, .. } if sequence > first => break,
            _ => {}
        }
    }
    let clock = clock.unwrap_or((header.wall_ns, 0));
    header.sequence = first;
    Ok((header, clock))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    #[test]
    fn a_signal_ends_the_search_for_the_beginning() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shm-layout/tests/golden/journal");
        let command = <Args as clap::Args>::augment_args(clap::Command::new("cut"));
        let matches = command.get_matches_from(["cut".as_ref(), golden.as_os_str(), "out".as_ref()]);
        let args = Args::from_arg_matches(&matches).expect("all that is required is there");
        let search = |signal| beginning(&args, 7, &Stop::set_by(signal), &ProgressBar::hidden());
        let said = search(signal_hook::consts::SIGINT).expect_err("a signal came").to_string();
        assert_eq!(said, "out: INTERRUPTED, and not written");
        let (header, _) = search(0).expect("no signal came");
        assert_eq!(header.sequence, 7);
    }
}
