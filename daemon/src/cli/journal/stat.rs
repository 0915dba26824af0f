//! `shmcast journal stat`: summarises a journal, from the headers and trailers of its files.

use super::Source;
use crate::cli::figures::{grouped, size};
use crate::cli::say::{print, print_json};
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: shmcast journal stat /var/lib/shmcast/ticks")]
pub(super) struct Args {
    #[command(flatten)]
    source: Source,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let journal = args.source.open_and_say()?;
    let files = journal.files();
    let [first, .., last] = [files.first(), files.last()].map(|file| file.cloned());
    let (Some(first), Some(last)) = (first, last) else {
        bail!("no file in {} can be used: see `shmcast journal verify`", journal.path().display());
    };
    let sealed = files.iter().filter_map(|file| file.trailer);
    let messages: u64 = sealed.clone().map(|trailer| trailer.messages).sum();
    let bytes: u64 = files.iter().map(|file| file.bytes).sum();
    let (count, sealed, is_recording) = (files.len(), sealed.count(), journal.is_recording());
    let holds = shmcast_journal::holds(journal.path());
    let holds = holds.with_context(|| format!("list {}", journal.path().display()))?;
    let header = &last.header;
    let next = last.trailer.map_or(last.header.sequence, |trailer| trailer.next);
    if args.json {
        print_json(&json!({
            "channel": header.channel, "stream": header.stream.to_string(), "recording": is_recording,
            "files": count, "sealed_files": sealed, "bytes": bytes,
            "first_sequence": first.header.sequence, "next_sequence_at_least": next,
            "messages_in_sealed_files": messages, "since_ns": first.header.wall_ns,
            "problems": journal.problems().len(),
            "holds": holds.iter().map(|hold| json!({ "name": hold.name, "from": hold.from })).collect::<Vec<_>>(),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    print(format_args!(
        "channel            {}\n\
         stream             {}\n\
         recorder           {}\n\
         files              {} of {}, {sealed} sealed\n\
         first sequence     {}\n\
         next sequence      {}{}\n\
         messages           {} in sealed files",
        header.channel,
        header.stream,
        if is_recording { "runs" } else { "does not run" },
        grouped(count as u64),
        size(bytes),
        grouped(first.header.sequence),
        grouped(next),
        if last.trailer.is_some() { "" } else { " or later: the last file is open" },
        grouped(messages),
    ))?;
    for hold in holds {
        print(format_args!("held for           {}, from sequence {}", hold.name, grouped(hold.from)))?;
    }
    Ok(ExitCode::SUCCESS)
}
