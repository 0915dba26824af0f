//! The tail of a ring, or its bound, while the publisher is at work or after another program wrote to the ring.

use crate::common::{EndOnDrop, Watchdog, header, nameless, segment, set_word, word};
use shmcast_layout::layout::geometry::{HEADER_BYTES, MAX_COUNT, MAX_SEQUENCE};
use shmcast_layout::layout::header::{FIRST_SEQUENCE, FRONTIER, LAZY_PUBLISHED};
use shmcast_layout::ring::bound::TailBound;
use shmcast_layout::ring::locate::Place;
use shmcast_layout::ring::writer::Writer;
use shmcast_layout::segment::{Access, Segment};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Checks the result of one call against a counter that the publisher keeps beside the ring.
fn bounded_while(capacity: u64, publish: impl Fn(&mut Writer) + Sync) -> [usize; 2] {
    let file = nameless();
    let segment = Segment::create(&file, header(capacity, None)).unwrap();
    let shown = Segment::open(&file, Access::Read).unwrap();
    let (next, enough) = (AtomicU64::new(1), AtomicBool::new(false));
    let mut kinds = [0, 0];
    std::thread::scope(|scope| {
        let _end = EndOnDrop(&enough);
        scope.spawn(|| {
            let mut writer = segment.writer(1, 0).unwrap();
            while !enough.load(Ordering::Relaxed) {
                publish(&mut writer);
                next.store(writer.next_sequence(), Ordering::Release);
            }
        });
        for _ in 0..300 {
            let before = next.load(Ordering::Acquire);
            let bound = shown.locator().tail_bound();
            let after = next.load(Ordering::Acquire);
            // The publisher may have done more that it has not counted yet: the next look at its counter tells.
            while next.load(Ordering::Acquire) == after {
                std::hint::spin_loop();
            }
            let most = next.load(Ordering::Acquire) + 65;
            match bound {
                Ok(bound) => {
                    let found = bound.next_sequence();
                    assert!((before..=most).contains(&found), "{before} <= {found} <= {most}: {bound:?}");
                    kinds[usize::from(matches!(bound, TailBound::AtMost { .. }))] += 1;
                }
                Err(corrupt) => panic!("a publisher that is fast is no damage: {corrupt}"),
            }
        }
    });
    println!("{} exact, {} at most", kinds[0], kinds[1]);
    kinds
}

#[test]
fn a_publisher_at_full_speed_cannot_make_the_bound_fail_or_fall_short() {
    let _dog = Watchdog::guard("a_publisher_at_full_speed_cannot_make_the_bound_fail_or_fall_short");
    for capacity in [64 << 10, 1 << 20] {
        for length in [0, 200, capacity / 8] {
            let payload = vec![7; length as usize];
            for key in [false, true] {
                bounded_while(capacity, |writer| {
                    writer.publish(&payload, 0, key, 0).unwrap();
                });
            }
        }
    }
}

/// Frontier and count run away in front of every search, as they do before a publisher that laps the ring all the time.
#[test]
fn a_ring_that_is_overrun_at_each_look_has_a_bound() {
    let _dog = Watchdog::guard("a_ring_that_is_overrun_at_each_look_has_a_bound");
    let (file, segment) = segment();
    segment.writer(1, 0).unwrap().publish(b"x", 0, false, 0).unwrap();
    set_word(&file, FRONTIER as u64, 1 << 30);
    // The lazy line counts the one message only with the next update.
    let counted = AtomicU64::new(segment.header_word(LAZY_PUBLISHED));
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = EndOnDrop(&enough);
        scope.spawn(|| {
            for count in 1.. {
                set_word(&file, FRONTIER as u64, (1 << 30) + count * 64);
                set_word(&file, LAZY_PUBLISHED as u64, count);
                counted.store(count, Ordering::Release);
                if enough.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let mut found = None;
        while found.is_none() {
            let before = counted.load(Ordering::Acquire);
            // An error if nothing changed meanwhile, since then it is no speed that kept the search from its end.
            let bound = segment.locator().tail_bound().ok();
            found = bound.map(|bound| (before, bound, counted.load(Ordering::Acquire)));
        }
        match found {
            Some((before, TailBound::AtMost { next }, after)) => {
                assert!(
                    (before + 65..after + 67).contains(&next),
                    "before {before}, next {next}, after {after}"
                )
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn gaps_at_full_speed_are_below_the_bound() {
    let _dog = Watchdog::guard("gaps_at_full_speed_are_below_the_bound");
    for length in [3, 1000, 100_000] {
        bounded_while(64 << 10, |writer| {
            writer.publish(b"x", 0, false, 0).unwrap();
            writer.gap(writer.next_sequence() + length, 0).unwrap();
        });
    }
}

fn bound_of(file: &File) -> Result<TailBound, shmcast_layout::error::Corrupt> {
    Segment::open(file, Access::Read).unwrap().locator().tail_bound()
}

#[test]
fn a_ring_at_rest_has_an_exact_tail_whatever_came_last() {
    type Step = fn(&mut Writer);
    let message: Step = |writer| _ = writer.publish(b"x", 0, false, 0);
    let large: Step = |writer| _ = writer.publish(&[1; 8000], 0, true, 0);
    let gap: Step = |writer| writer.gap(writer.next_sequence() + 5000, 0).unwrap();
    let session: Step = |writer| writer.session([1; 10], 0);
    let close: Step = |writer| writer.close(0);
    let (file, segment) = segment();
    assert_eq!(bound_of(&file), Ok(TailBound::Exact(Place::START)), "nobody has written");
    for round in 0..400 {
        let mut writer = segment.writer(1, 0).unwrap();
        for step in
            [session, message, large, gap, session, large, message, gap, message].iter().skip(round % 9)
        {
            step(&mut writer);
            let tail = Place { position: writer.position(), sequence: writer.next_sequence() };
            assert_eq!(bound_of(&file), Ok(TailBound::Exact(tail)));
        }
        close(&mut writer);
        let tail = Place { position: writer.position(), sequence: writer.next_sequence() };
        assert_eq!(bound_of(&file), Ok(TailBound::Exact(tail)));
    }
}

/// More control records than the ring holds, and no message among them to count from.
#[test]
fn a_ring_that_was_only_opened_and_closed_has_an_exact_tail() {
    for published in [0, 3] {
        let (file, segment) = segment();
        for _ in 0..published {
            segment.writer(1, 0).unwrap().publish(b"x", 0, false, 0).unwrap();
        }
        for _ in 0..1500 {
            segment.writer(1, 0).unwrap().close(0);
            assert_eq!(bound_of(&file).unwrap().next_sequence(), published + 1);
        }
    }
}

#[test]
fn a_forged_count_is_damage_and_no_jump() {
    for lived in [0_u64, 5, 64, 300, 5000] {
        let (file, segment) = segment();
        segment.continue_from(101, 1, 0);
        let mut writer = segment.writer(1, 0).unwrap();
        for _ in 0..lived {
            writer.publish(&[9; 100], 0, false, 0).unwrap();
        }
        let tail = Place { position: writer.position(), sequence: writer.next_sequence() };
        let published = word(&file, LAZY_PUBLISHED as u64);
        assert_eq!(bound_of(&file), Ok(TailBound::Exact(tail)));
        for forged in [
            0,
            1,
            50,
            99,
            1 << 20,
            1_000_003,
            1 << 40 | 77,
            MAX_SEQUENCE - 66,
            MAX_SEQUENCE - 1,
            MAX_SEQUENCE,
            MAX_COUNT,
            u64::MAX,
        ]
        .into_iter()
        .chain([1, 2, 63, 64, 65, 200, 1024, 1025, 4096].map(|by| published + 70 + by))
        {
            set_word(&file, LAZY_PUBLISHED as u64, forged);
            match bound_of(&file) {
                Err(_) => {}
                Ok(bound) => {
                    assert_eq!(bound, TailBound::Exact(tail), "{lived} published, count of {forged}")
                }
            }
        }
    }
}

#[test]
fn a_frontier_or_an_index_that_lies_is_damage() {
    for frontier in [0, 64, 1 << 40, MAX_COUNT, MAX_COUNT + 1, u64::MAX] {
        let (file, segment) = segment();
        let mut writer = segment.writer(1, 0).unwrap();
        for _ in 0..100 {
            writer.publish(&[9; 1000], 0, false, 0).unwrap();
        }
        set_word(&file, FRONTIER as u64, frontier);
        assert!(bound_of(&file).is_err(), "frontier {frontier}");
    }
    let (file, segment) = segment();
    let mut writer = segment.writer(1, 0).unwrap();
    for _ in 0..64 {
        writer.publish(&[9; 10], 0, false, 0).unwrap();
    }
    let clean = writer.position() + 64;
    // Where the record of the next message is awaited stands zero, as it does behind the tail.
    let next = word(&file, LAZY_PUBLISHED as u64) + 1;
    file.write_all_at(&clean.to_le_bytes(), HEADER_BYTES + next * 8).unwrap();
    assert!(bound_of(&file).is_err(), "a place that nothing leads to");
    set_word(&file, FIRST_SEQUENCE as u64, u64::MAX);
    assert!(bound_of(&file).is_err(), "first sequence");
}
