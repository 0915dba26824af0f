//! Models of the protocol for loom, which tries every order of steps and every stale value that the memory model allows.
//!
//! Each model is a [`Story`] of one writer and its readers. All demands of the story must hold in all executions. `tests/loom.rs` runs the
//! models. It runs them again for each mutant of the protocol, and each mutant must break at least one model.

mod board;
mod charter;
mod gate;
mod story;

use crate::layout::geometry::GRANULE;
use crate::ring::locate::{LocateError, Locator, Miss, Place};
use crate::ring::reader::Resume;
use story::{Do, LONG, Story, Watch, explore};

#[test]
fn publish_and_read() {
    explore("publish_and_read", 2, || {
        let mut story = Story::begin();
        let reader = story.read_from(Place::START, 3, None);
        story.acts(&[Do::Publish(16, 0), Do::Publish(LONG, 2)]);
        story.check(reader);
    });
}

#[test]
fn padded_at_the_end_of_the_ring() {
    explore("padded_at_the_end_of_the_ring", 2, || {
        let mut story = Story::begin();
        story.acts(&[Do::Publish(LONG, 3), Do::Tick]);
        let reader = story.read_from(story.place(), 3, None);
        story.acts(&[Do::Publish(LONG, 4), Do::Tick]);
        story.check(reader);
    });
}

#[test]
fn two_readers() {
    explore("two_readers", 1, || {
        let mut story = Story::begin();
        let readers = [(); 2].map(|()| story.read_from(Place::START, 2, None));
        story.acts(&[Do::Publish(8, 0), Do::Tick]);
        for reader in readers {
            story.check(reader);
        }
    });
}

/// A reader waits for the next record. At the reader's position, the ring still has payload of the previous lap.
#[test]
fn old_payload_at_the_tail() {
    explore("old_payload_at_the_tail", 2, || {
        let mut story = Story::begin();
        story.acts(&[Do::Publish(LONG, 5), Do::Tick, Do::Tick]);
        let reader = story.read_from(story.place(), 3, None);
        story.acts(&[Do::Tick, Do::Tick]);
        story.check(reader);
    });
}

#[test]
fn lapped_while_copying() {
    explore("lapped_while_copying", 2, || {
        let mut story = Story::begin();
        story.acts(&[Do::Publish(LONG, 4), Do::Tick]);
        let reader = story.read_from(Place::START, 2, None);
        story.acts(&[Do::Tick, Do::Publish(LONG, 4)]);
        story.check(reader);
    });
}

/// A reader knows of two records only from the lazy line (the count of messages, which the writer updates rarely), and copies both records
/// together.
#[test]
fn taken_together() {
    explore("taken_together", 2, || {
        let mut story = Story::begin();
        let reader = story.take_from(Place::START);
        story.acts(&[Do::Publish(16, 0), Do::Publish(8, 0), Do::Tick]);
        story.check(reader);
    });
}

/// A reader copies two records together while the writer overwrites both. The writer overwrites the second record last. Only the reader's
/// check of the frontier shows that the copy can be torn.
#[test]
fn lapped_while_taking_together() {
    explore("lapped_while_taking_together", 2, || {
        let mut story = Story::begin();
        story.acts(&[Do::Publish(16, 0), Do::Publish(8, 0)]);
        let reader = story.take_from(Place::START);
        story.acts(&[Do::Tick, Do::Publish(16, 0), Do::Publish(16, 0)]);
        story.check(reader);
    });
}

/// The lazy line also counts the sequences of a gap, which have no records.
#[test]
fn taken_together_around_a_gap() {
    explore("taken_together_around_a_gap", 1, || {
        let mut story = Story::begin();
        story.act(Do::Publish(16, 0));
        let reader = story.take_from(Place::START);
        story.acts(&[Do::Gap { to: 5 }, Do::Publish(8, 0)]);
        story.check(reader);
    });
}

#[test]
fn lapped_and_resumed() {
    for policy in [Resume::Oldest, Resume::Latest, Resume::Key] {
        explore("lapped_and_resumed", 1, move || {
            let mut story = Story::begin();
            story.acts(&[Do::Tick, Do::Tick]);
            let reader = story.read_from(Place::START, 3, Some(policy));
            story.acts(&[Do::Tick, Do::Publish(8, 0), Do::Tick]);
            story.check(reader);
        });
    }
}

#[test]
fn joined_at_the_tail() {
    explore("joined_at_the_tail", 2, || {
        let mut story = Story::begin();
        story.act(Do::Tick);
        let reader = story.join(2, Locator::tail);
        story.acts(&[Do::Publish(LONG, 3), Do::Tick]);
        story.check(reader);
    });
}

/// A control record or a pad begins where the next message would have begun. The index entry of that message then gets the position after
/// the record or the pad.
#[test]
fn joined_behind_a_control_record() {
    explore("joined_behind_a_control_record", 2, || {
        let mut story = Story::begin();
        story.acts(&[Do::Publish(LONG, 4), Do::Tick, Do::Tick]);
        let reader = story.join(2, Locator::tail);
        story.acts(&[Do::Session, Do::Tick]);
        story.check(reader);
    });
}

#[test]
fn joined_while_the_index_is_reused() {
    explore("joined_while_the_index_is_reused", 1, || {
        let mut story = Story::begin();
        let reader = story.join(1, Locator::tail);
        story.acts(&[Do::Tick, Do::Tick, Do::Tick, Do::Tick]);
        story.check(reader);
    });
}

#[test]
fn joined_at_the_oldest() {
    explore("joined_at_the_oldest", 1, || {
        let mut story = Story::begin();
        story.acts(&[Do::Tick, Do::Tick]);
        let reader = story.join(2, Locator::oldest);
        story.acts(&[Do::Tick, Do::Tick, Do::Tick]);
        story.check(reader);
    });
}

#[test]
fn sought_while_publishing() {
    for sequence in [2, 4, 6] {
        explore("sought_while_publishing", 1, move || {
            let mut story = Story::begin();
            story.acts(&[Do::Tick, Do::Tick]);
            let reader = story.join(2, move |locator| locator.seek(sequence));
            story.acts(&[Do::Tick, Do::Tick, Do::Tick]);
            story.check(reader);
        });
    }
}

#[test]
fn joined_around_a_gap() {
    // The index has room for the first gap. The second gap uses all entries. After the third gap, the next sequence has the entry of the
    // gap's first sequence.
    for to in [3, 9, 5] {
        explore("joined_around_a_gap", 1, move || {
            let mut story = Story::begin();
            story.act(Do::Tick);
            let reader = story.join(2, Locator::tail);
            story.acts(&[Do::Gap { to }, Do::Tick]);
            story.check(reader);
        });
    }
}

#[test]
fn sought_around_a_gap() {
    for (to, sequence) in [(3, 1), (3, 3), (9, 1), (9, 2), (5, 5), (5, 6)] {
        explore("sought_around_a_gap", 0, move || {
            let mut story = Story::begin();
            story.act(Do::Tick);
            let reader = story.join(2, move |locator| locator.seek(sequence));
            story.acts(&[Do::Gap { to }, Do::Tick]);
            story.check(reader);
        });
    }
}

/// A walk reads a gap record, while the writer overwrites the gap's words with those of another record.
#[test]
fn lapped_while_walking() {
    explore("lapped_while_walking", 1, || {
        let mut story = Story::begin();
        story.act(Do::Gap { to: 2 });
        let reader = story.join(1, |locator| match locator.walk(Place::START, u64::MAX, 8) {
            Ok((place, _)) => Ok(place),
            Err(Miss::Corrupt(corrupt)) => Err(corrupt.into()),
            Err(Miss::Overrun) => Err(LocateError::NotYet { sequence: 0, next: 0 }),
        });
        story.acts(&[Do::Tick, Do::Tick, Do::Tick, Do::ForgeGap { from: 1, to: 6 }]);
        story.check(reader);
    });
}

/// While a reader reads the words of a gap, the writer overwrites them with the words of a forged gap. The commit words of both gaps are
/// equal, because a commit word has only the low 32 bits of a sequence. No record of the ring has the first sequence of the forged gap.
#[test]
fn lapped_while_seeking() {
    const HIGH: u64 = 1 << 32;
    explore("lapped_while_seeking", 0, || {
        let mut story = Story::begin();
        story.acts(&[Do::Gap { to: 3 * HIGH }, Do::Gap { to: 3 * HIGH + 4 }]);
        let reader = story.join(1, |locator| locator.seek(3 * HIGH + 2));
        let forged = Do::ForgeGap { from: 2 * HIGH + 1, to: 3 * HIGH + 4 };
        story.acts(&[Do::Tick, Do::Tick, Do::Tick, forged]);
        story.check(reader);
    });
}

#[test]
fn the_end_comes_last() {
    explore("the_end_comes_last", 2, || {
        let mut story = Story::begin();
        let reader = story.read_from(Place::START, 3, None);
        story.acts(&[Do::Publish(8, 0), Do::Close]);
        story.check(reader);
    });
}

/// The zero at the position of a lapped reader belongs to a later lap. So the reader has not reached the end, although the state is
/// *closed*.
#[test]
fn lapped_at_the_end() {
    explore("lapped_at_the_end", 1, || {
        let mut story = Story::begin();
        story.act(Do::Tick);
        let reader = story.read_from(story.place(), 2, Some(Resume::Latest));
        story.acts(&[Do::Tick, Do::Tick, Do::Tick, Do::Close]);
        story.check(reader);
    });
}

#[test]
fn closed_and_opened_again() {
    explore("closed_and_opened_again", 0, || {
        let story = Story::begin();
        let watch = story.reading(Place::START, 4, None);
        let (mut story, reader) = story.lives(watch, |story| story.act(Do::Close));
        story.take_over();
        story.act(Do::Tick);
        story.check(reader);
    });
}

/// For each store of `life`, the writer dies right before the store. A successor then takes over and publishes one more message. The reader
/// attaches before the writer's death.
fn every_death(
    name: &'static str,
    before: &'static [Do],
    life: impl Fn(&mut Story, u32) -> bool + Send + Sync + Copy + 'static,
    watch: impl Fn(&Story) -> Watch + Send + Sync + Copy + 'static,
) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    for stores in 0.. {
        let died = Arc::new(AtomicBool::new(false));
        let report = died.clone();
        explore(&format!("{name}, killed before store {stores}"), 0, move || {
            let mut story = Story::begin();
            story.acts(before);
            let watch = watch(&story);
            let report = report.clone();
            let (mut story, reader) = story.lives(watch, move |story| {
                report.store(life(story, stores), Ordering::Relaxed);
            });
            story.take_over();
            story.act(Do::Tick);
            story.check(reader);
        });
        if !died.load(Ordering::Relaxed) {
            assert!(stores > 4, "hardly a life");
            return;
        }
    }
}

fn at_the_tail(story: &Story) -> Watch {
    story.reading(story.place(), 4, None)
}

fn joining(story: &Story) -> Watch {
    story.joining(2, Locator::tail)
}

/// The dead writer left a record half written above the tail. No reader must accept this record, even if it looks complete.
#[test]
fn takeover_from_a_publisher() {
    let life = |story: &mut Story, stores| story.die(Do::Publish(LONG, 2), stores);
    every_death("takeover_from_a_publisher", &[Do::Tick], life, at_the_tail);
}

#[test]
#[ignore = "takes a minute: a step of CI: proof"]
fn takeover_after_a_pad() {
    let life = |story: &mut Story, stores| story.die(Do::Publish(LONG, 3), stores);
    every_death("takeover_after_a_pad", &[Do::Publish(LONG, 3), Do::Tick], life, at_the_tail);
}

/// The successor cleans granules while a reader that is a lap behind copies them.
#[test]
fn takeover_while_copying() {
    const BEFORE: &[Do] = &[Do::Tick, Do::Publish(LONG, 4), Do::Tick];
    let life = |story: &mut Story, stores| story.die(Do::Publish(LONG, 4), stores);
    let watch = |story: &Story| story.reading(Place { position: GRANULE, sequence: 2 }, 1, None);
    every_death("takeover_while_copying", BEFORE, life, watch);
}

#[test]
fn takeover_while_joining() {
    let life = |story: &mut Story, stores| story.die(Do::Publish(LONG, 2), stores);
    every_death("takeover_while_joining", &[Do::Tick], life, joining);
}

#[test]
#[ignore = "takes a minute: a step of CI: proof"]
fn takeover_while_lapped() {
    let life = |story: &mut Story, stores| story.die(Do::Tick, stores);
    let watch = |story: &Story| story.reading(Place::START, 3, Some(Resume::Oldest));
    every_death("takeover_while_lapped", &[Do::Tick, Do::Tick, Do::Tick], life, watch);
}

#[test]
fn takeover_from_a_gap() {
    let life = |story: &mut Story, stores| story.die(Do::Gap { to: 3 }, stores);
    every_death("takeover_from_a_gap", &[Do::Tick], life, at_the_tail);
}

/// The gap is so long that the index wraps. Two sequences then have the same entry: the sequence at the tail, and the next sequence
/// according to the lazy line (the writer's count of messages, which it updates rarely).
#[test]
#[ignore = "takes a minute: a step of CI: proof"]
fn takeover_from_a_gap_while_joining() {
    let life = |story: &mut Story, stores| story.die(Do::Gap { to: 5 }, stores);
    every_death("takeover_from_a_gap_while_joining", &[Do::Tick], life, joining);
}

#[test]
fn takeover_from_a_closing_publisher() {
    let life = |story: &mut Story, stores| story.die(Do::Close, stores);
    every_death("takeover_from_a_closing_publisher", &[Do::Tick], life, at_the_tail);
}

#[test]
fn takeover_from_a_successor() {
    every_death("takeover_from_a_successor", &[Do::Tick], Story::die_taking, at_the_tail);
}
