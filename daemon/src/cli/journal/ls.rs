//! `shmcast journal ls`: the files, a line each.

use super::open;
use crate::cli::figures::{grouped, size, table};
use crate::cli::say::{note, print, print_json};
use anyhow::Result;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: shmcast journal ls /var/lib/shmcast/ticks --json")]
pub(super) struct Args {
    /// Directory of the journal
    dir: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let journal = open(&args.dir)?;
    if args.json {
        let files: Vec<_> = journal
            .files()
            .iter()
            .map(|file| {
                json!({
                    "name": file.name, "file": file.header.file, "channel": file.header.channel,
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
        let mut rows = table(["FILE", "STATE", "FIRST", "NEXT", "MESSAGES", "SIZE"], 2);
        for file in journal.files() {
            let sealed = |figure: Option<u64>| figure.map_or("-".to_owned(), grouped);
            rows.add_row([
                file.name.clone(),
                if file.trailer.is_some() { "sealed" } else { "open" }.to_owned(),
                grouped(file.header.sequence),
                sealed(file.trailer.map(|trailer| trailer.next)),
                sealed(file.trailer.map(|trailer| trailer.messages)),
                size(file.bytes),
            ]);
        }
        print(rows.trim_fmt())?;
    }
    for problem in journal.problems() {
        note!("{} is not used: {}", problem.name, problem.why);
    }
    Ok(ExitCode::SUCCESS)
}
