//! `shmcast rm`: a channel's files, once nobody uses them.

use super::{DirArg, print_json};
use anyhow::Result;
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: shmcast rm ticks")]
pub(super) struct Args {
    /// Name of the channel
    channel: String,
    #[command(flatten)]
    dir: DirArg,
    /// Print what was removed as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let directory = args.dir.directory();
    directory.remove(&args.channel)?;
    if args.json {
        print_json(&json!({"removed": args.channel, "dir": directory.path()}))?;
    } else {
        eprintln!("shmcast: removed {} from {}", args.channel, directory.path().display());
    }
    Ok(ExitCode::SUCCESS)
}
