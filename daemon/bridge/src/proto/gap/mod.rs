//! The missing messages, as a list of holes, and the requests for them.
//!
//! ```text
//!            hold over, or every line passed it          request sent
//!  Suspect ────────────────────────────────> Wanted ───────────────────> Requested ─────> Deferred
//!     │                                        ^  ^ timeout, short reply     │  held, but later │
//!     │ no server to ask                       │  ├──────────────────────────┼──────────────────┘
//!     │                                        │  │                          │ gone everywhere, or given up
//!     v                                        │ policy Block: after a pause v
//!  Expired <───────────────────────────────────┴───────────────────────── Expired (policy Skip)
//! ```
//! A hole is removed when its messages arrive, from a line or a server. An expired hole is removed when the receiver skips it. Each request
//! covers a part of a hole that fits one datagram of the answer. The number of unanswered requests is bounded.
//!
//! A hole is a *claim* or is *shown*:
//!
//! - A claim rests on one packet, which anybody can forge. The messages of a claim are requested. A claim never expires, however old it is,
//!   and is removed when another packet contradicts it.
//! - A hole is shown once its messages surely exist. The proof is usually two packets, or one answer of a server, with the same or later
//!   messages.
//!
//! The horizon is the sequence after the last message that is believed to be published. The receiver maintains an invariant: holes are
//! sorted and never overlap, and each message from the next one to deliver up to the horizon is in a hole or in the store. This module
//! handles no data, sessions or deliveries.

mod config;
mod evidence;
mod requests;
mod servers;
#[cfg(test)]
mod tests;
mod turn;
mod waiting;

use std::collections::VecDeque;
use std::ops::Range;

pub use config::{GapConfig, GapPolicy};
pub use requests::Ask;
use servers::Server;
use turn::Turn;

use super::MAX_SERVERS;
use super::counters::ReceiverCounters;

/// The first limit of unanswered requests. The limit grows with each answer, and falls back to this number if a server does not answer any
/// more.
const FIRST_WINDOW: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The hole is not requested before `until_ns`.
    Suspect { until_ns: u64 },
    /// The hole is requested as soon as there is room for a request.
    Wanted,
    /// A request for messages from the sequence `first` on was sent, and is not answered yet.
    Requested { first: u64, server: usize, sent_ns: u64, due_ns: u64 },
    /// A server holds the messages but is not allowed to send them yet. They are not requested again before `until_ns`.
    Deferred { until_ns: u64 },
    /// The messages of the hole were given up.
    Expired,
}

#[derive(Debug, Clone, Copy)]
struct Hole {
    first: u64,
    end: u64,
    state: State,
    found_ns: u64,
    /// The time at which the hole was shown to exist; before that, the time at which it was found. After the hole was shown to exist, it is
    /// given up if the servers are silent for long enough.
    shown_ns: u64,
    /// The time of the first request for the hole, or of a server's later notice to wait. It has no meaning while `attempts` is 0.
    asked_ns: u64,
    attempts: u32,
    /// The number of times that the wait for an answer was doubled.
    doublings: u32,
    /// The number of requests for the hole that a server did not answer, although the server sent other datagrams meanwhile.
    ignored: u32,
    last_server: usize,
    /// One bit per server. A bit is set when the server first says that it no longer holds the messages. When the server says so again, its
    /// bit in `gone` is set. Two answers are needed because a single answer might be forged.
    gone_once: u8,
    gone: u8,
    /// The number of answers that said that no message of the hole is published yet.
    denied: u32,
    /// Whether our own socket dropped the messages. If so, other receivers do not lack these messages, and this receiver must request them
    /// itself.
    is_own: bool,
    /// Whether the hole has waited once, so that other receivers could request its messages first.
    has_waited: bool,
}

impl Hole {
    /// Whether the hole is still new: no server was asked for its messages. Only a new hole is allowed to grow.
    fn is_fresh(&self) -> bool {
        matches!(self.state, State::Suspect { .. } | State::Wanted)
            && (self.attempts, self.gone_once, self.denied) == (0, 0, 0)
    }

    fn is_requested(&self, by_server: usize, from: u64) -> bool {
        matches!(self.state, State::Requested { first, server, .. } if first == from && server == by_server)
    }
}

/// The list of holes, and the state of the servers.
#[derive(Debug)]
pub struct Gaps {
    config: GapConfig,
    holes: VecDeque<Hole>,
    servers: [Server; MAX_SERVERS],
    /// The sequence before which all messages have been shown to exist.
    shown: u64,
    /// A copy of a request, to be sent next to a server that is down or doubted. The copy tests this server. The request itself goes to
    /// another server.
    probe: Option<Ask>,
    /// No wait of any hole ends before this time.
    due_ns: u64,
    any_wanted: bool,
    /// The time at which a server last sent a datagram.
    heard_ns: u64,
    /// The greatest number of unanswered requests that are allowed now.
    window: usize,
    /// The recent delay of messages that seemed lost and then arrived on a line, in nanoseconds.
    lateness_ns: u64,
    /// Sums over the recent messages: their number, and their bytes on the wire. Each call of `note_sizes` first subtracts a sixteenth from
    /// each sum, so that old messages count less.
    recent_messages: u64,
    recent_bytes: u64,
    /// The size of the longest message so far, in bytes. It is noted only while a server might be of another make.
    longest_bytes: u64,
    turn: Turn,
}

impl Gaps {
    /// Makes an empty list.
    pub(crate) fn new(mut config: GapConfig) -> Gaps {
        config.servers = config.servers.min(MAX_SERVERS);
        config.max_requests = config.max_requests.max(1);
        config.max_holes = config.max_holes.max(2 * config.max_requests);
        Gaps {
            config,
            holes: VecDeque::with_capacity(config.max_holes + config.max_requests + 8),
            servers: [Server::default(); MAX_SERVERS],
            shown: 0,
            probe: None,
            due_ns: u64::MAX,
            any_wanted: false,
            heard_ns: 0,
            window: config.max_requests.min(FIRST_WINDOW),
            lateness_ns: 0,
            recent_messages: 16,
            recent_bytes: 16 * 64,
            longest_bytes: 0,
            turn: Turn::default(),
        }
    }

    /// Whether nothing is missing.
    pub(crate) fn is_empty(&self) -> bool {
        self.holes.is_empty()
    }

    /// Returns the number of holes.
    pub(crate) fn len(&self) -> usize {
        self.holes.len()
    }

    /// Whether the messages `first..end`, which arrived while earlier messages are missing, can be stored. If the list of holes is full,
    /// only messages that make no new hole can be stored.
    pub(crate) fn has_room(&self, first: u64, end: u64) -> bool {
        if self.holes.len() < self.config.max_holes {
            return true;
        }
        // Messages at the end of the last hole are refused, because they would stop the growth of this hole, and the next missing message
        // would make another hole.
        let at = self.holes.partition_point(|hole| hole.end <= first);
        let is_last = at + 1 == self.holes.len();
        let hole = self.holes.get(at);
        hole.is_some_and(|hole| hole.first == first || (hole.first < first && hole.end == end && !is_last))
    }

    /// Returns the time at which [`Gaps::handle_timeout`] must be called. Returns `None` if nothing is missing, or if time alone changes
    /// nothing.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        (self.due_ns != u64::MAX).then_some(self.due_ns)
    }

    /// Notes the sizes of messages, so that a request asks only for what fits in one answer. `sizes` has the size of each message. When all
    /// servers are known to run shmcast, `sizes` is not used.
    pub(crate) fn note_sizes(&mut self, messages: u64, bytes: usize, sizes: impl Iterator<Item = usize>) {
        if self.config.may_be_plain && self.servers.iter().any(|server| !server.is_ours) {
            self.longest_bytes = sizes.max().map_or(0, |size| size as u64).max(self.longest_bytes);
        }
        // The two sums give the mean size of a message. A mean of the packets' means would give too much weight to packets with one long
        // message.
        let fade = |recent: &mut u64, more: u64| *recent = (*recent - *recent / 16).saturating_add(more);
        fade(&mut self.recent_messages, messages);
        fade(&mut self.recent_bytes, bytes as u64);
    }

    /// Notes that a server has sent a control datagram of shmcast. So the server runs shmcast, and labels each packet of an answer with the
    /// sequence of that packet's first message.
    pub(crate) fn note_ours(&mut self, server: usize) {
        if let Some(server) = self.servers.get_mut(server) {
            server.is_ours = true;
        }
    }

    /// Notes that the messages `first..end` are missing. They come after all known messages.
    pub(crate) fn extend(&mut self, now_ns: u64, first: u64, end: u64, counters: &mut ReceiverCounters) {
        if first >= end {
            return;
        }
        // A peer can name any number as `end`, so the sum saturates.
        counters.totals.gap_messages = counters.totals.gap_messages.saturating_add(end - first);
        let (crowded, shown) = (self.is_crowded(), self.shown);
        if let Some(last) = self.holes.back_mut().filter(|last| last.end == first) {
            // Let the last hole grow. Otherwise each further packet would add another hole.
            if last.end > shown && last.is_fresh() {
                last.end = end;
                return;
            }
            if crowded {
                (last.end, last.state, last.attempts, last.ignored) = (end, State::Wanted, 0, 0);
                self.any_wanted = true;
                return;
            }
        }
        counters.totals.gaps += 1;
        let until_ns = now_ns.saturating_add(self.hold_ns());
        self.due_ns = self.due_ns.min(until_ns);
        self.holes.push_back(Hole {
            first,
            end,
            state: State::Suspect { until_ns },
            found_ns: now_ns,
            shown_ns: now_ns,
            asked_ns: 0,
            attempts: 0,
            doublings: 0,
            ignored: 0,
            last_server: 0,
            gone_once: 0,
            gone: 0,
            denied: 0,
            is_own: self.turn.has_dropped,
            has_waited: false,
        });
    }

    fn is_crowded(&self) -> bool {
        self.holes.len() >= self.config.max_holes + self.config.max_requests
    }

    fn hold_ns(&self) -> u64 {
        let stretched = self.lateness_ns + self.lateness_ns / 4;
        stretched.clamp(self.config.hold_ns, self.config.hold_max_ns.max(self.config.hold_ns))
    }

    /// Notes that every line has sent something after `sequence`. So the messages that are missing before `sequence` are lost, and not only
    /// late.
    pub(crate) fn handle_passed(&mut self, now_ns: u64, sequence: u64, counters: &mut ReceiverCounters) {
        if self.config.servers == 0 {
            return;
        }
        for at in 0..self.holes.partition_point(|hole| hole.end <= sequence) {
            let hole = self.holes[at];
            if matches!(hole.state, State::Suspect { .. }) && hole.attempts == 0 && !hole.has_waited {
                let state = self.take_turn(now_ns, at, counters);
                self.holes[at].state = state;
                match state {
                    State::Suspect { until_ns } => self.due_ns = self.due_ns.min(until_ns),
                    _ => self.any_wanted = true,
                }
            }
        }
    }

    /// Notes that the messages `arrived` were received. They came from a server, or from a line if `server` is `None`. Returns how many of
    /// them were missing.
    pub(crate) fn fill(
        &mut self,
        now_ns: u64,
        arrived: Range<u64>,
        server: Option<usize>,
        counters: &mut ReceiverCounters,
    ) -> u64 {
        let mut filled = 0;
        let mut at = self.holes.partition_point(|hole| hole.end <= arrived.start);
        while let Some(&hole) = self.holes.get(at).filter(|hole| hole.first < arrived.end) {
            let (first, end) = (hole.first.max(arrived.start), hole.end.min(arrived.end));
            filled += end - first;
            self.note_filled(now_ns, &hole, end - first, server, counters);
            match (first == hole.first, end == hole.end) {
                (true, true) => {
                    self.holes.remove(at);
                }
                (true, false) => self.holes[at].first = end,
                (false, true) => {
                    self.holes[at].end = first;
                    at += 1;
                }
                (false, false) => {
                    self.holes[at].end = first;
                    self.holes.insert(at + 1, Hole { first: end, ..hole });
                }
            }
            if end == arrived.end {
                break;
            }
        }
        if self.holes.is_empty() {
            self.due_ns = u64::MAX;
        }
        filled
    }

    fn note_filled(
        &mut self,
        now_ns: u64,
        hole: &Hole,
        messages: u64,
        server: Option<usize>,
        counters: &mut ReceiverCounters,
    ) {
        let took_ns = now_ns.saturating_sub(hole.found_ns);
        match server {
            Some(server) => {
                if let Some(counters) = counters.servers.get_mut(server) {
                    counters.messages_recovered += messages;
                }
                // If this receiver has not requested these messages, another receiver has.
                counters.totals.requests_saved += u64::from(hole.attempts == 0);
                counters.recovery.record(took_ns, messages);
                self.lateness_ns -= self.lateness_ns / 16;
            }
            None => {
                counters.totals.recovered_by_lines += messages;
                if hole.attempts > 0 {
                    counters.totals.requested_needlessly += messages;
                }
                // The wait grows immediately and shrinks slowly, because one needless request costs more than a few longer waits.
                let late_ns = took_ns.min(self.config.hold_max_ns);
                self.lateness_ns = late_ns.max(self.lateness_ns - self.lateness_ns / 16);
            }
        }
    }

    /// Handles a server's packet whose first message has the sequence `first`. If a request asked for the messages from `first` on,
    /// measures the round trip to the server. Call this before [`Gaps::fill`].
    pub(crate) fn handle_reply(
        &mut self,
        now_ns: u64,
        server: usize,
        first: u64,
        counters: &mut ReceiverCounters,
    ) {
        self.note_alive(now_ns, server);
        let asked = self.holes.iter().find_map(|hole| match hole.state {
            State::Requested { first: asked, server, sent_ns, .. } if asked == first => {
                Some((*hole, server, sent_ns))
            }
            _ => None,
        });
        let Some(state) = self.servers.get_mut(server) else {
            return;
        };
        let Some((hole, asked_server, sent_ns)) = asked else {
            return;
        };
        // Servers are asked in turn. Until each server has been asked once, a server's answer can belong to only one request.
        let sure = asked_server == server && hole.attempts as usize <= self.config.servers;
        if sure {
            state.backoff = 0;
            self.window = (self.window + 1).min(self.config.max_requests);
            state.sample(now_ns.saturating_sub(sent_ns).max(1));
        } else if state.rtt_ns == 0 {
            // One of several requests was answered, and it is not known which. The safe guess is the first request, unless it was absurdly
            // long ago.
            let since_first_ns = now_ns.saturating_sub(hole.asked_ns).max(1);
            state.sample(since_first_ns.min(2 * self.config.timeout_max_ns));
        } else {
            return;
        }
        if let Some(counters) = counters.servers.get_mut(server) {
            counters.rtt_ns = state.rtt_ns;
        }
    }

    /// Notes a server's round-trip time that a lease has measured. The time is ignored if a round-trip time of this server is known
    /// already.
    pub(crate) fn note_rtt(&mut self, server: usize, rtt_ns: u64) {
        if let Some(state) = self.servers.get_mut(server).filter(|state| state.rtt_ns == 0) {
            state.sample(rtt_ns.max(1));
        }
    }

    /// Requests the remaining messages immediately if the answer to a request did not fit one datagram. Call this after [`Gaps::fill`].
    pub(crate) fn handle_rest(&mut self, server: usize, first: u64) {
        for hole in &mut self.holes {
            if hole.is_requested(server, first) {
                hole.state = State::Wanted;
                (hole.attempts, hole.doublings, hole.ignored) = (0, 0, 0);
                self.any_wanted = true;
            }
        }
    }

    /// Notes that a server sent a fragment of the message at `first`. If this was the last packet of the answer, the parts that are still
    /// missing are requested immediately. Otherwise the receiver waits for the other packets of the answer.
    pub(crate) fn handle_part(&mut self, now_ns: u64, server: usize, first: u64, is_last: bool) {
        if is_last {
            return self.handle_rest(server, first);
        }
        let Some(wait_ns) = self.servers.get(server).map(|state| state.timeout_ns(0, &self.config)) else {
            return;
        };
        let is_asked = |hole: &&mut Hole| hole.is_requested(server, first);
        if let Some(hole) = self.holes.iter_mut().find(is_asked)
            && let State::Requested { due_ns, .. } = &mut hole.state
        {
            *due_ns = (*due_ns).max(now_ns.saturating_add(wait_ns));
        }
    }

    /// Notes that a server sent messages that had already arrived. Probably the server's first answer was late and not lost, so later waits
    /// become longer.
    pub(crate) fn handle_needless(&mut self, now_ns: u64, server: usize) {
        if let Some(state) = self.servers.get_mut(server) {
            state.note_late(now_ns, &self.config);
        }
    }

    /// Removes the holes that were given up and follow each other from `next` on. Returns the sequence after these holes, or `None` if
    /// there are none.
    pub(crate) fn take_expired(&mut self, next: u64) -> Option<u64> {
        let mut end = None;
        while let Some(hole) = self.holes.front() {
            if hole.state != State::Expired || hole.first != end.unwrap_or(next) {
                break;
            }
            end = Some(hole.end);
            self.holes.pop_front();
        }
        end
    }

    /// Gives up all holes, because the session is over.
    pub(crate) fn expire_all(&mut self) {
        for hole in &mut self.holes {
            hole.state = State::Expired;
        }
    }

    /// Whether any of these messages is missing.
    pub(crate) fn is_any_missing(&self, messages: Range<u64>) -> bool {
        let at = self.holes.partition_point(|hole| hole.end <= messages.start);
        self.holes.get(at).is_some_and(|hole| hole.first < messages.end)
    }

    /// Returns each hole as (first, end), in order.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.holes.iter().map(|hole| (hole.first, hole.end))
    }
}
