//! Hostile publishers: they write after they were cut off, they write any word that they can, and they show other programs' memory.

use super::{Apart, publisher, reader, words};
use nix::sys::signal::Signal;
use serde_json::json;
use shmcast::PublishError;
use shmcast_layout::layout::header::MAGIC;
use shmcast_layout::ring::writer::Writer;
use shmcast_layout::segment::{Access, Segment};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::raw::{Raw, fds, publish, subscribe};
use shmcast_testkit::wait_until;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};

/// A publisher that still writes after it was cut off. The library would not do this.
struct Deaf {
    _place: Raw,
    writer: Writer,
    _lock: File,
}

impl Deaf {
    fn open(daemon: &Daemon) -> Self {
        let place = Raw::greeted(&daemon.socket());
        let (answer, files) = place.ask_for_files(&publish("ticks", false), &[]);
        assert_eq!(answer["reply"], "publishing", "{answer}");
        let [file, lock, _charter] = <[File; 3]>::try_from(files).unwrap();
        rustix::fs::fcntl_lock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        let segment = Segment::open(&file, Access::Write).unwrap();
        assert_eq!(place.ask(&json!({"request": "mapped"}), &[])["reply"], "done");
        Self { _place: place, writer: segment.writer(1, 0).unwrap(), _lock: lock }
    }

    fn say(&mut self, text: &str) {
        self.writer.publish(text.as_bytes(), 0, false, 0).unwrap();
    }
}

#[test]
fn void_messages_of_a_deaf_publisher_reach_no_reader_before_or_after_it_follows() {
    let daemon = Daemon::start(&super::config("strict"));
    let mut old = Deaf::open(&daemon);
    let apart = Apart::start(&daemon);
    old.say("valid");
    apart.wait_for("1 valid");
    apart.process.pause();
    daemon.client().take_over("ticks").unwrap();
    for round in 0..10_000 {
        old.say(&format!("void {round}"));
    }
    let mut late = reader(&daemon);
    let mut new = publisher(&daemon);
    new.publish(b"from the next").unwrap();
    assert_eq!(words(&mut late, "2 from the next"), ["epoch 2", "2 from the next"]);
    apart.process.signal(Signal::SIGCONT);
    assert_eq!(apart.wait_for("2 from the next"), ["ready", "1 valid", "epoch 2", "2 from the next"]);
}

/// A takeover does not depend on any word that a publisher can write to its segment.
#[test]
fn no_word_that_a_publisher_can_write_stops_a_takeover_or_brings_void_messages_back() {
    let daemon = Daemon::start(&super::config("strict"));
    let client = daemon.client();
    let mut epoch = 0;
    // Words of the header: frontier, state, lazy line, first sequence, a word that once was the generation, remote
    // session.
    for at in [16, 32, 33, 48, 49, 50, 51, 56, 57, 58, 59] {
        for value in [0, 1, u64::MAX, 1 << 62, 1 << 47] {
            let mut old = publisher(&daemon);
            assert!(old.epoch() > epoch || old.next_sequence() == 1, "{at}: {value:#x}");
            let mut subscriber = reader(&daemon);
            let valid = old.publish(b"valid").unwrap();
            words(&mut subscriber, &format!("{valid} valid"));
            deface(&daemon, at, value);
            client.take_over("ticks").unwrap_or_else(|e| panic!("word {at}, {value:#x}: {e}"));
            assert_eq!(old.publish(b"void"), Err(PublishError::CutOff));
            let mut new = publisher(&daemon);
            epoch = new.epoch();
            let sequence = new.publish(b"next").unwrap();
            let heard = words(&mut subscriber, &format!("{sequence} next"));
            assert!(!heard.iter().any(|word| word.contains("void")), "word {at}, {value:#x}: {heard:?}");
            client.take_over("ticks").unwrap();
        }
    }
}

/// Stores a word into the header page of the channel's segment. This process is the publisher, and writes through its
/// own map.
fn deface(daemon: &Daemon, word: usize, value: u64) {
    let uuid = daemon.client().channel("ticks").unwrap().uuid;
    for fd in fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let path = fd.path();
        let is_segment =
            fs::read_link(&path).is_ok_and(|link| link.to_string_lossy() == "/memfd:shmcast:ticks (deleted)");
        let Some(file) = is_segment.then(|| File::open(&path).ok()).flatten() else { continue };
        let header = Segment::open(&file, Access::Read).unwrap();
        let [high, low] = header.header().uuid;
        if format!("{high:016x}{low:016x}") == uuid {
            return write_through_a_map(&file, word, value);
        }
    }
    panic!("no descriptor of the segment");
}

/// The segment is sealed against new writable maps. So this writes through the map that the publisher already has, as a hostile publisher
/// would.
fn write_through_a_map(file: &File, word: usize, value: u64) {
    let inode = file.metadata().unwrap().ino();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let writable = maps.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it =
            fields[1].starts_with("rw-s") && fields[2] == "00000000" && fields[4] == inode.to_string();
        is_it.then(|| u64::from_str_radix(fields[0].split('-').next().unwrap(), 16).unwrap())
    });
    let memory = OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
    memory
        .write_all_at(&value.to_le_bytes(), writable.expect("the publisher's map") + 8 * word as u64)
        .unwrap();
}

/// After a crash, a publisher of one channel shows its memory to the next daemon as another channel's.
#[test]
fn memory_of_one_channel_cannot_be_passed_off_as_anothers() {
    let [a, b] = ["a", "b"].map(|name| channel(name, FOR_ALL).replace("16MiB", "1MiB"));
    let mut daemon = Daemon::start(&[a, b].concat());
    let client = daemon.client();
    let attached = Raw::greeted(&daemon.socket());
    let (_, files) = attached.ask_for_files(&publish("a", false), &[]);
    let mut honest = publishing(&client, "b").open().unwrap();
    honest.publish(b"truth").unwrap();
    let real = client.channel("b").unwrap().uuid;
    // The publisher writes the other channel's name into its own segment, with a valid checksum.
    let segment = Segment::open(&files[0], Access::Read).unwrap();
    let mut words = segment.header().clone();
    words.channel = "b".into();
    let mut words = words.to_words().unwrap();
    words[0] = MAGIC;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    files[0].write_all_at(&bytes, 0).unwrap();
    daemon.crash();
    let raw = Raw::greeted(&daemon.socket());
    raw.assert_refused(&publish("b", true), &fds(&files[..2]), "busy");
    let page = {
        let other = Raw::greeted(&daemon.socket());
        wait_until("the honest publisher to come back", || honest.is_registered() == Some(true));
        let [_, _, page, _] = other.subscribe("b");
        page
    };
    let shown = [files[0].as_fd(), files[1].as_fd(), page.as_fd()];
    assert_eq!(Raw::greeted(&daemon.socket()).ask(&subscribe("b", true), &shown)["reply"], "subscribed");
    assert_eq!(client.channel("b").unwrap().uuid, real);
    assert_eq!(honest.publish(b"still").unwrap(), 2);
}
