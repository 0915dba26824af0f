//! The log that every part writes, and the only thing that the oracle reads.
//!
//! Each actor appends lines of JSON to a file of its own, whole lines with one `write` each. A line that was written stays
//! when the process is killed. Times are of `CLOCK_MONOTONIC`, which all processes of a host share.

#![allow(missing_docs, reason = "fields are explained with their variant")]

use crate::payload::{Identity, Sizes};
use crate::story::{Start, Step};
use nix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Nanoseconds of the clock that all processes share.
pub type Time = u64;

/// Now.
pub fn now() -> Time {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// One line of an actor's log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry<T> {
    /// When.
    pub at: Time,
    /// What.
    pub what: T,
}

/// The deeds of a publisher, or the deeds and sights of a reader.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// A publisher is about to open a channel. All that it publishes bears this number.
    Opening { channel: String, publisher: u32 },
    /// It has the channel.
    Opened { next: u64, epoch: u64, capacity: u64, largest: usize },
    /// The mode that it asked for, and the channel's.
    Mode { wanted: u32, found: u32 },
    /// It does not.
    OpenFailed { kind: String, why: String },
    /// A publisher is about to publish messages; the first gets sequence `next`.
    Publishing { first: Identity, count: u32, sizes: Sizes, next: u64 },
    /// So many of them were published.
    Published { count: u32, next: u64, error: Option<String> },
    /// A publisher is about to tell of a gap up to `to`.
    Gapping { to: u64, next: u64 },
    /// It has.
    Gapped { next: u64, error: Option<String> },
    /// A publisher tells of a new session.
    Session { identity: String, error: Option<String> },
    /// The end that this actor held is about to be given up in order.
    Closing,
    /// It is.
    Closed,
    /// A reader is about to subscribe.
    Subscribing { channel: String, far: bool, start: Start, page: bool },
    /// It has.
    Subscribed {
        next: u64,
        /// Whether it has no page, though it was to have one.
        #[serde(default)]
        refused: bool,
    },
    /// A reader got these messages, each byte of which was right: `count` in a row from `first`, `bytes` in all.
    Got { sequence: u64, first: Identity, count: u32, bytes: u64 },
    /// A reader got a message that it cannot recognise.
    Odd { sequence: u64, length: usize, tag: u16, key: bool, head: String },
    /// A reader was told of an overrun.
    Lapped { missed: u64, resumed_at: u64 },
    /// A reader was told of a gap.
    Gap { from: u64, to: u64 },
    /// A reader was told of another publisher.
    NewEpoch { epoch: u64 },
    /// A reader was told of another remote session.
    NewSession { identity: String },
    /// A reader was told that the channel begins anew.
    Restarted,
    /// A reader was told of the end.
    End,
    /// A reader was told of something that this program does not know.
    Unknown { event: String },
    /// Receiving failed.
    RecvFailed { kind: String, why: String },
    /// A reader is about to seek.
    Seeking { to: u64 },
    /// It did.
    Sought { error: Option<String> },
    /// A call that should have ended earlier: what it was, how long it was to take at most, how long it took, for how much of
    /// that it ran, and for how much of that another process had the CPU.
    Late {
        call: String,
        asked_us: u64,
        took_us: u64,
        #[serde(default)]
        ran_us: u64,
        waited_us: u64,
    },
    /// A reader at `next` got nothing, though so many messages were there.
    Nothing { next: u64, lag: u64 },
    /// A reader stopped looking for the last message.
    Finished { found: bool },
}

/// The deeds of the runner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    /// A step began.
    Step { index: usize, step: Step },
    /// The step did not apply.
    Skipped { index: usize },
    /// A process was started: an actor by its name, or the daemon.
    Started { who: String, pid: u32 },
    /// A signal was sent.
    Signalled { who: String, signal: String },
    /// A process has ended; `sent` is the signal that the runner had sent it.
    Ended { who: String, code: Option<i32>, signal: Option<i32>, sent: bool, said: String },
    /// An actor did not answer in time.
    NoAnswer { who: String, order: String },
    /// From here on a channel may begin at sequence 1 again.
    MayRestart { channel: String, why: String },
    /// The writer's end of a channel is about to be taken from whoever has it.
    TakingOver { channel: String },
    /// A tool was run on a host: 0 is the story's, 1 the far one.
    Ran {
        #[serde(default)]
        host: usize,
        arguments: Vec<String>,
        code: Option<i32>,
        out: String,
        err: String,
        took_ms: u64,
    },
    /// All faults are taken back from here on.
    Healing,
    /// The last messages of a channel have been published, ending with this one. `mode` is what a daemon's configuration asks for.
    Last {
        channel: String,
        message: Identity,
        sequence: u64,
        epoch: u64,
        #[serde(default)]
        mode: Option<String>,
    },
    /// Nothing moves any more, while the last publishers and all readers are still attached. What tools say now must be so.
    AtRest,
    /// The length of a daemon's log over all of its lives: so many lines in so much time.
    Logged { who: String, lines: usize, ms: u64 },
    /// `shmcast pub` was given these lines and interrupted, and these messages came.
    Piped { lines: Vec<String>, messages: Vec<String> },
    /// Something that must stay as it was has changed.
    Changed { what: String },
    /// Something was left over.
    Left { what: String },
    /// The story is over.
    Over,
}

/// Appends whole lines.
#[derive(Debug)]
pub struct Log {
    file: File,
}

impl Log {
    /// Appends to the file at `path`, which is made if need be.
    ///
    /// # Errors
    /// The system's error.
    pub fn append(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::options().create(true).append(true).open(path)? })
    }

    /// Writes one entry with the present time.
    ///
    /// # Errors
    /// The system's error.
    pub fn write<T: Serialize>(&mut self, what: T) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Entry { at: now(), what })?;
        line.push(b'\n');
        self.file.write_all(&line)
    }
}

impl Log {
    /// Writes entries that were made earlier, at once.
    ///
    /// # Errors
    /// The system's error.
    pub fn write_all<T: Serialize>(&mut self, entries: &[Entry<T>]) -> io::Result<()> {
        let mut lines = Vec::new();
        for entry in entries {
            serde_json::to_writer(&mut lines, entry)?;
            lines.push(b'\n');
        }
        if lines.is_empty() { Ok(()) } else { self.file.write_all(&lines) }
    }
}

/// Reads a log. A line that was cut off by a kill is left out.
///
/// # Errors
/// The system's error.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<Entry<T>>> {
    let text = fs::read_to_string(path)?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}
