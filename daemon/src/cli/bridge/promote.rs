//! `shmcast bridge promote`: makes a received channel a channel of this host, on which its programs may publish.

use crate::cli::say::{note, print_json};
use crate::cli::{Host, HostArg};
use anyhow::{Context, Result};
use serde_json::json;
use shmcast::control::Promotion;
use shmcast::{History, Start};
use shmcast_bridge::promotion::{PromoteError, is_promoted, promote};
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::spec::BridgeSpec;
use std::process::ExitCode;

const EXAMPLE: &str = "\
Example: shmcast bridge promote ticks && shmcast pub ticks < feed

For a channel that a bridge receives, when its publisher's host is gone. The bridge ends, and a program of this host
may publish on the channel. Its sequences go on 2^32 further: whatever the other host still sent, none is used twice.
Readers get the gap; bridges that send the channel on begin a later session, which their receivers follow.
Make sure that the other host is gone, and never promote on two hosts.

With a daemon this is refused while the publisher's host is heard, or while the channel has a journal that does not
record; --force does it all the same. The daemon keeps the bridge idle until it is removed from the configuration.
Without a daemon, end `shmcast bridge recv` first; a channel that was promoted before is refused, except with --force.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Name of the channel
    channel: String,
    #[command(flatten)]
    host: HostArg,
    /// Promote the channel although a packet of its publisher's host arrived within the last 3 s, nothing writes to its journal, or it was
    /// promoted before
    #[arg(long)]
    force: bool,
    /// Print what was done as JSON on stdout
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let (host, channel) = args.host.host_of(&args.channel)?;
    let done = match &host {
        Host::Daemon(client) => client.promote(&channel, args.force)?,
        Host::Directory(_) => {
            promote_here(&host, &channel, args.force).with_context(|| format!("promote {channel}"))?
        }
    };
    let Promotion { session, from, to } = &done;
    match args.json {
        true => print_json(&json!({ "channel": channel, "session": session, "from": from, "to": to }))?,
        false => note!(
            "{channel}: one of this host now, session {session}; messages {from} to {to} will never come, the next is {}",
            to + 1
        ),
    }
    Ok(ExitCode::SUCCESS)
}

/// Promotes a channel that is a directory of files. This process becomes its publisher, so no bridge can publish on the channel at the same
/// time.
fn promote_here(host: &Host, channel: &str, force: bool) -> Result<Promotion> {
    let came = |session: Option<[u8; 10]>| session.map(Session::from_bytes).ok_or(PromoteError::NoMirror);
    // The session is checked first, because opening a channel as its publisher begins an epoch.
    let reader = host.subscriber(channel).page(false).start(Start::Oldest).history(History::Never);
    let mut reader = reader.open()?;
    came(reader.remote_session())?;
    if !force && is_promoted(&mut reader)? {
        return Err(PromoteError::Own.into());
    }
    let mut publisher = host.publisher(channel).open()?;
    let before = came(publisher.remote_session())?;
    let done = promote(&mut publisher, (before, 0), &BridgeSpec::new(channel).tag(), u64::MAX)?;
    publisher.leave_open();
    Ok(Promotion { session: done.session.to_string(), from: done.from, to: done.to })
}
