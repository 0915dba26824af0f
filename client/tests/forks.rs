//! Processes that fork. Nothing that a child does with its copy of a publisher or a subscriber affects others.
//!
//! Only a process of one thread can be forked here, so each test runs in its own process.

#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

use shmcast::{ChannelError, Directory, Event, Publisher, PublisherBuilder, Publishing, Start};
use shmcast::{Subscriber, SubscriberBuilder};
use shmcast_layout::mem::forked::fork;
use shmcast_testkit::process::{in_dir, my_dir, my_role, run};
use shmcast_testkit::{role, scratch, wait_for};
use std::fs;
use std::io::{Read, pipe};
use std::path::Path;

/// Bytes of the smallest possible ring.
const SMALL: u64 = 64 << 10;

fn publisher(dir: &Path) -> PublisherBuilder {
    Publisher::builder("t").dir(dir)
}

fn subscriber(dir: &Path) -> SubscriberBuilder {
    Subscriber::builder("t").dir(dir)
}

/// The names of the tests, each with its role.
const TESTS: &[(&str, &str)] = &[
    ("a_child_that_drops_a_publisher_closes_its_parents_channel", "dropped publisher"),
    ("a_child_that_exits_closes_its_parents_channel", "exit"),
    ("a_child_that_panics_unlocks_its_parents_channel", "panic"),
    ("a_child_that_drops_a_subscriber_takes_its_parents_page_away", "dropped subscriber"),
    ("a_parent_that_closes_its_channel_leaves_it_locked_by_its_children", "parent that closes"),
    ("a_child_of_a_dead_publisher_lets_a_second_one_in_beside_it", "child of the dead"),
];

/// Runs the tests without the usual harness, which has a thread for each test.
fn main() {
    if let Some(role) = my_role() {
        return play(&role, &my_dir());
    }
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    for (name, role) in TESTS.iter().filter(|(name, _)| name.contains(&filter)) {
        let dir = scratch();
        run(in_dir(&mut role!(role), dir.path())).unwrap_or_else(|e| panic!("test {name} ... FAILED\n{e}"));
        println!("test {name} ... ok");
    }
}

fn play(role: &str, dir: &Path) {
    match role {
        "dropped publisher" => child_ends(dir, drop),
        "exit" => child_ends(dir, |_| std::process::exit(0)),
        "panic" => child_ends(dir, |_publisher| panic!("as this test wants it")),
        "dropped subscriber" => dropped_subscriber(dir),
        "parent that closes" => parent_closes(dir),
        "child of the dead" => child_of_the_dead(dir),
        "parent that dies" => parent_dies(dir),
        other => panic!("no such role: {other}"),
    }
}

/// A child with a copy of a publisher ends, in the way that `end` says.
fn child_ends(dir: &Path, end: impl FnOnce(Publisher)) {
    let mut mine = publisher(dir).capacity(SMALL).open().unwrap();
    let mut reader = subscriber(dir).start(Start::Oldest).open().unwrap();
    mine.publish(b"before").unwrap();
    // After the fork both have one: the child its copy, the parent its own.
    let mut both = Some(mine);
    fork(|| end(both.take().unwrap())).unwrap().wait().unwrap();
    let mut mine = both.unwrap();
    let held = Directory::at(dir).channel("t").unwrap().publisher;
    assert!(matches!(held, Publishing::By(_)), "{held:?}");
    let second = publisher(dir).open();
    assert!(matches!(second, Err(ChannelError::InUse { .. })), "a second publisher: {second:?}");
    mine.publish(b"after").unwrap();
    for message in ["before", "after"] {
        assert!(matches!(reader.recv().unwrap(), Event::Message(m) if m.payload == message.as_bytes()));
    }
    assert_eq!(reader.try_recv().unwrap(), None, "and no end between them");
    mine.close();
    assert_eq!(reader.recv().unwrap(), Event::End);
    assert_eq!(publisher(dir).open().unwrap().epoch(), 2);
}

fn dropped_subscriber(dir: &Path) {
    let mine = publisher(dir).capacity(SMALL).open().unwrap();
    let mut reader = Some(subscriber(dir).open().unwrap());
    assert!(fork(|| drop(reader.take())).unwrap().wait().unwrap());
    let directory = Directory::at(dir);
    assert_eq!(directory.channel("t").unwrap().readers.len(), 1);
    drop(mine);
    assert!(matches!(directory.remove("t"), Err(ChannelError::InUse { .. })), "under a reader that lives");
    drop(reader);
    assert_eq!(fs::read_dir(dir.join("t/readers")).unwrap().count(), 0);
    directory.remove("t").unwrap();
}

fn parent_closes(dir: &Path) {
    let mine = publisher(dir).capacity(SMALL).open().unwrap();
    let (mut until, go_on) = pipe().unwrap();
    let mut go_on = Some(go_on);
    let child = fork(|| {
        drop(go_on.take());
        assert_eq!(until.read(&mut [0]).unwrap(), 0);
    });
    mine.close();
    let second = publisher(dir).open().map(|publisher| publisher.epoch());
    drop(go_on);
    assert!(child.unwrap().wait().unwrap());
    assert_eq!(second.unwrap(), 2);
}

fn child_of_the_dead(dir: &Path) {
    run(in_dir(&mut role!("parent that dies"), dir)).unwrap();
    // The channel is not closed, as after any other death. It is free, now that the child has ended too.
    let successor = wait_for("end of the child", || publisher(dir).open().ok());
    assert_eq!((successor.epoch(), successor.next_sequence()), (2, 2));
    assert_eq!(fs::read_to_string(dir.join("seen")).unwrap(), "in use");
}

/// Leaves a child with a copy of the publisher. The child looks at the channel after its parent's death.
fn parent_dies(dir: &Path) {
    let mut mine = publisher(dir).capacity(SMALL).open().unwrap();
    mine.publish(b"x").unwrap();
    let parent = std::process::id();
    let _child = fork(|| {
        wait_for("death of the parent", || (std::os::unix::process::parent_id() != parent).then_some(()));
        let seen = match publisher(dir).open() {
            Err(ChannelError::InUse { .. }) => "in use",
            _ => "free",
        };
        fs::write(dir.join("seen"), seen).unwrap();
    });
    // It exits without destructors, as by a signal. The exit code is 0, so that the test sees that all checks here
    // passed.
    std::mem::forget(mine);
    std::process::exit(0);
}
