//! Compares the journals at the end of a story with all earlier reports about them.

use super::Findings;
use super::history::{History, Subscription};
use super::lives::Lives;
use crate::log::{Deed, Entry, Fact};
use crate::run::RECORDER;
use serde_json::Value;
use std::path::Path;

/// Consecutive messages that a daemon's journal holds when the story has ended.
struct Run<'a> {
    channel: &'a str,
    life: usize,
    from: u64,
    to: u64,
}

/// All messages that the daemon's journals hold when the story has ended.
#[derive(Default)]
pub(super) struct Kept<'a>(Vec<Run<'a>>);

impl<'a> Kept<'a> {
    pub(super) fn of(history: &'a History, lives: &Lives) -> Self {
        let mut runs = Vec::new();
        let is_lent = |it: &&Subscription| directory(it) == Some(it.channel.as_str());
        for journal in history.subscriptions.iter().filter(is_lent) {
            for Entry { what, .. } in &journal.seen {
                let Fact::Got { sequence, first, count, .. } = what else { continue };
                let Some(life) = lives.life(first.publisher) else { continue };
                let (channel, to) = (journal.channel.as_str(), sequence + u64::from(*count) - 1);
                runs.push(Run { channel, life, from: *sequence, to });
            }
        }
        Self(runs)
    }

    /// Returns the first of these sequences that has a message in a journal.
    pub(super) fn first_in(&self, channel: &str, life: usize, from: u64, to: u64) -> Option<u64> {
        let meets =
            |run: &&Run<'_>| run.channel == channel && run.life == life && run.from <= to && run.to >= from;
        self.0.iter().filter(meets).map(|run| run.from.max(from)).min()
    }
}

/// Whether this is the journal of a daemon. Readers of the channel are allowed to read such a journal.
fn is_of_a_daemon(journal: &Subscription) -> bool {
    journal.journal.as_ref().is_some_and(|dir| !dir.contains("by-hand"))
}

/// Returns the path of the journal's directory, which contains the folder of each stream.
fn directory(journal: &Subscription) -> Option<&str> {
    Path::new(journal.journal.as_ref()?).parent()?.file_name()?.to_str()
}

/// Returns the next sequence after a journal.
fn end(journal: &Subscription) -> Option<u64> {
    journal.seen.iter().find_map(|entry| match entry.what {
        Fact::ReadOut { next } => Some(next),
        _ => None,
    })
}

pub(super) fn check(history: &History, findings: &mut Findings) {
    for Entry { what, .. } in &history.deeds {
        match what {
            Deed::Ran { arguments, code, out, err, .. } if is_verify(arguments) => {
                check_verdict(&arguments[2], *code, &format!("{err}{out}"), findings);
            }
            Deed::Ran { arguments, code: Some(0), out, .. } if arguments[0] == "stat" => {
                check_promise(history, out, findings);
            }
            Deed::Last { channel, sequence, .. } if history.recorded.contains(channel) => {
                check_end(history, channel, *sequence, findings);
            }
            _ => {}
        }
    }
    for journal in history.subscriptions.iter().filter(|it| it.journal.is_some() && end(it).is_none()) {
        let dir = journal.journal.clone().unwrap_or_default();
        findings.add(8, "unreadable_journal", &journal.channel, format!("{dir} was not read to its end"));
    }
}

fn is_verify(arguments: &[String]) -> bool {
    arguments.len() > 2 && arguments[0] == "journal" && arguments[1] == "verify"
}

/// Checks the exit code of `journal verify`. No step damages a file, so only two codes are allowed: 0 (whole) and 3 (lists missing
/// messages).
fn check_verdict(dir: &str, code: Option<i32>, said: &str, findings: &mut Findings) {
    if !matches!(code, Some(0 | 3)) {
        findings.add(8, "damaged_journal", dir, format!("verify ended with {code:?}: {said}"));
    }
}

/// Checks that the journal still has all messages that the recorder had written. A killed recorder is no excuse, because the kernel keeps
/// written pages.
fn check_promise(history: &History, out: &str, findings: &mut Findings) {
    let Ok(status) = serde_json::from_str::<Value>(out) else { return };
    let Some(channel) = status["channel"].as_str() else { return };
    for figure in ["durable", "written"] {
        let Some(sequence) = status["journal"][figure].as_u64() else { continue };
        let journals = history.subscriptions.iter().filter(|it| is_of_a_daemon(it) && it.channel == channel);
        let furthest = journals.filter_map(end).max().unwrap_or(1);
        if sequence >= furthest {
            let what = format!("{figure} was {sequence}, and the journals end before {furthest}");
            findings.add(8, "recorded_and_gone", channel, what);
        }
    }
}

/// Checks that the daemon's journal has the last message. If `shmcast record` ran until the end, its journal must also have the message.
fn check_end(history: &History, channel: &str, last: u64, findings: &mut Findings) {
    let ends_with_it = |is_wanted: &dyn Fn(&str) -> bool| {
        history
            .subscriptions
            .iter()
            .any(|it| directory(it).is_some_and(is_wanted) && end(it) == Some(last + 1))
    };
    if !ends_with_it(&|name| name == channel) {
        findings.add(
            8,
            "journal_incomplete",
            channel,
            format!("it does not end with the last message, {last}"),
        );
    }
    let at_rest = history.deeds.iter().skip_while(|entry| entry.what != Deed::AtRest);
    let number = history.channels.iter().position(|name| name == channel);
    let ended_well = at_rest.filter(|entry| match &entry.what {
        Deed::Ended { who, code: Some(0 | 3), .. } => {
            who.strip_prefix(RECORDER).and_then(|n| n.parse().ok()) == number
        }
        _ => false,
    });
    if ended_well.count() > 0 && !ends_with_it(&|name| name.starts_with(&format!("{channel}-by-hand"))) {
        let what = format!("what was recorded by hand does not end with the last message, {last}");
        findings.add(8, "journal_incomplete", channel, what);
    }
}
