//! Judges gates: which messages they refuse, which readers they protect from laps, and whether their figures are right.

use super::Findings;
use super::boards::is_segmented;
use super::history::{History, Publication, Subscription};
use crate::keys::Keys;
use crate::log::{Deed, Entry, Fact, GateFigures, Time};
use crate::story::{Change, Start, Step, Whom, chunk};
use serde_json::Value;

/// The smallest record of a ring, in bytes.
const RECORD: u64 = 64;

/// A figure of a gate.
type Figure = fn(&GateFigures) -> u64;

pub(super) fn check(history: &History, findings: &mut Findings) {
    for publication in history.publications.iter().filter(|p| Keys::of(&p.channel).is_some()) {
        check_refusals(history, publication, findings);
        check_counts(publication, findings);
    }
    for reader in history.subscriptions.iter().filter(|reader| reader.gate.is_some() && !reader.conflates) {
        check_laps(history, reader, findings);
    }
    let at_rest = history.deeds.iter().skip_while(|entry| entry.what != Deed::AtRest);
    for Entry { at, what } in at_rest {
        let Deed::Ran { arguments, code: Some(0), out, .. } = what else { continue };
        if arguments[0] == "stat"
            && let Ok(status) = serde_json::from_str(out)
        {
            check_shown(history, &status, *at, findings);
        }
    }
}

/// Returns the time after which this subscription surely no longer held its gate.
fn end(history: &History, reader: &Subscription) -> Time {
    let of_actor = |entry: &&Entry<Deed>| {
        entry.at > reader.subscribing
            && matches!(&entry.what, Deed::Ended { who, .. } if *who == reader.actor)
    };
    let ended = history.deeds.iter().find(of_actor).map_or(Time::MAX, |entry| entry.at);
    reader.ended.unwrap_or(Time::MAX).min(ended)
}

/// Checks that gates refused messages only while a reader held them, and only in the ways that their terms allow.
fn check_refusals(history: &History, publication: &Publication, findings: &mut Findings) {
    for refusals in &publication.refusals {
        let was_held = history.subscriptions.iter().any(|reader| {
            reader.channel == publication.channel
                && reader.gate.as_deref() == Some(&refusals.gate)
                && reader.subscribing < refusals.until
                && end(history, reader) > refusals.last
        });
        // A reader that is killed while it subscribes can have held the gate.
        let may_be_held = history.unfinished.contains(&publication.channel);
        let name =
            format!("channel {}: gate {} refused {}", publication.channel, refusals.gate, refusals.count);
        if !was_held && !may_be_held {
            findings.add(
                10,
                "refused_for_nobody",
                &publication.actor,
                format!("{name} messages, and no reader held it"),
            );
        }
        let refuses =
            publication.gates.iter().flat_map(|entry| &entry.what).find(|it| it.gate == refusals.gate);
        if !refusals.tried && refuses.is_some_and(|gate| !gate.refuse) {
            let what = format!("{name} messages after a wait, and is one that is dropped");
            findings.add(10, "refused_by_drop", &publication.actor, what);
        }
    }
}

/// Checks that the publisher's figures agree with the refusals that its calls returned.
fn check_counts(publication: &Publication, findings: &mut Findings) {
    for Entry { at, what } in &publication.gates {
        let told = |tried: bool| -> u64 {
            let all = publication.refusals.iter().filter(|it| it.tried == tried && it.until <= *at);
            let of_controls = publication
                .errors
                .iter()
                .filter(|(when, call, error)| !tried && when <= at && *call != "publish" && error == "Full");
            all.map(|it| u64::from(it.count)).sum::<u64>() + of_controls.count() as u64
        };
        let counts: [(&str, Figure, u64); 2] =
            [("refused", |it| it.refused, told(false)), ("turned_away", |it| it.turned_away, told(true))];
        for (name, figure, right) in counts {
            // Several gates can refuse the same message.
            let (most, sum) =
                (what.iter().map(figure).max().unwrap_or(0), what.iter().map(figure).sum::<u64>());
            if most > right || sum < right {
                let what = format!(
                    "channel {}: the gates have {name} {most} at most and {sum} together, and {right} calls were refused",
                    publication.channel
                );
                findings.add(10, "false_figure", &publication.actor, what);
            }
        }
        if let Some(gate) = what.iter().find(|gate| gate.held < gate.refused) {
            let what = format!("gate {} has held {} and refused {}", gate.gate, gate.held, gate.refused);
            findings.add(10, "false_figure", &publication.actor, what);
        }
    }
}

/// A time at which a publisher knew that a gate was in force for a reader.
struct InForce<'a> {
    at: Time,
    publication: &'a Publication,
    gate: &'a GateFigures,
}

/// Checks that a reader was not lapped while its gate was in force.
fn check_laps(history: &History, reader: &Subscription, findings: &mut Findings) {
    let mut sought = None;
    for Entry { at, what } in &reader.seen {
        match what {
            Fact::Sought { .. } | Fact::Restarted => sought = Some(*at),
            Fact::Lapped { missed: 1.., resumed_at } => {
                let Some(known) = in_force(history, reader, (sought, *resumed_at), *at) else { continue };
                if !is_excused(history, reader, &known, *at) {
                    let what = format!(
                        "channel {}: {what:?}, and publication {} had said that its gate {} is in force, with {} drops so far",
                        reader.channel, known.publication.number, known.gate.gate, known.gate.dropped
                    );
                    findings.add(10, "lapped_in_force", &reader.actor, what);
                }
            }
            _ => {}
        }
    }
}

/// Returns the last report before `until` in which a publisher said that the reader's gate is in force. Reports that might be out of date
/// are left out.
///
/// A publisher reports the state that it saw when it last looked at its gates. If the reader began at an older message, or has sought, only
/// a report counts that follows a look after this moment. A publisher looks at least once while it publishes a ring's length of messages.
fn in_force<'a>(
    history: &'a History,
    reader: &'a Subscription,
    (sought, resumed_at): (Option<Time>, u64),
    until: Time,
) -> Option<InForce<'a>> {
    let pid = history.deeds.iter().find_map(|entry| match &entry.what {
        Deed::Started { who, pid } if *who == reader.actor => Some(u64::from(*pid)),
        _ => None,
    })?;
    let since = sought.unwrap_or(reader.at);
    let is_segmented = is_segmented(history, &reader.channel);
    // If each publisher has a ring of its own, the reader was lapped in the ring in which it continues. So only the reports of this ring's
    // publisher count.
    let is_its_ring = |p: &Publication| !is_segmented || p.next <= resumed_at && resumed_at <= p.perhaps();
    let all = history.on(&reader.channel).filter(|p| is_its_ring(p)).flat_map(|publication| {
        publication.gates.iter().flat_map(move |entry| {
            entry.what.iter().map(move |gate| InForce { at: entry.at, publication, gate })
        })
    });
    let of_reader = all.filter(|it| {
        let began_at_the_end = sought.is_none() && matches!(reader.start, Start::Latest | Start::Board);
        let has_looked = || {
            let sends = it
                .publication
                .sends
                .iter()
                .filter(|send| send.began > since && send.done.is_some_and(|done| done <= it.at));
            sends.map(|send| send.least * RECORD).sum::<u64>() > 2 * it.publication.capacity
        };
        let is_it = it.at > since && it.at < until && Some(&it.gate.gate) == reader.gate.as_ref();
        is_it && it.gate.state == "in-force" && it.gate.pid == Some(pid) && (began_at_the_end || has_looked())
    });
    of_reader.max_by_key(|it| it.at)
}

/// Whether something in the story allows a lap after the report that the gate was in force, and before `until`.
fn is_excused(history: &History, reader: &Subscription, known: &InForce<'_>, until: Time) -> bool {
    let later: Vec<&Publication> =
        history.on(&reader.channel).filter(|p| p.opening > known.at && p.opening < until).collect();
    let gate_of =
        |p: &Publication| p.gates.iter().flat_map(|it| &it.what).any(|it| it.gate == known.gate.gate);
    // A publisher without the gate waits for nobody.
    if later.iter().any(|p| !gate_of(p)) {
        return true;
    }
    // A drop of the gate excuses the lap at any time, because a reader notices its lap late. A killed publisher could not report that it
    // had dropped the gate. A publisher that closes can drop the gate to publish the end of the stream.
    let all = later.iter().copied().chain([known.publication]);
    let may_have_dropped = |p: &Publication| {
        let said = |it: &GateFigures| {
            let before = if p.number == known.publication.number { known.gate.dropped } else { 0 };
            it.gate == known.gate.gate && it.dropped > before
        };
        let is_silent = p.gates.last().is_none_or(|last| last.at <= until);
        p.gates.iter().flat_map(|it| &it.what).any(said) || is_silent
    };
    if !known.gate.refuse && all.into_iter().any(may_have_dropped) {
        return true;
    }
    // A reader that is behind by the gate's lag can be lapped if later publishers move the ring's frontier: each of them by a chunk, and
    // the end of its predecessor by another chunk. The reader can also be lapped after a publisher without the gate, because a later
    // publisher counts the gate as in force no matter how far the reader is behind.
    let since: Vec<&Publication> =
        history.on(&reader.channel).filter(|p| p.opening > reader.subscribing && p.opening < until).collect();
    let moved = known.gate.lag + 2 * since.len() as u64 * chunk(known.publication.capacity);
    let is_one_without = since.iter().any(|p| !gate_of(p)) || is_reloaded(history);
    if !later.is_empty() && (moved > known.publication.capacity || is_one_without) {
        return true;
    }
    history.deeds.iter().any(|entry| match &entry.what {
        // A forked child can free the gate of its parent.
        Deed::Step { step: Step::Fork { whom: Whom::Reader(_) }, .. } => true,
        // After such a step, a reader can be detached and miss segments, or the memory of a channel can be lost.
        Deed::Step { step, .. } => {
            let may_detach = matches!(
                step,
                Step::Crash { .. }
                    | Step::Restart { .. }
                    | Step::Limit { .. }
                    | Step::TakeOver { .. }
                    | Step::Reload { change: Change::Remove | Change::Mode | Change::Capacity, .. }
            );
            may_detach && !later.is_empty()
        }
        _ => false,
    })
}

/// Whether a reload could change the gates.
fn is_reloaded(history: &History) -> bool {
    history.deeds.iter().any(|entry| {
        matches!(entry.what, Deed::Step { step: Step::Reload { change: Change::Gates, .. }, .. })
    })
}

/// Checks the gates that a tool shows when everything is at rest. The tool must show the gates of the last publisher.
fn check_shown(history: &History, status: &Value, at: Time, findings: &mut Findings) {
    let Some(channel) = status["channel"].as_str() else { return };
    if Keys::of(channel).is_none() {
        return;
    }
    let Some(publisher) = history.on(channel).filter(|p| p.opening < at).last() else { return };
    let right: &[GateFigures] = publisher.gates.last().map_or(&[], |entry| &entry.what);
    let shown = status["gates"].as_array().cloned().unwrap_or_default();
    let names = |gates: Vec<&str>| gates.join(" ");
    let told = names(shown.iter().filter_map(|gate| gate["gate"].as_str()).collect());
    let wanted = names(right.iter().map(|gate| gate.gate.as_str()).collect());
    if told != wanted {
        let what = format!("channel {channel}: the gates {told:?} are shown, and there are {wanted:?}");
        return findings.add(7, "false_figure", "stat", what);
    }
    for (gate, shown) in right.iter().zip(&shown) {
        let figures = [
            ("held", gate.held),
            ("dropped", gate.dropped),
            ("refused", gate.refused),
            ("turned_away", gate.turned_away),
            ("lag_bytes", gate.lag),
        ];
        for (name, right) in figures.into_iter().filter(|(name, right)| shown[*name] != *right) {
            let what = format!(
                "channel {channel}: {name} of {} is {}, and should be {right}",
                gate.gate, shown[name]
            );
            findings.add(7, "false_figure", "stat", what);
        }
    }
}
