//! Judges searches for single keys on boards, and the figures of boards that tools show.

use super::Findings;
use super::history::{History, Look, Publication, last};
use super::lives::Lives;
use super::streams::{Model, Stream, Streams};
use crate::log::{Deed, Entry, Found, Time};
use crate::story::{Profile, Step, Whom};
use serde_json::Value;

pub(super) fn check(history: &History, lives: &Lives, streams: &Streams<'_>, findings: &mut Findings) {
    for look in &history.looks {
        Judge { history, lives, streams, look }.check(findings);
    }
    let at_rest = history.deeds.iter().skip_while(|entry| entry.what != Deed::AtRest);
    for Entry { what, .. } in at_rest {
        let Deed::Ran { arguments, code: Some(0), out, .. } = what else { continue };
        if arguments[0] == "stat"
            && let Ok(status) = serde_json::from_str(out)
        {
            check_figures(history, lives, streams, &status, findings);
        }
    }
}

/// Judges one search for a key.
struct Judge<'a> {
    history: &'a History,
    lives: &'a Lives,
    streams: &'a Streams<'a>,
    look: &'a Look,
}

impl Judge<'_> {
    fn check(&self, findings: &mut Findings) {
        let Look { actor, key, found, error, .. } = self.look;
        if let Some(error) = error {
            return self.check_error(error, findings);
        }
        // If the channel's sequences restarted, the channel has several lives (runs of sequences). The logs do not say which life was
        // searched.
        let mut lives = self.streams.lives_of(&self.look.channel);
        let life = lives.next().filter(|_| lives.next().is_none());
        let stream = life.and_then(|life| self.streams.life(life));
        if let Some(found) = found {
            self.check_message(found, stream, findings);
        }
        let (Some(life), Some(stream)) = (life, stream) else { return };
        let before = self.streams.published(&self.look.channel, life, self.look.began);
        let newest = stream.of_key(*key, before).next();
        let Some(newest) = newest.filter(|newest| self.must_know(newest.sequence, life, before)) else {
            return;
        };
        let told = match found {
            Some(found) if found.sequence >= newest.sequence => return,
            None if newest.is_removal || self.was_removed_after(stream, newest.sequence) => return,
            Some(found) => format!("{} was found", found.sequence),
            None => "nothing was found".to_owned(),
        };
        let what = format!(
            "channel {}, key {key}: message {} had been published before the search, and {told}",
            self.look.channel, newest.sequence
        );
        findings.add(10, "old_value", actor, what);
    }

    fn check_error(&self, error: &str, findings: &mut Findings) {
        let may_move = self.history.deeds.iter().any(|entry| match &entry.what {
            Deed::MayRestart { channel, .. } => *channel == self.look.channel,
            Deed::Step { step, .. } => matches!(step, Step::Reload { .. } | Step::Limit { .. }),
            _ => false,
        });
        // The error `Board` is no violation, because a publisher can change the board faster than the search reads it.
        if error == "Board" || may_move && ["Superseded", "Unmapped", "NoBoard"].contains(&error) {
            return;
        }
        let what =
            format!("channel {}: the search for key {} failed: {error}", self.look.channel, self.look.key);
        findings.add(10, "search_failed", &self.look.actor, what);
    }

    /// Checks that the found message was published with this key, and before the search had ended.
    fn check_message(&self, found: &Found, stream: Option<&Stream>, findings: &mut Findings) {
        let Look { actor, channel, key, ended, .. } = self.look;
        let mut wrong = |name: &str, what: String| {
            findings.add(
                10,
                name,
                actor,
                format!("channel {channel}, key {key}, message {}: {what}", found.sequence),
            );
        };
        if found.is_odd {
            wrong("damaged_message", "its bytes are wrong".into());
        }
        if let Some(message) = found.message {
            let publication = self.history.publication(message.publisher).filter(|p| p.channel == *channel);
            let right = publication.and_then(|p| p.sequence_of(message.counter));
            if right != Some(found.sequence) {
                wrong("false_sequence", format!("{message:?} was published as {right:?}"));
            }
            let has_begun =
                |p: &Publication| p.send_of(message.counter).is_some_and(|send| send.began <= *ended);
            if publication.is_some_and(|p| !has_begun(p)) {
                wrong("unpublished_message", format!("{message:?} was published later"));
            }
            if let Some(cut) = self.lives.cut(message.publisher).filter(|cut| found.sequence >= cut.from) {
                wrong("void_message", format!("publisher {} went on from {}", cut.by, cut.from));
            }
        }
        let Some(stream) = stream else { return };
        let Some(sent) = stream.between(found.sequence, found.sequence + 1).first() else { return };
        if sent.key != Some(*key) || sent.is_removal {
            return wrong("false_key", format!("it has the key {:?}, or removed it", sent.key));
        }
        let Some(board) = self.streams.board(channel).filter(|_| self.streams.is_undisturbed(channel)) else {
            return;
        };
        if found.message.is_none() && !found.is_odd && sent.length <= board.value as usize {
            wrong("value_missing", format!("it has {} B, and the board lacks them", sent.length));
        }
        let right = stream.counted(*key, found.sequence + 1);
        if self.streams.has_room(channel) && found.count != right {
            wrong(
                "false_count",
                format!("{} messages of the key were counted, and there were {right}", found.count),
            );
        }
    }

    /// Whether the board surely had this message, or a newer one of its key, when the search began.
    fn must_know(&self, sequence: u64, life: usize, before: u64) -> bool {
        let channel = &self.look.channel;
        let is_there =
            self.streams.has_room(channel) && sequence >= self.streams.since(channel, life, before);
        // Without a daemon that answers, a board does not follow the channel to its next segment.
        is_there && !(is_segmented(self.history, channel) && self.history.deeds.iter().any(may_detach))
    }

    /// Whether a later message could have removed the key before the search ended.
    fn was_removed_after(&self, stream: &Stream, sequence: u64) -> bool {
        let has_begun = |at: u64| {
            let all = self.history.on(&self.look.channel).flat_map(|p| &p.sends);
            let mut of_message =
                all.filter(|send| (send.next..send.next.saturating_add(send.most)).contains(&at));
            of_message.any(|send| send.began <= self.look.ended)
        };
        let newer = stream.of_key(self.look.key, u64::MAX).take_while(|sent| sent.sequence > sequence);
        newer.filter(|sent| sent.is_removal).any(|sent| has_begun(sent.sequence))
    }
}

/// Whether publishers of the channel could have got segments of their own.
pub(super) fn is_segmented(history: &History, channel: &str) -> bool {
    use crate::story::Change;
    let gives_segments = |entry: &Entry<Deed>| match &entry.what {
        Deed::TakingOver { channel: name } => name == channel,
        Deed::Step { step: Step::Reload { change, .. }, .. } => {
            matches!(change, Change::Board | Change::Mode | Change::Largest | Change::Capacity)
        }
        _ => false,
    };
    history.profile == Some(Profile::Strict)
        || history.strict.iter().any(|name| name == channel)
        || history.deeds.iter().any(gives_segments)
}

/// Whether this action can have separated a board from its daemon for a while.
fn may_detach(entry: &Entry<Deed>) -> bool {
    match &entry.what {
        Deed::Step { step, .. } => matches!(
            step,
            Step::Crash { .. }
                | Step::Restart { .. }
                | Step::Stop { whom: Whom::Daemon }
                | Step::Limit { .. }
        ),
        _ => false,
    }
}

/// Checks the figures of a board that a tool shows when everything is at rest.
fn check_figures(
    history: &History,
    lives: &Lives,
    streams: &Streams<'_>,
    status: &Value,
    findings: &mut Findings,
) {
    let (Some(channel), board) = (status["channel"].as_str(), &status["board"]) else { return };
    let Some((sequence, ..)) = last(history, channel).filter(|_| board.is_object()) else { return };
    let mut same = |what: &str, right: std::ops::RangeInclusive<u64>| {
        let shown = board[what].as_u64();
        if shown.is_none_or(|shown| !right.contains(&shown)) {
            let what =
                format!("channel {channel}: {what} of the board is {shown:?}, and should be {right:?}");
            findings.add(7, "false_figure", "stat", what);
        }
    };
    same("through", sequence..=sequence);
    let life = history.on(channel).last().and_then(|p| lives.life(p.number));
    let first = history.on(channel).filter(|p| lives.life(p.number) == life).map(|p| p.next).min();
    let exact = streams.board(channel).filter(|_| streams.is_undisturbed(channel) && first == Some(1));
    let (Some(board), Some(stream)) = (exact, life.and_then(|life| streams.life(life))) else { return };
    let model = Model::of(stream.between(0, sequence + 1), board);
    let keys = model.live.len() as u64;
    same("keys", keys..=keys);
    if is_segmented(history, channel) {
        return;
    }
    // If a publisher is killed between two steps of a store, the next publisher counts the message once more.
    let killed = killed_publishers(history, channel);
    for (what, right) in
        [("refused", model.refused), ("too_large", model.too_large), ("no_key", model.no_key)]
    {
        same(what, right..=right + killed);
    }
    same("since", 1..=1);
}

fn killed_publishers(history: &History, channel: &str) -> u64 {
    let was_killed = |p: &&Publication| {
        let is_its_end = |entry: &Entry<Deed>, at: Time| {
            entry.at > at
                && matches!(&entry.what, Deed::Signalled { who, signal } if *who == p.actor && signal == "KILL")
        };
        history.deeds.iter().any(|entry| is_its_end(entry, p.opening))
    };
    history.on(channel).filter(was_killed).count() as u64
}
