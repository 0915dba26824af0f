//! Opening a large ring: it is quick, most of the preparation goes on behind the publisher, and that ends with it.

use crate::support::publisher;
use nix::sys::resource::{UsageWho, getrusage};
use shmcast::{Preparation, Publisher};
use shmcast_testkit::process::{my_role, run};
use shmcast_testkit::{PATIENCE, role, scratch, skip, wait_within};
use std::fs;
use std::time::Duration;

/// Limit of a wait for the thread that prepares. It has the lowest priority, so beside other work it may take minutes.
const LONG: Duration = Duration::from_secs(10 * PATIENCE.as_secs());

/// Page faults of the calling thread so far.
fn faults() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).unwrap().minor_page_faults()
}

/// Threads of this process that prepare memory.
fn preparing() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let name = |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.filter(|task| name(task.as_ref().unwrap()).trim() == "shmcast-prepare").count()
}

const CAPACITY: u64 = 64 << 20;
/// Pages of 4 KiB in the 8 MiB that are touched before `open` returns.
const FIRST_PAGES: i64 = 2048;
/// Pages that opening takes for itself, and those that the test finds on its way.
const OTHER_PAGES: i64 = 512;

/// Plays the tests that count threads and page faults of their whole process, which no other test may share.
#[test]
#[ignore = "plays a part in other tests"]
fn play() {
    match my_role().as_deref() {
        Some("large ring") => large_ring(),
        Some("outlived") => outlived(),
        _ => skip("play", "started by other tests only"),
    }
}

#[test]
fn a_large_ring_is_prepared_by_the_thread_that_opens_it() {
    run(&mut role!("large ring")).unwrap();
}

fn large_ring() {
    // The fewest of some tries, since a machine that is short of memory takes pages away again.
    let tries: Vec<[i64; 2]> = std::iter::repeat_with(faults_of_a_large_ring).take(3).collect();
    let least = |what: usize| tries.iter().map(|faults| faults[what]).min().unwrap();
    assert!(least(0) < FIRST_PAGES + OTHER_PAGES, "{tries:?} page faults while it is opened");
    assert!(least(1) < OTHER_PAGES, "{tries:?} page faults in one lap");
}

/// Those while it is opened, and those in one lap.
fn faults_of_a_large_ring() -> [i64; 2] {
    let dir = scratch();
    let before = faults();
    let mut quick = publisher(dir.path()).capacity(CAPACITY).open().unwrap();
    let opening = faults() - before;
    wait_within(LONG, "the rest of the memory", || (!quick.preparation().is_empty()).then_some(()));
    let steps: Vec<String> = quick.preparation().iter().map(ToString::to_string).collect();
    assert!(steps.len() == 2 && steps[0] == "prefault: yes" && steps[1].starts_with("lock: "), "{steps:?}");
    wait_within(LONG, "end of the thread", || (preparing() == 0).then_some(()));
    // Once around the ring: no page is new.
    let payload = vec![7; 8 << 10];
    let before = faults();
    for _ in 0..CAPACITY / payload.len() as u64 {
        quick.publish(&payload).unwrap();
    }
    [opening, faults() - before]
}

#[test]
fn the_preparation_outlives_the_publisher() {
    run(&mut role!("outlived")).unwrap();
}

fn outlived() {
    // Of 72 thousand pages.
    const MOST_PAGES: i64 = 50_000;
    let all_faults = || getrusage(UsageWho::RUSAGE_SELF).unwrap().minor_page_faults();
    let pages = || {
        let dir = scratch();
        let before = all_faults();
        let large = publisher(dir.path()).capacity(256 << 20).open().unwrap();
        drop(large);
        wait_within(LONG, "end of the thread", || (preparing() == 0).then_some(()));
        all_faults() - before
    };
    // More than once, since this thread may have been away for the whole time that the other takes.
    let tries: Vec<i64> = std::iter::repeat_with(pages).take(3).collect();
    assert!(tries.iter().any(|pages| *pages < MOST_PAGES), "{tries:?} page faults");
}

#[test]
fn what_is_asked_for_is_done_before_the_first_message() {
    let dir = scratch();
    for (name, preparation, steps) in [("full", Preparation::FULL, 3), ("none", Preparation::NONE, 0)] {
        let builder = Publisher::builder(name).dir(dir.path()).capacity(32 << 20);
        let publisher = builder.prepare(preparation).open().unwrap();
        assert_eq!(publisher.preparation().len(), steps, "{:?}", publisher.preparation());
    }
}
