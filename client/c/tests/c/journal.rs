//! Readers in C and C++ that are lapped, and continue in the journal that a recorder keeps.

use crate::support::{C, CPP, command, has, number, pattern, program};
use shmcast::{History, Mark, Publisher, Start, Subscriber};
use shmcast_journal::Recorder;
use shmcast_journal::core::{Settings, SyncPolicy};
use shmcast_testkit::{Process, scratch, wait_until};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::ChildStdout;

const CAPACITY: u64 = 1 << 20;
/// Number of messages, which fill the ring some eight times.
const MESSAGES: u64 = 1_000;
/// Number of messages between two checks of the recorder. The ring has room for them, so the recorder is not lapped.
const STRIDE: u64 = 20;

/// A receiver that has attached, and is stopped.
struct Reader {
    process: Process,
    said: BufReader<ChildStdout>,
}

impl Reader {
    fn start(program: &Path, how: &str, channels: &Path, journals: &Path) -> Self {
        let place = format!("dir:{}", channels.display());
        let mut command = command(program, [how, &place, "t"]);
        let mut process = Process::start(command.env("SHMCAST_JOURNALS", journals));
        let mut said = BufReader::new(process.child().stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "attached\n");
        process.pause();
        Self { process, said }
    }

    /// Lets the program continue to its end, and returns its sums.
    fn end(mut self) -> String {
        self.process.resume();
        let mut said = String::new();
        self.said.read_to_string(&mut said).unwrap();
        assert!(self.process.wait().success(), "{said}");
        said
    }
}

fn until(recorder: &Recorder, drained: u64) {
    wait_until("the recorder", || {
        assert!(recorder.errors().is_empty(), "{:?} {:?}", recorder.progress(), recorder.errors());
        recorder.progress().drained >= drained
    });
}

/// The readers are stopped while all messages are published, which laps the readers some eight times. Each reader then receives every
/// message once, and one event that it is live again.
fn is_live_again(readers: &[(&Path, &str)]) {
    let (channels, journals) = (scratch(), scratch());
    let mut publisher = Publisher::builder("t").dir(channels.path()).capacity(CAPACITY).open().unwrap();
    let journal = journals.path().join("t");
    std::fs::create_dir(&journal).unwrap();
    let source = Subscriber::builder("t").dir(channels.path()).start(Start::Oldest);
    let source = source.history(History::Never).open().unwrap();
    let settings = Settings { sync: SyncPolicy::None, ..Settings::default() };
    let recorder = Recorder::start(&journal, source, settings).unwrap();
    let readers: Vec<Reader> = readers
        .iter()
        .map(|(program, how)| Reader::start(program, how, channels.path(), journals.path()))
        .collect();
    for sequence in 1..=MESSAGES {
        let mark = Mark { tag: sequence as u16, key: sequence.is_multiple_of(100) };
        assert_eq!(publisher.publish_with(&pattern(sequence), mark).unwrap(), sequence);
        if sequence.is_multiple_of(STRIDE) {
            until(&recorder, sequence);
        }
    }
    publisher.close();
    let recorded = recorder.stop().unwrap();
    assert_eq!(recorded.drained, MESSAGES, "{recorded:?}");
    for reader in readers {
        let said = reader.end();
        let sums =
            ["received", "missed", "wrong", "disorder", "epochs", "lives"].map(|name| number(&said, name));
        assert_eq!(sums, [MESSAGES, 0, 0, 0, 0, 1], "{said}");
    }
}

#[test]
fn a_lapped_reader_in_c_gets_every_message_and_is_live_again() {
    if !has("a_lapped_reader_in_c_gets_every_message_and_is_live_again", C[0]) {
        return;
    }
    let roles = program(C, &[], "tests/c/roles.c");
    is_live_again(&["recv", "batch", "into"].map(|how| (roles.as_path(), how)));
}

#[test]
fn a_lapped_reader_in_cpp_gets_every_message_and_is_live_again() {
    if !has("a_lapped_reader_in_cpp_gets_every_message_and_is_live_again", CPP[0]) {
        return;
    }
    let reader = program(CPP, &[], "../cpp/tests/reader.cpp");
    is_live_again(&["recv", "batch"].map(|how| (reader.as_path(), how)));
}
