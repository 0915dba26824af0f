//! The status of a running bridge, readable from other threads.
//!
//! The bridge's threads count in plain numbers. Every few milliseconds they copy the numbers to a [`Board`], word by word with relaxed
//! stores, so that a reader never delays the threads. Each number is correct, but two numbers that are read together can be some
//! milliseconds apart. This module does not format or judge the numbers.

use serde::Serialize;
use shmcast::GateName;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::proto::counters::{
    Histogram, JournalReplies, LeaseCounters, RefusedCounters, ReplayCounters, ReplayTotals, SenderCounters,
};
use super::proto::replay::PastCounters;
use super::proto::session::Session;
use super::proto::{MAX_LINES, MAX_SERVERS};
use crate::counters;

mod receive;
pub use crate::waiting::Waiting;
pub use receive::{HostCounters, LineStatus, ReceiveCounters, SocketCounters};

/// A gate that holds up the messages of a received channel is reported after this time.
const HELD_LONG: Duration = Duration::from_secs(1);

/// A set of counters that other threads can read.
#[derive(Debug)]
pub struct Board<T> {
    words: Box<[AtomicU64]>,
    shown: PhantomData<T>,
}

impl<T: FromBytes + IntoBytes + Immutable> Default for Board<T> {
    fn default() -> Self {
        let words = (0..size_of::<T>() / size_of::<u64>()).map(|_| AtomicU64::new(0)).collect();
        Self { words, shown: PhantomData }
    }
}

impl<T: FromBytes + IntoBytes + Immutable> Board<T> {
    /// Stores all counters. Costs one relaxed store per word. Only one thread is allowed to call this.
    pub fn show(&self, counters: &T) {
        for (cell, bytes) in self.words.iter().zip(counters.as_bytes().as_chunks::<8>().0) {
            cell.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// Returns the counters as they were last stored.
    pub fn read(&self) -> T {
        let mut counters = T::new_zeroed();
        for (cell, bytes) in self.words.iter().zip(counters.as_mut_bytes().as_chunks_mut::<8>().0) {
            *bytes = cell.load(Ordering::Relaxed).to_ne_bytes();
        }
        counters
    }
}

/// A histogram that other threads can read.
#[derive(Debug)]
pub struct SharedHistogram(Box<[AtomicU64]>);

impl Default for SharedHistogram {
    fn default() -> Self {
        Self((0..Histogram::WORDS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl SharedHistogram {
    /// Stores the whole histogram, about 500 words. Only one thread is allowed to call this.
    pub fn show(&self, histogram: &Histogram) {
        self.0.iter().zip(histogram.words()).for_each(|(cell, word)| cell.store(word, Ordering::Relaxed));
    }

    /// Returns the histogram as it was last stored.
    pub fn read(&self) -> Histogram {
        Histogram::from_words(self.0.iter().map(|cell| cell.load(Ordering::Relaxed)))
    }
}

/// The phase of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The bridge sends or receives messages, or waits for some.
    Running,
    /// The bridge was told to leave. It sends the messages that are waiting, and serves repairs for a while. Its session continues.
    Leaving,
    /// The session is over. The bridge repeats the session's end and serves repairs.
    Ending,
    /// The bridge has stopped. Either it was told to stop, or the session is over.
    Ended,
    /// The bridge has stopped because of an error.
    Failed,
}

/// The parts of the status that are not numbers: phase, session, refusals and error.
#[derive(Debug)]
pub struct Life {
    /// Whether the bridge was told to stop.
    stop: AtomicBool,
    phase: AtomicU8,
    session: Mutex<Option<Session>>,
    /// If a received channel named no session: the message with which it began; 0 if it has not begun, or began with its first message.
    beginning: AtomicU64,
    /// The session of another feed that arrives on the same lines, and is ignored.
    stranger: Mutex<Option<Session>>,
    /// The gate of the local channel because of which no message has passed for some time.
    held_by: Mutex<Option<GateName>>,
    /// The error of the last attempt to attach to the channel; `None` unless the bridge has waited for the channel for some time.
    away: Mutex<Option<String>>,
    /// Options that the system refused at the start, each with its reason. The bridge runs without them.
    pub refusals: Vec<String>,
    /// The way in which the bridge's thread waits, and the reason for it.
    pub waiting: Waiting,
    error: Mutex<Option<String>>,
}

impl Life {
    /// Makes the status of a running bridge that has no session yet.
    pub fn new(refusals: Vec<String>, waiting: Waiting) -> Self {
        Self {
            stop: AtomicBool::new(false),
            phase: AtomicU8::new(Phase::Running as u8),
            session: Mutex::default(),
            beginning: AtomicU64::new(0),
            stranger: Mutex::default(),
            held_by: Mutex::default(),
            away: Mutex::default(),
            refusals,
            waiting,
            error: Mutex::default(),
        }
    }

    /// Tells the bridge's threads to stop.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether the bridge was told to stop.
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Sets the phase.
    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// Sets the error that ended the bridge.
    pub fn fail(&self, error: String) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        self.enter(Phase::Failed);
    }

    /// Notes the session when it begins. This takes a lock, which is acceptable because sessions rarely begin.
    pub fn note_session(&self, session: Session) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
    }

    /// Notes the message with which a received channel begins, if the channel named no session. Call this before the session is noted.
    pub fn note_beginning(&self, first: u64) {
        self.beginning.store(first, Ordering::Relaxed);
    }

    /// Returns the end of a sentence about the session: the message with which a received channel began, if the channel named no session.
    /// The text is empty if the channel began with its first message.
    pub fn beginning(&self) -> String {
        match self.beginning.load(Ordering::Relaxed) {
            0 => String::new(),
            first => format!(", beginning with message {first}"),
        }
    }

    /// The bridge's phase.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Running,
            1 => Phase::Leaving,
            2 => Phase::Ending,
            3 => Phase::Ended,
            _ => Phase::Failed,
        }
    }

    /// Returns the session that is sent or received, if there is one.
    pub fn session(&self) -> Option<Session> {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the session of another feed that has begun to arrive. `None` means that no other feed arrives any more.
    pub(crate) fn note_stranger(&self, session: Option<Session>) {
        *self.stranger.lock().unwrap_or_else(PoisonError::into_inner) = session;
    }

    /// Returns the session of another feed that arrives on the same lines, and is ignored.
    pub fn stranger(&self) -> Option<Session> {
        *self.stranger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes which gate of the local channel holds up the messages, and for how long no message has passed. A gate that has held messages
    /// up only for a short time is not noted.
    pub fn note_held(&self, held: Option<(GateName, Duration)>) {
        let gate = held.filter(|(_, held_for)| *held_for >= HELD_LONG).map(|(gate, _)| gate);
        *self.held_by.lock().unwrap_or_else(PoisonError::into_inner) = gate;
    }

    /// Returns a sentence if a gate of the local channel has held up the messages for some time.
    pub fn held_up(&self) -> Option<String> {
        let gate = (*self.held_by.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(format!(
            "gate {gate} of the channel holds the messages up here: its reader is too far behind. Let it read, or end it"
        ))
    }

    /// Notes the error of the last attempt to attach to the channel. `None` means that the bridge has attached.
    pub(crate) fn note_away(&self, error: Option<String>) {
        *self.away.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// Returns a sentence if a bridge that sends has waited for its channel for some time.
    pub fn away(&self) -> Option<String> {
        let error = self.away.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        Some(format!(
            "the channel cannot be opened, and the bridge waits for it: {error}. Start a publisher, or stop this bridge. The bridge sends a channel \
             that is made anew from its first message"
        ))
    }

    /// Returns the error because of which the bridge failed, if it has failed.
    pub fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

counters! {
    /// The counters of the sending thread.
    pub struct SendCounters {
        /// The sequence after the last message sent.
        next_sequence,
        /// Messages sent. A message counts once, even if it is sent on several lines.
        messages: counter "sent_messages_total",
        /// Sent packets that have messages. A packet counts once, even if it is sent on several lines.
        packets: counter "sent_packets_total",
        /// Bytes of packets with messages.
        bytes: counter "sent_bytes_total",
        /// Heartbeats sent.
        heartbeats: counter "sent_heartbeats_total",
        /// End-of-session packets.
        ends,
        /// Datagrams that the kernel accepted, for all lines and leases.
        datagrams_sent: counter "sent_datagrams_total",
        /// Datagrams that were sent in one call together with other datagrams of the same length.
        datagrams_segmented: counter "segmented_datagrams_total",
        /// The number of times that the kernel refused to send several packets in one call on a line. Later packets of the line are sent
        /// one by one.
        segments_refused: counter "segments_refused_total",
        /// The number of the system's error when the kernel last refused to send several packets in one call; 0 if it never refused.
        segments_error,
        /// Datagrams that the kernel refused to send. Receivers request the messages that were in these datagrams.
        datagrams_refused: counter "refused_datagrams_total",
        /// The number of times that the publisher overwrote messages before the sending bridge had read them.
        lapped: counter "lapped_total",
        /// Messages that were overwritten before the bridge had sent them, or were out of order in the ring. Receivers can get them only
        /// from the channel's journal.
        messages_missed: counter "missed_messages_total",
        /// Messages that are in gaps of the channel itself.
        gap_messages,
        /// Messages that are too long for a packet, although the channel's limit should prevent them.
        messages_too_long: counter "too_long_messages_total",
        /// Sessions begun.
        sessions,
        /// The number of times that a line's buffer was full for so long that the bridge paused the line. The line's datagrams of that time
        /// count as refused.
        pauses: counter "line_pauses_total",
        /// The speed of the link that limits live packets and repairs, in bits a second; 0 if there is no limit.
        link_bits,
        /// The number of times that live packets had used up their share of the link, and had to wait.
        link_waits: counter "link_waits_total",
        /// The time for which live packets waited for the link, in nanoseconds.
        link_waited_ns,
        /// The number of times that the state file could not be written.
        state_errors: counter "state_errors_total",
        /// The number of times that the state file was removed or moved while the bridge ran, and was created again.
        state_renewed: counter "state_renewed_total",
        /// The number of times that a line was opened again, because its interface was replaced or got another address.
        lines_anew: counter "sending_lines_anew_total",
        /// The role among the egresses of the stream: 0 the only one, 1 listening, 2 standby, 3 sending.
        role,
        /// The number of the active egress's claim, if this egress has received it; 0 if the role is 0.
        claim,
        /// The number of times that this egress began to send. It begins in place of a peer, or because no peer sends.
        takeovers: counter "takeovers_total",
        /// The number of times that this egress yielded to a peer.
        yields: counter "yields_total",
    }
}

impl SendCounters {
    /// Returns the role among the egresses of the stream as a word: `alone`, `listening`, `standby` or `sending`.
    pub fn part(&self) -> &'static str {
        match self.role {
            0 => "alone",
            1 => "listening",
            2 => "standby",
            _ => "sending",
        }
    }

    /// Whether the egress sends nothing, because a peer sends or might send.
    pub fn is_standing_by(&self) -> bool {
        matches!(self.role, 1 | 2)
    }

    pub(super) fn set_sender(&mut self, earlier: &SenderCounters, sender: &SenderCounters) {
        self.messages = earlier.messages + sender.messages;
        self.packets = earlier.packets + sender.packets;
        self.bytes = earlier.bytes + sender.bytes;
        self.heartbeats = earlier.heartbeats + sender.heartbeats;
        self.ends = earlier.ends + sender.ends;
    }
}

counters! {
    /// Counters of the repair thread, in addition to those of its state machines.
    pub struct ServingCounters {
        /// Datagrams received.
        datagrams,
        /// Requests that the kernel dropped because the socket's buffer was full.
        kernel_drops: counter "repair_kernel_drops_total",
        /// The longest round trip of any receiver, in microseconds; 0 if none is known.
        longest_rtt_us,
        /// Replies that the kernel refused to send.
        replies_refused: counter "repair_replies_refused_total",
        /// The part of the link that live packets leave to repairs, in bytes a second on the wire; 0 if the link's speed is not known.
        link_rate_bytes: gauge "repair_link_rate_bytes",
        /// Plain requests and control datagrams to a server that has only native lines.
        plain_refused: counter "repair_plain_refused_total",
        /// Native requests whose seal does not match. They are forged or damaged.
        forged: counter "repair_forged_total",
        /// Native requests that were already accepted. Requests with very old numbers count as well, because only the latest numbers are
        /// remembered.
        replayed: counter "repair_replayed_total",
        /// Native requests without a seal or with an unknown key, where a seal is required.
        unopened: counter "repair_unopened_total",
        /// The number of times that a receiver reported that it follows a later session of this channel.
        told_stale: counter "told_stale_total",
    }
}

/// The counters of the retransmission server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RepairCounters {
    /// The counters of the thread.
    #[serde(flatten)]
    pub serving: ServingCounters,
    /// The counters of the state machine.
    #[serde(flatten)]
    pub replay: ReplayTotals,
    /// Repairs from the channel's journal.
    pub journal: JournalStatus,
    /// Requests that were not answered with messages.
    pub refused: RefusedCounters,
    /// The counters of the lease server.
    pub leases: LeaseCounters,
}

/// Repairs from the channel's journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct JournalStatus {
    /// The replies.
    #[serde(flatten)]
    pub replies: JournalReplies,
    /// The counters of reading the journal.
    #[serde(flatten)]
    pub past: PastCounters,
}

impl RepairCounters {
    /// Copies the counters of the state machines. The counters of the thread are not changed.
    pub(super) fn set(&mut self, replay: &ReplayCounters, past: PastCounters, leases: LeaseCounters) {
        (self.replay, self.refused, self.leases) = (replay.totals, replay.refused, leases);
        self.journal = JournalStatus { replies: replay.journal, past };
    }
}

/// A summary of a distribution of durations, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// The number of durations.
    pub count: u64,
    /// Half of the durations are at most this long.
    pub p50_ns: u64,
    /// 99 % of the durations are at most this long.
    pub p99_ns: u64,
    /// 99.9 % of the durations are at most this long.
    pub p999_ns: u64,
    /// The longest duration.
    pub max_ns: u64,
}

impl From<&Histogram> for Latency {
    fn from(histogram: &Histogram) -> Self {
        let at = |share| histogram.quantile_ns(share);
        Self {
            count: histogram.count(),
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: histogram.max_ns(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn a_board_shows_every_counter_in_its_place() {
        let board = Board::<SendCounters>::default();
        assert_eq!(board.read(), SendCounters::new_zeroed());
        let words: Vec<u64> = (1..=board.words.len() as u64).collect();
        let counters = SendCounters::read_from_bytes(words.as_bytes()).unwrap();
        assert_eq!((counters.next_sequence, counters.yields), (1, words.len() as u64));
        board.show(&counters);
        assert_eq!(board.read(), counters);
    }

    #[test]
    fn a_shared_histogram_is_the_same_on_the_other_side() {
        let (shared, mut histogram) = (SharedHistogram::default(), Histogram::default());
        [3, 1_000, 70_000].into_iter().for_each(|ns| histogram.record(ns, 2));
        shared.show(&histogram);
        assert_eq!(shared.read(), histogram);
        assert_eq!(Latency::from(&histogram).count, 6);
        assert_eq!(histogram.steps().map(|(_, count)| count).collect::<Vec<_>>(), [2, 2, 2]);
    }
}
