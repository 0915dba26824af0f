//! From holes to requests: which server, which part, how many at a time.

use super::super::counters::ReceiverCounters;
use super::super::wire::{HEADER_BYTES, LENGTH_BYTES, MAX_MESSAGES};
use super::{Gaps, Hole, State};

/// A request that is to be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Which server to ask.
    pub server: usize,
    /// The first sequence wanted.
    pub first: u64,
    /// How many are wanted.
    pub count: u16,
}

impl Gaps {
    /// The next request to send, if one is due. `room` is how many answers could be kept; one more is always asked for,
    /// because an answer to the first hole needs no keeping.
    pub fn poll_request(&mut self, now_ns: u64, room: usize, counters: &mut ReceiverCounters) -> Option<Ask> {
        if !self.any_wanted {
            return None;
        }
        let Some(at) = self.holes.iter().position(|hole| hole.state == State::Wanted) else {
            self.any_wanted = false;
            return None;
        };
        let server = self.choose_server(&self.holes[at])?;
        // A server of unknown distance is asked one thing at a time: the first wait is a guess, and guessing wrongly
        // costs one needless answer rather than a whole round of them.
        let limit = match self.servers[server].rtt_ns {
            0 => 1,
            _ => self.window.min(room.saturating_add(1)),
        };
        let is_pending =
            |hole: &&Hole| matches!(hole.state, State::Requested { .. } | State::Deferred { .. });
        if self.holes.iter().filter(is_pending).count() >= limit {
            return None;
        }
        self.shape(at);
        let timeout_ns = self.servers[server].timeout_ns(self.holes[at].doublings, &self.config);
        let hole = &mut self.holes[at];
        if hole.attempts == 0 {
            hole.asked_ns = now_ns;
        } else {
            counters.requests_repeated += 1;
        }
        hole.attempts = hole.attempts.saturating_add(1);
        hole.last_server = server;
        let due_ns = now_ns.saturating_add(timeout_ns);
        hole.state = State::Requested { first: hole.first, server, sent_ns: now_ns, due_ns };
        self.due_ns = self.due_ns.min(due_ns);
        counters.requests += 1;
        counters.servers[server].requests += 1;
        let count = (hole.end - hole.first).min(u64::from(MAX_MESSAGES)) as u16;
        Some(Ask { server, first: hole.first, count })
    }

    // First the server that answers; then, whenever it did not, the next one.
    fn choose_server(&self, hole: &Hole) -> Option<usize> {
        let servers = self.config.servers;
        let holds = |server: &usize| hole.gone & (1 << server) == 0;
        if hole.attempts == 0 {
            return (0..servers).filter(holds).min_by_key(|&server| self.servers[server].failures);
        }
        (1..=servers).map(|turn| (hole.last_server + turn) % servers).find(holds)
    }

    // Makes the hole at `at` the size of one answer: joins it with wanted neighbours, or cuts it. What fits twice is not
    // cut: a lost packet is one answer whatever the estimate says, and a short answer is followed up at once.
    fn shape(&mut self, at: usize) {
        let room = self.config.payload_bytes.saturating_sub(HEADER_BYTES).max(LENGTH_BYTES) as u64;
        let answer =
            (room * self.recent_messages / self.recent_bytes.max(1)).clamp(1, u64::from(MAX_MESSAGES));
        while let Some(&next) = self.holes.get(at + 1) {
            let hole = self.holes[at];
            let joins = next.state == State::Wanted && next.first == hole.end && next.gone == hole.gone;
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
        if hole.end - hole.first > answer.saturating_mul(2) && has_room {
            self.holes[at].end = hole.first + answer;
            self.holes.insert(at + 1, Hole { first: hole.first + answer, ..hole });
        }
    }
}
