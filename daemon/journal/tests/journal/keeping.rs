//! Old files that go for room, on small file systems in memory, and for their age.

use shmcast::journal::Streams;
use shmcast::journal::format::{FILE_HEADER_BYTES, FileHeader};
use shmcast::{History, Publisher, Start, Subscriber};
use shmcast_journal::core::Settings;
use shmcast_journal::{Keep, Recorder, Trimmed, hold};
use shmcast_testkit::disk::Small;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A journal of some files of nearly one size, and a smaller last one.
fn record(dir: &Path) -> usize {
    let channels = tempfile::TempDir::new().unwrap();
    let mut publisher = Publisher::builder("t").dir(channels.path()).capacity(16 << 20).open().unwrap();
    for _ in 0..9_000 {
        publisher.publish(&[7; 1_000]).unwrap();
    }
    let reader = Subscriber::builder("t").dir(channels.path()).start(Start::Oldest);
    let reader = reader.history(History::Never).open().unwrap();
    let settings = Settings { file_bytes: MIB, ..Settings::default() };
    Recorder::start(dir, reader, settings).unwrap().stop().unwrap();
    files(dir).len()
}

/// The files of its only stream, oldest first.
fn files(dir: &Path) -> Vec<PathBuf> {
    let streams = Streams::open(dir).unwrap();
    let journal = &streams.journals()[0];
    journal.files().iter().map(|file| journal.path().join(&file.name)).collect()
}

fn trim(dir: &Path, free: u64) -> Trimmed {
    let mut trimmed = Trimmed::default();
    let keep = Keep { free: Some(free), ..Keep::default() };
    keep.trim(&Streams::open(dir).unwrap(), None, 0, &mut trimmed).unwrap();
    trimmed
}

/// Readers of the past have each file open, and stop reading. Once the history was removed for room that never came, and all holds with it.
#[test]
fn files_that_readers_have_open_do_not_go_for_room() {
    let Some(disk) = Small::make("files_that_readers_have_open_do_not_go_for_room", 32) else { return };
    let dir = disk.path().join("journal");
    let count = record(&dir);
    assert!(count > 7, "{count} files");
    let stream = Streams::open(&dir).unwrap().journals()[0].stream().unwrap();
    hold(&dir, stream, "audit", 1).unwrap();
    let open = |files: &[PathBuf]| -> Vec<Option<File>> {
        files.iter().map(|file| Some(File::open(file).unwrap())).collect()
    };
    let size = files(&dir)[..count - 1].iter().map(|file| file.metadata().unwrap().len()).max().unwrap();
    let mut readers = open(&files(&dir));
    let free = disk.free() + 3 * size - 4096;
    let trimmed = trim(&dir, free);
    assert_eq!((trimmed.gone.len(), trimmed.broken.len(), trimmed.vain), (0, 0, count - 1), "{trimmed:?}");
    assert_eq!(trimmed.lacking, 3 * size - 4096);
    // One far behind gives room for one, and all before it would go for that.
    readers[count - 2] = None;
    assert_eq!(trim(&dir, free).gone.len(), 0);
    // Two of the oldest let go. What lies before these files goes with them, since the rest is one piece, and no more.
    readers[1] = None;
    readers[3] = None;
    let trimmed = trim(&dir, free);
    assert_eq!((trimmed.gone.len(), trimmed.vain), (4, count - 5), "{trimmed:?}");
    assert_eq!(trimmed.broken, ["audit"]);
    assert!((1..size + 64 * 1024).contains(&trimmed.lacking), "{trimmed:?}");
    assert_eq!(trim(&dir, free).gone.len(), 0, "although it is asked again and again");
    // Two that are removed already give their room, which is enough.
    (readers[0], readers[2]) = (None, None);
    let trimmed = trim(&dir, free);
    assert_eq!((trimmed.gone.len(), trimmed.vain, trimmed.lacking), (0, 0, 0));
    // A file with another name gives no room either.
    readers.clear();
    for (file, number) in files(&dir).iter().zip(0..) {
        std::fs::hard_link(file, disk.path().join(format!("copy-{number}"))).unwrap();
    }
    let trimmed = trim(&dir, disk.free() + MIB);
    assert_eq!((trimmed.gone.len(), trimmed.vain), (0, count - 5), "{trimmed:?}");
}

#[test]
fn files_that_are_open_go_by_size_and_age_all_the_same() {
    let Some(disk) = Small::make("files_that_are_open_go_by_size_and_age_all_the_same", 32) else { return };
    let dir = disk.path().join("journal");
    let count = record(&dir);
    let readers: Vec<File> = files(&dir).iter().map(|file| File::open(file).unwrap()).collect();
    let mut trimmed = Trimmed::default();
    let most: u64 = files(&dir)[count - 4..].iter().map(|file| file.metadata().unwrap().len()).sum();
    let keep = Keep { bytes: Some(most), free: Some(disk.free() + MIB), ..Keep::default() };
    keep.trim(&Streams::open(&dir).unwrap(), None, 0, &mut trimmed).unwrap();
    assert_eq!((trimmed.gone.len(), trimmed.vain, files(&dir).len()), (count - 4, 3, 4), "{trimmed:?}");
    drop(readers);
}

/// Each journal's thread measures the same room. Each once removed all that was lacking.
#[test]
fn journals_of_one_file_system_make_room_once() {
    let Some(disk) = Small::make("journals_of_one_file_system_make_room_once", 100) else { return };
    let dirs: Vec<PathBuf> = (0..6).map(|number| disk.path().join(number.to_string())).collect();
    for dir in &dirs {
        record(dir);
    }
    for _ in 0..3 {
        let (free, start) = (disk.free() + 4096, Barrier::new(dirs.len()));
        let gone: usize = std::thread::scope(|scope| {
            let trims = dirs.iter().map(|dir| {
                scope.spawn(|| {
                    start.wait();
                    trim(dir, free).gone.len()
                })
            });
            trims.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(gone, 1);
    }
}

/// Gives the file at this place another time of its beginning.
fn begun_at(dir: &Path, at: usize, wall_ns: u64) {
    let path = &files(dir)[at];
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut page = vec![0; FILE_HEADER_BYTES];
    file.read_exact_at(&mut page, 0).unwrap();
    let header = FileHeader { wall_ns, ..FileHeader::decode(&page).unwrap() };
    file.write_all_at(&header.encode().unwrap(), 0).unwrap();
}

/// The clock was a year ahead, or in 1970, when a file was begun. Files before it once stayed for a year, or were removed at once.
#[test]
fn a_file_that_was_begun_while_the_clock_was_wrong_keeps_and_costs_no_other() {
    const HOUR: u64 = 3_600_000_000_000;
    let now = 500_000 * HOUR;
    let begun = |at: usize| now - 100 * HOUR + at as u64 * HOUR;
    for (wrong, at) in [(now + 10_000 * HOUR, 3), (0, 1)] {
        let room = tempfile::TempDir::new().unwrap();
        let dir = room.path().join("journal");
        let count = record(&dir);
        (0..count).for_each(|file| begun_at(&dir, file, if file == at { wrong } else { begun(file) }));
        let gone = |age_hours: u64| {
            let (mut trimmed, age) = (Trimmed::default(), Duration::from_nanos(age_hours * HOUR));
            let keep = Keep { age: Some(age), ..Keep::default() };
            keep.trim(&Streams::open(&dir).unwrap(), None, now, &mut trimmed).unwrap();
            trimmed.gone.len()
        };
        assert_eq!(gone(100), 0, "all are younger");
        // Those that were over when file 6 was begun, and a moment before.
        assert_eq!(gone(93), 6);
    }
}
