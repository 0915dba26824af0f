//! Hosts that are less kind than the machine of the tests: files that somebody removes, closed descriptors of stdio, readers that crash and come
//! again, processes whose ids say nothing here.

use crate::support::{SMALL, publisher, subscriber, successor};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shmcast::{
    BoardSpec, ChannelError, Directory, Event, Holder, Publishing, Records, RecvError, State, Subscriber,
    Turns, Wait,
};
use shmcast_testkit::disk::Small;
use shmcast_testkit::process::{in_dir, my_dir, my_role, run};
use shmcast_testkit::{PATIENCE, Process, role, scratch, wait_for, wait_until};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Plays the roles of other processes, which other tests here start.
#[test]
#[ignore = "plays a part in other tests"]
fn play() {
    match my_role().as_deref() {
        Some("reader") => {
            let _reader = subscriber(&my_dir()).open().unwrap();
            fs::write(my_dir().join("ready"), "").unwrap();
            std::thread::sleep(Duration::from_secs(600));
        }
        Some("without stdio") => std::process::exit(without_stdio(&my_dir())),
        Some("small files") => with_small_files(&my_dir()),
        other => panic!("{other:?}"),
    }
}

/// Readers of a channel whose files a cleaner removed waited for ever, and a second publisher was let in beside the first.
#[test]
fn files_of_a_live_channel_that_are_removed() {
    for wait in [Wait::Spin, Wait::Yield, Wait::Backoff, Wait::Sleep(Duration::from_millis(1))] {
        let dir = scratch();
        let mut first = publisher(dir.path()).capacity(SMALL).open().unwrap();
        let mut reader = subscriber(dir.path()).wait(wait).open().unwrap();
        first.publish(b"before").unwrap();
        assert!(matches!(reader.recv().unwrap(), Event::Message(m) if m.payload == b"before"));
        fs::remove_dir_all(dir.path().join("t")).unwrap();
        let second = publisher(dir.path()).capacity(SMALL).open().unwrap_err();
        let ChannelError::InUse { holder: Holder::Publisher { pid, .. }, .. } = second else {
            panic!("{second:?}")
        };
        assert_eq!(pid, Some(std::process::id()));
        assert!(!dir.path().join("t").exists(), "the refused one leaves nothing");
        first.publish(b"after").unwrap();
        assert!(matches!(reader.recv().unwrap(), Event::Message(m) if m.payload == b"after"), "{wait:?}");
        let removed = reader.recv_deadline(Instant::now() + PATIENCE);
        assert_eq!(removed, Err(RecvError::Superseded), "{wait:?}");
        drop(first);
        assert_eq!(successor(dir.path()).epoch(), 1);
    }
}

/// A board whose channel was removed gave its old values for ever.
#[test]
fn a_board_whose_files_are_removed_is_told() {
    let dir = scratch();
    let with_board = || publisher(dir.path()).capacity(SMALL).board(BoardSpec::new(0..1));
    let mut first = with_board().open().unwrap();
    first.publish(b"a1").unwrap();
    let mut board = subscriber(dir.path()).open_board().unwrap();
    assert!(board.get(b"a").unwrap().is_some());
    drop(first);
    fs::remove_dir_all(dir.path().join("t")).unwrap();
    let mut second = with_board().open().unwrap();
    second.publish(b"a2").unwrap();
    let error = wait_for("the board to be told", || board.get(b"a").err());
    assert_eq!(error, RecvError::Superseded);
    assert!(matches!(board.entries(), Err(RecvError::Superseded)));
}

/// A publisher tried for ever to make its channel in a directory that had been removed.
#[test]
fn a_publisher_in_a_removed_directory_is_refused() {
    let room = scratch();
    let dir = room.path().join("channels");
    fs::create_dir(&dir).unwrap();
    let open = fs::File::open(&dir).unwrap();
    fs::remove_dir(&dir).unwrap();
    let removed = format!("/proc/self/fd/{}", open.as_raw_fd());
    let error = publisher(Path::new(&removed)).capacity(SMALL).open().unwrap_err().to_string();
    assert!(error.contains("/t: ") && error.contains("was removed"), "{error}");
}

/// A channel that is moved, or that another file system hides, is one that was removed: who asks for its name finds another one, or none.
/// Readers were told nothing, and waited for ever for the next publisher.
#[test]
fn files_of_a_live_channel_that_are_moved_or_hidden() {
    let is_told = |reader: &mut Subscriber, at: &str| {
        let removed = reader.recv_deadline(Instant::now() + PATIENCE);
        assert_eq!(removed, Err(RecvError::Superseded), "{at}");
    };
    for what in ["channel", "directory", "link", "mount"] {
        let room = scratch();
        let dir = room.path().join("channels");
        let link = room.path().join("link");
        fs::create_dir(&dir).unwrap();
        symlink(&dir, &link).unwrap();
        let by = if what == "link" { &link } else { &dir };
        let mut first = publisher(by).capacity(SMALL).open().unwrap();
        let mut reader = subscriber(by).wait(Wait::Sleep(Duration::from_millis(1))).open().unwrap();
        first.publish(b"before").unwrap();
        assert!(matches!(reader.recv().unwrap(), Event::Message(m) if m.payload == b"before"));
        assert_eq!(reader.recv_deadline(Instant::now() + Duration::from_millis(1_200)), Ok(None), "{what}");
        let mut mounted = None;
        match what {
            "channel" => fs::rename(dir.join("t"), dir.join("u")).unwrap(),
            "directory" => fs::rename(&dir, room.path().join("away")).unwrap(),
            "link" => fs::remove_file(&link).unwrap(),
            _ => {
                let Some(small) = Small::make("files_of_a_live_channel_that_are_moved_or_hidden", 4) else {
                    return;
                };
                let points = [small.path(), &dir].map(|path| path.to_str().unwrap());
                let status = Command::new("mount").arg("--bind").args(points).status().unwrap();
                assert!(status.success());
                mounted = Some(small);
            }
        }
        // The reader still gets the publisher's messages.
        first.publish(b"after").unwrap();
        assert!(matches!(reader.recv().unwrap(), Event::Message(m) if m.payload == b"after"), "{what}");
        is_told(&mut reader, what);
        drop(first);
        if what != "link" {
            let next = publisher(by).capacity(SMALL).open().unwrap();
            assert_eq!(next.epoch(), 1, "{what}: another channel");
        }
        if let Some(small) = mounted {
            let _ = Command::new("umount").arg("--lazy").arg(&dir).status();
            drop(small);
        }
    }
}

/// A program that only polls, as a recorder does, was never told that the files were gone.
#[test]
fn polls_are_told_that_the_files_are_gone() {
    type Poll = fn(&mut Subscriber) -> Result<usize, RecvError>;
    let polls: [(&str, Poll); 5] = [
        ("try_recv", |reader| reader.try_recv().map(|event| usize::from(event.is_some()))),
        ("try_recv_into", |reader| {
            reader.try_recv_into(&mut [0; 64]).map(|event| usize::from(event.is_some()))
        }),
        ("recv_batch", |reader| reader.recv_batch(16, |_| ())),
        ("recv_records", |reader| reader.recv_records(16, &mut Records::with_room(4096))),
        ("turns", |reader| {
            let mut turns = Turns::new(Wait::Yield);
            turns.add(reader).unwrap();
            let mut lent = [reader];
            let found = turns.try_recv(&mut lent);
            found.map(|event| usize::from(event.is_some())).map_err(|error| error.source)
        }),
    ];
    for (name, poll) in polls {
        let dir = scratch();
        let mut mine = publisher(dir.path()).capacity(SMALL).open().unwrap();
        let mut reader = subscriber(dir.path()).open().unwrap();
        assert_eq!(poll(&mut reader), Ok(0), "{name}");
        fs::rename(dir.path().join("t"), dir.path().join("u")).unwrap();
        // The publisher still has the memory, and its messages come first.
        mine.publish(b"after").unwrap();
        assert_eq!(poll(&mut reader), Ok(1), "{name}");
        let told = wait_for(name, || match poll(&mut reader) {
            Ok(0) => None,
            told => Some(told),
        });
        assert_eq!(told, Err(RecvError::Superseded), "{name}");
    }
}

/// A cleaner that removes empty folders removes that of the pages. The channel lives on, but was said not to be there.
#[test]
fn a_channel_without_its_folder_of_pages_is_still_a_channel() {
    let dir = scratch();
    let mut mine = publisher(dir.path()).capacity(SMALL).open().unwrap();
    fs::remove_dir(dir.path().join("t/readers")).unwrap();
    let mut reader = subscriber(dir.path()).open().unwrap();
    let why = reader.page_refused().unwrap().to_string();
    assert!(why.contains("t/readers") && why.contains("No such file"), "{why}");
    mine.publish(b"after").unwrap();
    assert!(matches!(reader.recv().unwrap(), Event::Message(m) if m.payload == b"after"));
    mine.close();
    drop(successor(dir.path()));
    assert!(
        subscriber(dir.path()).open().unwrap().page_refused().is_none(),
        "the next publisher made it again"
    );
}

/// A channel that cannot be removed stays as it is. Its readers were told that it was gone, and its next publisher began anew.
#[test]
fn a_removal_that_fails_changes_nothing() {
    let dir = scratch();
    publisher(dir.path()).capacity(SMALL).open().unwrap().close();
    let Some(small) = Small::make("a_removal_that_fails_changes_nothing", 4) else { return };
    let channel = dir.path().join("t");
    drop(small);
    let bind = Command::new("mount").arg("--bind").args([&channel, &channel]).status().unwrap();
    assert!(bind.success());
    let refused = Directory::at(dir.path()).remove("t").map(|_| ()).map_err(|e| e.to_string());
    let state = subscriber(dir.path()).open().map(|reader| reader.publisher_state());
    let next = publisher(dir.path()).open().map(|next| next.epoch());
    assert!(Command::new("umount").arg("--lazy").arg(&channel).status().unwrap().success());
    let refused = refused.unwrap_err();
    assert!(refused.contains("nothing was changed: it is a mount point: unmount it first"), "{refused}");
    assert_eq!((state.unwrap(), next.unwrap()), (Some((1, State::Closed)), 2));
    assert_eq!(Directory::at(dir.path()).remove("t").unwrap().files, ["lock", "readers", "segment"]);
}

/// Only a channel's owner may look at its lock. Other users were told that nobody publishes.
#[test]
fn a_publisher_that_cannot_be_seen_is_unknown() {
    let dir = scratch();
    let _mine = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut seen = Directory::at(dir.path()).channel("t").unwrap();
    assert_eq!(seen.status().unknown, [""; 0]);
    seen.publisher = Publishing::Unknown;
    assert_eq!((seen.status().publisher, seen.status().unknown), (None, vec!["publisher".to_owned()]));
    (seen.is_private, seen.detail) = (true, Err("not for this user".to_owned()));
    assert_eq!(seen.status().unknown, ["publisher", "epoch", "readers"]);
}

#[test]
fn a_segment_that_keeps_its_name_is_waited_on() {
    let dir = scratch();
    let mut mine = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut reader = subscriber(dir.path()).open().unwrap();
    assert_eq!(reader.recv_deadline(Instant::now() + Duration::from_millis(1_500)), Ok(None));
    mine.publish(b"x").unwrap();
    assert!(matches!(reader.recv().unwrap(), Event::Message(_)));
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

/// An earlier mistake: a limit on file sizes killed a program that opened a channel, by SIGXFSZ and without a word.
#[test]
fn a_limit_on_file_sizes_is_an_error_and_kills_nobody() {
    let dir = scratch();
    run(in_dir(&mut role!("small files"), dir.path())).unwrap();
}

fn with_small_files(dir: &Path) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    let limit = |current| setrlimit(Resource::Fsize, Rlimit { current, maximum }).unwrap();
    limit(Some(0));
    let refused = publisher(dir).capacity(SMALL).open().unwrap_err();
    assert!(refused.to_string().contains("File too large"), "{refused}");
    assert!(!dir.join("t").exists(), "a part of a channel");
    limit(maximum);
    let mut publisher = publisher(dir).capacity(SMALL).open().unwrap();
    limit(Some(0));
    let mut reader = subscriber(dir).open().unwrap();
    assert!(reader.page_refused().is_some_and(|why| why.to_string().contains("File too large")));
    publisher.publish(b"x").unwrap();
    assert!(matches!(reader.recv().unwrap(), Event::Message(m) if m.payload == b"x"));
}

/// Each start of a reader that crashes left a page, and only tools removed them.
#[test]
fn pages_of_dead_readers_are_removed_by_the_next_reader() {
    let dir = scratch();
    let _mine = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let pages = || fs::read_dir(dir.path().join("t/readers")).unwrap().count();
    for _ in 0..3 {
        let _ = fs::remove_file(dir.path().join("ready"));
        let reader = Process::start(in_dir(&mut role!("reader"), dir.path()));
        wait_until("a reader", || dir.path().join("ready").exists());
        assert_eq!(pages(), 1);
        reader.kill();
    }
    let living = subscriber(dir.path()).open().unwrap();
    let also = subscriber(dir.path()).open().unwrap();
    assert_eq!(pages(), 2);
    drop((living, also));
}

/// A process id of another namespace, or of a process that has ended, is another program's here.
#[test]
fn a_process_that_only_has_the_same_id_is_not_named() {
    let dir = scratch();
    let _mine = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let _reader = subscriber(dir.path()).open().unwrap();
    let directory = Directory::at(dir.path());
    let seen = directory.channel("t").unwrap();
    let me = std::process::id();
    assert!(
        matches!(&seen.publisher, Publishing::By(Holder::Publisher { pid, command: Some(_) }) if *pid == Some(me))
    );
    assert_eq!(seen.readers[0].stats.pid, u64::from(me));
    assert!(seen.readers[0].command.is_some());
    // The first process of the host is none of ours.
    fs::write(dir.path().join("t/lock"), "1\n").unwrap();
    let page = fs::read_dir(dir.path().join("t/readers")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&page).unwrap();
    let at = bytes.windows(8).position(|word| word == u64::from(me).to_le_bytes()).unwrap();
    bytes[at..at + 8].copy_from_slice(&1u64.to_le_bytes());
    fs::write(&page, &bytes).unwrap();
    let seen = directory.channel("t").unwrap();
    let nobody = Holder::Publisher { pid: None, command: None };
    assert_eq!(seen.publisher, Publishing::By(nobody));
    assert_eq!((seen.readers[0].stats.pid, &seen.readers[0].command), (0, &None));
    let refused = publisher(dir.path()).open().unwrap_err().to_string();
    assert!(refused.contains("a publisher that cannot be seen from here"), "{refused}");
}

/// A core dump leaves the ring out.
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
