//! The suite itself: its writer is the library's, the library passes, and each planted fault is found.

#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

use shmcast_conformance::model::Model;
use shmcast_conformance::scribe::{self, DATA, Scribe};
use shmcast_conformance::stage::nameless;
use shmcast_conformance::testee::Testee;
use shmcast_conformance::{Effort, LEVELS, play, vectors};
use shmcast_layout::layout::record::ControlRecord;
use shmcast_layout::segment::{Access, Segment};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

const TESTEE: &str = env!("CARGO_BIN_EXE_shmcast-testee");

fn file_of(words: &[u64]) -> File {
    let file = nameless().unwrap();
    file.write_all_at(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>(), 0).unwrap();
    file
}

fn words_of(file: &File) -> Vec<u64> {
    let mut bytes = vec![0; scribe::WORDS * 8];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

#[test]
fn the_writer_by_the_document_leaves_the_bytes_of_the_library() {
    for seed in 0..30 {
        let mut dice = fastrand::Rng::with_seed(seed);
        let file = file_of(&scribe::empty());
        let segment = Segment::open(&file, Access::Write).unwrap();
        let mut library = segment.writer(1234, 1).unwrap();
        let mut model = Model::new(scribe::empty());
        let mut scribe = Scribe::take(scribe::empty(), (0, 1), 1);
        for time in 2..2 + dice.u64(1..2000) {
            match dice.u8(0..60) {
                0 => {
                    let to = scribe.next_sequence() + dice.u64(0..5);
                    library.gap(to, time).unwrap();
                    scribe.gap(to, time);
                }
                1 => {
                    library.session(*b"SESSION-11", time);
                    scribe.session(*b"SESSION-11", time);
                }
                2 => {
                    library.close(time);
                    scribe.close(time);
                    scribe.stores.drain(..).for_each(|store| model.apply(&store));
                    library = segment.writer(1234, time).unwrap();
                    scribe = Scribe::take(model.words.clone(), model.tail(), time);
                }
                _ => {
                    // Whole words: what lies behind a payload in its last word means nothing.
                    let most = if dice.u8(0..9) == 0 { 1000 } else { 40 };
                    let payload = vec![time as u8; 8 * dice.usize(0..most)];
                    let (tag, key) = (dice.u16(..), dice.u8(0..9) == 0);
                    library.publish(&payload, tag, key, time).unwrap();
                    scribe.publish(&payload, tag, key, time);
                }
            }
        }
        let (library, ours) = (words_of(&file), scribe.words());
        // Words behind a small record's payload may hold anything, except the first word of a granule.
        let counts = |at: &usize| *at < DATA || at.is_multiple_of(8);
        let different = (0..ours.len()).filter(counts).find(|at| library[*at] != ours[*at]);
        assert_eq!(different, None, "seed {seed}: {:x?}", different.map(|at| (at, library[at], ours[at])));
    }
    assert_eq!(ControlRecord::BYTES, 24);
}

#[test]
fn the_library_passes_every_vector() {
    let (played, failures) = play(&[OsString::from(TESTEE)]).unwrap();
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(played > 600, "{played}");
}

#[test]
fn no_two_vectors_have_one_name() {
    for level in LEVELS {
        let mut names: Vec<String> =
            vectors(level, Effort::default()).into_iter().map(|vector| vector.name).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all, "level {level}");
    }
}

/// The first vector of this level that a testee with this fault fails.
fn found_by(fault: &str, level: u8) -> Option<String> {
    let command = ["env".into(), format!("SHMCAST_TESTEE_FAULT={fault}").into(), TESTEE.into()];
    let mut testee = Testee::start(&command).unwrap();
    let effort = Effort { race: Duration::from_millis(300), mutants: 10 };
    vectors(level, effort).into_iter().find_map(|vector| {
        let failed = match vector.play(&mut testee) {
            Ok(verdict) => verdict.is_err(),
            Err(_) => true,
        };
        failed.then_some(vector.name)
    })
}

#[test]
fn every_planted_fault_is_found() {
    let source = include_str!("../src/bin/shmcast-testee/faults.rs");
    let list = source.split_once("const FAULTS").unwrap().1.split_once("];").unwrap().0;
    let faults: Vec<(&str, u8)> = list
        .lines()
        .filter_map(|line| {
            let (fault, level) = line.trim().strip_prefix("(\"")?.split_once("\", ")?;
            Some((fault, level.strip_suffix("),")?.parse().unwrap()))
        })
        .collect();
    assert!(faults.len() >= 35, "{faults:?}");
    // Most of the time a vector waits for what the fault keeps away, so all are looked for at once.
    std::thread::scope(|threads| {
        for (fault, level) in faults {
            threads.spawn(move || {
                let found = found_by(fault, level);
                assert!(found.is_some(), "no vector of level {level} finds {fault}");
                println!("{fault}: {}", found.unwrap());
            });
        }
    });
}

/// Each line that `conform pairs --json` says, and whether all pairs passed.
fn pairs_in_json(capacity: &str) -> (Vec<serde_json::Value>, bool) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conform"));
    command.args(["pairs", "--json", "--messages", "2000", "--capacity", capacity, TESTEE]);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    (said.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), output.status.success())
}

#[test]
fn a_pair_is_one_line_of_json_whether_it_passes_or_fails() {
    let (passed, has_passed) = pairs_in_json("1048576");
    assert!(has_passed && passed.len() == 1, "{passed:?}");
    let count = |name: &str| passed[0][name].as_u64().unwrap();
    assert_eq!(count("received") + count("missed"), 2000);
    assert_eq!((&passed[0]["passed"], &passed[0]["wrong"]), (&true.into(), &0.into()));
    let (failed, has_passed) = pairs_in_json("1000"); // no power of two
    assert!(!has_passed && failed.len() == 1, "{failed:?}");
    assert_eq!(failed[0]["passed"], false);
    assert!(failed[0]["error"].as_str().unwrap().contains("no publisher"), "{failed:?}");
}
