//! The turns of a demo: the messages of each turn, and its duration.

use std::ops::Range;
use std::time::Duration;

/// The number of turns of each transport, if there are enough messages.
const TURNS: u64 = 20;
/// The smallest number of messages in a turn. The beginning and the end would dominate a shorter turn.
const FEWEST_MESSAGES: u64 = 10;
/// The longest turn. If turns were longer, the load of the machine could differ between the transports.
const LONGEST: Duration = Duration::from_secs(1);
/// The time to start the readers and to collect their latencies, an estimate from experience.
const AROUND: Duration = Duration::from_millis(500);

/// The messages of a transport, divided into turns of equal length. The last turn can be shorter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) messages: u64,
    pub(crate) messages_a_turn: u64,
    pub(crate) interval: Duration,
}

impl Plan {
    pub(crate) fn new(messages: u64, interval: Duration) -> Self {
        let longest = LONGEST.as_micros() as u64 / (interval.as_micros() as u64).max(1);
        let messages_a_turn = messages.div_ceil(TURNS).max(FEWEST_MESSAGES).min(longest.max(1)).min(messages);
        Self { messages, messages_a_turn, interval }
    }

    pub(crate) fn turns(&self) -> u64 {
        self.messages.div_ceil(self.messages_a_turn)
    }

    /// The numbers of the messages of a turn.
    pub(crate) fn turn(&self, number: u64) -> Range<u64> {
        let begin = number * self.messages_a_turn;
        begin..(begin + self.messages_a_turn).min(self.messages)
    }

    /// The length of a turn.
    pub(crate) fn turn_takes(&self) -> Duration {
        self.interval * u32::try_from(self.messages_a_turn).unwrap_or(u32::MAX)
    }

    /// Estimates how long all turns of this number of transports take.
    pub(crate) fn takes(&self, transports: u32) -> Duration {
        AROUND + self.interval * u32::try_from(self.messages).unwrap_or(u32::MAX) * transports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_in_one_turn_and_no_turn_is_long() {
        for (messages, interval_us, turns, messages_a_turn) in [
            (5000, 1000, 20, 250),
            (300, 500, 20, 15),
            (20, 1000, 2, 10),
            (1, 0, 1, 1),
            (5000, 50_000, 250, 20),
            (10, 1_000_000, 10, 1),
            (10_000_000, 0, 20, 500_000),
            (5001, 1000, 20, 251),
        ] {
            let plan = Plan::new(messages, Duration::from_micros(interval_us));
            assert_eq!((plan.turns(), plan.messages_a_turn), (turns, messages_a_turn), "{messages}");
            let mut next = 0;
            for turn in 0..plan.turns() {
                let range = plan.turn(turn);
                assert!(range.start == next && range.end > next, "turn {turn} of {messages}: {range:?}");
                next = range.end;
            }
            assert_eq!(next, messages);
        }
    }
}
