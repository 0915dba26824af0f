//! A writer that follows SPEC.md, sections 1 and 2, on words in private memory. It lists its stores in the order in which a reader could
//! see them. The suite makes these stores in a file.
//!
//! The writer shares no code with the library. So an error stays unnoticed only if the writer and the library misread SPEC.md in the same
//! way.

const GRANULE: u64 = 64;
const AHEAD: u64 = 2048;
const SMALL: u64 = 512;
const PAGE: usize = 512;

pub(crate) const FRONTIER: usize = 16;
pub(crate) const STATE: usize = 32;
pub(crate) const COUNT: usize = 48;
const TIME: usize = 49;
pub(crate) const KEY: usize = 50;
pub(crate) const BYTES: usize = 51;

const VALID: u64 = 1 << 25;
const IS_PAD: u64 = 1 << 26;
const IS_KEY: u64 = 1 << 27;
const IS_CONTROL: u64 = 1 << 28;

/// The state of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// A writer is active.
    Active = 1,
    /// A writer is taking over the segment.
    Recovering = 2,
    /// The last writer closed the segment.
    Closed = 3,
    /// Another segment continues the channel.
    Superseded = 4,
}

/// The meaning of a committed record for readers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sort {
    /// The record has no meaning: it is a pad, or has a future kind.
    Silent,
    /// The record is this event.
    Event(String),
    /// A new writer with this epoch begins.
    Epoch(u64),
    /// The stream ends.
    End,
}

/// A committed record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The position at which the record begins.
    pub position: u64,
    /// The position at which the next record begins.
    pub after: u64,
    /// The sequence of the next message before the record.
    pub sequence: u64,
    /// The sequence of the next message after the record.
    pub next: u64,
    /// The meaning of the record for readers.
    pub sort: Sort,
}

/// One store of a word.
#[derive(Debug, Clone)]
pub struct Store {
    /// The index of the word in the segment.
    pub word: usize,
    /// The new value.
    pub value: u64,
    /// The record that this store commits, if any.
    pub commits: Option<Record>,
}

/// The size of the ring in the segments of this suite, in bytes.
pub const CAPACITY: u64 = 64 << 10;
const CHUNK: u64 = 8 << 10;
/// The number of entries of the index.
pub const ENTRIES: u64 = CAPACITY / GRANULE;
/// The largest payload in bytes.
pub const MAX_MESSAGE: u64 = CAPACITY / 8;
/// The index of the ring's first word.
pub const DATA: usize = PAGE + ENTRIES as usize;
/// The number of words of the segment.
pub const WORDS: usize = DATA + CAPACITY as usize / 8;
/// The number of bytes by which the frontier advances.
pub const ROOM: u64 = CHUNK;

/// Makes a segment to which nobody has written, with a correct checksum.
pub fn empty() -> Vec<u64> {
    let mut words = vec![0; WORDS];
    words[0] = u64::from_le_bytes(*b"SHMCAST1");
    words[1..8].copy_from_slice(&[0x2_0000, CAPACITY, GRANULE, CHUNK, ENTRIES, MAX_MESSAGE, DATA as u64 * 8]);
    words[8..15].copy_from_slice(&[
        0x1111_2222_3333_4444,
        0x5555_6666_7777_8888,
        0x9999_aaaa_bbbb_cccc,
        0xdddd_eeee_ffff_0000,
        1_700_000_000_000_000_000,
        1_000_000_000,
        7,
    ]);
    // "ticks", "itch-5.0" and "venue=x", each after its length.
    words[64..70].copy_from_slice(&[5, 0x73_6b63_6974, 8, 0x302e_352d_6863_7469, 7, 0x78_3d65_756e_6576]);
    checksum(&mut words);
    words
}

/// Sets the right checksum in a header.
pub fn checksum(words: &mut [u64]) {
    let fold =
        |crc, words: &[u64]| words.iter().fold(crc, |crc, w| crc32c::crc32c_append(crc, &w.to_le_bytes()));
    words[15] = u64::from(fold(fold(0, &words[1..15]), &words[64..PAGE]));
}

/// Returns the bytes of a record with a payload of this length.
fn record_bytes(length: u64) -> u64 {
    (16 + length).next_multiple_of(GRANULE)
}

/// The writer of a segment.
#[derive(Debug)]
pub struct Scribe {
    words: Vec<u64>,
    /// The stores that the caller has not taken yet.
    pub stores: Vec<Store>,
    tail: u64,
    next: u64,
    frontier: u64,
    clean: u64,
    key: u64,
    bytes: u64,
    epoch: u64,
}

impl Scribe {
    /// Takes over a segment as its next publisher, by the rules of SPEC 2.5. The caller knows the segment's tail and next sequence.
    pub fn take(words: Vec<u64>, (tail, next): (u64, u64), time: u64) -> Self {
        let epoch = words[STATE] >> 8;
        let (key, bytes, frontier) = (words[KEY], words[BYTES], words[FRONTIER]);
        let mut this =
            Self { words, stores: Vec::new(), tail, next, frontier, clean: 0, key, bytes, epoch: epoch + 1 };
        this.live(Life::Recovering);
        this.store(33, 1234);
        this.index(next, tail);
        this.update_lazy(time);
        this.frontier = (tail + AHEAD).max(frontier).next_multiple_of(CHUNK);
        this.store(FRONTIER, this.frontier);
        this.clean = tail;
        this.zero(this.frontier);
        if epoch > 0 {
            this.control([1, this.epoch, 0], Sort::Epoch(this.epoch), time);
        }
        this.live(Life::Active);
        this
    }

    /// Returns the sequence of the next message.
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Publishes a message.
    pub fn publish(&mut self, payload: &[u8], tag: u16, is_key: bool, time: u64) {
        let (sequence, key) = (self.next, u64::from(is_key));
        let told = format!(
            "message {sequence} tag={tag} key={key} time={time} length={} crc={:08x}",
            payload.len(),
            crc32c::crc32c(payload)
        );
        let words = payload.chunks(8).map(|piece| {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            u64::from_le_bytes(word)
        });
        let flags = if is_key { IS_KEY } else { 0 };
        let next = sequence + 1;
        let meta = u64::from(tag) << 48 | time;
        self.record(flags, payload.len() as u64, meta, words.collect(), next, Sort::Event(told));
        self.next = next;
        self.bytes += payload.len() as u64;
        if is_key {
            self.key = sequence;
        }
        self.index(next, self.tail);
        if is_key || next.is_multiple_of(64) {
            self.update_lazy(time);
        }
        if record_bytes(payload.len() as u64) <= SMALL && self.clean < self.tail + AHEAD - AHEAD / 4 {
            self.announce(self.tail + AHEAD);
            self.zero(self.tail + AHEAD);
        }
    }

    /// Announces that the sequences up to `to` will never be published (SPEC 2.4).
    pub fn gap(&mut self, to: u64, time: u64) {
        let from = self.next;
        self.make_room(24);
        self.update_lazy(time);
        let position = self.tail;
        let told = Sort::Event(format!("gap {from} {to}"));
        self.record(IS_CONTROL, 24, time, vec![3, from, to], to + 1, told);
        let first = (from + 1).max((to + 2).saturating_sub(ENTRIES));
        (first..=to + 1).for_each(|sequence| self.index(sequence, position));
        self.next = to + 1;
        self.update_lazy(time);
        self.index(to + 1, self.tail);
        self.update_lazy(time);
    }

    /// Announces a remote session.
    pub fn session(&mut self, identity: [u8; 10], time: u64) {
        let (high, low) = identity.split_first_chunk::<8>().expect("ten bytes");
        let (high, low) = (u64::from_le_bytes(*high), u64::from(u16::from_le_bytes([low[0], low[1]])));
        let text = identity.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        self.store(59, 0);
        self.control([4, high, low], Sort::Event(format!("session {text}")), time);
        self.store(58, high);
        self.store(59, 1 << 63 | low);
    }

    /// Writes a control record of a kind that no reader knows.
    pub fn to_come(&mut self, kind: u64, time: u64) {
        self.control([kind, 1, 2], Sort::Silent, time);
    }

    /// Closes the channel.
    pub fn close(&mut self, time: u64) {
        self.control([2, 0, 0], Sort::End, time);
        self.store(33, 0);
        self.live(Life::Closed);
    }

    /// Returns the words of the segment as they are now.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Stores a word.
    pub fn store(&mut self, word: usize, value: u64) {
        self.words[word] = value;
        self.stores.push(Store { word, value, commits: None });
    }

    /// Sets the state of the segment.
    pub fn live(&mut self, life: Life) {
        self.store(STATE, self.epoch << 8 | life as u64);
    }

    fn control(&mut self, words: [u64; 3], sort: Sort, time: u64) {
        self.record(IS_CONTROL, 24, time, words.to_vec(), self.next, sort);
        self.index(self.next, self.tail);
        self.update_lazy(time);
    }

    /// Prepares the ring for a record. If the record does not fit before the end of the ring, writes a pad first.
    fn make_room(&mut self, length: u64) {
        let (n, rest) = (record_bytes(length), CAPACITY - self.tail % CAPACITY);
        if n > rest {
            self.prepare(self.tail + rest);
            let at = self.at(self.tail);
            let after = self.tail + rest;
            let (sequence, next) = (self.next, self.next);
            self.commit(
                at,
                IS_PAD,
                rest - 16,
                Record { position: self.tail, after, sequence, next, sort: Sort::Silent },
            );
            self.tail = after;
            self.index(self.next, self.tail);
        }
        self.prepare(self.tail + n);
    }

    fn record(&mut self, flags: u64, length: u64, meta: u64, words: Vec<u64>, next: u64, sort: Sort) {
        self.make_room(length);
        let at = self.at(self.tail);
        for (i, word) in words.into_iter().enumerate() {
            self.store(at + 2 + i, word);
        }
        self.store(at + 1, meta);
        let after = self.tail + record_bytes(length);
        self.commit(
            at,
            flags,
            length,
            Record { position: self.tail, after, sequence: self.next, next, sort },
        );
        self.tail = after;
    }

    fn commit(&mut self, at: usize, flags: u64, length: u64, record: Record) {
        self.store(at, self.next << 32 | VALID | flags | length);
        self.stores.last_mut().expect("just stored").commits = Some(record);
    }

    fn prepare(&mut self, end: u64) {
        self.announce(end + GRANULE);
        self.clean = self.clean.max(end);
        self.zero(end + GRANULE);
    }

    fn announce(&mut self, need: u64) {
        if need > self.frontier {
            self.count();
            self.frontier = need.next_multiple_of(CHUNK);
            self.store(FRONTIER, self.frontier);
        }
    }

    fn zero(&mut self, need: u64) {
        while self.clean < need {
            self.store(self.at(self.clean), 0);
            self.clean += GRANULE;
        }
    }

    fn update_lazy(&mut self, time: u64) {
        self.store(TIME, time);
        self.count();
    }

    fn count(&mut self) {
        self.store(KEY, self.key);
        self.store(BYTES, self.bytes);
        self.store(COUNT, self.next - 1);
    }

    fn index(&mut self, sequence: u64, position: u64) {
        self.store(PAGE + (sequence % ENTRIES) as usize, position);
    }

    fn at(&self, position: u64) -> usize {
        DATA + (position % CAPACITY) as usize / 8
    }
}

/// Returns the index entry of a sequence.
pub(crate) fn indexed(words: &[u64], sequence: u64) -> u64 {
    words[PAGE + (sequence % ENTRIES) as usize]
}
