//! Decides which repairs are sent to one receiver, and which to all receivers.
//!
//! ```text
//!               another receiver, within `merge`             anybody, within `linger`
//!   one answer ─────────────────────────────────> for all ─────────────────────────────> ignored
//!    ^  │ the same receiver: its answer was lost     │ anybody, later
//!    └──┴────────────────────────────────────────────┘
//! ```
//! The first request for a range is answered immediately, and only to its receiver. If a second receiver soon asks for the same range, the
//! loss affects several receivers, and the answer is sent to all. If many recent ranges were requested by several receivers, even the first
//! answer to a range is sent to all receivers. A receiver that misses such an answer asks again, and gets an answer of its own.
//!
//! When the rate of repairs is used up, the server tells all receivers in one datagram how long they should wait. For a while afterwards,
//! the server sends each repair to all receivers, so that the same rate serves more receivers.

use std::net::SocketAddr;

use super::super::{MICROSECOND_NS, MILLISECOND_NS};
use shmcast::hosting::fault;

/// The number of ranges that are remembered, a power of two.
const RANGES: usize = 8_192;
/// While no round trip is known: if a second request for the same messages arrives within this time, in nanoseconds, the server sends the
/// repair to all receivers.
const MERGE_UNKNOWN_NS: u64 = MILLISECOND_NS;
/// If a second request for the same messages follows within twice the longest round trip, the server sends the repair to all receivers.
/// This constant and `MERGE_MAX_NS` are the limits of that time, in nanoseconds.
const MERGE_MIN_NS: u64 = 300 * MICROSECOND_NS;
const MERGE_MAX_NS: u64 = 5 * MILLISECOND_NS;
/// The tolerance for late requests, in nanoseconds. A receiver might send a request just before a repair for all receivers reaches it. That
/// request arrives at most one round trip plus this tolerance after the repair was sent.
const LINGER_MORE_NS: u64 = 100 * MICROSECOND_NS;
/// When the number of ranges that were answered to one receiver reaches this limit, the counts of the recent ranges are halved. So older
/// ranges count less.
const REMEMBERED: u32 = 16;
/// If at least one in this many of the recent ranges was also requested by a second receiver, the server sends even first answers to all
/// receivers.
const SHARED: u32 = 4;
/// While the server sends even first answers to all receivers, it still sends one of this many first answers only to the asker. So the
/// server notices when receivers no longer lose the same messages.
const PROBE: u32 = 32;
/// After receivers were told to wait, the rate counts as scarce for this time. The unit is nanoseconds.
const SCARCE_NS: u64 = 20 * MILLISECOND_NS;
/// The longest wait that the server announces to receivers, in nanoseconds.
const PAUSE_MAX_NS: u64 = 20 * MILLISECOND_NS;
/// An extra wait, in nanoseconds, so that the server can send more than one packet after the wait. It doubles if the rate is used up again
/// soon after a wait.
const PAUSE_MORE_NS: u64 = 2 * MILLISECOND_NS;

/// The times that decide about repairs for all receivers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MergeConfig {
    /// If a second request for the same messages arrives within this time, the server sends the repair to all receivers. The unit is
    /// nanoseconds. `None` means twice the longest round trip, but at least 0.3 ms and at most 5 ms.
    pub merge_ns: Option<u64>,
    /// After a repair was sent to all receivers, further requests for the same messages are ignored for this time. The unit is nanoseconds.
    /// `None` means the longest round trip plus 100 us.
    pub linger_ns: Option<u64>,
}

/// The receivers that get the answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    One,
    All,
    Ignored,
}

/// The receivers that are told to wait, if the rate does not allow an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// All receivers are told to wait for this many nanoseconds.
    All(u64),
    /// The datagram that told all receivers to wait did not reach the asker, so only the asker is told again.
    One,
    /// No receiver is told to wait again, because the datagram that tells all receivers to wait is still on its way.
    Ignored,
}

/// A range of messages that was requested. Its first sequence, and the offset in that message, identify it.
#[derive(Debug, Clone, Copy)]
struct Range {
    first: u64,
    offset: u32,
    is_for_all: bool,
    asker: SocketAddr,
    answered_ns: u64,
}

/// The ranges that were requested recently.
#[derive(Debug)]
pub(super) struct Merge {
    config: MergeConfig,
    longest_ns: u64,
    ranges: Box<[Option<Range>]>,
    last_asker: Option<SocketAddr>,
    /// Two counts. `alone` is the number of ranges whose first request was answered to its asker only. `followed` is the number of ranges
    /// that another receiver requested soon after such an answer.
    alone: u32,
    followed: u32,
    first_answers: u32,
    paused_ns: u64,
    pause_ends_ns: u64,
    pause_more_ns: u64,
}

impl Merge {
    pub(super) fn new(config: MergeConfig) -> Merge {
        Merge {
            config,
            longest_ns: 0,
            ranges: vec![None; RANGES].into(),
            last_asker: None,
            alone: 0,
            followed: 0,
            first_answers: 0,
            paused_ns: 0,
            pause_ends_ns: 0,
            pause_more_ns: PAUSE_MORE_NS,
        }
    }

    /// Notes the longest round trip of any receiver; 0 if none is known.
    pub(super) fn note_longest(&mut self, longest_ns: u64) {
        self.longest_ns = longest_ns;
    }

    fn merge_ns(&self) -> u64 {
        let unset = match self.longest_ns {
            0 => MERGE_UNKNOWN_NS,
            longest_ns => (2 * longest_ns).clamp(MERGE_MIN_NS, MERGE_MAX_NS),
        };
        self.config.merge_ns.unwrap_or(unset)
    }

    fn linger_ns(&self) -> u64 {
        if fault!("repairs_for_all_do_not_linger") {
            return 0;
        }
        self.config.linger_ns.unwrap_or(self.longest_ns + LINGER_MORE_NS)
    }

    /// Decides who gets the answer if `asker` has requested the messages from `first` on.
    pub(super) fn answer(&mut self, now_ns: u64, asker: SocketAddr, (first, offset): (u64, u32)) -> Answer {
        if fault!("repairs_are_not_merged") {
            return Answer::One;
        }
        let merge_ns = if self.is_scarce(now_ns) { SCARCE_NS } else { self.merge_ns() };
        let linger_ns = self.linger_ns();
        let at = slot(first, offset);
        let known = self.ranges[at].filter(|range| (range.first, range.offset) == (first, offset));
        let is_within = |range: &Range, limit_ns| now_ns.saturating_sub(range.answered_ns) <= limit_ns;
        let answer = match known {
            None => self.answer_first(now_ns, asker),
            Some(range) if range.is_for_all && is_within(&range, linger_ns) => return Answer::Ignored,
            Some(range) if !range.is_for_all && range.asker != asker && is_within(&range, merge_ns) => {
                self.followed += 1;
                Answer::All
            }
            Some(_) => Answer::One,
        };
        let is_for_all = answer == Answer::All;
        self.ranges[at] = Some(Range { first, offset, is_for_all, asker, answered_ns: now_ns });
        answer
    }

    /// Notes that another server sent all receivers a repair that begins with `first`.
    pub(super) fn note_other(&mut self, now_ns: u64, from: SocketAddr, first: u64) {
        let range = Range { first, offset: 0, is_for_all: true, asker: from, answered_ns: now_ns };
        self.ranges[slot(first, 0)] = Some(range);
    }

    // Whether the rate was used up recently. One answer must then serve as many receivers as possible.
    fn is_scarce(&self, now_ns: u64) -> bool {
        now_ns < self.pause_ends_ns.saturating_add(if self.pause_ends_ns > 0 { SCARCE_NS } else { 0 })
    }

    fn answer_first(&mut self, now_ns: u64, asker: SocketAddr) -> Answer {
        let is_same = self.last_asker.replace(asker) == Some(asker);
        // If the common rate is used up, many receivers have lost messages, because a single receiver would use up its own rate first.
        if self.is_scarce(now_ns) {
            return Answer::All;
        }
        // If one receiver requests one range after another, the other receivers probably have these messages.
        if is_same {
            return Answer::One;
        }
        self.first_answers = self.first_answers.wrapping_add(1);
        let is_shared = self.alone >= REMEMBERED / 2 && self.followed * SHARED >= self.alone;
        if is_shared && !self.first_answers.is_multiple_of(PROBE) {
            return Answer::All;
        }
        self.alone += 1;
        if self.alone >= REMEMBERED {
            (self.alone, self.followed) = (self.alone / 2, self.followed / 2);
        }
        Answer::One
    }

    /// Decides who is told to wait, if nothing can be sent for the next `opens_in_ns`.
    pub(super) fn pause(&mut self, now_ns: u64, opens_in_ns: u64) -> Wait {
        if now_ns >= self.pause_ends_ns {
            let is_again = self.is_scarce(now_ns);
            self.pause_more_ns =
                if is_again { 2 * self.pause_more_ns } else { PAUSE_MORE_NS }.min(PAUSE_MAX_NS);
            let wait_ns = opens_in_ns.saturating_add(self.pause_more_ns).min(PAUSE_MAX_NS);
            (self.paused_ns, self.pause_ends_ns) = (now_ns, now_ns.saturating_add(wait_ns));
            return Wait::All(wait_ns);
        }
        match now_ns.saturating_sub(self.paused_ns) <= self.linger_ns() {
            true => Wait::Ignored,
            false => Wait::One,
        }
    }
}

// Returns the slot of a range. Spreads the sequences over the slots, whatever the distance between them.
fn slot(first: u64, offset: u32) -> usize {
    let mixed = (first ^ u64::from(offset) << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> (u64::BITS - RANGES.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_NS: u64 = 200 * MICROSECOND_NS;

    fn asker(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 7_000))
    }

    fn merge() -> Merge {
        let mut merge = Merge::new(MergeConfig::default());
        merge.note_longest(RTT_NS);
        merge
    }

    #[test]
    fn the_second_asker_draws_one_repair_for_all() {
        let mut merge = merge();
        assert_eq!(merge.answer(0, asker(1), (7, 0)), Answer::One);
        assert_eq!(merge.answer(10, asker(1), (7, 0)), Answer::One, "its answer was lost");
        assert_eq!(merge.answer(400_000, asker(2), (7, 0)), Answer::All);
        for (at_ns, from) in [(400_001, 1), (500_000, 2), (700_000, 3)] {
            assert_eq!(merge.answer(at_ns, asker(from), (7, 0)), Answer::Ignored);
        }
        assert_eq!(
            merge.answer(700_001, asker(3), (7, 0)),
            Answer::One,
            "it was lost on the way to this one"
        );
        assert_eq!(merge.answer(700_002, asker(3), (8, 0)), Answer::One, "another range");
        assert_eq!(merge.answer(2_000_000, asker(4), (7, 0)), Answer::One, "too late to be merged");
    }

    #[test]
    fn first_answers_go_to_all_as_long_as_losses_are_shared() {
        let mut merge = merge();
        let mut ask = |first: u64, losers: u64| {
            let answers: Vec<_> = (0..losers)
                .map(|loser| merge.answer(first * 1_000_000, asker((first * 7 + loser) as u8), (first, 0)))
                .collect();
            answers.iter().filter(|answer| **answer == Answer::All).count() as u64
        };
        let for_all: u64 = (1..=400).map(|first| ask(first, 2)).sum();
        assert_eq!(for_all, 400, "one of two askers each time");
        let alone: u64 = (401..=800).map(|first| ask(first, 2)).sum();
        assert_eq!(alone, 400);
        let for_all: u64 = (1_001..=2_000).map(|first| ask(first, 1)).sum();
        assert!(for_all < 700, "{for_all} repairs for all that one receiver needed");
        assert_eq!((2_001..=2_100).map(|first| ask(first, 1)).sum::<u64>(), 0);
    }

    #[test]
    fn who_asks_for_one_range_after_the_other_is_answered_alone() {
        let mut merge = merge();
        for first in 1..=100 {
            merge.answer(first, asker(first as u8), (first, 0));
            merge.answer(first, asker(first as u8 + 100), (first, 0));
        }
        assert_eq!(merge.answer(200, asker(1), (1_000, 0)), Answer::All, "losses are shared");
        assert!((1_001..1_100).all(|first| merge.answer(200, asker(1), (first, 0)) == Answer::One));
    }

    #[test]
    fn all_are_told_once_to_wait_and_who_did_not_hear_it_is_told_again() {
        let mut merge = merge();
        assert_eq!(merge.pause(1_000, 5 * MILLISECOND_NS), Wait::All(7 * MILLISECOND_NS));
        assert_eq!(merge.pause(301_000, 0), Wait::Ignored);
        assert_eq!(merge.pause(302_000, 0), Wait::One);
        assert_eq!(merge.pause(7_001_000, u64::MAX), Wait::All(PAUSE_MAX_NS));
    }
}
