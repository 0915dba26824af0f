//! A log that repairs come from: the last source of a receiver, asked when no server near it holds a message any more.
//!
//! The log is a repair server on the loopback interface, in the receiver's own process. So everything that a receiver does with
//! servers holds for it too. Another package reads the log; this module has its interface and its status.

use serde::Serialize;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::native::Keys;
use super::proto::receiver::Sample;
use super::proto::replay::Fetched;
use super::proto::session::Session;

/// A log that can be read by sequence. It is read on a thread of its own, which may wait for it for some seconds.
pub trait Log: Send {
    /// Takes the keys that sealed blocks are opened with, and whether others are taken. They may change later.
    fn set_keys(&mut self, keys: Arc<Keys>, takes_open: bool);

    /// The messages from `first` on, of the session of `line`.
    ///
    /// With 0 for `first`, the log only looks whether it could serve this session: then [`Fetched::Absent`] of nothing says that it
    /// could, or does not know yet.
    ///
    /// [`Fetched::NotYet`] says that the messages may still come, [`Fetched::Absent`] that they are not there, and
    /// [`Fetched::Failed`] that nothing can be said.
    fn fetch(&mut self, line: &LogLine<'_>, first: u64) -> Fetched;
}

/// The facts about the lines whose messages a log is to have.
#[derive(Debug, Clone, Copy)]
pub struct LogLine<'a> {
    /// The session that the receiver follows.
    pub session: Session,
    /// The first sequence of it that is asked for.
    pub floor: u64,
    /// Messages as the lines brought them.
    pub samples: &'a [Sample],
}

/// A log, and the state that it shows.
pub struct LogSource {
    /// The log.
    pub log: Box<dyn Log>,
    /// Its state and counters, for other threads.
    pub word: Arc<LogWord>,
}

impl fmt::Debug for LogSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogSource").field("word", &self.word).finish_non_exhaustive()
    }
}

/// The state of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogState {
    /// Its servers cannot be reached, or do not answer.
    #[default]
    Away,
    /// It is not known yet whether it has the channel's messages.
    Waiting,
    /// It has the channel's messages.
    Serving,
    /// It has those of another feed, and serves nothing.
    Refused,
}

/// The state and the counters that a log shows to other threads.
#[derive(Debug, Default)]
pub struct LogWord {
    state: AtomicU8,
    why: Mutex<Option<String>>,
    disconnects: AtomicU64,
    refusals: AtomicU64,
}

impl LogWord {
    /// Notes a state and its reason.
    pub fn enter(&self, state: LogState, why: Option<String>) {
        let before = self.state.swap(state as u8, Ordering::Relaxed);
        if state == LogState::Refused && before != state as u8 {
            self.refusals.fetch_add(1, Ordering::Relaxed);
        }
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Notes how often the connection has broken.
    pub fn set_disconnects(&self, disconnects: u64) {
        self.disconnects.store(disconnects, Ordering::Relaxed);
    }

    /// The state.
    pub fn state(&self) -> LogState {
        match self.state.load(Ordering::Relaxed) {
            0 => LogState::Away,
            1 => LogState::Waiting,
            2 => LogState::Serving,
            _ => LogState::Refused,
        }
    }

    /// The reason for the state, if it needs one.
    pub fn why(&self) -> Option<String> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The counters of a log as a repair server.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LogCounters {
    /// Requests of the receiver.
    pub requests: u64,
    /// Messages sent.
    pub messages: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Requests that waited until the log was read.
    pub waited: u64,
    /// Requests told to ask later, because the log did not have the messages yet.
    pub not_yet: u64,
    /// Requests for messages that the log does not have.
    pub gone: u64,
    /// Blocks of messages read.
    pub blocks: u64,
    /// Times that the log could not be read, or served nothing.
    pub failed: u64,
    /// Datagrams that did not come from the receiver.
    pub strangers: u64,
}

/// A log as a receiver shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogStatus {
    /// The state.
    pub state: LogState,
    /// The reason for it, if it needs one.
    pub why: Option<String>,
    /// Times that the connection broke.
    pub disconnects: u64,
    /// Times that the log was found to be that of another feed.
    pub refusals: u64,
    /// The counters.
    #[serde(flatten)]
    pub counters: LogCounters,
}

impl LogStatus {
    pub(crate) fn of(word: &LogWord, counters: LogCounters) -> LogStatus {
        LogStatus {
            state: word.state(),
            why: word.why(),
            disconnects: word.disconnects.load(Ordering::Relaxed),
            refusals: word.refusals.load(Ordering::Relaxed),
            counters,
        }
    }
}
