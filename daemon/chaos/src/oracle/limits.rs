//! Judges processes under limits. A process that a limit prevents from its work must say so, and must not be killed by a signal.

use super::Findings;
use super::history::{Failure, History, Publication};
use crate::log::{Deed, Entry};
use crate::run::RECORDER;
use crate::story::{Change, HostStep, Profile, Step};
use crate::words::names_a_limit;

pub(super) fn check(history: &History, findings: &mut Findings) {
    if history.profile != Some(Profile::Limits) {
        return;
    }
    for Entry { what, .. } in &history.deeds {
        match what {
            Deed::Limited { verb, limit, code, signal, was_interrupted, out, err } => {
                let what =
                    || format!("under {limit} ended with code {code:?}, signal {signal:?}: {err}{out}");
                // The program loader and the allocator of the standard library end a program that gets no memory.
                let is_memory = limit.starts_with("--as")
                    && (*code == Some(127)
                        || err.contains("memory allocation of")
                        || err.contains("prlimit:")
                        // The kernel kills a program whose code does not fit into the allowed address space.
                        || matches!(signal, Some(9 | 11)) && err.is_empty());
                match (code, signal) {
                    (Some(0), _) => {}
                    _ if is_memory => {}
                    // A command that only reads has no handler for the signal that interrupts it.
                    (None, Some(2)) | (Some(_), None) if *was_interrupted => {}
                    (_, Some(_)) | (None, None) => findings.add(5, "died", verb, what()),
                    // Verification found that the journal lacks messages.
                    (Some(3), _) if verb.starts_with("journal verify") => {}
                    _ if !names_a_limit(err) && !is_known(err) => findings.add(5, "no_word", verb, what()),
                    _ => {}
                }
            }
            Deed::Ended { who, code: Some(1), said, .. } if who.starts_with(RECORDER) => {
                let last = said.lines().last().unwrap_or_default();
                if !names_a_limit(last) && !is_known(last) {
                    findings.add(5, "no_word", who, format!("ended with code 1, and said last: {last:?}"));
                }
            }
            _ => {}
        }
    }
    for failure in &history.failed {
        let Failure { actor, kind, why, .. } = failure;
        if is_absence(kind) && was_there(history, failure) {
            findings.add(1, "false_absence", actor, format!("{kind}: {why}"));
        } else if !names_a_limit(why) && !KINDS.contains(&kind.as_str()) {
            findings.add(5, "no_word", actor, format!("{kind}: {why}"));
        }
    }
}

/// The kinds of failures whose text need not name a limit: no limit causes them, or the kind itself says what is lacking.
const KINDS: [&str; 9] = [
    "InUse",
    "Refused.Busy",
    "Locate.NotYet",
    "NotFound",
    "Refused.UnknownChannel",
    "NoRoom",
    "NoDaemon",
    // A daemon without free descriptors accepts no connection.
    "Silent",
    "Ended",
];

/// Parts of the messages by which commands report reasons that no limit causes.
const REASONS: [&str; 10] = [
    "no channel",
    "Connection refused",
    "began anew",
    "in use by",
    "no room in",
    "the daemon ended",
    "no message",
    "the disk takes nothing",
    "connection reset",
    "ENDED",
];

/// Whether a text names a reason that no limit causes.
fn is_known(text: &str) -> bool {
    REASONS.iter().any(|words| text.contains(words))
}

/// Whether an error says that there is no such channel.
fn is_absence(kind: &str) -> bool {
    ["NotFound", "Refused.UnknownChannel"].contains(&kind)
}

/// Whether the channel of a failed opening was certainly there. A publisher had opened it before, and nothing removes it in this story.
fn was_there(history: &History, failure: &Failure) -> bool {
    let is_removed = |entry: &Entry<Deed>| match &entry.what {
        Deed::Step { step, .. } => {
            matches!(step, Step::Remove { .. } | Step::Reload { change: Change::Remove, .. })
        }
        _ => false,
    };
    let is_published = |p: &Publication| p.opening < failure.began && p.surely_before(failure.began) > p.next;
    history.on(&failure.channel).any(is_published) && !history.deeds.iter().any(is_removed)
}

/// Whether this step limits a resource, so that programs can lack the resource from then on. A changed wall clock limits nothing.
pub(super) fn is_limit(step: &Step) -> bool {
    matches!(
        step,
        Step::Limit { spare: Some(_), .. }
            | Step::Bound { most: Some(_), .. }
            | Step::Host(HostStep::Fill(_) | HostStep::Close { .. })
    )
}

/// Whether a directory lacked permissions for a while.
pub(super) fn was_closed(history: &History) -> bool {
    history
        .deeds
        .iter()
        .any(|entry| matches!(&entry.what, Deed::Step { step: Step::Host(HostStep::Close { .. }), .. }))
}
