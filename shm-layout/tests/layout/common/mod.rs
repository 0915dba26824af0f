//! Helpers for tests of whole segments: a segment in a temporary file, its raw words, and a watchdog that ends a hang.

use shmcast_layout::layout::geometry::{Geometry, HEADER_BYTES, WORD};
use shmcast_layout::layout::header::{ClockKind, HEADER_WORDS, Header};
use shmcast_layout::layout::stream::StreamId;
use shmcast_layout::segment::Segment;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// A header in which nothing depends on time, chance or machine.
pub(crate) fn header(capacity: u64, max_message: Option<u64>) -> Header {
    Header {
        geometry: Geometry::new(capacity, max_message).unwrap(),
        uuid: [0x1111_2222_3333_4444, 0x5555_6666_7777_8888],
        stream: StreamId::from_words([42, 43]),
        created_ns: 1_700_000_000_000_000_000,
        clock: ClockKind::Monotonic,
        clock_hz: 1_000_000_000,
        schema_id: 7,
        channel: "ticks".into(),
        schema: "itch-5.0".into(),
        labels: "venue=x".into(),
    }
}

/// A new file without a name, in memory if the machine has `/dev/shm`.
pub(crate) fn nameless() -> File {
    tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile()).unwrap()
}

/// A new segment of 64 KiB in a file without a name.
pub(crate) fn segment() -> (File, Segment) {
    let file = nameless();
    let segment = Segment::create(&file, header(64 << 10, None)).unwrap();
    (file, segment)
}

pub(crate) fn word(file: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at * WORD).unwrap();
    u64::from_le_bytes(bytes)
}

pub(crate) fn set_word(file: &File, at: u64, value: u64) {
    file.write_all_at(&value.to_le_bytes(), at * WORD).unwrap();
}

/// Makes the header's checksum true again, as a malicious program would.
pub(crate) fn forge_checksum(file: &File) {
    let mut page = vec![0; HEADER_BYTES as usize];
    file.read_exact_at(&mut page, 0).unwrap();
    let crc = crc32c::crc32c_append(crc32c::crc32c(&page[8..15 * 8]), &page[64 * 8..HEADER_WORDS * 8]);
    set_word(file, 15, u64::from(crc));
}

/// Tells threads to end, also when the test fails before it can.
pub(crate) struct EndOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Aborts the test binary when it is still alive after two minutes: a hang is a failure with a name.
pub(crate) struct Watchdog {
    _leash: mpsc::Sender<()>,
}

impl Watchdog {
    pub(crate) fn guard(test: &'static str) -> Self {
        let (leash, called_off) = mpsc::channel();
        std::thread::spawn(move || {
            if called_off.recv_timeout(Duration::from_secs(120)) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{test} hangs");
                std::process::abort();
            }
        });
        Self { _leash: leash }
    }
}
