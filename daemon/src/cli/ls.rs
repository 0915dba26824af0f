//! `shmcast ls`: lists all channels, one per line.

use super::figures::{grouped, is_seen, printable, readers_shown, size, table};
use super::say::{note, print, print_json};
use super::{Host, HostArg};
use anyhow::Result;
use shmcast::{ChannelStatus, Process};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: shmcast ls --json")]
pub(super) struct Args {
    #[command(flatten)]
    host: HostArg,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let host = args.host.host()?;
    let channels = host.channels()?;
    if args.json {
        print_json(&channels)?;
        return Ok(ExitCode::SUCCESS);
    }
    if channels.is_empty() {
        // A daemon shows only the channels that this user may read.
        let shown = if matches!(host, Host::Daemon(_)) { "channels that you may read" } else { "channels" };
        note!("no {shown} in {host}: publish one with `shmcast pub NAME --dir DIR`");
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows =
        table(["CHANNEL", "STATE", "PUBLISHER", "READERS", "EPOCH", "CAPACITY", "OLDEST", "NEXT"], 3);
    for channel in &channels {
        let sequence = |sequence: Option<u64>| sequence.map_or("-".to_owned(), grouped);
        // If the channel's header is not valid, its figures are unknown.
        let known = |figure: String| if channel.capacity_bytes == 0 { "-".to_owned() } else { figure };
        rows.add_row([
            channel.channel.clone(),
            channel.state.clone(),
            publisher_of(channel, "-", "?"),
            readers_shown(channel),
            known(channel.epoch.to_string()),
            known(size(channel.capacity_bytes)),
            sequence(channel.oldest_sequence),
            sequence(channel.next_sequence),
        ]);
    }
    print(rows.trim_fmt())?;
    for (channel, what) in channels.iter().filter_map(|c| Some((&c.channel, c.error.as_ref()?))) {
        note!("channel {channel:?} is damaged: {what}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats the publisher of a channel. `none` stands for no publisher, and `unknown` for one that this process could not see.
pub(super) fn publisher_of(channel: &ChannelStatus, none: &str, unknown: &str) -> String {
    let absent = if is_seen(channel, "publisher") { none } else { unknown };
    channel.publisher.as_ref().map_or(absent.to_owned(), who)
}

/// Formats a process as its id and its name.
pub(super) fn who(process: &Process) -> String {
    let pid = process.pid.map_or("?".to_owned(), |pid| pid.to_string());
    match &process.command {
        Some(command) => format!("{pid} {}", printable(command)),
        None => pid,
    }
}
