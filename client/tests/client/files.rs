//! Channels as files: the rights to open, see and remove them, and the files that stay. Damaged and planted files are
//! in `hostile.rs`.

use crate::support::{SMALL, as_nobody, drain, publisher, subscriber};
use shmcast::{ChannelError, Directory, Event, Holder, Preparation, Publishing, Start};
use shmcast_testkit::process::{in_dir, my_dir, my_role, run, within};
use shmcast_testkit::{PATIENCE, role, scratch, skip, wait_until, works};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const NOBODY: u32 = 65534;

fn mode(path: impl AsRef<Path>) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Plays the roles of other processes, which other tests here start.
#[test]
#[ignore = "plays a part in other tests"]
fn play() {
    let Some(role) = my_role() else { return skip("play", "started by other tests only") };
    let dir = my_dir();
    match role.as_str() {
        "shared publisher" => {
            publisher(&dir.join("new")).capacity(SMALL).mode(0o755).open().unwrap();
        }
        "foreign reader" => foreign_reader(&dir),
        "locked memory" => locked_memory(&dir),
        other => panic!("no such role: {other}"),
    }
}

#[test]
fn a_second_publisher_is_refused_and_told_who_publishes() {
    let dir = scratch();
    let mut first = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let refused = publisher(dir.path()).open().unwrap_err();
    let ChannelError::InUse { holder: Holder::Publisher { pid, .. }, .. } = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!(*pid, Some(std::process::id()));
    assert!(refused.to_string().contains(&format!("(pid {})", std::process::id())), "{refused}");
    let info = Directory::at(dir.path()).channel("t").unwrap();
    assert!(
        matches!(info.publisher, Publishing::By(Holder::Publisher { pid, .. }) if pid == Some(std::process::id()))
    );
    first.publish(b"unharmed").unwrap();
    drop(first);
    assert_eq!(Directory::at(dir.path()).channel("t").unwrap().publisher, Publishing::Nobody);
    assert_eq!(publisher(dir.path()).open().unwrap().next_sequence(), 2);
}

/// Tools once listed a channel some milliseconds before it could be opened.
#[test]
fn a_channel_that_is_listed_can_be_opened() {
    let dir = scratch();
    let directory = Directory::at(dir.path());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut seen = 0;
            // Once more after the last one.
            while !is_over.load(Ordering::Acquire) || seen < 300 {
                let listed = directory.channels().unwrap();
                seen = listed.len();
                // Those that are new are the last ones.
                for channel in listed.iter().rev().take(3) {
                    let reader = shmcast::Subscriber::builder(&channel.name).directory(&directory).open();
                    assert!(channel.detail.is_ok() && reader.is_ok(), "{channel:?}: {reader:?}");
                }
            }
        });
        for number in 100..400 {
            let builder = shmcast::Publisher::builder(format!("t{number}")).directory(&directory);
            let opened = builder.capacity(SMALL).prepare(Preparation::NONE).open();
            opened.unwrap();
            if looks.is_finished() {
                break;
            }
        }
        is_over.store(true, Ordering::Release);
        looks.join().unwrap();
    });
}

#[test]
fn a_channel_of_another_size_is_not_taken_over() {
    let dir = scratch();
    publisher(dir.path()).capacity(SMALL).max_message(1000).schema(7, "x").open().unwrap().close();
    let cases = [
        (publisher(dir.path()).capacity(2 * SMALL), "capacity", SMALL, 2 * SMALL),
        (publisher(dir.path()).max_message(999), "max_message", 1000, 999),
    ];
    for (builder, property, is, asked) in cases {
        match builder.open().unwrap_err() {
            ChannelError::Mismatch { what, found, wanted, .. } => {
                assert_eq!((what, found, wanted), (property, is, asked));
            }
            other => panic!("{other:?}"),
        }
    }
    for (id, name) in [(8, "x"), (7, "y")] {
        let mismatch = publisher(dir.path()).schema(id, name).open().unwrap_err();
        assert!(matches!(&mismatch, ChannelError::Schema { found, .. } if found.id == 7), "{mismatch:?}");
        let said = format!("schema 7 \"x\", and schema {id} {name:?} was asked for");
        assert!(mismatch.to_string().contains(&said), "{mismatch}");
    }
    let mismatch = subscriber(dir.path()).schema(8).open();
    assert!(
        matches!(mismatch, Err(ChannelError::Schema { found, wanted, .. }) if (found.id, wanted.id) == (7, 8))
    );
    assert!(matches!(publisher(dir.path()).capacity(SMALL + 1).open(), Err(ChannelError::Geometry(_))));
    let taken = publisher(dir.path()).capacity(SMALL).max_message(1000).schema(7, "").open().unwrap();
    assert_eq!(taken.epoch(), 2, "those who were refused began no epoch");
}

#[test]
fn a_channel_in_use_is_not_removed() {
    let dir = scratch();
    let directory = Directory::at(dir.path());
    let mut publishing = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let refused = directory.remove("t").unwrap_err();
    assert!(matches!(refused, ChannelError::InUse { holder: Holder::Publisher { .. }, .. }), "{refused:?}");
    let mut readers: Vec<_> = (0..3).map(|_| subscriber(dir.path()).open().unwrap()).collect();
    publishing.publish(b"still here").unwrap();
    publishing.close();
    let refused = directory.remove("t").unwrap_err();
    assert!(refused.to_string().contains("3 readers"), "{refused}");
    assert_eq!(drain_until_end(&mut readers[0]), 1, "nothing was removed or marked");
    readers.truncate(1);
    let refused = directory.remove("t").unwrap_err();
    assert!(refused.to_string().contains("a reader (pid"), "{refused}");
    drop(readers);
    directory.remove("t").unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    assert!(matches!(directory.remove("t"), Err(ChannelError::NotFound { .. })));
    assert!(matches!(directory.channel("t"), Err(ChannelError::NotFound { .. })));
    assert!(matches!(subscriber(dir.path()).open(), Err(ChannelError::NotFound { .. })));
    assert_eq!(publisher(dir.path()).capacity(2 * SMALL).open().unwrap().epoch(), 1, "a new channel");
}

fn drain_until_end(subscriber: &mut shmcast::Subscriber) -> usize {
    let mut messages = 0;
    while let Event::Message(_) = subscriber.recv().unwrap() {
        messages += 1;
    }
    messages
}

#[test]
fn pages_of_dead_readers_are_swept_and_those_of_living_ones_stay() {
    let dir = scratch();
    let _publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let reader = subscriber(dir.path()).open().unwrap();
    let readers = dir.path().join("t/readers");
    let page = fs::read_dir(&readers).unwrap().next().unwrap().unwrap().path();
    assert_eq!(mode(&page), 0o644);
    // A dead process leaves a file without a lock, whether it had shown its page or not.
    for left in ["4194305-0000000000000000", ".4194305-0000000000000001"] {
        fs::copy(&page, readers.join(left)).unwrap();
    }
    // The reader that made it died before it stored the magic.
    fs::write(readers.join(".4194305-0000000000000002"), [0; 4096]).unwrap();
    fs::write(readers.join(".4194305-0000000000000003"), "").unwrap();
    let seen = Directory::at(dir.path()).channel("t").unwrap().readers;
    assert_eq!(seen.iter().map(|r| r.stats.pid).collect::<Vec<_>>(), [u64::from(std::process::id())]);
    let mut left: Vec<_> = fs::read_dir(&readers).unwrap().map(|entry| entry.unwrap().path()).collect();
    left.retain(|path| fs::metadata(path).unwrap().len() > 0);
    assert_eq!(left, [page]);
    drop(reader);
    assert_eq!(Directory::at(dir.path()).channel("t").unwrap().readers, []);
}

#[test]
fn what_a_reader_does_shows_on_its_page() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    publisher.publish(b"before").unwrap();
    let mut reader = subscriber(dir.path()).record_latency(true).open().unwrap();
    let _unseen = subscriber(dir.path()).page(false).open().unwrap();
    publisher.publish_batch(["a", "b"]).unwrap();
    drain(&mut reader);
    let readers = Directory::at(dir.path()).channel("t").unwrap().readers;
    assert_eq!(readers.len(), 1);
    let stats = &readers[0].stats;
    assert_eq!((stats.started_at, stats.received, stats.place.sequence), (2, 2, 4));
    assert_eq!(stats.segment, publisher.header().uuid);
    assert_eq!(stats.histogram.iter().sum::<u64>(), 2);
    assert!(stats.latency_ns(0.5).is_some_and(|ns| ns > 0));
    assert!(stats.heartbeat > 0 && stats.heartbeat <= publisher.clock().now());
}

#[test]
fn a_readers_map_cannot_be_written_through() {
    let dir = scratch();
    let mut first = publisher(dir.path()).capacity(SMALL).open().unwrap();
    first.publish(b"x").unwrap();
    let segment = dir.path().join("t/segment");
    let maps = || {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let ours = maps.lines().filter(|line| line.ends_with(segment.to_str().unwrap()));
        ours.map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(maps().contains(&"rw-s".into()), "the publisher's own: {:?}", maps());
    drop(first);
    assert_eq!(maps(), Vec::<String>::new());
    let mut reader = subscriber(dir.path()).start(Start::Oldest).open().unwrap();
    assert!(matches!(reader.recv().unwrap(), Event::Message(_)));
    assert!(!maps().is_empty() && maps().iter().all(|flags| flags == "r--s"), "{:?}", maps());
    // No descriptor stays open from which another map could be made.
    let open =
        fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    assert!(!open.into_iter().any(|path| path == segment));
}

#[test]
fn channels_are_their_owners_alone_unless_asked_otherwise() {
    let dir = scratch();
    let path = dir.path().join("new");
    publisher(&path).capacity(SMALL).open().unwrap();
    let modes = ["", "t", "t/readers", "t/segment", "t/lock"].map(|file| mode(path.join(file)));
    assert_eq!(modes.map(|mode| format!("{mode:o}")), ["700", "700", "1700", "600", "600"]);
}

#[test]
fn a_shared_channel_is_shared_whatever_the_umask() {
    for umask in ["000", "077"] {
        let dir = scratch();
        let shell = format!("umask {umask}; exec \"$0\" \"$@\"");
        run(in_dir(&mut role!(under ["sh", "-c", &shell], "shared publisher"), dir.path())).unwrap();
        let path = dir.path().join("new");
        let modes = ["", "t", "t/readers", "t/segment", "t/lock"].map(|file| mode(path.join(file)));
        assert_eq!(modes.map(|mode| format!("{mode:o}")), ["755", "755", "1777", "644", "600"], "{umask}");
    }
}

#[test]
fn other_users_may_read_a_shared_channel_and_neither_publish_nor_remove_it() {
    let dir = scratch();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("shared");
    let mut shared = publisher(&path).capacity(SMALL).mode(0o755).open().unwrap();
    shared.publish(b"for all").unwrap();
    let _mine = shmcast::Publisher::builder("mine").dir(&path).capacity(SMALL).open().unwrap();
    let _private = publisher(&dir.path().join("private")).capacity(SMALL).open().unwrap();
    let name = "other_users_may_read_a_shared_channel_and_neither_publish_nor_remove_it";
    as_nobody(
        name,
        &["sh", "-c", "umask 077; exec \"$0\" \"$@\""],
        within(module_path!()),
        "foreign reader",
        dir.path(),
    );
}

fn foreign_reader(dir: &Path) {
    let shared = dir.join("shared");
    let mut reader = subscriber(&shared).start(Start::Oldest).open().unwrap();
    assert_eq!(drain(&mut reader), [(1, b"for all".to_vec())]);
    let page = fs::read_dir(shared.join("t/readers")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(mode(page), 0o644, "the channel's owner must see that somebody reads");
    let denied = |e: &ChannelError| matches!(e, ChannelError::Os { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied);
    let refused = publisher(&shared).open().unwrap_err();
    assert!(matches!(refused, ChannelError::Private { owner: 0, .. }), "{refused:?}");
    let refused = Directory::at(&shared).remove("t").unwrap_err();
    assert!(denied(&refused), "{refused:?}");
    let refused = fs::File::options().write(true).open(shared.join("t/segment")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    let info = Directory::at(&shared).channel("t").unwrap();
    assert_eq!((info.publisher, info.readers.len()), (Publishing::Unknown, 1));
    let listed = Directory::at(&shared).channels().unwrap();
    let states = listed.iter().map(|channel| (channel.name.as_str(), channel.status().state));
    assert_eq!(states.collect::<Vec<_>>(), [("mine", "private".to_owned()), ("t", "active".to_owned())]);
    assert!(Directory::at(&shared).remove("mine").is_err_and(|e| denied(&e)));
    let refused = subscriber(&dir.join("private")).open().unwrap_err();
    assert!(denied(&refused), "{refused:?}");
}

#[test]
fn memory_that_may_not_be_locked_is_reported_and_stops_nothing() {
    let name = "memory_that_may_not_be_locked_is_reported_and_stops_nothing";
    let dir = scratch();
    std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY))
        .unwrap_or_else(|e| skip(name, format!("cannot give a directory away: {e}")));
    if !works("prlimit", &["--memlock=0:0", "true"]) {
        return skip(name, "no prlimit here");
    }
    as_nobody(name, &["prlimit", "--memlock=0:0"], within(module_path!()), "locked memory", dir.path());
}

fn locked_memory(dir: &Path) {
    let mut publisher = publisher(dir).capacity(4 << 20).open().unwrap();
    let step = |name| publisher.preparation().iter().find(|step| step.name == name).unwrap();
    assert!(step("lock").result.is_err(), "{:?}", step("lock"));
    assert!(step("lock").to_string().contains("ulimit -l"), "{}", step("lock"));
    assert!(step("prefault").result.is_ok(), "{}", step("prefault"));
    let mut reader = subscriber(dir).prepare(Preparation::FULL).open().unwrap();
    assert!(reader.preparation().iter().any(|step| step.name == "lock" && step.result.is_err()));
    publisher.publish(b"all the same").unwrap();
    assert_eq!(drain(&mut reader).len(), 1);
}

#[test]
fn a_reader_may_come_before_its_channel() {
    let dir = scratch();
    let patient = subscriber(dir.path()).wait_for_channel(Duration::MAX);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| patient.open().unwrap().publisher_state());
        std::thread::sleep(Duration::from_millis(20));
        let _publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
        assert!(matches!(reader.join().unwrap(), Some((1, shmcast::State::Active))));
    });
    let in_vain = shmcast::Subscriber::builder("other").dir(dir.path());
    let refused = in_vain.wait_for_channel(Duration::from_millis(12)).open().unwrap_err();
    assert!(refused.to_string().contains("start its publisher first"), "{refused}");
}

/// Waits until a thread of this process sleeps: then it has looked for its channel in vain.
fn wait_until_asleep(thread: rustix::thread::Pid) {
    let stat = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    // The state stands behind the name, which is in parentheses.
    wait_until("a thread that sleeps", || {
        std::fs::read_to_string(&stat).unwrap().rsplit(')').next().unwrap().starts_with(" S")
    });
}

/// Messages that are published between two looks at the directory were published after the reader began to wait.
#[test]
fn a_reader_that_waited_for_its_channel_misses_its_first_messages() {
    let dir = scratch();
    for round in 0..20 {
        let name = format!("t{round}");
        let waiting = shmcast::Subscriber::builder(&name).dir(dir.path()).wait_for_channel(Duration::MAX);
        let (mut reader, _publisher) = std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let reader = scope.spawn(move || {
                tell.send(rustix::thread::gettid()).unwrap();
                waiting.open().unwrap()
            });
            wait_until_asleep(told.recv().unwrap());
            let publisher = shmcast::Publisher::builder(&name).dir(dir.path()).capacity(SMALL);
            let mut publisher = publisher.open().unwrap();
            for _ in 0..10 {
                publisher.publish(b"early").unwrap();
            }
            (reader.join().unwrap(), publisher)
        });
        assert_eq!(drain(&mut reader).len(), 10, "round {round}");
        // A channel that is there at once is read from what comes next.
        let late = shmcast::Subscriber::builder(&name).dir(dir.path()).wait_for_channel(Duration::MAX);
        assert_eq!(late.open().unwrap().next_sequence(), 11);
    }
}

/// A publisher, a reader and a remover run at once. Each gets a whole channel or a clear refusal.
#[test]
fn opening_and_removing_at_once_never_leaves_half_a_channel() {
    let dir = scratch();
    let directory = Directory::at(dir.path());
    let stop = AtomicBool::new(false);
    let (removed, read) = (AtomicU64::new(0), AtomicU64::new(0));
    let published = std::thread::scope(|scope| {
        let publishing = scope.spawn(|| {
            let mut published = 0;
            let start = std::time::Instant::now();
            let turns = [&removed, &read];
            // Go on until each of the three has had its turns, even on a busy machine.
            while published < 100 || turns.iter().any(|turns| turns.load(Ordering::Relaxed) < 20) {
                if start.elapsed() > PATIENCE {
                    break; // and fail below, with everybody stopped
                }
                match publisher(dir.path()).capacity(SMALL).prepare(Preparation::NONE).open() {
                    Ok(mut publisher) => {
                        publisher.publish(b"x").unwrap();
                        published += 1;
                    }
                    Err(ChannelError::InUse { .. }) => {}
                    Err(e) => panic!("publisher: {e} ({e:?})"),
                }
            }
            stop.store(true, Ordering::Relaxed);
            published
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                match directory.remove("t") {
                    Ok(_) => drop(removed.fetch_add(1, Ordering::Relaxed)),
                    Err(ChannelError::InUse { .. } | ChannelError::NotFound { .. }) => {}
                    Err(e) => panic!("remover: {e} ({e:?})"),
                }
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                match subscriber(dir.path()).start(Start::Oldest).open() {
                    Ok(mut reader) => {
                        let deadline = std::time::Instant::now() + Duration::from_millis(1);
                        match reader.recv_deadline(deadline) {
                            Ok(Some(Event::Message(m))) => assert_eq!(m.payload, b"x"),
                            Ok(_) | Err(shmcast::RecvError::Superseded) => {}
                            Err(e) => panic!("reader: {e} ({e:?})"),
                        }
                        read.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(ChannelError::NotFound { .. }) => {}
                    Err(e) => panic!("reader: {e} ({e:?})"),
                }
                directory.channels().unwrap();
            }
        });
        publishing.join().unwrap()
    });
    let (removed, read) = (removed.into_inner(), read.into_inner());
    assert!(published >= 100 && removed >= 20 && read >= 20, "{published} {removed} {read}");
    let _ = directory.remove("t");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn what_is_no_channel_is_not_listed() {
    let dir = scratch();
    fs::write(dir.path().join("notes.txt"), "x").unwrap();
    let dead = dir.path().join(".removed-0123456789abcdef");
    fs::create_dir(&dead).unwrap();
    publisher(dir.path()).capacity(SMALL).open().unwrap();
    let directory = Directory::at(dir.path());
    let names: Vec<_> = directory.channels().unwrap().into_iter().map(|channel| channel.name).collect();
    assert_eq!(names, ["t"]);
    assert!(matches!(directory.remove("notes.txt"), Err(ChannelError::NotFound { .. })));
    // The next removal finishes one whose process died.
    directory.remove("t").unwrap();
    assert!(!dead.exists() && dir.path().join("notes.txt").exists());
}

#[test]
fn a_channel_whose_removal_died_half_way_begins_anew_and_is_not_brought_back_to_life() {
    let dir = scratch();
    let path = dir.path().join("t/segment");
    publisher(dir.path()).capacity(SMALL).open().unwrap().publish(b"old").unwrap();
    let mut late = subscriber(dir.path()).start(Start::Oldest).open().unwrap();
    // This is the state that a remover leaves if it dies after it has told the readers and before it has removed the
    // files.
    let segment = fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&segment, &(1u64 << 8 | 4).to_le_bytes(), 32 * 8).unwrap();
    let mut next = publisher(dir.path()).capacity(SMALL).open().unwrap();
    assert_eq!((next.next_sequence(), next.epoch()), (1, 1));
    next.publish(b"new").unwrap();
    let mut reader = subscriber(dir.path()).start(Start::Oldest).open().unwrap();
    assert_eq!(drain(&mut reader), [(1, b"new".to_vec())]);
    // A reader of the old segment gets the rest of its messages, and is then told that it is over.
    let mut events = Vec::new();
    let over = loop {
        match late.recv_deadline(std::time::Instant::now() + PATIENCE) {
            Ok(Some(event)) => events.push(format!("{event:?}")),
            Ok(None) => panic!("never told: {events:?}"),
            Err(e) => break e,
        }
    };
    assert_eq!((over, events.len()), (shmcast::RecvError::Superseded, 2), "{events:?}");
}
