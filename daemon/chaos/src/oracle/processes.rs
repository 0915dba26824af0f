//! Judges processes that die, hang or are late, calls that fail, and changes of files that belong to others.

use super::Findings;
use super::history::{Failure, History};
use super::limits::was_closed;
use crate::log::{Deed, Entry, Fact, Time};
use crate::run::{RECORDER, SENDER, TAMPERED};
use crate::story::Profile;

/// The longest allowed delay of a call, in microseconds. The delay does not include time for which the process was stopped or waited for a
/// CPU.
const LATE_US: u64 = 700_000;
/// A call of a reader of a journal can last this much longer, in microseconds, because a lapped reader waits until the daemon passes it
/// the journal's files.
const FILES_US: u64 = 3_000_000;
/// The daemon must not log more than this number of lines per second, no matter what its users do.
const LINES_PER_SECOND: u64 = 100;
/// In addition, the daemon is allowed to log this number of lines when it starts and ends.
const LINES_AT_LIBERTY: u64 = 500;

pub(super) fn check(history: &History, findings: &mut Findings) {
    let has_limits = history.profile == Some(Profile::Limits);
    for Entry { what, .. } in &history.deeds {
        match what {
            Deed::Ended { who, code, signal, sent, said } => {
                let is_ordinary = *code == Some(0)
                    || *sent && *signal == Some(9)
                    || who.starts_with(RECORDER) && matches!(code, Some(1 | 3))
                    // The limit on descriptors was set before the program was loaded.
                    || *code == Some(127) && has_limits && said.contains("error while loading shared libraries")
                    // A program that was just started has no handler for signals yet.
                    || [RECORDER, SENDER].iter().any(|name| who.starts_with(name)) && *signal == Some(15);
                if !is_ordinary || said.contains("panicked") {
                    let what = format!("ended with code {code:?}, signal {signal:?}: {said}");
                    findings.add(5, "died", who, what);
                }
            }
            Deed::NoAnswer { who, order } => {
                findings.add(5, "hangs", who, format!("did not carry out: {order}"))
            }
            Deed::Logged { who, lines, ms } => {
                let most = LINES_PER_SECOND * (ms / 1000 + 1) + LINES_AT_LIBERTY;
                if *lines as u64 > most {
                    findings.add(
                        6,
                        "floods_the_log",
                        who,
                        format!("{lines} lines in {ms} ms; {most} are due"),
                    );
                }
            }
            Deed::Disclosed { who, what } => findings.add(6, "disclosed", who, what.clone()),
            Deed::Refused { who, what } => findings.add(5, "refused", who, what.clone()),
            Deed::Changed { what } => findings.add(6, "foreign_file_changed", "host", what.clone()),
            Deed::Piped { lines, messages } if lines != messages => {
                let what = format!("was given the lines {lines:?}, and published {messages:?}");
                findings.add(1, "unpublished_message", "pub", what);
            }
            Deed::Left { what } => findings.add(6, "left_over", "host", what.clone()),
            Deed::Ran { arguments, code, err, .. } => {
                let tool = arguments.join(" ");
                if err.contains("panicked at") || *code == Some(101) {
                    findings.add(5, "died", &tool, err.clone());
                } else if err.contains("unexpected argument") {
                    // The tool rejected its arguments and did nothing. Without this finding, nobody would notice.
                    findings.add(7, "tool_failed", &tool, err.clone());
                } else if code.is_none() {
                    findings.add(5, "hangs", &tool, "did not end");
                }
            }
            _ => {}
        }
    }
    if !history.deeds.iter().any(|entry| entry.what == Deed::Over) {
        findings.add(5, "hangs", "story", "the story was not played to its end");
    }
    check_openings(history, findings);
    check_publishing(history, findings);
    check_lateness(history, findings);
}

/// Checks openings of channels. An opening can fail for many reasons, but never because the product damaged the channel's memory.
fn check_openings(history: &History, findings: &mut Findings) {
    for Failure { actor, is_publisher, kind, why, .. } in &history.failed {
        let is_damage =
            kind.starts_with("Segment") || ["Locate.Overrun", "Locate.Corrupt"].contains(&kind.as_str());
        // A signal is no excuse for a failure. A missing permission to write is no excuse for a reader.
        let is_excuse = why.contains("Interrupted system call")
            || !is_publisher && why.contains("Permission denied") && !was_closed(history);
        // The gates and the board of a story's channel always fit the channel.
        if *is_publisher && ["Gate", "Board", "NoBoard", "Mismatch"].contains(&kind.as_str()) {
            findings.add(5, "open_failed", actor, format!("{kind}: {why}"));
        }
        // If a publisher opens a tampered channel, a refusal is right.
        if is_excuse || is_damage && !actor.starts_with(TAMPERED) {
            findings.add(5, "open_failed", actor, format!("{kind}: {why}"));
        }
    }
    for publication in &history.publications {
        if let Some([wanted, found]) = publication.mode.filter(|[wanted, found]| wanted != found) {
            let what = format!(
                "channel {} has mode {found:03o}, and {wanted:03o} was asked for",
                publication.channel
            );
            findings.add(6, "false_mode", &publication.actor, what);
        }
    }
}

fn check_publishing(history: &History, findings: &mut Findings) {
    for publication in &history.publications {
        for (at, call, error) in &publication.errors {
            let channel = &publication.channel;
            // A takeover that began before this opening might have taken effect after it.
            let has_ended_since = |deed: &Entry<Deed>| match &deed.what {
                Deed::Ran { arguments, .. } => {
                    deed.at > publication.opening && *arguments == ["takeover", channel.as_str()]
                }
                _ => false,
            };
            let was_taken = history.deeds.iter().any(has_ended_since);
            let was_cut = history.deeds.iter().any(|entry| match &entry.what {
                Deed::TakingOver { channel: name } => name == channel && entry.at < *at && was_taken,
                Deed::MayRestart { channel: name, .. } => {
                    name == channel && entry.at < *at && entry.at > publication.opening
                }
                _ => false,
            });
            let was_followed =
                history.on(channel).any(|p| p.opening > publication.opening && p.opening < *at);
            let is_huge = *call == "gap" && publication.sends.iter().any(|send| send.messages.is_none());
            // A gate that refuses also refuses a gap or a session for which the ring has no room.
            let is_full = error == "Full" && *call != "publish" && !publication.gates.is_empty();
            if error == "CutOff" && (was_cut || was_followed) || is_huge && error != "CutOff" || is_full {
                continue;
            }
            let what = format!("{call} on channel {channel} failed: {error}");
            findings.add(5, "publish_failed", &publication.actor, what);
        }
    }
}

fn check_lateness(history: &History, findings: &mut Findings) {
    for reader in &history.subscriptions {
        let may_ask = reader.history && history.recorded.contains(&reader.channel);
        let past_us = if may_ask { FILES_US } else { 0 };
        reader.seen.iter().for_each(|entry| check_late(history, &reader.actor, entry, past_us, findings));
    }
    // A call of a publisher with gates can last as long as the gates' limits allow.
    for publisher in &history.publications {
        publisher.late.iter().for_each(|entry| check_late(history, &publisher.actor, entry, 0, findings));
    }
}

/// Checks one call. It can last `past_us` longer than asked.
fn check_late(history: &History, actor: &str, entry: &Entry<Fact>, past_us: u64, findings: &mut Findings) {
    let Entry { at, what } = entry;
    let Fact::Late { call, asked_us, took_us, ran_us, waited_us } = what else { return };
    let began = at.saturating_sub(took_us * 1000);
    let stopped_us = stopped(history, actor, began, *at) / 1000;
    let excused = asked_us + waited_us + stopped_us + LATE_US + past_us;
    if *took_us > excused {
        let what = format!(
            "{call} took {took_us} us instead of {asked_us}; it ran for {ran_us} us, waited {waited_us} us for the CPU and \
             was stopped for {stopped_us} us"
        );
        findings.add(5, "late", actor, what);
    }
}

/// Returns for how long an actor was stopped within this period.
fn stopped(history: &History, actor: &str, from: Time, to: Time) -> u64 {
    let mut total = 0;
    let mut since = None;
    for Entry { at, what } in &history.deeds {
        let Deed::Signalled { who, signal } = what else { continue };
        if who != actor {
            continue;
        }
        match (signal.as_str(), since) {
            ("STOP", None) => since = Some(*at),
            ("CONT", Some(began)) => {
                total += to.min(*at).saturating_sub(from.max(began));
                since = None;
            }
            _ => {}
        }
    }
    total + since.map_or(0, |began| to.saturating_sub(from.max(began)))
}
