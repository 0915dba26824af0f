//! A mapped charter. In the charter, a daemon records its decisions about a channel's generations. Programs learn of a decision in one
//! load.
//!
//! # The pair
//! | SYNC POINT | daemon | reader of a strict channel |
//! |---|---|---|
//! | cut | stores *closing*, full fence, reads the tail of the ring, stores *cut at the tail* | reads a message, full fence, loads the verdict |
//!
//! - If a reader loads *open* after its fence, then the daemon's fence comes later in the order of full fences. So the daemon's load of the
//!   tail includes the message, and the cut lies above the message.
//! - If a reader loads *closing*, it returns no message until it loads another verdict.
//! - If a reader loads a cut, it returns the messages below the cut.
//!
//! So every message is valid for all readers or for none, even if a reader is stopped between any two of its steps. `SPEC.md` has the
//! proof.

use crate::fault::mutant;
use crate::layout::charter::{
    BOOT, JOURNAL, MAGIC, NAME, NAME_BYTES, SETTLED, VERSION, Verdict, WORDS, slot,
};
use crate::layout::stream::StreamId;
use crate::ring::cells::Cells;
use crate::sync::{Ordering, fence};

/// A program's view of a charter. The program can only read this map.
#[derive(Debug, Clone)]
pub struct Charter {
    cells: Cells,
}

impl Charter {
    /// Returns the verdict on `generation` at this moment. Cost: one load of a cache line that changes only when the channel moves to
    /// another generation.
    #[inline]
    pub fn verdict(&self, generation: u64) -> Verdict {
        Verdict::unpack(generation, self.cells[slot(generation)].load(Ordering::Relaxed))
    }

    /// The verdict on a message of `generation` that the caller read before this call. Cost: a full fence, and one load as in
    /// [`verdict`](Self::verdict).
    #[inline]
    pub fn verdict_on_read(&self, generation: u64) -> Verdict {
        if !mutant!("no_verdict_fence") {
            fence(Ordering::SeqCst); // SYNC POINT: cut
        }
        self.verdict(generation)
    }

    /// Whether the daemon keeps a journal of the channel at this moment. Cost: one load.
    pub fn has_journal(&self) -> bool {
        self.cells[JOURNAL].load(Ordering::Relaxed) == 1
    }
}

/// The entry of one generation in the charter. A daemon writes the entry for the daemon that starts after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// The number, from 1.
    pub generation: u64,
    /// Device and inode of the segment's file.
    pub segment: [u64; 2],
    /// Inode of the lock's file.
    pub lock: u64,
    /// The segment's identity.
    pub uuid: [u64; 2],
    /// The first sequence in the generation.
    pub first: u64,
    /// The channel's epoch before the first publisher of this generation.
    pub epoch: u64,
    /// The generation in which sequences last began at 1.
    pub restarted: u64,
    /// Whether each publisher gets a generation of its own.
    pub is_strict: bool,
    /// Whether the daemon has let a publisher in.
    pub is_granted: bool,
    /// The stream whose messages this generation has.
    pub stream: StreamId,
    /// The time at which the channel's present sequences began, in nanoseconds since 1970.
    pub created_ns: u64,
}

impl Entry {
    fn to_words(self) -> [u64; 14] {
        let Self { generation, segment, lock, uuid, first, epoch, restarted, stream, created_ns, .. } = self;
        let (is_strict, is_granted) = (u64::from(self.is_strict), u64::from(self.is_granted));
        let [[device, inode], [high, low], [stream_high, stream_low]] = [segment, uuid, stream.to_words()];
        [
            generation,
            device,
            inode,
            lock,
            high,
            low,
            first,
            epoch,
            restarted,
            is_strict,
            is_granted,
            created_ns,
            stream_high,
            stream_low,
        ]
    }

    fn from_words(words: [u64; 14]) -> Self {
        let [
            generation,
            device,
            inode,
            lock,
            high,
            low,
            first,
            epoch,
            restarted,
            strict,
            granted,
            created_ns,
            stream_high,
            stream_low,
        ] = words;
        let (segment, uuid) = ([device, inode], [high, low]);
        let stream = StreamId::from_words([stream_high, stream_low]);
        let (is_strict, is_granted) = (strict != 0, granted != 0);
        Self {
            generation,
            segment,
            lock,
            uuid,
            first,
            epoch,
            restarted,
            is_strict,
            is_granted,
            stream,
            created_ns,
        }
    }
}

/// The daemon's view of a mapped charter. Only the daemon writes to the charter.
#[derive(Debug)]
pub struct HostCharter {
    cells: Cells,
    /// The current generation; `None` before the first.
    current: Option<Entry>,
}

impl HostCharter {
    /// The current generation; `None` before the first.
    pub fn current(&self) -> Option<&Entry> {
        self.current.as_ref()
    }

    /// A program's view of this charter.
    pub fn view(&self) -> Charter {
        Charter { cells: self.cells.clone() }
    }

    /// The number of the next generation.
    pub fn next_generation(&self) -> u64 {
        self.current.map_or(1, |entry| entry.generation + 1)
    }

    /// Marks in the charter that a publisher was let into the current generation.
    pub fn grant(&mut self) {
        if let Some(entry) = &mut self.current {
            entry.is_granted = true;
            let entry = *entry;
            self.write(&entry);
        }
    }

    /// Tells programs whether the daemon keeps a journal of the channel.
    pub fn set_journal(&self, has_journal: bool) {
        self.cells[JOURNAL].store(u64::from(has_journal), Ordering::Relaxed);
    }

    /// Marks the current generation as *closing*: readers return none of its messages until the next verdict. If a reader returned a
    /// message earlier, the message was committed before this call. So if the daemon reads the tail of the ring after this call, the tail
    /// includes the message. Call [`reopen`](Self::reopen) or [`go_on`](Self::go_on) next. If the daemon dies before it does so, the next
    /// daemon reopens the generation.
    pub fn close(&self) {
        if let Some(entry) = &self.current {
            if !mutant!("cut_without_closing") {
                self.store(entry.generation, Verdict::Closing);
            }
            if !mutant!("no_closing_fence") {
                fence(Ordering::SeqCst); // SYNC POINT: cut
            }
        }
    }

    /// Undoes [`close`](Self::close): the generation is open again.
    pub fn reopen(&self) {
        if let Some(entry) = &self.current {
            self.store(entry.generation, Verdict::Open);
        }
    }

    /// Moves the channel to the generation `next`, whose number is [`next_generation`](Self::next_generation). Of the current generation,
    /// only the messages below the sequence `below` stay valid. `ended` says that the stream ended at `below`. For programs, all of this
    /// happens in one store. No step of this call can fail.
    pub fn go_on(&mut self, next: Entry, below: u64, ended: bool) {
        assert_eq!(next.generation, self.next_generation(), "generations are counted one by one");
        self.write(&next);
        self.store(next.generation, Verdict::Open);
        if let Some(entry) = self.current.replace(next) {
            self.store(entry.generation, Verdict::Cut { below, ended });
        }
        self.cells[SETTLED].store(next.generation, Ordering::Release);
    }

    fn store(&self, generation: u64, verdict: Verdict) {
        self.cells[slot(generation)].store(verdict.pack(generation), Ordering::Release);
    }

    fn write(&self, entry: &Entry) {
        let words = &self.cells[slot(entry.generation) + 1..];
        for (cell, word) in words.iter().zip(entry.to_words()) {
            cell.store(word, Ordering::Relaxed);
        }
    }

    fn read(&self, generation: u64) -> Option<Entry> {
        let words = &self.cells[slot(generation) + 1..];
        let words = std::array::from_fn(|i| words[i].load(Ordering::Relaxed));
        Some(Entry::from_words(words)).filter(|entry| generation > 0 && entry.generation == generation)
    }

    /// Finds the current generation in the words that an earlier daemon left, and undoes a step that the earlier daemon did not finish.
    fn recover(&mut self) {
        let mut at = self.read(self.cells[SETTLED].load(Ordering::Relaxed));
        while let Some(entry) = at {
            self.current = Some(entry);
            let is_over = matches!(self.view().verdict(entry.generation), Verdict::Cut { .. });
            at = if is_over { self.read(entry.generation + 1) } else { None };
        }
        self.reopen();
    }

    /// Makes a charter for the channel `name` in `cells`, which are zero. `boot` identifies the current boot of the host.
    ///
    /// # Panics
    /// For a name of more than [`NAME_BYTES`].
    pub fn begin(cells: Cells, name: &str, boot: [u64; 2]) -> Self {
        assert!(name.len() <= NAME_BYTES, "channel names are shorter");
        let set = |word: usize, value| cells[word].store(value, Ordering::Relaxed);
        set(1, VERSION);
        set(BOOT, boot[0]);
        set(BOOT + 1, boot[1]);
        set(NAME, name.len() as u64);
        for (at, bytes) in name.as_bytes().chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            set(NAME + 1 + at, u64::from_le_bytes(word));
        }
        cells[0].store(MAGIC, Ordering::Release);
        Self { cells, current: None }
    }

    /// Reads the charter that an earlier daemon left in `cells`. Returns `None` if the words are not a charter of this channel and this
    /// boot.
    pub fn resume(cells: Cells, name: &str, boot: [u64; 2]) -> Option<Self> {
        let load = |word: usize| cells[word].load(Ordering::Relaxed);
        let is_this = cells.len() == WORDS
            && load(0) == MAGIC
            && load(1) == VERSION
            && [load(BOOT), load(BOOT + 1)] == boot
            && load(NAME) == name.len() as u64
            && name
                .as_bytes()
                .chunks(8)
                .enumerate()
                .all(|(at, bytes)| load(NAME + 1 + at).to_le_bytes().starts_with(bytes));
        let mut charter = is_this.then_some(Self { cells, current: None })?;
        charter.recover();
        Some(charter)
    }
}

#[cfg(not(loom))]
mod files {
    use super::{Charter, HostCharter, MAGIC, VERSION, WORDS};
    use crate::error::OpenError;
    use crate::layout::charter::BYTES;
    use crate::mem::{Map, reserve};
    use crate::sync::Ordering;
    use std::fs::File;
    use std::io;

    impl Charter {
        /// Maps the charter in `file`, which came from a daemon.
        ///
        /// # Errors
        /// [`OpenError`] when the file cannot be mapped or is no charter.
        pub fn open(file: &File) -> Result<Self, OpenError> {
            let os = |what| move |source| OpenError::Os { what, source };
            let found = file.metadata().map_err(os("read the charter's size"))?.len();
            if found != BYTES {
                return Err(OpenError::Truncated { found, needed: BYTES });
            }
            let map = Map::read_only(file, BYTES).map_err(os("map the charter"))?;
            let cells = map.cells(0, WORDS as u64);
            match (cells[0].load(Ordering::Acquire), cells[1].load(Ordering::Relaxed)) {
                (MAGIC, VERSION) => Ok(Self { cells }),
                (MAGIC, found) => Err(OpenError::Version {
                    found_major: u16::try_from(found).unwrap_or(u16::MAX),
                    found_minor: 0,
                    major: VERSION as u16,
                }),
                (found, _) => Err(OpenError::Foreign { found }),
            }
        }
    }

    impl HostCharter {
        /// Makes a charter in `file`, which is empty and which no other process has opened.
        ///
        /// # Errors
        /// The system's error.
        pub fn create(file: &File, name: &str, boot: [u64; 2]) -> io::Result<Self> {
            reserve(file, BYTES)?;
            let cells = Map::read_write(file, BYTES)?.cells(0, WORDS as u64);
            Ok(Self::begin(cells, name, boot))
        }

        /// Maps the charter that an earlier daemon left in `file`. Returns `None` if the file has no charter of this channel and this boot.
        ///
        /// # Errors
        /// The system's error.
        pub fn open(file: &File, name: &str, boot: [u64; 2]) -> io::Result<Option<Self>> {
            if file.metadata()?.len() != BYTES {
                return Ok(None);
            }
            let cells = Map::read_write(file, BYTES)?.cells(0, WORDS as u64);
            Ok(Self::resume(cells, name, boot))
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const BOOT_ID: [u64; 2] = [7, 8];

    fn entry(generation: u64) -> Entry {
        Entry { generation, first: 1, segment: [1, generation], ..Entry::default() }
    }

    fn again(charter: &HostCharter) -> HostCharter {
        HostCharter::resume(charter.cells.clone(), "ticks", BOOT_ID).unwrap()
    }

    #[test]
    fn a_later_daemon_finds_the_generation_that_the_last_store_made_current() {
        let mut charter = HostCharter::begin(Cells::zeroed(WORDS), "ticks", BOOT_ID);
        assert_eq!(again(&charter).current(), None);
        for generation in 1..100 {
            charter.go_on(entry(generation), 10 * generation, false);
            charter.grant();
            let found = *again(&charter).current().unwrap();
            assert_eq!(found, Entry { is_granted: true, ..entry(generation) });
            let view = charter.view();
            assert_eq!(view.verdict(generation), Verdict::Open);
            if generation > 1 {
                let below = 10 * generation;
                assert_eq!(view.verdict(generation - 1), Verdict::Cut { below, ended: false });
            }
        }
        for (name, boot) in [("tick", BOOT_ID), ("ticks2", BOOT_ID), ("ticks", [7, 9])] {
            assert!(HostCharter::resume(charter.cells.clone(), name, boot).is_none(), "{name} {boot:?}");
        }
    }

    /// Tests a daemon that dies between any two stores. After each death, all programs see that the channel has moved to generation 2, or
    /// none does.
    #[test]
    fn what_a_dead_daemon_had_begun_is_taken_back_and_what_it_had_stored_holds() {
        let mut charter = HostCharter::begin(Cells::zeroed(WORDS), "ticks", BOOT_ID);
        charter.go_on(entry(1), 0, false);
        charter.close();
        charter.write(&entry(2));
        charter.store(2, Verdict::Open);
        let after = again(&charter);
        assert_eq!(after.current(), Some(&entry(1)));
        assert_eq!(after.view().verdict(1), Verdict::Open, "closing is taken back");
        // The store of the cut decides. The hint in `SETTLED`, which `go_on` stores after the cut, is missing here.
        charter.store(1, Verdict::Cut { below: 5, ended: true });
        let after = again(&charter);
        assert_eq!(after.current(), Some(&entry(2)));
        assert_eq!(after.view().verdict(1), Verdict::Cut { below: 5, ended: true });
        assert_eq!(after.view().verdict(2), Verdict::Open);
    }
}
