//! `shmcast rm`: a channel's files, once nobody uses them.

use super::{Host, HostArg, print_json};
use anyhow::{Result, bail};
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: shmcast rm ticks")]
pub(super) struct Args {
    /// Name of the channel
    channel: String,
    #[command(flatten)]
    host: HostArg,
    /// Print what was removed as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let (host, channel) = args.host.host_of(&args.channel)?;
    let Host::Directory(directory) = host else {
        bail!(
            "{host} owns its channels: take {channel} out of its configuration and reload it, or give --dir"
        );
    };
    match directory.remove(&channel) {
        Err(e) if e.is_unknown_channel() => {
            bail!(
                "no channel {channel:?} in {}: `shmcast ls` shows those there are",
                directory.path().display()
            )
        }
        removed => removed?,
    }
    if args.json {
        print_json(&json!({"removed": args.channel, "dir": directory.path()}))?;
    } else {
        eprintln!("shmcast: removed {} from {}", args.channel, directory.path().display());
    }
    Ok(ExitCode::SUCCESS)
}
