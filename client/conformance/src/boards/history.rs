//! Channels with a board, as a publisher leaves them.

use super::clerk::{AT, Clerk, Parts, THROUGH};
use super::shelf::{Message, Shelf, Spec};
use crate::model::{Expected, Model, Sought, Start};
use crate::scribe::{MAX_MESSAGE, Scribe, Store, empty};
use fastrand::Rng;

/// A channel with a board, and the messages that were published.
#[derive(Debug)]
pub struct History {
    /// The memory of the channel.
    pub model: Model,
    /// The expected content of the channel's board.
    pub shelf: Shelf,
    /// The messages that were published.
    pub messages: Vec<Message>,
    /// The board's parts.
    pub parts: Parts,
    /// The stores that were made to the memory, if they are kept.
    pub kept: Option<Vec<Store>>,
    /// A content of the board, and a sequence. After a takeover, the board has this content, plus all messages from this sequence on.
    base: (Shelf, u64),
    scribe: Scribe,
    clerk: Clerk,
    time: u64,
}

impl History {
    /// Makes a channel without messages.
    pub fn new(spec: Spec, seed: u64) -> Self {
        let mut words = empty();
        words[8] = seed;
        let parts = Parts::of(spec.clone(), seed);
        parts.add_to(&mut words);
        let scribe = Scribe::take(words.clone(), (0, 1), 1000);
        let clerk = Clerk::new(parts.clone());
        let (shelf, model) = (Shelf::new(spec), Model::new(words));
        let base = (shelf.clone(), 1);
        Self { model, shelf, messages: Vec::new(), parts, kept: None, base, scribe, clerk, time: 1000 }
    }

    /// Returns the sequence of the next message.
    pub fn next(&self) -> u64 {
        self.scribe.next_sequence()
    }

    /// Publishes a message.
    pub fn publish(&mut self, payload: Vec<u8>, tag: u16, is_key: bool) {
        self.time += 1;
        let (sequence, time) = (self.next(), self.time);
        let message = Message { sequence, payload, tag, is_key, time };
        self.scribe.publish(&message.payload, tag, is_key, time);
        self.clerk.post(&mut self.scribe, &message);
        self.shelf.post(&message);
        self.messages.push(message);
    }

    /// Publishes a gap of this many sequences.
    pub fn gap(&mut self, missing: u64) {
        let last = self.next() + missing - 1;
        self.scribe.gap(last, self.time);
        self.clerk.through(&mut self.scribe, last);
    }

    /// Closes the channel.
    pub fn close(&mut self) {
        self.scribe.close(self.time);
    }

    /// Makes the pending stores to the memory, and returns them.
    pub fn flush(&mut self) -> Vec<Store> {
        let stores = std::mem::take(&mut self.scribe.stores);
        stores.iter().for_each(|store| self.model.apply(store));
        if let Some(kept) = &mut self.kept {
            kept.extend(stores.iter().cloned());
        }
        stores
    }

    /// Finishes all stores of the present publisher. Then another publisher takes over the channel.
    pub fn take_over(&mut self) {
        self.flush();
        self.succeed(self.model.clone());
    }

    /// Lets another publisher take over the channel of a dead publisher. `model` is the channel's memory at the takeover. The last stores
    /// of the dead publisher can be missing in this memory.
    pub fn succeed(&mut self, model: Model) {
        self.time += 1;
        let (_, next) = model.tail();
        self.model = model;
        self.messages.retain(|message| message.sequence < next);
        self.scribe = Scribe::take(self.model.words.clone(), self.model.tail(), self.time);
        let mut taken = self.model.clone();
        self.scribe.stores.iter().for_each(|store| taken.apply(store));
        let is_gone = taken.seek(taken.words[AT + THROUGH] + 1) == Sought::Gone;
        let oldest = is_gone.then(|| taken.oldest().1);
        if let Some(oldest) = oldest {
            self.shelf.forget_before(oldest);
            self.base = (self.shelf.clone(), oldest);
        }
        let (base, first) = &self.base;
        self.shelf = base.clone();
        let posted = self.messages.iter().filter(|message| message.sequence >= *first);
        posted.for_each(|message| self.shelf.post(message));
        let (parts, scribe) = (self.parts.clone(), &mut self.scribe);
        self.clerk = Clerk::take_over(parts, scribe, &self.messages, next, oldest);
    }

    /// Publishes a message but does not update the board, as a publisher of an older release does.
    pub fn publish_beside(&mut self, payload: Vec<u8>) {
        self.time += 1;
        let (sequence, time) = (self.next(), self.time);
        self.scribe.publish(&payload, 5, false, time);
        self.messages.push(Message { sequence, payload, tag: 5, is_key: false, time });
    }

    /// Returns the expected events of a reader that begins with the board in this memory. `shelves` has the board's content at several
    /// sequences.
    pub fn begin(&self, model: &Model, shelves: &[(u64, Shelf)]) -> Vec<String> {
        let (through, (_, next)) = (model.words[AT + THROUGH], model.tail());
        let known = shelves.iter().rev().find(|(last, _)| *last <= through);
        let mut shelf = known.map_or_else(|| Shelf::new(self.parts.spec.clone()), |(_, shelf)| shelf.clone());
        let is_merged = |message: &&Message| message.sequence > through && message.sequence < next;
        self.messages.iter().filter(is_merged).for_each(|message| shelf.merge(message));
        let mut told = shelf.begin(next);
        // After the messages of the board, the reader gets the same events as a reader that began with the next message.
        let stream = Expected::open(model, Start::Latest);
        told.extend(stream.map(|mut stream| stream.poll(model)).unwrap_or_default());
        told
    }

    /// Returns the expected events of a reader that begins with the present board.
    pub fn begin_now(&self) -> Vec<String> {
        self.begin(&self.model, &[(0, self.shelf.clone())])
    }
}

/// Returns the properties of the board in the history of this seed. Boards differ in the length and position of keys and in the number of
/// slots.
pub fn spec(seed: u64) -> Spec {
    let (keys, value, key, remove_tag) = match seed % 6 {
        0 => (16, 64, 0..4, None),
        1 => (4, 100, 2..6, Some(9)),
        2 => (1, 64, 0..1, None),
        3 => (40, 300, 3..15, None),
        4 => (12, 64, 8..40, Some(0)),
        _ => (8, 20, 0..8, None),
    };
    Spec { keys, value, key, remove_tag }
}

/// Returns the key with this number. Keys differ in their first and last bytes.
pub fn key(spec: &Spec, number: u64) -> Vec<u8> {
    let length = spec.key.len();
    let mut key: Vec<u8> = (0..length).map(|at| (number as u8).wrapping_mul(at as u8 | 1)).collect();
    key[length - 1] = key[length - 1].wrapping_add(7);
    key
}

/// Returns the number of keys that a history can use. The number can be larger than the number of slots.
pub fn pool(spec: &Spec, seed: u64) -> u64 {
    let keys = spec.keys as u64;
    if seed.is_multiple_of(2) { keys } else { keys + keys / 2 + 1 }
}

/// Publishes a random message. Most messages have a key. Some remove the key, some are too large for the board, and some are too short for
/// a key.
pub fn publish(history: &mut History, dice: &mut Rng, pool: u64) {
    let spec = history.parts.spec.clone();
    let key = key(&spec, dice.u64(0..pool));
    let length = match dice.u8(0..40) {
        0 => dice.usize(0..spec.key.end),
        1..4 => spec.key.end,
        4 => dice.usize(spec.value..600),
        5 => spec.value,
        6 => spec.value + 1,
        7 if dice.u8(0..8) == 0 => MAX_MESSAGE as usize,
        _ => dice.usize(spec.key.end..=spec.value),
    };
    let sequence = history.next();
    let mut payload: Vec<u8> = (0..length).map(|at| (at as u8).wrapping_mul(31) ^ sequence as u8).collect();
    if let Some(place) = payload.get_mut(spec.key) {
        place.copy_from_slice(&key);
    }
    let tag = if dice.u8(0..12) == 0 { dice.u16(0..10) } else { dice.u16(10..) };
    history.publish(payload, tag, dice.u8(0..10) == 0);
}

/// Writes the history of a seed.
pub fn write(seed: u64) -> History {
    let mut dice = Rng::with_seed(seed ^ 0xb0a2d);
    let mut history = History::new(spec(seed), dice.u64(..));
    let pool = pool(&history.parts.spec, seed);
    // A history has a few messages, some rounds through the board, or several laps of the ring.
    let most = [4, 60, 300, 1500][(seed / 2) as usize % 4];
    for _ in 0..dice.u64(0..=most) {
        match dice.u8(0..200) {
            0 => history.gap(dice.u64(1..6)),
            1 | 2 => {
                if dice.bool() {
                    history.close();
                }
                history.take_over();
            }
            _ => publish(&mut history, &mut dice, pool),
        }
    }
    if dice.u8(0..4) == 0 {
        history.close();
    }
    history.flush();
    history
}
