//! Files that are not ours, beside channels and in their place. A file that shmcast did not make is not removed,
//! overwritten or followed, whatever its name, and the refusal names it.

use crate::support::{SMALL, publisher, subscriber};
use shmcast::{ChannelError, Directory, Start};
use shmcast_testkit::scratch;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// A name like those of reader pages, and one like those of removed channels.
const PAGE: &str = "4194305-0123456789abcdef";
const REMOVED: &str = ".removed-0123456789abcdef";

/// Everything below a directory: path, mode, and content or target.
fn tree(dir: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    let mut found = Vec::new();
    let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let content = match metadata.file_type() {
            kind if kind.is_symlink() => fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
            kind if kind.is_file() => fs::read(&path).unwrap(),
            _ => Vec::new(),
        };
        found.push((path.clone(), metadata.mode(), content));
        if metadata.is_dir() {
            found.extend(tree(&path));
        }
    }
    found
}

/// A directory like `~/.ssh`. Some of its files have names like ours.
fn precious(dir: &Path) -> PathBuf {
    let path = dir.join("precious");
    fs::create_dir(&path).unwrap();
    for name in ["id_ed25519", PAGE, ".4194305-0123456789abcdef"] {
        fs::write(path.join(name), "a key").unwrap();
    }
    path
}

fn closed_channel(dir: &Path) {
    let mut publisher = publisher(dir).capacity(SMALL).open().unwrap();
    publisher.publish(b"x").unwrap();
    publisher.close();
}

/// The entry that a refusal names.
fn refused<T: std::fmt::Debug>(result: Result<T, ChannelError>) -> String {
    match result {
        Err(e @ ChannelError::NotAChannel { .. }) => {
            let ChannelError::NotAChannel { entry, .. } = &e else { unreachable!() };
            assert!(e.to_string().contains(entry) && e.to_string().contains("nothing was changed"), "{e}");
            entry.clone()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_link_in_place_of_the_reader_pages_costs_nobody_a_file() {
    let dir = scratch();
    let victim = precious(dir.path());
    let before = tree(&victim);
    let channels = dir.path().join("channels");
    closed_channel(&channels);
    fs::remove_dir(channels.join("t/readers")).unwrap();
    symlink(&victim, channels.join("t/readers")).unwrap();
    let directory = Directory::at(&channels);
    assert_eq!(directory.channels().unwrap()[0].readers, []);
    assert_eq!(directory.channel("t").unwrap().readers, []);
    assert_eq!(tree(&victim), before, "after a look");
    assert_eq!(refused(subscriber(&channels).open()), "readers");
    assert_eq!(refused(directory.remove("t")), "readers");
    assert_eq!(refused(publisher(&channels).open()), "readers");
    assert_eq!(tree(&victim), before);
    let mut unseen = subscriber(&channels).page(false).start(Start::Oldest).open().unwrap();
    assert!(unseen.try_recv().unwrap().is_some());
}

#[test]
fn a_link_in_place_of_a_channel_is_not_followed() {
    let dir = scratch();
    let (channels, elsewhere) = (dir.path().join("channels"), dir.path().join("elsewhere"));
    fs::create_dir(&channels).unwrap();
    closed_channel(&elsewhere);
    fs::write(elsewhere.join("t/readers").join(PAGE), "not a page").unwrap();
    let before = tree(&elsewhere);
    symlink(elsewhere.join("t"), channels.join("t")).unwrap();
    let directory = Directory::at(&channels);
    assert_eq!(directory.channels().unwrap().len(), 0);
    assert!(matches!(directory.channel("t"), Err(ChannelError::NotFound { .. })));
    assert!(matches!(directory.remove("t"), Err(ChannelError::NotFound { .. })));
    assert!(matches!(subscriber(&channels).open(), Err(ChannelError::NotFound { .. })));
    let published = publisher(&channels).open().unwrap_err();
    assert!(published.to_string().contains("channels/t"), "{published}");
    assert_eq!(tree(&elsewhere), before);
}

#[test]
fn listing_a_directory_of_projects_removes_nothing() {
    let dir = scratch();
    let readers = dir.path().join("lib/readers");
    fs::create_dir_all(&readers).unwrap();
    for name in ["alice.txt", PAGE, "7-x"] {
        fs::write(readers.join(name), "unlocked, and not ours").unwrap();
    }
    fs::create_dir(dir.path().join("src")).unwrap();
    closed_channel(dir.path());
    // The same holds in a channel: a file with a name like a page's is no page, and no other file is touched.
    for name in ["alice.txt", PAGE] {
        fs::write(dir.path().join("t/readers").join(name), "not ours").unwrap();
    }
    let before = tree(dir.path());
    let directory = Directory::at(dir.path());
    let names: Vec<_> = directory.channels().unwrap().into_iter().map(|channel| channel.name).collect();
    assert_eq!(names, ["t"], "folders without a channel are not listed");
    assert!(matches!(directory.channel("lib"), Err(ChannelError::NotFound { .. })));
    assert_eq!(tree(dir.path()), before);
}

#[test]
fn removing_what_is_no_channel_is_refused_and_changes_nothing() {
    let dir = scratch();
    fs::create_dir_all(dir.path().join("proj/.git/objects")).unwrap();
    fs::write(dir.path().join("proj/.git/HEAD"), "ref: refs/heads/main").unwrap();
    fs::write(dir.path().join("proj/main.c"), "int main;").unwrap();
    fs::create_dir(dir.path().join("empty")).unwrap();
    // Another program's lock file, and another program's file named `segment`.
    fs::create_dir(dir.path().join("service")).unwrap();
    fs::write(dir.path().join("service/lock"), "1234\n").unwrap();
    fs::set_permissions(dir.path().join("service/lock"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::create_dir(dir.path().join("film")).unwrap();
    fs::write(dir.path().join("film/segment"), "RIFF....").unwrap();
    // Channels with one foreign file: beside the segment, and among the reader pages.
    for (name, foreign) in [("notes", "notes/notes.txt"), ("guest", "guest/readers/alice.txt")] {
        shmcast::Publisher::builder(name).dir(dir.path()).capacity(SMALL).open().unwrap().close();
        fs::write(dir.path().join(foreign), "mine").unwrap();
    }
    let before = tree(dir.path());
    let directory = Directory::at(dir.path());
    let entries = ["proj", "service", "film", "notes", "guest"].map(|name| refused(directory.remove(name)));
    assert!([".git", "main.c"].contains(&entries[0].as_str()), "{entries:?}");
    assert_eq!(entries[1..], ["lock", "segment", "notes.txt", "readers/alice.txt"]);
    assert!(matches!(directory.remove("empty"), Err(ChannelError::NotFound { .. })));
    assert_eq!(tree(dir.path()), before);
    // When the foreign file is gone, the channel can be removed.
    fs::remove_file(dir.path().join("guest/readers/alice.txt")).unwrap();
    let removed = directory.remove("guest").unwrap();
    assert_eq!(removed.files, ["lock", "readers", "segment"]);
    assert!(removed.bytes >= SMALL && !dir.path().join("guest").exists(), "{removed:?}");
}

#[test]
fn publishing_into_a_folder_of_somebodys_is_refused_before_anything_is_written() {
    let dir = scratch();
    for (name, file, content) in
        [("a", "lock", "my notes"), ("b", "letter.txt", "dear"), ("c", "segment", "RIFF")]
    {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join(file), content).unwrap();
    }
    // A lock file like ours, except that everybody may open it.
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/lock"), "").unwrap();
    fs::set_permissions(dir.path().join("d/lock"), fs::Permissions::from_mode(0o644)).unwrap();
    let before = tree(dir.path());
    for (name, entry) in [("a", "lock"), ("b", "letter.txt"), ("c", "segment"), ("d", "lock")] {
        let publisher = shmcast::Publisher::builder(name).dir(dir.path()).capacity(SMALL);
        assert_eq!(refused(publisher.open()), entry);
        assert_eq!(tree(dir.path()), before);
    }
}

#[test]
fn a_publisher_that_fails_leaves_the_folder_that_was_there() {
    let dir = scratch();
    let too_long = || publisher(dir.path()).capacity(SMALL).labels("x".repeat(5000)).open();
    assert!(matches!(too_long(), Err(ChannelError::Segment { .. })));
    assert_eq!(tree(dir.path()), [], "what it made itself is gone");
    fs::create_dir(dir.path().join("t")).unwrap();
    let before = tree(dir.path());
    assert!(matches!(too_long(), Err(ChannelError::Segment { .. })));
    assert_eq!(tree(dir.path()), before);
    closed_channel(dir.path());
}

#[test]
fn what_a_removal_left_is_swept_only_if_all_of_it_is_ours() {
    let dir = scratch();
    let victim = precious(dir.path());
    let left = |digit: char| dir.path().join(REMOVED.replace('0', &digit.to_string()));
    // The first is proved to be ours by its content; the others are one with a foreign file, a link, and one with
    // another name.
    for digit in ['a', 'b'] {
        closed_channel(dir.path());
        fs::rename(dir.path().join("t"), left(digit)).unwrap();
    }
    fs::write(left('b').join("letter.txt"), "dear").unwrap();
    symlink(&victim, left('c')).unwrap();
    fs::create_dir(dir.path().join(".removed-files")).unwrap();
    closed_channel(dir.path());
    let before = tree(dir.path());
    Directory::at(dir.path()).remove("t").unwrap();
    let gone = |path: &Path| path.starts_with(dir.path().join("t")) || path.starts_with(left('a'));
    let kept: Vec<_> = before.into_iter().filter(|(path, ..)| !gone(path)).collect();
    assert_eq!(tree(dir.path()), kept);
}

#[test]
fn a_channel_that_its_publisher_did_not_finish_can_be_removed_and_published() {
    let all = ["", "123\n", "segment", "readers"];
    for (left, is_removed) in all.into_iter().flat_map(|left| [(left, true), (left, false)]) {
        let dir = scratch();
        let path = dir.path().join("t");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("lock"), if left == "123\n" { left } else { "" }).unwrap();
        fs::set_permissions(path.join("lock"), fs::Permissions::from_mode(0o600)).unwrap();
        match left {
            "segment" => fs::write(path.join(".segment.new"), [0; 4096]).unwrap(),
            "readers" => fs::create_dir(path.join("readers")).unwrap(),
            _ => {}
        }
        let directory = Directory::at(dir.path());
        match directory.channel("t") {
            // Its publisher may be about to take the lock.
            Err(ChannelError::NotFound { .. }) if left.is_empty() => {}
            found => {
                let why = found.unwrap().detail.unwrap_err();
                assert!(why.contains("died doing so"), "{left}: {why}");
            }
        }
        if is_removed {
            directory.remove("t").unwrap();
            assert_eq!(tree(dir.path()), [], "{left}");
            assert!(matches!(directory.remove("t"), Err(ChannelError::NotFound { .. })));
        }
        closed_channel(dir.path());
    }
}
