//! The events that a reader must receive by SPEC.md, section 3. These events are derived from the list of committed records, not from the
//! records' bytes.

use crate::scribe::{CAPACITY, COUNT, ENTRIES, FRONTIER, ROOM, Record, STATE, Sort, Store, indexed};

/// The result of a search for a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sought {
    /// A position in the ring, and the next sequence at this position.
    At(u64, u64),
    /// The message was overwritten, or cannot be reached.
    Gone,
    /// The message is not published yet.
    NotYet,
}

/// A segment that has some of a writer's stores.
#[derive(Debug, Clone)]
pub struct Model {
    /// The words.
    pub words: Vec<u64>,
    /// The records that are committed.
    pub records: Vec<Record>,
}

impl Model {
    /// Makes a segment to which nobody has written.
    pub fn new(words: Vec<u64>) -> Self {
        Self { words, records: Vec::new() }
    }

    /// Plays one store.
    pub fn apply(&mut self, store: &Store) {
        self.words[store.word] = store.value;
        self.records.extend(store.commits.clone());
    }

    /// Returns the position and the sequence after the last record.
    pub fn tail(&self) -> (u64, u64) {
        self.records.last().map_or((0, 1), |record| (record.after, record.next))
    }

    /// Returns the epoch and the low byte of the word STATE.
    fn state(&self) -> (u64, u64) {
        (self.words[STATE] >> 8, self.words[STATE] & 0xff)
    }

    /// Returns the oldest place at which a reader can begin (SPEC 3.4). Searches all entries of the index.
    pub fn oldest(&self) -> (u64, u64) {
        let safe = (self.words[FRONTIER] + ROOM).saturating_sub(CAPACITY);
        if safe == 0 {
            return (0, 1);
        }
        let newest = self.words[COUNT] + 1;
        let limit = indexed(&self.words, newest);
        let lowest = newest.saturating_sub(ENTRIES - 1).max(1);
        let found = (lowest..newest).find(|t| (safe..limit).contains(&indexed(&self.words, *t)));
        let sequence = found.unwrap_or(newest);
        self.verified(indexed(&self.words, sequence), sequence)
    }

    /// Returns the place at which a reader must look for `sequence`: a position and the next sequence there.
    ///
    /// `position` is from the index entry of `sequence`. If a gap (a record for missing sequences) begins there and ends just before
    /// `sequence`, returns the position after the gap. Otherwise returns `position`.
    fn verified(&self, position: u64, sequence: u64) -> (u64, u64) {
        match self.records.iter().find(|record| record.position == position) {
            Some(record) if record.sequence < sequence && record.next == sequence => (record.after, sequence),
            Some(record) => (position, record.sequence),
            None => (position, sequence),
        }
    }

    /// Searches for a sequence, as a reader does.
    pub fn seek(&self, sequence: u64) -> Sought {
        let (tail, next) = self.tail();
        if sequence > next {
            return Sought::NotYet;
        }
        if sequence == next {
            return Sought::At(tail, next);
        }
        // The record with this sequence, or the gap that covers it.
        let carrier = self.records.iter().find(|record| (record.sequence..record.next).contains(&sequence));
        let Some(carrier) = carrier.filter(|_| sequence >= 1) else { return Sought::Gone };
        let carrier = Sought::At(carrier.position, carrier.sequence);
        let reach = self.words[FRONTIER].saturating_sub(CAPACITY);
        let newest = self.words[COUNT] + 1;
        if sequence >= newest {
            return carrier;
        }
        let from = indexed(&self.words, sequence);
        if newest - sequence < ENTRIES && from >= reach && from < indexed(&self.words, newest) {
            let (position, sequence) = self.verified(from, sequence);
            return Sought::At(position, sequence);
        }
        // A reader finds this record only if the reader starts at the oldest place.
        if sequence >= self.oldest().1 { carrier } else { Sought::Gone }
    }
}

/// The expected behaviour of a reader.
#[derive(Debug, Clone)]
pub struct Expected {
    place: (u64, u64),
    known: u64,
    began_in: u64,
    has_ended: bool,
    in_doubt: bool,
    /// The first requested sequence that is no longer in the ring.
    behind: Option<u64>,
}

/// The place at which a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At the next message.
    Latest,
    /// At the oldest message.
    Oldest,
    /// At the message with this sequence.
    Sequence(u64),
}

impl Expected {
    /// Makes a reader that begins at `start`. Returns `None` if `start` is a sequence that has not been published yet.
    pub fn open(model: &Model, start: Start) -> Option<Self> {
        let began_in = if (1..=4).contains(&model.state().1) { model.state().0 } else { 0 };
        let known = if start == Start::Latest || began_in == 1 { began_in } else { 0 };
        let (place, behind) = match start {
            Start::Latest => (model.tail(), None),
            Start::Oldest => (model.oldest(), None),
            Start::Sequence(sequence) => match model.seek(sequence.max(1)) {
                Sought::At(position, sequence) => ((position, sequence), None),
                Sought::Gone => ((0, sequence.max(1)), Some(sequence.max(1))),
                Sought::NotYet => return None,
            },
        };
        Some(Self { place, known, began_in, has_ended: false, in_doubt: false, behind })
    }

    /// Seeks to a sequence. Returns the expected answer.
    pub fn seek(&mut self, model: &Model, sequence: u64) -> &'static str {
        match model.seek(sequence) {
            Sought::NotYet => "not yet",
            Sought::Gone => "too old",
            Sought::At(position, sequence) => {
                *self = Self {
                    place: (position, sequence),
                    known: 0,
                    began_in: model.state().0,
                    has_ended: false,
                    in_doubt: false,
                    behind: None,
                };
                "ok"
            }
        }
    }

    /// Returns all events that the reader must receive now.
    pub fn poll(&mut self, model: &Model) -> Vec<String> {
        let mut events = Vec::new();
        if self.behind.take().is_some() || model.words[FRONTIER].saturating_sub(self.place.0) > CAPACITY {
            let (position, sequence) = model.oldest();
            events.push(format!("lapped {} {sequence}", sequence - self.place.1));
            self.place = (position, sequence);
            self.has_ended = false;
            self.in_doubt = model.state().0 > self.known.max(self.began_in);
        }
        let from = self.place.0;
        for record in model.records.iter().filter(|record| record.position >= from) {
            self.place = (record.after, record.next);
            match &record.sort {
                Sort::Silent => continue,
                Sort::Event(text) => {
                    // After the end of the stream, a message does not cancel the end, but any other event does.
                    self.has_ended &= text.starts_with("message");
                    events.push(text.clone());
                }
                Sort::Epoch(epoch) => {
                    self.has_ended = false;
                    if *epoch != self.known {
                        self.known = *epoch;
                        events.push(format!("epoch {epoch}"));
                    }
                }
                Sort::End => {
                    self.has_ended = true;
                    events.push("end".to_owned());
                }
            }
        }
        let (epoch, life) = model.state();
        if std::mem::take(&mut self.in_doubt) && life == 1 && epoch > self.known.max(self.began_in) {
            self.known = epoch;
            events.push(format!("epoch {epoch}"));
        }
        match life {
            3 if !self.has_ended => {
                self.has_ended = true;
                events.push("end".to_owned());
            }
            4 => events.push("superseded".to_owned()),
            _ => {}
        }
        events
    }
}
