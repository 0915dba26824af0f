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
        counts(&bridge.figures).iter().for_each(|said| note!("bridge {}: {said}", bridge.bridge));
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

/// Says how many packets the kernel split after one send call, or merged into one receive call. Also says if the kernel refused to split.
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

/// Describes how the bridge waits and how its rate is limited, if the bridge chose these settings itself.
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

/// Counters that are usually 0. If a counter is not 0, its sentence is shown with the count.
const COUNTS: [(&str, &str); 21] = [
    ("/send/takeovers", "times it began to send in place of a peer"),
    ("/send/yields", "times it left the sending to a peer"),
    ("/send/lines_anew", "times a line was opened anew, because its interface was"),
    ("/send/state_renewed", "times the state file was gone, and was made again"),
    ("/send/state_errors", "times the state file could not be written"),
    ("/send/link_waits", "times live packets waited for the link"),
    ("/repair/multicast_replies", "repairs went to all receivers at once"),
    ("/repair/pauses", "times all receivers were told to wait, because the rate of repairs was used up"),
    ("/repair/unopened", "requests had no seal, or one of a key that is not in the keys file"),
    ("/repair/forged", "requests had a seal that does not open: compare the keys files"),
    ("/repair/replayed", "requests had been accepted before"),
    ("/repair/leases/full", "leases were refused, because every place was taken"),
    ("/repair/leases/replaced", "leases went over to another address of the same receiver"),
    ("/receive/unopened", "packets had no seal, or one of a key that is not in the keys file"),
    ("/receive/forged", "packets had a seal that does not open: compare the keys files"),
    ("/receive/replayed", "packets had been accepted before, as copies on other lines are"),
    ("/receive/pauses", "times a server told all receivers to wait"),
    ("/receive/requests_saved", "losses were mended by repairs that others had asked for"),
    ("/receive/lines_anew", "times a line was opened anew, because its interface was"),
    ("/receive/lines_rejoined", "times a group was joined again, because its line was silent"),
    ("/receive/leases_full", "times a server had no place for a lease"),
];

/// Returns sentences about the claim (which sender is active), about this receiver's number in its group, and about the counters of
/// [`COUNTS`].
fn counts(figures: &Value) -> Vec<String> {
    let figure = |path: &str| figures.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let mut said = Vec::new();
    let (claim, group, place) = (figure("/send/claim"), figure("/receive/group"), figure("/receive/place"));
    if claim > 0 {
        said.push(format!("the egress with claim {} sends", grouped(claim)));
    }
    if group > 0 {
        said.push(format!("place {} of {} receivers of a server", grouped(place + 1), grouped(group)));
    }
    let counted = COUNTS.iter().map(|(path, what)| (figure(path), what)).filter(|(count, _)| *count > 0);
    said.extend(counted.map(|(count, what)| format!("{} {what}", grouped(count))));
    said
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

#[cfg(test)]
mod tests {
    use super::*;
    use shmcast_bridge::status::{ReceiveCounters, RepairCounters, SendCounters};
    use zerocopy::FromZeros;

    fn figures(set: impl Fn(&mut SendCounters, &mut RepairCounters, &mut ReceiveCounters)) -> Value {
        let (mut send, mut repair, mut receive) =
            (SendCounters::new_zeroed(), RepairCounters::new_zeroed(), ReceiveCounters::new_zeroed());
        set(&mut send, &mut repair, &mut receive);
        json!({ "send": send, "repair": repair, "receive": receive })
    }

    #[test]
    fn counters_that_are_not_zero_are_told() {
        assert_eq!(counts(&figures(|_, _, _| {})), [""; 0]);
        let some = figures(|send, repair, receive| {
            (send.claim, send.takeovers, repair.replay.pauses) = (3, 1_200, 2);
            (receive.host.group, receive.host.place, receive.feed.requests_saved) = (40, 0, 7);
        });
        let said = [
            "the egress with claim 3 sends",
            "place 1 of 40 receivers of a server",
            "1,200 times it began to send in place of a peer",
            "2 times all receivers were told to wait, because the rate of repairs was used up",
            "7 losses were mended by repairs that others had asked for",
        ];
        assert_eq!(counts(&some), said);
    }

    #[test]
    fn every_counter_that_is_told_exists() {
        let figures = figures(|_, _, _| {});
        for (path, _) in COUNTS {
            assert!(figures.pointer(path).is_some_and(Value::is_u64), "no figure {path}");
        }
    }
}
