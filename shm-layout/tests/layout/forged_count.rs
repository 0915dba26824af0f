//! A successor does not go on from a count of messages that no record confirms.

use crate::common::{segment, set_word, word};
use shmcast_layout::layout::geometry::MAX_SEQUENCE;
use shmcast_layout::layout::header::LAZY_PUBLISHED;
use shmcast_layout::ring::locate::LocateError;
use shmcast_layout::ring::writer::{TakeOverError, Writer};
use shmcast_layout::segment::{Access, Segment};
use std::fs::File;
use std::os::unix::fs::FileExt;

const ENTRIES: u64 = 1024;

/// The acts of a predecessor.
type Life = fn(&mut Writer);

/// The segment that a predecessor left.
fn pasts() -> Vec<(&'static str, Life)> {
    fn messages(writer: &mut Writer, count: u64, length: usize) {
        (0..count).for_each(|_| _ = writer.publish(&vec![9; length], 0, false, 0).unwrap());
    }
    vec![
        ("nothing", |_| {}),
        ("five messages", |writer| messages(writer, 5, 40)),
        ("a whole count of messages", |writer| messages(writer, 64, 40)),
        ("laps", |writer| messages(writer, 5000, 300)),
        ("large messages", |writer| messages(writer, 20, 8000)),
        ("a closed ring", |writer| {
            messages(writer, 7, 40);
            writer.close(0);
        }),
        ("a gap", |writer| {
            messages(writer, 7, 40);
            writer.gap(5000, 0).unwrap();
        }),
        ("a session after a gap", |writer| {
            writer.gap(5000, 0).unwrap();
            writer.session([1; 10], 0);
        }),
    ]
}

fn bytes(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_successor_never_goes_on_from_a_count_that_no_record_confirms() {
    for (past, live) in pasts() {
        for first in [1, 101] {
            let (file, segment) = segment();
            segment.continue_from(first, u64::from(first > 1), 0);
            let mut writer = segment.writer(1, 0).unwrap();
            live(&mut writer);
            let next = writer.next_sequence();
            let counted = word(&file, LAZY_PUBLISHED as u64);
            // The tail's own entry in the index is also that of sequences a multiple of its entries away. Of those that are
            // a multiple of 2^32 away, records have the same low half: these cannot be told.
            let aliases = [1, 2, 17, 1 << 20, (1 << 30) + 1].map(|times| next - 1 + times * ENTRIES);
            let others = [next, next + 1, next + 500, MAX_SEQUENCE - 1, MAX_SEQUENCE, u64::MAX];
            for forged in aliases.into_iter().chain(others) {
                set_word(&file, LAZY_PUBLISHED as u64, forged);
                let before = bytes(&file);
                match Segment::open(&file, Access::Write).unwrap().writer(2, 0) {
                    Err(TakeOverError::Locate(LocateError::Corrupt(corrupt))) => {
                        let advice = corrupt.to_string();
                        assert!(advice.contains("remove the channel"), "{advice}");
                    }
                    other => panic!("{past}, first {first}: went on from {forged} after {next}: {other:?}"),
                }
                assert!(bytes(&file) == before, "{past}: who refuses changes nothing");
            }
            set_word(&file, LAZY_PUBLISHED as u64, counted);
            assert_eq!(segment.writer(2, 0).unwrap().next_sequence(), next, "{past}: as it was");
        }
    }
}

#[test]
fn a_count_from_before_the_ring_is_no_place_to_go_on_from() {
    let (file, segment) = segment();
    segment.continue_from(101, 1, 0);
    for forged in [0, 1, 98, 99] {
        set_word(&file, LAZY_PUBLISHED as u64, forged);
        assert!(segment.writer(2, 0).is_err(), "{forged}");
    }
}

/// The segment was opened and closed so often that no message is left to count from.
#[test]
fn a_ring_of_control_records_alone_is_gone_on_with() {
    for published in [0, 3] {
        let (_file, segment) = segment();
        (0..published).for_each(|_| _ = segment.writer(1, 0).unwrap().publish(b"x", 0, false, 0).unwrap());
        for round in 0..1500 {
            let mut writer = segment.writer(1, 0).unwrap_or_else(|e| panic!("round {round}: {e}"));
            assert_eq!(writer.next_sequence(), published + 1);
            writer.close(0);
        }
    }
}
