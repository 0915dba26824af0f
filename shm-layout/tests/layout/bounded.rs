//! A writer with a bound: the frontier stays below the bound, and a message that is refused leaves no trace.

use crate::common::{header, nameless, word};
use proptest::prelude::*;
use shmcast_layout::error::WriteError;
use shmcast_layout::layout::header::FRONTIER;
use shmcast_layout::segment::Segment;
use std::fs::File;
use std::io::{Read, Seek};

const CAPACITY: u64 = 64 << 10;

fn bytes(file: &File) -> Vec<u8> {
    let (mut file, mut bytes) = (file, Vec::new());
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_frontier_never_passes_the_bound_and_a_refusal_stores_nothing(
        steps in prop::collection::vec((prop_oneof![0..200u64, 0..=CAPACITY / 8], 0..CAPACITY), 1..300),
    ) {
        let file = nameless();
        let segment = Segment::create(&file, header(CAPACITY, None)).unwrap();
        let mut writer = segment.writer(1, 0).unwrap();
        let mut highest = word(&file, FRONTIER as u64);
        for (length, room) in steps {
            let bound = writer.position() + room;
            writer.set_bound(bound);
            let payload = vec![7; length as usize];
            let before = bytes(&file);
            match writer.publish(&payload, 0, false, 0) {
                Ok(_) => {}
                Err(WriteError::BeyondBound(beyond)) => {
                    prop_assert!(bytes(&file) == before, "a refusal left a trace");
                    prop_assert!(beyond.frontier > bound);
                    writer.set_bound(beyond.frontier);
                    highest = highest.max(beyond.frontier);
                    prop_assert!(writer.publish(&payload, 0, false, 0).is_ok(), "this bound is enough");
                }
                Err(other) => panic!("{other}"),
            }
            highest = highest.max(bound);
            let frontier = word(&file, FRONTIER as u64);
            prop_assert_eq!(frontier, writer.frontier());
            prop_assert!(frontier <= highest, "{} beyond {}", frontier, highest);
        }
    }
}

/// A gap, a session and an end cannot be refused. Each raises a bound that is too low.
#[test]
fn control_records_raise_the_bound() {
    let file = nameless();
    let segment = Segment::create(&file, header(CAPACITY, None)).unwrap();
    let mut writer = segment.writer(1, 0).unwrap();
    writer.set_bound(0);
    let mut raised = 0;
    for turn in 0..3 * CAPACITY / 64 {
        raised += u64::from(writer.control_beyond_bound().is_some());
        match turn % 2 {
            0 => writer.gap(writer.next_sequence(), 0).unwrap(),
            _ => writer.session([7; 10], 0),
        }
    }
    assert!(raised > 3, "once a chunk: {raised}");
    assert_eq!(writer.position(), 3 * CAPACITY);
}
