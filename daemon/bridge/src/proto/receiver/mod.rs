//! The receiving end of a feed. It takes repairs and the packets of several lines, and delivers the published messages, each once and in
//! order.
//!
//! ```text
//!        delivered │ next           early runs (Store)   horizon
//!   ───────────────┼──── hole ────┬───────┬── hole ──┬──────┤ not heard of yet
//! ```
//! The receiver passes the next message from its datagram to the caller without a copy. An early message waits in the store. Every sequence
//! between `next` and the horizon is either stored or part of a hole (`gap`). The receiver uses the first copy of a message, no matter on
//! which line the copy arrived.
//!
//! - `belief` decides which claims of packets the receiver believes.
//! - `follow` decides which session the receiver follows.
//! - The `handle_*` functions pass deliveries to a callback.
//!
//! ```text
//! loop { receive -> handle_datagram; past next_deadline -> handle_timeout; then send every poll_request }
//! ```

mod belief;
#[cfg(test)]
mod checks;
mod config;
mod follow;
mod parts;
mod servers;

pub use config::{Delivery, Origin, REASSEMBLY_BYTES, ReceiverConfig};
pub use follow::{DEFAULT_SILENCE_NS, Follow, Join};

use super::counters::ReceiverCounters;
use super::gap::{Ask, Gaps};
use super::native;
use super::native::ask::{Entry, MAX_ENTRIES};
use super::native::container::{HEAD_BYTES, SEAL_BYTES};
use super::native::fragments::Assembler;
use super::native::pulse::Pulse;
use super::native::records::BASE_BYTES;
use super::session::Session;
use super::store::Store;
use super::wire::{Body, Downstream, HEADER_BYTES, Malformed, Messages, REQUEST_BYTES, Request};
use super::{MAX_LINES, MICROSECOND_NS, SECOND_NS};
use belief::{Claim, End, Jump, Pace};
use follow::Rivals;
use shmcast::MAX_SEQUENCE;
use shmcast::hosting::fault;
use std::ops::Range;

/// The time for which another feed on the lines is reported after its last packet, in nanoseconds. An idle feed sends a heartbeat each
/// second.
const STRANGER_NS: u64 = 10 * SECOND_NS;

/// The state of one receiver. Its memory is bounded by its configuration.
#[derive(Debug)]
pub struct Receiver {
    config: ReceiverConfig,
    session: Option<Session>,
    next: u64,
    horizon: u64,
    /// For each line, the highest sequence that it has reached.
    lines: [u64; MAX_LINES],
    /// The sequence after the last message that a line delivered, or that several packets far ahead announced. When another packet reaches
    /// this sequence too, all messages before this sequence surely exist.
    ahead: u64,
    claim: Option<Claim>,
    end: Option<End>,
    end_announced: bool,
    jump: Option<Jump>,
    pace: Pace,
    rivals: Rivals,
    /// The last packet of another feed on a line: its session, and the time at which it arrived.
    stranger: Option<(Session, u64)>,
    /// The time at which the last packet of the session arrived on a line; `None` if no packet has ever arrived.
    heard_ns: Option<u64>,
    store: Store,
    assembler: Assembler,
    gaps: Gaps,
    /// The last pulse of the session.
    pulse: Option<Pulse>,
    counters: ReceiverCounters,
}

/// A receiver at one moment.
#[derive(Debug, Clone)]
pub struct ReceiverState {
    /// The counters.
    pub counters: ReceiverCounters,
    /// The next sequence to deliver.
    pub next: u64,
    /// The sequence after the last message that is believed to be published.
    pub horizon: u64,
    /// Ranges of missing messages.
    pub holes: usize,
    /// Packets that arrived early and are stored.
    pub early_packets: usize,
    /// The messages in the early packets.
    pub early_messages: u64,
}

impl Receiver {
    /// Makes a receiver that has received nothing. Allocates its tables. A buffer for a packet that arrives while earlier packets are
    /// missing is allocated when it is first needed.
    pub fn new(mut config: ReceiverConfig) -> Receiver {
        config.lines = config.lines.clamp(1, MAX_LINES);
        if config.is_native {
            // Native answers have longer headers, so requests ask only for the messages that still fit.
            let heads = HEAD_BYTES + BASE_BYTES + SEAL_BYTES - HEADER_BYTES;
            config.gaps.payload_bytes = config.gaps.payload_bytes.saturating_sub(heads);
        }
        let (session, next) = match config.join {
            Join::Resume { session, next } => (Some(session), next.max(1)),
            _ => (None, 1),
        };
        let mut gaps = Gaps::new(config.gaps);
        gaps.seed(config.seed);
        Receiver {
            session,
            next,
            horizon: next,
            lines: [next; MAX_LINES],
            ahead: 0,
            claim: None,
            end: None,
            end_announced: false,
            jump: None,
            pace: Pace::default(),
            rivals: Rivals::default(),
            stranger: None,
            heard_ns: None,
            store: Store::new(config.max_early_packets, config.max_early_bytes),
            assembler: Assembler::new(config.reassembly_bytes),
            gaps,
            pulse: None,
            counters: ReceiverCounters::default(),
            config,
        }
    }

    /// Takes one datagram, and delivers the messages that become available. Most datagrams have the next messages in order. Such datagrams
    /// are checked and delivered without a copy. They change neither the holes nor the store.
    pub fn handle_datagram(
        &mut self,
        now_ns: u64,
        origin: Origin,
        datagram: &[u8],
        sink: &mut impl FnMut(Delivery<'_>),
    ) {
        let (packet, pulse) = match self.parse(datagram) {
            Ok(parsed) => parsed,
            Err(reason) => return self.counters.malformed.count(reason),
        };
        let end = packet.end();
        // A packet above the highest possible sequence is dropped, even if it begins a session: no channel has this sequence.
        if end > MAX_SEQUENCE && !fault!("packets_of_any_sequence") {
            self.counters.totals.packets_implausible += 1;
            return;
        }
        if self.session != Some(packet.session) && !self.follow(now_ns, origin, (&packet, datagram), sink) {
            return;
        }
        if let Origin::Line(_) = origin {
            self.heard_ns = Some(now_ns);
        }
        if !self.is_plausible(now_ns, end) {
            self.counters.totals.packets_implausible += 1;
            return;
        }
        self.counters.totals.packets += 1;
        let Some(has_messages) = self.handle_body(now_ns, origin, (&packet, datagram.len()), sink) else {
            return;
        };
        if let Some(pulse) = pulse.as_ref().filter(|pulse| pulse.group > 0) {
            self.gaps.note_group(pulse.group, u64::from(pulse.longest_rtt_us) * MICROSECOND_NS);
        }
        self.pulse = pulse.or(self.pulse);
        self.raise_horizon(now_ns, end);
        self.weigh(now_ns, origin, end, has_messages);
        self.note_pace(now_ns);
        if let Origin::Line(line) = origin {
            self.pass(now_ns, line, end);
        }
        self.gaps.forget_drop();
        if self.end.is_some() {
            self.announce_end(sink);
        }
    }

    /// Handles the body of a packet of this many bytes. Returns whether the packet has messages. Returns `None` if the rest of the packet
    /// must be ignored.
    #[inline]
    fn handle_body(
        &mut self,
        now_ns: u64,
        origin: Origin,
        (packet, bytes): (&Downstream<'_>, usize),
        sink: &mut impl FnMut(Delivery<'_>),
    ) -> Option<bool> {
        match packet.body {
            Body::Messages(messages) => {
                let all = messages.first()..messages.end();
                let is_wanted = match origin {
                    Origin::Line(_) => true,
                    Origin::Server(server) => self.note_reply(now_ns, server, messages.first(), bytes),
                    Origin::Repair(server) => self.note_overheard(now_ns, server, all, bytes),
                };
                if !is_wanted {
                    return None;
                }
                self.handle_messages(now_ns, origin, messages, sink);
                Some(true)
            }
            Body::Heartbeat | Body::End if matches!(origin, Origin::Repair(_)) => None,
            Body::Heartbeat => {
                self.counters.totals.heartbeats += 1;
                Some(false)
            }
            Body::End => {
                self.counters.totals.heartbeats += 1;
                self.note_end(now_ns, origin, packet.sequence);
                Some(false)
            }
            Body::Fragment(fragment) => {
                self.handle_fragment(now_ns, origin, packet.sequence, &fragment, sink).then_some(true)
            }
        }
    }

    fn parse<'d>(&self, datagram: &'d [u8]) -> Result<(Downstream<'d>, Option<Pulse>), Malformed> {
        match self.config.is_native {
            true => native::parse(datagram),
            false => Ok((Downstream::parse(datagram)?, None)),
        }
    }

    /// Does the work that is due at `now_ns`. Call this at `Receiver::next_deadline`. Earlier calls do nothing and cost little.
    pub fn handle_timeout(&mut self, now_ns: u64, sink: &mut impl FnMut(Delivery<'_>)) {
        self.gaps.handle_timeout(now_ns, &mut self.counters);
        self.advance(sink);
    }

    /// Returns the next request to send on a plain line: the server's index, and the datagram. After every `handle_*`, call this until it
    /// returns `None`.
    pub fn poll_request(&mut self, now_ns: u64) -> Option<(usize, [u8; REQUEST_BYTES])> {
        let session = self.session?;
        let ask = self.poll(now_ns)?;
        Some((ask.server, Request { session, first: ask.first, count: ask.count }.encode()))
    }

    /// Returns the next request to send on a native line: the server's index, the session, and the number of entries in `out`. After every
    /// `handle_*`, call this until it returns `None`.
    pub(crate) fn poll_ask(
        &mut self,
        now_ns: u64,
        out: &mut [Entry; MAX_ENTRIES],
    ) -> Option<(usize, Session, usize)> {
        let session = self.session?;
        let ask = self.poll(now_ns)?;
        // If some parts of the message have arrived, only the missing parts are requested.
        let parts = self.assembler.ask(ask.first, out);
        if parts == 0 {
            out[0] = Entry { first: ask.first, count: ask.count, offset: 0, bytes: 0 };
        }
        Some((ask.server, session, parts.max(1)))
    }

    fn poll(&mut self, now_ns: u64) -> Option<Ask> {
        let room = self.store.room(self.config.gaps.payload_bytes);
        self.gaps.poll_request(now_ns, room, &mut self.counters)
    }

    /// Returns the time at which [`Receiver::handle_timeout`] must be called. Returns `None` if time alone changes nothing.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.gaps.next_deadline()
    }

    fn handle_messages(
        &mut self,
        now_ns: u64,
        origin: Origin,
        messages: Messages<'_>,
        sink: &mut impl FnMut(Delivery<'_>),
    ) {
        let (first, end) = (messages.first(), messages.end());
        self.counters.totals.messages_received += messages.count();
        if !messages.is_large() {
            let sizes = messages.messages().map(|message| message.data.len());
            self.gaps.note_sizes(messages.count(), messages.blocks().len(), sizes);
        }
        let of_use = if first > self.next {
            self.keep(now_ns, origin, messages)
        } else if end > self.next {
            let from = self.next;
            let fresh = end.saturating_sub(self.horizon.max(from));
            let filled = self.fill(now_ns, origin, from..end, first);
            let early = self.horizon > from;
            self.horizon = self.horizon.max(end);
            self.deliver(messages, sink);
            if early {
                self.advance(sink);
            }
            filled + fresh
        } else {
            self.counters.totals.messages_duplicate += messages.count();
            0
        };
        self.note_use(origin, &messages, of_use);
        if let (Origin::Server(server), 0) = (origin, of_use) {
            self.gaps.handle_needless(now_ns, server);
        }
    }

    // Delivers those of `messages` that have not been delivered yet. `messages` starts at or before `next`.
    fn deliver(&mut self, messages: Messages<'_>, sink: &mut impl FnMut(Delivery<'_>)) {
        let known = self.next.min(messages.end()) - messages.first();
        self.counters.totals.messages_duplicate += known;
        self.counters.totals.messages_delivered += messages.count() - known;
        for message in messages.messages().skip(known as usize) {
            let (sequence, data, meta) = (message.sequence, message.data, message.meta);
            sink(Delivery::Message { sequence, data, meta });
        }
        self.next = self.next.max(messages.end());
    }

    // Stores those messages of an early packet that are not stored yet. Messages that do not fit the store are in a hole afterwards.
    fn keep(&mut self, now_ns: u64, origin: Origin, messages: Messages<'_>) -> u64 {
        let (first, end) = (messages.first(), messages.end());
        self.raise_horizon(now_ns, first);
        let (mut kept, mut refused, mut at) = (0, 0, first);
        while let Some(missing) = self.store.next_missing(at, end) {
            at = missing.end;
            let count = missing.end - missing.start;
            // Repairs can use the whole store. Live packets can use only three quarters of it, so that there is room for repairs.
            let spare = matches!(origin, Origin::Line(_)) && missing.end > self.horizon;
            if self.gaps.has_room(missing.start, missing.end)
                && self.store.insert(messages.range(missing.clone()), spare)
            {
                self.fill(now_ns, origin, missing, first);
                self.horizon = self.horizon.max(at);
                kept += count;
            } else {
                self.raise_horizon(now_ns, missing.end);
                refused += count;
            }
        }
        self.counters.totals.messages_refused += refused;
        self.counters.totals.messages_duplicate += messages.count() - kept - refused;
        kept
    }

    // Closes the holes that the messages `arrived` fill. Returns how many of these messages were missing.
    fn fill(&mut self, now_ns: u64, origin: Origin, arrived: Range<u64>, packet_first: u64) -> u64 {
        if self.gaps.is_empty() {
            return 0;
        }
        let server = match origin {
            Origin::Line(_) => None,
            Origin::Server(server) | Origin::Repair(server) => Some(server),
        };
        let filled = self.gaps.fill(now_ns, arrived, server, &mut self.counters);
        match (server, filled) {
            (_, 0) => {}
            (Some(server), _) => self.gaps.handle_rest(server, packet_first),
            (None, _) => self.counters.totals.packets_reordered += 1,
        }
        filled
    }

    // Notes that all messages before `sequence` have been published. Those that have not arrived become a hole.
    fn raise_horizon(&mut self, now_ns: u64, sequence: u64) {
        if sequence > self.horizon {
            self.gaps.extend(now_ns, self.horizon, sequence, &mut self.counters);
            self.horizon = sequence;
        }
    }

    fn pass(&mut self, now_ns: u64, line: usize, end: u64) {
        let Some(passed) = self.lines.get_mut(line) else {
            return;
        };
        *passed = end.max(*passed);
        self.counters.lines[line].packets += 1;
        // With a single line, a packet after a hole proves nothing. Only the waiting time distinguishes lost packets from late ones.
        if self.config.lines > 1 && !self.gaps.is_empty() {
            let by_all = self.lines.iter().take(self.config.lines).min();
            let by_all = by_all.copied().unwrap_or(0);
            self.gaps.handle_passed(now_ns, by_all, &mut self.counters);
        }
    }

    fn note_use(&mut self, origin: Origin, messages: &Messages<'_>, of_use: u64) {
        if let Origin::Line(line) = origin
            && let Some(counters) = self.counters.lines.get_mut(line)
        {
            counters.messages_first += of_use;
            counters.messages_duplicate += messages.count() - of_use.min(messages.count());
        }
    }

    // Delivers stored runs, and reports holes that were given up as gaps, as long as the next message is in such a run or hole. Each
    // iteration removes the run or the holes, so the loop ends.
    fn advance(&mut self, sink: &mut impl FnMut(Delivery<'_>)) {
        loop {
            if let Some(run) = self.store.take_ready(self.next) {
                match run.is_apart() {
                    true => self.deliver_apart(run.messages(), sink),
                    false => self.deliver(run.messages(), sink),
                }
                self.store.recycle(run);
            } else if let Some(end) = self.gaps.take_expired(self.next) {
                let given_up = end - self.next;
                self.counters.totals.messages_expired =
                    self.counters.totals.messages_expired.saturating_add(given_up);
                sink(Delivery::Gap { missing: self.next..end });
                self.next = end;
            } else {
                break;
            }
        }
        self.assembler.retain(self.next, u64::MAX);
        self.announce_end(sink);
    }

    fn announce_end(&mut self, sink: &mut impl FnMut(Delivery<'_>)) {
        match (self.end, self.session) {
            // If a publisher returned and continued after the announced end, the session has not ended.
            (Some(end), _) if end.sequence < self.sure() => (self.end, self.end_announced) = (None, false),
            (Some(_), Some(session)) if self.is_over() && !self.end_announced => {
                self.end_announced = true;
                sink(Delivery::End { session, next: self.next });
            }
            _ => {}
        }
    }

    /// Gives up every hole, and delivers the stored messages.
    pub(crate) fn give_up(&mut self, sink: &mut impl FnMut(Delivery<'_>)) {
        self.gaps.expire_all();
        self.advance(sink);
    }

    /// Returns the time since the last packet of the session arrived on a line. If none has ever arrived, returns the time since the start.
    pub(crate) fn silence_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.heard_ns.unwrap_or(0))
    }

    /// The counters so far.
    pub(crate) fn counters(&self) -> &ReceiverCounters {
        &self.counters
    }

    /// Returns the receiver's state at this moment.
    pub fn state(&self) -> ReceiverState {
        ReceiverState {
            counters: self.counters.clone(),
            next: self.next,
            horizon: self.horizon,
            holes: self.gaps.len(),
            early_packets: self.store.packets(),
            early_messages: self.store.messages(),
        }
    }

    /// Returns the session that is followed, if there is one.
    pub(crate) fn session(&self) -> Option<Session> {
        self.session
    }

    /// Returns the session of another feed, if a packet of it arrived on a line within the last ten seconds.
    pub(crate) fn stranger(&self, now_ns: u64) -> Option<Session> {
        let is_fresh = |heard_ns: u64| now_ns.saturating_sub(heard_ns) < STRANGER_NS;
        self.stranger.filter(|(_, heard_ns)| is_fresh(*heard_ns)).map(|(session, _)| session)
    }

    /// Returns the next sequence to deliver.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the sequence after the last message that is believed to be published.
    pub(crate) fn horizon(&self) -> u64 {
        self.horizon
    }

    /// Returns the last pulse of the session (a packet with the sender's state); `None` on a plain line.
    pub(crate) fn pulse(&self) -> Option<&Pulse> {
        self.pulse.as_ref()
    }

    /// Returns, for metrics, the messages that are larger than a packet and not delivered yet.
    pub(crate) fn assembler(&self) -> &Assembler {
        &self.assembler
    }

    /// Returns the holes and the stored early packets, for metrics.
    pub(crate) fn backlog(&self) -> (&Gaps, &Store) {
        (&self.gaps, &self.store)
    }
}
