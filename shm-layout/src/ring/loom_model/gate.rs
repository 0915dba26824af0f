//! A gate: a reader that the writer waits for. While the gate is in force, its reader is never lapped and sees every record.

use super::story::{Do, LONG, Story, explore};
use crate::gate::{GatePage, look};
use crate::layout::gate::WORDS;
use crate::layout::geometry::GRANULE;
use crate::ring::cells::Cells;
use crate::ring::locate::Place;

const SEGMENT: [u64; 2] = [7, 8];
/// The largest lag of the gate is the whole ring. This is the greatest value with which the gate's reader is never lapped.
const LAG: u64 = 4 * GRANULE;

/// The writer never stores beyond the position of the gate's reader plus the lag. If the reader is not far enough, the writer gives up the
/// message and all later ones. In other executions the reader is further ahead.
fn gated(name: &'static str, before: &'static [Do], acts: &'static [Do], polls: usize) {
    explore(name, 2, move || {
        let mut story = Story::begin();
        story.acts(before);
        let words = Cells::zeroed(WORDS);
        let page = GatePage::begin(words.clone(), 1, SEGMENT);
        let start = story.place();
        page.passed(start);
        let reader = story.read_gated(start, polls, page);
        for task in acts {
            let passed = look(&words, SEGMENT).unwrap_or(start.position);
            if !story.act_below(passed + LAG, *task) {
                break;
            }
        }
        story.check(reader);
    });
}

#[test]
fn gated_reader_is_never_lapped() {
    gated("gated_reader_is_never_lapped", &[], &[Do::Publish(8, 0), Do::Tick, Do::Tick, Do::Tick], 4);
}

/// The bound also holds for a pad before a record.
#[test]
fn gated_at_the_end_of_the_ring() {
    gated("gated_at_the_end_of_the_ring", &[Do::Tick], &[Do::Tick, Do::Tick, Do::Publish(LONG, 3)], 3);
}

/// The writer of the page changes two words one after the other. A process that reads the page between the two stores finds no position.
#[test]
fn gated_from_the_middle_of_a_lap() {
    gated(
        "gated_from_the_middle_of_a_lap",
        &[Do::Publish(LONG, 2), Do::Tick],
        &[Do::Publish(LONG, 4), Do::Tick],
        2,
    );
}

#[test]
fn a_page_says_nothing_before_its_reader_does() {
    explore("a_page_says_nothing_before_its_reader_does", 2, || {
        let words = Cells::zeroed(WORDS);
        let page = GatePage::begin(words.clone(), 1, SEGMENT);
        let reader = loom::thread::spawn(move || page.passed(Place { position: 640, sequence: 9 }));
        let claimed = look(&words, SEGMENT);
        assert!(claimed.is_none_or(|position| position == 640), "the ring is broken: {claimed:?}");
        reader.join().expect("readers do not panic");
        assert_eq!(look(&words, SEGMENT), Some(640), "the ring is broken");
    });
}
