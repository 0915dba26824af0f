//! `shmcast takeover`: takes a strict channel away from a publisher that lives but does not answer.

use super::say::{note, print_json};
use super::{Host, HostArg};
use anyhow::{Result, bail};
use serde_json::json;
use std::process::ExitCode;

const EXAMPLE: &str = "\
Example: shmcast takeover ticks && shmcast pub ticks < feed

Whatever the old publisher writes from then on reaches no reader, and it is told so: its next
publish fails. Channels with mode = \"takeover\" need no such word: a publisher that ended is
followed by whoever comes next, and one that lives must be stopped.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Name of the channel, which must be strict
    channel: String,
    /// Print what was done as JSON on stdout
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let (host, name) = (HostArg::default().host()?, &args.channel);
    let Host::Daemon(client) = host else {
        bail!(
            "only a daemon's channels can be taken over; for {name:?} in {host}, stop its publisher: the next one goes on"
        );
    };
    let status = client.channel(name)?;
    // A publisher that lived before its daemon can have the channel, and not be registered yet.
    let nobody = if status.state == "active" { "a publisher that has not registered yet" } else { "nobody" };
    let from = status.publisher;
    client.take_over(name)?;
    if args.json {
        print_json(&json!({ "channel": name, "taken_from": from }))?;
    } else {
        let from = from.as_ref().map_or(nobody.to_owned(), super::ls::who);
        note!("channel {name}: taken from {from}, free for the next publisher");
    }
    Ok(ExitCode::SUCCESS)
}
