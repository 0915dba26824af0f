//! The bytes of a journal: two files checked in as they are, which a reader in another language can be tested with, and
//! what decoding makes of bytes that were changed.
//!
//! `golden/journal/` has the files, and in `records.txt` what a reader finds in them. A change here is a change of the format. To write
//! them anew: `UPDATE_GOLDEN=1 cargo test -p shmcast-layout --test layout golden_journal`.

use proptest::prelude::*;
use shmcast_layout::journal::{
    Cause, Codec, Composer, ControlEntry, FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FileHeader, Footer,
    FormatError, FrameBuilder, FrameFlags, FrameHeader, FrameKind, Index, IndexEntry, JournalControl,
    KeyEntry, Loss, MAX_ENTRIES, PAGE, Record, RecordBody, Records, RingIdentity, TRAILER_BYTES, Trailer,
    file_name, parse_file_name, sequence_in_name,
};
use shmcast_layout::layout::header::ClockKind;
use shmcast_layout::layout::record::{ControlRecord, session_words};
use shmcast_layout::layout::stream::StreamId;
use std::fmt::Write;
use std::path::{Path, PathBuf};

const WALL: u64 = 1_764_000_000_000_000_000;

fn header(file: u64, sequence: u64) -> FileHeader {
    FileHeader {
        stream: StreamId::from_bytes(*b"stream-id-of-16B"),
        file,
        salt: 0x5a17_0000_0000_0000 + file,
        sequence,
        epoch: file,
        wall_ns: WALL + file,
        boot_id: *b"boot-id-16-bytes",
        ring: RingIdentity {
            uuid: [0x1111, 0x2222],
            generation: 3,
            clock: ClockKind::Monotonic,
            clock_hz: 1_000_000_000,
        },
        previous_salt: 0,
        previous_chain: 0,
        largest_frame: 256 << 10,
        reserve: 1 << 32,
        schema_id: 9,
        channel: "ticks".into(),
        schema: "price-v1".into(),
        labels: "venue=test\n".into(),
    }
}

/// Appends the frame.
fn append(file: &mut Vec<u8>, composer: &mut Composer, frame: FrameBuilder, durable: u64) {
    let (draft, mut bytes) = frame.close();
    let placed = composer.place(&draft, durable);
    bytes[..FRAME_HEADER_BYTES].copy_from_slice(&placed.encode());
    file.extend_from_slice(&bytes);
}

fn source(first: u64, epoch: u64) -> JournalControl {
    JournalControl::Source { ring: [0x1111, 0x2222], generation: 3, epoch, first }
}

/// A sealed file: messages of several lengths, each kind of control record, three data frames, an index, a footer.
fn sealed() -> (Vec<u8>, Composer) {
    let (mut composer, page) = Composer::begin(&header(1, 1)).unwrap();
    let mut file = page.into_vec();
    let mut frame = FrameBuilder::new(Vec::new(), 1, WALL + 1_000);
    frame.control(source(1, 1), 1000);
    frame.control(JournalControl::Clock { wall_ns: WALL + 1_000, ticks: 1000, step_ns: 0 }, 1000);
    frame.control(JournalControl::Reserve { sequence: 1 << 32 }, 1000);
    frame.message(b"", 0, false, 1001);
    frame.message(b"hello", 0xbeef, false, 1002);
    append(&mut file, &mut composer, frame, 0);
    let mut frame = FrameBuilder::new(Vec::new(), 3, WALL + 2_000);
    frame.message(&[7; 48], 1, true, 2000);
    frame.control(JournalControl::Ring(ControlRecord::Gap { from: 4, to: 6 }), 2001);
    let [high, low] = session_words(*b"SESSION-42");
    frame.control(JournalControl::Ring(ControlRecord::Session { high, low }), 2002);
    frame.message(&[8; 49], 2, false, 2003);
    append(&mut file, &mut composer, frame, 2);
    file.extend_from_slice(&composer.index(2));
    let mut frame = FrameBuilder::new(Vec::new(), 8, WALL + 1_500); // the wall clock was set back
    frame.control(JournalControl::Loss(Loss { from: 8, to: 12, cause: Cause::Overrun }), 3000);
    frame.control(JournalControl::Ring(ControlRecord::Epoch { epoch: 2 }), 3001);
    frame.message(b"after", 3, false, 3002);
    frame.control(JournalControl::Ring(ControlRecord::End), 3003);
    frame.control(JournalControl::Clean { next: 14 }, 3004);
    append(&mut file, &mut composer, frame, 7);
    file.extend_from_slice(&composer.seal(13));
    (file, composer)
}

/// A file that is being written: two frames, and zeros up to its size.
fn open(before: &Composer) -> Vec<u8> {
    let mut head = header(2, 14);
    (head.previous_salt, head.previous_chain) = (before.salt(), before.chain());
    let (mut composer, page) = Composer::begin(&head).unwrap();
    let mut file = page.into_vec();
    let mut frame = FrameBuilder::new(Vec::new(), 14, WALL + 9_000);
    frame.control(JournalControl::Mended { file: 1, frames: 5, bytes: 0 }, 0);
    frame.control(JournalControl::Loss(Loss { from: 14, to: 1 << 32, cause: Cause::Reserve }), 0);
    frame.control(source((1 << 32) + 1, 3), 0);
    frame.message(b"one", 0, false, 4000);
    append(&mut file, &mut composer, frame, 13);
    let mut frame = FrameBuilder::new(Vec::new(), (1 << 32) + 2, WALL + 9_500);
    frame.message(b"two", 0, true, 4001);
    append(&mut file, &mut composer, frame, 13);
    file.resize(2 * PAGE, 0);
    file
}

/// A file as a reader finds it, frame by frame.
fn listing(file: &[u8]) -> String {
    let head = FileHeader::decode(file).unwrap();
    let mut text = format!("file {} sequence {} channel {}\n", head.file, head.sequence, head.channel);
    let (mut at, mut chain) = (FILE_HEADER_BYTES, FileHeader::crc_of(file));
    while let Ok(frame) = FrameHeader::decode(&file[at..], head.salt) {
        assert_eq!(frame.chain, chain);
        let body = &file[at + FRAME_HEADER_BYTES..][..frame.length as usize];
        frame.check_body(body).unwrap();
        let (kind, number, due) = (frame.kind, frame.number, frame.sequence);
        writeln!(text, "frame {number} {kind:?} offset {at} sequence {due} time {}", frame.time_ns).unwrap();
        match frame.kind {
            FrameKind::Data => Records::new(&frame, body).for_each(|record| line(&mut text, record.unwrap())),
            FrameKind::Index => writeln!(text, "  {:?}", Index::decode(body).unwrap()).unwrap(),
            FrameKind::Footer => writeln!(text, "  {:?}", Footer::decode(body).unwrap()).unwrap(),
            FrameKind::Pad => {}
        }
        (at, chain) = (at + frame.frame_bytes(), frame.crc());
    }
    if let Ok(trailer) = Trailer::decode(&file[file.len() - TRAILER_BYTES..], head.salt) {
        assert_eq!(trailer.chain, chain);
        writeln!(text, "{trailer:?}").unwrap();
    }
    text
}

fn line(text: &mut String, record: Record<'_>) {
    let (sequence, time) = (record.sequence, record.time);
    match record.body {
        RecordBody::Message { payload, tag, key } => {
            let payload = payload.escape_ascii();
            writeln!(text, "  {sequence} time {time} tag {tag} key {key} \"{payload}\"").unwrap();
        }
        RecordBody::Control(control) => writeln!(text, "  {sequence} time {time} {control:?}").unwrap(),
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/journal").join(name)
}

#[test]
fn the_golden_journal_is_what_this_version_writes_and_reads() {
    let (first, composer) = sealed();
    let second = open(&composer);
    let records = listing(&first) + &listing(&second);
    let files =
        [(file_name(1, 1), first), (file_name(2, 14), second), ("records.txt".into(), records.into())];
    for (name, bytes) in files {
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(golden(&name), &bytes).unwrap();
        }
        assert_eq!(std::fs::read(golden(&name)).unwrap(), bytes, "{name}");
    }
}

/// The places of the fields, by hand: so that a golden file that was written anew by mistake is noticed.
#[test]
fn fields_stand_where_the_document_says() {
    let file = std::fs::read(golden(&file_name(1, 1))).unwrap();
    assert_eq!(file.len(), 2 * PAGE);
    assert_eq!(&file[..16], b"SHMCJRN1\x02\0\0\0\0\x10\0\0");
    assert_eq!(&file[16..32], b"stream-id-of-16B");
    assert_eq!(file[32..48], [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0x17, 0x5a]);
    assert_eq!(&file[256..272], b"\x05\0\0\0\0\0\0\0ticks\0\0\0");
    let frame = &file[4096..];
    assert_eq!(&frame[..4], b"SMJF");
    assert_eq!(frame[8..16], file[40..48]);
    assert_eq!(frame[16..20], [184, 0, 0, 0]); // source 16 + 48, clock 16 + 32, reserve 16 + 16, messages 16 and 24
    assert_eq!(frame[32..36], [2, 0, 0, 0]);
    assert_eq!(frame[36..40], file[4092..4096], "the chain begins with the header's checksum");
    assert_eq!(frame[60..64], [0, 0, 2, 0]);
    // The first record: sequence 1, a control record of 48 bytes, kind 64.
    assert_eq!(frame[64..72], [48, 0, 0, (1 | 8) << 1, 1, 0, 0, 0]);
    assert_eq!(frame[80..88], [64, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&file[file.len() - 64..][..8], b"SHMCJEND");
    assert_eq!(crc32c::crc32c(&file[..4092]).to_le_bytes(), file[4092..4096]);
    assert_eq!(crc32c::crc32c(&frame[8..64]).to_le_bytes(), frame[4..8]);
    assert_eq!(crc32c::crc32c(&frame[64..248]).to_le_bytes(), frame[20..24]);
}

#[test]
fn each_flipped_bit_of_header_frame_and_trailer_is_found() {
    let (file, composer) = sealed();
    let salt = composer.salt();
    let flip = |bytes: &[u8], bit: usize| {
        let mut bytes = bytes.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    };
    let page = &file[..FILE_HEADER_BYTES];
    assert!((0..page.len() * 8).all(|bit| FileHeader::decode(&flip(page, bit)).is_err()));
    let head = &file[FILE_HEADER_BYTES..][..FRAME_HEADER_BYTES];
    assert!((0..head.len() * 8).all(|bit| FrameHeader::decode(&flip(head, bit), salt).is_err()));
    let frame = FrameHeader::decode(head, salt).unwrap();
    let body = &file[FILE_HEADER_BYTES + FRAME_HEADER_BYTES..][..frame.length as usize];
    assert!((0..body.len() * 8).all(|bit| frame.check_body(&flip(body, bit)).is_err()));
    let trailer = &file[file.len() - TRAILER_BYTES..];
    assert!((0..trailer.len() * 8).all(|bit| Trailer::decode(&flip(trailer, bit), salt).is_err()));
    assert!(Trailer::decode(trailer, salt).is_ok());
    assert!(matches!(Trailer::decode(trailer, salt + 1), Err(FormatError::Checksum { .. })));
    assert!(matches!(FrameHeader::decode(head, salt + 1), Err(FormatError::Salt { .. })));
}

#[test]
fn a_later_version_is_told_from_a_damaged_number() {
    let mut page = header(1, 1).encode().unwrap().to_vec();
    page[8] ^= 1;
    assert!(matches!(FileHeader::decode(&page), Err(FormatError::Checksum { .. })));
    // The fields of another format.
    page[16] ^= 1;
    assert!(matches!(FileHeader::decode(&page), Err(FormatError::Version { major: 3, minor: 0 })));
}

#[test]
fn names_of_files_are_taken_apart() {
    assert_eq!(file_name(12, 345), "0000000012-00000000000000000345.smj");
    assert_eq!(parse_file_name(&file_name(12, 345)), Some(12));
    assert_eq!(sequence_in_name(&file_name(12, 345)), Some(345));
    assert_eq!(parse_file_name("0000000012-00000000000000000345.smj.suspect"), Some(12));
    for name in ["spare.tmp", "lock", "1-.smj", "-1.smj", "1-2.smj.torn", "1-2", "+1-2.smj"] {
        assert_eq!((parse_file_name(name), sequence_in_name(name)), (None, None), "{name}");
    }
}

/// The footer of a file of many frames is thinned, and its entries stay in order and spread over the file.
#[test]
fn a_footer_has_a_bounded_number_of_entries() {
    let (mut composer, _) = Composer::begin(&header(1, 1)).unwrap();
    for sequence in 1..=40_000 {
        let mut frame = FrameBuilder::new(Vec::with_capacity(80 << 10), sequence, WALL + sequence);
        frame.message(&[], 0, true, 0);
        let (mut draft, _) = frame.close();
        draft.length = 70 << 10; // the composer sees no bytes
        composer.place(&draft, 0);
        if composer.index_is_due() {
            let bytes = composer.index(0);
            let frame = FrameHeader::decode(&bytes, composer.salt()).unwrap();
            let index = Index::decode(&bytes[FRAME_HEADER_BYTES..][..frame.length as usize]).unwrap();
            assert!((58..=60).contains(&index.entries.len()), "{}", index.entries.len());
        }
    }
    let end = composer.offset();
    let bytes = composer.seal(0);
    let frame = FrameHeader::decode(&bytes, composer.salt()).unwrap();
    let footer = Footer::decode(&bytes[FRAME_HEADER_BYTES..][..frame.length as usize]).unwrap();
    assert!(footer.entries.len() > MAX_ENTRIES / 2 - 2 && footer.entries.len() <= MAX_ENTRIES);
    assert!(footer.entries.windows(2).all(|pair| pair[1].offset - pair[0].offset < end / 5_000));
    assert!(footer.keys_left_out && footer.keys.len() == MAX_ENTRIES);
    assert_eq!(footer.keys.last().unwrap().sequence, 40_000);
}

fn control() -> impl Strategy<Value = JournalControl> {
    let word = any::<u64>();
    prop_oneof![
        Just(JournalControl::Ring(ControlRecord::End)),
        word.prop_map(|epoch| JournalControl::Ring(ControlRecord::Epoch { epoch })),
        (word, word, word, word, word).prop_map(|(a, b, generation, epoch, first)| JournalControl::Source {
            ring: [a, b],
            generation,
            epoch,
            first
        }),
        (word, word, any::<i64>()).prop_map(|(wall_ns, ticks, step_ns)| JournalControl::Clock {
            wall_ns,
            ticks,
            step_ns
        }),
        word.prop_map(|sequence| JournalControl::Reserve { sequence }),
        word.prop_map(|next| JournalControl::Clean { next }),
        (word, word, word).prop_map(|(file, frames, bytes)| JournalControl::Mended { file, frames, bytes }),
        (70..u64::MAX).prop_map(|kind| JournalControl::Unknown { kind }),
    ]
}

#[derive(Debug, Clone)]
enum Step {
    Message(Vec<u8>, u16, bool, u64),
    Control(JournalControl),
    Loss(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (prop::collection::vec(any::<u8>(), 0..200), any::<u16>(), any::<bool>(), 0..1u64 << 48)
            .prop_map(|(payload, tag, key, time)| Step::Message(payload, tag, key, time)),
        1 => control().prop_map(Step::Control),
        1 => (0..1u64 << 33, 1..8u64).prop_map(|(length, cause)| Step::Loss(length, cause)),
    ]
}

proptest! {
    #[test]
    fn records_come_back_as_they_were_added(first in 1..1u64 << 40, steps in prop::collection::vec(step(), 0..40)) {
        let mut frame = FrameBuilder::new(Vec::new(), first, 5);
        let mut expected = Vec::new();
        for step in &steps {
            let due = frame.due();
            match step {
                Step::Message(payload, tag, key, time) => {
                    frame.message(payload, *tag, *key, *time);
                    expected.push((due, *time, RecordBody::Message { payload, tag: *tag, key: *key }));
                }
                Step::Control(control) => {
                    frame.control(*control, 1);
                    expected.push((due, 1, RecordBody::Control(*control)));
                }
                Step::Loss(length, cause) => {
                    let loss = Loss { from: due, to: due + length, cause: Cause::from_number(*cause) };
                    frame.control(JournalControl::Loss(loss), 2);
                    expected.push((due, 2, RecordBody::Control(JournalControl::Loss(loss))));
                }
            }
        }
        let (draft, bytes) = frame.close();
        let (mut composer, _) = Composer::begin(&header(1, first)).unwrap();
        let placed = composer.place(&draft, first - 1);
        prop_assert_eq!(FrameHeader::decode(&placed.encode(), composer.salt()), Ok(placed));
        let body = &bytes[FRAME_HEADER_BYTES..][..placed.length as usize];
        let mut records = Records::new(&placed, body);
        let found: Vec<_> = records.by_ref().map(|r| r.map(|r| (r.sequence, r.time, r.body)).unwrap()).collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(records.due(), draft.next);
    }

    /// Any bytes give an error or records, never a panic, and come to an end.
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..600), sequence in 1..u64::MAX >> 16) {
        let _ = FileHeader::decode(&bytes);
        let _ = FrameHeader::decode(&bytes, 1);
        let _ = Trailer::decode(&bytes, 1);
        let _ = Index::decode(&bytes);
        let _ = Footer::decode(&bytes);
        let frame = FrameHeader {
            salt: 1, length: bytes.len() as u32, body_crc: 0, sequence, messages: 3, chain: 0, time_ns: 0, durable: 0,
            number: 0, kind: FrameKind::Data, codec: Codec::Raw, flags: FrameFlags::default(),
        };
        prop_assert!(Records::new(&frame, &bytes).count() <= bytes.len() / 16 + 2);
    }

    #[test]
    fn index_and_footer_come_back(
        steps in prop::collection::vec((0..5u64, 1..9u64, 0..5u64), 0..50),
        holes in prop::collection::vec((1..99u64, 0..99u64), 0..5),
        flags in any::<(bool, bool, bool)>(),
    ) {
        let mut last = IndexEntry { sequence: 1, offset: 4096, time_ns: WALL };
        let entries: Vec<_> = steps.iter().map(|(sequence, offset, time)| {
            last.sequence += sequence;
            last.offset += offset * 64;
            last.time_ns += time;
            last
        }).collect();
        let index = Index { previous: 4096, entries: entries.clone() };
        prop_assert_eq!(Index::decode(&index.encode()), Ok(index));
        let footer = Footer {
            messages: 1, payload_bytes: 2, last_index: 3, keys_left_out: flags.0, controls_left_out: flags.1,
            is_mended: flags.2,
            keys: entries.iter().map(|e| KeyEntry { sequence: e.sequence, offset: e.offset }).collect(),
            controls: entries.iter().map(|e| ControlEntry { sequence: e.sequence, offset: e.offset, kind: 65 }).collect(),
            holes: holes.iter().map(|(from, more)| Loss { from: *from, to: from + more, cause: Cause::Torn }).collect(),
            entries,
        };
        prop_assert_eq!(Footer::decode(&footer.encode()), Ok(footer));
    }
}
