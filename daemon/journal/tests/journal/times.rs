//! Messages by their times, where the wall clock was set back or forward.

use shmcast::journal::format::{Composer, FileHeader, file_name};
use shmcast::journal::{Entry, Journal, folder_of, header_of};
use shmcast::{Event, History, Publisher, Start, Subscriber};
use shmcast_journal::Recorder;
use shmcast_journal::core::{Begin, Frame, Now, Packer, Packing, Pool, Settings, SyncPolicy};
use shmcast_testkit::wait_until;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

const SECOND_NS: u64 = 1_000_000_000;

fn wall_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Writes one file with these frames.
fn write(dir: &Path, header: &FileHeader, frames: &[Frame], is_sealed: bool) {
    let (mut composer, page) = Composer::begin(header).unwrap();
    let mut bytes = page.into_vec();
    for frame in frames {
        let head = composer.place(&frame.draft, 0);
        bytes.extend_from_slice(&head.encode());
        bytes.extend_from_slice(&frame.bytes[head.encode().len()..]);
    }
    if is_sealed {
        bytes.extend_from_slice(&composer.seal(0));
    }
    fs::write(dir.join(file_name(header.file, header.sequence)), bytes).unwrap();
}

fn frames_of(packer: &mut Packer) -> Vec<Frame> {
    packer.close();
    std::iter::from_fn(|| packer.take()).collect()
}

/// All messages of a journal with their times, as a reader that reads all of it sees them.
fn all(dir: &Path) -> Vec<(u64, u64)> {
    let mut reader = Journal::open(dir).unwrap().read_from(1).unwrap();
    let mut all = Vec::new();
    while let Some(entry) = reader.next().unwrap() {
        if let Entry::Message(message) = entry {
            let (sequence, time) = (message.sequence, message.time);
            all.push((sequence, reader.wall_ns(time).unwrap()));
        }
    }
    all
}

fn first_since(dir: &Path, time_ns: u64) -> Option<u64> {
    let mut reader = Journal::open(dir).unwrap().read_since(time_ns).unwrap();
    match reader.next().unwrap() {
        Some(Entry::Message(message)) => Some(message.sequence),
        _ => None,
    }
}

/// A journal of some recordings, each of some files. The clock is set again and again. Whatever time is asked for, the first message in the
/// order of the stream is found that has it or a later one.
#[test]
fn no_message_of_a_time_or_later_is_left_out_however_the_clock_was_set() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (channels, journal) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let publisher = Publisher::builder("t").dir(channels.path()).capacity(64 << 10).open().unwrap();
        let mut header = header_of(publisher.header()).unwrap();
        header.ring.clock_hz = SECOND_NS;
        let dir = folder_of(journal.path(), header.stream);
        fs::create_dir(&dir).unwrap();
        let (mut mono, mut ahead_ns, mut next, mut file) =
            (Duration::from_secs(100), 1_000 * SECOND_NS, 1, 0);
        let (recordings, packing) = (rng.u64(1..4), Packing { target: 600, ..Packing::default() });
        for recording in 1..=recordings {
            let latest_ns = all_so_far(&dir).into_iter().map(|(_, ns)| ns).max().unwrap_or(0);
            let begun = FileHeader { sequence: next, ..header.clone() };
            let begin = Begin { header: Arc::new(begun), loss: None, mended: &[], reserve: 0, latest_ns };
            let now =
                |mono: Duration, ahead_ns: u64| Now { mono, wall_ns: mono.as_nanos() as u64 + ahead_ns };
            let ticks = |mono: Duration| mono.as_nanos() as u64;
            let mut packer =
                Packer::begin(packing, Pool::default(), &begin, now(mono, ahead_ns), ticks(mono));
            let files = rng.u64(1..4);
            for of_recording in 1..=files {
                let first = next;
                for _ in 0..rng.u64(1..200) {
                    mono += Duration::from_millis(rng.u64(0..300));
                    if rng.u8(0..30) == 0 {
                        ahead_ns = 1_000 * SECOND_NS + rng.u64(0..60) * SECOND_NS;
                    }
                    packer.at(now(mono, ahead_ns), ticks(mono));
                    assert!(packer.message(next, &[7; 40], 0, false, ticks(mono)));
                    next += 1;
                    if rng.u8(0..20) == 0 {
                        packer.close();
                    }
                }
                file += 1;
                let is_last = recording == recordings && of_recording == files;
                let header = FileHeader { file, salt: file, sequence: first, ..header.clone() };
                write(&dir, &header, &frames_of(&mut packer), !is_last || rng.bool());
            }
        }
        let all = all(journal.path());
        assert_eq!(all.len() as u64, next - 1, "seed {seed}");
        let (least, greatest) = (all[0].1, all.iter().map(|(_, ns)| *ns).max().unwrap());
        for turn in 0..200 {
            let time_ns = match turn % 2 {
                0 => rng.u64(least - SECOND_NS..greatest + SECOND_NS),
                _ => rng.choice(&all).unwrap().1 + rng.u64(0..2),
            };
            let wanted = all.iter().find(|(_, ns)| *ns >= time_ns).map(|(sequence, _)| *sequence);
            assert_eq!(first_since(journal.path(), time_ns), wanted, "seed {seed}, {time_ns}");
        }
    }
}

fn all_so_far(dir: &Path) -> Vec<(u64, u64)> {
    if fs::read_dir(dir).unwrap().next().is_some() { all(dir) } else { Vec::new() }
}

/// A journal whose clock was an hour ahead is continued by a recorder after the clock was set right. A reader that begins at a time between
/// gets what was published under the wrong clock, although the ring, which knows ages only, takes it for earlier.
#[test]
fn a_reader_that_begins_at_a_time_gets_what_was_published_before_the_clock_was_set_back() {
    let (channels, journal) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut publisher = Publisher::builder("t").dir(channels.path()).capacity(1 << 20).open().unwrap();
    let subscriber = |start| {
        let builder = Subscriber::builder("t").dir(channels.path()).start(start);
        builder.history(History::Dir(journal.path().to_owned()))
    };
    let ring = || subscriber(Start::Oldest).history(History::Never).open().unwrap();
    let header = FileHeader { file: 1, sequence: 1, epoch: 1, ..header_of(publisher.header()).unwrap() };
    let dir = folder_of(journal.path(), header.stream);
    fs::create_dir(&dir).unwrap();
    let ahead = |ns: u64| wall_ns() + 3_600 * SECOND_NS - ns;
    let begin = Begin { header: Arc::new(header.clone()), loss: None, mended: &[], reserve: 0, latest_ns: 0 };
    let now = Now { mono: Duration::ZERO, wall_ns: ahead(0) };
    let mut packer = Packer::begin(Packing::default(), Pool::default(), &begin, now, ring().clock().now());
    for sequence in 1..=10 {
        publisher.publish(b"ahead").unwrap();
        let ticks = ring().clock().now();
        packer.at(Now { mono: Duration::from_millis(sequence), wall_ns: ahead(0) }, ticks);
        assert!(packer.message(sequence, b"ahead", 0, false, ticks));
    }
    write(&dir, &header, &frames_of(&mut packer), true);
    let settings = Settings { sync: SyncPolicy::Each, ..Settings::default() };
    let recorder = Recorder::start(journal.path(), ring(), settings.clone()).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let set_back = wall_ns();
    std::thread::sleep(Duration::from_millis(20));
    for _ in 0..10 {
        publisher.publish(b"right").unwrap();
    }
    wait_until("the rest", || recorder.progress().durable == 20);
    let begins = |time_ns: u64| {
        let mut reader = subscriber(Start::Time(UNIX_EPOCH + Duration::from_nanos(time_ns))).open().unwrap();
        match reader.try_recv().unwrap() {
            Some(Event::Message(message)) => Some(message.sequence),
            _ => reader.recv_deadline(std::time::Instant::now() + Duration::from_secs(2)).unwrap().and_then(
                |event| {
                    if let Event::Message(message) = event { Some(message.sequence) } else { None }
                },
            ),
        }
    };
    assert_eq!(begins(set_back), Some(1), "the journal says that it was published later");
    assert_eq!(begins(ahead(1_800 * SECOND_NS)), Some(1));
    assert_eq!(first_since(journal.path(), set_back), Some(1));
    assert_eq!(begins(ahead(0) + 60 * SECOND_NS), None, "nothing is as late");
    recorder.stop().unwrap();
    // The next recording knows how late the last one was.
    publisher.publish(b"again").unwrap();
    let recorder = Recorder::start(journal.path(), ring(), settings).unwrap();
    wait_until("the last", || recorder.progress().durable == 21);
    recorder.stop().unwrap();
    assert_eq!(first_since(journal.path(), set_back), Some(1));
    let last = Journal::open(journal.path()).unwrap().files().last().unwrap().trailer.unwrap();
    assert!(last.least_ns > ahead(60 * SECOND_NS), "an index time never falls");
}
