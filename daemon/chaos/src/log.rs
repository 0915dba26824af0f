//! The logs of actors and of the runner. The oracle reads nothing else.
//!
//! Each actor appends lines of JSON to its own file, with one `write` for each line. So a written line stays when the process is killed.
//! All times are from `CLOCK_MONOTONIC`, which all processes of a host share.

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

/// The present time.
pub fn now() -> Time {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// One line of an actor's log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry<T> {
    /// The time.
    pub at: Time,
    /// The action or the observation.
    pub what: T,
}

/// An action of a publisher, or an action or observation of a reader.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// The publisher with the number `publisher` is about to open a channel. All its messages will contain this number.
    Opening { channel: String, publisher: u32 },
    /// The publisher has opened the channel.
    Opened { next: u64, epoch: u64, capacity: u64, largest: usize },
    /// The mode that the publisher asked for, and the mode that the channel has.
    Mode { wanted: u32, found: u32 },
    /// The publisher could not open the channel.
    OpenFailed { kind: String, why: String },
    /// A publisher is about to publish messages. The first message gets the sequence `next`.
    Publishing {
        first: Identity,
        count: u32,
        sizes: Sizes,
        next: u64,
        /// Whether the publish times of these messages are long past.
        #[serde(default)]
        old: bool,
    },
    /// `count` of the announced messages were published.
    Published { count: u32, next: u64, error: Option<String> },
    /// A publisher is about to publish a gap up to `to`.
    Gapping { to: u64, next: u64 },
    /// The publisher has published the gap.
    Gapped { next: u64, error: Option<String> },
    /// A publisher announces a new session.
    Session { identity: String, error: Option<String> },
    /// This actor is about to close its publisher or reader.
    Closing,
    /// The publisher or reader is closed.
    Closed,
    /// A reader is about to subscribe. With `history`, the reader can use the journal. With `skip`, the reader continues at the latest
    /// message whenever it is lapped.
    Subscribing {
        channel: String,
        #[serde(default)]
        host: u8,
        start: Start,
        page: bool,
        #[serde(default)]
        history: bool,
        #[serde(default)]
        skip: bool,
    },
    /// The reader has subscribed.
    Subscribed {
        next: u64,
        /// Whether the reader requested a page but has none.
        #[serde(default)]
        refused: bool,
    },
    /// The subscription uses the gate `gate`, if there is one. If `conflates`, the subscription uses the channel's board to skip old
    /// messages of a key.
    Joined { gate: Option<String>, conflates: bool },
    /// A reader received a correct message of the board, of `length` bytes. `conflated` older messages of its key were left out.
    Newest { sequence: u64, message: Identity, length: usize, conflated: u64 },
    /// A reader received the message that stands for a forgotten removal of a key. `key` is the number of the removed key.
    Forgotten { sequence: u64, key: u32 },
    /// A process has searched a channel's board for a key. The search began at `began`. `found` is `None` if the key is not on the board.
    Looked { channel: String, began: Time, key: u32, found: Option<Found>, error: Option<String> },
    /// The state of a publisher's gates, as the publisher knows it now.
    Gates { gates: Vec<GateFigures> },
    /// A gate refused `count` messages of a publisher. The last refused call began at `last`. If `tried`, the refused calls were calls that
    /// never wait.
    Refused { gate: String, tried: bool, count: u32, last: Time },
    /// A reader received `count` correct messages in a row, from `first` on. They have `bytes` bytes of payload together. `old` of them
    /// have a publish time that is long past.
    Got {
        sequence: u64,
        first: Identity,
        count: u32,
        bytes: u64,
        #[serde(default)]
        old: u32,
    },
    /// A reader received a message whose bytes do not show which message it is.
    Odd { sequence: u64, length: usize, tag: u16, key: bool, head: String },
    /// A reader received the event of a lap.
    Lapped { missed: u64, resumed_at: u64 },
    /// A reader received the event of a gap.
    Gap { from: u64, to: u64 },
    /// A reader received an event which says that neither the ring nor the journal has these sequences. If the actor reads only a journal,
    /// the journal lists these sequences as missing.
    Lost { from: u64, to: u64, cause: String },
    /// A reader received an event which says that it now reads from the ring, no longer from the journal. The call that returned this event
    /// began at `since`.
    Live { sequence: u64, since: Time },
    /// A reader received an error which says that the recorder makes no progress.
    Stalled { sequence: u64 },
    /// An actor is about to read a journal whose first sequence is `next`.
    Reading { channel: String, dir: String, next: u64 },
    /// The actor has read the journal. `next` is the sequence after the journal's last sequence.
    ReadOut { next: u64 },
    /// A reader received an event which says that there is a new publisher.
    NewEpoch { epoch: u64 },
    /// A reader received an event which says that the reader's publisher had died.
    PublisherGone { epoch: u64 },
    /// A reader received an event which says that there is a new remote session.
    NewSession { identity: String },
    /// A reader received an event which says that the channel restarted.
    Restarted,
    /// A reader received an event which says that the channel has ended.
    End,
    /// A reader received an event that this program does not know.
    Unknown { event: String },
    /// Receiving failed.
    RecvFailed { kind: String, why: String },
    /// A reader is about to seek.
    Seeking { to: u64 },
    /// The seek is done, or has failed.
    Sought { error: Option<String> },
    /// A call ended later than its time limit `asked_us`. During the call, the actor ran for `ran_us`, and waited for a CPU for
    /// `waited_us`.
    Late {
        call: String,
        asked_us: u64,
        took_us: u64,
        #[serde(default)]
        ran_us: u64,
        waited_us: u64,
    },
    /// A reader at `next` got nothing, although `lag` messages were available.
    Nothing { next: u64, lag: u64 },
    /// A reader has ended its wait for the last message. `found` says whether the message arrived.
    Finished { found: bool },
}

/// The result of a search for a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The sequence of the key's newest message.
    pub sequence: u64,
    /// The message; `None` if the board does not have it.
    pub message: Option<Identity>,
    /// Whether the board has the message, but its bytes are wrong.
    pub is_odd: bool,
    /// The number of messages of the key.
    pub count: u64,
}

/// The figures of a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateFigures {
    /// The gate's name.
    pub gate: String,
    /// The largest lag of the gate's reader, in bytes.
    pub lag: u64,
    /// Whether the gate refuses messages after the wait.
    pub refuse: bool,
    /// The state, as tools name it.
    pub state: String,
    /// The process that holds the gate.
    pub pid: Option<u64>,
    /// Messages that waited.
    pub held: u64,
    /// The number of times that the gate was dropped.
    pub dropped: u64,
    /// Messages that were refused after a wait.
    pub refused: u64,
    /// Messages that were refused by calls that never wait.
    pub turned_away: u64,
}

/// An action or an observation of the runner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    /// A step began.
    Step { index: usize, step: Step },
    /// The step could not be applied.
    Skipped { index: usize },
    /// A process was started: an actor with this name, or the daemon.
    Started { who: String, pid: u32 },
    /// A signal was sent.
    Signalled { who: String, signal: String },
    /// A process has ended. If a signal ended it, `signal` is the signal's number, and `sent` says whether the runner had sent this signal.
    Ended { who: String, code: Option<i32>, signal: Option<i32>, sent: bool, said: String },
    /// An actor did not answer in time.
    NoAnswer { who: String, order: String },
    /// From this time on, a channel is allowed to restart at sequence 1.
    MayRestart { channel: String, why: String },
    /// The runner is about to take a channel from its publisher.
    TakingOver { channel: String },
    /// A mirror's channel was promoted. The sequences from `from` to `to` were skipped, and will never be published.
    Promoted { channel: String, from: u64, to: u64 },
    /// The runner ran a tool on a host: 0 is the story's host, and 1 the far host.
    Ran {
        #[serde(default)]
        host: usize,
        arguments: Vec<String>,
        code: Option<i32>,
        out: String,
        err: String,
        took_ms: u64,
    },
    /// From this time on, no fault is active.
    Healing,
    /// The last message of a channel has been published. `mode` is the channel's mode in a daemon's configuration.
    Last {
        channel: String,
        message: Identity,
        sequence: u64,
        epoch: u64,
        #[serde(default)]
        mode: Option<String>,
    },
    /// Everything is at rest. The last publishers and all readers are still attached. The output of tools must now be right.
    AtRest,
    /// The number of lines in a daemon's log, and the run time of the daemon's processes in milliseconds. Both are totals over all
    /// restarts.
    Logged { who: String, lines: usize, ms: u64 },
    /// `shmcast pub` was given these lines, and was then interrupted. The channel has these messages.
    Piped { lines: Vec<String>, messages: Vec<String> },
    /// A command ran under a limit. `was_interrupted` says whether the runner interrupted it.
    Limited {
        verb: String,
        limit: String,
        code: Option<i32>,
        signal: Option<i32>,
        was_interrupted: bool,
        out: String,
        err: String,
    },
    /// Something has changed that must stay the same.
    Changed { what: String },
    /// A user learned something that this user must not know.
    Disclosed { who: String, what: String },
    /// The daemon refused a request that the user was allowed to make.
    Refused { who: String, what: String },
    /// Something was not removed.
    Left { what: String },
    /// The story is over.
    Over,
}

/// A log, to which whole lines are appended.
#[derive(Debug)]
pub struct Log {
    file: File,
}

impl Log {
    /// Opens the file at `path` for appending. Creates it if it does not exist.
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
    /// Writes several entries that were made earlier, with one `write`.
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

/// Reads a log. Skips an incomplete line, which a killed process can leave behind.
///
/// # Errors
/// The system's error.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<Entry<T>>> {
    let text = fs::read_to_string(path)?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}
