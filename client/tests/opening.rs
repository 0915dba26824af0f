//! Opening a large ring: it is quick, most of the preparation goes on behind the publisher, and that ends with it.

#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

mod support;

use nix::sys::resource::{UsageWho, getrusage};
use shmcast::{Preparation, Publisher};
use std::fs;
use support::{publisher, scratch, wait_for};

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

#[test]
fn a_large_ring_is_prepared_by_the_thread_that_opens_it() {
    let dir = scratch();
    let before = faults();
    let mut quick = publisher(dir.path()).capacity(CAPACITY).open().unwrap();
    let opening = faults() - before;
    assert!(opening < FIRST_PAGES + OTHER_PAGES, "{opening} page faults");
    wait_for("the rest of the memory", || (!quick.preparation().is_empty()).then_some(()));
    let steps: Vec<String> = quick.preparation().iter().map(ToString::to_string).collect();
    assert!(steps.len() == 2 && steps[0] == "prefault: yes" && steps[1].starts_with("lock: "), "{steps:?}");
    wait_for("end of the thread", || (preparing() == 0).then_some(()));
    // Once around the ring: no page is new.
    let payload = vec![7; 8 << 10];
    let before = faults();
    for _ in 0..CAPACITY / payload.len() as u64 {
        quick.publish(&payload).unwrap();
    }
    let publishing = faults() - before;
    assert!(publishing < OTHER_PAGES, "{publishing} page faults in one lap");
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

#[test]
fn the_preparation_outlives_the_publisher() {
    // Of 72 thousand pages. Other tests here take some 30 thousand meanwhile.
    const MOST_PAGES: i64 = 50_000;
    let all_faults = || getrusage(UsageWho::RUSAGE_SELF).unwrap().minor_page_faults();
    let pages = || {
        let dir = scratch();
        let before = all_faults();
        let large = publisher(dir.path()).capacity(256 << 20).open().unwrap();
        drop(large);
        wait_for("end of the thread", || (preparing() == 0).then_some(()));
        all_faults() - before
    };
    // More than once, since this thread may have been away for the whole time that the other takes.
    let tries: Vec<i64> = std::iter::repeat_with(pages).take(3).collect();
    assert!(tries.iter().any(|pages| *pages < MOST_PAGES), "{tries:?} page faults");
}
