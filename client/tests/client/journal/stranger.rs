//! A program that was written from JOURNAL.md alone, in Python, reads the same as this library does.

use crate::journal::book::{Book, read_dir};
use shmcast::journal::format::{FILE_HEADER_BYTES, FRAME_HEADER_BYTES};
use shmcast::journal::{Cause, Entry, Journal, JournalControl, Loss, Verify};
use shmcast_testkit::{scratch, skip};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The journal as this library reads it, in the words of the other program.
fn ours(dir: &Path) -> String {
    let journal = Journal::open(dir).unwrap();
    let first = journal.first_sequence().unwrap();
    let mut reader = journal.read_from(first).unwrap();
    let mut text = String::new();
    while let Some(entry) = reader.next().unwrap() {
        match entry {
            Entry::Message(m) => {
                let hex: String = m.payload.iter().map(|byte| format!("{byte:02x}")).collect();
                writeln!(text, "M {} {} {} {} {hex}", m.sequence, m.tag, u8::from(m.key), m.time).unwrap();
            }
            Entry::Lost(Loss { from, to, cause }) => {
                writeln!(text, "L {from} {to} {}", cause.number()).unwrap();
            }
            Entry::Control { sequence, control, .. } => {
                let (words, _) = control.words();
                let count = match words[0] {
                    1 | 67 | 68 => 2,
                    3 | 4 => 3,
                    64 => 6,
                    66 | 69 => 4,
                    _ => 1,
                };
                let words: Vec<String> = words[..count].iter().map(u64::to_string).collect();
                writeln!(text, "C {sequence} {}", words.join(" ")).unwrap();
            }
            _ => unreachable!(),
        }
    }
    text
}

fn theirs(dir: &Path) -> Option<String> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shm-layout/tests/journal_reader.py");
    let lines = fs::read_to_string(&program).unwrap().lines().count();
    assert!(lines <= 200, "{lines} lines: the format is to be simple enough for 200");
    let output = match Command::new("python3").arg(&program).arg(dir).output() {
        Ok(output) => output,
        Err(e) => {
            skip("a_stranger_reads_the_same", format!("python3: {e}"));
            return None;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().replace(" \n", "\n"))
}

fn assert_same(dir: &Path) {
    if let Some(theirs) = theirs(dir) {
        let ours = ours(dir).replace(" \n", "\n");
        assert!(!ours.is_empty());
        assert_eq!(theirs, ours);
    }
}

#[test]
fn a_stranger_reads_every_golden_file() {
    assert_same(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../shm-layout/tests/golden/journal"));
}

/// The third file begins before the second, which says nothing then.
#[test]
fn a_file_ends_where_any_later_one_begins() {
    let dir = scratch();
    let mut book = Book::new(dir.path());
    book.begin();
    book.frame(&[], 20);
    book.seal();
    book.begin();
    book.frame(&[], 20);
    book.seal();
    book.go_back(15);
    book.begin();
    book.frame(&[], 6);
    let loss = Loss { from: book.due(), to: book.due() + 9, cause: Cause::Unrecorded };
    book.frame(&[JournalControl::Loss(loss)], 10);
    book.seal();
    assert_same(dir.path());
    let found = read_dir(dir.path());
    assert_eq!((found.messages, found.due, &found.losses[..]), (30, 41, &[loss][..]));
    let journal = Journal::open(dir.path()).unwrap();
    let verified = Verify::new(&journal).run(|_| ()).unwrap();
    assert_eq!((verified.damages, verified.losses, verified.messages), (vec![], vec![loss], 30));
}

#[test]
fn a_stranger_reads_the_same_of_damaged_journals() {
    let dir = scratch();
    let mut book = Book::new(dir.path());
    for _ in 0..3 {
        book.begin();
        let due = book.due();
        book.frame(&[JournalControl::Loss(Loss { from: due, to: due + 3, cause: Cause::Unrecorded })], 5);
        book.frame(&[], 7);
        book.index();
        book.frame(&[], 3);
        book.seal();
    }
    book.begin();
    book.frame(&[], 4);
    book.frame(&[], 4);
    book.leave(4096);
    assert_same(dir.path());
    let places: Vec<_> = book.frames.iter().map(|frame| (frame.0.clone(), frame.1)).collect();
    for (name, offset) in places {
        for at in [offset as usize + 5, offset as usize + FRAME_HEADER_BYTES + 20] {
            assert!(at >= FILE_HEADER_BYTES);
            let was = fs::read(&name).unwrap();
            let mut bytes = was.clone();
            bytes[at] ^= 0x10;
            fs::write(&name, bytes).unwrap();
            assert_same(dir.path());
            fs::write(&name, was).unwrap();
        }
    }
}
