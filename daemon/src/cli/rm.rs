//! `shmcast rm`: removes the files of a channel that nobody uses.

use super::figures::size;
use super::say::{note, print_json};
use super::{Host, HostArg};
use anyhow::{Result, bail};
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Removes a channel's own files only. A directory that holds anything else is refused, and left as it is.\n\n\
                  Example: shmcast rm ticks"
)]
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
    let directory = match &host {
        Host::Directory(directory) => directory,
        Host::Daemon(client) => {
            if client.channel(&channel).is_err_and(|e| e.is_unknown_channel()) {
                bail!(
                    "{host} has no channel {channel:?}: `shmcast ls` shows those there are; give --dir for one that is a file"
                );
            }
            bail!(
                "{host} owns its channels: take {channel:?} out of its configuration and reload it, or give --dir"
            );
        }
    };
    let removed = match directory.remove(&channel) {
        Err(e) if e.is_unknown_channel() => {
            bail!(
                "no channel {channel:?} in {}: `shmcast ls` shows those there are",
                directory.path().display()
            )
        }
        removed => removed?,
    };
    if args.json {
        let (files, bytes) = (&removed.files, removed.bytes);
        print_json(&json!({"removed": channel, "dir": directory.path(), "files": files, "bytes": bytes}))?;
    } else {
        let (dir, files) = (directory.path().display(), removed.files.join(", "));
        note!("removed {channel} from {dir}: {files}; {} of memory", size(removed.bytes));
    }
    Ok(ExitCode::SUCCESS)
}
