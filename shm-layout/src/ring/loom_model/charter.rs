//! A loom model of the charter and a ring. The daemon ends a generation of the channel, while the publisher of this generation publishes in
//! the ring and readers read the ring.

use super::story::{Do, Story, explore};
use crate::charter::{Charter, Entry, HostCharter};
use crate::fault::mutant;
use crate::layout::charter::{Verdict, WORDS};
use crate::layout::geometry::GRANULE;
use crate::ring::cells::Cells;
use crate::ring::locate::{Locator, Place};
use crate::ring::reader::{Poll, Reader};
use loom::thread;

const FIRST: u64 = 1;

fn charter() -> HostCharter {
    let mut charter = HostCharter::begin(Cells::zeroed(WORDS), "t", [0; 2]);
    charter.go_on(Entry { generation: FIRST, first: 1, ..Entry::default() }, 0, false);
    charter
}

/// Ends the generation at the tail of the ring, so that every committed record stays valid. If the tail is unknown, the generation stays
/// open.
fn cut(mut charter: HostCharter, locator: &Locator) -> Option<u64> {
    let too_early = mutant!("tail_before_closing").then(|| locator.tail_bound());
    charter.close();
    match too_early.unwrap_or_else(|| locator.tail_bound()) {
        Ok(bound) => {
            let below = bound.next_sequence();
            charter.go_on(Entry { generation: FIRST + 1, first: below, ..Entry::default() }, below, false);
            Some(below)
        }
        Err(_) => {
            charter.reopen();
            None
        }
    }
}

/// Reads as a subscriber of a strict channel does: before it returns a message, the charter must say that the message is valid. If the
/// daemon has not decided yet, the reader tries again later.
fn hear(reader: &mut Reader, charter: &Charter, polls: usize, heard: &mut Vec<u64>) {
    let mut out = [0; GRANULE as usize];
    for _ in 0..polls {
        let before = reader.place();
        let Poll::Message(copied) = reader.poll(&mut out) else { return };
        let is_valid = match charter.verdict_on_read(FIRST) {
            Verdict::Open => true,
            Verdict::Closing => false,
            Verdict::Cut { below, .. } => copied.sequence < below,
        };
        if !is_valid {
            reader.jump(before);
            return;
        }
        heard.push(copied.sequence);
    }
}

/// Checks that no reader has a message at or above the cut, and that each reader has all messages below the cut.
fn check(heard: &[u64], below: Option<u64>, published: u64) {
    let expected: Vec<u64> = (1..below.unwrap_or(published + 1).min(published + 1)).collect();
    assert!(heard == expected, "the ring is broken: heard {heard:?}, valid are {expected:?}");
}

fn cut_beside(name: &str, readers: usize, acts: &'static [Do]) {
    explore(name, 2, move || {
        let mut story = Story::begin();
        let host = charter();
        let view = host.view();
        let (cells, geometry) = story.ring();
        let reading = (0..readers).map(|_| {
            let (cells, view) = (cells.clone(), view.clone());
            thread::spawn(move || {
                let mut reader = Reader::new(cells, geometry, Place::START);
                let mut heard = Vec::new();
                hear(&mut reader, &view, 2, &mut heard);
                (reader, heard)
            })
        });
        let reading: Vec<_> = reading.collect();
        let locator = Locator::new(cells.clone(), geometry);
        let cutting = thread::spawn(move || cut(host, &locator));
        story.acts(acts);
        let below = cutting.join().expect("daemons do not panic");
        for reader in reading {
            let (mut reader, mut heard) = reader.join().expect("readers do not panic");
            // The verdict on every withheld message is known by now.
            hear(&mut reader, &view, acts.len(), &mut heard);
            check(&heard, below, acts.len() as u64);
        }
    });
}

#[test]
fn a_message_is_valid_for_all_readers_or_for_none() {
    cut_beside("a_message_is_valid_for_all_readers_or_for_none", 1, &[Do::Publish(8, 0)]);
}

#[test]
#[ignore = "takes a minute: a step of CI: proof"]
fn two_messages_around_a_cut() {
    cut_beside("two_messages_around_a_cut", 1, &[Do::Tick, Do::Tick]);
}

#[test]
#[ignore = "takes a minute: a step of CI: proof"]
fn two_readers_around_a_cut() {
    cut_beside("two_readers_around_a_cut", 2, &[Do::Publish(8, 0)]);
}

/// The daemon dies while the verdict is *closing*, and the next daemon opens the generation again.
#[test]
fn closing_that_is_taken_back_loses_nothing() {
    explore("closing_that_is_taken_back_loses_nothing", 2, || {
        let mut story = Story::begin();
        let host = charter();
        let view = host.view();
        let (cells, geometry) = story.ring();
        let reading = {
            let view = view.clone();
            thread::spawn(move || {
                let mut reader = Reader::new(cells, geometry, Place::START);
                let mut heard = Vec::new();
                hear(&mut reader, &view, 2, &mut heard);
                (reader, heard)
            })
        };
        let cutting = thread::spawn(move || {
            host.close();
            host.reopen();
        });
        story.act(Do::Publish(8, 0));
        cutting.join().expect("daemons do not panic");
        let (mut reader, mut heard) = reading.join().expect("readers do not panic");
        hear(&mut reader, &view, 1, &mut heard);
        check(&heard, None, 1);
    });
}
