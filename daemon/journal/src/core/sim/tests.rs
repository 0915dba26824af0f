//! The stories that are played, and the mistakes that they must find.

use super::super::mutant::{CHOSEN, Mutant};
use super::{Counts, play};

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn add(total: &mut Counts, counts: Counts) {
    total.cuts += counts.cuts;
    total.kills += counts.kills;
    total.cleans += counts.cleans;
    total.cuts_in_recovery += counts.cuts_in_recovery;
    total.messages += counts.messages;
    total.durable += counts.durable;
    total.files += counts.files;
    total.errors += counts.errors;
    total.losses += counts.losses;
}

#[test]
fn power_cuts_take_nothing_that_was_durable_and_give_nothing_false() {
    let stories = number("SHMCAST_JOURNAL_CUTS", 1_000);
    let first = number("SHMCAST_SEED", 1);
    let mut total = Counts::default();
    for seed in first..first + stories {
        match std::panic::catch_unwind(|| play(seed)) {
            Ok(Ok(counts)) => add(&mut total, counts),
            Ok(Err(what)) => panic!("seed {seed}: {what}"),
            Err(_) => panic!("seed {seed}: panic"),
        }
    }
    println!("{stories} stories: {total:?}");
    if stories < 1_000 {
        return; // one seed that is played again need not have everything
    }
    assert!(total.cuts > stories && total.cuts_in_recovery > stories / 3 && total.kills > stories / 4);
    assert!(total.durable > 5 * stories && total.files > 2 * stories && total.errors > stories / 5);
}

fn is_found(mutant: Mutant) {
    CHOSEN.set(Some(mutant));
    let found = (1..20_000).find(|seed| !matches!(std::panic::catch_unwind(|| play(*seed)), Ok(Ok(_))));
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
