//! Judges the messages that a reader gets from a board. A reader gets them at its start, or when it is too far behind and skips old
//! messages of keys.
//!
//! In both cases, the reader gets an *episode* of events: messages that stand for forgotten removals, the newest messages of keys, a lap
//! for messages that the board does not replace, and then `Live`.

use super::Cursor;
use crate::log::{Deed, Entry, Fact, Time};
use crate::oracle::Findings;
use crate::oracle::history::Publication;
use crate::oracle::streams::{Model, Sent, Stream};
use crate::payload::Identity;
use crate::story::Start;
use std::collections::BTreeMap;

/// A message that a reader got from a board.
#[derive(Debug, Clone, Copy)]
struct Newest {
    sequence: u64,
    who: Identity,
    length: usize,
    conflated: u64,
}

/// The events of one visit to the board.
#[derive(Debug, Default)]
pub(super) struct Episode {
    /// The number of log entries.
    pub(super) entries: usize,
    newest: Vec<Newest>,
    forgotten: Vec<u32>,
    missed: u64,
    /// The sequence at which the reader continues in the ring. `None` if the log has no `Live` at the end of the episode.
    live: Option<u64>,
    /// The time of the last event.
    at: Time,
    /// Whether this is the start of the reader.
    is_start: bool,
}

impl Episode {
    /// Returns the episode that begins with the first of these entries; `None` if no episode begins there.
    pub(super) fn at(seen: &[Entry<Fact>], is_start: bool, conflates: bool) -> Option<Self> {
        let mut episode = Self { is_start, ..Self::default() };
        let mut lapped_to = None;
        for Entry { at, what } in seen {
            match what {
                Fact::Newest { sequence, message, length, conflated } => {
                    let (sequence, who, length, conflated) = (*sequence, *message, *length, *conflated);
                    episode.newest.push(Newest { sequence, who, length, conflated });
                }
                Fact::Forgotten { key, .. } => episode.forgotten.push(*key),
                Fact::Lapped { missed, resumed_at } if lapped_to.is_none() => {
                    (episode.missed, lapped_to) = (*missed, Some(*resumed_at));
                }
                Fact::Live { sequence, .. } if lapped_to.is_none_or(|to| to == *sequence) => {
                    episode.live = Some(*sequence);
                }
                Fact::Late { .. } | Fact::Nothing { .. } => {}
                _ => break,
            }
            (episode.entries, episode.at) = (episode.entries + 1, *at);
            if episode.live.is_some() {
                break;
            }
        }
        let has_messages = !episode.newest.is_empty() || !episode.forgotten.is_empty();
        // A reader that skips old messages of keys never reads a journal, so its `Live` always ends an episode.
        let is_one = has_messages || episode.live.is_some();
        (is_one && (is_start || conflates)).then_some(episode)
    }
}

impl Cursor<'_> {
    /// Whether the reader's next events are those of the board with which it begins.
    pub(super) fn begins_with_board(&self) -> bool {
        let is_new = self.is_first && self.is_new_here && self.seeking == 0 && !self.has_restarted;
        is_new && self.reader.start == Start::Board
    }

    pub(super) fn episode(&mut self, episode: &Episode, findings: &mut Findings) {
        let due = self.expected;
        self.check_newest(episode, findings);
        let life = match episode.newest.last() {
            Some(newest) => self.lives.life(newest.who.publisher),
            None => {
                episode.live.and_then(|live| self.life.or_else(|| self.life_without_messages(live, episode)))
            }
        };
        if let (Some(live), Some(life)) = (episode.live, life)
            && let Some(stream) = self.streams.life(life)
        {
            self.check_values(episode, stream, findings);
            match episode.is_start {
                true => self.check_start(episode, (live, life), stream, findings),
                false => self.check_left_out(episode, (due, live), stream, findings),
            }
        }
        // A reader that gets messages from the board might not get the event of a new publisher.
        (self.expected, self.in_doubt, self.is_first, self.is_new_here) =
            (episode.live.unwrap_or(0), true, false, false);
        (self.told, self.last) = (None, episode.newest.last().map(|newest| newest.who.publisher));
    }

    /// Finds the life of the channel in which a reader read an empty board. A *life* is a run of publications whose sequences continue.
    /// Usually the result is the life that the channel had at this time. It can also be the next life, before its first message, if two
    /// conditions hold:
    ///
    /// - The channel could have restarted between the last publication of the earlier life and the reader's start.
    /// - The next message that the reader received is not of the earlier life.
    fn life_without_messages(&self, live: u64, episode: &Episode) -> Option<usize> {
        let channel = self.reader.channel.as_str();
        let earlier = self.streams.life_at(channel, live, episode.at)?;
        let life = |p: &Publication| self.lives.life(p.number);
        let begun = self.history.on(channel).filter(|p| p.opening < episode.at && life(p) == Some(earlier));
        let last = begun.map(|p| p.opening).max()?;
        let next = self.history.on(channel).find(|p| p.opening > last && life(p) != Some(earlier));
        let may_restart = self.history.deeds.iter().any(|entry| {
            matches!(&entry.what, Deed::MayRestart { channel: name, .. } if name == channel)
                && (last..self.reader.at).contains(&entry.at)
        });
        let later = self.reader.seen.iter().filter(|entry| entry.at >= episode.at);
        let mut senders = later.filter_map(|entry| match &entry.what {
            Fact::Got { first, .. } => Some(first.publisher),
            _ => None,
        });
        let is_of_earlier = senders.next().is_some_and(|number| self.lives.life(number) == Some(earlier));
        let next = next.filter(|p| p.next == live && may_restart && !is_of_earlier);
        next.map_or(Some(earlier), life)
    }

    /// Checks each message by itself, and the order of the messages.
    fn check_newest(&mut self, episode: &Episode, findings: &mut Findings) {
        let who = self.reader.actor.as_str();
        let mut before = 0;
        for newest in &episode.newest {
            let name = self.name_of(newest.sequence, newest.who);
            let Some(publication) = self.published(newest.sequence, newest.who, &name, findings) else {
                continue;
            };
            let sizes = publication.sizes_of(newest.who.counter);
            let right = sizes.map(|sizes| newest.who.length(sizes, publication.largest));
            if right.is_some_and(|right| right != newest.length) {
                let what = format!("{name} has {} B, and was published with {right:?}", newest.length);
                findings.add(1, "false_length", who, what);
            }
            self.check_life(publication, &name, findings);
            let is_too_new = episode.live.is_some_and(|live| newest.sequence >= live);
            if newest.sequence <= before || is_too_new {
                let what = format!("{name} came from the board after {before}, before {:?}", episode.live);
                findings.add(2, "backwards", who, what);
            }
            before = newest.sequence;
        }
    }

    /// Checks that each message is the newest of its key.
    fn check_values(&self, episode: &Episode, stream: &Stream, findings: &mut Findings) {
        let (who, Some(live)) = (self.reader.actor.as_str(), episode.live) else { return };
        for newest in &episode.newest {
            let name = self.name_of(newest.sequence, newest.who);
            let here = stream.between(newest.sequence, newest.sequence + 1).first();
            let Some(Sent { key: Some(key), is_removal, .. }) = here else {
                findings.add(10, "without_key", who, format!("{name} came from the board, and has no key"));
                continue;
            };
            if let Some(newer) =
                stream.of_key(*key, live).next().filter(|newer| newer.sequence > newest.sequence)
            {
                let what = format!(
                    "{name} came from the board, live at {live}, and message {} of its key {key} is newer",
                    newer.sequence
                );
                findings.add(10, "old_value", who, what);
            }
            if *is_removal && episode.is_start {
                findings.add(
                    10,
                    "removed_key",
                    who,
                    format!("{name} removed its key, and came from the board"),
                );
            }
        }
    }

    /// Checks that a reader began with the messages of all keys, and that the board was not older than the reader's start.
    fn check_start(
        &self,
        episode: &Episode,
        (live, life): (u64, usize),
        stream: &Stream,
        findings: &mut Findings,
    ) {
        let (who, channel) = (self.reader.actor.as_str(), self.reader.channel.as_str());
        let published = self.streams.published(channel, life, self.reader.subscribing);
        if live < published && !self.may_be_led() {
            let what = format!("began with the board of {live}, and {} had been published", published - 1);
            findings.add(10, "old_board", who, what);
        }
        let exact = self.streams.board(channel).filter(|_| self.streams.is_undisturbed(channel));
        let demanded: Vec<Sent> = match exact {
            Some(board) if !self.streams.has_room(channel) => {
                Model::of(stream.between(0, live), board).live.into_values().collect()
            }
            None if !self.streams.has_room(channel) => Vec::new(),
            _ => {
                let since = self.streams.since(channel, life, live);
                stream.newest(live).filter(|it| !it.is_removal && it.sequence >= since).copied().collect()
            }
        };
        let got = |sent: &Sent| episode.newest.iter().any(|newest| newest.sequence == sent.sequence);
        let lacking: Vec<&Sent> = demanded.iter().filter(|sent| !got(sent)).collect();
        let too_large = |sent: &&&Sent| exact.is_none_or(|board| sent.length > board.value as usize);
        let is_told = match exact {
            Some(_) => episode.missed == lacking.len() as u64 && lacking.iter().all(|sent| too_large(&sent)),
            None => episode.missed >= lacking.len() as u64,
        };
        if !is_told {
            let keys: Vec<_> =
                lacking.iter().take(5).map(|sent| (sent.key, sent.sequence, sent.length)).collect();
            let what = format!(
                "began with {} messages of the board and {} missed, live at {live}, and {} keys are missing: {keys:?}",
                episode.newest.len(),
                episode.missed,
                lacking.len()
            );
            findings.add(10, "lacking_key", who, what);
        }
        if let Some(newest) = episode.newest.iter().find(|newest| newest.conflated > 0) {
            let name = self.name_of(newest.sequence, newest.who);
            let what = format!("{name} says at the start that {} were left out", newest.conflated);
            findings.add(10, "false_conflated", who, what);
        }
    }

    /// Checks the messages that a reader got in place of the messages from `due` to `live - 1`.
    fn check_left_out(
        &self,
        episode: &Episode,
        (due, live): (u64, u64),
        stream: &Stream,
        findings: &mut Findings,
    ) {
        let (who, channel) = (self.reader.actor.as_str(), self.reader.channel.as_str());
        if due == 0 || self.is_inexact {
            return;
        }
        let replaced: u64 = episode.newest.iter().map(|newest| newest.conflated + 1).sum();
        if live < due || replaced + episode.missed != live - due {
            let what = format!(
                "{} messages of the board replace {replaced}, and {} are missed, but {due} was due and it is live at {live}",
                episode.newest.len(),
                episode.missed
            );
            findings.add(10, "false_conflated", who, what);
        }
        let Some(board) = self.streams.board(channel) else { return };
        if !self.streams.is_undisturbed(channel) || !self.streams.has_room(channel) {
            return;
        }
        let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
        for key in stream.between(due, live).iter().filter_map(|sent| sent.key) {
            *counts.entry(key).or_default() += 1;
        }
        for key in counts.into_keys() {
            let Some(sent) = stream.of_key(key, live).next() else { continue };
            let count = stream.counted(key, live) - stream.counted(key, due);
            let expected = (sent.length <= board.value as usize && count > 0).then(|| count - 1);
            let found = episode.newest.iter().find(|newest| newest.sequence == sent.sequence);
            let found = found.map(|newest| newest.conflated);
            if found != expected {
                let what = format!(
                    "key {key}, newest message {} of {} B: {found:?} were left out, and should be {expected:?}; {due} was \
                     due, live at {live}",
                    sent.sequence, sent.length
                );
                findings.add(10, "false_conflated", who, what);
            }
        }
        if let Some(key) = episode.forgotten.first() {
            let what = format!("key {key} was told as forgotten, and the board has room for all keys");
            findings.add(10, "false_removal", who, what);
        }
    }

    /// Whether the reader could begin in an old segment, because the channel could already have had a newer segment.
    fn may_be_led(&self) -> bool {
        self.is_segmented()
    }
}
