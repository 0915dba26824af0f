//! Processes that fork. Nothing that a child does with its copy of a publisher or a subscriber affects others.
//!
//! Only a process of one thread can be forked here, so each test runs in its own process.

#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

use shmcast::{
    BoardSpec, ChannelError, Directory, Event, Gate, GateState, LocateError, PublishError, Publisher,
    PublisherBuilder, Publishing, Start,
};
use shmcast::{Records, RecvError, Select, Subscriber, SubscriberBuilder, Turns, Wait};
use shmcast_layout::mem::forked::fork;
use shmcast_testkit::process::{in_dir, my_dir, my_role, run};
use shmcast_testkit::{role, scratch, wait_for};
use std::fs;
use std::io::{Read, pipe};
use std::path::Path;
use std::time::{Duration, Instant};

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
    ("a_dead_publisher_holds_its_channel_as_long_as_its_children_live", "child of the dead"),
    ("a_dead_reader_is_shown_as_long_as_its_children_live", "child of a reader"),
    ("a_child_frees_the_gate_that_its_parent_holds", "gate"),
    ("a_childs_copy_moves_the_gate_of_its_parent", "gate's place"),
    ("a_dead_reader_holds_its_gate_as_long_as_its_children_live", "child of a gate's reader"),
    ("a_child_reads_its_parents_board", "board"),
    ("a_childs_copies_take_from_the_board_what_their_parents_read", "readers of the board"),
    ("a_childs_copies_publish_and_receive_beside_their_parents", "copies"),
    ("a_grandchild_closes_what_its_parent_opened", "grandchild"),
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
        "gate" => gate(dir),
        "gate's place" => place_of_a_gate(dir),
        "child of a gate's reader" => child_of_a_gates_reader(dir),
        "gate's reader that dies" => gates_reader_dies(dir),
        "board" => board(dir),
        "readers of the board" => readers_of_the_board(dir),
        "parent that closes" => parent_closes(dir),
        "child of the dead" => child_of_the_dead(dir),
        "parent that dies" => parent_dies(dir),
        "child of a reader" => child_of_a_reader(dir),
        "reader that dies" => reader_dies(dir),
        "copies" => copies(dir),
        "grandchild" => grandchild(dir),
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

/// A child neither frees its parent's gate nor keeps it.
fn gate(dir: &Path) {
    let gate = Gate::new("risk").wait(Duration::from_secs(60)).refuse();
    let mut mine = publisher(dir).capacity(SMALL).gate(gate).open().unwrap();
    let mut reader = Some(subscriber(dir).gate("risk").open().unwrap());
    let mut published = 0;
    let mut fill = |publisher: &mut Publisher| {
        let before = published;
        while publisher.try_publish(&[1; 100]).is_ok() {
            published += 1;
            assert!(published - before < 10_000, "nothing holds this publisher up");
        }
    };
    assert!(fork(|| drop(reader.take())).unwrap().wait().unwrap());
    fill(&mut mine);
    assert_eq!(mine.gates()[0].state, GateState::InForce, "its reader lives");
    let (mut until, go_on) = pipe().unwrap();
    let mut go_on = Some(go_on);
    let child = fork(|| {
        drop(go_on.take());
        assert_eq!(until.read(&mut [0]).unwrap(), 0);
    });
    drop(reader);
    mine.publish(&[1; 100]).unwrap();
    assert_eq!(mine.gates()[0].state, GateState::Absent, "whatever the child holds");
    drop(go_on);
    assert!(child.unwrap().wait().unwrap());
}

/// Publishes until the gate refuses.
fn fill_up(publisher: &mut Publisher) {
    let mut published = 0;
    loop {
        match publisher.try_publish(&[1; 100]) {
            Ok(_) => published += 1,
            Err(PublishError::Full { .. }) => return,
            Err(other) => panic!("{other:?}"),
        }
        assert!(published < 10_000, "nothing holds this publisher up");
    }
}

/// The page of a gate is shared by a child and its parent. It says where the parent is.
fn place_of_a_gate(dir: &Path) {
    let gate = Gate::new("risk").wait(Duration::from_secs(60)).refuse();
    let builder = publisher(dir).capacity(SMALL).board(BoardSpec::new(0..1));
    let mut mine = builder.gate(gate).open().unwrap();
    let mut readers = [
        subscriber(dir).gate("risk"),
        subscriber(dir).gate("risk").start(Start::Board),
        subscriber(dir).gate("risk").conflate(),
    ];
    for builder in &mut readers {
        let mut reader = builder.clone().open().unwrap();
        fill_up(&mut mine);
        let (last, behind) = (mine.next_sequence() - 1, mine.gates()[0].behind_bytes);
        let tried = fork(|| {
            for sequence in [last, last + 1] {
                assert_eq!(reader.seek(sequence), Err(LocateError::Forked));
            }
            while let Ok(Some(_)) = reader.try_recv() {}
            assert_eq!(reader.recv_batch(1000, |_| ()), Err(RecvError::Forked));
            assert_eq!(reader.try_recv_into(&mut [0; 8]), Err(RecvError::Forked));
            assert_eq!(reader.arm().map(drop), Err(RecvError::Forked));
            reader.disarm();
        });
        assert!(tried.unwrap().wait().unwrap());
        assert_eq!(mine.gates()[0].behind_bytes, behind, "the child has moved its parent");
        assert!(matches!(mine.try_publish(&[1; 100]), Err(PublishError::Full { .. })));
        // The parent has all of it, and the publisher goes on.
        let mut received = 0;
        while let Some(event) = reader.try_recv().unwrap() {
            assert!(matches!(event, Event::Message(_) | Event::Live { .. }), "{event:?}");
            received += 1;
        }
        assert!(received > 0);
        mine.try_publish(&[1; 100]).unwrap();
    }
}

/// The gate of a reader that has died is free, whatever its children hold.
fn child_of_a_gates_reader(dir: &Path) {
    let gate = Gate::new("risk").wait(Duration::from_secs(60)).refuse();
    let mut mine = publisher(dir).capacity(SMALL).gate(gate).open().unwrap();
    beside_an_orphan(dir, "gate's reader that dies", || {
        for _ in 0..2000 {
            mine.publish(&[1; 100]).unwrap();
        }
        assert_eq!(mine.gates()[0].state, GateState::Absent);
        let successor = subscriber(dir).gate("risk").open().unwrap();
        fill_up(&mut mine);
        assert_eq!(mine.gates()[0].state, GateState::InForce);
        drop(successor);
    });
}

fn gates_reader_dies(dir: &Path) {
    std::mem::forget(subscriber(dir).gate("risk").open().unwrap());
    leave_a_child(dir);
}

/// The handle of a board belongs to the parent. What the child does with its copy changes nothing there.
fn board(dir: &Path) {
    let mut mine = publisher(dir).capacity(SMALL).board(BoardSpec::new(0..1)).open().unwrap();
    let mut board = Some(subscriber(dir).open_board().unwrap());
    mine.publish(b"a1").unwrap();
    mine.publish(b"b1").unwrap();
    assert_eq!(board.as_mut().unwrap().entries().unwrap().count(), 2);
    let used = fork(|| {
        let mut copy = board.take().unwrap();
        assert_eq!(copy.get(b"a").map(drop), Err(RecvError::Forked));
        assert_eq!(copy.entries().map(drop), Err(RecvError::Forked));
        let mut own = subscriber(dir).open_board().unwrap();
        assert_eq!(own.get(b"a").unwrap().unwrap().sequence, 1);
        drop(copy);
        assert_eq!(own.entries().unwrap().count(), 2);
    });
    assert!(used.unwrap().wait().unwrap());
    mine.publish(b"a2").unwrap();
    let mut board = board.unwrap();
    let entry = board.get(b"a").unwrap().unwrap();
    assert_eq!((entry.message.unwrap().payload, entry.count), (&b"a2"[..], 2));
    let keys: Vec<u8> = board.entries().unwrap().map(|entry| entry.key[0]).collect();
    assert_eq!(keys, b"ba");
}

/// One reader stands in the middle of the board, and one is behind and conflates.
fn readers_of_the_board(dir: &Path) {
    let mut mine = publisher(dir).capacity(SMALL).board(BoardSpec::new(0..1)).open().unwrap();
    let mut behind = subscriber(dir).conflate().open().unwrap();
    for turn in 0..2000_u64 {
        mine.publish(format!("{} {turn}", turn % 10).as_bytes()).unwrap();
    }
    let mut late = subscriber(dir).start(Start::Board).open().unwrap();
    let first = late.recv().unwrap();
    assert!(matches!(first, Event::Message(m) if m.sequence == 1991), "{first:?}");
    let used = fork(|| {
        for copy in [&mut late, &mut behind] {
            assert_eq!(copy.recv(), Err(RecvError::Forked));
            assert_eq!(copy.try_recv(), Err(RecvError::Forked));
            assert_eq!(copy.recv_batch(8, |_| ()), Err(RecvError::Forked));
            let records = &mut Records::with_room(4096);
            assert_eq!(copy.recv_records(8, records).map(drop), Err(RecvError::Forked));
            assert_eq!(copy.seek(2000), Err(LocateError::Forked));
        }
        let failed = Turns::new(Wait::Park).recv(&mut [&mut late, &mut behind]).map(drop);
        assert_eq!(failed.map_err(|e| e.source), Err(RecvError::Forked));
        let mut own = subscriber(dir).start(Start::Board).open().unwrap();
        assert!(matches!(own.recv().unwrap(), Event::Message(m) if m.sequence == 1991));
    });
    assert!(used.unwrap().wait().unwrap());
    mine.publish(b"0 last").unwrap();
    for (reader, due) in [(&mut late, 1992), (&mut behind, 1992)] {
        let mut left_out = 0;
        let mut sequences = Vec::new();
        loop {
            match reader.try_recv().unwrap() {
                Some(Event::Message(m)) => {
                    left_out += m.conflated.unwrap_or(0);
                    sequences.push(m.sequence);
                }
                Some(Event::Live { .. }) => {}
                None => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(sequences.is_sorted() && sequences.ends_with(&[2001]), "{sequences:?}");
        assert!(sequences.contains(&due), "{sequences:?}");
        let has_all = left_out + sequences.len() as u64 == 2001;
        assert!(has_all || sequences[0] == due, "{left_out} left out, {sequences:?}");
    }
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

/// Starts a process in a role that leaves a child behind, and runs `look` while that child lives.
fn beside_an_orphan(dir: &Path, role: &str, look: impl FnOnce()) {
    // Its output goes where this one's goes: the child holds a pipe of its own open for as long as it lives.
    assert!(in_dir(&mut role!(role), dir).status().unwrap().success(), "{role}");
    let pid = wait_for("the child's id", || fs::read_to_string(dir.join("child")).ok()?.parse::<u32>().ok());
    look();
    assert!(Path::new(&format!("/proc/{pid}")).exists(), "the child has ended before");
    fs::write(dir.join("seen"), "").unwrap();
    wait_for("the child's end", || (!Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
}

/// Leaves a child that lives until the test has seen what there is, and ends as by a signal: without destructors. The exit code is 0, so
/// that the test sees that all checks here passed.
fn leave_a_child(dir: &Path) -> ! {
    let child = fork(|| {
        // Its name is complete when it is seen.
        fs::write(dir.join("child.new"), std::process::id().to_string()).unwrap();
        fs::rename(dir.join("child.new"), dir.join("child")).unwrap();
        wait_for("the test's look", || dir.join("seen").exists().then_some(()));
    });
    std::mem::forget(child);
    std::process::exit(0);
}

/// The channel is not closed, as after any other death, and it is free.
fn child_of_the_dead(dir: &Path) {
    beside_an_orphan(dir, "parent that dies", || {
        assert_eq!(Directory::at(dir).channel("t").unwrap().publisher, Publishing::Nobody);
        let successor = publisher(dir).open().unwrap();
        assert_eq!((successor.epoch(), successor.next_sequence()), (2, 2));
    });
}

fn parent_dies(dir: &Path) {
    let mut mine = publisher(dir).capacity(SMALL).open().unwrap();
    mine.publish(b"x").unwrap();
    std::mem::forget(mine);
    leave_a_child(dir);
}

fn child_of_a_reader(dir: &Path) {
    let mine = publisher(dir).capacity(SMALL).open().unwrap();
    beside_an_orphan(dir, "reader that dies", || {
        assert_eq!(Directory::at(dir).channel("t").unwrap().readers, []);
        assert_eq!(fs::read_dir(dir.join("t/readers")).unwrap().count(), 0, "its page is swept");
    });
    drop(mine);
}

fn reader_dies(dir: &Path) {
    let reader = subscriber(dir).open().unwrap();
    assert_eq!(Directory::at(dir).channel("t").unwrap().readers.len(), 1);
    std::mem::forget(reader);
    leave_a_child(dir);
}

fn copies(dir: &Path) {
    let mut mine = publisher(dir).capacity(SMALL).open().unwrap();
    let mut reader = subscriber(dir).start(Start::Oldest).open().unwrap();
    let mut select = Select::new(Wait::Spin);
    select.add(subscriber(dir).start(Start::Oldest).open().unwrap()).unwrap();
    mine.publish(b"before").unwrap();
    let used = fork(|| {
        assert_eq!(mine.publish(b"x"), Err(PublishError::Forked));
        assert_eq!(mine.publish_batch(["x"]).map(drop), Err(PublishError::Forked));
        assert_eq!(mine.claim(1).map(drop), Err(PublishError::Forked));
        assert_eq!(mine.gap(9).map(drop), Err(PublishError::Forked));
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(reader.recv(), Err(RecvError::Forked));
        assert_eq!(reader.recv_deadline(later), Err(RecvError::Forked));
        assert_eq!(reader.try_recv(), Err(RecvError::Forked));
        assert_eq!(reader.try_recv_into(&mut [0; 8]), Err(RecvError::Forked));
        assert_eq!(reader.recv_into(&mut [0; 8]), Err(RecvError::Forked));
        assert_eq!(reader.recv_batch(8, |_| ()), Err(RecvError::Forked));
        assert_eq!(reader.recv_records(8, &mut Records::with_room(4096)).map(drop), Err(RecvError::Forked));
        assert_eq!(select.try_recv().map_err(|e| e.source), Err(RecvError::Forked));
        assert_eq!(reader.seek(1), Err(LocateError::Forked));
        // Its own are another matter, also while it has copies.
        assert!(matches!(publisher(dir).open(), Err(ChannelError::InUse { .. })));
        let mut own = subscriber(dir).start(Start::Oldest).open().unwrap();
        assert!(matches!(own.recv().unwrap(), Event::Message(m) if m.payload == b"before"));
    });
    assert!(used.unwrap().wait().unwrap());
    mine.publish(b"after").unwrap();
    for message in ["before", "after"] {
        assert!(matches!(reader.recv().unwrap(), Event::Message(m) if m.payload == message.as_bytes()));
    }
}

/// A child closes numbers of its own for those of its parent. They may be those of files that it has opened since.
fn grandchild(dir: &Path) {
    let mine = publisher(dir).capacity(SMALL).open().unwrap();
    let mut copy = Some(mine);
    let child = fork(|| {
        let mut own = Publisher::builder("own").dir(dir).capacity(SMALL).open().unwrap();
        let inner = fork(|| drop(copy.take()));
        assert!(inner.unwrap().wait().unwrap());
        drop(copy.take());
        let held = Directory::at(dir).channel("own").unwrap().publisher;
        assert!(matches!(held, Publishing::By(_)), "{held:?}");
        own.publish(b"x").unwrap();
    });
    assert!(child.unwrap().wait().unwrap());
    assert!(matches!(Directory::at(dir).channel("t").unwrap().publisher, Publishing::By(_)));
}
