//! Handles the holes in the feed as time passes: ends the waits for late packets, repeats requests that were not answered, and gives up
//! holes.
//!
//! With the policy `Skip`, a hole is given up in three cases:
//!
//! - All servers that are up say that they no longer have the messages.
//! - No server has sent anything for the time that the policy sets.
//! - Servers answer other requests, and have repeatedly ignored the requests for this hole.
//!
//! The last two cases do not apply while nothing has confirmed that the messages exist. If a server says that it has the messages, the time
//! for these two cases starts again.
//!
//! If the receiver has no servers, a hole with confirmed messages is given up after the wait for late packets.

use super::super::counters::ReceiverCounters;
use super::{FIRST_WINDOW, GapPolicy, Gaps, Hole, State};

/// If servers that answer other requests have ignored this many requests for a hole, the hole can be given up. A lost request or answer
/// also looks like an ignored request. If 20 % of the packets are lost in each direction, this many requests look ignored by chance once in
/// 10^14 times.
const IGNORED_LIMIT: u32 = 32;

impl Gaps {
    /// Notes that a server sent a datagram, so the server is up.
    pub(crate) fn note_alive(&mut self, now_ns: u64, server: usize) {
        self.heard_ns = now_ns;
        if let Some(state) = self.servers.get_mut(server) {
            state.note_heard(now_ns);
        }
    }

    /// Handles a server's answer to the request for the messages from sequence `first` on. The server has answered that it holds these
    /// messages, but is not allowed to send them yet. If there is no such request, does nothing and returns false.
    pub(crate) fn handle_later(
        &mut self,
        now_ns: u64,
        server: usize,
        first: u64,
        counters: &mut ReceiverCounters,
    ) -> bool {
        let Some(at) = self.holes.iter().position(|hole| hole.is_requested(server, first)) else {
            return false;
        };
        self.handle_reply(now_ns, server, first, counters);
        // The hole must be requested again long before the policy would give it up.
        let longest_ns = match self.config.policy {
            GapPolicy::Block => u64::MAX,
            GapPolicy::Skip { give_up_ns } => give_up_ns / 4,
        };
        let hole = &mut self.holes[at];
        hole.doublings += 1;
        // The time until the hole is given up starts again.
        (hole.ignored, hole.asked_ns) = (0, now_ns);
        let wait_ns = self.servers[server].timeout_ns(hole.doublings, &self.config).min(longest_ns);
        let until_ns = now_ns.saturating_add(wait_ns);
        hole.state = State::Deferred { until_ns };
        self.due_ns = self.due_ns.min(until_ns);
        true
    }

    /// Does the work that is due at `now_ns`: ends waits for late packets, handles requests that timed out, and gives up holes. If any work
    /// is due, looks at every hole.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64, counters: &mut ReceiverCounters) {
        if now_ns < self.due_ns {
            return;
        }
        self.due_ns = u64::MAX;
        let mut due_ns = self.pause_ends_ns(now_ns);
        for at in 0..self.holes.len() {
            let hole = self.holes[at];
            if hole.state == State::Expired {
                continue;
            }
            let state = if self.is_given_up(now_ns, &hole) {
                State::Expired
            } else {
                match hole.state {
                    State::Suspect { until_ns } | State::Deferred { until_ns } if until_ns > now_ns => {
                        due_ns = due_ns.min(until_ns);
                        continue;
                    }
                    State::Requested { due_ns: at_ns, .. } if at_ns > now_ns => {
                        due_ns = due_ns.min(at_ns);
                        continue;
                    }
                    State::Requested { server, sent_ns, .. } => {
                        self.note_timeout(now_ns, at, (server, sent_ns), counters);
                        State::Wanted
                    }
                    State::Suspect { .. } if self.config.servers == 0 => match self.config.policy {
                        GapPolicy::Skip { .. } if !self.is_claim(&hole) => State::Expired,
                        GapPolicy::Skip { .. } | GapPolicy::Block => hole.state,
                    },
                    State::Suspect { .. } => self.take_turn(now_ns, at, counters),
                    State::Deferred { .. } | State::Wanted | State::Expired => State::Wanted,
                }
            };
            self.holes[at].state = state;
            match state {
                State::Wanted => {
                    self.any_wanted = true;
                    due_ns = due_ns.min(self.silence_ends_ns(&hole));
                }
                State::Suspect { until_ns } if until_ns > now_ns => due_ns = due_ns.min(until_ns),
                _ => {}
            }
        }
        self.due_ns = self.due_ns.min(due_ns);
    }

    fn is_given_up(&self, now_ns: u64, hole: &Hole) -> bool {
        let GapPolicy::Skip { give_up_ns } = self.config.policy else { return false };
        if self.is_gone(hole) {
            return true;
        }
        if self.is_claim(hole) {
            return false;
        }
        let is_ignored = hole.ignored >= IGNORED_LIMIT && now_ns.saturating_sub(hole.asked_ns) >= give_up_ns;
        is_ignored || now_ns >= self.silence_ends_ns(hole)
    }

    /// Returns the time at which all servers will have been silent for as long as the policy waits.
    fn silence_ends_ns(&self, hole: &Hole) -> u64 {
        match self.config.policy {
            GapPolicy::Skip { give_up_ns } if !self.is_claim(hole) => {
                hole.shown_ns.max(self.heard_ns).saturating_add(give_up_ns)
            }
            GapPolicy::Skip { .. } | GapPolicy::Block => u64::MAX,
        }
    }

    fn note_timeout(
        &mut self,
        now_ns: u64,
        at: usize,
        (server, sent_ns): (usize, u64),
        counters: &mut ReceiverCounters,
    ) {
        counters.servers[server].timeouts += 1;
        if self.is_claim(&self.holes[at]) {
            // Servers of other makes do not answer requests for messages that are not published yet. So the timeout says nothing about the
            // server.
            self.holes[at].doublings += 1;
            return;
        }
        let (hole, state) = (&mut self.holes[at], &mut self.servers[server]);
        // A server that has sent anything since this request is up. Then the request or its answer was lost by chance, and a longer wait
        // does not prevent such a loss. The wait still grows at every third attempt, to spare a server that already answers at its full
        // rate.
        let is_alive = state.heard_ns > sent_ns;
        hole.ignored += u32::from(is_alive);
        hole.doublings += u32::from(!is_alive || hole.attempts % 3 == 0);
        if !is_alive {
            state.back_off(now_ns, &self.config);
        }
        // A lost answer narrows the window by two, and each answer widens it by one. So the window shrinks only if more than a third of the
        // answers are lost.
        let narrowed = if is_alive { self.window.saturating_sub(2) } else { 0 };
        self.window = narrowed.max(FIRST_WINDOW.min(self.config.max_requests));
        if state.note_failure(now_ns) {
            // Holes that only this server could fill can be given up now.
            self.due_ns = now_ns.saturating_add(1);
        }
    }
}
