//! `shmcast journal ls`: lists the streams of a journal, and their files, one per line.

use super::Source;
use crate::cli::figures::{grouped, size, table};
use crate::cli::say::{note, print, print_json};
use anyhow::{Context, Result};
use serde_json::json;
use shmcast::journal::{Journal, Streams};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: shmcast journal ls /var/lib/shmcast/ticks --json")]
pub(super) struct Args {
    #[command(flatten)]
    source: Source,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let journals = journals(&args.source)?;
    if args.json {
        let files: Vec<_> = journals
            .iter()
            .flat_map(Journal::files)
            .map(|file| {
                json!({
                    "stream": file.header.stream.to_string(), "name": file.name, "file": file.header.file, "channel": file.header.channel,
                    "first_sequence": file.header.sequence,
                    "next_sequence": file.trailer.map(|trailer| trailer.next),
                    "messages": file.trailer.map(|trailer| trailer.messages),
                    "bytes": file.bytes, "sealed": file.trailer.is_some(), "created_ns": file.header.wall_ns,
                    "least_ns": file.trailer.map(|trailer| trailer.least_ns),
                    "greatest_ns": file.trailer.map(|trailer| trailer.greatest_ns),
                })
            })
            .collect();
        print_json(&files)?;
    } else {
        for journal in &journals {
            show(journal)?;
        }
    }
    for problem in journals.iter().flat_map(Journal::problems) {
        note!("{} is not used: {}", problem.name, problem.why);
    }
    Ok(ExitCode::SUCCESS)
}

/// The journals of all streams. If the user gave the folder of one stream, only the journal of this stream.
fn journals(source: &Source) -> Result<Vec<Journal>> {
    if let Ok(streams) = Streams::open(&source.dir) {
        let mut journals = streams.into_journals();
        journals.retain(|journal| !journal.files().is_empty() || !journal.problems().is_empty());
        if !journals.is_empty() {
            return Ok(journals);
        }
    }
    Ok(vec![Journal::open(&source.dir).context("journal")?])
}

fn show(journal: &Journal) -> Result<()> {
    if let Some(last) = journal.files().last() {
        let recorder = if journal.is_recording() { ", which is recorded" } else { "" };
        print(format_args!("stream {} of channel {}{recorder}", last.header.stream, last.header.channel))?;
    }
    let mut rows = table(["FILE", "STATE", "FIRST", "NEXT", "MESSAGES", "SIZE"], 2);
    for (at, file) in journal.files().iter().enumerate() {
        let sealed = |figure: Option<u64>| figure.map_or("-".to_owned(), grouped);
        rows.add_row([
            file.name.clone(),
            match file.trailer {
                Some(_) => "sealed",
                None if at + 1 == journal.files().len() => "open",
                None => "unsealed",
            }
            .to_owned(),
            grouped(file.header.sequence),
            sealed(file.trailer.map(|trailer| trailer.next)),
            sealed(file.trailer.map(|trailer| trailer.messages)),
            size(file.bytes),
        ]);
    }
    print(rows.trim_fmt())
}
