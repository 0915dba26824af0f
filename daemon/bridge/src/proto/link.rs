//! The shares of a link: how fast live packets leave, and what is left for repairs.
//!
//! A sender that fills its link makes its own packets wait in a queue of the network card or of a switch, and what
//! waits there cannot give way to a newer message. So live packets take at most 95 % of the link, and what is
//! published faster waits in the ring. Repairs take what the live packets of the last 10 ms left of the 95 %. They
//! always have at least 2 % of the link, so that a receiver that fell behind can catch up.
//!
//! All sizes are those on the wire: a packet takes [`FRAME_BYTES`] more than its payload.

use super::limit::{Rate, TokenBucket};
use super::{MILLISECOND_NS, SECOND_NS};
use std::fmt;
use std::str::FromStr;

/// Bytes of a packet on an Ethernet besides its payload: preamble, gap, Ethernet header and checksum, and the headers
/// of IPv6 and UDP. A packet of IPv4 takes 20 less.
pub const FRAME_BYTES: u64 = 86;
/// Bytes that leave at once before the rate of live packets counts.
pub const BURST_BYTES: u64 = 64 << 10;
/// The least speed that a link can be said to have.
const LEAST_BITS: u64 = 1_000_000;
/// The repairs' burst is the time that it takes on the link: half a millisecond.
const REPAIR_BURST_SHARE: u64 = 2_000;
/// Repairs of at least this many bytes leave at once, on a link however slow: two packets of an Ethernet.
const LEAST_REPAIR_BURST: u64 = 3_000;
/// The time in which live packets are counted for the repairs.
const WINDOW_NS: u64 = 10 * MILLISECOND_NS;
/// The window moves in steps of its length divided by this.
const STEPS: usize = 10;

/// The speed of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    bits_per_second: u64,
}

/// The error for a text that is not the speed of a link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not the speed of a link: write a number and kbit, Mbit or Gbit, at least 1Mbit, such as 10Gbit"
)]
pub struct LinkError {
    text: String,
}

impl Link {
    /// A link of so many bits a second.
    pub fn of_bits(bits_per_second: u64) -> Link {
        Link { bits_per_second: bits_per_second.max(LEAST_BITS) }
    }

    /// Its speed in bits a second.
    pub fn bits_per_second(&self) -> u64 {
        self.bits_per_second
    }

    /// The rate of live packets: 95 % of the link.
    pub fn live_rate(&self) -> Rate {
        Rate { per_second: self.percent(95), burst: BURST_BYTES }
    }

    /// The rate of repairs beside live packets of so many bytes a second.
    pub fn repair_rate(&self, live_per_second: u64) -> Rate {
        let per_second = self.percent(95).saturating_sub(live_per_second).max(self.percent(2));
        let burst = (self.percent(100) / REPAIR_BURST_SHARE).clamp(LEAST_REPAIR_BURST, BURST_BYTES);
        Rate { per_second, burst }
    }

    fn percent(&self, percent: u64) -> u64 {
        self.bits_per_second / 8 * percent / 100
    }
}

impl FromStr for Link {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Link, LinkError> {
        let wrong = || LinkError { text: text.to_owned() };
        let at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
        let (number, unit) = text.split_at(at);
        let bits = match unit.to_ascii_lowercase().as_str() {
            "kbit" => 1e3,
            "mbit" => 1e6,
            "gbit" => 1e9,
            _ => return Err(wrong()),
        } * number.trim().parse::<f64>().map_err(|_| wrong())?;
        match bits {
            bits if (LEAST_BITS as f64..1e13).contains(&bits) => Ok(Link { bits_per_second: bits as u64 }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bits_per_second {
            bits if bits >= 1_000_000_000 => write!(f, "{}Gbit", bits as f64 / 1e9),
            bits => write!(f, "{}Mbit", bits as f64 / 1e6),
        }
    }
}

/// Holds live packets back while they are faster than their share of the link.
#[derive(Debug)]
pub struct Pacer {
    rate: Rate,
    bucket: TokenBucket,
    /// Whether the next packets may have to wait. If not, nobody need read a clock before they leave.
    is_tight: bool,
}

impl Pacer {
    /// A pacer that has let nothing go yet.
    pub fn of(link: Link) -> Pacer {
        Pacer { rate: link.live_rate(), bucket: TokenBucket::default(), is_tight: false }
    }

    /// Whether [`wait_ns`](Self::wait_ns) must be asked before the next packets leave.
    #[inline]
    pub fn is_tight(&self) -> bool {
        self.is_tight
    }

    /// How long the next packets have to wait, in nanoseconds.
    pub fn wait_ns(&self, now_ns: u64) -> u64 {
        self.bucket.opens_in_ns(now_ns, self.rate)
    }

    /// Notes that so many bytes have left.
    #[inline]
    pub fn charge(&mut self, now_ns: u64, bytes: u64) {
        self.bucket.charge(now_ns, self.rate, bytes);
        // Time only empties the debt. So it cannot have grown when the next packets leave.
        self.is_tight = !self.bucket.is_open(now_ns, self.rate);
    }
}

/// The share of the link that live packets leave to repairs.
#[derive(Debug)]
pub struct Remainder {
    link: Link,
    /// Live bytes so far at the times of the last steps, the oldest of them at `oldest`.
    steps: [(u64, u64); STEPS],
    oldest: usize,
}

impl Remainder {
    /// The whole link.
    pub fn of(link: Link) -> Remainder {
        Remainder { link, steps: [(0, 0); STEPS], oldest: 0 }
    }

    /// The rate of repairs from now on. `live_bytes` is what live packets have taken so far. Call it before repairs
    /// are sent, and each few milliseconds.
    pub fn rate(&mut self, now_ns: u64, live_bytes: u64) -> Rate {
        let newest = (self.oldest + STEPS - 1) % STEPS;
        if now_ns.saturating_sub(self.steps[newest].0) >= WINDOW_NS / STEPS as u64 {
            self.steps[self.oldest] = (now_ns, live_bytes);
            self.oldest = (self.oldest + 1) % STEPS;
        }
        let (since_ns, before) = self.steps[self.oldest];
        let took_ns = u128::from(now_ns.saturating_sub(since_ns).max(MILLISECOND_NS));
        let per_second = u128::from(live_bytes.saturating_sub(before)) * u128::from(SECOND_NS) / took_ns;
        self.link.repair_rate(u64::try_from(per_second).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_as_people_write_them() {
        for (text, bits) in [("10Gbit", 10_000_000_000), ("2.5 gbit", 2_500_000_000), ("1000kbit", 1_000_000)]
        {
            assert_eq!(text.parse::<Link>().unwrap().bits_per_second(), bits, "{text}");
        }
        for wrong in
            ["", "10", "Gbit", "10GB", "0Gbit", "999kbit", "-1Gbit", "nanGbit", "infGbit", "1e30Gbit"]
        {
            assert!(wrong.parse::<Link>().is_err(), "{wrong:?}");
        }
        assert_eq!(
            ["2.5gbit", "100Mbit"].map(|t| t.parse::<Link>().unwrap().to_string()),
            ["2.5Gbit", "100Mbit"]
        );
    }

    /// Sends packets of 1,000 B for a second, each as soon as the pacer lets it. Returns the most bytes that left in
    /// any 10 ms.
    fn most_in_a_window(pacer: &mut Pacer) -> u64 {
        let (mut now_ns, mut sent) = (SECOND_NS, Vec::new());
        while now_ns < 2 * SECOND_NS {
            if pacer.is_tight() {
                now_ns += pacer.wait_ns(now_ns);
            }
            pacer.charge(now_ns, 1_000);
            sent.push(now_ns);
            now_ns += 100;
        }
        let from = |at: usize| sent[at..].iter().take_while(|at_ns| **at_ns < sent[at] + WINDOW_NS).count();
        (0..sent.len()).step_by(97).map(from).max().unwrap_or(0) as u64 * 1_000
    }

    #[test]
    fn live_packets_take_95_percent_of_the_link_and_a_burst() {
        for link in ["100Mbit", "1Gbit", "10Gbit"].map(|text| text.parse::<Link>().unwrap()) {
            let (most, share) = (most_in_a_window(&mut Pacer::of(link)), link.live_rate().per_second / 100);
            assert!((share..=share + BURST_BYTES + 4_000).contains(&most), "{link}: {most} of {share}");
        }
    }

    #[test]
    fn a_pacer_that_is_never_tight_never_makes_wait() {
        let mut pacer = Pacer::of(Link::of_bits(1_000_000_000));
        for now_ns in (0..SECOND_NS).step_by(20_000) {
            pacer.charge(now_ns, 1_000);
            assert!(!pacer.is_tight() && pacer.wait_ns(now_ns) == 0);
        }
    }

    #[test]
    fn repairs_have_what_live_packets_leave_and_never_less_than_2_percent() {
        let link = Link::of_bits(10_000_000_000);
        for (live_percent, left_percent) in [(0, 95), (60, 35), (94, 2), (100, 2)] {
            let mut remainder = Remainder::of(link);
            let (per_ms, mut rate) = (link.percent(live_percent) / 1_000, link.repair_rate(0));
            for ms in 0..100 {
                rate = remainder.rate(ms * MILLISECOND_NS, ms * per_ms);
            }
            let left = link.percent(left_percent);
            assert!(rate.per_second.abs_diff(left) < link.percent(1), "{live_percent} %: {rate:?}");
        }
    }

    #[test]
    fn a_feed_that_stops_leaves_the_link_to_repairs_after_10_ms() {
        let link = Link::of_bits(1_000_000_000);
        let mut remainder = Remainder::of(link);
        let live = link.percent(90) / 1_000;
        (0..50).for_each(|ms| _ = remainder.rate(ms * MILLISECOND_NS, ms * live));
        assert!(remainder.rate(50 * MILLISECOND_NS, 49 * live).per_second < link.percent(20));
        (51..61).for_each(|ms| _ = remainder.rate(ms * MILLISECOND_NS, 49 * live));
        assert_eq!(remainder.rate(61 * MILLISECOND_NS, 49 * live).per_second, link.percent(95));
    }
}
