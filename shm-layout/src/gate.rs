//! The pages of gates: the reader's side, and the publisher's side. `layout/gate.rs` defines the words of the pages.
//!
//! # The pair
//! | SYNC POINT | reader of a gate | publisher |
//! |---|---|---|
//! | gate | copies a record, then `POSITION.store(Release)`, `CHECK.store(Release)` | reads both, `fence(Acquire)`, raises the bound, stores data |
//!
//! A publisher that has read position `p` knows that the reader has copied every record below `p`. While the gate is in force, the
//! publisher's bound is at most `p + capacity`, and its frontier is at most its bound. So no store touches a granule that the reader still
//! has to copy. `ring/mod.rs` has the argument.

use crate::fault::mutant;
#[cfg(not(loom))]
use crate::layout::gate::{
    BUCKETS, BYTES, COUNT, FIGURE_WORDS, FIGURES_BYTES, FIGURES_MAGIC, FIGURES_WORDS, FIRST, MAGIC,
    MAX_GATES, NAME, NAME_WORDS, PUBLISHER, SEGMENT, VERSION, WORDS, bucket_limit_ns, name_of, name_words,
};
use crate::layout::gate::{CHECK, NO_SEQUENCE, PID, POSITION, SEQUENCE, Said, check, claim, no_check};
#[cfg(not(loom))]
use crate::mem::{Map, reserve};
use crate::ring::cells::Cells;
use crate::ring::locate::Place;
use crate::sync::{Ordering, fence};
#[cfg(not(loom))]
use std::{fs::File, io, os::unix::fs::FileExt};

/// The reader's side of a gate page. The publisher waits for this reader. An update stores three words of one cache line, to which no other
/// process writes.
#[derive(Debug, Clone)]
pub struct GatePage {
    words: Cells,
    segment: [u64; 2],
}

impl GatePage {
    /// Begins a gate page in `words` for process `pid`, which reads the segment with the identity `segment`. Until the first
    /// [`passed`](Self::passed), the reader has no place.
    pub(crate) fn begin(words: Cells, pid: u32, segment: [u64; 2]) -> Self {
        let page = Self { words, segment };
        page.leave();
        page.words[PID].store(u64::from(pid), Ordering::Relaxed);
        page
    }

    /// Maps the page in `file`, whose lock the caller holds.
    ///
    /// # Errors
    /// The error of `mmap`; `InvalidData` if the file is no gate page.
    #[cfg(not(loom))]
    pub fn open(file: &File, pid: u32, segment: [u64; 2]) -> io::Result<Self> {
        if !is_page(file)? {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not the page of a gate"));
        }
        Ok(Self::begin(Map::read_write(file, BYTES)?.cells(0, WORDS as u64), pid, segment))
    }

    /// Tells the publisher that the reader no longer needs the records before `place`. Call this after the last load of bytes before
    /// `place`.
    #[inline]
    pub fn passed(&self, place: Place) {
        let order = Ordering::Release; // SYNC POINT: gate
        self.words[SEQUENCE].store(place.sequence, Ordering::Relaxed);
        self.words[POSITION].store(place.position, order);
        self.words[CHECK].store(check(place.position, self.segment), order);
    }

    /// Continues in another segment. Until the next [`passed`](Self::passed), the page has no valid position.
    ///
    /// If the reader had a place in the earlier segment, the publisher of the new segment treats it as a reader at the new segment's start,
    /// and waits for it.
    pub fn go_on(&mut self, segment: [u64; 2]) {
        self.invalidate();
        self.segment = segment;
    }

    /// Writes to the page that the reader has no place in the ring from now on. The publisher waits for this reader again only after the
    /// reader has caught up.
    #[inline]
    pub fn leave(&self) {
        self.words[SEQUENCE].store(NO_SEQUENCE, Ordering::Relaxed);
        self.invalidate();
    }

    /// Writes to the page that the reader has no place in this segment.
    #[inline]
    fn invalidate(&self) {
        let check = no_check(self.words[POSITION].load(Ordering::Relaxed), self.segment);
        self.words[CHECK].store(check, Ordering::Relaxed);
    }
}

/// Reads a page as the publisher does, for the loom model.
#[cfg(loom)]
pub(crate) fn look(words: &Cells, segment: [u64; 2]) -> Option<u64> {
    let (position, found) = (words[POSITION].load(Ordering::Relaxed), words[CHECK].load(Ordering::Relaxed));
    after_look(claim(position, found, segment)).place()
}

/// The acquire half of the pair `gate`. Call this after reading a page, and before the first store that depends on the position in the
/// page.
#[inline]
fn after_look(said: Said) -> Said {
    fence(Ordering::Acquire); // SYNC POINT: gate
    match said {
        Said::Place(position) if mutant!("gate_claims_are_stretched") => {
            Said::Place(position + crate::layout::geometry::GRANULE)
        }
        said => said,
    }
}

/// The words of a gate page, read at one time. The gate's reader wrote these words: check each one before use.
#[cfg(not(loom))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateClaim {
    /// The reader's place in this segment, as the page reports it.
    pub said: Said,
    /// The sequence that the reader expects next; [`NO_SEQUENCE`] while the reader has no place in the ring.
    pub sequence: u64,
    /// The reader's process id.
    pub pid: u64,
}

#[cfg(not(loom))]
impl GateClaim {
    /// Reads the gate page in `file`, for the segment with the identity `segment`. The file is not mapped, because the reader can shorten
    /// it. If the file is too short to hold a position, the claim has no position. Costs one system call.
    ///
    /// # Errors
    /// The system's error.
    pub fn read(file: &File, segment: [u64; 2]) -> io::Result<Self> {
        let mut bytes = [0; 4 * 8];
        let nothing = Self { said: Said::Nothing, sequence: NO_SEQUENCE, pid: 0 };
        match file.read_exact_at(&mut bytes, POSITION as u64 * 8) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(nothing),
            Err(e) => return Err(e),
        }
        let word = |word: usize| {
            let at = (word - POSITION) * 8;
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
        };
        let said = after_look(claim(word(POSITION), word(CHECK), segment));
        Ok(Self { said, sequence: word(SEQUENCE), pid: word(PID) })
    }
}

/// Makes the page of gate `name` in `file`, which is empty.
///
/// # Errors
/// The system's error.
#[cfg(not(loom))]
pub fn create(file: &File, name: &str) -> io::Result<()> {
    reserve(file, BYTES)?;
    let mut words = [0; NAME + 1 + NAME_WORDS];
    words[1] = VERSION;
    words[NAME..].copy_from_slice(&name_words(name));
    file.write_all_at(words.map(u64::to_le_bytes).as_flattened(), 0)?;
    file.write_all_at(&MAGIC.to_le_bytes(), 0)
}

/// Whether the file is a gate page.
///
/// # Errors
/// The system's error.
#[cfg(not(loom))]
pub fn is_page(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.len() >= BYTES && words_of(file, 2)?.is_some_and(|words| words == [MAGIC, VERSION]))
}

/// Reads the first `count` words of a file. Returns `None` if the file has fewer.
#[cfg(not(loom))]
fn words_of(file: &File, count: usize) -> io::Result<Option<Vec<u64>>> {
    let mut bytes = vec![0; count * 8];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e),
    }
    Ok(Some(
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect(),
    ))
}

/// The figures of one gate that a publisher shows to tools.
#[cfg(not(loom))]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GateFigures {
    /// The gate's name.
    pub name: String,
    /// The reader's largest lag in bytes of the ring. If a message would make the lag larger, the publisher waits.
    pub lag_bytes: u64,
    /// The limit of one message's wait, in nanoseconds.
    pub wait_ns: u64,
    /// The publisher's action after the wait: 0 if it drops the gate, 1 if it refuses the message.
    pub then: u64,
    /// The state of the gate, as a number.
    pub state: u64,
    /// The last position of the reader that the publisher knows.
    pub position: u64,
    /// The tail of the ring at the time when the publisher last read the gate's page.
    pub tail: u64,
    /// The process id that the gate's reader claims; 0 if no reader holds the gate.
    pub pid: u64,
    /// Messages that waited.
    pub held: u64,
    /// The longest wait in nanoseconds.
    pub longest_ns: u64,
    /// The sum of all waits in nanoseconds.
    pub total_ns: u64,
    /// Number of times that the gate was dropped.
    pub dropped: u64,
    /// Messages that were refused after a wait.
    pub refused: u64,
    /// Number of times that the publisher read the gate's page.
    pub looks: u64,
    /// Number of claimed positions that the ring had not reached.
    pub impossible: u64,
    /// The number of messages that were refused by calls that never wait.
    pub turned_away: u64,
    /// Counts of waits by length: one bucket for each power of two nanoseconds.
    pub histogram: [u64; BUCKETS],
}

#[cfg(not(loom))]
impl GateFigures {
    /// Returns the wait, in nanoseconds, that the fraction `quantile` of all waits did not exceed. The result is at most twice the exact
    /// value. Returns `None` if there was no wait.
    pub fn wait_ns(&self, quantile: f64) -> Option<u64> {
        let total = self.histogram.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
        let rank = ((total as f64 * quantile).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0u64;
        let is_there = |count: &u64| {
            seen = seen.saturating_add(*count);
            total > 0 && seen >= rank
        };
        self.histogram.iter().position(is_there).map(|bucket| bucket_limit_ns(bucket).min(self.longest_ns))
    }
}

/// Word of the histogram in a gate's figures.
#[cfg(not(loom))]
const HISTOGRAM: usize = 32;

#[cfg(not(loom))]
impl GateFigures {
    fn to_words(&self) -> [u64; FIGURE_WORDS] {
        let mut words = [0; FIGURE_WORDS];
        words[..=NAME_WORDS].copy_from_slice(&name_words(&self.name));
        let rest = [
            self.lag_bytes,
            self.wait_ns,
            self.then,
            self.state,
            self.position,
            self.tail,
            self.pid,
            0,
            self.held,
            self.longest_ns,
            self.total_ns,
            self.dropped,
            self.refused,
            self.looks,
            self.impossible,
            self.turned_away,
        ];
        words[1 + NAME_WORDS..][..rest.len()].copy_from_slice(&rest);
        words[HISTOGRAM..].copy_from_slice(&self.histogram);
        words
    }

    fn from_words(words: &[u64]) -> Option<Self> {
        let at = |word: usize| words[word];
        Some(Self {
            name: name_of(words)?,
            lag_bytes: at(5),
            wait_ns: at(6),
            then: at(7),
            state: at(8),
            position: at(9),
            tail: at(10),
            pid: at(11),
            held: at(13),
            longest_ns: at(14),
            total_ns: at(15),
            dropped: at(16),
            refused: at(17),
            looks: at(18),
            impossible: at(19),
            turned_away: at(20),
            histogram: words[HISTOGRAM..HISTOGRAM + BUCKETS].try_into().ok()?,
        })
    }
}

/// The publisher's end of the figures page.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct FiguresPage {
    words: Cells,
}

#[cfg(not(loom))]
impl FiguresPage {
    /// Reserves the memory of a page of figures in `file`.
    ///
    /// # Errors
    /// The system's error, for example if the file system is full.
    pub fn reserve(file: &File) -> io::Result<()> {
        reserve(file, FIGURES_BYTES)
    }

    /// Maps the page in `file`, which the publisher's user or a daemon made, and clears the figures of earlier publishers.
    ///
    /// # Errors
    /// The system's error.
    pub fn begin(file: &File, pid: u32, segment: [u64; 2]) -> io::Result<Self> {
        reserve(file, FIGURES_BYTES)?;
        let words = Map::read_write(file, FIGURES_BYTES)?.cells(0, FIGURES_WORDS as u64);
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let head =
            [(1, VERSION), (PUBLISHER, u64::from(pid)), (SEGMENT, segment[0]), (SEGMENT + 1, segment[1])];
        for (word, value) in head {
            words[word].store(value, Ordering::Relaxed);
        }
        Ok(Self { words })
    }

    /// Writes the figures of gate number `number`.
    pub fn write(&self, number: usize, figures: &GateFigures) {
        let words = figures.to_words();
        let at = FIRST + number * FIGURE_WORDS;
        self.words[at..at + FIGURE_WORDS]
            .iter()
            .zip(words)
            .for_each(|(cell, word)| cell.store(word, Ordering::Relaxed));
    }

    /// Shows the first `count` gates to tools.
    pub fn show(&self, count: usize) {
        self.words[COUNT].store(count as u64, Ordering::Relaxed);
        self.words[0].store(FIGURES_MAGIC, Ordering::Release);
    }
}

/// The contents of a page of figures, for tools. A publisher wrote the figures: check each one before use.
#[cfg(not(loom))]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Figures {
    /// The publisher's process id.
    pub pid: u64,
    /// Identity of the segment that the publisher writes.
    pub segment: [u64; 2],
    /// The figures of each gate.
    pub gates: Vec<GateFigures>,
}

#[cfg(not(loom))]
impl Figures {
    /// Reads the page in `file`. Returns `None` if the page is not a complete page of figures.
    ///
    /// # Errors
    /// The system's error.
    pub fn read(file: &File) -> io::Result<Option<Self>> {
        let Some(words) = words_of(file, FIGURES_WORDS)? else { return Ok(None) };
        if words[0] != FIGURES_MAGIC || words[1] != VERSION || words[COUNT] > MAX_GATES as u64 {
            return Ok(None);
        }
        let gates = words[FIRST..].chunks_exact(FIGURE_WORDS).take(words[COUNT] as usize);
        let gates = gates.filter_map(GateFigures::from_words).collect();
        Ok(Some(Self { pid: words[PUBLISHER], segment: [words[SEGMENT], words[SEGMENT + 1]], gates }))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SEGMENT: [u64; 2] = [7, 8];

    #[test]
    fn a_publisher_reads_what_the_reader_has_passed() {
        let file = tempfile::tempfile().unwrap();
        assert!(!is_page(&file).unwrap());
        create(&file, "risk").unwrap();
        assert!(is_page(&file).unwrap());
        let read = || GateClaim::read(&file, SEGMENT).unwrap();
        assert_eq!(read().said, Said::Nothing, "nobody has said anything");
        let mut page = GatePage::open(&file, 42, SEGMENT).unwrap();
        assert_eq!((read().said, read().pid), (Said::NoPlace, 42));
        for position in [0, 64, 1 << 40, u64::MAX] {
            page.passed(Place { position, sequence: 9 });
            assert_eq!((read().said, read().sequence), (Said::Place(position), 9));
            page.leave();
            assert_eq!(read().said, Said::NoPlace);
        }
        page.go_on([9, 9]);
        page.passed(Place { position: 128, sequence: 3 });
        assert_eq!(read().said, Said::Nothing, "in another segment");
        assert_eq!(GateClaim::read(&file, [9, 9]).unwrap().said, Said::Place(128));
        page.leave();
        assert_eq!(GateClaim::read(&file, [9, 9]).unwrap().said, Said::NoPlace);
        let next = GatePage::open(&file, 43, SEGMENT).unwrap();
        assert_eq!(read().said, Said::NoPlace, "the next reader has none yet");
        next.passed(Place::START);
        assert_eq!(read().said, Said::Place(0));
    }

    #[test]
    fn files_of_all_kinds_claim_nothing() {
        for bytes in [&b""[..], &[0xff; 100], &[0; 4096], &[0xff; 4096], &[1; 9999]] {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(bytes, 0).unwrap();
            assert_eq!(GateClaim::read(&file, SEGMENT).unwrap().said, Said::Nothing);
            assert!(!is_page(&file).unwrap());
            assert!(GatePage::open(&file, 1, SEGMENT).is_err());
            assert_eq!(Figures::read(&file).unwrap(), None);
        }
    }

    #[test]
    fn figures_come_back() {
        let file = tempfile::tempfile().unwrap();
        let page = FiguresPage::begin(&file, 42, SEGMENT).unwrap();
        assert_eq!(Figures::read(&file).unwrap(), None, "not finished");
        let figures = |name: &str, add| GateFigures {
            name: name.into(),
            lag_bytes: 1 + add,
            wait_ns: 2 + add,
            then: 1,
            state: 3,
            position: 4 + add,
            tail: 5 + add,
            pid: 6 + add,
            held: 7 + add,
            longest_ns: 8 + add,
            total_ns: 9 + add,
            dropped: 10 + add,
            refused: 11 + add,
            looks: 12 + add,
            impossible: 13 + add,
            turned_away: 14 + add,
            histogram: std::array::from_fn(|bucket| bucket as u64 * add),
        };
        let gates = vec![figures("risk", 100), figures(&"g".repeat(31), 200)];
        gates.iter().enumerate().for_each(|(number, gate)| page.write(number, gate));
        page.show(2);
        assert_eq!(Figures::read(&file).unwrap(), Some(Figures { pid: 42, segment: SEGMENT, gates }));
    }
}
