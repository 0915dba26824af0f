//! Tests that play stories, and tests that the stories find planted mistakes.

use super::super::mutant::{CHOSEN, Mutant};
use super::super::{Io, Lane};
use super::{Counts, World, play};
use shmcast_testkit::number;
use std::ops::Range;

const WAYS: [Io; 2] = [Io::Direct, Io::Buffered];

/// Returns the way to write to the disk, which alternates from seed to seed.
const fn way(seed: u64) -> Io {
    WAYS[(seed % 2) as usize]
}

/// The number of stories. Some tests play only a part of them.
fn cuts() -> u64 {
    number("SHMCAST_JOURNAL_CUTS", 500)
}

fn add(total: &mut Counts, counts: Counts) {
    total.cuts += counts.cuts;
    total.kills += counts.kills;
    total.cleans += counts.cleans;
    total.cuts_in_recovery += counts.cuts_in_recovery;
    total.errors_in_recovery += counts.errors_in_recovery;
    total.messages += counts.messages;
    total.durable += counts.durable;
    total.files += counts.files;
    total.errors += counts.errors;
    total.losses += counts.losses;
}

#[test]
fn power_cuts_take_nothing_that_was_durable_and_give_nothing_false() {
    let stories = cuts();
    let first = number("SHMCAST_SEED", 1);
    let mut total = Counts::default();
    for (seed, io) in (first..first + stories).flat_map(|seed| WAYS.map(|io| (seed, io))) {
        match std::panic::catch_unwind(|| play(seed, io)) {
            Ok(Ok(counts)) => add(&mut total, counts),
            Ok(Err(what)) => panic!("seed {seed}, {io:?}: {what}"),
            Err(_) => panic!("seed {seed}, {io:?}: panic"),
        }
    }
    let stories = stories * WAYS.len() as u64;
    println!("{stories} stories: {total:?}");
    if stories < 1_000 {
        return; // so few stories need not have all these events
    }
    assert!(total.cuts > stories && total.cuts_in_recovery > stories / 3 && total.kills > stories / 4);
    assert!(total.durable > 5 * stories && total.files > 2 * stories && total.errors > stories / 5);
}

/// Plays the stories of these seeds. `with` changes each story before it is played.
fn play_all(seeds: Range<u64>, with: impl Fn(&mut World)) -> Counts {
    let mut total = Counts::default();
    for seed in seeds {
        let mut world = World::new(seed, way(seed));
        with(&mut world);
        world.play().unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        add(&mut total, world.counts);
    }
    total
}

/// Readers and `verify` look at the files before and after each recovery. They find damage only in files that were damaged.
#[test]
fn readers_and_the_check_agree_with_recovery() {
    let stories = cuts() / 10;
    let first = number("SHMCAST_SEED", 1);
    let total = play_all(first..first + stories, |world| world.has_readers = true);
    println!("{stories} stories: {total:?}");
}

/// Each file has records of only one ring, whatever fails. Nothing is lost when one ring follows another.
#[test]
fn another_ring_begins_another_file() {
    let stories = cuts() / 5;
    let first = number("SHMCAST_SEED", 1);
    let with = |world: &mut World| (world.has_rings, world.has_readers) = (true, true);
    let total = play_all(first..first + stories, with);
    println!("{stories} stories: {total:?}");
    let without = play_all(first..first + stories, |world| world.has_readers = true);
    assert!(stories < 100 || total.files > without.files, "{total:?}, {without:?}");
}

/// A lane that runs rarely must not stop the other lanes for ever, and must get no operation for a file that is gone.
#[test]
fn a_lane_may_be_slow() {
    let stories = cuts() / 10;
    let first = number("SHMCAST_SEED", 1);
    for lane in [Lane::Write, Lane::Sync, Lane::Help] {
        let total = play_all(first..first + stories, |world| world.slow = Some(lane));
        println!("{stories} stories, {lane:?} slow: {total:?}");
    }
}

/// Each call of each recovery fails once.
#[test]
fn a_recovery_that_fails_is_done_again() {
    let stories = cuts() / 50;
    let first = number("SHMCAST_SEED", 1);
    let total = play_all(first..first + stories, |world| world.has_errors = true);
    println!("{stories} stories: {total:?}");
    assert!(total.errors_in_recovery > 50 * stories);
}

/// Each step of the recorder fails once: creating, naming, writing, syncing and sealing files.
#[test]
fn each_step_of_a_recorder_may_fail() {
    let stories = cuts() / 10;
    let first = number("SHMCAST_SEED", 1);
    let mut failed = 0;
    for seed in first..first + stories {
        for step in 0.. {
            let mut world = World::new(seed, way(seed));
            world.disk.fails_after = Some(step);
            world.play().unwrap_or_else(|what| panic!("seed {seed}, step {step}: {what}"));
            if world.disk.fails_after.is_some() {
                break;
            }
            failed += 1;
        }
    }
    println!("{stories} stories, {failed} steps failed");
    assert!(failed > 10 * stories);
}

/// A file is abandoned after it got a new reserve. The next file repeats the frames that were not durable, and the power fails while this
/// file is sealed. Recovery must repair two files, and a second recovery must find the same reserve.
#[test]
fn a_reserve_that_was_given_up_does_not_count() {
    let story = 5_928_971;
    play(story, Io::Buffered).unwrap();
    CHOSEN.set(Some(Mutant::HearsAll));
    let found = play(story, Io::Buffered);
    CHOSEN.set(None);
    assert!(found.unwrap_err().starts_with("recovering again"), "the mistake does not show");
}

/// A file that has only control records is gone from between two other files. No sequence is missing, although the later file's chain
/// refers to the missing file.
#[test]
fn a_file_without_messages_that_is_gone_is_no_damage() {
    play(792_723, Io::Buffered).unwrap();
}

fn is_found(mutant: Mutant) {
    CHOSEN.set(Some(mutant));
    let found =
        (1..20_000).find(|seed| !matches!(std::panic::catch_unwind(|| play(*seed, way(*seed))), Ok(Ok(_))));
    CHOSEN.set(None);
    println!("{mutant:?}: seed {found:?}");
    assert!(found.is_some(), "{mutant:?} is not found");
}

macro_rules! mutants {
    ($($name:ident: $mutant:ident,)*) => {$(
        #[test]
        fn $name() {
            is_found(Mutant::$mutant);
        }
    )*};
}

mutants! {
    finds_a_recovery_that_reads_before_it_syncs: NoSyncBeforeReading,
    finds_a_sync_that_is_taken_to_cover_too_much: DurableAtTheEnd,
    finds_a_name_that_was_not_synced: NoDirectorySync,
    finds_a_failed_sync_that_is_done_again: RetryAfterFailedSync,
    finds_a_mended_file_that_is_written_over: WritesOverMended,
    finds_a_reserve_that_was_not_synced: ReserveNotSynced,
    finds_a_clean_record_without_the_lock: CleanWithoutLock,
}
