//! `shmcast replay`: publishes a journal again.
//!
//! Readers of the new channel get what readers of the recorded one got: the same messages by the same sequences, with tags, keys, gaps
//! and sessions of bridges. Messages that the journal lacks are a gap to them.

use super::figures::grouped;
use super::journal::Source;
use super::journal::span::{Item, Part, Span, schema_of};
use super::pace::{Schedule, Speed};
use super::publish::progress;
use super::ring::{RingArgs, told, wait_for_readers};
use super::say::{note, print_json};
use super::stop::Stop;
use super::units::{parse_cpu, parse_duration, words};
use super::{Host, HostArg, MISSED};
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use shmcast::hosting::session_identity;
use shmcast::journal::format::ControlRecord;
use shmcast::journal::{Entry, JournalControl};
use shmcast::{Mark, Publisher};
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

const EXAMPLE: &str = "\
Examples:
  shmcast replay /var/lib/shmcast/ticks --into ticks-again --wait-readers 1
  shmcast replay ticks.journal --into ticks-again --from 09:30 --to 10:00 --speed 100 --max-pause 1s

The channel must be new, or go on where the replay begins: readers get the sequences that were
recorded. Messages that the journal lacks are a gap to them. Messages are published when they are
due, or with --speed max one behind the other: readers that are slower are lapped, as by pub.

Exit codes: 0 all was published, 3 sequences are missing in the journal, 1 error, 2 wrong usage;
130 (Ctrl-C) or 143 (SIGTERM) if it came before the end: the last line says how to go on.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    #[command(flatten)]
    source: Source,
    /// Name of the channel to publish on
    #[arg(long, value_name = "CHANNEL")]
    into: String,
    #[command(flatten)]
    host: HostArg,
    #[command(flatten)]
    span: Span,
    /// How fast: 1 as it was recorded, 10 ten times as fast, 0.5 half as fast, or max
    #[arg(long, value_name = "SPEED", default_value = "1", value_parser = words(&["max"], Speed::from_str),
          hide_possible_values = true)]
    speed: Speed,
    /// Shorten each silence of the recording to this time, as in 1s, before --speed counts
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    max_pause: Option<Duration>,
    #[command(flatten)]
    ring: RingArgs,
    /// Wait until this many readers are attached; recorders and bridges are none
    #[arg(long, value_name = "N", default_value_t = 0)]
    wait_readers: usize,
    /// Pin the publisher to this CPU
    #[arg(long, value_name = "N", value_parser = parse_cpu)]
    cpu: Option<usize>,
    /// Print the summary as JSON on stdout
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    // A wrong directory or part should leave nothing behind.
    let mut part = args.span.open(&args.source)?;
    super::name_and_pin(None, args.cpu)?;
    let first = part.due();
    let (host, channel) = args.host.host_of(&args.into)?;
    // Opening a channel tells its readers of a publisher, so it is looked at before.
    if let Some(next) = host.channel(&channel).ok().and_then(|status| status.next_sequence) {
        check_fits(&host, &channel, &args.source.dir, next, first)?;
    }
    let mut builder = args.ring.publisher(&host, &channel)?;
    if part.schema.id != 0 {
        builder = builder.schema(part.schema.id, part.schema.name.clone());
    }
    let publisher = builder.open()?;
    check_fits(&host, &channel, &args.source.dir, publisher.next_sequence(), first)?;
    wait_for_readers(args.wait_readers, &host, &channel, &stop)?;

    let (started, bar) = (Instant::now(), progress());
    let mut play = Play { publisher, published: 0, bytes: 0, gaps: 0, missing: 0 };
    let played = play.all(args, &mut part, &stop, &bar);
    let seconds = started.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let is_complete = played?;
    let next = play.publisher.next_sequence();
    let summary =
        Summary { channel: &channel, first, next, seconds, is_complete, too_old: part.too_old, play: &play };
    if args.json {
        print_json(&summary.json(&args.source.dir))?;
    }
    if !is_complete {
        return Err(stop.interrupted(format!("{}; go on with --from {next}", summary.text())).into());
    }
    if !args.json {
        note!("{}", summary.text());
    }
    Ok(if play.missing + part.too_old > 0 { ExitCode::from(MISSED) } else { ExitCode::SUCCESS })
}

struct Summary<'a> {
    channel: &'a str,
    first: u64,
    next: u64,
    seconds: f64,
    is_complete: bool,
    too_old: u64,
    play: &'a Play,
}

impl Summary<'_> {
    fn json(&self, journal: &Path) -> Value {
        let Play { publisher, published, bytes, gaps, missing } = self.play;
        json!({
            "channel": self.channel, "journal": journal, "epoch": publisher.epoch(), "published": published,
            "bytes": bytes, "gaps": gaps, "missing": missing, "too_old": self.too_old,
            "first_sequence": self.first, "next_sequence": self.next, "seconds": self.seconds,
            "interrupted": !self.is_complete,
        })
    }

    fn text(&self) -> String {
        let &Play { published, bytes, gaps, missing, .. } = self.play;
        let sequences = match self.next - 1 {
            last if last < self.first => format!("the next sequence is {}", self.first),
            last => format!("sequences {} to {last}", self.first),
        };
        let mut text =
            told("replayed", self.channel, self.is_complete, published, bytes, self.seconds, &sequences);
        if missing > 0 {
            text += &format!("; {} are MISSING, {} gaps to readers", grouped(missing), grouped(gaps));
        }
        text
    }
}

/// A channel whose next sequence is `next` can take a stream from `first` on if it is new, or goes on there.
fn check_fits(host: &Host, channel: &str, journal: &Path, next: u64, first: u64) -> Result<()> {
    if next == 1 || next == first {
        return Ok(());
    }
    let again = match host {
        Host::Directory(_) => format!("remove it with `shmcast rm {channel}`, or name a new channel"),
        Host::Daemon(_) => "name a channel that nothing was published on".to_owned(),
    };
    bail!(
        "{channel} is at sequence {next}, and the replay of {} begins at {first}: readers would take the one stream for the other: \
         {again}; or go on where it is with --from {next}",
        journal.display()
    )
}

/// A replay so far.
struct Play {
    publisher: Publisher,
    published: u64,
    bytes: u64,
    /// Gaps that readers were told of, and sequences in them.
    gaps: u64,
    missing: u64,
}

impl Play {
    /// Publishes the part. The result is whether all of it was published before any signal.
    fn all(&mut self, args: &Args, part: &mut Part, stop: &Stop, bar: &ProgressBar) -> Result<bool> {
        // Readers of a new channel begin at the first sequence of the part.
        self.publisher.gap(part.due() - 1)?;
        let mut schedule = Schedule::new(stop, args.speed, args.max_pause);
        let (schema, into) = (part.schema.clone(), &args.into);
        while let Some(Item { entry, about_ns, header, .. }) = part.next()? {
            match entry {
                Entry::Message(message) => {
                    if (header.schema_id, &header.schema) != (schema.id, &schema.name) {
                        let (found, from) = (schema_of(header), message.sequence);
                        bail!(
                            "message {from} of the journal is of {found}, and what was published on {into} is of {schema}, which \
                             its readers expect: replay the rest into another channel, with --from {from}"
                        );
                    }
                    if let Some(about_ns) = about_ns {
                        schedule.wait(about_ns);
                    }
                    if stop.is_set() {
                        return Ok(false);
                    }
                    let mark = Mark { tag: message.tag, key: message.key };
                    let sequence = self.publisher.publish_with(message.payload, mark).with_context(|| {
                        format!("message {}: a channel for it is made with --max-message", message.sequence)
                    })?;
                    if sequence != message.sequence {
                        bail!("message {} of the journal came out of order", message.sequence);
                    }
                    self.published += 1;
                    self.bytes += message.payload.len() as u64;
                    if args.speed != Speed::Max || self.published.is_multiple_of(4096) {
                        bar.set_position(self.published);
                    }
                }
                Entry::Lost(loss) => self.gap(loss.to)?,
                Entry::Control { control: JournalControl::Ring(ControlRecord::Gap { to, .. }), .. } => {
                    self.gap(to)?;
                }
                Entry::Control {
                    control: JournalControl::Ring(ControlRecord::Session { high, low }),
                    ..
                } => self.publisher.session(session_identity([high, low]))?,
                // Epochs and the end are the new publisher's own; the rest is about the recording.
                _ => {}
            }
        }
        Ok(true)
    }

    fn gap(&mut self, to: u64) -> Result<()> {
        let from = self.publisher.next_sequence();
        self.publisher.gap(to)?;
        self.gaps += 1;
        self.missing += to + 1 - from;
        Ok(())
    }
}
