//! The evidence about a hole: whether its messages exist at all, and what servers report about them.

use super::super::counters::ReceiverCounters;
use super::{GapPolicy, Gaps, Hole, State};
use shmcast::hosting::fault;

/// The number of doublings above which the wait for a claim's next request can end early. A claim is a hole whose messages only one packet
/// has announced. Each failed request for a claim doubles the wait. The wait ends early when another packet confirms the messages.
const STALE_DOUBLINGS: u32 = 2;

impl Gaps {
    /// Returns the sequence before which all messages have been shown to exist.
    pub(crate) fn shown(&self) -> u64 {
        self.shown
    }

    /// Begins another feed. No messages from `next` on are known to exist.
    pub(crate) fn begin(&mut self, next: u64) {
        (self.shown, self.probe) = (next, None);
    }

    /// Notes that all messages before `sequence` have been shown to exist. From now on, missing messages among them can be given up.
    pub(crate) fn show(&mut self, now_ns: u64, sequence: u64) {
        if sequence <= self.shown {
            return;
        }
        let before = std::mem::replace(&mut self.shown, sequence);
        let mut at = self.holes.partition_point(|hole| hole.end <= before);
        while let Some(&hole) = self.holes.get(at).filter(|hole| hole.first < sequence) {
            if hole.end > sequence {
                // If there is no room for another hole, this hole cannot be split at `sequence`. Then the whole hole stays a claim, because
                // the messages at its end are still a claim.
                if self.is_crowded() {
                    break;
                }
                self.holes[at].end = sequence;
                self.holes.insert(at + 1, Hole { first: sequence, ..hole });
            }
            self.note_shown(now_ns, at);
            at += usize::from(!self.join_with_last(at));
        }
    }

    fn note_shown(&mut self, now_ns: u64, at: usize) {
        let until_ns = now_ns.saturating_add(self.hold_ns());
        let hole = &mut self.holes[at];
        hole.shown_ns = now_ns;
        (hole.ignored, hole.denied) = (0, 0);
        let waits = match hole.state {
            State::Deferred { .. } => true,
            State::Requested { .. } | State::Wanted => hole.doublings > STALE_DOUBLINGS,
            State::Suspect { .. } | State::Expired => false,
        };
        if waits {
            // So far the hole waited only to learn whether its messages exist. Now it waits for late packets, like a new hole.
            (hole.state, hole.attempts, hole.doublings) = (State::Suspect { until_ns }, 0, 0);
            hole.found_ns = now_ns;
        }
        let due_ns = match hole.state {
            State::Suspect { until_ns } => until_ns.max(now_ns),
            _ => now_ns,
        };
        self.due_ns = self.due_ns.min(due_ns);
    }

    /// Joins the hole at `at` with the hole before it, if no server was asked for the messages of either hole. Returns whether it joined
    /// the holes. Without the join, a feed that is too fast for the store would make a hole for each packet.
    fn join_with_last(&mut self, at: usize) -> bool {
        let (Some(&last), hole) = (at.checked_sub(1).and_then(|at| self.holes.get(at)), self.holes[at])
        else {
            return false;
        };
        let joins = last.end == hole.first && last.is_fresh() && hole.is_fresh();
        if joins {
            self.holes[at - 1].end = hole.end;
            self.holes.remove(at);
        }
        joins
    }

    /// Removes the holes from `sequence` on. The caller knows that nothing has confirmed the messages of these holes.
    pub(crate) fn retract(&mut self, sequence: u64) {
        while let Some(last) = self.holes.back_mut().filter(|last| last.end > sequence) {
            if last.first < sequence {
                last.end = sequence;
                return;
            }
            self.holes.pop_back();
        }
        if self.holes.is_empty() {
            self.due_ns = u64::MAX;
        }
    }

    /// Whether `sequence` is missing.
    pub(crate) fn is_missing(&self, sequence: u64) -> bool {
        self.is_any_missing(sequence..sequence + 1)
    }

    /// Whether a hole is only a claim: one packet announced its messages, and nothing has confirmed that they exist. A claim is never given
    /// up.
    pub(super) fn is_claim(&self, hole: &Hole) -> bool {
        hole.end > self.shown && !fault!("claims_are_given_up")
    }

    /// Handles a server's answer to the request for the messages from sequence `first` on. The server has answered that no message from
    /// `first` on is published yet. Returns how often servers have given this answer for the hole so far. Returns `None` if there is no
    /// such request.
    pub(crate) fn handle_held(
        &mut self,
        now_ns: u64,
        server: usize,
        first: u64,
        counters: &mut ReceiverCounters,
    ) -> Option<u32> {
        let at = self.holes.iter().position(|hole| hole.is_requested(server, first))?;
        self.handle_reply(now_ns, server, first, counters);
        let is_claim = self.is_claim(&self.holes[at]);
        let hole = &mut self.holes[at];
        hole.denied += 1;
        hole.doublings += 1;
        // If the messages surely exist, count this answer as an ignored request, so that one server that lags cannot delay them without
        // limit.
        hole.ignored += u32::from(!is_claim);
        let wait_ns = self.servers[server].timeout_ns(hole.doublings, &self.config);
        let until_ns = now_ns.saturating_add(wait_ns);
        hole.state = State::Deferred { until_ns };
        self.due_ns = self.due_ns.min(until_ns);
        Some(self.holes[at].denied)
    }

    /// Returns the number of denials that remove a claim (an announcement of messages that nothing has confirmed). It is the number of
    /// servers that are up, but at least 2: one server might lag, and a single answer might be forged.
    pub(crate) fn denials_needed(&self) -> u32 {
        self.up_servers().count_ones().max(2)
    }

    /// Handles a server's answer to the request for the messages from sequence `first` on. The answer says that the server holds no message
    /// of the range `first..oldest`. The server might still hold earlier messages, because its journal can have gaps. If there is no such
    /// request, does nothing and returns false.
    pub(crate) fn handle_gone(
        &mut self,
        now_ns: u64,
        server: usize,
        first: u64,
        oldest: u64,
        counters: &mut ReceiverCounters,
    ) -> bool {
        let Some(mut at) = self.holes.iter().position(|hole| hole.is_requested(server, first)) else {
            return false;
        };
        self.handle_reply(now_ns, server, first, counters);
        while let Some(&hole) = self.holes.get(at).filter(|hole| hole.first < oldest) {
            if hole.end > oldest {
                self.holes[at].end = oldest;
                self.holes.insert(at + 1, Hole { first: oldest, ..hole });
            }
            let bit = 1 << server;
            let hole = &mut self.holes[at];
            // A single answer can be forged while the true answer is still on its way. So a server must give this answer twice.
            hole.gone |= bit & (hole.gone_once | u8::from(fault!("one_word_gives_up")) << server);
            hole.gone_once |= bit;
            if matches!(hole.state, State::Requested { server: asked, .. } if asked == server) {
                hole.state = State::Wanted;
                self.any_wanted = true;
            }
            self.leave_what_is_gone(now_ns, at);
            at += 1;
        }
        self.handle_rest(server, first);
        true
    }

    /// If all servers have said that they do not hold the messages of the hole at `at`, handles this hole. With the policy `Skip` the hole
    /// is given up. With `Block` its messages are requested again after a pause, because a server that has these messages might return.
    fn leave_what_is_gone(&mut self, now_ns: u64, at: usize) {
        let is_gone = self.is_gone(&self.holes[at]);
        let hole = &mut self.holes[at];
        match self.config.policy {
            _ if !is_gone => {}
            GapPolicy::Skip { .. } => hole.state = State::Expired,
            GapPolicy::Block => {
                (hole.gone, hole.gone_once) = (0, 0);
                let until_ns = now_ns.saturating_add(self.config.timeout_max_ns);
                hole.state = State::Suspect { until_ns };
                self.due_ns = self.due_ns.min(until_ns);
            }
        }
    }

    /// True if every server has said that it does not hold the hole's messages. If the policy gives up after some time, servers that are
    /// down do not count, unless all servers are down.
    pub(super) fn is_gone(&self, hole: &Hole) -> bool {
        let all = (1u16 << self.config.servers).wrapping_sub(1) as u8;
        let needed = match (self.config.policy, self.up_servers()) {
            (GapPolicy::Skip { give_up_ns }, up) if give_up_ns != u64::MAX && up != 0 => up,
            _ => all,
        };
        hole.gone != 0 && hole.gone & needed == needed
    }
}
