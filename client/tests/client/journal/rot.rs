//! Damage of every kind: it costs one frame at most, it is found, and nothing false is ever read.

use crate::journal::book::{Book, Found, payload, read, read_dir};
use proptest::prelude::*;
use shmcast::StreamId;
use shmcast::journal::format::{ControlRecord, FileHeader};
use shmcast::journal::{Cause, Entry, Journal, JournalControl, Loss, Verdict, Verify};
use shmcast_testkit::{PATIENCE, scratch};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const HEADER: u64 = 4096;

/// A sealed file and one that is not, each of some frames.
fn small(dir: &Path) -> Book {
    let mut book = Book::new(dir);
    book.begin();
    let source = JournalControl::Source { ring: book.ring, generation: 0, epoch: 1, first: 1 };
    book.frame(&[source], 2);
    book.frame(&[], 3);
    book.index();
    book.frame(&[JournalControl::Loss(Loss { from: 6, to: 9, cause: Cause::Overrun })], 2);
    book.seal();
    book.begin();
    book.frame(&[], 2);
    book.frame(&[], 3);
    book.frame(&[], 1);
    book.leave(64);
    book
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn damaged(found: &Found) -> u64 {
    found.losses.iter().filter(|loss| loss.cause == Cause::Damaged).map(|loss| loss.to - loss.from + 1).sum()
}

fn is_found(dir: &Path) -> bool {
    let journal = Journal::open(dir).unwrap();
    Verify::new(&journal).run(|_| ()).unwrap().verdict() == Verdict::Damaged
}

/// A recorder begins another file right behind the records of an end and of another epoch.
#[test]
fn control_records_at_the_end_of_a_sealed_file_are_read() {
    let dir = scratch();
    let mut book = Book::new(dir.path());
    book.begin();
    book.frame(&[], 3);
    let [end, epoch] = [ControlRecord::End, ControlRecord::Epoch { epoch: 2 }].map(JournalControl::Ring);
    book.frame(&[end, epoch], 0);
    book.seal();
    book.begin();
    book.frame(&[], 2);
    book.show();
    let mut reader = Journal::open(dir.path()).unwrap().read_from(1).unwrap();
    let (mut messages, mut controls) = (0, Vec::new());
    while let Some(entry) = reader.next().unwrap() {
        match entry {
            Entry::Message(_) => messages += 1,
            Entry::Control { sequence, control: JournalControl::Ring(control), .. } => {
                controls.push((sequence, control));
            }
            Entry::Lost(loss) => panic!("{loss:?}"),
            _ => {}
        }
    }
    assert_eq!((messages, reader.due()), (5, 6));
    assert_eq!(controls, [(4, ControlRecord::End), (4, ControlRecord::Epoch { epoch: 2 })]);
}

/// A recorder is killed between the name of a file and its first bytes.
#[test]
fn a_last_file_that_has_nothing_yet_is_no_damage() {
    let dir = scratch();
    let book = small(dir.path());
    let unwritten = |number: u64| dir.path().join(format!("{number:010}-{:020}.smj", book.due()));
    for bytes in [0, 100, 4096, 1 << 20] {
        fs::write(unwritten(3), vec![0; bytes]).unwrap();
        assert!(!is_found(dir.path()), "{bytes} B of zeros");
    }
    fs::remove_file(unwritten(3)).unwrap();
    // It is not the last one, and the last one says that what was in it was durable.
    let first = files(dir.path())[0].clone();
    let bytes = fs::metadata(&first).unwrap().len() as usize;
    fs::write(first, vec![0; bytes]).unwrap();
    assert!(is_found(dir.path()));
}

/// A recorder seals its file while that is checked.
#[test]
fn a_file_that_is_sealed_while_it_is_checked_is_whole() {
    let dir = scratch();
    let mut book = Book::new(dir.path());
    book.begin();
    for _ in 0..5 {
        book.frame(&[], 3);
    }
    book.show();
    let journal = Journal::open(dir.path()).unwrap();
    let verified = Verify::new(&journal).run(|so_far| {
        if so_far.frames == 1 {
            book.seal();
        }
    });
    let verified = verified.unwrap();
    assert_eq!((verified.verdict(), verified.messages), (Verdict::Whole, 15), "{verified:?}");
}

/// Retention removes the oldest files while the journal is checked, and overtakes the check. Files that are left make no hole with those that
/// were checked before.
#[test]
fn files_that_are_removed_while_others_are_checked_are_no_damage() {
    let removing = |removed: std::ops::Range<usize>| {
        let dir = scratch();
        let mut book = Book::new(dir.path());
        for _ in 0..4 {
            book.begin();
            book.frame(&[], 3);
            book.seal();
        }
        let journal = Journal::open(dir.path()).unwrap();
        let names = files(dir.path());
        let verified = Verify::new(&journal).run(|so_far| {
            if so_far.files == 0 && names[removed.start].exists() {
                names[removed.clone()].iter().for_each(|name| fs::remove_file(name).unwrap());
            }
        });
        verified.unwrap()
    };
    let left = removing(0..2);
    assert_eq!((left.verdict(), left.files, left.messages), (Verdict::Whole, 2, 6), "{left:?}");
    assert_eq!(left.sequences, Some((7, 13)));
    // The file before the hole is still there.
    let holed = removing(1..3);
    assert_eq!((holed.verdict(), holed.lost(Cause::Damaged)), (Verdict::Damaged, 6), "{holed:?}");
}

/// Checks what is read after a change of some bytes at `at` in file number `file`, which were all within one sector.
fn judge(dir: &Path, book: &Book, file: usize, at: u64, bytes: u64) {
    let found = read_dir(dir);
    let name = &files(dir)[file];
    let of_file: Vec<_> = book.frames.iter().filter(|frame| frame.0 == *name).collect();
    let (last, end) = of_file.last().map(|frame| (frame.1, frame.1 + frame.2)).unwrap();
    let is_last_frame = file == 1 && at + bytes > last;
    let what = format!("byte {at} of file {file}: {found:?}");
    if at < HEADER {
        // Without its header a file cannot be read. The other one can.
        if file == 0 {
            assert_eq!((found.first, found.due, damaged(&found)), (12, book.due(), 0), "{what}");
        } else {
            assert_eq!((found.first, found.due, damaged(&found)), (1, 12, 0), "{what}");
        }
        assert!(is_found(dir), "{what}");
        return;
    }
    let hit: u64 = of_file
        .iter()
        .filter(|frame| at < frame.1 + frame.2 && at + bytes > frame.1)
        .map(|frame| frame.4 - frame.3)
        .sum();
    assert_eq!(found.first, 1);
    assert!(damaged(&found) <= hit, "it cost more than its frame: {what}");
    if is_last_frame {
        // It looks like a frame that was not written to its end.
        assert!(found.due >= book.due() - hit, "{what}");
    } else {
        assert_eq!(found.due, book.due(), "{what}");
    }
    let means_nothing = file == 1 && at >= end;
    assert!(means_nothing || is_last_frame || is_found(dir), "not found: {what}");
}

/// Changes bytes, judges, and changes them back.
fn with_change(dir: &Path, book: &Book, file: usize, at: u64, change: impl FnOnce(&mut [u8]), bytes: usize) {
    let open = OpenOptions::new().read(true).write(true).open(&files(dir)[file]).unwrap();
    let mut was = vec![0; bytes];
    open.read_exact_at(&mut was, at).unwrap();
    let mut is = was.clone();
    change(&mut is);
    if is == was {
        return;
    }
    open.write_all_at(&is, at).unwrap();
    judge(dir, book, file, at, bytes as u64);
    open.write_all_at(&was, at).unwrap();
}

/// One bit of each byte of file `file`, each bit of a byte in its turn, and of zeros one bit of eight bytes. `SHMCAST_ROT=all` flips all.
fn flip_bits(file: usize) {
    let parts = 2;
    let all = std::env::var_os("SHMCAST_ROT").is_some_and(|rot| rot == "all");
    std::thread::scope(|threads| {
        for part in 0..parts {
            threads.spawn(move || {
                let dir = scratch();
                let book = small(dir.path());
                assert!(!is_found(dir.path()));
                let content = fs::read(&files(dir.path())[file]).unwrap();
                for at in (0..content.len() as u64).filter(|at| at % parts == part) {
                    let is_zeros = content[at as usize & !63..][..64] == [0; 64];
                    let bits = match at / parts % 8 {
                        _ if all => 0..8,
                        0 if is_zeros => 0..1,
                        _ if is_zeros => 0..0,
                        bit => bit..bit + 1,
                    };
                    for bit in bits {
                        with_change(dir.path(), &book, file, at, |byte| byte[0] ^= 1 << bit, 1);
                    }
                }
            });
        }
    });
}

#[test]
fn a_bit_of_a_sealed_file_flipped_costs_its_frame_at_most() {
    flip_bits(0);
}

#[test]
fn a_bit_of_a_growing_file_flipped_costs_its_frame_at_most() {
    flip_bits(1);
}

#[test]
fn every_sector_zeroed_costs_its_frames_at_most() {
    let dir = scratch();
    let book = small(dir.path());
    for file in 0..2 {
        let bytes = fs::metadata(&files(dir.path())[file]).unwrap().len();
        for at in (0..bytes.saturating_sub(63)).step_by(64) {
            with_change(dir.path(), &book, file, at, |sector| sector.fill(0), 64);
        }
    }
}

/// Larger frames, and sectors of 512 bytes: one frame of many is lost.
#[test]
fn a_zeroed_sector_of_a_large_journal_costs_one_frame_or_two() {
    let dir = scratch();
    let mut book = Book::new(dir.path());
    for _ in 0..2 {
        book.begin();
        for frame in 0..12 {
            book.frame(&[], 60);
            if frame % 8 == 7 {
                book.index();
            }
        }
        book.seal();
    }
    for (file, name) in files(dir.path()).iter().enumerate() {
        let bytes = fs::metadata(name).unwrap().len();
        for at in (HEADER..bytes - 511).step_by(512) {
            let open = OpenOptions::new().read(true).write(true).open(name).unwrap();
            let mut was = vec![0; 512];
            open.read_exact_at(&mut was, at).unwrap();
            open.write_all_at(&[0; 512], at).unwrap();
            let found = read_dir(dir.path());
            assert_eq!((found.first, found.due), (1, book.due()), "sector at {at} of file {file}");
            assert!(damaged(&found) <= 120, "sector at {at} of file {file}: {found:?}");
            assert!(was == [0; 512] || is_found(dir.path()));
            open.write_all_at(&was, at).unwrap();
        }
    }
}

#[test]
fn files_that_are_swapped_missing_doubled_or_of_another_journal() {
    let write = || {
        let dir = scratch();
        let mut book = Book::new(dir.path());
        for _ in 0..4 {
            book.begin();
            book.frame(&[], 10);
            book.frame(&[], 10);
            book.seal();
        }
        (dir, book)
    };
    // Names mean nothing: the headers decide.
    let (dir, book) = write();
    let names = files(dir.path());
    fs::rename(&names[1], dir.path().join("x")).unwrap();
    fs::rename(&names[2], &names[1]).unwrap();
    fs::rename(dir.path().join("x"), &names[2]).unwrap();
    let found = read_dir(dir.path());
    assert_eq!((found.messages, found.due, damaged(&found)), (80, book.due(), 0));
    // One is missing: exactly its sequences are.
    fs::remove_file(&names[1]).unwrap();
    let found = read_dir(dir.path());
    assert_eq!(found.losses, [Loss { from: 41, to: 60, cause: Cause::Damaged }]);
    assert!(is_found(dir.path()));
    // The oldest is missing: retention does that.
    let (dir, _) = write();
    let names = files(dir.path());
    fs::remove_file(&names[0]).unwrap();
    let found = read_dir(dir.path());
    assert_eq!((found.first, found.messages, damaged(&found)), (21, 60, 0));
    // A copy under another name, and a file of another journal.
    fs::copy(&names[2], dir.path().join("0000000009-00000000000000000001.smj")).unwrap();
    let found = read_dir(dir.path());
    assert_eq!((found.first, found.messages, damaged(&found)), (21, 60, 0));
    assert!(is_found(dir.path()));
    let (other, _) = write();
    let foreign = files(other.path())[3].clone();
    let mut bytes = fs::read(&foreign).unwrap();
    let mut header = FileHeader::decode(&bytes).unwrap();
    header.stream = StreamId::from_bytes(*b"another-stream!!");
    bytes[..4096].copy_from_slice(&header.encode().unwrap());
    fs::write(dir.path().join("0000000008-00000000000000000061.smj"), bytes).unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    assert_eq!(journal.problems().len(), 2);
    assert_eq!(read(journal.read_from(1).unwrap()).messages, 60);
}

/// A frame that is larger than any hole that a recorder leaves, damaged in a file that is still written: its sequences are lost, and no
/// more.
#[test]
fn a_large_damaged_frame_of_a_growing_file_costs_no_more_than_itself() {
    let dir = scratch();
    let mut book = Book::new(dir.path());
    book.begin();
    book.frame(&[], 3);
    book.frame(&[], 200_000);
    book.frame(&[], 3);
    book.show();
    let (path, offset, bytes, ..) = book.frames[1].clone();
    assert!(bytes > 8 << 20, "{bytes}");
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(b"not what was written", offset + bytes / 2).unwrap();
    let lock = fs::File::create(dir.path().join("lock")).unwrap();
    let _held = shmcast::journal::take_lock(lock).unwrap().unwrap();
    let mut reader = Journal::open(dir.path()).unwrap().read_from(1).unwrap();
    let deadline = std::time::Instant::now() + PATIENCE;
    let (mut messages, mut losses) = (0, Vec::new());
    while reader.due() < book.due() {
        match reader.next().unwrap() {
            Some(Entry::Message(_)) => messages += 1,
            Some(Entry::Lost(loss)) => losses.push(loss),
            _ => assert!(std::time::Instant::now() < deadline, "{messages} messages, {losses:?}"),
        }
    }
    assert_eq!((messages, &losses[..]), (6, &[Loss { from: 4, to: 200_003, cause: Cause::Damaged }][..]));
}

/// A payload that holds the image of a frame of another file is never read as one.
#[test]
fn a_payload_that_looks_like_frames_is_none() {
    let dir = scratch();
    let mut book = Book::new(dir.path());
    book.begin();
    book.frame(&[], 3);
    book.seal();
    book.begin();
    book.frame(&[], 3);
    book.seal();
    let names = files(dir.path());
    let first = fs::read(&names[0]).unwrap();
    let mut second = fs::read(&names[1]).unwrap();
    // The frame of the first file stands where one of the second was.
    second[4096..4096 + 256].copy_from_slice(&first[4096..4096 + 256]);
    fs::write(&names[1], second).unwrap();
    let found = read_dir(dir.path());
    assert_eq!(found.losses, [Loss { from: 4, to: 6, cause: Cause::Damaged }]);
    assert_eq!(payload(1).len(), 15);
}

#[test]
fn links_pipes_and_directories_are_not_opened() {
    let dir = scratch();
    let mut book = Book::new(dir.path());
    book.begin();
    book.frame(&[], 3);
    book.seal();
    let elsewhere = scratch();
    let names = files(dir.path());
    fs::rename(&names[0], elsewhere.path().join("real")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("real"), &names[0]).unwrap();
    nix::unistd::mkfifo(
        &dir.path().join("0000000002-00000000000000000004.smj"),
        nix::sys::stat::Mode::S_IRWXU,
    )
    .unwrap();
    fs::create_dir(dir.path().join("0000000003-00000000000000000004.smj")).unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    assert_eq!((journal.files().len(), journal.problems().len()), (0, 3));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes of any kind in any place: nothing false is read, and no reader panics or hangs.
    #[test]
    fn garbage_anywhere(changes in prop::collection::vec((0..2usize, any::<u64>(), prop::collection::vec(any::<u8>(), 1..600)), 1..6)) {
        let dir = scratch();
        let _book = small(dir.path());
        for (file, at, bytes) in changes {
            let name = &files(dir.path())[file];
            let size = fs::metadata(name).unwrap().len();
            let open = OpenOptions::new().write(true).open(name).unwrap();
            open.write_all_at(&bytes, at % size).unwrap();
        }
        read_dir(dir.path());
        let journal = Journal::open(dir.path()).unwrap();
        Verify::new(&journal).run(|_| ()).unwrap();
    }
}
