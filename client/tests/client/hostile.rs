//! Files of the wrong kind or content, and full file systems. Each gives an error that names it, changes nothing, and
//! blocks neither tools nor successors. Hostile *bytes of a ring* are tested in the layout crate.

use crate::support::{SMALL, drain, publisher, subscriber};
use shmcast::{ChannelError, Directory, OpenError, Preparation, Publisher, Start, Subscriber};
use shmcast_testkit::process::{in_dir, my_dir, my_role, run};
use shmcast_testkit::{PATIENCE, role, scratch, skip, works};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Plays the roles of other processes, which other tests here start.
#[test]
#[ignore = "plays a part in other tests"]
fn play() {
    let Some(role) = my_role() else { return skip("play", "started by other tests only") };
    match role.as_str() {
        "full file system" => full_file_system(&my_dir()),
        "read-only file system" => read_only_file_system(&my_dir()),
        other => panic!("no such role: {other}"),
    }
}

/// A closed channel of two messages, and its segment file.
fn channel(dir: &Path) -> PathBuf {
    let mut publisher = publisher(dir).capacity(SMALL).open().unwrap();
    publisher.publish_batch(["one", "two"]).unwrap();
    publisher.close();
    dir.join("t/segment")
}

fn segment_error<T: std::fmt::Debug>(opened: Result<T, ChannelError>) -> OpenError {
    match opened {
        Err(ChannelError::Segment { source, path }) if path.ends_with("t/segment") => source,
        other => panic!("{other:?}"),
    }
}

/// Damages a segment by `damage`. Both ends must refuse it with an error that `expected` accepts, and change nothing.
fn refused(damage: impl FnOnce(&File), expected: impl Fn(&OpenError) -> bool) {
    let dir = scratch();
    let path = channel(dir.path());
    damage(&File::options().read(true).write(true).open(&path).unwrap());
    let damaged = fs::read(&path).unwrap();
    let errors = [segment_error(publisher(dir.path()).open()), segment_error(subscriber(dir.path()).open())];
    for error in errors {
        assert!(expected(&error), "{error:?}");
        let directory = Directory::at(dir.path());
        assert_eq!(directory.channel("t").unwrap().detail.unwrap_err(), error.to_string());
    }
    assert!(fs::read(&path).unwrap() == damaged, "the damaged file was changed");
    Directory::at(dir.path()).remove("t").unwrap();
    assert_eq!(publisher(dir.path()).capacity(SMALL).open().unwrap().next_sequence(), 1);
}

#[test]
fn a_truncated_segment_is_refused_by_name() {
    for length in [0, 1, 4095, 4096, 4097, 4096 + SMALL / 8 + SMALL - 1] {
        refused(
            |file| file.set_len(length).unwrap(),
            |e| matches!(e, OpenError::Truncated { found, needed } if *found == length && needed > found),
        );
    }
}

#[test]
fn garbage_is_called_foreign() {
    let garbage = |file: &File| file.write_all_at(&[0xa5; 8192], 0).unwrap();
    refused(garbage, |e| matches!(e, OpenError::Foreign { found: 0xa5a5_a5a5_a5a5_a5a5 }));
    // The publisher that made it died before it stored the magic.
    let unfinished = |file: &File| file.write_all_at(&[0; 8], 0).unwrap();
    refused(unfinished, |e| matches!(e, OpenError::Foreign { found: 0 }));
}

#[test]
fn a_segment_of_another_version_names_both() {
    let newer = |file: &File| file.write_all_at(&(9u64 << 16).to_le_bytes(), 8).unwrap();
    refused(newer, |e| {
        matches!(e, OpenError::Version { found_major: 9, .. }) && e.to_string().contains("same release")
    });
}

#[test]
fn a_flipped_bit_in_the_header_is_a_checksum_error() {
    for byte in [16, 17, 40, 63, 64, 80, 111, 512, 4095] {
        let flip = |file: &File| {
            let mut found = [0];
            file.read_exact_at(&mut found, byte).unwrap();
            file.write_all_at(&[found[0] ^ 4], byte).unwrap();
        };
        refused(flip, |e| matches!(e, OpenError::Checksum { .. }));
    }
}

#[test]
fn a_state_or_tail_that_is_nonsense_opens_neither_end() {
    // Word 32 is the state, word 48 the count of published messages, word 16 the frontier.
    for (word, value, is_for_reader) in [(32, u64::MAX, false), (48, 12_345, true), (16, u64::MAX, true)] {
        let dir = scratch();
        let path = channel(dir.path());
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&value.to_le_bytes(), word * 8).unwrap();
        let damaged = fs::read(&path).unwrap();
        let published = publisher(dir.path()).open();
        assert!(matches!(published, Err(ChannelError::Locate { .. })), "word {word}: {published:?}");
        assert!(fs::read(&path).unwrap() == damaged, "word {word}: the damaged file was changed");
        let read = subscriber(dir.path()).open();
        assert_eq!(matches!(read, Err(ChannelError::Locate { .. })), is_for_reader, "word {word}: {read:?}");
    }
}

/// Opens both ends of a channel and looks at it, in a thread that must end in time. Returns the errors.
fn neither_opens_nor_hangs(dir: &Path) -> Vec<String> {
    let dir = dir.to_owned();
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let published = publisher(&dir).open().map(drop).unwrap_err();
        let subscribed = subscriber(&dir).open().map(drop).unwrap_err();
        let listed = Directory::at(&dir).channels().unwrap().remove(0).detail.unwrap_err();
        done.send(vec![published.to_string(), subscribed.to_string(), listed]).unwrap();
    });
    ended.recv_timeout(PATIENCE).expect("refusals, not a hang or a panic")
}

#[test]
fn pipes_links_and_directories_in_place_of_a_segment_are_refused() {
    for what in ["pipe", "link", "directory"] {
        let dir = scratch();
        let path = channel(dir.path());
        fs::remove_file(&path).unwrap();
        match what {
            "pipe" => nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
            "link" => std::os::unix::fs::symlink("/dev/zero", &path).unwrap(),
            _ => fs::create_dir(&path).unwrap(),
        }
        for refusal in neither_opens_nor_hangs(dir.path()) {
            assert!(!refusal.is_empty(), "{what}");
        }
        let refused = Directory::at(dir.path()).remove("t").unwrap_err();
        assert!(
            matches!(&refused, ChannelError::NotAChannel { entry, .. } if entry == "segment"),
            "{refused:?}"
        );
        assert!(fs::symlink_metadata(&path).is_ok() && dir.path().join("t/lock").exists(), "{what}");
    }
    assert!(Path::new("/dev/zero").exists());
}

#[test]
fn what_others_plant_among_the_reader_pages_stops_nobody() {
    let dir = scratch();
    let directory = Directory::at(dir.path());
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let readers = dir.path().join("t/readers");
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    // All have names that pages may have.
    let planted = |last: char| readers.join(format!("1-000000000000000{last}"));
    nix::unistd::mkfifo(&planted('a'), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink(&victim, planted('b')).unwrap();
    fs::create_dir(planted('c')).unwrap();
    // One file is locked, as by a living reader, and full of nonsense. Another is too short.
    let locked = File::create(planted('d')).unwrap();
    locked.write_all_at(&[0xff; 4096], 0).unwrap();
    let short = File::create(planted('e')).unwrap();
    short.write_all_at(b"SHMREAD1", 0).unwrap();
    let _locks = [&locked, &short].map(hold);

    let mut reader = subscriber(dir.path()).open().unwrap();
    publisher.publish(b"x").unwrap();
    assert_eq!(drain(&mut reader).len(), 1);
    assert_eq!(directory.channel("t").unwrap().readers.len(), 1, "the real one");
    publisher.close();
    drop(reader);
    let count = || fs::read_dir(&readers).unwrap().count();
    // Each file prevents the removal of the channel, with an error that names it, until its owner removes it.
    for last in ['a', 'b', 'c', 'd'] {
        assert_eq!(count(), 5 - (u32::from(last) - u32::from('a')) as usize);
        let refused = directory.remove("t").unwrap_err();
        let ChannelError::NotAChannel { entry, .. } = &refused else { panic!("{refused:?}") };
        assert_eq!(dir.path().join("t").join(entry), planted(last));
        if last == 'c' { fs::remove_dir(planted(last)) } else { fs::remove_file(planted(last)) }.unwrap();
    }
    publisher_again(dir.path());
    directory.remove("t").unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

/// Checks that the channel can be taken over with any files of readers among their pages.
fn publisher_again(dir: &Path) {
    publisher(dir).open().unwrap().close();
}

/// Locks a file as a reader locks its page, in another open file description.
fn hold(file: &File) -> File {
    let lock = File::options().write(true).open(format!("/proc/self/fd/{}", fd(file))).unwrap();
    let whole = nix::libc::flock {
        l_type: nix::libc::F_WRLCK as _,
        l_whence: nix::libc::SEEK_SET as _,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    nix::fcntl::fcntl(&lock, nix::fcntl::FcntlArg::F_OFD_SETLK(&whole)).unwrap();
    lock
}

fn fd(file: &File) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(file)
}

#[test]
fn a_read_only_file_system_keeps_nobody_from_reading() {
    let name = "a_read_only_file_system_keeps_nobody_from_reading";
    if !works("unshare", &["-m", "mount", "-t", "tmpfs", "none", "/mnt"]) {
        return skip(name, "mounting a file system needs root and unshare");
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs none {} && exec \"$0\" \"$@\"", dir.path().display());
    run(in_dir(&mut role!(under ["unshare", "-m", "sh", "-c", &mount], "read-only file system"), dir.path()))
        .unwrap();
}

fn read_only_file_system(dir: &Path) {
    channel(dir);
    works("mount", &["-o", "remount,ro", dir.to_str().unwrap()]).then_some(()).unwrap();
    let mut reader = subscriber(dir).start(Start::Oldest).open().unwrap();
    assert_eq!(reader.page_refused().map(std::io::Error::kind), Some(std::io::ErrorKind::ReadOnlyFilesystem));
    assert!(matches!(reader.recv().unwrap(), shmcast::Event::Message(m) if m.payload == b"one"));
    assert_eq!(Directory::at(dir).channel("t").unwrap().readers, []);
}

#[test]
fn a_sparse_segment_makes_its_readers_pay_for_it() {
    let dir = scratch();
    let path = channel(dir.path());
    // The file has its header, and the rest of it is a hole, so a file of 16 GiB takes one page.
    let big = Publisher::builder("big").dir(dir.path()).capacity(1 << 20).open().unwrap();
    drop(big);
    let file = File::options().write(true).open(dir.path().join("big/segment")).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(4096).unwrap();
    file.set_len(length).unwrap();
    let memory = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) * 512;
    assert!(memory() <= 4096);
    let reader = Subscriber::builder("big").dir(dir.path()).prepare(Preparation::FULL).open().unwrap();
    assert!(memory() <= 16 * 4096, "{} B of {length} B", memory());
    assert!(reader.preparation().iter().any(|step| step.result.is_err()), "{:?}", reader.preparation());
    let whole = Subscriber::builder("t").dir(dir.path()).open().unwrap();
    assert!(
        whole.preparation().iter().all(|step| step.result.is_ok()),
        "{path:?}: {:?}",
        whole.preparation()
    );
}

#[test]
fn a_full_file_system_gives_a_clear_error_and_no_half_made_channel() {
    let name = "a_full_file_system_gives_a_clear_error_and_no_half_made_channel";
    if !works("unshare", &["-m", "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt"]) {
        return skip(name, "mounting a small file system needs root and unshare");
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size=1m none {} && exec \"$0\" \"$@\"", dir.path().display());
    run(in_dir(&mut role!(under ["unshare", "-m", "sh", "-c", &mount], "full file system"), dir.path()))
        .unwrap();
}

/// Runs in a file system of 1 MiB.
fn full_file_system(dir: &Path) {
    let too_large = publisher(dir).capacity(1 << 20).open().unwrap_err();
    let bytes = 4096 + (1 << 17) + (1 << 20);
    assert!(matches!(&too_large, ChannelError::NoRoom { bytes: b, .. } if *b == bytes), "{too_large:?}");
    let text = too_large.to_string();
    assert!(text.contains("no room in") && text.contains("smaller capacity"), "{text}");
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "no half-made channel");
    assert!(matches!(subscriber(dir).open(), Err(ChannelError::NotFound { .. })));

    let mut small = publisher(dir).capacity(SMALL).open().unwrap();
    let mut filler = File::create(dir.join("filler")).unwrap();
    while std::io::Write::write(&mut filler, &[1; 4096]).is_ok_and(|written| written > 0) {}
    // No page is left: other channels cannot be made, readers cannot show pages, but messages flow.
    let other = Publisher::builder("other").dir(dir).capacity(SMALL).open().unwrap_err();
    assert!(matches!(other, ChannelError::NoRoom { .. }), "{other:?}");
    assert!(!dir.join("other").exists());
    let unasked = subscriber(dir).page(false).open().unwrap();
    assert!(unasked.page_refused().is_none());
    let mut reader = subscriber(dir).start(Start::Oldest).open().unwrap();
    assert!(reader.page_refused().is_some_and(|why| why.to_string().contains("No space left")));
    assert_eq!(fs::read_dir(dir.join("t/readers")).unwrap().count(), 0, "no half-made page");
    // Every page of the ring was reserved when the segment was made.
    for _ in 0..10_000u32 {
        small.publish(&[7; 1000]).unwrap();
        assert_eq!(drain(&mut reader).len(), 1);
    }
    small.close();
    publisher(dir).open().unwrap().close();
    Directory::at(dir).remove("t").unwrap();
}
