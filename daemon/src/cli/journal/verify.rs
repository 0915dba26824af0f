//! `shmcast journal verify`: checks all checksums, chains, sequences and times of a journal, and whether its parts agree.

use super::{Source, say_stream};
use crate::cli::MISSED;
use crate::cli::figures::{grouped, size};
use crate::cli::say::{note, print_json};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use shmcast::journal::{Cause, Damage, Journal, JournalError, Streams, Verdict, Verified, Verify};
use std::path::Path;
use std::process::ExitCode;

/// The exit code for a file that is damaged.
const DAMAGE: u8 = 4;
/// The limit for losses and damages that get a line each.
const MOST_SAID: usize = 20;

/// The causes for which messages are missing.
const LOSSES: [Cause; 6] =
    [Cause::Overrun, Cause::Unrecorded, Cause::Torn, Cause::Damaged, Cause::Cut, Cause::Gap];

const EXAMPLE: &str = "\
Example: shmcast journal verify /var/lib/shmcast/ticks --json

Exit codes: 0 whole, 3 sequences are missing or skipped and the journal names each, 4 a file is
damaged or cannot be used, 1 error.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    #[command(flatten)]
    source: Source,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let mut journal = Journal::open(&args.source.dir).context("journal")?;
    say_stream(&args.source.dir, &journal);
    let total = journal.files().iter().map(|file| file.bytes).sum();
    let style = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}")?;
    let bar = ProgressBar::new(total).with_style(style);
    let mut verified = loop {
        let verified = Verify::new(&journal).run(|so_far| bar.set_position(so_far.bytes))?;
        let is_overtaken = verified.files == 0 && !journal.files().is_empty();
        if !is_overtaken || !verified.damages.is_empty() || !verified.unused.is_empty() {
            break verified;
        }
        // Retention has removed all files since the journal was opened. So the journal is opened again, and its present files are checked.
        journal = Journal::open(&args.source.dir).context("journal")?;
    };
    bar.finish_and_clear();
    verified.unused.extend(unused_of_others(&args.source.dir, &journal)?);
    let code = match verified.verdict() {
        Verdict::Whole => 0,
        Verdict::Losses => MISSED,
        Verdict::Damaged => DAMAGE,
    };
    if args.json {
        print_json(&report(&verified))?;
    } else {
        say(args, &verified);
    }
    Ok(ExitCode::from(code))
}

/// Returns the unusable files of all other streams in the directory. Only a file whose messages are in no later file counts. Nothing else
/// of the other streams is checked.
fn unused_of_others(dir: &Path, journal: &Journal) -> Result<Vec<Damage>> {
    let streams = match Streams::open(dir) {
        // This is the folder of one stream.
        Err(JournalError::Flat { .. }) => Vec::new(),
        streams => streams.context("journal")?.into_journals(),
    };
    let others = streams.iter().filter(|other| other.stream() != journal.stream());
    let unused = others.flat_map(|other| {
        other.unusable().map(|problem| {
            let stream = other.stream().map_or(String::new(), |stream| stream.to_string());
            let (file, what) = (format!("{stream}/{}", problem.name), problem.why.clone());
            Damage { file, offset: 0, bytes: 0, what }
        })
    });
    Ok(unused.collect())
}

fn verdict(verified: &Verified) -> &'static str {
    match verified.verdict() {
        Verdict::Whole => "whole",
        Verdict::Losses if is_only_skipped(verified) => "skips",
        Verdict::Losses => "losses",
        Verdict::Damaged => "damaged",
    }
}

fn not_listed(verified: &Verified) -> u64 {
    verified.losses_not_listed + verified.damages_not_listed
}

/// Whether the journal lacks only sequences that it had reserved and the channel then skipped. Most of such sequences never had a message.
fn is_only_skipped(verified: &Verified) -> bool {
    let mut listed = verified.losses.iter();
    listed.all(|loss| loss.cause == Cause::Reserve) && LOSSES.iter().all(|cause| verified.lost(*cause) == 0)
}

fn report(verified: &Verified) -> serde_json::Value {
    let losses: Vec<_> = verified
        .losses
        .iter()
        .map(|loss| json!({"from": loss.from, "to": loss.to, "cause": loss.cause.name()}))
        .collect();
    let damages: Vec<_> = verified
        .damages
        .iter()
        .map(|d| json!({"file": d.file, "offset": d.offset, "bytes": d.bytes, "what": d.what}))
        .collect();
    let unused: Vec<_> = verified.unused.iter().map(|d| json!({"file": d.file, "what": d.what})).collect();
    json!({
        "verdict": verdict(verified), "files": verified.files, "frames": verified.frames,
        "messages": verified.messages, "bytes": verified.bytes,
        "first_sequence": verified.sequences.map(|(first, _)| first),
        "next_sequence": verified.sequences.map(|(_, next)| next),
        "losses": losses, "damages": damages, "unused": unused, "not_listed": not_listed(verified),
        "losses_not_listed": verified.losses_not_listed, "damages_not_listed": verified.damages_not_listed,
    })
}

fn say(args: &Args, verified: &Verified) {
    let dir = args.source.dir.display();
    for damage in verified.damages.iter().take(MOST_SAID) {
        note!("{}: byte {}: {}", damage.file, damage.offset, damage.what);
    }
    for unused in verified.unused.iter().take(MOST_SAID) {
        note!("{}: not used: {}", unused.file, unused.what);
    }
    for loss in verified.losses.iter().take(MOST_SAID) {
        let count = grouped(loss.to - loss.from + 1);
        if loss.cause == Cause::Reserve {
            note!("{} to {} ({count} sequences) are skipped: a reserve", loss.from, loss.to);
            continue;
        }
        if loss.cause == Cause::Gap {
            note!("{} to {} ({count} messages) never reached this host: a gap", loss.from, loss.to);
            continue;
        }
        note!("{} to {} ({count} messages) are missing: {}", loss.from, loss.to, loss.cause.name());
    }
    let lengths = [verified.damages.len(), verified.unused.len(), verified.losses.len()];
    let unsaid: usize = lengths.into_iter().map(|length| length.saturating_sub(MOST_SAID)).sum();
    if unsaid > 0 {
        note!("and {} more: --json lists them", grouped(unsaid as u64));
    }
    if not_listed(verified) > 0 {
        note!("and {} more, which are only counted", grouped(not_listed(verified)));
    }
    let causes: Vec<String> = LOSSES
        .into_iter()
        .map(|cause| (cause, verified.lost(cause)))
        .filter(|(_, lost)| *lost > 0)
        .map(|(cause, lost)| format!("{} {}", grouped(lost), cause.name()))
        .collect();
    let skipped = match verified.lost(Cause::Reserve) {
        0 => String::new(),
        skipped => format!("; reserves of {} sequences are skipped", grouped(skipped)),
    };
    let missing = if causes.is_empty() {
        "nothing missing".to_owned()
    } else {
        format!("missing: {}", causes.join(", "))
    };
    note!(
        "{dir}: {}: {} messages in {} frames of {} files, {} checked; {missing}{skipped}",
        verdict(verified).to_uppercase(),
        grouped(verified.messages),
        grouped(verified.frames),
        grouped(verified.files),
        size(verified.bytes),
    );
}
