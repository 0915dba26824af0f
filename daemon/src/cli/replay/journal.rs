//! Publishes a journal again, in a new channel.
//!
//! Readers of the new channel receive what readers of the recorded channel received: the same messages, with the same sequences, tags, key
//! flags, gaps and sessions of bridges. Messages that the journal lacks are gaps.

use super::Args;
use crate::cli::figures::grouped;
use crate::cli::journal::Source;
use crate::cli::journal::span::{Item, Part, schema_of};
use crate::cli::pace::{Schedule, Speed};
use crate::cli::publish::{FilesLook, progress};
use crate::cli::ring::{Counts, Published, close, is_full, wait_for_readers};
use crate::cli::say::{note, print_json};
use crate::cli::stop::Stop;
use crate::cli::{Host, code_if};
use anyhow::{Error, Result, bail};
use indicatif::ProgressBar;
use serde_json::json;
use shmcast::hosting::session_identity;
use shmcast::journal::format::ControlRecord;
use shmcast::journal::{Cause, Entry, Journal, JournalControl, Loss, largest_message_of};
use shmcast::{Mark, Message, PublishError, Publisher, TooLarge};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

pub(super) fn run(args: &Args, stop: &Stop) -> Result<ExitCode> {
    let dir = &args.recording;
    // The journal is opened before the channel is made, so that a wrong directory or part leaves no channel.
    let mut part = args.span.open(&Source { dir: dir.clone() })?;
    let settings = args.ring.begin()?;
    let first = part.due();
    let (host, channel) = args.host.host_of(&args.into)?;
    // The channel is examined first, because opening it would announce a publisher to its readers.
    let there = host.channel(&channel).ok();
    if let Some(next) = there.as_ref().and_then(|status| status.next_sequence) {
        check_fits(&host, &channel, dir, next, first)?;
    }
    let known = there.map_or(0, |status| status.max_message_bytes);
    let largest = if known > 0 { Some(known) } else { settings.largest_message() };
    if let Some(largest) = largest {
        check_sizes(args, largest, stop)?;
    }
    let mut builder = settings.publisher(&host, &channel)?;
    if part.schema.id != 0 {
        builder = builder.schema(part.schema.id, part.schema.name.clone());
    }
    let mut publisher = builder.open()?;
    publisher.hurry_after(stop.flag());
    check_fits(&host, &channel, dir, publisher.next_sequence(), first)?;
    wait_for_readers(args.ring.wait_readers, &host, &channel, stop)?;

    let (started, bar) = (Instant::now(), progress());
    let mut play = Play { publisher, published: 0, bytes: 0, gaps: 0, missing: 0, skipped: 0 };
    let played = match play.all(args, &mut part, stop, &bar) {
        // A message or a gap waited for a gate when the signal came.
        Err(e) if is_full(&e) && stop.is_set() => Ok(false),
        played => played,
    };
    bar.finish_and_clear();
    let sums =
        Counts { messages: play.published, bytes: play.bytes, is_complete: matches!(played, Ok(true)) };
    let sums = Published::by(&play.publisher, first, sums, started);
    let Play { publisher, gaps, missing, skipped, .. } = play;
    close(publisher, &played);
    if args.json {
        let more = json!({ "journal": dir, "gaps": gaps, "missing": missing, "skipped": skipped, "too_old": part.too_old });
        print_json(&sums.json(&channel, more))?;
    }
    let mut said = sums.text(if played.is_ok() { "replayed" } else { "replayed only" }, &channel);
    if missing > 0 {
        said += &format!("; {} are MISSING, {} gaps to readers", grouped(missing), grouped(gaps));
    }
    if skipped > 0 {
        said += &format!("; reserves of {} sequences are skipped, a gap to readers", grouped(skipped));
    }
    said += &args.host.unnamed(&host);
    if !sums.is_complete {
        said += &format!("; go on with --from {}", sums.next);
    }
    if played.is_err() && !args.json {
        note!("{said}");
    }
    played?;
    sums.end(said, args.json, stop)?;
    let is_short = sums.is_complete && part.lacks_files(part.due());
    Ok(code_if(missing + skipped + part.too_old > 0 || is_short))
}

/// Checks that a channel can receive a stream that begins with `first`. `next` is the channel's next sequence. The channel must be new, or
/// its next sequence must be `first`.
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

/// Checks that each message of the part fits into a channel that takes messages of up to `largest` bytes. Reads the part only if the ring
/// that was recorded could take larger messages.
fn check_sizes(args: &Args, largest: u64, stop: &Stop) -> Result<()> {
    let source = Source { dir: args.recording.clone() };
    let recorded = Journal::open(&source.dir)?;
    let mut headers = recorded.files().iter().map(|file| &file.header);
    if headers.all(|header| largest_message_of(header) <= largest) {
        return Ok(());
    }
    let mut part = args.span.reopen(&source)?;
    while let Some(Item { entry, .. }) = part.next()? {
        if stop.is_set() {
            return Err(stop.interrupted(format!("{}: INTERRUPTED, replayed nothing", args.into)).into());
        }
        if let Entry::Message(Message { payload, sequence, .. }) = entry
            && payload.len() as u64 > largest
        {
            let why = TooLarge { length: payload.len() as u64, max_message: largest };
            return Err(refused(sequence, why.into()));
        }
    }
    Ok(())
}

/// Says which message was refused, and what a channel for it needs.
fn refused(sequence: u64, why: PublishError) -> Error {
    let hint = match why {
        PublishError::TooLarge(_) => ": a channel for it is made with --set max_message=SIZE",
        _ => "",
    };
    Error::new(why).context(format!("message {sequence}{hint}"))
}

/// The state of a replay.
struct Play {
    publisher: Publisher,
    published: u64,
    bytes: u64,
    /// The number of gaps that readers were told of, and the number of sequences in these gaps.
    gaps: u64,
    missing: u64,
    /// The number of sequences that the channel skipped because a journal had reserved them. It is not known how many of them had messages.
    skipped: u64,
}

impl Play {
    /// Publishes the part. Returns whether all of it was published before a signal.
    fn all(&mut self, args: &Args, part: &mut Part, stop: &Stop, bar: &ProgressBar) -> Result<bool> {
        // Readers of a new channel begin at the first sequence of the part.
        self.publisher.gap(part.due() - 1)?;
        let mut schedule = Schedule::new(stop, args.speed, args.max_pause);
        let (schema, into, mut files) = (part.schema.clone(), &args.into, FilesLook::new());
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
                    files.check_if_due(&self.publisher)?;
                    let mark = Mark { tag: message.tag, key: message.key };
                    let published = self.publisher.publish_with(message.payload, mark);
                    let sequence = published.map_err(|e| refused(message.sequence, e))?;
                    if sequence != message.sequence {
                        bail!("message {} of the journal came out of order", message.sequence);
                    }
                    self.published += 1;
                    self.bytes += message.payload.len() as u64;
                    if args.speed != Speed::Max || self.published.is_multiple_of(4096) {
                        bar.set_position(self.published);
                    }
                }
                Entry::Control {
                    control: JournalControl::Ring(ControlRecord::Session { high, low }),
                    ..
                } => self.publisher.session(session_identity([high, low]))?,
                // Other control records are not copied. The new publisher makes its own epochs and its own end, and the remaining records
                // describe only the recording.
                entry => match entry.missing() {
                    Some(Loss { to, cause: Cause::Reserve, .. }) => self.skipped += self.pass_to(to)?,
                    Some(loss) => self.gap(loss.to)?,
                    None => {}
                },
            }
        }
        files.check(&self.publisher)?;
        Ok(true)
    }

    fn gap(&mut self, to: u64) -> Result<()> {
        self.missing += self.pass_to(to)?;
        self.gaps += 1;
        Ok(())
    }

    /// Publishes a gap from the next sequence to `to`, inclusive. Returns how many sequences the gap has.
    fn pass_to(&mut self, to: u64) -> Result<u64> {
        let from = self.publisher.next_sequence();
        self.publisher.gap(to)?;
        Ok(to + 1 - from)
    }
}
