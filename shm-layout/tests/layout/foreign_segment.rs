//! Segments that no correct writer made. No bytes make anything panic, leave the map, or hang.
//!
//! Each case is opened, searched, read, resumed, and taken over by a writer. The result may be nonsense, because the input was,
//! but it consists of values and errors. The test profile has overflow checks.

use crate::common::{Watchdog, forge_checksum, nameless, segment, set_word, word};
use proptest::prelude::*;
use shmcast_layout::error::{OpenError, WriteError};
use shmcast_layout::layout::geometry::{Geometry, HEADER_BYTES, MAX_COUNT, MAX_SEQUENCE};
use shmcast_layout::layout::header::{
    FRONTIER, LAZY_BYTES, LAZY_KEY, LAZY_PUBLISHED, LAZY_TIME, MAGIC, STATE, State,
};
use shmcast_layout::layout::record::{Commit, ControlRecord, Flags};
use shmcast_layout::ring::locate::{LocateError, Place};
use shmcast_layout::ring::reader::{Copied, Poll, Reader, Resume};
use shmcast_layout::ring::writer::TakeOverError;
use shmcast_layout::segment::{Access, Segment};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

const CAPACITY: u64 = 64 << 10;
const ENTRIES: u64 = CAPACITY / 64;
const INDEX: u64 = HEADER_BYTES / 8;
const DATA: u64 = INDEX + ENTRIES;
/// More polls than a ring holds records. A reader that still moves after them does not end.
const POLLS: usize = 3 * ENTRIES as usize;

const EXTREMES: &[u64] = &[
    0,
    1,
    2,
    63,
    64,
    65,
    4096,
    CAPACITY - 64,
    CAPACITY,
    CAPACITY + 1,
    CAPACITY + 64,
    1 << 20,
    u32::MAX as u64,
    1 << 32,
    (1 << 62) - 64,
    1 << 62,
    (1 << 62) + 64,
    1 << 63,
    u64::MAX - 63,
    u64::MAX,
];

/// Does everything to a file that a program may do to a channel. Returns the number of messages that came out.
fn exercise(file: &File) -> usize {
    let messages = match Segment::open(file, Access::Read) {
        Ok(segment) => look_around(&segment),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return 0;
        }
    };
    let segment = Segment::open(file, Access::Write).expect("it opened for reading");
    let waiting = segment.locator().tail().map(|place| segment.reader(place));
    if let Ok(mut writer) = segment.writer(1, 2) {
        let max_message = segment.header().geometry.max_message;
        let before = writer.next_sequence();
        for length in [0, 1, 48, 49, 1000, max_message] {
            if length <= max_message {
                match writer.publish(&vec![7; length as usize], 3, length == 1, 4) {
                    Ok(_) => {}
                    Err(WriteError::OutOfSequences(_)) => assert!(writer.next_sequence() > MAX_SEQUENCE - 64),
                    Err(other) => panic!("{other}"),
                }
            }
        }
        assert!(writer.publish(&vec![7; max_message as usize + 1], 3, false, 4).is_err());
        assert!(writer.next_sequence() > before || before > MAX_SEQUENCE - 64);
        let _ = writer.gap(writer.next_sequence() + 5, 5);
        assert!(writer.gap(u64::MAX, 5).is_err());
        writer.session(*b"0123456789", 6);
        writer.close(7);
        drop(writer);
        if let Ok(mut reader) = waiting {
            drain(&mut reader, segment.header().geometry.capacity);
        }
        look_around(&segment);
    }
    messages
}

fn look_around(segment: &Segment) -> usize {
    let locator = segment.locator();
    match locator.tail_bound() {
        Ok(bound) => assert!((1..=MAX_SEQUENCE).contains(&bound.next_sequence())),
        Err(corrupt) => assert!(!corrupt.to_string().is_empty()),
    }
    let mut places = vec![Place::START];
    places.extend(locator.tail());
    places.extend(locator.oldest());
    for sequence in EXTREMES.iter().chain(&[3, 10, ENTRIES - 1, ENTRIES]) {
        match locator.seek(*sequence) {
            Ok(place) => places.push(place),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    places.sort_by_key(|place| (place.position, place.sequence));
    places.dedup();
    places
        .into_iter()
        .map(|place| {
            take_as_polled(segment, place);
            take_whole_as_polled(segment, place);
            drain(&mut segment.reader(place), segment.header().geometry.capacity)
        })
        .sum()
}

/// A reader that takes several messages at once finds the same as one that polls, and nothing else.
fn take_as_polled(segment: &Segment, place: Place) {
    let (mut taking, mut polling) = (segment.reader(place), segment.reader(place));
    let (mut taken_into, mut polled_into) = (vec![0; 9000], vec![0; 9000]);
    for _ in 0..POLLS {
        let taken = taking.poll_batch(7, &mut taken_into, |copied, payload| {
            assert_eq!(polling.poll(&mut polled_into), Poll::Message(copied));
            assert_eq!(payload, &polled_into[..copied.length]);
        });
        assert_eq!(taking.place(), polling.place());
        if taken == 0 {
            return;
        }
    }
    panic!("a reader of {ENTRIES} granules still takes records after {POLLS} times");
}

/// The same of whole records: no record leaves the bytes that were taken, and each is the message of a poll.
fn take_whole_as_polled(segment: &Segment, place: Place) {
    let (mut taking, mut polling) = (segment.reader(place), segment.reader(place));
    let (mut out, mut polled_into) = (vec![0; 12_000], vec![0; 9000]);
    for _ in 0..POLLS {
        let taken = taking.poll_records(7, &mut out);
        let mut rest = &out[..taken.bytes];
        for _ in 0..taken.messages {
            let commit = Commit::from_word(u64::from_le_bytes(*rest.first_chunk().unwrap()));
            let Poll::Message(copied) = polling.poll(&mut polled_into) else { panic!("no message there") };
            assert_eq!(
                (commit.length(), commit.sequence_low()),
                (copied.length as u64, copied.sequence as u32)
            );
            assert_eq!(rest[16..16 + copied.length], polled_into[..copied.length]);
            rest = &rest[commit.record_bytes() as usize..];
        }
        assert!(rest.is_empty());
        assert_eq!(taking.place(), polling.place());
        if taken.messages == 0 {
            return;
        }
    }
    panic!("a reader of {ENTRIES} granules still takes records after {POLLS} times");
}

/// Reads until no more messages come, which must be soon.
fn drain(reader: &mut Reader, capacity: u64) -> usize {
    let mut out = vec![0; 9000];
    let (mut messages, mut policies) = (0, [Resume::Key, Resume::Oldest, Resume::Latest].into_iter());
    reader.state();
    reader.lag();
    for _ in 0..POLLS {
        let before = reader.place();
        match reader.poll(&mut out) {
            Poll::Message(Copied { length, sequence, .. }) => {
                assert!(length <= out.len() && sequence == before.sequence);
                assert!(reader.place().position > before.position);
                messages += 1;
            }
            Poll::Control(_) => {}
            Poll::Empty if reader.place() != before => {}
            Poll::Lapped => {
                let lapped = reader.place();
                assert_eq!(lapped.sequence, before.sequence);
                match policies.next().map(|policy| reader.resume(policy)) {
                    Some(Ok(missed)) => assert_eq!(reader.place().sequence - before.sequence, missed),
                    Some(Err(_)) => assert_eq!(reader.place(), lapped),
                    None => return messages,
                }
            }
            Poll::TooSmall { needed } => {
                assert!(needed > out.len());
                return messages;
            }
            Poll::Empty | Poll::Superseded => {
                for _ in 0..3 {
                    reader.look();
                }
                return messages;
            }
            Poll::Corrupt(corrupt) => {
                let place = reader.place();
                assert_eq!((corrupt.position, corrupt.sequence), (place.position, place.sequence));
                assert_eq!(place.sequence, before.sequence, "nothing of a corrupt record is consumed");
                // A pad before it carries nothing and is passed in the same poll; it leads to the ring's start.
                assert!(
                    place == before
                        || place.position > before.position && place.position.is_multiple_of(capacity)
                );
                return messages;
            }
        }
    }
    panic!("a reader of {ENTRIES} granules still finds records after {POLLS} polls");
}

/// A segment with every kind of record in it, more than a lap.
fn lived_in() -> File {
    let (file, segment) = segment();
    let mut writer = segment.writer(1, 1).unwrap();
    for i in 0..300u64 {
        writer.publish(&vec![i as u8; (i * 37 % 900) as usize], i as u16, i % 50 == 0, i).unwrap();
        if i % 70 == 69 {
            writer.gap(writer.next_sequence() + i, i).unwrap();
            writer.session([9; 10], i);
        }
    }
    assert!(writer.position() > CAPACITY);
    drop(writer);
    segment.writer(2, 400).unwrap().publish(b"the last one", 0, false, 401).unwrap();
    assert!(
        exercise_copy(&file) > 30,
        "an honest segment is read, so that the rest of these tests tests something"
    );
    file
}

fn copy(file: &File) -> File {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let copy = nameless();
    copy.write_all_at(&bytes, 0).unwrap();
    copy
}

fn exercise_copy(file: &File) -> usize {
    exercise(&copy(file))
}

#[test]
fn truncated_at_every_interesting_size() {
    let _dog = Watchdog::guard("truncated_at_every_interesting_size");
    let whole = Geometry::new(CAPACITY, None).unwrap().segment_bytes();
    let data = DATA * 8;
    for size in [0, 1, 7, 8, 127, 128, 4095, 4096, 4097, data - 1, data, data + 1, whole - 4096, whole - 1] {
        let file = lived_in_once();
        file.set_len(size).unwrap();
        for access in [Access::Read, Access::Write] {
            match Segment::open(&file, access) {
                Err(OpenError::Truncated { found, needed }) => assert!(found == size && needed > size),
                other => panic!("{size} bytes: {other:?}"),
            }
        }
        assert_eq!(file.metadata().unwrap().len(), size, "refusing a file leaves it alone");
    }
    let file = lived_in_once();
    file.set_len(whole + 1).unwrap();
    assert!(exercise(&file) > 30, "bytes after the segment do not matter");
}

fn lived_in_once() -> File {
    static FILE: std::sync::OnceLock<File> = std::sync::OnceLock::new();
    copy(FILE.get_or_init(lived_in))
}

#[test]
fn foreign_and_unfinished_and_of_another_version() {
    for magic in
        [0, 1, MAGIC ^ 1, MAGIC.swap_bytes(), u64::MAX, u64::from_le_bytes(*b"\x7fELF\x02\x01\x01\0")]
    {
        let file = lived_in_once();
        set_word(&file, 0, magic);
        assert!(
            matches!(Segment::open(&file, Access::Read), Err(OpenError::Foreign { found }) if found == magic)
        );
    }
    for (major, minor) in [(0, 0), (0, 9), (1, 0), (3, 0), (u16::MAX, 0)] {
        let file = lived_in_once();
        set_word(&file, 1, u64::from(major) << 16 | minor);
        forge_checksum(&file);
        let refused = Segment::open(&file, Access::Read).unwrap_err();
        assert!(
            matches!(refused, OpenError::Version { found_major, .. } if found_major == major),
            "{refused}"
        );
    }
    let file = lived_in_once();
    set_word(&file, 1, 2 << 16 | 77);
    forge_checksum(&file);
    assert!(exercise(&file) > 30, "every minor of our major is read");
    let file = lived_in_once();
    set_word(&file, 2, CAPACITY * 2);
    assert!(matches!(Segment::open(&file, Access::Read), Err(OpenError::Checksum { .. })));
}

#[test]
fn every_header_field_at_every_extreme_with_a_true_checksum() {
    let _dog = Watchdog::guard("every_header_field_at_every_extreme_with_a_true_checksum");
    let mut refused = 0;
    let texts = [64, 66, 69, 511];
    for at in (1..15).chain(texts) {
        let now = word(&lived_in_once(), at);
        let neighbours = [now.wrapping_sub(1), now.wrapping_add(1), now * 2, now / 2, now | 1 << 63];
        for value in EXTREMES.iter().chain(&neighbours) {
            let file = lived_in_once();
            set_word(&file, at, *value);
            forge_checksum(&file);
            refused += usize::from(Segment::open(&file, Access::Read).is_err());
            exercise(&file);
        }
    }
    assert!(refused > 150, "only {refused} refused");
}

#[test]
fn every_living_word_at_every_extreme() {
    let _dog = Watchdog::guard("every_living_word_at_every_extreme");
    let states = [State::Active, State::Recovering, State::Closed, State::Superseded]
        .into_iter()
        .flat_map(|state| [0, 1, u64::MAX >> 8].map(|epoch| state.pack(epoch)));
    let words = [FRONTIER, STATE, LAZY_PUBLISHED, LAZY_TIME, LAZY_KEY, LAZY_BYTES];
    let near = |at: usize| {
        let now = word(&lived_in_once(), at as u64);
        [now - 1, now + 1, now + 64, now - 64.min(now), now + CAPACITY, now.saturating_sub(CAPACITY)]
    };
    for at in words {
        for value in EXTREMES.iter().copied().chain(states.clone()).chain(near(at)) {
            let file = lived_in_once();
            set_word(&file, at as u64, value);
            exercise(&file);
        }
    }
}

/// The error of a writer that takes a segment. Every byte of the segment must stay as it was.
fn refused(damage: impl FnOnce(&File)) -> TakeOverError {
    let file = lived_in_once();
    damage(&file);
    let bytes = || {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    let before = bytes();
    let error = Segment::open(&file, Access::Write).unwrap().writer(1, 2).unwrap_err();
    assert!(bytes() == before, "{error}: yet something was written");
    error
}

#[test]
fn a_count_beyond_all_sequences_is_not_gone_on_from() {
    for count in [MAX_SEQUENCE, MAX_COUNT, MAX_COUNT + 1, u64::MAX] {
        let damage = |file: &File| {
            set_word(file, LAZY_PUBLISHED as u64, count);
            // Nothing stands where the forged count leads.
            file.write_all_at(&vec![0; (ENTRIES * 8 + CAPACITY) as usize], INDEX * 8).unwrap();
            set_word(file, FRONTIER as u64, 64);
        };
        let error = refused(damage);
        assert!(
            matches!(error, TakeOverError::Locate(LocateError::Corrupt(corrupt)) if corrupt.word == count),
            "{error}"
        );
    }
}

#[test]
fn a_segment_that_was_given_up_is_not_brought_back_to_life() {
    let damage = |file: &File| Segment::open(file, Access::Write).unwrap().supersede();
    assert_eq!(refused(damage), TakeOverError::Superseded);
}

#[test]
fn frontier_lazy_line_state_and_index_conspire() {
    let _dog = Watchdog::guard("frontier_lazy_line_state_and_index_conspire");
    const SOME: &[u64] = &[0, 1, 64, CAPACITY, CAPACITY + 64, (1 << 62) - 64, 1 << 62, u64::MAX];
    for frontier in SOME {
        for published in SOME {
            for position in SOME {
                for state in [0, State::Active.pack(1), State::Closed.pack(9)] {
                    let (file, _) = segment();
                    set_word(&file, FRONTIER as u64, *frontier);
                    set_word(&file, LAZY_PUBLISHED as u64, *published);
                    set_word(&file, STATE as u64, state);
                    file.write_all_at(&position.to_le_bytes().repeat(ENTRIES as usize), INDEX * 8).unwrap();
                    exercise(&file);
                }
            }
        }
    }
}

/// Fills every granule with the same commit word and body, and puts the frontier wherever it can hurt.
fn ring_of(commit: impl Fn(u64) -> u64, body: [u64; 3]) {
    let granule = |number| {
        let words = [commit(number), 0, body[0], body[1], body[2], 0, 0, 0];
        words.map(u64::to_le_bytes).concat()
    };
    let ring: Vec<u8> = (0..ENTRIES).flat_map(granule).collect();
    for frontier in EXTREMES {
        let (file, _) = segment();
        file.write_all_at(&ring, DATA * 8).unwrap();
        set_word(&file, FRONTIER as u64, *frontier);
        set_word(&file, STATE as u64, State::Active.pack(1));
        exercise(&file);
    }
}

#[test]
fn rings_of_nothing_but_pads() {
    let _dog = Watchdog::guard("rings_of_nothing_but_pads");
    ring_of(|_| Commit::new(1, Flags::PAD, 48).word(), [0; 3]);
    ring_of(|_| Commit::new(1, Flags::PAD, CAPACITY - 16).word(), [0; 3]);
    ring_of(|granule| Commit::new(1, Flags::PAD, CAPACITY - granule * 64 - 16).word(), [0; 3]);
    ring_of(|_| Commit::new(1, Flags::PAD.and(Flags::CONTROL), CAPACITY - 16).word(), [3, 1, 1 << 40]);
}

#[test]
fn rings_of_nothing_but_control_records() {
    let _dog = Watchdog::guard("rings_of_nothing_but_control_records");
    for low in [0, 1, 2, u64::from(u32::MAX)] {
        let commit = |_| Commit::new(low, Flags::CONTROL, ControlRecord::BYTES).word();
        for body in [
            [0, 0, 0],
            [1, u64::MAX, 0],
            [2, 0, 0],
            [3, 1, 1],
            [3, 1, u64::MAX],
            [3, 0, (1 << 62) - 1],
            [3, low, (1 << 32) + low - 1],
            [4, u64::MAX, u64::MAX],
            [u64::MAX; 3],
        ] {
            ring_of(commit, body);
        }
    }
}

#[test]
fn rings_of_nothing_but_messages() {
    let _dog = Watchdog::guard("rings_of_nothing_but_messages");
    for flags in [Flags::VALID, Flags::KEY] {
        ring_of(|granule| Commit::new(granule + 1, flags, 0).word(), [0; 3]);
        ring_of(|granule| Commit::new(granule / 2 + 1, flags, 112).word(), [0; 3]);
        ring_of(|_| Commit::new(1, flags, (1 << 25) - 1).word(), [0; 3]);
    }
    ring_of(|_| u64::MAX, [u64::MAX; 3]);
}

#[test]
fn scribbled_over_while_reading() {
    let _dog = Watchdog::guard("scribbled_over_while_reading");
    let file = lived_in_once();
    let segment = Segment::open(&file, Access::Read).unwrap();
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 1u64;
            while !enough.load(Ordering::Relaxed) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = match state >> 61 {
                    0 => FRONTIER as u64,
                    1 => LAZY_PUBLISHED as u64,
                    2 | 3 => INDEX + (state >> 20) % ENTRIES,
                    _ => DATA + (state >> 20) % ENTRIES * 8,
                };
                let value = match state >> 33 & 3 {
                    0 => (state >> 35) % (3 * CAPACITY),
                    1 => Commit::new(state >> 35 & 0xff, Flags::CONTROL, 24).word(),
                    2 => Commit::new(state >> 35 & 0xff, Flags::PAD, state >> 43 & 0xffff).word(),
                    _ => Commit::new(state >> 35 & 0x1ff, Flags::VALID, state >> 45 & 0x7ff).word(),
                };
                set_word(&file, at, value);
            }
        });
        for _ in 0..300 {
            let locator = segment.locator();
            let _ = locator.tail_bound();
            for place in [locator.tail(), locator.oldest(), locator.seek(100)] {
                let place = match place {
                    Ok(place) => place,
                    Err(LocateError::Corrupt(_)) => continue,
                    Err(_) => Place::START,
                };
                let mut reader = segment.reader(place);
                let mut out = [0; 4000];
                for _ in 0..200 {
                    if reader.poll(&mut out) == Poll::Lapped {
                        let _ = reader.resume(Resume::Oldest);
                    }
                }
            }
        }
        enough.store(true, Ordering::Relaxed);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_no_segment(bytes in proptest::collection::vec(any::<u8>(), 0..20_000)) {
        let file = nameless();
        file.write_all_at(&bytes, 0).unwrap();
        prop_assert!(Segment::open(&file, Access::Read).is_err());
    }

    #[test]
    fn a_true_header_over_random_words(seed in any::<u64>(), frontier in 0..4 * CAPACITY, published in 0..4000u64) {
        let (file, _) = segment();
        let mut state = seed;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 7
        };
        let mut bytes = Vec::new();
        for _ in 0..ENTRIES {
            bytes.extend(((random() % (4 * CAPACITY)) & !63).to_le_bytes());
        }
        for _ in 0..CAPACITY / 8 {
            bytes.extend((random() >> (random() % 57)).to_le_bytes());
        }
        file.write_all_at(&bytes, INDEX * 8).unwrap();
        set_word(&file, FRONTIER as u64, frontier & !63);
        set_word(&file, LAZY_PUBLISHED as u64, published);
        set_word(&file, STATE as u64, State::Active.pack(3));
        exercise(&file);
    }

    #[test]
    fn a_lived_in_segment_with_random_damage(
        damage in proptest::collection::vec((0..INDEX + ENTRIES + CAPACITY / 8, any::<u64>(), 0..64u32), 1..12),
        anywhere in any::<bool>(),
    ) {
        let file = lived_in_once();
        for (at, value, shift) in damage {
            // Half of the cases aim where records begin.
            let at = if anywhere || at < DATA { at } else { DATA + (at - DATA) / 8 * 8 };
            let old = word(&file, at);
            set_word(&file, at, if value % 2 == 0 { old ^ 1 << shift } else { value >> shift });
        }
        forge_checksum(&file);
        exercise(&file);
    }
}
