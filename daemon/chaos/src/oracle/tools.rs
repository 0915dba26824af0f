//! Compares the output of tools with the logs. The tools ran while everything was at rest.

use super::Findings;
use super::history::{History, Subscription, last};
use crate::log::{Deed, Entry, Fact};
use crate::run::{DAEMONS, RECORDER, SENDER};
use serde_json::Value;
use std::collections::BTreeMap;

/// The figures that tools should show for a reader, according to the reader's log.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    received: u64,
    lapped: u64,
    missed: u64,
    conflated: u64,
}

pub(super) fn check(history: &History, findings: &mut Findings) {
    let at_rest = history.deeds.iter().skip_while(|entry| entry.what != Deed::AtRest);
    let at_rest = at_rest.take_while(|entry| !matches!(entry.what, Deed::Ended { .. }));
    for Entry { what, .. } in at_rest {
        let Deed::Ran { host, arguments, code, out, err, .. } = what else { continue };
        let host = *host;
        let tool = arguments.join(" ");
        if *code != Some(0) {
            findings.add(7, "tool_failed", &tool, err.clone());
            continue;
        }
        match arguments[0].as_str() {
            "ls" | "stat" => match serde_json::from_str(out) {
                Ok(Value::Array(channels)) => {
                    channels.iter().for_each(|status| check_channel(history, &tool, status, host, findings));
                }
                Ok(status) => check_channel(history, &tool, &status, host, findings),
                Err(e) => findings.add(7, "tool_failed", &tool, format!("no JSON: {e}: {out}")),
            },
            "bridge" => super::hosts::check_bridges(history, &tool, out, findings),
            _ => check_metrics(history, &tool, out, host > 0, findings),
        }
    }
}

fn check_channel(history: &History, tool: &str, status: &Value, host: usize, findings: &mut Findings) {
    let far = host > 0;
    let Some(channel) = status["channel"].as_str() else {
        return findings.add(7, "tool_failed", tool, format!("no channel in {status}"));
    };
    let Some((sequence, epoch, mode)) = last(history, channel) else { return };
    let mut same = |what: &str, shown: &Value, right: Value| {
        if *shown != right {
            findings.add(
                7,
                "false_figure",
                tool,
                format!("channel {channel}: {what} is {shown}, and should be {right}"),
            );
        }
    };
    same("next_sequence", &status["next_sequence"], (sequence + 1).into());
    if !far {
        same("epoch", &status["epoch"], epoch.into());
    }
    same("state", &status["state"], "active".into());
    if let Some(mode) = mode.filter(|_| !far) {
        same("mode", &status["mode"], mode.into());
    }
    check_readers(history, tool, channel, (status, host), findings);
}

/// Checks the readers that a tool shows. The tool must show all attached readers that are not hidden, and no other readers. The counts of
/// each reader must be right.
fn check_readers(
    history: &History,
    tool: &str,
    channel: &str,
    (status, host): (&Value, usize),
    findings: &mut Findings,
) {
    let live: BTreeMap<u64, &Subscription> = history
        .subscriptions
        .iter()
        .filter(|reader| reader.channel == channel && reader.host == host && is_there(history, reader))
        .filter_map(|reader| Some((pid(history, &reader.actor)?, reader)))
        .collect();
    let shown = status["readers"].as_array().cloned().unwrap_or_default();
    let shown: BTreeMap<u64, &Value> =
        shown.iter().filter_map(|reader| Some((reader["pid"].as_u64()?, reader))).collect();
    for (pid, reader) in &shown {
        let Some(subscription) = live.get(pid) else {
            // This reader is a bridge in the daemon's process.
            if is_daemon(history, *pid) {
                continue;
            }
            let what = format!("channel {channel}: a reader with process {pid} is shown, and there is none");
            findings.add(7, "false_reader", tool, what);
            continue;
        };
        if !subscription.has_page {
            let what = format!("channel {channel}: {} is shown, and asked not to be", subscription.actor);
            findings.add(7, "hidden_reader_shown", tool, what);
        }
        let right = counts(subscription);
        let figure = |name: &str| reader[name].as_u64().unwrap_or(u64::MAX);
        let (received, lapped, missed) = (figure("received"), figure("lapped"), figure("missed"));
        // The field is left out if it is 0.
        let conflated = reader["conflated"].as_u64().unwrap_or(0);
        let told = Counts { received, lapped, missed, conflated };
        if told != right {
            let what = format!(
                "channel {channel}: {} is shown with {told:?}, and has {right:?}",
                subscription.actor
            );
            findings.add(7, "false_figure", tool, what);
        }
    }
    for (pid, reader) in live {
        if !shown.contains_key(&pid) && reader.has_page {
            let what = format!("channel {channel}: reader {} (process {pid}) is not shown", reader.actor);
            findings.add(7, "missing_reader", tool, what);
        }
    }
}

fn check_metrics(history: &History, tool: &str, text: &str, far: bool, findings: &mut Findings) {
    for Entry { what, .. } in &history.deeds {
        let Deed::Last { channel, sequence, epoch, .. } = what else { continue };
        for (name, right) in [("shmcast_channel_sequence", sequence), ("shmcast_channel_epoch", epoch)] {
            let sample = format!("{name}{{channel=\"{channel}\"}} ");
            let shown = text.lines().find_map(|line| line.strip_prefix(&sample));
            let is_its_own = far && name == "shmcast_channel_epoch";
            if !is_its_own && shown.and_then(|shown| shown.parse::<u64>().ok()) != Some(*right) {
                findings.add(7, "false_figure", tool, format!("{sample}is {shown:?}, and should be {right}"));
            }
        }
    }
}

/// Whether a reader was attached when the tools ran. All attached readers had searched for the last message just before.
fn is_there(history: &History, reader: &Subscription) -> bool {
    let was_killed = history
        .deeds
        .iter()
        .any(|entry| matches!(&entry.what, Deed::Ended { who, sent: true, .. } if *who == reader.actor));
    let has_finished = reader.seen.iter().any(|entry| matches!(entry.what, Fact::Finished { .. }));
    let has_failed = reader.seen.iter().any(|entry| matches!(entry.what, Fact::RecvFailed { .. }));
    has_finished && !has_failed && !was_killed
}

fn is_daemon(history: &History, process: u64) -> bool {
    history.deeds.iter().any(|entry| {
        let reads =
            |who: &str| DAEMONS.contains(&who) || [RECORDER, SENDER].iter().any(|name| who.starts_with(name));
        matches!(&entry.what, Deed::Started { who, pid } if reads(who) && u64::from(*pid) == process)
    })
}

fn pid(history: &History, actor: &str) -> Option<u64> {
    history.deeds.iter().find_map(|entry| match &entry.what {
        Deed::Started { who, pid } if who == actor => Some(u64::from(*pid)),
        _ => None,
    })
}

fn counts(reader: &Subscription) -> Counts {
    let mut counts = Counts::default();
    for Entry { what, .. } in &reader.seen {
        match what {
            Fact::Got { count, .. } => counts.received += u64::from(*count),
            Fact::Odd { .. } => counts.received += 1,
            Fact::Newest { conflated, .. } => {
                counts.received += 1;
                counts.conflated += conflated;
            }
            Fact::Lapped { missed, .. } => {
                counts.lapped += 1;
                counts.missed += missed;
            }
            Fact::Lost { cause, .. } if cause == "reserve" => {}
            Fact::Gap { from, to } | Fact::Lost { from, to, .. } => counts.missed += to - from + 1,
            _ => {}
        }
    }
    counts
}
