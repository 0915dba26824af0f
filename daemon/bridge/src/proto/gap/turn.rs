//! Decides when a receiver requests a message that many other receivers have probably lost as well.
//!
//! Two kinds of receivers send their request immediately: receivers with one of the first positions in the server's list of leases, and
//! receivers whose own socket dropped the packet. The server answers with a repair for all receivers.
//!
//! All other receivers wait for this repair. If no repair arrives, each of them sends a request after a random delay. RFC 5401 shows that
//! exponentially distributed delays make only few receivers ask, however many have lost the message.

use super::super::counters::ReceiverCounters;
use super::super::{MILLISECOND_NS, splitmix};
use super::{Gaps, State};
use shmcast::hosting::fault;

/// The number of receivers that ask immediately: those with the first positions in the server's list of leases. In a group of at most this
/// size, no receiver waits.
const AT_ONCE: u16 = 16;
/// The greatest round trip that is accepted for another receiver, in nanoseconds. A longer round trip counts as one of this length.
const LONGEST_MAX_NS: u64 = 50 * MILLISECOND_NS;

/// A receiver's knowledge about the group of all receivers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Turn {
    /// The number of receivers, as the server reported it.
    group: u16,
    /// The longest round trip of any receiver, if the server reported it.
    longest_ns: u64,
    random: u64,
    /// Whether our own socket dropped packets before the packet that is being handled.
    pub(super) has_dropped: bool,
}

impl Gaps {
    /// Sets the seed of the delays. It should be random.
    pub(crate) fn seed(&mut self, seed: u64) {
        self.turn.random = seed;
    }

    /// Notes the position of our lease in a server's order of leases (`place`, from 0), and how many leases this server has (`group`).
    pub(crate) fn note_place(&mut self, server: usize, place: u16, group: u16) {
        if let Some(server) = self.servers.get_mut(server) {
            server.place = Some(place);
        }
        self.turn.group = group;
    }

    /// Notes what the feed reports about its receivers: their number, and the longest of their round trips.
    pub(crate) fn note_group(&mut self, group: u16, longest_ns: u64) {
        (self.turn.group, self.turn.longest_ns) = (group, longest_ns.min(LONGEST_MAX_NS));
    }

    /// Returns our position among the receivers of the server that is asked first, and the number of these receivers. Returns `None` if the
    /// server did not report them.
    pub(crate) fn place(&self) -> (Option<u16>, u16) {
        (self.servers[self.first_server()].place, self.turn.group)
    }

    /// Notes that our own socket dropped packets before the packet that is handled next. Other receivers probably have these packets.
    pub(crate) fn note_drop(&mut self) {
        self.turn.has_dropped = true;
    }

    /// Notes that a packet was handled. Until the next [`note_drop`](Self::note_drop), messages that are found missing do not count as
    /// dropped by our own socket.
    pub(crate) fn forget_drop(&mut self) {
        self.turn.has_dropped = false;
    }

    /// Handles a server's notice that it will send nothing for a while. After that time, the receiver repeats its unanswered requests, and
    /// ignores further notices for an equally long time. So an attacker who forges notices can block the receiver for at most half of the
    /// time.
    pub(crate) fn handle_pause(&mut self, now_ns: u64, server: usize, wait_ns: u64) {
        self.note_alive(now_ns, server);
        let until_ns = now_ns.saturating_add(wait_ns.min(LONGEST_MAX_NS)).saturating_add(self.delay_ns());
        let Some(state) = self.servers.get_mut(server) else { return };
        if now_ns < state.deaf_until_ns {
            return;
        }
        (state.paused_ns, state.deaf_until_ns) = (until_ns, until_ns + (until_ns - now_ns));
        for hole in &mut self.holes {
            if matches!(hole.state, State::Requested { server: asked, .. } if asked == server) {
                // The time until the hole is given up starts again.
                (hole.state, hole.ignored, hole.asked_ns) = (State::Wanted, 0, now_ns);
                self.any_wanted = true;
            }
        }
        self.due_ns = self.due_ns.min(until_ns);
    }

    /// Returns the time at which the first paused server can be asked again. Returns `u64::MAX` if none is paused.
    pub(super) fn pause_ends_ns(&self, now_ns: u64) -> u64 {
        let paused = self.servers.iter().map(|server| server.paused_ns).filter(|&until_ns| until_ns > now_ns);
        paused.min().unwrap_or(u64::MAX)
    }

    /// Returns the new state of the hole at `at`, whose messages are lost and not only late. Either the hole is requested immediately, or
    /// it waits, because other receivers probably request it.
    pub(super) fn take_turn(&mut self, now_ns: u64, at: usize, counters: &mut ReceiverCounters) -> State {
        let hole = &mut self.holes[at];
        let is_first = hole.attempts == 0 && !std::mem::replace(&mut hole.has_waited, true);
        let delay_ns = if is_first && !hole.is_own { self.delay_ns() } else { 0 };
        if delay_ns == 0 {
            return State::Wanted;
        }
        counters.totals.requests_delayed += 1;
        State::Suspect { until_ns: now_ns.saturating_add(delay_ns) }
    }

    // Returns how long to wait before asking for messages that other receivers might have lost too.
    fn delay_ns(&mut self) -> u64 {
        let (place, group) = self.place();
        let asks_at_once = group <= AT_ONCE || place.is_some_and(|place| place < AT_ONCE);
        let rtt_ns = self.servers[self.first_server()].rtt_ns.max(self.turn.longest_ns);
        if asks_at_once || fault!("everybody_asks_at_once") {
            return 0;
        }
        self.turn.random = splitmix(self.turn.random);
        let share = (self.turn.random >> 11) as f64 / (1u64 << 53) as f64;
        rtt_ns + rtt_ns / 4 + exponential_ns(rtt_ns, group, share)
    }

    // Returns the server that is asked first for a hole.
    fn first_server(&self) -> usize {
        let servers = 0..self.config.servers;
        servers.min_by_key(|&server| self.servers[server].failures).unwrap_or(0)
    }
}

// Returns a delay of at most `longest_ns`, with the truncated exponential distribution of RFC 5401, section 3.2, for a group of this size.
// `share` is uniformly distributed in 0..1.
fn exponential_ns(longest_ns: u64, group: u16, share: f64) -> u64 {
    let rate = f64::from(group.max(1)).ln() + 1.0;
    let delay = (1.0 + share * rate.exp_m1()).ln() / rate;
    (delay * longest_ns as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a group of 1000 receivers that all wait, few send a request before an answer can arrive.
    #[test]
    fn few_of_a_thousand_ask_within_a_round_trip_of_the_first() {
        let (mut seed, mut asked, rounds) = (1, 0, 100);
        for _ in 0..rounds {
            let delays = (0..1_000).map(|_| {
                seed = splitmix(seed);
                exponential_ns(4_000, 1_000, (seed >> 11) as f64 / (1u64 << 53) as f64)
            });
            let delays: Vec<u64> = delays.collect();
            let first = delays.iter().min().unwrap();
            assert!(delays.iter().all(|delay| *delay <= 4_000));
            // The longest delay is four round trips here, as in the RFC.
            asked += delays.iter().filter(|delay| **delay < first + 1_000).count();
        }
        assert!((5 * rounds..30 * rounds).contains(&asked), "{asked} requests in {rounds} rounds");
    }
}
