//! `shmcast journal join`: joins the parts of a journal into one journal.

use super::cut::{beginning, clock_at, is_of_the_channel};
use super::new::{New, Sums};
use super::span::{Item, Part};
use super::{open, open_and_say};
use crate::cli::stop::Stop;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressFinish};
use shmcast::StreamId;
use shmcast::journal::{Cause, Entry, JournalControl, Loss};
use shmcast_journal::Cut;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLE: &str = "\
Example: shmcast journal join /var/tmp/day morning afternoon evening

Each PART is the journal of one channel, or was cut out of it: all have the same identity. They may overlap, and
their order does not matter. A message that any of them has is in OUT; one that none has is named as missing, with the
cause that the parts tell, or as cut out where no part reaches.

Exit codes: 0 nothing missing, 3 sequences are missing or skipped and OUT names each, 1 error;
130 (Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP) if it came before the end: there is no OUT then.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    #[command(flatten)]
    out: New,
    /// Directories of the parts, or folders of one stream in them
    #[arg(required = true, value_name = "PART")]
    parts: Vec<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    let mut sources = sources(args)?;
    args.out.write(|unfinished| join(args, &mut sources, unfinished, &stop))
}

/// A part, and what its files contain.
struct Source<'a> {
    dir: &'a Path,
    /// The first sequence of the part.
    first: u64,
    /// The first sequence of the part's last complete file; 0 if no file is complete.
    complete: u64,
    part: Part,
}

/// Opens the parts, and refuses those of different streams.
fn sources(args: &Args) -> Result<Vec<Source<'_>>> {
    let mut known: Option<(StreamId, &Path)> = None;
    let mut sources = Vec::new();
    for dir in &args.parts {
        let (journal, shown) = (open_and_say(dir)?, dir.display());
        let Some(file) = journal.files().first() else {
            bail!("no file in {shown} can be used: see `shmcast journal verify {shown}`");
        };
        let (stream, other) = *known.get_or_insert((file.header.stream, dir));
        if !file.header.stream.is(stream) {
            let other = other.display();
            bail!(
                "{shown} has another stream than {other}: `shmcast journal ls` shows the streams of each: give the folder of one"
            );
        }
        let first = file.header.sequence;
        let complete = journal.files().iter().rfind(|file| file.trailer.is_some());
        let complete = complete.map_or(0, |file| file.header.sequence);
        sources.push(Source { dir, first, complete, part: Part::of(journal, first)? });
    }
    Ok(sources)
}

/// The state of the parts at a sequence.
enum Found {
    /// The part with this index has the message of this sequence, or records that the channel itself had a gap at this sequence.
    Part(usize),
    /// Every part that reaches this sequence has a loss at it. The value is the shortest of these losses, cut off where the next part
    /// begins.
    Lost(Loss),
    /// No part reaches this sequence.
    Nothing,
}

fn look(sources: &mut [Source<'_>], due: u64) -> Result<Found> {
    let mut lost: Option<Loss> = None;
    // The first sequence of the next part: of all parts that begin after `due`, the one that begins first.
    let mut next = u64::MAX;
    for (number, Source { first, part, .. }) in sources.iter_mut().enumerate() {
        if *first > due {
            next = next.min(*first);
            continue;
        }
        part.seek(due)?;
        while let Some(item) = part.next()? {
            match item.entry {
                Entry::Message(_) => return Ok(Found::Part(number)),
                Entry::Lost(loss) => {
                    if lost.is_none_or(|other| loss.to < other.to) {
                        lost = Some(Loss { from: due, ..loss });
                    }
                    break;
                }
                entry if entry.missing().is_some() => return Ok(Found::Part(number)),
                _ => {}
            }
        }
    }
    Ok(lost.map_or(Found::Nothing, |loss| Found::Lost(Loss { to: loss.to.min(next - 1), ..loss })))
}

struct Joining<'a> {
    args: &'a Args,
    stop: &'a Stop,
    bar: ProgressBar,
    cut: Cut,
    sums: Sums,
    /// The control records since the last message. They are kept because the next part might repeat them, and a repeated record is not
    /// copied again.
    since: Vec<JournalControl>,
    /// The last loss, which is not written yet, because the next loss might continue it.
    lost: Option<Loss>,
}

fn join(args: &Args, sources: &mut [Source<'_>], to: &Path, stop: &Stop) -> Result<Sums> {
    let bar = ProgressBar::new_spinner().with_message("joining").with_finish(ProgressFinish::AndClear);
    let first = sources.iter().min_by_key(|source| source.first).context("no part was given")?;
    let mut due = first.first;
    let (header, clock) = beginning(open(first.dir)?, due, stop, &args.out, &bar)?;
    let cut = Cut::begin(to, &header, args.out.file, clock)?;
    let sums = Sums { first: due, ..Sums::default() };
    let mut joining = Joining { args, stop, bar, cut, sums, since: Vec::new(), lost: None };
    loop {
        due = match look(sources, due)? {
            Found::Part(number) => joining.copy(&mut sources[number].part, due)?,
            Found::Lost(loss) => joining.lose(loss)?,
            Found::Nothing => {
                match sources.iter().map(|source| source.first).filter(|first| *first > due).min() {
                    Some(next) => joining.lose(Loss { from: due, to: next - 1, cause: Cause::Cut })?,
                    None => break,
                }
            }
        };
    }
    joining.write_loss()?;
    let mut sums = joining.sums;
    sums.next = due;
    sums.lacks_files = lacks_files(sources, sums.first, due);
    sums.bytes = joining.cut.finish()?;
    Ok(sums)
}

/// Whether a file that cannot be read might have messages that no other part has: messages before the sequence `first`, or from the sequence
/// `due` on. A complete copy of the file in another part has them all.
fn lacks_files(sources: &[Source<'_>], first: u64, due: u64) -> bool {
    let complete = sources.iter().map(|source| source.complete).max().unwrap_or(0);
    let mut unread = sources.iter().flat_map(|source| source.part.unread());
    unread.any(|file| file.start < first || file.contains(&due) && file.start > complete)
}

impl Joining<'_> {
    /// Copies a part from the sequence `due` on, until the part ends or records a loss. Returns the next sequence.
    fn copy(&mut self, part: &mut Part, due: u64) -> Result<u64> {
        part.seek(due)?;
        loop {
            if self.stop.is_set() {
                return Err(self.args.out.not_written(self.stop));
            }
            let due = part.due();
            let Some(Item { entry, wall_ns, header, .. }) = part.next()? else { return Ok(due) };
            if !matches!(entry, Entry::Lost(_)) {
                self.cut.go_on_in(header, clock_at(&entry, wall_ns, header));
            }
            match entry {
                Entry::Lost(_) => return Ok(due),
                Entry::Message(message) => {
                    self.write_loss()?;
                    self.cut.message(&message, wall_ns)?;
                    self.since.clear();
                    self.sums.messages += 1;
                    if self.sums.messages.is_multiple_of(4096) {
                        self.bar.tick();
                    }
                }
                Entry::Control { control, .. }
                    if is_of_the_channel(&control) && !self.since.contains(&control) =>
                {
                    self.write_loss()?;
                    entry.missing().into_iter().for_each(|gap| self.sums.lacking.add(gap));
                    self.since.push(control);
                    self.cut.control(control)?;
                }
                _ => {}
            }
        }
    }

    fn lose(&mut self, loss: Loss) -> Result<u64> {
        self.sums.lacking.add(loss);
        self.since.clear();
        match &mut self.lost {
            Some(before) if before.cause == loss.cause => before.to = loss.to,
            _ => {
                self.write_loss()?;
                self.lost = Some(loss);
            }
        }
        Ok(loss.to + 1)
    }

    fn write_loss(&mut self) -> Result<()> {
        self.lost.take().map_or(Ok(()), |loss| Ok(self.cut.loss(loss)?))
    }
}
