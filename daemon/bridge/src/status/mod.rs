//! The status of a running bridge, readable from other threads.
//!
//! The bridge's threads keep plain counters and now and then store them on a [`Board`], word by word with
//! relaxed stores, so that a reader costs them nothing. Each number is right by itself; two read together may
//! be some milliseconds apart. This module neither formats the numbers nor judges them.

use serde::Serialize;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::proto::counters::{Histogram, LeaseCounters, Refusal, ReplayCounters, SenderCounters};
use super::proto::replay::PastCounters;
use super::proto::session::Session;
use super::proto::wire::Malformed;
use super::proto::{MAX_LINES, MAX_SERVERS};

mod receive;
pub use crate::waiting::Waiting;
pub use receive::{LineStatus, MalformedStatus, ReceiveCounters, ServerStatus};

/// A set of counters shown to other threads.
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
    /// Stores all counters. One relaxed store a word; only one thread may do it.
    pub fn show(&self, counters: &T) {
        for (cell, bytes) in self.words.iter().zip(counters.as_bytes().as_chunks::<8>().0) {
            cell.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// The counters as last shown.
    pub fn read(&self) -> T {
        let mut counters = T::new_zeroed();
        for (cell, bytes) in self.words.iter().zip(counters.as_mut_bytes().as_chunks_mut::<8>().0) {
            *bytes = cell.load(Ordering::Relaxed).to_ne_bytes();
        }
        counters
    }
}

/// A histogram shown to other threads.
#[derive(Debug)]
pub struct SharedHistogram(Box<[AtomicU64]>);

impl Default for SharedHistogram {
    fn default() -> Self {
        Self((0..Histogram::WORDS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl SharedHistogram {
    /// Stores the whole histogram, some 500 words; only one thread may do it.
    pub fn show(&self, histogram: &Histogram) {
        self.0.iter().zip(histogram.words()).for_each(|(cell, word)| cell.store(word, Ordering::Relaxed));
    }

    /// The histogram as last shown.
    pub fn read(&self) -> Histogram {
        Histogram::from_words(self.0.iter().map(|cell| cell.load(Ordering::Relaxed)))
    }
}

/// The phases of a bridge's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It carries messages, or waits for some.
    Running,
    /// It was told to leave: it sends what waited, and serves repairs for a while. The session is not over.
    Leaving,
    /// The session is over; its end is repeated and repairs are served.
    Ending,
    /// It has stopped because it was told to, or because the session is over.
    Ended,
    /// It has stopped because of an error.
    Failed,
}

/// The part of the status that is not numbers: phase, session, refusals and error.
#[derive(Debug)]
pub struct Life {
    phase: AtomicU8,
    session: Mutex<Option<Session>>,
    /// Another feed's session that comes on the same lines, and is not taken.
    stranger: Mutex<Option<Session>>,
    /// Options that the system refused at the start, each with its reason; the bridge runs without them.
    refusals: Vec<String>,
    waiting: Waiting,
    error: Mutex<Option<String>>,
}

impl Life {
    /// A bridge that runs, without a session yet.
    pub fn new(refusals: Vec<String>, waiting: Waiting) -> Self {
        Self {
            phase: AtomicU8::new(Phase::Running as u8),
            session: Mutex::default(),
            stranger: Mutex::default(),
            refusals,
            waiting,
            error: Mutex::default(),
        }
    }

    /// Shows another phase.
    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// Shows an error that ended the bridge.
    pub fn fail(&self, error: String) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        self.enter(Phase::Failed);
    }

    /// Called when a session begins, which is rare enough for a lock.
    pub fn note_session(&self, session: Session) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
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

    /// The session that is carried, once one is known.
    pub fn session(&self) -> Option<Session> {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called when another feed begins to come, or comes no more.
    pub(crate) fn note_stranger(&self, session: Option<Session>) {
        *self.stranger.lock().unwrap_or_else(PoisonError::into_inner) = session;
    }

    /// Another feed's session that comes on the same lines, and is not taken.
    pub fn stranger(&self) -> Option<Session> {
        *self.stranger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The options that the system refused at the start, each with its reason.
    pub fn refusals(&self) -> &[String] {
        &self.refusals
    }

    /// How the bridge's thread waits, and the reason.
    pub fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// The error that the bridge failed with, if it has failed.
    pub fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The counters of the sending thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SendCounters {
    /// The sequence after the last message sent.
    pub next_sequence: u64,
    /// Messages sent, each once however many lines there are.
    pub messages: u64,
    /// Packets with messages, each once.
    pub packets: u64,
    /// Bytes of those packets.
    pub bytes: u64,
    /// Heartbeats.
    pub heartbeats: u64,
    /// End-of-session packets.
    pub ends: u64,
    /// Datagrams that the kernel took, for all lines and leases.
    pub datagrams_sent: u64,
    /// Those of them that left in one call with others of the same length.
    pub datagrams_segmented: u64,
    /// Times that the kernel refused segments for a line. The line's later packets leave one by one.
    pub segments_refused: u64,
    /// The number of the system's error at the last of those times; 0 if there was none.
    pub segments_error: u64,
    /// Datagrams that the kernel refused; receivers ask for what was in them.
    pub datagrams_refused: u64,
    /// Times that the publisher overtook the bridge.
    pub lapped: u64,
    /// Messages overwritten before the bridge had read them, or out of order in the ring: a gap for every receiver.
    pub messages_missed: u64,
    /// Messages that are gaps in the channel itself.
    pub gap_messages: u64,
    /// Messages too long for a packet, though the channel promised otherwise.
    pub messages_too_long: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Times that a line took nothing for a while, because its buffer was full. Its datagrams of that time
    /// count as refused.
    pub pauses: u64,
    /// The speed of the link in bits a second that live packets and repairs are held to; 0 if none.
    pub link_bits: u64,
    /// Times that live packets waited because they had used up their share of the link.
    pub link_waits: u64,
    /// The time that they waited, in nanoseconds.
    pub link_waited_ns: u64,
    /// Times that the state file could not be written.
    pub state_errors: u64,
    /// Times that a line was opened anew, because its interface was made anew or got another address.
    pub lines_anew: u64,
    /// The part among the egresses of the stream: 0 the only one, 1 listening, 2 standby, 3 sending.
    pub role: u64,
    /// The number of the claim that sends, as far as this egress knows; 0 for the only one.
    pub claim: u64,
    /// Times that this egress began to send in place of a peer, or because no peer did.
    pub takeovers: u64,
    /// Times that this egress left the sending to a peer.
    pub yields: u64,
}

impl SendCounters {
    /// The part among the egresses of the stream, in a word: `alone`, `listening`, `standby` or `sending`.
    pub fn part(&self) -> &'static str {
        match self.role {
            0 => "alone",
            1 => "listening",
            2 => "standby",
            _ => "sending",
        }
    }

    /// Whether the egress sends nothing because a peer sends, or may send.
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

/// The counters of the retransmission server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RepairCounters {
    /// Datagrams received.
    pub datagrams: u64,
    /// Datagrams that the kernel dropped because the socket's buffer was full.
    pub kernel_drops: u64,
    /// Requests received.
    pub requests: u64,
    /// Replies with messages.
    pub replies: u64,
    /// Messages in them.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Those of the replies that went to all receivers at once.
    pub multicast_replies: u64,
    /// Times that all receivers were told to wait, because the rate was used up.
    pub pauses: u64,
    /// The longest round trip of any receiver, in microseconds; 0 if none is known.
    pub longest_rtt_us: u64,
    /// Replies that the kernel refused.
    pub replies_refused: u64,
    /// The bytes a second, on the wire, that live packets leave to repairs on the link; 0 if its speed is not known.
    pub link_rate_bytes: u64,
    /// Plain requests and control datagrams to a server whose lines are all native.
    pub plain_refused: u64,
    /// Native packets whose seal did not open: they are forged or damaged.
    pub forged: u64,
    /// Native packets that came before, or that are too old to tell.
    pub replayed: u64,
    /// Native packets without a seal or with an unknown key, where sealed ones are required.
    pub unopened: u64,
    /// Times that a receiver said that it follows a later session of this channel.
    pub told_stale: u64,
    /// The replies that came from the channel's journal. They are among those above.
    pub journal: JournalStatus,
    /// Requests that got no messages.
    pub refused: RefusedStatus,
    /// Leases.
    pub leases: LeaseStatus,
}

/// Repairs from the channel's journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct JournalStatus {
    /// Replies with messages that the ring had no more.
    pub replies: u64,
    /// Messages in them.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Requests that waited for the disk.
    pub waited: u64,
    /// Requests that found no place to wait for the disk; they were told to ask later.
    pub queue_full: u64,
    /// Requests for messages that the recorder had not written yet; they were told to ask later.
    pub not_yet: u64,
    /// Blocks of messages read from the journal.
    pub blocks: u64,
    /// Times that the journal could not be read.
    pub errors: u64,
    /// Times that messages were looked for and there was no journal of this stream.
    pub unusable: u64,
}

impl JournalStatus {
    pub(super) fn set(&mut self, replay: &ReplayCounters, past: &PastCounters) {
        (self.replies, self.messages, self.bytes) =
            (replay.journal_replies, replay.journal_messages, replay.journal_bytes);
        (self.waited, self.queue_full, self.not_yet) = (past.waited, past.queue_full, past.not_yet);
        (self.blocks, self.errors, self.unusable) = (past.blocks, past.errors, past.unusable);
    }
}

/// Requests that got no messages, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RefusedStatus {
    /// The source is not on the allow-list.
    pub not_allowed: u64,
    /// The request is damaged.
    pub malformed: u64,
    /// It names another session.
    pub foreign_session: u64,
    /// The source has used up its rate.
    pub source_rate: u64,
    /// All sources together have used up theirs.
    pub global_rate: u64,
    /// Nothing of it is published yet.
    pub not_yet: u64,
    /// The ring has overwritten it, and no journal has it.
    pub gone: u64,
    /// The source has not proved its address.
    pub unproved: u64,
    /// The journal has it, and the disk had enough to do.
    pub journal_busy: u64,
    /// A repair of it for all receivers was on its way.
    pub on_its_way: u64,
}

/// Unicast leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LeaseStatus {
    /// Leases now.
    pub held: u64,
    /// Leases started.
    pub granted: u64,
    /// Leases renewed.
    pub renewed: u64,
    /// Leases given back.
    pub released: u64,
    /// Leases that ran out.
    pub expired: u64,
    /// Leases refused because every place was taken.
    pub full: u64,
    /// Cookies handed out.
    pub cookies: u64,
    /// Cookies that came back wrong or too old.
    pub cookies_refused: u64,
    /// Control datagrams from outside of the allow-list.
    pub not_allowed: u64,
    /// Control datagrams over their source's rate.
    pub over_rate: u64,
    /// Damaged control datagrams.
    pub malformed: u64,
    /// Leases that went over to another address of the same receiver.
    pub replaced: u64,
}

impl RepairCounters {
    pub(super) fn set(&mut self, replay: &ReplayCounters, leases: &LeaseCounters, held: usize) {
        self.requests = replay.requests;
        self.replies = replay.replies;
        self.messages = replay.messages;
        self.bytes = replay.repair_bytes;
        self.multicast_replies = replay.multicast_replies;
        self.pauses = replay.pauses;
        self.refused = RefusedStatus {
            not_allowed: replay.refused(Refusal::NotAllowed),
            malformed: replay.refused(Refusal::Malformed),
            foreign_session: replay.refused(Refusal::ForeignSession),
            source_rate: replay.refused(Refusal::SourceRate),
            global_rate: replay.refused(Refusal::GlobalRate),
            not_yet: replay.refused(Refusal::NotYet),
            gone: replay.refused(Refusal::Gone),
            unproved: replay.refused(Refusal::Unproved),
            journal_busy: replay.refused(Refusal::JournalBusy),
            on_its_way: replay.refused(Refusal::OnItsWay),
        };
        self.leases = LeaseStatus {
            held: held as u64,
            granted: leases.granted,
            renewed: leases.renewed,
            released: leases.released,
            expired: leases.expired,
            full: leases.full,
            cookies: leases.cookies,
            cookies_refused: leases.cookies_refused,
            not_allowed: leases.not_allowed,
            over_rate: leases.over_rate,
            malformed: leases.malformed,
            replaced: leases.replaced,
        };
    }
}

/// A summary of a distribution of durations, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// The number of durations.
    pub count: u64,
    /// Half of them took at most this long.
    pub p50_ns: u64,
    /// 99 % of them took at most this long.
    pub p99_ns: u64,
    /// 99.9 % of them took at most this long.
    pub p999_ns: u64,
    /// The longest.
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
