//! `shmcast bridge status`: shows the state of a daemon's bridges.

use crate::cli::figures::{Ns, grouped, table};
use crate::cli::say::{note, print, print_json};
use anyhow::{Result, bail};
use serde_json::{Value, json};
use shmcast::Client;
use shmcast::control::BridgeStatus;
use shmcast_bridge::proto::link::Link;
use std::process::ExitCode;

const EXAMPLE: &str = "\
Examples:
  shmcast bridge status
  shmcast bridge status 'ticks to the floor' --json

A line a bridge; --json has every counter. The daemon is the one at $SHMCAST_SOCKET, or the system's.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Name of one bridge [default: all]
    bridge: Option<String>,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let mut bridges = Client::connect()?.bridges()?;
    if let Some(name) = &args.bridge {
        let all: Vec<String> = bridges.iter().map(|bridge| bridge.bridge.clone()).collect();
        bridges.retain(|bridge| bridge.bridge == *name);
        if bridges.is_empty() {
            let there =
                if all.is_empty() { "the daemon has none".to_owned() } else { format!("there are {all:?}") };
            bail!("no bridge {name:?} that you may see: {there}");
        }
    }
    if args.json {
        print_json(&json!({ "bridges": bridges }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if bridges.is_empty() {
        note!("the daemon has no bridges: add a [[bridge]] to its configuration and reload");
        return Ok(ExitCode::SUCCESS);
    }
    let columns = [
        "BRIDGE",
        "CHANNEL",
        "DIRECTION",
        "STATE",
        "SESSION",
        "NEXT",
        "MESSAGES",
        "REPAIRED",
        "MISSING",
        "p99",
    ];
    let mut rows = table(columns, 5);
    for bridge in &bridges {
        rows.add_row(row(bridge));
    }
    print(rows.trim_fmt())?;
    for bridge in &bridges {
        if let Some(why) = &bridge.why {
            note!("bridge {}: {} {why}", bridge.bridge, bridge.state);
        }
        bridge.refusals.iter().for_each(|refusal| note!("bridge {}: {refusal}", bridge.bridge));
        for said in [settings(bridge), segments(bridge)].into_iter().flatten() {
            note!("bridge {}: {said}", bridge.bridge);
        }
        let of_journal = |name: &str| bridge.figures.pointer(name).and_then(Value::as_u64).unwrap_or(0);
        let (messages, full) =
            (of_journal("/repair/journal/messages"), of_journal("/repair/journal/queue_full"));
        if messages + full > 0 {
            note!(
                "bridge {}: {} of the repaired messages came from the journal; {} requests found its queue full",
                bridge.bridge,
                grouped(messages),
                grouped(full)
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether packets leave in segments, or come so.
fn segments(bridge: &BridgeStatus) -> Option<String> {
    let count = |path: &str| bridge.figures.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let (left, came) = (count("/send/datagrams_segmented"), count("/receive/datagrams_merged"));
    let used = match (left, came) {
        (0, 0) => None,
        (0, came) => Some(format!("{} packets came in one with others", grouped(came))),
        (left, _) => Some(format!("{} packets left in segments of one call", grouped(left))),
    };
    let error = i32::try_from(count("/send/segments_error")).unwrap_or_default();
    let refused = (error != 0).then(|| {
        let error = std::io::Error::from_raw_os_error(error);
        format!("a line sends packets one by one: the kernel refused segments: {error}")
    });
    match (used, refused) {
        (Some(used), Some(refused)) => Some(format!("{used}; {refused}")),
        (used, refused) => used.or(refused),
    }
}

/// How the bridge waits and what it is held to, if it chose that by itself.
fn settings(bridge: &BridgeStatus) -> Option<String> {
    let text = |path: &str| bridge.figures.pointer(path).and_then(Value::as_str);
    let (mode, why) = (text("/wait/mode")?, text("/wait/why")?);
    let bits = bridge.figures.pointer("/send/link_bits").and_then(Value::as_u64).unwrap_or(0);
    let link = match bits {
        0 => String::new(),
        bits => format!("; live packets take at most 95 % of {}", Link::of_bits(bits)),
    };
    Some(format!("wait = {mode} ({why}){link}"))
}

fn row(bridge: &BridgeStatus) -> Vec<String> {
    let count = |path: &str| match bridge.figures.pointer(path).and_then(Value::as_u64) {
        Some(count) => grouped(count),
        None => "-".to_owned(),
    };
    let is_sending = bridge.direction == "send";
    let figures = match is_sending {
        true => ["/send/next_sequence", "/send/messages", "/repair/messages", "/send/messages_missed"],
        false => [
            "/receive/next_sequence",
            "/receive/messages_published",
            "/receive/recovered_by_servers",
            "/receive/messages_missing",
        ],
    };
    let p99 = bridge.figures.pointer("/receive_to_ring/p99_ns").and_then(Value::as_u64).filter(|ns| *ns > 0);
    let mut row =
        vec![bridge.bridge.clone(), bridge.channel.clone(), bridge.direction.clone(), bridge.state.clone()];
    row.push(bridge.session.clone().unwrap_or_else(|| "-".to_owned()));
    row.extend(figures.map(count));
    row.push(p99.map_or_else(|| "-".to_owned(), |ns| Ns(ns).to_string()));
    row
}
