//! A recorder is killed, or refused a call, at any of its system calls on files: in the recovery, while it writes, at the next file, or at
//! the seal. The next recorder always completes the journal, and each message is in it once.
//!
//! `SHMCAST_INJECTIONS` sets at how many calls this happens; 0 means all of them.

use shmcast::Publisher;
use shmcast_testkit::journal::read;
use shmcast_testkit::place::program;
use shmcast_testkit::{Process, number, skip, wait_until, works};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// All calls by which the recorder reads and changes files.
const CALLS: &str = "openat,pread64,pwrite64,pwritev2,fdatasync,fsync,fallocate,ftruncate,rename,renameat,renameat2,unlink,\
                     unlinkat,mkdir,mkdirat,getdents64,statx,fstat,lseek,fadvise64";
const MESSAGES: u64 = 16_000;
/// The number of messages that the first, killed recorder has recorded.
const BEFORE: u64 = 6_000;

fn payload(sequence: u64) -> Vec<u8> {
    let mut bytes = sequence.to_le_bytes().to_vec();
    bytes.resize(8 + (sequence % 200) as usize, sequence as u8);
    bytes
}

struct Story {
    room: TempDir,
}

impl Story {
    fn channels(&self) -> PathBuf {
        self.room.path().join("channels")
    }

    fn journal(&self) -> PathBuf {
        self.room.path().join("journal")
    }

    /// Records into the journal until the channel's end, through another program if `through` names one.
    fn record(&self, through: &[String]) -> Command {
        let program = program("shmcast").display().to_string();
        let words: Vec<String> = through.iter().cloned().chain([program]).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["record", "ticks", "--set", "file=1MiB", "--json", "--dir"]);
        command.arg(self.channels()).arg("--to").arg(self.journal());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn to_its_end(&self, through: &[String]) -> Output {
        Process::start(self.record(through).args(["--until-end", "--sync", "10ms"])).output()
    }

    /// A closed channel, and a journal that a killed recorder has left: the first file is sealed, the second one is open.
    fn new() -> Self {
        let story = Self { room: tempfile::Builder::new().prefix("shmcast-test-").tempdir().unwrap() };
        let mut publisher =
            Publisher::builder("ticks").dir(story.channels()).capacity(16 << 20).open().unwrap();
        let mut publish = |last: u64| {
            while publisher.next_sequence() <= last {
                let sequence = publisher.next_sequence();
                publisher.publish(&payload(sequence)).unwrap();
            }
        };
        let recorder = Process::start(&mut story.record(&[]));
        publish(BEFORE);
        wait_until("the messages before", || {
            story.journal().is_dir() && read(&story.journal()).messages().len() as u64 == BEFORE
        });
        recorder.kill();
        publish(MESSAGES);
        publisher.close();
        story.restore(&story.journal(), "left");
        story
    }

    /// Puts the files of `from` into the directory of this name.
    fn restore(&self, from: &Path, to: &str) {
        let to = self.room.path().join(to);
        let _ = fs::remove_dir_all(&to);
        fs::create_dir(&to).unwrap();
        let output = Command::new("cp").arg("-r").arg(from.join(".")).arg(&to).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// The calls of an undisturbed recording: for each name, the largest number of calls by one thread. strace counts the calls of each
    /// thread separately.
    fn calls(&self) -> BTreeMap<String, usize> {
        let trace = self.room.path().join("trace");
        let through = words(&format!("strace -f -qq -e trace={CALLS} -o {}", trace.display()));
        let output = self.to_its_end(&through);
        assert!(output.status.success(), "{output:?}");
        let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
        for line in fs::read_to_string(&trace).unwrap().lines() {
            let Some((thread, call)) = line.split_once(' ') else { continue };
            let Some((name, _)) = call.trim_start().split_once('(') else { continue };
            if CALLS.split(',').any(|known| known == name) {
                *counts.entry((name.to_owned(), thread.to_owned())).or_default() += 1;
            }
        }
        let mut most = BTreeMap::new();
        for ((name, _), count) in counts {
            let known: &mut usize = most.entry(name).or_default();
            *known = count.max(*known);
        }
        most
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Prints the case of a check that panics. If `SHMCAST_KEEP` names a directory, also copies the journal there.
struct At<'a> {
    story: &'a Story,
    case: &'a str,
}

impl Drop for At<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("behind {}", self.case);
            if let Ok(to) = std::env::var("SHMCAST_KEEP") {
                self.story.restore(&self.story.journal(), &to);
            }
        }
    }
}

fn check(story: &Story, at: &str) {
    let _at = At { story, case: at };
    let output = story.to_its_end(&[]);
    assert_eq!(output.status.code(), Some(0), "behind {at}: {output:?}");
    let found = read(&story.journal());
    assert_eq!(found.losses(), [], "behind {at}");
    let messages = found.messages();
    assert_eq!(messages.len() as u64, MESSAGES, "behind {at}");
    let is_right = |&((sequence, bytes), due): &((u64, &[u8]), u64)| sequence == due && bytes == payload(due);
    assert!(messages.into_iter().zip(1..).all(|it| is_right(&it)), "behind {at}");
    let verify =
        Command::new(program("shmcast")).args(["journal", "verify"]).arg(story.journal()).output().unwrap();
    assert!(verify.status.success(), "behind {at}: {verify:?}");
}

#[test]
fn a_recorder_may_die_or_be_refused_at_any_call() {
    let test = "a_recorder_may_die_or_be_refused_at_any_call";
    if !works("strace", &["-V"]) {
        return skip(test, "strace is not installed");
    }
    let story = Story::new();
    let mut cases = Vec::new();
    for (name, count) in story.calls() {
        for nth in 1..=count {
            cases.extend(
                ["signal=SIGKILL", "error=EIO", "error=ENOSPC"]
                    .map(|what| format!("{name}:{what}:when={nth}")),
            );
        }
    }
    check(&story, "nothing");
    let wanted = number("SHMCAST_INJECTIONS", 30);
    // The step is no multiple of three, because the kinds of faults take turns.
    let every = match wanted {
        0 => 1,
        wanted => cases.len().div_ceil(wanted),
    };
    let every = every + usize::from(every > 1 && every.is_multiple_of(3));
    let (mut died, mut failed, mut went_on) = (0, 0, 0);
    for case in cases.iter().step_by(every) {
        story.restore(&story.room.path().join("left"), "journal");
        let through = words(&format!("strace -f -qq -o /dev/null -e inject={case}"));
        let output = story.to_its_end(&through);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("panicked"), "{case}: {said}");
        match output.status.code() {
            Some(0) => went_on += 1,
            None | Some(137) => died += 1,
            Some(_) => failed += 1,
        }
        check(&story, case);
    }
    println!(
        "{} cases of {}: {died} died, {failed} ended with an error, {went_on} went on",
        died + failed + went_on,
        cases.len()
    );
    assert!(died > 0 && went_on > 0);
}
