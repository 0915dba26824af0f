//! Writes journals for tests, and knows what a reader is to find in them.

use shmcast::journal::format::{
    Composer, FRAME_HEADER_BYTES, FileHeader, FrameBuilder, FrameHeader, RingIdentity, file_name,
};
use shmcast::journal::{Entry, Journal, JournalControl, Loss, Reader};
use shmcast::{ClockKind, StreamId};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

pub(crate) const WALL: u64 = 1_764_000_000_000_000_000;
/// Time between two messages.
pub(crate) const STEP: u64 = 1_000_000;

/// The bytes of a message, which no other message has.
pub(crate) fn payload(sequence: u64) -> Vec<u8> {
    let length = 8 + (sequence * 7 % 61) as usize;
    sequence.to_le_bytes().iter().copied().cycle().take(length).collect()
}

/// Wall clock of a message's publication.
pub(crate) fn wall(sequence: u64) -> u64 {
    WALL + sequence * STEP
}

fn ticks(sequence: u64) -> u64 {
    sequence * STEP + 1
}

/// A journal that is being written.
pub(crate) struct Book {
    pub(crate) dir: PathBuf,
    pub(crate) ring: [u64; 2],
    pub(crate) stream: StreamId,
    number: u64,
    before: (u64, u32),
    due: u64,
    file: Option<(PathBuf, Composer, Vec<u8>)>,
    /// The place of each frame that was written: file, offset, bytes, first sequence, sequence behind it.
    pub(crate) frames: Vec<(PathBuf, u64, u64, u64, u64)>,
}

impl Book {
    pub(crate) fn new(dir: &Path) -> Self {
        let (number, before, due) = (0, (0, 0), 1);
        let (dir, stream) = (dir.to_owned(), StreamId::from_bytes(*b"stream-id-of-16B"));
        Self { dir, ring: [0x11, 0x22], stream, number, before, due, file: None, frames: Vec::new() }
    }

    pub(crate) fn due(&self) -> u64 {
        self.due
    }

    /// The next file begins here, as behind a file that was given up.
    pub(crate) fn go_back(&mut self, due: u64) {
        self.due = due;
    }

    pub(crate) fn begin(&mut self) {
        self.number += 1;
        let header = FileHeader {
            stream: self.stream,
            file: self.number,
            salt: 0x5a17_0000 + self.number,
            sequence: self.due,
            epoch: 1,
            wall_ns: wall(self.due),
            boot_id: *b"boot-id-16-bytes",
            ring: RingIdentity {
                uuid: self.ring,
                generation: 0,
                clock: ClockKind::Monotonic,
                clock_hz: 1_000_000_000,
            },
            previous_salt: self.before.0,
            previous_chain: self.before.1,
            largest_frame: 256 << 10,
            reserve: 0,
            schema_id: 0,
            channel: "ticks".into(),
            schema: String::new(),
            labels: String::new(),
        };
        let (composer, page) = Composer::begin(&header).unwrap();
        self.file = Some((self.dir.join(file_name(self.number, self.due)), composer, page.into_vec()));
    }

    /// A frame with so many messages, after these controls.
    pub(crate) fn frame(&mut self, controls: &[JournalControl], messages: u64) {
        self.frame_as(controls, messages, true);
    }

    pub(crate) fn frame_as(&mut self, controls: &[JournalControl], messages: u64, with_clock: bool) {
        let first = self.due;
        let mut frame = FrameBuilder::new(Vec::new(), first, wall(first));
        for control in controls {
            frame.control(*control, ticks(frame.due()));
        }
        if with_clock {
            let clock = JournalControl::Clock { wall_ns: wall(first), ticks: ticks(first), step_ns: 0 };
            frame.control(clock, ticks(first));
        }
        for _ in 0..messages {
            let sequence = frame.due();
            frame.message(&payload(sequence), sequence as u16, sequence.is_multiple_of(5), ticks(sequence));
        }
        self.due = frame.due();
        let (path, composer, bytes) = self.file.as_mut().unwrap();
        let (draft, mut frame) = frame.close();
        let offset = composer.offset();
        let header: FrameHeader = composer.place(&draft, first - 1);
        frame[..FRAME_HEADER_BYTES].copy_from_slice(&header.encode());
        self.frames.push((path.clone(), offset, frame.len() as u64, first, self.due));
        bytes.extend_from_slice(&frame);
    }

    pub(crate) fn index(&mut self) {
        let (_, composer, bytes) = self.file.as_mut().unwrap();
        bytes.extend_from_slice(&composer.index(0));
    }

    pub(crate) fn seal(&mut self) {
        let (path, mut composer, mut bytes) = self.file.take().unwrap();
        bytes.extend_from_slice(&composer.seal(0));
        append(&path, &bytes);
        self.before = (composer.salt(), composer.chain());
    }

    /// Leaves the file as a recorder does that was killed: not sealed, with zeros behind it.
    pub(crate) fn leave(&mut self, zeros: usize) {
        let (path, composer, mut bytes) = self.file.take().unwrap();
        bytes.resize(bytes.len() + zeros, 0);
        append(&path, &bytes);
        self.before = (composer.salt(), composer.chain());
    }

    /// Writes what there is so far, and goes on with the file.
    pub(crate) fn show(&self) {
        let (path, _, bytes) = self.file.as_ref().unwrap();
        append(path, bytes);
    }
}

/// Adds what the file does not have yet: readers may have it open.
fn append(path: &Path, bytes: &[u8]) {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    let shown = file.metadata().unwrap().len() as usize;
    file.write_all(&bytes[shown..]).unwrap();
}

/// The findings of a reader.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) first: u64,
    pub(crate) due: u64,
    pub(crate) messages: u64,
    pub(crate) losses: Vec<Loss>,
}

/// Reads to the end. Each message must be the one that was published, and each sequence must come once, as a message or as lost.
pub(crate) fn read(mut reader: Reader) -> Found {
    let first = reader.due();
    let mut found = Found { first, due: first, ..Found::default() };
    while let Some(entry) = reader.next().unwrap() {
        match entry {
            Entry::Message(m) => {
                assert_eq!(m.sequence, found.due, "a message out of its place");
                assert_eq!(m.payload, payload(m.sequence), "a false message {}", m.sequence);
                assert_eq!((m.tag, m.key), (m.sequence as u16, m.sequence.is_multiple_of(5)));
                found.due += 1;
                found.messages += 1;
            }
            Entry::Lost(loss) => {
                assert_eq!(loss.from, found.due, "a loss out of its place");
                assert!(loss.to >= loss.from);
                found.due = loss.to + 1;
                found.losses.push(loss);
            }
            Entry::Control { sequence, control, .. } => {
                assert_eq!(sequence, found.due, "{control:?}");
                if let Some((_, next)) = control.skipped() {
                    found.due = next;
                }
            }
            _ => unreachable!(),
        }
    }
    assert_eq!(reader.due(), found.due);
    found
}

pub(crate) fn read_dir(dir: &Path) -> Found {
    read(Journal::open(dir).unwrap().read_from(1).unwrap())
}
