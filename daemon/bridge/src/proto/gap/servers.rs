//! The state of one retransmission server: whether it is up, its round trip, and the wait for its answers.
//!
//! ```text
//! Up ── requests time out ──> Doubted ── silence for 250 ms ──> Down
//!  ^                             │ asked beside another            │ asked beside another
//!  │                             │ each 50 ms                      │ each second; `gone` counts without it
//!  └──────────── any word ───────┴─────────────────────────────────┘
//! ```

use super::super::SECOND_NS;
use super::GapConfig;
use shmcast::hosting::fault;

/// The longest wait for an answer, in nanoseconds, even if the measured round trip is longer.
const LONGEST_NS: u64 = SECOND_NS;

/// The measured state of one server.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Server {
    /// The smoothed round trip and its deviation; 0 before the first sample.
    pub(super) rtt_ns: u64,
    pub(super) deviation_ns: u64,
    /// The number of times that the wait for this server was doubled. Each timeout since the last reliable sample doubles the wait of all
    /// requests, as in TCP. Without this doubling, a round trip that became longer than the wait could never be measured again.
    pub(super) backoff: u32,
    pub(super) backed_off_ns: u64,
    /// An addition to the wait. It grows when an answer arrives after the receiver has repeated the request.
    pub(super) margin_ns: u64,
    /// The time at which `margin_ns` last grew.
    pub(super) lengthened_ns: u64,
    /// The number of timeouts since the server's last packet. After a certain number, [`is_doubted`](Self::is_doubted) is true for the
    /// server.
    pub(super) failures: u32,
    pub(super) heard_ns: u64,
    /// The time of the first request after the server's last datagram; 0 if no request was sent since that datagram.
    pub(super) unanswered_ns: u64,
    /// Whether the server is down. A server that is down does not count until it sends something.
    pub(super) is_down: bool,
    /// Whether the server has sent a control datagram of shmcast.
    pub(super) is_ours: bool,
    /// The time at which a doubted server gets the next probe.
    pub(super) probe_ns: u64,
    /// No request is sent to the server before this time.
    pub(super) paused_ns: u64,
    /// Until this time, the receiver ignores the server's requests for a pause.
    pub(super) deaf_until_ns: u64,
    /// The position of our lease in the server's order of leases. The first position is 0. `None` until the server reports the position.
    pub(super) place: Option<u16>,
}

/// A server that has answered before is doubted after this many unanswered requests in a row. Even if 20 % of the packets are lost in each
/// direction, a healthy server is doubted by chance only once in 3,000 times.
const DOUBTED_AFTER: u32 = 8;
/// The number of consecutive unanswered requests after which a server counts as down. The server must also have been silent for
/// [`DOWN_AFTER_NS`].
const DOWN_AFTER: u32 = 3;
/// A server that has been silent for less than this time does not count as down. The unit is nanoseconds. See [`DOWN_AFTER`].
const DOWN_AFTER_NS: u64 = SECOND_NS / 4;
/// The time between two test requests (probes) to a server that is down, in nanoseconds.
const PROBE_EVERY_NS: u64 = SECOND_NS;
/// The time between two test requests (probes) to a server that is only doubted, in nanoseconds.
const DOUBT_EVERY_NS: u64 = SECOND_NS / 20;

impl Server {
    /// Notes that the server sent a datagram, so the server is up.
    pub(super) fn note_heard(&mut self, now_ns: u64) {
        (self.heard_ns, self.unanswered_ns, self.failures, self.is_down) = (now_ns, 0, 0, false);
    }

    pub(super) fn note_asked(&mut self, now_ns: u64) {
        if self.unanswered_ns == 0 {
            self.unanswered_ns = now_ns.max(1);
        }
    }

    /// Notes that a request timed out. Returns whether the server counts as down from now on.
    pub(super) fn note_failure(&mut self, now_ns: u64) -> bool {
        self.failures = self.failures.saturating_add(1);
        let silent_ns = now_ns.saturating_sub(self.unanswered_ns.max(self.heard_ns));
        let is_down = self.failures >= DOWN_AFTER && silent_ns >= DOWN_AFTER_NS;
        let falls = is_down && !self.is_down;
        self.is_down |= is_down;
        falls
    }

    /// Whether the server has recently left too many requests unanswered. The limit is [`DOUBTED_AFTER`], or one request while no round
    /// trip is known. As long as another server can be asked, a doubted server gets only test requests (probes).
    pub(super) fn is_doubted(&self) -> bool {
        let few = if self.rtt_ns == 0 { 1 } else { DOUBTED_AFTER };
        (self.is_down || self.failures >= few) && !fault!("nobody_is_doubted")
    }

    /// If a test request (probe) to this server is due, schedules the next probe, and returns whether the server counts as down from now
    /// on. Returns `None` if no probe is due.
    pub(super) fn take_probe(&mut self, now_ns: u64) -> Option<bool> {
        if !self.is_doubted() || now_ns < self.probe_ns {
            return None;
        }
        let falls = self.note_failure(now_ns);
        self.probe_ns = now_ns.saturating_add(if self.is_down { PROBE_EVERY_NS } else { DOUBT_EVERY_NS });
        Some(falls)
    }

    /// Returns the limit of unanswered requests to this server: `window`, or 1 while its round trip is unknown. Without a known round trip,
    /// the wait for an answer is a guess. With a limit of 1, a wrong guess causes only one needless answer.
    pub(super) fn limit(&self, window: usize) -> usize {
        if self.rtt_ns == 0 { 1 } else { window }
    }
    pub(super) fn sample(&mut self, sample_ns: u64) {
        if self.rtt_ns == 0 {
            (self.rtt_ns, self.deviation_ns) = (sample_ns, sample_ns / 2);
        } else {
            let off_ns = self.rtt_ns.abs_diff(sample_ns);
            self.deviation_ns = self.deviation_ns - self.deviation_ns / 4 + off_ns / 4;
            self.rtt_ns = (self.rtt_ns - self.rtt_ns / 8 + sample_ns / 8).max(1);
        }
        self.margin_ns -= self.margin_ns / 32;
    }

    // Returns the wait before a request is repeated.
    pub(super) fn timeout_ns(&self, doublings: u32, config: &GapConfig) -> u64 {
        let base_ns = self.base_ns(config);
        let doubled_ns = base_ns.saturating_mul(1 << doublings.max(self.backoff).min(20));
        doubled_ns.min(config.timeout_max_ns.max(base_ns))
    }

    // Returns the wait of RFC 6298 without any doubling, with a margin of at least half a round trip.
    fn base_ns(&self, config: &GapConfig) -> u64 {
        let base_ns = match self.rtt_ns {
            0 => config.timeout_first_ns,
            rtt_ns => rtt_ns.saturating_add((self.deviation_ns.saturating_mul(4)).max(rtt_ns / 2)),
        };
        base_ns
            .saturating_add(self.margin_ns)
            .max(config.timeout_min_ns)
            .min(LONGEST_NS.max(config.timeout_max_ns))
    }

    // Makes the waits longer after an answer that was late. After a standstill of either end, many answers are late together. These answers
    // lengthen the wait only once, by a quarter of the wait without doublings.
    pub(super) fn note_late(&mut self, now_ns: u64, config: &GapConfig) {
        let adds_up = fault!("late_answers_add_up");
        let wait_ns = if adds_up { self.timeout_ns(0, config) } else { self.base_ns(config) };
        if now_ns.saturating_sub(self.lengthened_ns) >= wait_ns || adds_up {
            self.lengthened_ns = now_ns;
            self.margin_ns = (self.margin_ns + wait_ns / 4).min(config.timeout_max_ns / 4);
        }
    }

    // Doubles the wait after a timeout. Requests that were sent together time out together, and double the wait only once.
    pub(super) fn back_off(&mut self, now_ns: u64, config: &GapConfig) {
        if now_ns.saturating_sub(self.backed_off_ns) >= self.timeout_ns(0, config) {
            self.backoff = (self.backoff + 1).min(20);
            self.backed_off_ns = now_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test from an observed case: a server did not run for 20 ms. Meanwhile ten holes were requested repeatedly, with doubling waits.
    /// Then all answers arrived within a third of a millisecond.
    #[test]
    fn answers_that_are_late_together_lengthen_the_wait_once() {
        let (config, mut server) = (GapConfig::default(), Server::default());
        server.sample(SECOND_NS / 5_000);
        let before_ns = server.timeout_ns(0, &config);
        server.backoff = 6;
        (0..30).for_each(|late| server.note_late(SECOND_NS / 50 + late * 10_000, &config));
        // The next answer arrives in time.
        server.backoff = 0;
        let wait_ns = server.timeout_ns(0, &config);
        assert_eq!(wait_ns, before_ns + before_ns / 4, "{before_ns} ns before");
    }
}
