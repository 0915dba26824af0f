//! The expected content of a board by SPEC.md, section 8: the newest message of each key. It is computed from the list of messages, and
//! does not depend on the words of a segment.

use std::ops::Range;

/// The properties of a board that its creator chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Number of slots.
    pub keys: usize,
    /// The size of the largest message that a slot can store, in bytes.
    pub value: usize,
    /// The range of the key's bytes in a payload.
    pub key: Range<usize>,
    /// Messages with this tag remove their key.
    pub remove_tag: Option<u16>,
}

impl Spec {
    /// Returns the key of a payload, or `None` if the payload is too short to have one.
    pub fn key_of<'a>(&self, payload: &'a [u8]) -> Option<&'a [u8]> {
        payload.get(self.key.clone())
    }

    /// Whether a message removes its key.
    pub fn removes(&self, message: &Message) -> bool {
        message.payload.len() == self.key.end || self.remove_tag == Some(message.tag)
    }
}

/// A message that was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The sequence.
    pub sequence: u64,
    /// The payload.
    pub payload: Vec<u8>,
    /// The tag.
    pub tag: u16,
    /// Whether a reader can start with the message.
    pub is_key: bool,
    /// The publish time.
    pub time: u64,
}

impl Message {
    /// Returns the text of the event for this message, if the reader gets the message from the stream.
    pub fn told(&self) -> String {
        let Self { sequence, payload, tag, is_key, time } = self;
        let (key, length, crc) = (u8::from(*is_key), payload.len(), crc32c::crc32c(payload));
        format!("message {sequence} tag={tag} key={key} time={time} length={length} crc={crc:08x}")
    }

    /// Returns the text of the event for this message, if the reader gets the message from the board.
    pub fn told_by_board(&self, left_out: u64) -> String {
        format!("{} conflated={left_out}", self.told())
    }
}

/// A key that has a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// The newest message.
    pub newest: Message,
    /// The number of messages of the key since the key got its slot.
    pub count: u64,
    /// The sequence of the key's first message since the key got its slot.
    pub born: u64,
    /// Whether the newest message removed the key.
    pub is_removed: bool,
    /// Whether the newest message is unknown. `newest` then has only a sequence: the highest that the newest message can have.
    pub is_unknown: bool,
}

/// All keys that have slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shelf {
    /// The properties that the board's creator chose.
    pub spec: Spec,
    /// The keys. Their order does not matter.
    pub entries: Vec<Entry>,
    /// The highest sequence of a removal that the board has forgotten; 0 if it has forgotten none. The board forgets a key's removal when
    /// it gives the key's slot to another key.
    pub forgotten: u64,
    /// The removed keys whose slots were given to other keys, each with the sequence of its removal.
    pub gone: Vec<(Vec<u8>, u64)>,
    /// The numbers of messages that are not on the board: those without room, those that are too large, and those that are too short for
    /// a key.
    pub left_out: [u64; 3],
}

impl Shelf {
    /// Makes an empty board.
    pub const fn new(spec: Spec) -> Self {
        Self { spec, entries: Vec::new(), forgotten: 0, gone: Vec::new(), left_out: [0; 3] }
    }

    /// Whether the newest message of a key is too large for its slot.
    pub fn is_too_large(&self, entry: &Entry) -> bool {
        entry.newest.payload.len() > self.spec.value
    }

    /// Finds the entry of a key.
    pub fn entry(&self, key: &[u8]) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// Posts a message as the publisher does.
    pub fn post(&mut self, message: &Message) {
        let Some(key) = self.spec.key_of(&message.payload).map(<[u8]>::to_vec) else {
            self.left_out[2] += 1;
            return;
        };
        let is_stored = self.renew(&key, message) || (!self.spec.removes(message) && self.add(&key, message));
        if is_stored && message.payload.len() > self.spec.value {
            self.left_out[1] += 1;
        }
    }

    /// Marks the newest message of each key as unknown, because some messages before `oldest` were published without the board.
    pub fn forget_before(&mut self, oldest: u64) {
        for entry in &mut self.entries {
            (entry.count, entry.born) = (0, oldest);
            (entry.is_removed, entry.is_unknown) = (false, true);
            entry.newest =
                Message { sequence: oldest - 1, payload: Vec::new(), tag: 0, is_key: false, time: 0 };
        }
    }

    /// Merges a message of the ring, as a reader does. Unlike the publisher's board, a reader has a slot for each key.
    pub fn merge(&mut self, message: &Message) {
        let Some(key) = self.spec.key_of(&message.payload).map(<[u8]>::to_vec) else { return };
        if !self.renew(&key, message) && !self.spec.removes(message) {
            self.push(&key, message);
        }
    }

    /// Stores a message in its key's slot. Returns false if the key has no slot.
    fn renew(&mut self, key: &[u8], message: &Message) -> bool {
        let is_removed = self.spec.removes(message);
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.key == key) else { return false };
        if message.sequence > entry.newest.sequence {
            entry.count += 1;
            entry.newest = message.clone();
            entry.is_removed = is_removed;
            entry.is_unknown = false;
        }
        true
    }

    /// Gives a slot to a new key. If no slot is free, takes the slot of the key that was removed first. Returns false if no slot is free
    /// and no key was removed.
    fn add(&mut self, key: &[u8], message: &Message) -> bool {
        if self.entries.len() == self.spec.keys {
            let removed = self.entries.iter().enumerate().filter(|(_, entry)| entry.is_removed);
            let Some((slot, _)) = removed.min_by_key(|(_, entry)| entry.newest.sequence) else {
                self.left_out[0] += 1;
                return false;
            };
            let gone = self.entries.swap_remove(slot);
            self.forgotten = self.forgotten.max(gone.newest.sequence);
            self.gone.push((gone.key, gone.newest.sequence));
        }
        self.push(key, message);
        true
    }

    fn push(&mut self, key: &[u8], message: &Message) {
        self.entries.push(Entry {
            key: key.to_vec(),
            newest: message.clone(),
            count: 1,
            born: message.sequence,
            is_removed: false,
            is_unknown: false,
        });
    }

    /// Returns the events of a reader that begins with the board. The last event is `live`, which says that the stream continues at
    /// `next`.
    pub fn begin(&self, next: u64) -> Vec<String> {
        let mut living: Vec<&Entry> = self.entries.iter().filter(|entry| !entry.is_removed).collect();
        living.sort_by_key(|entry| entry.newest.sequence);
        let (too_large, whole): (Vec<&Entry>, Vec<&Entry>) =
            living.into_iter().partition(|entry| entry.is_unknown || self.is_too_large(entry));
        let mut told: Vec<String> = whole.iter().map(|entry| entry.newest.told_by_board(0)).collect();
        if !too_large.is_empty() {
            told.push(format!("lapped {} {next}", too_large.len()));
        }
        told.push(format!("live {next}"));
        told
    }

    /// Returns the events of the request `get`.
    pub fn get(&self, key: &[u8]) -> Vec<String> {
        let living = self.entry(key).filter(|entry| !entry.is_removed);
        let told = living.map(|entry| match self.is_too_large(entry) {
            true => format!("too large count={}", entry.count),
            false => format!("{} count={}", entry.newest.told(), entry.count),
        });
        told.into_iter().collect()
    }
}
