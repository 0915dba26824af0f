//! `shmcast journal cut`: copies a part of a journal into a new journal.

use super::Source;
use super::new::{New, Sums};
use super::span::{Item, Span};
use crate::cli::stop::Stop;
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressFinish};
use shmcast::Message;
use shmcast::journal::format::{ControlRecord, FileHeader};
use shmcast::journal::{Entry, Journal, JournalControl};
use shmcast_journal::Cut;
use std::path::Path;
use std::process::ExitCode;

const EXAMPLE: &str = "\
Example: shmcast journal cut /var/lib/shmcast/ticks --from 09:30 --to 10:00 /var/tmp/half-an-hour

OUT appears when all of it is written and safe from a power cut. Identity, sequences and times are
those of the journal; what is missing in the part is named with its cause.

Exit codes: 0 nothing missing, 3 sequences are missing or skipped and the journal names each,
1 error; 130 (Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP) if it came before the end: there is no OUT
then.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    out: New,
    #[command(flatten)]
    span: Span,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    args.out.write(|unfinished| copy(args, unfinished, &stop))
}

fn copy(args: &Args, to: &Path, stop: &Stop) -> Result<Sums> {
    let mut part = args.span.open(&args.source)?;
    let mut sums = Sums { first: part.due(), too_old: part.too_old, ..Sums::default() };
    let bar = ProgressBar::new_spinner().with_message("cutting").with_finish(ProgressFinish::AndClear);
    let (header, clock) = beginning(args.source.open()?, part.due(), stop, &args.out, &bar)?;
    let mut cut = Cut::begin(to, &header, args.out.file, clock)?;
    while let Some(Item { entry, wall_ns, header, .. }) = part.next()? {
        if stop.is_set() {
            return Err(args.out.not_written(stop));
        }
        cut.go_on_in(header, clock_at(&entry, wall_ns, header));
        entry.missing().into_iter().for_each(|loss| sums.lacking.add(loss));
        match entry {
            Entry::Message(message) => {
                cut.message(&message, wall_ns)?;
                sums.messages += 1;
            }
            Entry::Lost(loss) => cut.loss(loss)?,
            Entry::Control { control, .. } if is_of_the_channel(&control) => cut.control(control)?,
            _ => {}
        }
        if sums.messages.is_multiple_of(4096) {
            bar.tick();
        }
    }
    sums.next = part.due();
    sums.lacks_files = part.lacks_files(sums.next);
    sums.bytes = cut.finish()?;
    Ok(sums)
}

/// Returns a wall clock and the ring's ticks at the same moment. This pair serves to convert later times in the same journal file to the
/// wall clock.
pub(super) fn clock_at(entry: &Entry<'_>, wall_ns: Option<u64>, header: &FileHeader) -> (u64, u64) {
    match (entry, wall_ns) {
        (Entry::Control { control: JournalControl::Clock { wall_ns, ticks, .. }, .. }, _) => {
            (*wall_ns, *ticks)
        }
        (Entry::Message(message), Some(wall_ns)) => (wall_ns, message.time),
        _ => (header.wall_ns, 0),
    }
}

/// Whether a control record is copied. Reserves, repairs and clean ends describe the files of the recording, and are not copied.
pub(super) const fn is_of_the_channel(control: &JournalControl) -> bool {
    matches!(control, JournalControl::Ring(_) | JournalControl::Source { .. } | JournalControl::Clock { .. })
}

/// Returns the header for a new file that begins with `first`. The header has the epoch and the ring of the message `first`. Also returns a
/// wall clock and the ring's ticks at the same moment, which serve to convert later times.
pub(super) fn beginning(
    journal: Journal,
    first: u64,
    stop: &Stop,
    out: &New,
    bar: &ProgressBar,
) -> Result<(FileHeader, (u64, u64))> {
    let files = journal.files();
    let file = files.iter().rev().find(|file| file.header.sequence <= first).or(files.first());
    let mut header = file.context("the journal has no file: see `shmcast journal verify`")?.header.clone();
    let mut clock = None;
    let mut reader = journal.read_from(header.sequence)?;
    while let Some(entry) = reader.next()? {
        if stop.is_set() {
            return Err(out.not_written(stop));
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
        let search = |signal| {
            beginning(
                args.source.open().expect("it is there"),
                7,
                &Stop::set_by(signal),
                &args.out,
                &ProgressBar::hidden(),
            )
        };
        let said = search(signal_hook::consts::SIGINT).expect_err("a signal came").to_string();
        assert_eq!(said, "out: INTERRUPTED, and not written");
        let (header, _) = search(0).expect("no signal came");
        assert_eq!(header.sequence, 7);
    }
}
