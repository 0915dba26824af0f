//! The publisher's side of a board (SPEC.md, section 8). Only the list of free slots is outside the segment, so another publisher can
//! continue from the segment's words.

use super::shelf::{Message, Spec};
use crate::scribe::{CAPACITY, DATA, Scribe, WORDS, checksum};
use std::collections::VecDeque;

/// The index of the board's first word in a segment.
pub const AT: usize = WORDS;
const HEADER: usize = 512;
pub(crate) const THROUGH: usize = 16;
pub(crate) const SINCE: usize = 32;
pub(crate) const HIGH: usize = 33;
pub(crate) const LIVING: usize = 34;
pub(crate) const NO_ROOM: usize = 35;
const TOO_LARGE: usize = 36;
const NO_KEY: usize = 37;
pub(crate) const FORGOTTEN: usize = 38;
pub(crate) const MOVES: usize = 39;

pub(crate) const IS_KEY: u64 = 1 << 32;
pub(crate) const IS_REMOVED: u64 = 1 << 33;
pub(crate) const IS_TOO_LARGE: u64 = 1 << 34;
pub(crate) const IS_UNKNOWN: u64 = 1 << 35;
pub(crate) const IS_EMPTY: u64 = 1 << 36;

fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ b) * 0x9e37_79b9_7f4a_7c15;
    product as u64 ^ (product >> 64) as u64
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// The offsets of the parts of a board, in words from the start of the segment.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The properties that the board's creator chose.
    pub spec: Spec,
    /// The seed of the board's hashes.
    pub seed: u64,
    /// Number of entries of the board's index.
    pub entries: usize,
}

impl Parts {
    /// Computes the parts of a board.
    pub const fn of(spec: Spec, seed: u64) -> Self {
        let entries = (2 * spec.keys).next_power_of_two();
        Self { spec, seed, entries }
    }

    fn heads(&self) -> usize {
        AT + HEADER + self.entries.next_multiple_of(8)
    }

    /// Returns the number of words of a value.
    fn stride(&self) -> usize {
        self.spec.value.next_multiple_of(64) / 8
    }

    /// Returns the number of words of a segment with this board.
    pub fn words(&self) -> usize {
        (self.value(self.spec.keys) - AT).next_multiple_of(HEADER) + AT
    }

    /// Returns the word of an index entry.
    pub fn entry(&self, number: usize) -> usize {
        AT + HEADER + number % self.entries
    }

    /// Returns the first word of a slot's head.
    pub fn head(&self, slot: usize) -> usize {
        self.heads() + 8 * slot
    }

    /// Returns the first word of a slot's value.
    pub fn value(&self, slot: usize) -> usize {
        self.heads() + 8 * self.spec.keys + self.stride() * slot
    }

    /// Returns the two words that stand for a key.
    pub fn identity(&self, key: &[u8]) -> [u64; 2] {
        let hash = |seed| key.chunks(8).fold(seed, |hash, piece| mix(hash, word_of(piece)));
        match key.len() {
            0..=8 => [word_of(key), 0],
            9..=16 => [word_of(&key[..8]), word_of(&key[8..])],
            _ => [hash(self.seed), hash(!self.seed)],
        }
    }

    /// Returns the fingerprint of a key's two words.
    pub fn fingerprint(&self, identity: [u64; 2]) -> u64 {
        mix(mix(self.seed, identity[0]), identity[1]) >> 32
    }

    /// Returns how many bytes of a message of this length are stored in a slot's value.
    pub fn stored(&self, length: usize) -> usize {
        if length > self.spec.value { self.spec.key.end } else { length }
    }

    /// Returns the words 0 to 15 of the board's header.
    pub fn header(&self) -> [u64; 16] {
        let Spec { keys, value, key, remove_tag } = &self.spec;
        let mut words = [0; 16];
        words[..9].copy_from_slice(&[
            u64::from_le_bytes(*b"SHMBORD1"),
            0x1_0000,
            *keys as u64,
            *value as u64,
            key.start as u64,
            key.end as u64,
            remove_tag.map_or(0, |tag| 1 << 16 | u64::from(tag)),
            self.entries as u64,
            self.seed,
        ]);
        seal(&mut words);
        words
    }

    /// Adds this board to a segment that nobody has written to.
    pub fn add_to(&self, words: &mut Vec<u64>) {
        words.resize(self.words(), 0);
        words[1] = words[1] & !0xffff | 1;
        words[60] = DATA as u64 * 8 + CAPACITY;
        checksum(words);
        words[AT..AT + 16].copy_from_slice(&self.header());
        words[AT + SINCE] = 1;
    }
}

/// Sets the right checksum in a board's header.
pub fn seal(header: &mut [u64]) {
    let crc = header[1..15].iter().fold(0, |crc, word| crc32c::crc32c_append(crc, &word.to_le_bytes()));
    header[15] = u64::from(crc);
}

/// The writer of a board.
#[derive(Debug)]
pub struct Clerk {
    /// The offsets of the board's parts.
    pub parts: Parts,
    /// Slots without a living key. New keys get these slots in this order.
    vacant: VecDeque<usize>,
}

impl Clerk {
    /// Makes the writer of a new board.
    pub const fn new(parts: Parts) -> Self {
        Self { parts, vacant: VecDeque::new() }
    }

    fn add(&self, scribe: &mut Scribe, word: usize, by: u64) {
        let value = scribe.words()[AT + word].wrapping_add(by);
        scribe.store(AT + word, value);
    }

    fn identity_in(&self, words: &[u64], slot: usize) -> [u64; 2] {
        let head = self.parts.head(slot);
        [words[head + 6], words[head + 7]]
    }

    /// Searches the index for a key. Returns the number of the entry at which the search ends. Also returns the key's slot, if the key has
    /// a slot.
    fn find(&self, words: &[u64], identity: [u64; 2]) -> (usize, Option<usize>) {
        let print = self.parts.fingerprint(identity);
        let mut number = print as usize;
        loop {
            let entry = words[self.parts.entry(number)];
            let slot = (entry as u32 as usize).wrapping_sub(1);
            if entry == 0 {
                return (number, None);
            }
            if entry >> 32 == print && self.identity_in(words, slot) == identity {
                return (number, Some(slot));
            }
            number += 1;
        }
    }

    fn put_in(&self, scribe: &mut Scribe, identity: [u64; 2], slot: usize) {
        let (number, _) = self.find(scribe.words(), identity);
        scribe.store(self.parts.entry(number), self.parts.fingerprint(identity) << 32 | (slot as u64 + 1));
    }

    /// Takes a key's entry out of the index. Then moves other entries, so that no gap stays.
    fn take_out(&self, scribe: &mut Scribe, identity: [u64; 2]) {
        let (mut gap, Some(_)) = self.find(scribe.words(), identity) else { return };
        self.add(scribe, MOVES, 1);
        let entries = self.parts.entries;
        let mut number = gap;
        loop {
            number += 1;
            let entry = scribe.words()[self.parts.entry(number)];
            if entry == 0 {
                break;
            }
            let from_home = number.wrapping_sub((entry >> 32) as usize) % entries;
            if from_home >= (number - gap) % entries {
                scribe.store(self.parts.entry(gap), entry);
                gap = number;
            }
        }
        scribe.store(self.parts.entry(gap), 0);
        self.add(scribe, MOVES, 1);
    }

    /// Stores that the board has every message up to this sequence.
    pub fn through(&self, scribe: &mut Scribe, sequence: u64) {
        scribe.store(AT + THROUGH, sequence);
    }

    /// Posts a message that was committed to the ring.
    pub fn post(&mut self, scribe: &mut Scribe, message: &Message) {
        self.put(scribe, message);
        self.through(scribe, message.sequence);
    }

    fn put(&mut self, scribe: &mut Scribe, message: &Message) {
        let Some(key) = self.parts.spec.key_of(&message.payload) else {
            return self.add(scribe, NO_KEY, 1);
        };
        let identity = self.parts.identity(key);
        if let (_, Some(slot)) = self.find(scribe.words(), identity) {
            return self.renew(scribe, slot, message);
        }
        if self.parts.spec.removes(message) {
            return;
        }
        let Some(slot) = self.free(scribe) else { return self.add(scribe, NO_ROOM, 1) };
        self.store(scribe, slot, message, Some(identity));
        let high = scribe.words()[AT + HIGH];
        if slot as u64 == high {
            scribe.store(AT + HIGH, high + 1);
        }
        self.put_in(scribe, identity, slot);
        self.add(scribe, LIVING, 1);
    }

    fn renew(&mut self, scribe: &mut Scribe, slot: usize, message: &Message) {
        let was_removed = scribe.words()[self.parts.head(slot) + 3] & IS_REMOVED != 0;
        let is_removed = self.parts.spec.removes(message);
        self.store(scribe, slot, message, None);
        self.vacant.retain(|vacant| *vacant != slot);
        if is_removed {
            self.vacant.push_back(slot);
        }
        if was_removed != is_removed {
            self.add(scribe, LIVING, if is_removed { u64::MAX } else { 1 });
        }
    }

    fn free(&mut self, scribe: &mut Scribe) -> Option<usize> {
        let meta = |scribe: &Scribe, slot: usize| scribe.words()[self.parts.head(slot) + 3];
        let high = scribe.words()[AT + HIGH] as usize;
        let is_empty = self.vacant.front().is_some_and(|slot| meta(scribe, *slot) & IS_EMPTY != 0);
        if high < self.parts.spec.keys && !is_empty {
            return Some(high);
        }
        let slot = self.vacant.pop_front()?;
        if meta(scribe, slot) & IS_EMPTY == 0 {
            let removal = scribe.words()[self.parts.head(slot) + 1].max(scribe.words()[AT + FORGOTTEN]);
            scribe.store(AT + FORGOTTEN, removal);
            let identity = self.identity_in(scribe.words(), slot);
            self.take_out(scribe, identity);
        }
        Some(slot)
    }

    fn store(&self, scribe: &mut Scribe, slot: usize, message: &Message, new: Option<[u64; 2]>) {
        let Message { sequence, payload, tag, is_key, time } = message;
        let head = self.parts.head(slot);
        let even = (scribe.words()[head] | 1) + 1;
        let is_too_large = payload.len() > self.parts.spec.value;
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let meta = payload.len() as u64
            | u64::from(*tag) << 48
            | flag(*is_key, IS_KEY)
            | flag(self.parts.spec.removes(message), IS_REMOVED)
            | flag(is_too_large, IS_TOO_LARGE);
        scribe.store(head, even - 1);
        if let Some([first, second]) = new {
            scribe.store(head + 2, even / 2 - 1);
            scribe.store(head + 5, *sequence);
            scribe.store(head + 6, first);
            scribe.store(head + 7, second);
        }
        scribe.store(head + 1, *sequence);
        scribe.store(head + 3, meta);
        scribe.store(head + 4, *time);
        let stored = &payload[..self.parts.stored(payload.len())];
        let value = self.parts.value(slot);
        stored.chunks(8).enumerate().for_each(|(at, piece)| scribe.store(value + at, word_of(piece)));
        scribe.store(head, even);
        if is_too_large {
            self.add(scribe, TOO_LARGE, 1);
        }
    }

    /// Takes over the board of a dead publisher, after its ring was taken over.
    ///
    /// - `messages`: the messages of the ring, and perhaps some earlier ones.
    /// - `oldest`: the sequence of the ring's oldest message, if the ring lacks messages that the board does not have. Otherwise `None`.
    pub fn take_over(
        parts: Parts,
        scribe: &mut Scribe,
        messages: &[Message],
        next: u64,
        oldest: Option<u64>,
    ) -> Self {
        let mut this = Self::new(parts);
        if let Some(oldest) = oldest {
            this.forget_before(scribe, oldest);
        }
        let mut busy = this.survey(scribe);
        let through = scribe.words()[AT + THROUGH];
        for message in messages.iter().filter(|message| message.sequence > through) {
            let identity = this.parts.spec.key_of(&message.payload).map(|key| this.parts.identity(key));
            if let Some(identity) = identity {
                this.settle(scribe, busy.take(), Some(identity));
            }
            let slot = identity.and_then(|identity| this.find(scribe.words(), identity).1);
            let is_there = slot.is_some_and(|slot| {
                let head = this.parts.head(slot);
                scribe.words()[head].is_multiple_of(2) && scribe.words()[head + 1] >= message.sequence
            });
            if !is_there {
                this.put(scribe, message);
            }
        }
        this.settle(scribe, busy, None);
        this.through(scribe, next - 1);
        this
    }

    /// Marks the messages of all keys as unknown, because the messages before `oldest` were published without this board.
    fn forget_before(&self, scribe: &mut Scribe, oldest: u64) {
        for slot in 0..scribe.words()[AT + HIGH] as usize {
            let head = self.parts.head(slot);
            if scribe.words()[head + 3] & IS_EMPTY != 0 {
                continue;
            }
            let even = (scribe.words()[head] | 1) + 1;
            let words = [even - 1, oldest - 1, even / 2, IS_UNKNOWN, 0, oldest];
            for at in [0, 1, 2, 3, 5] {
                scribe.store(head + at, words[at]);
            }
            scribe.store(head, even);
        }
        scribe.store(AT + SINCE, oldest);
        self.through(scribe, oldest - 1);
    }

    /// Rebuilds the index, and lists the free slots. Returns the slot into which the dead publisher was storing, if there is one.
    fn survey(&mut self, scribe: &mut Scribe) -> Option<usize> {
        let high = scribe.words()[AT + HIGH] as usize;
        self.add(scribe, MOVES, 1 + scribe.words()[AT + MOVES] % 2);
        (0..self.parts.entries).for_each(|number| scribe.store(self.parts.entry(number), 0));
        let (mut living, mut vacant, mut busy) = (0, Vec::new(), None);
        for slot in 0..high {
            let head = self.parts.head(slot);
            let [version, sequence, _, meta, ..] = scribe.words()[head..] else { unreachable!("a head") };
            let is_empty = meta & IS_EMPTY != 0;
            if !is_empty {
                let identity = self.identity_in(scribe.words(), slot);
                self.put_in(scribe, identity, slot);
            }
            if version % 2 == 1 {
                busy = Some(slot);
            }
            match meta & (IS_EMPTY | IS_REMOVED) {
                0 => living += 1,
                _ => vacant.push((!is_empty, sequence, slot)),
            }
        }
        self.add(scribe, MOVES, 1);
        scribe.store(AT + LIVING, living);
        vacant.sort_unstable();
        self.vacant = vacant.into_iter().map(|(_, _, slot)| slot).collect();
        busy
    }

    /// Empties the slot `busy`, into which the dead publisher was storing. Does not change the slot of the key `first`, because the caller
    /// then stores a message of this key.
    fn settle(&mut self, scribe: &mut Scribe, busy: Option<usize>, first: Option<[u64; 2]>) {
        let Some(slot) = busy else { return };
        let identity = self.identity_in(scribe.words(), slot);
        if first == Some(identity) {
            return;
        }
        let head = self.parts.head(slot);
        if scribe.words()[head + 3] & (IS_REMOVED | IS_EMPTY) == 0 {
            self.add(scribe, LIVING, u64::MAX);
        }
        self.take_out(scribe, identity);
        let forgotten = scribe.words()[AT + FORGOTTEN].max(scribe.words()[AT + THROUGH]);
        scribe.store(AT + FORGOTTEN, forgotten);
        let even = (scribe.words()[head] | 1) + 1;
        scribe.store(head, even - 1);
        scribe.store(head + 3, IS_EMPTY);
        scribe.store(head, even);
        self.vacant.retain(|vacant| *vacant != slot);
        self.vacant.push_front(slot);
    }
}
