//! `shmcast bridge takeover`: makes a standby bridge send in place of its peer.

use crate::cli::say::{note, print_json};
use anyhow::Result;
use serde_json::json;
use shmcast::Client;
use std::process::ExitCode;

const EXAMPLE: &str = "\
Example: shmcast bridge takeover 'ticks to the floor'

Nothing is lost and nothing pauses: the peer stops when it hears this bridge's packets. Use it before the peer's
host is upgraded. The bridge needs role = \"auto\". The daemon is the one at $SHMCAST_SOCKET, or the system's.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Name of the bridge
    bridge: String,
    /// Print what was done as JSON on stdout
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    Client::connect()?.take_over_bridge(&args.bridge)?;
    match args.json {
        true => print_json(&json!({ "bridge": args.bridge, "told": true }))?,
        false => note!("bridge {}: told to send in place of its peer", args.bridge),
    }
    Ok(ExitCode::SUCCESS)
}
