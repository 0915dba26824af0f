//! Hosts that are less kind than the machine of the tests.

use crate::support::{SMALL, publisher, subscriber};
use shmcast::Event;
use shmcast_testkit::process::{in_dir, my_dir, my_role, run};
use shmcast_testkit::{role, scratch};
use std::fs;
use std::path::Path;

/// Plays the roles of other processes, which other tests here start.
#[test]
#[ignore = "plays a part in other tests"]
fn play() {
    match my_role().as_deref() {
        Some("without stdio") => std::process::exit(without_stdio(&my_dir())),
        other => panic!("{other:?}"),
    }
}

/// The lock file became descriptor 2 of a program that had closed its own, and its next complaint was written into it.
#[test]
fn files_take_no_number_of_stdio() {
    let dir = scratch();
    run(in_dir(&mut role!("without stdio"), dir.path())).unwrap();
}

fn without_stdio(dir: &Path) -> i32 {
    for descriptor in 0..3 {
        nix::unistd::close(descriptor).unwrap();
    }
    let mut mine = publisher(dir).capacity(SMALL).open().unwrap();
    let mut reader = subscriber(dir).watch_publisher(true).open().unwrap();
    mine.publish(b"x").unwrap();
    let is_read = matches!(reader.recv(), Ok(Event::Message(_)));
    let is_free = (0..3).all(|descriptor| fs::read_link(format!("/proc/self/fd/{descriptor}")).is_err());
    i32::from(!(is_read && is_free))
}

/// What was published is no part of a crash report.
#[test]
fn a_core_dump_has_no_ring() {
    let dir = scratch();
    let mine = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let reader = subscriber(dir.path()).open().unwrap();
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let segment = fs::canonicalize(dir.path().join("t/segment")).unwrap().display().to_string();
    let mut flags = maps.lines().skip_while(|line| !line.ends_with(&segment));
    let mut seen = 0;
    while flags.next().is_some() {
        let own = flags.find(|line| line.starts_with("VmFlags:")).unwrap();
        assert!(own.split(' ').any(|flag| flag == "dd"), "{own}");
        seen += 1;
        while flags.clone().next().is_some_and(|line| !line.ends_with(&segment)) {
            flags.next();
        }
    }
    assert_eq!(seen, 2, "one map of the publisher, one of the reader");
    drop((mine, reader));
}
