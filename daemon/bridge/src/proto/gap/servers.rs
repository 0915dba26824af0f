//! What is known of one retransmission server: how far it is, and how long its answers may be waited for.

use super::super::SECOND_NS;
use super::GapConfig;

/// No answer is waited for longer than this, whatever was measured.
const LONGEST_NS: u64 = SECOND_NS;

/// The measured state of one server.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Server {
    /// Smoothed round trip and its deviation; 0 before the first sample.
    pub(super) rtt_ns: u64,
    pub(super) deviation_ns: u64,
    /// Timeouts since the last sure sample double the wait for everything, as in TCP: otherwise a round trip that has
    /// outgrown the wait could never be measured again.
    pub(super) backoff: u32,
    pub(super) backed_off_ns: u64,
    /// Added to the wait after answers that came when they had been asked for again.
    pub(super) margin_ns: u64,
    /// Timeouts since the last packet.
    pub(super) failures: u32,
    pub(super) heard_ns: u64,
}

impl Server {
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

    // The wait before a request is repeated. RFC 6298 with a margin of at least half a round trip.
    pub(super) fn timeout_ns(&self, doublings: u32, config: &GapConfig) -> u64 {
        let base_ns = match self.rtt_ns {
            0 => config.timeout_first_ns,
            rtt_ns => rtt_ns.saturating_add((self.deviation_ns.saturating_mul(4)).max(rtt_ns / 2)),
        };
        let base_ns = base_ns
            .saturating_add(self.margin_ns)
            .max(config.timeout_min_ns)
            .min(LONGEST_NS.max(config.timeout_max_ns));
        let doubled_ns = base_ns.saturating_mul(1 << doublings.max(self.backoff).min(20));
        doubled_ns.min(config.timeout_max_ns.max(base_ns))
    }

    // Many requests of one moment time out together: that doubles the wait once, not once each.
    pub(super) fn back_off(&mut self, now_ns: u64, config: &GapConfig) {
        if now_ns.saturating_sub(self.backed_off_ns) >= self.timeout_ns(0, config) {
            self.backoff = (self.backoff + 1).min(20);
            self.backed_off_ns = now_ns;
        }
    }
}
