//! The state machine of the receiving end. It finds the block with the next sequence, follows the log from there, and requests missing
//! messages.
//!
//! ```text
//! BOUNDS   requests the numbers of the log's first and last entry -> BISECT
//! BISECT   finds the first block that reaches the next sequence, in some 20 steps -> FOLLOW
//! FOLLOW   takes blocks in the log's order.
//!          A block begins after the next sequence: the first time -> BOUNDS; the second time -> HOLE
//!          No block for half a second: requests the last entry. If it has changed or is gone, or if the log has a later entry, which was
//!          lost on the way -> BOUNDS
//! HOLE     asks the writers for the missing messages. After they arrived -> BOUNDS
//!          No writer answers: asks for any part of them, then -> BOUNDS, once. Then gives up what no writer has -> BOUNDS
//!          If the servers were silent during that search: asks for any part of them again
//! ```
//! A reader judges a block only by the block's own fields. So a block that is repeated, late or out of order changes only counters. If a
//! reader restarts, it needs only the session and the next sequence, which are in the local ring.

mod io;
mod mending;
mod place;
#[cfg(test)]
mod tests;

use shmcast_bridge::proto::MILLISECOND_NS;
use shmcast_bridge::proto::native::fragments::Fragment;
use shmcast_bridge::proto::native::keys::Keyring;
use shmcast_bridge::proto::session::Session;

use super::block::{Body, Damaged, Head, Stream};
use super::mutant::{Mutant, is};
use super::seal::Opener;
use super::want::is_earlier;

pub use io::{Ask, Delivery, ReaderConfig, ReaderCounters};

/// The pause before a failed request is repeated. A request to the writers is repeated at this interval until it is answered.
const AGAIN_NS: u64 = 250 * MILLISECOND_NS;
/// If a request has no answer for this time, it has failed.
const ANSWER_NS: u64 = 5_000 * MILLISECOND_NS;
/// The longest time for which the reader sends requests of the kind `Any` without an answer. After that, it searches the log again.
const ANY_NS: u64 = 2_000 * MILLISECOND_NS;
/// A reader that never gives messages up searches the log again after this time without an answer.
const PATIENT_NS: u64 = 5_000 * MILLISECOND_NS;
/// If no block arrives for this time, the reader requests the last entry again. The log might have lost this entry, or might have another
/// block under its number.
const IDLE_NS: u64 = 500 * MILLISECOND_NS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Bounds,
    /// The binary search for the first needed block, which is in `low..=high`. `probe` is the number to read next. `first` is the first
    /// entry at or after `high`. `damaged` is the first entry at or after the middle of `low..=high`, if this entry could not be read.
    Bisect {
        low: u64,
        high: u64,
        probe: u64,
        first: u64,
        damaged: Option<u64>,
    },
    Follow {
        heard_ns: u64,
        look: Look,
    },
    /// The sequences up to `to` are missing. `since_ns` is the time at which the reader noticed the hole, or the later time at which a
    /// writer last sent some of the missing messages.
    Hole {
        to: u64,
        since_ns: u64,
        asks: Asks,
    },
}

/// The check that a reader makes if it has received no block for some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Nothing,
    /// Whether the last entry that arrived is still there.
    Last,
    /// Whether the log has an entry after the last one that arrived. The servers send an entry only once, and a broken connection can lose
    /// this entry.
    Behind,
}

/// A reader's request to the writers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    /// A request for the next message that is due.
    Due,
    /// Any missing message with a sequence below `before`. `before` is the first sequence after the hole, or a missing sequence that a
    /// writer has. The reader sends this request if no writer answers requests for the first missing message.
    Any { before: u64 },
}

/// A range of sequences that no writer has sent. The reader notes it before it searches the log for them a last time.
#[derive(Debug, Clone, Copy)]
struct Nobodys {
    first: u64,
    /// The sequence after the last one.
    before: u64,
    /// The time of the last step of this search. If a step takes too long, the reader asks the writers again, because one of them might
    /// have the messages by now.
    step_ns: u64,
}

/// A message whose parts are arriving.
#[derive(Debug, Default)]
struct Parts {
    sequence: u64,
    total: u32,
    bytes: Vec<u8>,
}

/// The reading end of a log.
#[derive(Debug)]
pub struct Reader {
    config: ReaderConfig,
    phase: Phase,
    round: u64,
    /// The time at which the next request is due.
    ask_ns: u64,
    session: Option<Session>,
    /// The stream of the session. It is unknown until a block of the session was read.
    stream: Option<Stream>,
    /// The sequence due; `None` before the first block.
    next: Option<u64>,
    /// The number of the last entry seen.
    seen: u64,
    crc: Option<u32>,
    /// Whether the reader has received every entry since its last search of the log, and no new sequence yet. If so, a missing sequence is
    /// missing in the log itself.
    is_certain: bool,
    /// The number of the log's first entry at the reader's last search.
    oldest: u64,
    /// Whether the entry before the next one is missing or damaged.
    is_torn: bool,
    /// The last range of entries that did not arrive: the first number of the range, and the number after its last.
    lacking: Option<(u64, u64)>,
    /// Sequences that no writer has. If the present search does not find them in the log either, the reader gives them up.
    nobodys: Option<Nobodys>,
    /// The last missing sequence of the hole that was counted last.
    hole: Option<u64>,
    parts: Parts,
    opener: Opener,
    counters: ReaderCounters,
}

impl Reader {
    /// Makes a reader that continues the local ring. `ring` is the ring's session and its next sequence; `None` for an empty ring.
    pub fn new(config: ReaderConfig, ring: Option<(Session, u64)>) -> Reader {
        let (session, next) = (ring.map(|(session, _)| session), ring.map(|(_, next)| next).or(config.from));
        Reader {
            config,
            phase: Phase::Bounds,
            round: 0,
            ask_ns: 0,
            session,
            stream: None,
            next,
            seen: 0,
            crc: None,
            is_certain: false,
            oldest: 0,
            is_torn: false,
            lacking: None,
            nobodys: None,
            hole: None,
            parts: Parts::default(),
            opener: Opener::default(),
            counters: ReaderCounters::default(),
        }
    }

    /// The sequence due; 0 before the first block.
    pub fn next(&self) -> u64 {
        self.next.unwrap_or(0)
    }

    /// The session that is followed.
    pub fn session(&self) -> Option<Session> {
        self.session
    }

    /// Sets the keys that open sealed blocks. `takes_open` says whether blocks without a seal are accepted.
    pub fn set_keys(&mut self, keys: Option<Keyring>, takes_open: bool) {
        self.opener.set_keys(keys, takes_open);
    }

    /// The counts so far.
    pub fn counters(&self) -> &ReaderCounters {
        &self.counters
    }

    /// The number of bytes of the due message that have arrived so far.
    pub fn bytes_due(&self) -> u32 {
        if self.next == Some(self.parts.sequence) { self.parts.bytes.len() as u32 } else { 0 }
    }

    /// Whether the reader waits for missing messages that it has requested from the writers.
    pub fn is_waiting_for_mends(&self) -> bool {
        matches!(self.phase, Phase::Hole { .. })
    }

    /// Returns the next request and its round, if a request is due. If messages are given up, passes a gap to `sink`.
    pub fn poll(&mut self, now_ns: u64, sink: &mut impl FnMut(Delivery<'_>)) -> Option<(u64, Ask)> {
        if let Phase::Follow { heard_ns, look: Look::Nothing } = self.phase
            && now_ns.saturating_sub(heard_ns) >= IDLE_NS
        {
            self.phase = Phase::Follow { heard_ns, look: Look::Last };
            self.ask_ns = now_ns + ANSWER_NS;
            return Some((self.round, Ask::Get(self.seen.max(1))));
        }
        if now_ns < self.ask_ns {
            return None;
        }
        let ask = match self.phase {
            Phase::Bounds => Ask::Bounds,
            Phase::Bisect { probe, .. } => Ask::Get(probe),
            Phase::Follow { look: Look::Nothing, .. } => return None,
            // The check of the log's end got no answer in time.
            Phase::Follow { .. } => {
                self.search(now_ns);
                Ask::Bounds
            }
            Phase::Hole { to, since_ns, asks } => self.ask_for_mends(now_ns, to, since_ns, asks, sink)?,
        };
        self.round += 1;
        self.ask_ns = now_ns + if matches!(ask, Ask::Want(_)) { AGAIN_NS } else { ANSWER_NS };
        Some((self.round, ask))
    }

    /// The time at which [`poll`](Self::poll) is due.
    pub fn next_deadline(&self) -> u64 {
        match self.phase {
            Phase::Follow { heard_ns, look: Look::Nothing } => heard_ns + IDLE_NS,
            _ => self.ask_ns,
        }
    }

    /// Starts a new search of the log for the block that the reader needs next.
    fn search(&mut self, now_ns: u64) {
        self.counters.searches += 1;
        self.phase = Phase::Bounds;
        self.ask_ns = now_ns;
        self.round += 1;
        (self.crc, self.is_certain) = (None, false);
    }

    /// Handles a request that failed, or the end of the entries.
    pub fn handle_failure(&mut self, now_ns: u64, round: u64) {
        if round != self.round {
            return;
        }
        match self.phase {
            Phase::Follow { .. } => {
                self.search(now_ns);
                self.ask_ns = now_ns + AGAIN_NS;
            }
            _ => self.ask_ns = self.ask_ns.min(now_ns + AGAIN_NS),
        }
    }

    /// Handles an entry that arrived.
    pub fn handle_entry(
        &mut self,
        now_ns: u64,
        round: u64,
        (sequence, block): (u64, &[u8]),
        sink: &mut impl FnMut(Delivery<'_>),
    ) {
        if round != self.round || !matches!(self.phase, Phase::Follow { .. }) {
            return;
        }
        self.phase = Phase::Follow { heard_ns: now_ns, look: Look::Nothing };
        if sequence <= self.seen {
            return;
        }
        if sequence > self.seen + 1 {
            // The entries between the last one seen and this entry might have been lost on the way. If the same entries are missing a second
            // time, the log lacks them.
            let lacking = Some((self.seen + 1, sequence));
            self.is_certain &= self.lacking == lacking;
            self.is_torn = true;
            self.lacking = lacking;
        }
        self.seen = sequence;
        // If the block was sealed, its contents are in the opener.
        let mut opener = std::mem::take(&mut self.opener);
        match opener.open(block) {
            Ok((head, body)) => {
                self.take_block(now_ns, &head, body, sink);
                self.is_torn = false;
            }
            Err(why) => {
                self.count_damage(why);
                (self.crc, self.is_torn) = (None, true);
            }
        }
        self.opener = opener;
    }

    fn count_damage(&mut self, why: Damaged) {
        self.counters.damaged += 1;
        self.counters.unopened += u64::from(matches!(why, Damaged::Sealed | Damaged::Forged | Damaged::Open));
    }

    fn take_block(&mut self, now_ns: u64, head: &Head, body: Body<'_>, sink: &mut impl FnMut(Delivery<'_>)) {
        self.counters.chain_breaks += u64::from(self.crc.is_some_and(|crc| crc != head.before));
        self.crc = Some(head.crc);
        if self.session != Some(head.session) && !self.meet_session(head, sink) {
            return;
        }
        self.stream = Some(head.stream);
        let next = self.next.unwrap_or(head.first);
        if !head.reaches(next) && !is(Mutant::TakesTwice) {
            self.counters.repeated += u64::from(head.count);
            return;
        }
        if head.first > next && !is(Mutant::TakesHoles) {
            return self.miss(now_ns, head.first - 1, sink);
        }
        match self.take(head, body, sink) {
            // After a block that completes a message, a later hole needs a new search. Fragments of an incomplete message do not count,
            // because they arrive again after each search.
            true => self.is_certain &= self.next == Some(next),
            false => self.miss(now_ns, next, sink),
        }
    }

    /// Handles a block of another session. Returns whether the block is accepted.
    ///
    /// A channel with a journal keeps its stream when a new session begins, so the sequences continue. The reader then requests the messages
    /// that are missing between the two sessions.
    ///
    /// If the entry before this block is missing or damaged, the first messages of a new stream might be missing, too. The reader then
    /// requests the messages of the session from sequence 1 on. The session of a feed from another host can begin at any sequence, so the
    /// first block that arrives counts as the beginning.
    ///
    /// Earlier mistakes:
    ///
    /// - The first block that arrived always counted as the beginning of its session. The reader never requested earlier messages of the
    ///   session, although a writer still had them. Local readers got an event about a gap between the sequences of the two sessions.
    /// - The reader requested a session that continued the stream from message 1 on, so the messages of the whole journal arrived again.
    fn meet_session(&mut self, head: &Head, sink: &mut impl FnMut(Delivery<'_>)) -> bool {
        let next = match self.session {
            Some(session) if is_earlier(head.session, session) => {
                self.counters.repeated += u64::from(head.count);
                return false;
            }
            Some(_) if self.stream == Some(head.stream) && self.has_grown(head) => {
                self.next.unwrap_or(head.first)
            }
            Some(session) if self.is_torn && is_earlier(session, head.session) && self.is_anew(head) => 1,
            Some(_) => head.first,
            None => self.next.unwrap_or(head.first),
        };
        (self.session, self.next, self.parts) = (Some(head.session), Some(next), Parts::default());
        (self.nobodys, self.hole) = (None, None);
        sink(Delivery::Session { session: head.session, next });
        true
    }

    /// Whether a block's messages can continue the sequences of the previous session: the block must not begin below the next sequence.
    fn has_grown(&self, head: &Head) -> bool {
        self.next.is_some_and(|next| next <= head.first)
    }

    /// Whether the sequences of a later session begin at 1. They do if the session's messages were published on the writer's host, in
    /// another stream than the messages of the previous session. A restarted reader might not know the previous stream. It then assumes
    /// that the stream is the same, unless the sequences have become lower.
    fn is_anew(&self, head: &Head) -> bool {
        let is_own = head.stream != Stream::of_session(head.session);
        is_own && (self.stream.is_some() || !self.has_grown(head))
    }

    /// Delivers the messages of a block from the next sequence on. Returns false for a fragment whose earlier fragments are missing.
    fn take(&mut self, head: &Head, body: Body<'_>, sink: &mut impl FnMut(Delivery<'_>)) -> bool {
        let next = self.next.unwrap_or(head.first);
        match body {
            Body::Messages(messages) => {
                let due = if is(Mutant::TakesTwice) { messages } else { messages.range(next..head.end()) };
                for message in due.messages() {
                    let (sequence, data, meta) = (message.sequence, message.data, message.meta);
                    sink(Delivery::Message { sequence, data, meta });
                }
            }
            Body::Fragment(part) => return self.take_part(head, &part, sink),
            Body::Gap => sink(Delivery::Gap { missing: next..head.end() }),
            Body::End => sink(Delivery::End),
            // The messages continue under the new writer.
            Body::Takeover => {}
            // The opener never returns a sealed body.
            Body::Sealed(_) => return true,
        }
        self.counters.blocks += 1;
        self.next = Some(head.end().max(next));
        true
    }

    fn take_part(&mut self, head: &Head, part: &Fragment<'_>, sink: &mut impl FnMut(Delivery<'_>)) -> bool {
        let parts = &mut self.parts;
        let (from, to) = (part.offset as usize, part.offset as usize + part.data.len());
        if parts.sequence != head.first || parts.total != part.total {
            *parts = Parts { sequence: head.first, total: part.total, bytes: Vec::new() };
        }
        // A restarted writer sends all fragments of the message again. So a fragment can repeat bytes that have already arrived, with the
        // same content.
        if from > parts.bytes.len() {
            return false;
        }
        if to > parts.bytes.len() {
            let known = parts.bytes.len() - from;
            parts.bytes.extend_from_slice(&part.data[known..]);
        }
        self.counters.blocks += 1;
        if parts.bytes.len() == part.total as usize {
            let bytes = std::mem::take(&mut parts.bytes);
            self.parts = Parts::default();
            sink(Delivery::Message { sequence: head.first, data: &bytes, meta: part.meta });
            self.next = Some(head.first + 1);
        }
        true
    }
}
