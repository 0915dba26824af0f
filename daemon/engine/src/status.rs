//! The counters of an engine's ends and the state of the connection, as other threads see them.

use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The counters of an end that sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SendCounters {
    /// The sequence after the last message that the servers have acknowledged; 0 before the first answer.
    pub stored: u64,
    /// Messages that are published and not acknowledged.
    pub behind: u64,
    /// The age of the oldest block without an answer, in milliseconds.
    pub behind_ms: u64,
    /// Blocks without an answer.
    pub in_flight: u64,
    /// Messages put into blocks, those that were sent again included.
    pub messages: u64,
    /// Blocks that the servers have acknowledged.
    pub blocks: u64,
    /// Bytes of those blocks.
    pub bytes: u64,
    /// Messages that were overwritten before they were sent: a gap for every reader.
    pub messages_missed: u64,
    /// Messages that are gaps in the channel itself.
    pub gap_messages: u64,
    /// Times that the last block was asked for again, because another one stood there.
    pub resyncs_refused: u64,
    /// The same, because there was no answer in time.
    pub resyncs_silent: u64,
    /// The same, because the servers had too much to do, or no leader.
    pub resyncs_busy: u64,
    /// The same, because the connection broke.
    pub resyncs_disconnected: u64,
    /// The same, because another writer was heard.
    pub resyncs_rival: u64,
    /// Times that another writer owned the log, so that this one waited.
    pub fenced: u64,
    /// Whether another writer owns the log now.
    pub is_fenced: u64,
    /// Times that the last block did not open, so that this bridge waited: somebody writes with other keys.
    pub shut_out: u64,
    /// Whether that is so now.
    pub is_shut_out: u64,
    /// Messages that the servers had acknowledged and then did not have. They were sent again, as far as ring or journal
    /// have them.
    pub lost_by_engine: u64,
    /// Times that this happened.
    pub losses: u64,
    /// Requests of readers for messages that the log lacks.
    pub wanted: u64,
    /// Connections lost.
    pub disconnects: u64,
    /// Whether there is a connection.
    pub is_connected: u64,
}

/// The counters of an end that receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReceiveCounters {
    /// The sequence due in the local channel.
    pub next_sequence: u64,
    /// Messages published into the local channel.
    pub messages_published: u64,
    /// Messages that nobody has: a gap in the local channel.
    pub messages_missing: u64,
    /// Messages longer than the local channel takes. They are among the missing.
    pub messages_too_large: u64,
    /// Blocks that brought something.
    pub blocks: u64,
    /// Bytes of entries that came.
    pub bytes: u64,
    /// Entries that were damaged, or no blocks.
    pub damaged: u64,
    /// Those of them whose seal did not open, that were sealed with another key, or that had no seal where one was needed.
    pub unopened: u64,
    /// Messages that came again.
    pub repeated: u64,
    /// Blocks that were not built after the one before them.
    pub chain_breaks: u64,
    /// Times that the place in the log was looked for.
    pub searches: u64,
    /// Times that the log's end had moved back: the servers lost what they had shown.
    pub ends_moved: u64,
    /// Holes in the log.
    pub holes: u64,
    /// Whether a hole is being mended now.
    pub is_mending: u64,
    /// Messages of holes that a writer had.
    pub mended: u64,
    /// Requests to writers.
    pub wanted: u64,
    /// Connections lost.
    pub disconnects: u64,
    /// Whether there is a connection.
    pub is_connected: u64,
}

/// Servers that elect a leader refuse some appends. The sender reports a refusal after this many in a row.
#[cfg_attr(not(feature = "nats"), allow(dead_code, reason = "there is no client to tell it"))]
const TOLD_AFTER: u64 = 5;

/// The state of the connection, told by the client and shown by the thread that uses it.
#[derive(Debug, Default)]
pub(crate) struct Link {
    is_connected: AtomicBool,
    disconnects: AtomicU64,
    why: Mutex<Option<String>>,
    /// Appends that were refused one after the other.
    refusals: AtomicU64,
    refused: Mutex<Option<String>>,
}

#[cfg_attr(not(feature = "nats"), allow(dead_code, reason = "there is no client to tell it"))]
impl Link {
    pub(crate) fn connected(&self) {
        self.is_connected.store(true, Ordering::Relaxed);
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn disconnected(&self) {
        self.is_connected.store(false, Ordering::Relaxed);
        self.disconnects.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note(&self, why: String) {
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    /// Forgets what was noted.
    pub(crate) fn forget(&self) {
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    pub(crate) fn disconnects(&self) -> u64 {
        self.disconnects.load(Ordering::Relaxed)
    }

    /// Notes that the servers have taken a block.
    pub(crate) fn taken(&self) {
        if self.refusals.load(Ordering::Relaxed) != 0 {
            self.refusals.store(0, Ordering::Relaxed);
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Notes that the servers have refused a block for another reason than that another one stands in its place.
    pub(crate) fn refused(&self, why: String) {
        if self.refusals.fetch_add(1, Ordering::Relaxed) + 1 >= TOLD_AFTER {
            let text = format!("the servers refuse blocks, and the feed stands still: {why}");
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        }
    }

    /// The last error of the connection, or else the reason for which blocks are refused.
    pub(crate) fn why(&self) -> Option<String> {
        let of = |text: &Mutex<Option<String>>| text.lock().unwrap_or_else(PoisonError::into_inner).clone();
        of(&self.why).or_else(|| of(&self.refused))
    }
}
