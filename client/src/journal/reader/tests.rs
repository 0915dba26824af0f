//! Tests of a reader that is overtaken by the recorder between two of its steps.

use super::*;
use crate::journal::Journal;
use crate::{ClockKind, StreamId};
use shmcast_layout::journal::{
    Composer, ControlRecord, FRAME_HEADER_BYTES, FrameBuilder, RingIdentity, file_name,
};
use std::fs;

/// Makes the composer and the first page of file `file`, which begins at `sequence`.
fn begin(file: u64, sequence: u64) -> (Composer, Vec<u8>) {
    let clock = ClockKind::Monotonic;
    let header = FileHeader {
        stream: StreamId::from_bytes(*b"stream-id-of-16B"),
        file,
        salt: 0x5a17 + file,
        sequence,
        epoch: 1,
        wall_ns: 1,
        boot_id: *b"boot-id-16-bytes",
        ring: RingIdentity { uuid: [1, 2], generation: 0, clock, clock_hz: 1_000_000_000 },
        previous_salt: 0,
        previous_chain: 0,
        largest_frame: 1 << 20,
        reserve: 0,
        schema_id: 0,
        channel: "ticks".into(),
        schema: String::new(),
        labels: String::new(),
    };
    let (composer, page) = Composer::begin(&header).unwrap();
    (composer, page.into_vec())
}

/// Adds a frame with `messages` messages from `first` on, or with the record of an end.
fn frame(composer: &mut Composer, bytes: &mut Vec<u8>, first: u64, messages: u64) {
    let mut frame = FrameBuilder::new(Vec::new(), first, 1);
    if messages == 0 {
        frame.control(JournalControl::Ring(ControlRecord::End), 1);
    }
    for _ in 0..messages {
        frame.message(b"x", 0, false, 1);
    }
    let (draft, mut frame) = frame.close();
    frame[..FRAME_HEADER_BYTES].copy_from_slice(&composer.place(&draft, 0).encode());
    bytes.extend_from_slice(&frame);
}

/// The recorder writes the rest of a file, seals it and begins the next file. The reader has just found no more in the file, and then looks
/// for the next one.
#[test]
fn a_file_that_is_completed_before_the_next_one_is_found_is_read_to_its_end() {
    // The rest of the file has messages, or an end alone.
    for rest in [4, 0] {
        let dir = tempfile::tempdir().unwrap();
        let (mut composer, mut bytes) = begin(1, 1);
        frame(&mut composer, &mut bytes, 1, 3);
        let path = dir.path().join(file_name(1, 1));
        fs::write(&path, &bytes).unwrap();
        let mut reader = Journal::open(dir.path()).unwrap().read_from(1).unwrap();
        let mut read = 0;
        while let Some(entry) = reader.next().unwrap() {
            read += u64::from(matches!(entry, Entry::Message(_)));
        }
        frame(&mut composer, &mut bytes, 4, rest);
        bytes.extend_from_slice(&composer.seal(0));
        fs::write(&path, &bytes).unwrap();
        let (mut next, mut later) = begin(2, 4 + rest);
        frame(&mut next, &mut later, 4 + rest, 2);
        fs::write(dir.path().join(file_name(2, 4 + rest)), later).unwrap();
        let found = reader.wait_or_go_on().unwrap();
        assert_eq!(found, Some(None), "a loss");
        let mut ends = 0;
        while let Some(entry) = reader.next().unwrap() {
            match entry {
                Entry::Message(_) => read += 1,
                Entry::Control { .. } => ends += 1,
                Entry::Lost(loss) => panic!("{loss:?}"),
            }
        }
        assert_eq!((read, reader.due(), ends), (5 + rest, 6 + rest, u64::from(rest == 0)));
    }
}

/// An earlier mistake: the last look at a file did not read a frame from the disk again if the frame had been half read before.
#[test]
fn a_half_read_frame_of_a_file_that_grows_no_more_is_read_from_the_disk_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut composer, mut bytes) = begin(1, 1);
    frame(&mut composer, &mut bytes, 1, 3);
    let half = bytes.len() + FRAME_HEADER_BYTES + 4;
    frame(&mut composer, &mut bytes, 4, 3);
    fs::write(dir.path().join(file_name(1, 1)), &bytes[..half]).unwrap();
    let mut reader = Journal::open(dir.path()).unwrap().read_from(1).unwrap();
    let cursor = reader.cursor.as_mut().unwrap();
    cursor.set_growing(true);
    assert!(matches!(cursor.next(1).unwrap(), Step::Frame(_)));
    assert_eq!(cursor.next(4).unwrap(), Step::End);
    cursor.set_growing(false);
    assert!(!cursor.is_unsure());
}
