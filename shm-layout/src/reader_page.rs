//! A mapped reader page. The subscriber writes the page through [`ReaderPage`]. A daemon reads it through [`HostPage`], and tools read it
//! through [`ReaderStats`].

use crate::error::OpenError;
use crate::layout::geometry::GRANULE;
use crate::layout::reader_page::{
    ASLEEP, BUCKETS, BYTES, CONFLATED, HEARTBEAT, HISTOGRAM, LAPPED, MAGIC, MISSED, PID, POSITION, RECEIVED,
    ROLE, Role, SEGMENT, SEQUENCE, STARTED_AT, VERSION, WORDS, bucket, bucket_limit_ns,
};
use crate::mem::{Map, reserve};
use crate::ring::cells::{Cells, Page};
use crate::ring::locate::Place;
use crate::sync::{AtomicU64, Ordering, fence};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The subscriber's side of a reader page. An update makes relaxed stores to words that no other process writes, and takes a few
/// nanoseconds.
#[derive(Debug, Clone)]
pub struct ReaderPage {
    words: Page,
}

impl ReaderPage {
    /// Makes the page of a subscriber in the empty `file`. The subscriber is process `pid` and has the role `role`. The subscriber reads the
    /// segment `uuid`, beginning at `start`.
    ///
    /// # Errors
    /// [`OpenError::Os`] when the file cannot be sized or mapped.
    pub fn create(
        file: &File,
        pid: u32,
        role: Role,
        uuid: [u64; 2],
        start: Place,
    ) -> Result<Self, OpenError> {
        let os = |what| move |source| OpenError::Os { what, source };
        reserve(file, BYTES).map_err(os("reserve memory for the reader page"))?;
        let map = Map::read_write(file, BYTES).map_err(os("map the reader page"))?;
        let page = Self { words: Page::new(map.cells(0, WORDS as u64)) };
        page.set::<1>(VERSION);
        page.set::<PID>(u64::from(pid));
        page.set::<ROLE>(role as u64);
        page.set::<STARTED_AT>(start.sequence);
        page.words[SEGMENT].store(uuid[0], Ordering::Relaxed);
        page.words[SEGMENT + 1].store(uuid[1], Ordering::Relaxed);
        page.moved(start);
        page.words[0].store(MAGIC, Ordering::Release);
        Ok(page)
    }

    /// Stores the subscriber's place.
    #[inline]
    pub(crate) fn moved(&self, place: Place) {
        self.set::<POSITION>(place.position);
        self.set::<SEQUENCE>(place.sequence);
    }

    /// Counts messages received.
    #[inline]
    pub fn received(&self, messages: u64, place: Place) {
        self.moved(place);
        add(self.words.word::<RECEIVED>(), messages);
    }

    /// Counts a latency.
    #[inline]
    pub fn latency(&self, latency_ns: u64) {
        add(&self.words[HISTOGRAM + bucket(latency_ns)], 1);
    }

    /// Counts messages that were overwritten before they were read.
    pub fn lapped(&self, missed: u64, place: Place) {
        add(self.words.word::<LAPPED>(), 1);
        self.missed(missed, place);
    }

    /// Counts messages that never reached this host.
    pub fn missed(&self, missed: u64, place: Place) {
        add(self.words.word::<MISSED>(), missed);
        self.moved(place);
    }

    /// Counts messages that the subscriber left out, because it got newer messages of the same keys from the board.
    pub fn conflated(&self, messages: u64, place: Place) {
        add(self.words.word::<CONFLATED>(), messages);
        self.moved(place);
    }

    /// Stores the time of the subscriber's last poll, in ticks of the segment's clock.
    #[inline]
    pub fn heartbeat(&self, time: u64) {
        self.set::<HEARTBEAT>(time);
    }

    /// Announces that this subscriber sleeps until there is a record at `position`. `nap` is a number that differs from one sleep to the
    /// next. After this call the subscriber polls the ring once more. If the ring still has no new record, the subscriber sends a byte to
    /// the daemon's waker, and then sleeps.
    ///
    /// In this order, the waker misses no sleeping subscriber. Before the waker goes to sleep, it receives all bytes, and then reads the
    /// words of all subscribers once more. If the waker received this subscriber's byte, it now sees the word, because the word was stored
    /// before the byte was sent. If the byte arrives later, it wakes the waker.
    pub fn sleeps(&self, position: u64, nap: u64) {
        self.words
            .word::<ASLEEP>()
            .store(position | ((nap.wrapping_mul(2) + 1) % GRANULE), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Announces that the subscriber is awake.
    pub fn woke(&self) {
        self.set::<ASLEEP>(0);
    }

    #[inline(always)]
    fn set<const WORD: usize>(&self, value: u64) {
        self.words.word::<WORD>().store(value, Ordering::Relaxed);
    }
}

/// Adds to a counter. This process is its only writer, so a load and a store suffice.
#[inline(always)]
fn add(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}

/// The daemon's side of a reader page. The daemon made the page, whose size is sealed, and writes nothing to it.
#[derive(Debug, Clone)]
pub struct HostPage {
    cells: Cells,
}

impl HostPage {
    /// Maps the page in `file`.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub fn open(file: &File) -> io::Result<Self> {
        Ok(Self { cells: Map::read_write(file, BYTES)?.cells(0, WORDS as u64) })
    }

    /// The word in which the subscriber says whether it sleeps. The word is 0 while the subscriber is awake. While the subscriber sleeps,
    /// all bits but the low six are the position that it waits for. A faulty subscriber can write anything there.
    pub fn asleep(&self) -> u64 {
        self.cells[ASLEEP].load(Ordering::Relaxed)
    }
}

/// The contents of a reader page, read at one time. The subscriber might have written anything there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderStats {
    /// Process id in the subscriber's own namespace.
    pub pid: u64,
    /// The purpose for which the subscriber reads.
    pub role: Role,
    /// The sequence from which the subscriber started.
    pub started_at: u64,
    /// Identity of the segment that the subscriber reads.
    pub segment: [u64; 2],
    /// The place that the subscriber reads next.
    pub place: Place,
    /// Messages received.
    pub received: u64,
    /// Number of times that the publisher overtook the subscriber.
    pub lapped: u64,
    /// Messages that the subscriber missed.
    pub missed: u64,
    /// The number of messages that were skipped, because the subscriber got newer messages of the same keys.
    pub conflated: u64,
    /// The time of the subscriber's last poll, in ticks of the segment's clock.
    pub heartbeat: u64,
    /// Counts of latencies by bucket; see [`bucket_limit_ns`].
    pub histogram: Box<[u64]>,
}

impl ReaderStats {
    /// Reads the page in `file`. Returns `None` if the subscriber has not finished the page yet, or if the file is no reader page.
    ///
    /// # Errors
    /// [`OpenError::Os`] when the file cannot be read.
    pub fn read(file: &File) -> Result<Option<Self>, OpenError> {
        // The file is read and not mapped, because its owner can shorten it at any time. A map would then fault, and the fault would end
        // the tool.
        let mut bytes = vec![0; BYTES as usize];
        match file.read_exact_at(&mut bytes, 0) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(source) => return Err(OpenError::Os { what: "read the reader page", source }),
        }
        let word = |word: usize| {
            let bytes = bytes[word * 8..][..8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes)
        };
        if word(0) != MAGIC || word(1) != VERSION {
            return Ok(None);
        }
        Ok(Some(Self {
            pid: word(PID),
            role: Role::of_word(word(ROLE)),
            started_at: word(STARTED_AT),
            segment: [word(SEGMENT), word(SEGMENT + 1)],
            place: Place { position: word(POSITION), sequence: word(SEQUENCE) },
            received: word(RECEIVED),
            lapped: word(LAPPED),
            missed: word(MISSED),
            conflated: word(CONFLATED),
            heartbeat: word(HEARTBEAT),
            histogram: (HISTOGRAM..HISTOGRAM + BUCKETS).map(word).collect(),
        }))
    }

    /// Returns the latency, in nanoseconds, that the fraction `quantile` of the messages did not exceed. The result is the upper limit of a
    /// bucket, so it is at most 6.25 % too high. Returns `None` if no latency was counted.
    pub fn latency_ns(&self, quantile: f64) -> Option<u64> {
        let total: u64 = self.histogram.iter().fold(0, |sum, n| sum.saturating_add(*n));
        let rank = ((total as f64 * quantile).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0u64;
        self.histogram
            .iter()
            .position(|count| {
                seen = seen.saturating_add(*count);
                total > 0 && seen >= rank
            })
            .map(bucket_limit_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_subscriber_counts_is_what_a_tool_reads() {
        let file = tempfile::tempfile().unwrap();
        let start = Place { position: 128, sequence: 3 };
        let page = ReaderPage::create(&file, 42, Role::Recorder, [7, 8], start).unwrap();
        for (i, latency_ns) in [100, 200, 300, 100_000].into_iter().enumerate() {
            page.received(1, Place { position: 192 + 64 * i as u64, sequence: 4 + i as u64 });
            page.latency(latency_ns);
        }
        page.lapped(10, Place { position: 4096, sequence: 17 });
        page.heartbeat(99);
        let stats = ReaderStats::read(&file).unwrap().unwrap();
        assert_eq!((stats.pid, stats.started_at, stats.received), (42, 3, 4));
        assert_eq!((stats.lapped, stats.missed, stats.place.sequence), (1, 10, 17));
        assert!((200..=212).contains(&stats.latency_ns(0.5).unwrap()));
        assert!((100_000..=106_250).contains(&stats.latency_ns(1.0).unwrap()));
    }

    #[test]
    fn the_daemon_tells_one_nap_from_the_next_and_both_from_being_awake() {
        let file = tempfile::tempfile().unwrap();
        let page = ReaderPage::create(&file, 1, Role::Reader, [0; 2], Place::START).unwrap();
        let host = HostPage::open(&file).unwrap();
        assert_eq!(host.asleep(), 0);
        let mut before = 0;
        for nap in (0..40).chain([u64::MAX - 1, u64::MAX]) {
            page.sleeps(640, nap);
            assert_ne!(host.asleep(), before);
            before = host.asleep();
            assert_eq!((before & !(GRANULE - 1), before % 2), (640, 1));
        }
        page.sleeps(0, 32);
        assert_ne!(host.asleep(), 0, "asleep at the very start of a ring");
        page.woke();
        assert_eq!(host.asleep(), 0);
    }

    #[test]
    fn an_unfinished_page_is_no_page() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(ReaderStats::read(&file).unwrap(), None);
        file.set_len(BYTES).unwrap();
        assert_eq!(ReaderStats::read(&file).unwrap(), None);
    }
}
