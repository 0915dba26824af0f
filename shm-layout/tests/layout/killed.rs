//! A writer in another process that is killed at random moments, and the reader and the successor that find its segment.
//!
//! `two_processes` kills at chosen instructions, for which it needs `ptrace`. These tests need signals alone, so they also run where
//! programs of another processor are emulated.

use crate::common::header;
use crate::two_processes::payload;
use nix::sys::signal::Signal;
use shmcast_layout::layout::record::ControlRecord;
use shmcast_layout::ring::reader::{Copied, Poll, Reader, Resume};
use shmcast_layout::segment::{Access, Segment};
use shmcast_testkit::process::{in_dir, my_dir, my_role};
use shmcast_testkit::{PATIENCE, Process, role, scratch, skip};
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

const ROLE: &str = "publish_for_ever";
const FILE: &str = "segment";
/// Each kill comes after at most so many messages of its writer.
const MOST_MESSAGES: u64 = 3000;
const LENGTHS: [usize; 7] = [0, 32, 48, 100, 1000, 3000, 8];

/// The other process's part: it takes over, and publishes until it is killed.
#[test]
#[ignore = "plays a part in other tests"]
fn play() {
    if my_role().as_deref() != Some(ROLE) {
        return skip("play", "started by other tests only");
    }
    let file = File::options().read(true).write(true).open(my_dir().join(FILE)).unwrap();
    let segment = Segment::open(&file, Access::Write).unwrap();
    let mut writer = segment.writer(std::process::id(), 0).unwrap();
    loop {
        let sequence = writer.next_sequence();
        let length = LENGTHS[sequence as usize % LENGTHS.len()];
        writer.publish(&payload(sequence, length), 9, false, sequence).unwrap();
    }
}

/// The messages that a reader received, and the reader's place.
struct Follower {
    reader: Reader,
    /// The next sequence. `None` before the first message.
    due: Option<u64>,
    messages: u64,
    epoch: u64,
    laps: u64,
}

impl Follower {
    /// Polls once, and checks what is received. Returns whether there was something.
    fn poll(&mut self) -> bool {
        let mut out = [0; 8192];
        match self.reader.poll(&mut out) {
            Poll::Empty => return self.is_lapped(),
            Poll::Message(Copied { length, sequence, tag, time, key }) => {
                assert_eq!((tag, time, key), (9, sequence, false));
                assert_eq!(length, LENGTHS[sequence as usize % LENGTHS.len()], "of {sequence}");
                assert_eq!(out[..length], payload(sequence, length), "{sequence} is torn");
                assert!(self.due.is_none_or(|due| due == sequence), "{sequence} instead of {:?}", self.due);
                (self.due, self.messages) = (Some(sequence + 1), self.messages + 1);
            }
            Poll::Control(ControlRecord::Epoch { epoch }) => {
                assert!(epoch > self.epoch, "epoch {epoch} behind {}", self.epoch);
                self.epoch = epoch;
            }
            Poll::Lapped => {
                // A writer at full speed may overwrite the new place during the search. Then the next poll finds a lap again.
                let missed = self.reader.resume(Resume::Latest).unwrap_or(0);
                (self.due, self.laps) = (self.due.map(|due| due + missed), self.laps + 1);
            }
            other => panic!("{other:?} at {:?}", self.due),
        }
        true
    }

    /// Whether a poll that found nothing did so because the writer has cleared the reader's place for a later lap.
    fn is_lapped(&mut self) -> bool {
        match self.reader.look() {
            Some(Poll::Empty) => false,
            None | Some(Poll::Lapped) => true,
            other => panic!("{other:?} at {:?}", self.due),
        }
    }

    /// Polls until `is_enough`, or until `PATIENCE` is over.
    fn poll_until(&mut self, what: &str, is_enough: impl Fn(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_enough(self) {
            assert!(Instant::now() < until, "waited in vain for {what}");
            if !self.poll() {
                std::hint::spin_loop();
            }
        }
    }
}

/// Starts a writer, kills it once the reader is beyond `count` of its messages, and receives the others.
fn kill_one(dir: &Path, segment: &Segment, follower: &mut Follower, count: u64) {
    // A reader that is lapped may miss the record of the new epoch.
    let epoch = || segment.state().expect("the segment is sound").0;
    let (before, first) = (epoch(), follower.reader.place().sequence);
    let mut command = role!(ROLE);
    let mut writer = Process::start(in_dir(&mut command, dir).stdout(Stdio::null()).stderr(Stdio::null()));
    follower.poll_until("the writer to take over", |_| epoch() > before);
    follower.poll_until("its messages", |now| now.reader.place().sequence >= first + count);
    writer.signal(Signal::SIGKILL);
    assert!(!writer.wait().success());
    while follower.poll() {}
}

#[test]
fn killed_at_any_moment() {
    let kills = if cfg!(target_arch = "x86_64") { 10 } else { 5 };
    let dir = scratch();
    let path = dir.path().join(FILE);
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let segment = Segment::create(&file, header(1 << 20, None)).unwrap();
    drop(segment.writer(1, 0).unwrap());
    let reading = Segment::open(&file, Access::Read).unwrap();
    let reader = reading.reader(reading.locator().tail().unwrap());
    let mut follower = Follower { reader, due: None, messages: 0, epoch: 1, laps: 0 };
    let seed = u64::from(std::process::id());
    let mut random = seed;
    for _ in 0..kills {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        kill_one(dir.path(), &reading, &mut follower, (random >> 33) % MOST_MESSAGES);
        // The successor continues where the reader is.
        let segment = Segment::open(&file, Access::Write).unwrap();
        let mut writer = segment.writer(2, 0).unwrap();
        assert_eq!(writer.next_sequence(), follower.reader.place().sequence, "seed {seed}");
        let sequence = writer.next_sequence();
        let length = LENGTHS[sequence as usize % LENGTHS.len()];
        writer.publish(&payload(sequence, length), 9, false, sequence).unwrap();
        while follower.poll() {}
        assert_eq!((follower.due, follower.epoch), (Some(sequence + 1), writer.epoch()), "seed {seed}");
    }
    let Follower { messages, laps, .. } = follower;
    println!("killed_at_any_moment: {kills} kills, {messages} messages, {laps} laps: 0 torn, lost or twice");
}
