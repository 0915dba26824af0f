//! The messages of channels with keys, in the order of their sequences, computed from what publishers logged.

use super::history::{History, Publication};
use super::lives::Lives;
use crate::keys::Keys;
use crate::log::{Deed, Entry, Time};
use crate::payload::Identity;
use crate::story::{Board, Change, Step};
use std::cell::OnceCell;
use std::collections::BTreeMap;

/// If a channel with a journal skips this many sequences, it continues after the journal's reserve, and its board begins empty.
const RESERVE: u64 = 1 << 31;

/// A message of a channel with keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) sequence: u64,
    pub(super) length: usize,
    /// The number of the key; `None` if the message is too short to have one.
    pub(super) key: Option<u32>,
    /// Whether the message removes its key.
    pub(super) is_removal: bool,
}

/// All valid messages of one life of a channel. A life is a run of publications whose sequences continue.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) messages: Vec<Sent>,
    /// For each key, the places of its messages in `messages`.
    of_key: BTreeMap<u32, Vec<usize>>,
}

impl Stream {
    fn of<'a>(publications: impl Iterator<Item = &'a Publication>, keys: Keys, lives: &Lives) -> Self {
        let mut stream = Self::default();
        for publication in publications {
            let cut = lives.cut(publication.number).map_or(u64::MAX, |cut| cut.from);
            for send in &publication.sends {
                let Some((first, sizes)) = send.messages else { continue };
                for at in 0..send.most.min(cut.saturating_sub(send.next)) {
                    let who = Identity { counter: first.counter + at as u32, ..first };
                    let length = who.length(sizes, publication.largest);
                    let key = (length >= keys.end).then(|| keys.number(who));
                    let is_removal = length == keys.end;
                    stream.messages.push(Sent { sequence: send.next + at, length, key, is_removal });
                }
            }
        }
        stream.messages.sort_by_key(|message| message.sequence);
        for (at, message) in stream.messages.iter().enumerate() {
            if let Some(key) = message.key {
                stream.of_key.entry(key).or_default().push(at);
            }
        }
        stream
    }

    /// Returns the messages from the sequence `from` to `to - 1`.
    pub(super) fn between(&self, from: u64, to: u64) -> &[Sent] {
        let place = |sequence| self.messages.partition_point(|message| message.sequence < sequence);
        &self.messages[place(from).min(place(to))..place(to)]
    }

    /// Returns the messages of a key below the sequence `to`, newest first.
    pub(super) fn of_key(&self, key: u32, to: u64) -> impl Iterator<Item = &Sent> {
        let places = self.of_key.get(&key).map_or(&[][..], Vec::as_slice);
        let end = places.partition_point(|at| self.messages[*at].sequence < to);
        places[..end].iter().rev().map(|at| &self.messages[*at])
    }

    /// Returns the newest message of each key below the sequence `to`.
    pub(super) fn newest(&self, to: u64) -> impl Iterator<Item = &Sent> {
        self.of_key.keys().filter_map(move |key| self.of_key(*key, to).next())
    }

    /// Returns the number of messages that a board counts for a key below `to`. The board has room for all keys. It ignores removals of a
    /// key that it never had.
    pub(super) fn counted(&self, key: u32, to: u64) -> u64 {
        let messages: Vec<&Sent> = self.of_key(key, to).collect();
        messages.iter().rev().skip_while(|message| message.is_removal).count() as u64
    }
}

/// The streams of all channels with keys.
pub(super) struct Streams<'a> {
    history: &'a History,
    lives: &'a Lives,
    /// For each life of a channel with keys: its channel, and its messages, which are computed at the first use.
    all: BTreeMap<usize, (&'a str, OnceCell<Stream>)>,
}

impl<'a> Streams<'a> {
    pub(super) fn of(history: &'a History, lives: &'a Lives) -> Self {
        let keyed = history.publications.iter().filter(|p| Keys::of(&p.channel).is_some());
        let all = keyed.filter_map(|p| Some((lives.life(p.number)?, (p.channel.as_str(), OnceCell::new()))));
        Self { history, lives, all: all.collect() }
    }

    pub(super) fn life(&self, life: usize) -> Option<&Stream> {
        let (channel, stream) = self.all.get(&life)?;
        let keys = Keys::of(channel)?;
        let of_life = self.history.on(channel).filter(|p| self.lives.life(p.number) == Some(life));
        Some(stream.get_or_init(|| Stream::of(of_life, keys, self.lives)))
    }

    /// Returns the lives of a channel. A life is a run of publications whose sequences continue.
    pub(super) fn lives_of(&self, channel: &str) -> impl Iterator<Item = usize> {
        self.all.iter().filter(move |(_, (name, _))| *name == channel).map(|(life, _)| *life)
    }

    /// Returns the sequence below which all messages of this life had surely been published at `time`.
    pub(super) fn published(&self, channel: &str, life: usize, time: Time) -> u64 {
        let of_life = self.history.on(channel).filter(|p| self.lives.life(p.number) == Some(life));
        let ends = of_life.flat_map(|p| {
            let cut = self.lives.cut(p.number).map_or(u64::MAX, |cut| cut.from);
            let done = p.sends.iter().filter(move |send| send.done.is_some_and(|done| done < time));
            done.map(move |send| (send.next + send.least).min(cut))
        });
        ends.max().unwrap_or(0)
    }

    /// Returns the life to which `sequence` belonged at `time`. It is the life of the last publication that could have used `sequence`, or
    /// could have ended just before `sequence`. Publications whose opening began after `time` do not count.
    pub(super) fn life_at(&self, channel: &str, sequence: u64, time: Time) -> Option<usize> {
        let begun = self
            .history
            .on(channel)
            .filter(|p| p.opening < time && p.next <= sequence && sequence <= p.perhaps());
        self.lives.life(begun.last()?.number)
    }

    /// Returns a sequence from which on the channel's board surely has each message below `to` that fits the board. If nothing in the
    /// story could lose or replace the board, returns 0. Otherwise returns the first sequence of the last publication, because the
    /// present board began at the latest with this publication.
    pub(super) fn since(&self, channel: &str, life: usize, to: u64) -> u64 {
        if self.is_undisturbed(channel) {
            return 0;
        }
        let of_life =
            self.history.on(channel).filter(|p| self.lives.life(p.number) == Some(life) && p.next <= to);
        of_life.map(|p| p.next).max().unwrap_or(to)
    }

    /// Whether the channel had the same board all the time, and nothing could lose a part of it.
    ///
    /// - A takeover can lose messages of the board: the publisher that is cut off overwrites the ring.
    /// - A reload can replace the board.
    /// - A channel with a journal continues after the journal's reserve, if its memory was lost. The board is lost, too.
    pub(super) fn is_undisturbed(&self, channel: &str) -> bool {
        let disturbs = |entry: &Entry<Deed>| match &entry.what {
            Deed::TakingOver { channel: name } => name == channel,
            Deed::Step { step, .. } => matches!(step, Step::Reload { change: Change::Board, .. }),
            _ => false,
        };
        let has_leapt = |p: &Publication| p.next >= RESERVE && self.history.recorded.contains(&p.channel);
        self.board(channel).is_some()
            && !self.history.deeds.iter().any(disturbs)
            && !self.history.on(channel).any(has_leapt)
    }

    /// Returns the board that the channel had at the beginning.
    pub(super) fn board(&self, channel: &str) -> Option<Board> {
        self.history.shapes.get(channel)?.board
    }

    /// Whether all keys of the channel's messages always fit the board.
    pub(super) fn has_room(&self, channel: &str) -> bool {
        // If a board is large enough for its keys, no reload makes it too small.
        let used = Keys::of(channel).map_or(0, |keys| keys.used);
        self.board(channel).is_none_or(|board| board.keys >= used)
    }
}

/// Computes which keys are on a board that is too small for all keys. A full board refuses new keys.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// For each key on the board, its newest message.
    pub(super) live: BTreeMap<u32, Sent>,
    pub(super) refused: u64,
    pub(super) too_large: u64,
    pub(super) no_key: u64,
}

impl Model {
    pub(super) fn of(messages: &[Sent], board: Board) -> Self {
        let mut model = Self::default();
        for message in messages {
            let Some(key) = message.key else {
                model.no_key += 1;
                continue;
            };
            if message.is_removal {
                model.live.remove(&key);
            } else if model.live.contains_key(&key) || model.live.len() < board.keys as usize {
                model.live.insert(key, *message);
                model.too_large += u64::from(message.length > board.value as usize);
            } else {
                model.refused += 1;
            }
        }
        model
    }
}
