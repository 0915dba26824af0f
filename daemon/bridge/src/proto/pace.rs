//! Predicts when the next message of a feed will arrive.
//!
//! A thread that sleeps until it is woken receives a message tens of microseconds late, because a sleeping CPU wakes slowly. A thread that
//! polls is not late, but uses a CPU. If a feed is steady, a thread can combine both ways: it sleeps, and polls only for the short time in
//! which the next message is expected. For a feed that is not steady, there is no prediction.

use super::MICROSECOND_NS;

/// A thread begins to poll this long before a message is expected, because a thread wakes late. The unit is nanoseconds.
const LEAD_NS: u64 = 30 * MICROSECOND_NS;
/// The least tolerance of an expected time, in nanoseconds.
const LEAST_SLACK_NS: u64 = 10 * MICROSECOND_NS;
/// Bounds the share of polling. A thread polls for at most about `2 / POLL_SHARE` of the time between two messages.
const POLL_SHARE: u64 = 8;
/// The longest time between messages for which there is a prediction, in nanoseconds. In a slower feed, the thread sleeps until the next
/// message.
const SLOWEST_NS: u64 = 20_000 * MICROSECOND_NS;

/// The advice to a thread that has nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Advice {
    /// A message is expected now: poll.
    Poll,
    /// The next message is expected in this many nanoseconds.
    Later(u64),
    /// A message was expected, but did not arrive within the tolerance, which ended this many nanoseconds ago. Either the message is late,
    /// or the feed has changed.
    Overdue(u64),
    /// There is no prediction for the next message.
    Unknown,
}

/// The times at which one feed's messages arrived. The caller passes in the time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pace {
    last_ns: u64,
    /// The recent mean time between two messages, in nanoseconds.
    gap_ns: u64,
    /// The mean deviation from `gap_ns`, in nanoseconds.
    deviation_ns: u64,
    /// The time for which the thread polls after each message, in nanoseconds.
    polls_for_ns: u64,
}

impl Pace {
    /// Makes the state for a feed whose thread polls for this long after each message.
    pub(crate) fn polling_for(polls_for_ns: u64) -> Pace {
        Pace { polls_for_ns, ..Pace::default() }
    }

    /// Notes that messages arrived.
    #[inline]
    pub(crate) fn note(&mut self, now_ns: u64) {
        let gap_ns = now_ns.saturating_sub(self.last_ns).min(2 * SLOWEST_NS);
        self.last_ns = now_ns;
        self.deviation_ns = (3 * self.deviation_ns + gap_ns.abs_diff(self.gap_ns)) / 4;
        self.gap_ns = (7 * self.gap_ns + gap_ns) / 8;
    }

    /// Returns the time at which messages last arrived; 0 if none did.
    pub(crate) fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Returns whether a thread that has nothing to do at `now_ns` should poll or sleep.
    #[inline]
    pub(crate) fn advice(&self, now_ns: u64) -> Advice {
        if now_ns.saturating_sub(self.last_ns) < self.polls_for_ns {
            return Advice::Poll;
        }
        let most_ns = self.gap_ns / POLL_SHARE;
        let slack_ns = (2 * self.deviation_ns).max(LEAST_SLACK_NS);
        if slack_ns > most_ns || self.gap_ns >= SLOWEST_NS {
            return Advice::Unknown;
        }
        let begin_ns = self.last_ns + self.gap_ns - slack_ns - LEAD_NS.min(most_ns);
        let end_ns = self.last_ns + self.gap_ns + slack_ns;
        match now_ns {
            _ if now_ns < begin_ns => Advice::Later(begin_ns - now_ns),
            _ if now_ns <= end_ns => Advice::Poll,
            _ => Advice::Overdue(now_ns - end_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::MILLISECOND_NS;

    /// Notes `count` messages. Message number `n` arrives `n` milliseconds and `late_ns(n)` after the start.
    fn paced(count: u64, late_ns: impl Fn(u64) -> u64) -> (Pace, u64) {
        let mut pace = Pace::default();
        let at = |n: u64| n * MILLISECOND_NS + late_ns(n);
        (1..=count).for_each(|n| pace.note(at(n)));
        (pace, at(count))
    }

    #[test]
    fn a_steady_feed_is_expected_a_little_before_its_next_message() {
        let (pace, last_ns) = paced(100, |n| n * 7919 % 20_000);
        let Advice::Later(wait_ns) = pace.advice(last_ns) else { panic!("{pace:?}") };
        assert!((800_000..980_000).contains(&wait_ns), "{wait_ns}");
        assert_eq!(pace.advice(last_ns + wait_ns), Advice::Poll);
        assert_eq!(pace.advice(last_ns + MILLISECOND_NS), Advice::Poll);
        assert!(matches!(pace.advice(last_ns + 2 * MILLISECOND_NS), Advice::Overdue(900_000..1_000_000)));
    }

    #[test]
    fn an_unsteady_feed_is_not_expected_and_one_that_becomes_steady_is() {
        let (mut pace, mut now_ns) = paced(100, |n| n * 7_919_993 % 900_000);
        assert_eq!(pace.advice(now_ns + 1), Advice::Unknown);
        for _ in 0..64 {
            now_ns += 2 * MILLISECOND_NS;
            pace.note(now_ns);
        }
        assert!(matches!(pace.advice(now_ns + 1), Advice::Later(_)), "{pace:?}");
    }

    #[test]
    fn a_thread_that_may_poll_does_so_for_its_time_after_each_message() {
        let mut pace = Pace::polling_for(MILLISECOND_NS);
        pace.note(50 * MILLISECOND_NS);
        assert_eq!(pace.advice(51 * MILLISECOND_NS - 1), Advice::Poll);
        assert_eq!(pace.advice(51 * MILLISECOND_NS), Advice::Unknown);
    }

    #[test]
    fn feeds_that_are_very_slow_or_very_fast_are_not_expected() {
        assert_eq!(Pace::default().advice(5), Advice::Unknown);
        for gap_ns in [50_000, 100 * MILLISECOND_NS] {
            let mut pace = Pace::default();
            (1..100).for_each(|n| pace.note(n * gap_ns));
            assert_eq!(pace.advice(99 * gap_ns + 1), Advice::Unknown, "{gap_ns}");
        }
    }
}
