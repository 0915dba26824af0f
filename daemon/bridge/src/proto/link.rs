//! Divides a link between live packets and repairs.
//!
//! If a sender fills its link, its packets wait in a queue of the network card or of a switch, where a newer message cannot overtake older
//! ones. For this reason live packets take at most 95 % of the link. Messages that are published faster wait in the ring. There is one
//! exception: after a time in which the sender did not run, it immediately sends all messages that were published meanwhile.
//!
//! Repairs use the part of these 95 % that live packets do not use. Repairs always have at least 2 % of the link, even if the sum then
//! exceeds 95 %, so that a receiver that lags can catch up.
//!
//! All sizes are those on the wire: a packet takes [`FRAME_BYTES`] more than its payload.

use super::limit::{Rate, TokenBucket};
use super::{MILLISECOND_NS, SECOND_NS};
use shmcast::hosting::fault;
use std::fmt;
use std::str::FromStr;

/// Bytes that a packet takes on an Ethernet besides its payload: preamble, gap, Ethernet header and checksum, and the headers of IPv6 and
/// UDP. A packet of IPv4 takes 20 bytes less.
pub const FRAME_BYTES: u64 = 86;
/// The number of bytes of live packets that can be sent in one burst. After that, the rate of live packets applies.
pub const BURST_BYTES: u64 = 64 << 10;
/// The lowest link speed that is accepted, in bits per second.
const LEAST_BITS: u64 = 1_000_000;
/// A burst of repairs is the link's bytes per second, divided by this number. The link transfers such a burst in half a millisecond.
const REPAIR_BURST_SHARE: u64 = 2_000;
/// The least burst of repairs in bytes: two packets of an Ethernet. It applies to slow links.
const LEAST_REPAIR_BURST: u64 = 3_000;
/// The window in which the rate of live packets is measured, in nanoseconds. After a pause of the sending thread, the thread sends at once
/// as many packets as the link could have sent during the pause. At most this much of the pause counts.
const WINDOW_NS: u64 = 10 * MILLISECOND_NS;
/// The number of steps in a window. The window moves by one step at a time.
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
    /// Makes a link of this many bits per second.
    pub fn of_bits(bits_per_second: u64) -> Link {
        Link { bits_per_second: bits_per_second.max(LEAST_BITS) }
    }

    /// Returns the speed in bits per second.
    pub(crate) fn bits_per_second(&self) -> u64 {
        self.bits_per_second
    }

    /// Returns the rate of live packets: 95 % of the link.
    pub(crate) fn live_rate(&self) -> Rate {
        Rate { per_second: self.percent(95), burst: BURST_BYTES }
    }

    /// Returns the limit for the rate of live packets and repairs together. Only repairs wait to stay below this limit.
    fn whole_rate(&self) -> Rate {
        let burst = (self.percent(100) / REPAIR_BURST_SHARE).clamp(LEAST_REPAIR_BURST, BURST_BYTES);
        Rate { per_second: self.percent(95), burst }
    }

    /// Returns the rate that repairs always have.
    fn least_rate(&self) -> Rate {
        Rate { per_second: self.percent(2), burst: LEAST_REPAIR_BURST }
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

/// Delays live packets if they are published faster than their share of the link allows.
#[derive(Debug)]
pub struct Pacer {
    rate: Rate,
    bucket: TokenBucket,
    /// The last time at which no message waited to be sent. All messages that wait now were published after this time.
    empty_ns: u64,
    /// Whether it is possible that the next packets must wait. If not, the sender sends them without reading the clock.
    is_tight: bool,
}

impl Pacer {
    /// Makes a pacer of a link on which nothing was sent yet.
    pub(crate) fn of(link: Link, now_ns: u64) -> Pacer {
        let (rate, bucket) = (link.live_rate(), TokenBucket::default());
        Pacer { rate, bucket, empty_ns: now_ns, is_tight: false }
    }

    /// Notes that no message waits to be sent.
    #[inline]
    pub(crate) fn note_empty(&mut self, now_ns: u64) {
        self.empty_ns = now_ns;
    }

    /// Whether the sender must call [`wait_ns`](Self::wait_ns) before it sends the next packets.
    #[inline]
    pub(crate) fn is_tight(&self) -> bool {
        self.is_tight
    }

    /// Returns how long the next packets must wait, in nanoseconds.
    pub(crate) fn wait_ns(&self, now_ns: u64) -> u64 {
        self.bucket.opens_in_ns(now_ns, self.rate)
    }

    /// Notes that this many bytes were sent.
    #[inline]
    pub(crate) fn charge(&mut self, now_ns: u64, bytes: u64) {
        // These bytes were published after `empty_ns`, and the link had time for them since then. At most `WINDOW_NS` of this time counts.
        let since_ns = self.empty_ns.clamp(now_ns.saturating_sub(WINDOW_NS), now_ns);
        self.bucket.charge(since_ns, self.rate, bytes);
        // The debt only shrinks with time. So it cannot be larger when the next packets are sent.
        self.is_tight = !self.bucket.is_open(now_ns, self.rate) && !fault!("nothing_is_paced");
    }
}

/// The part of the link that live packets leave to repairs.
#[derive(Debug)]
pub struct Remainder {
    link: Link,
    /// The bucket of live packets and repairs together.
    whole: TokenBucket,
    /// The token bucket from which repairs are sent while the bucket `whole` is closed.
    least: TokenBucket,
    /// The times of the last steps, and the number of live bytes that had been sent at each of these times. The oldest step is at `oldest`.
    steps: [(u64, u64); STEPS],
    oldest: usize,
    /// The time of the last call of `note_live`, and the number of live bytes that had been sent by then.
    seen: (u64, u64),
}

impl Remainder {
    /// Makes the state for a link on which nothing was sent yet.
    pub(crate) fn of(link: Link) -> Remainder {
        let (whole, least) = Default::default();
        Remainder { link, whole, least, steps: [(0, 0); STEPS], oldest: 0, seen: (0, 0) }
    }

    /// Notes the number of bytes of live packets that have been sent so far. Call this before repairs are sent, and every few milliseconds.
    pub(crate) fn note_live(&mut self, now_ns: u64, live_bytes: u64) {
        let (seen_ns, seen) = std::mem::replace(&mut self.seen, (now_ns, live_bytes));
        // These bytes were sent since the last call, so the link had time for them since then.
        self.whole.charge(seen_ns, self.link.whole_rate(), live_bytes.saturating_sub(seen));
        let newest = (self.oldest + STEPS - 1) % STEPS;
        if now_ns.saturating_sub(self.steps[newest].0) >= WINDOW_NS / STEPS as u64 {
            self.steps[self.oldest] = (now_ns, live_bytes);
            self.oldest = (self.oldest + 1) % STEPS;
        }
    }

    /// Returns the time until a repair is allowed, in nanoseconds; 0 if a repair is allowed now.
    pub(crate) fn opens_in_ns(&self, now_ns: u64) -> u64 {
        let whole_ns = self.whole.opens_in_ns(now_ns, self.link.whole_rate());
        whole_ns.min(self.least.opens_in_ns(now_ns, self.link.least_rate()))
    }

    /// Whether a repair is allowed now.
    pub(crate) fn is_open(&self, now_ns: u64) -> bool {
        self.opens_in_ns(now_ns) == 0
    }

    /// Notes that this many bytes of repairs were sent.
    pub(crate) fn charge(&mut self, now_ns: u64, bytes: u64) {
        if !self.whole.is_open(now_ns, self.link.whole_rate()) {
            self.least.charge(now_ns, self.link.least_rate(), bytes);
        }
        self.whole.charge(now_ns, self.link.whole_rate(), bytes);
    }

    /// Returns the rate for repairs in bytes per second: 95 % of the link's rate, less the rate of the live packets in the last 10 ms. The
    /// rate for repairs is at least 2 % of the link's rate.
    pub(crate) fn per_second(&self) -> u64 {
        let ((since_ns, before), (now_ns, live_bytes)) = (self.steps[self.oldest], self.seen);
        let took_ns = u128::from(now_ns.saturating_sub(since_ns).max(MILLISECOND_NS));
        let live = u128::from(live_bytes.saturating_sub(before)) * u128::from(SECOND_NS) / took_ns;
        let live = u64::try_from(live).unwrap_or(u64::MAX);
        self.link.percent(95).saturating_sub(live).max(self.link.percent(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::MICROSECOND_NS;

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

    /// Sends packets of 1,000 B for a second, each as soon as the pacer permits it. Returns the greatest number of bytes that were sent in
    /// any 10 ms.
    fn most_in_a_window(link: Link) -> u64 {
        let (mut pacer, mut now_ns, mut sent) = (Pacer::of(link, SECOND_NS), SECOND_NS, Vec::new());
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
            let (most, share) = (most_in_a_window(link), link.live_rate().per_second / 100);
            assert!((share..=share + BURST_BYTES + 4_000).contains(&most), "{link}: {most} of {share}");
        }
    }

    /// Publishes packets of 1,000 B at this percentage of the link, with a sending thread that sometimes does not run for 7 ms. Returns
    /// whether any packet had to wait.
    fn any_waits(link: Link, percent: u64) -> bool {
        let (mut pacer, mut now_ns, mut published) = (Pacer::of(link, 0), 0, 0);
        let each_ns = 1_000 * SECOND_NS / link.percent(percent);
        for turn in 0..20_000 {
            now_ns += if turn % 500 == 499 { 7 * MILLISECOND_NS } else { each_ns / 2 };
            pacer.note_empty(published * each_ns);
            while published * each_ns <= now_ns {
                if pacer.is_tight() && pacer.wait_ns(now_ns) > 0 {
                    return true;
                }
                pacer.charge(now_ns, 1_000);
                published += 1;
            }
        }
        false
    }

    /// A test for an earlier mistake: at 1 Gbit/s, the sender did not run for 1 ms, and meanwhile more packets were published than one
    /// burst allows. The packets above the burst waited although the link was free, and so did all later packets.
    #[test]
    fn a_feed_below_its_share_never_waits_though_its_thread_stands_still() {
        for link in ["100Mbit", "1Gbit", "10Gbit"].map(|text| text.parse::<Link>().unwrap()) {
            assert!(!any_waits(link, 60) && any_waits(link, 120), "{link}");
        }
    }

    /// Sends repairs of 1,000 B for a second, each as soon as the limit permits it. Meanwhile a feed uses this percentage of the link.
    /// Returns the number of bytes of the repairs.
    fn repaired(link: Link, live_percent: u64) -> u64 {
        let (mut remainder, mut repaired) = (Remainder::of(link), 0);
        for us in 0..1_000_000 {
            let now_ns = SECOND_NS + us * MICROSECOND_NS;
            remainder.note_live(now_ns, link.percent(live_percent) * us / 1_000_000 / 1_000 * 1_000);
            while remainder.is_open(now_ns) {
                remainder.charge(now_ns, 1_000);
                repaired += 1_000;
            }
        }
        repaired
    }

    #[test]
    fn repairs_have_what_live_packets_leave_and_never_less_than_2_percent() {
        for link in ["100Mbit", "1Gbit", "10Gbit"].map(|text| text.parse::<Link>().unwrap()) {
            for (live_percent, left_percent) in [(0, 95), (60, 35), (94, 2), (100, 2)] {
                let (got, left) = (repaired(link, live_percent), link.percent(left_percent));
                assert!(
                    got.abs_diff(left) < link.percent(2).max(2 * BURST_BYTES),
                    "{link}, {live_percent} %: {got}"
                );
            }
        }
    }

    #[test]
    fn repairs_stop_at_once_when_much_leaves_and_go_on_when_the_link_is_free_again() {
        let link = Link::of_bits(1_000_000_000);
        let mut remainder = Remainder::of(link);
        let at = |us: u64| SECOND_NS + us * MICROSECOND_NS;
        remainder.note_live(at(0), 0);
        assert!(remainder.is_open(at(0)));
        // Live packets that take 3 ms of the link are sent in 0.1 ms. Meanwhile only those repairs are sent that are always allowed.
        remainder.note_live(at(100), link.percent(100) * 3 / 1_000);
        let mut repairs = 0;
        for us in 100..2_400 {
            while remainder.is_open(at(us)) {
                remainder.charge(at(us), 1_000);
                repairs += 1_000;
            }
        }
        assert!(repairs <= LEAST_REPAIR_BURST + 1_000 + link.percent(2) * 24 / 10_000, "{repairs} B");
        assert!(remainder.is_open(at(3_400)));
    }

    #[test]
    fn what_is_shown_follows_the_feed_within_10_ms() {
        let link = Link::of_bits(1_000_000_000);
        let mut remainder = Remainder::of(link);
        let live = link.percent(90) / 1_000;
        (0..50).for_each(|ms| remainder.note_live(ms * MILLISECOND_NS, ms * live));
        assert!(remainder.per_second() < link.percent(20));
        (50..62).for_each(|ms| remainder.note_live(ms * MILLISECOND_NS, 49 * live));
        assert_eq!(remainder.per_second(), link.percent(95));
    }
}
