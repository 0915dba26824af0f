//! Turns holes into requests. It chooses the server and the messages of each request, and bounds the number of unanswered requests.

use super::super::MAX_SERVERS;
use super::super::counters::ReceiverCounters;
use super::super::wire::{HEADER_BYTES, LENGTH_BYTES, MAX_MESSAGES};
use super::{Gaps, Hole, State};
use shmcast::hosting::fault;

/// The greatest number of unanswered requests for messages that are not confirmed to exist. A server's answer confirms that the messages
/// exist.
const CLAIMS: usize = 8;

/// A request to send now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The server to ask.
    pub server: usize,
    /// The first sequence asked for.
    pub first: u64,
    /// The number of messages asked for.
    pub count: u16,
}

/// The numbers of requests that are unanswered or deferred.
#[derive(Debug, Default)]
struct Pending {
    servers: [usize; MAX_SERVERS],
    shown: usize,
    claims: usize,
}

impl Gaps {
    /// Returns the next request to send, if one is due. `room` is the number of answers that the store can hold. One request more than
    /// `room` is always allowed, because the answer to the first hole is delivered without being stored.
    pub(crate) fn poll_request(
        &mut self,
        now_ns: u64,
        room: usize,
        counters: &mut ReceiverCounters,
    ) -> Option<Ask> {
        if let Some(probe) = self.probe.take() {
            return Some(probe);
        }
        if !self.any_wanted {
            return None;
        }
        let window = self.window.min(room.saturating_add(1));
        let pending = self.count_pending();
        // Claims are requested after all shown holes, and must not delay the requests for shown holes.
        let (mut any_wanted, mut found) = (false, None);
        for (at, hole) in self.holes.iter().enumerate().filter(|(_, hole)| hole.state == State::Wanted) {
            any_wanted = true;
            let is_full = match self.is_claim(hole) {
                true => pending.claims >= window.min(CLAIMS),
                false => pending.shown >= window,
            };
            if is_full {
                break;
            }
            if let Some(server) = self.choose_server(now_ns, hole, &pending, window) {
                found = Some((at, server));
                break;
            }
        }
        self.any_wanted = any_wanted;
        let (at, server) = found?;
        Some(self.ask(now_ns, at, server, counters))
    }

    fn ask(&mut self, now_ns: u64, at: usize, server: usize, counters: &mut ReceiverCounters) -> Ask {
        let most = self.shape(at, server);
        let timeout_ns = self.servers[server].timeout_ns(self.holes[at].doublings, &self.config);
        let hole = &mut self.holes[at];
        if hole.attempts == 0 {
            hole.asked_ns = now_ns;
        } else {
            counters.totals.requests_repeated += 1;
        }
        hole.attempts = hole.attempts.saturating_add(1);
        hole.last_server = server;
        let due_ns = now_ns.saturating_add(timeout_ns);
        hole.state = State::Requested { first: hole.first, server, sent_ns: now_ns, due_ns };
        self.due_ns = self.due_ns.min(due_ns);
        let count = (hole.end - hole.first).min(most) as u16;
        let ask = Ask { server, first: hole.first, count };
        let gone = hole.gone;
        let mut note = |server: usize| {
            counters.totals.requests += 1;
            counters.servers[server].requests += 1;
        };
        note(server);
        self.servers[server].note_asked(now_ns);
        for other in (0..self.config.servers).filter(|&other| other != server && gone & (1 << other) == 0) {
            if let Some(falls) = self.servers[other].take_probe(now_ns) {
                note(other);
                self.probe = Some(Ask { server: other, ..ask });
                self.due_ns = if falls { now_ns.saturating_add(1) } else { self.due_ns };
                break;
            }
        }
        ask
    }

    fn count_pending(&self) -> Pending {
        let mut pending = Pending::default();
        for hole in &self.holes {
            match hole.state {
                State::Requested { server, .. } => pending.servers[server] += 1,
                State::Deferred { .. } => {}
                _ => continue,
            }
            match self.is_claim(hole) {
                true => pending.claims += 1,
                false => pending.shown += 1,
            }
        }
        pending
    }

    /// Whether a server is down: for too long, it has neither answered requests nor sent other packets.
    pub(crate) fn is_down(&self, server: usize) -> bool {
        self.servers.get(server).is_some_and(|server| server.is_down)
    }

    /// One bit for each server that is not down.
    pub(super) fn up_servers(&self) -> u8 {
        let is_up = |server: &usize| !self.servers[*server].is_down;
        (0..self.config.servers).filter(is_up).fold(0, |up, server| up | 1 << server)
    }

    // Chooses the server with the fewest failures for a first request, and the next server for each repeat. A doubted server is chosen only
    // if every other server is doubted too, or no longer holds the messages.
    fn choose_server(&self, now_ns: u64, hole: &Hole, pending: &Pending, window: usize) -> Option<usize> {
        let servers = self.config.servers;
        let holds = |server: &usize| hole.gone & (1 << server) == 0;
        let is_good = |server: &usize| holds(server) && !self.servers[*server].is_doubted();
        let is_there = |server: &usize| holds(server) && !self.servers[*server].is_down;
        let has_room = |server: &usize| {
            let state = &self.servers[*server];
            now_ns >= state.paused_ns && pending.servers[*server] < state.limit(window)
        };
        let any = |is: &dyn Fn(&usize) -> bool| (0..servers).any(|server| is(&server));
        let (any_good, any_there) = (any(&is_good), any(&is_there));
        let may = |server: &usize| match (any_good, any_there) {
            (true, _) => is_good(server),
            (false, true) => is_there(server),
            (false, false) => holds(server),
        };
        if hole.attempts == 0 {
            let by_failures = |&server: &usize| self.servers[server].failures;
            return (0..servers).filter(may).filter(has_room).min_by_key(by_failures);
        }
        (1..=servers).map(|turn| (hole.last_server + turn) % servers).filter(may).find(has_room)
    }

    // Makes the hole at `at` as large as one answer: joins it with wanted neighbours, or cuts it. Returns the greatest number of messages
    // that a request to this server can name.
    //
    // A hole of at most twice the size of one answer is not cut, because one answer can be enough if the estimate of its size was too low.
    // If the answer has too few messages, the other messages of the hole are requested immediately. A server of another make is asked only
    // for messages that surely fit one packet.
    fn shape(&mut self, at: usize, server: usize) -> u64 {
        let room = self.config.payload_bytes.saturating_sub(HEADER_BYTES).max(LENGTH_BYTES) as u64;
        let is_plain =
            self.config.may_be_plain && !self.servers[server].is_ours && !fault!("plain_servers_are_trusted");
        let (answer, most) = match is_plain {
            // No message has arrived yet. The sizes of messages are not known, so the request asks for one message.
            true if self.longest_bytes == 0 => (1, 1),
            true => (room / (self.longest_bytes + LENGTH_BYTES as u64), 1),
            false => (room * self.recent_messages / self.recent_bytes.max(1), 2),
        };
        let answer = answer.clamp(1, u64::from(MAX_MESSAGES));
        while let Some(&next) = self.holes.get(at + 1) {
            let hole = self.holes[at];
            let is_alike = (next.gone, next.gone_once, self.is_claim(&next))
                == (hole.gone, hole.gone_once, self.is_claim(&hole));
            let joins = next.state == State::Wanted && next.first == hole.end && is_alike;
            if !joins || next.end - hole.first > answer {
                break;
            }
            let own = &mut self.holes[at];
            own.end = next.end;
            own.attempts = hole.attempts.max(next.attempts);
            own.ignored = hole.ignored.min(next.ignored);
            own.asked_ns = if hole.attempts == 0 { next.asked_ns } else { hole.asked_ns };
            self.holes.remove(at + 1);
        }
        let hole = self.holes[at];
        let has_room = self.holes.len() < self.config.max_holes + self.config.max_requests;
        if hole.end - hole.first > answer.saturating_mul(most) && has_room {
            self.holes[at].end = hole.first + answer;
            self.holes.insert(at + 1, Hole { first: hole.first + answer, ..hole });
        }
        if is_plain { answer } else { u64::from(MAX_MESSAGES) }
    }
}
