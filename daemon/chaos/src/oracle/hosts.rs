//! Judges the reports and the effects of bridges between hosts that have their own networks.

use super::Findings;
use super::history::{History, Subscription, last};
use crate::log::{Deed, Fact};
use crate::payload::Identity;
use crate::story::{NetStep, Step};
use serde_json::Value;

/// Checks that the sessions that a far host's reader sees never go back.
pub(super) fn check(history: &History, findings: &mut Findings) {
    if history.net.is_some() {
        let far = history.subscriptions.iter().filter(|reader| reader.far);
        far.for_each(|reader| check_sessions(reader, findings));
    }
}

fn check_sessions(reader: &Subscription, findings: &mut Findings) {
    let told = reader.seen.iter().filter_map(|entry| match &entry.what {
        Fact::NewSession { identity } => Some(identity.as_str()),
        _ => None,
    });
    let mut before = "";
    for session in told {
        // All sessions have the same tag, and the digits after the tag ascend in the order of text.
        if session <= before && !has_sought(reader) {
            let what = format!("session {session:?} was told after {before:?}");
            findings.add(9, "session_goes_back", &reader.actor, what);
        }
        before = session;
    }
}

/// Whether a reader has called `seek`. After a seek to an earlier message, a reader gets earlier events again.
fn has_sought(reader: &Subscription) -> bool {
    reader.seen.iter().any(|entry| matches!(entry.what, Fact::Sought { .. }))
}

/// Checks the receivers when everything is at rest. Each receiver must have all messages, and must have given up none.
pub(super) fn check_bridges(history: &History, tool: &str, text: &str, findings: &mut Findings) {
    let Ok(status) = serde_json::from_str::<Value>(text) else {
        return findings.add(7, "tool_failed", tool, format!("no JSON: {text}"));
    };
    for bridge in status["bridges"].as_array().into_iter().flatten() {
        let name = bridge["bridge"].as_str().unwrap_or_default();
        let figure = |path: &str| bridge["figures"].pointer(path).and_then(Value::as_u64).unwrap_or(0);
        let mut add = |name_of: &str, what: String| {
            findings.add(9, name_of, tool, format!("bridge {name}: {what}: {bridge}"));
        };
        if bridge["state"] == "failed" {
            add("bridge_failed", "it has failed".into());
        }
        if bridge["direction"] != "receive" || bridge["state"] == "promoted" {
            continue;
        }
        let Some((sequence, ..)) = last(history, bridge["channel"].as_str().unwrap_or_default()) else {
            continue;
        };
        let next = figure("/receive/next_sequence");
        if next != sequence + 1 {
            add("false_figure", format!("next_sequence is {next}, and should be {}", sequence + 1));
        }
        let missing = figure("/receive/messages_missing");
        let may_miss = has_deed(history, |deed| matches!(deed, Deed::Promoted { .. }))
            || has_gaps(history)
            || !history.strict.is_empty();
        if missing > 0 && !may_miss {
            add("given_up", format!("{missing} messages were given up"));
        }
        let forged = figure("/receive/forged");
        if forged > 0 && !has_deed(history, is_forgery) {
            add("false_figure", format!("{forged} packets were forged, and nobody forged any"));
        }
    }
}

fn has_deed(history: &History, is_it: impl Fn(&Deed) -> bool) -> bool {
    history.deeds.iter().any(|entry| is_it(&entry.what))
}

/// Whether a publisher announced a gap. The far host counts the sequences in a gap as messages that were given up.
fn has_gaps(history: &History) -> bool {
    history.publications.iter().flat_map(|publication| &publication.sends).any(|send| send.messages.is_none())
}

fn is_forgery(deed: &Deed) -> bool {
    matches!(deed, Deed::Step { step: Step::Net(NetStep::Play { .. }), .. })
}

/// Returns how many of the `count` messages from `first` on must have an old publish time when this reader gets them. Returns `None` if
/// this number is not known.
pub(super) fn old_messages(
    history: &History,
    reader: &Subscription,
    first: Identity,
    count: u32,
) -> Option<u32> {
    let keeps_times = !reader.far || history.net.as_ref().is_some_and(|net| net.native);
    let publication = history.publication(first.publisher)?;
    let mut old = 0;
    for counter in first.counter..first.counter + count {
        old += u32::from(publication.send_of(counter)?.old && keeps_times);
    }
    Some(old)
}
