//! Keeps a reader away from the cache lines that the publisher is about to write, if that makes the channel faster.
//!
//! A reader that has caught up polls the cache line of the next record. Each poll takes this line away from the publisher, so the publisher
//! and the reader wait for the line at each message. The reader stays caught up, because the waits slow the publisher down. If the reader
//! pauses until the publisher is [`AHEAD`] messages ahead, two to three times as many messages pass through the channel.
//!
//! A pause makes messages late. So the reader pauses only if it has measured that the channel is faster with pauses:
//!
//! ```text
//!          the publisher is close      after MEASURED messages
//!   Calm ------------------------> Measuring ---------------> Trying --- faster with pauses ----> Pausing --+
//!    ^                                 ^                         |                                          |
//!    |                                 |                         +---- not faster ----> Resting --------+   |
//!    +--- the publisher is not close   +----------------------------- after some messages --------------+---+
//!         (from each state)
//! ```
//!
//! The publisher is *close* if each message arrives after at most [`CLOSE`] empty polls. The reader makes a trial only if a message takes
//! at most [`FAST_PS`]. So readers that yield between polls, or share a CPU with others, do not pause for a slow publisher.
//!
//! Pauses make no difference to a publisher that is not slowed down by polls. In the stream of such a publisher, the reader pauses only in
//! trials. The trials concern one message in 128 at first, and one message in 8,192 later.

use super::Subscriber;
use crate::wait::Wait;

/// The number of empty polls at one place after which the publisher counts as far away. These polls take about half a microsecond.
const CLOSE: u32 = 256;
/// Number of messages in a measurement without pauses.
const MEASURED: u64 = 128;
/// Number of messages in a measurement with pauses.
const TRIED: u64 = 512;
/// After a measurement, the reader receives this many messages before it measures again. The number doubles each time that the reader
/// decides against pauses, up to [`AGAIN_AT_MOST`].
const AGAIN: u64 = 1 << 16;
const AGAIN_AT_MOST: u64 = 1 << 22;
/// A pause ends as soon as the publisher is this many messages ahead of the reader. The publisher writes its count every 64 messages.
const AHEAD: u64 = 64;
/// Limit for trials: if a message takes longer than this, the reader tries no pauses.
const FAST_PS: u64 = 500_000;
/// The longest pause, in nanoseconds.
const PAUSE_NS: u64 = 4096;

/// The reader's reaction to a publisher that is close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The publisher was not close at the reader's last position.
    Calm,
    /// The reader makes no pauses, and measures the time that a message takes.
    Measuring,
    /// The reader pauses, and measures the time that a message takes. Without pauses, a message took `before_ps` picoseconds.
    Trying { before_ps: u64 },
    /// The reader pauses, because the channel is faster with pauses.
    Pausing,
    /// The reader makes no pauses, because the channel was not faster with pauses.
    Resting,
}

/// Counts empty polls, and decides whether to pause.
#[derive(Debug)]
pub(super) struct Contention {
    /// The position of the last empty poll.
    position: u64,
    /// Number of empty polls at this position.
    polls: u32,
    /// Whether the publisher was close at the previous position.
    is_close: bool,
    state: State,
    /// The sequence at which [`state`](Self::state) ends. Used only while the publisher is close to this reader.
    until: u64,
    /// The sequence and the time at which the measurement began.
    began: (u64, u64),
    /// The number of messages until the next measurement. This number applies after a trial in which pauses were not faster.
    again: u64,
}

impl Contention {
    pub(super) const fn none() -> Self {
        Self {
            position: u64::MAX,
            polls: u32::MAX,
            is_close: false,
            state: State::Calm,
            until: 0,
            began: (0, 0),
            again: AGAIN,
        }
    }

    /// Counts an empty poll at `position`. Returns whether [`step`](Self::step) must be called.
    #[inline(always)]
    fn is_close_at(&mut self, position: u64) -> bool {
        if self.position == position {
            self.polls = self.polls.saturating_add(1);
            return false;
        }
        self.position = position;
        self.is_close = self.polls <= CLOSE;
        self.polls = 1;
        self.is_close || self.state != State::Calm
    }

    /// Called when the reader has caught up with message `next`. Moves to the next state if the present one is over. Returns whether to
    /// pause.
    fn step(&mut self, next: u64, now_ns: impl Fn() -> u64) -> bool {
        if self.state == State::Resting && !self.is_over(next) {
            return false;
        }
        if !self.is_close {
            self.state = State::Calm;
            return false;
        }
        if self.state == State::Calm || self.is_over(next) {
            self.change(next, now_ns());
        }
        matches!(self.state, State::Trying { .. } | State::Pausing)
    }

    /// Whether the present state ends. The state ends when the sequence `next` has reached `until`. The state also ends if `next` is more
    /// than [`AGAIN_AT_MOST`] below `until`. Then the channel's sequences have begun at 1 again, and would need too long to reach `until`.
    fn is_over(&self, next: u64) -> bool {
        self.until.wrapping_sub(next).wrapping_sub(1) >= AGAIN_AT_MOST
    }

    fn change(&mut self, next: u64, now_ns: u64) {
        let (first, began_ns) = self.began;
        let ps = now_ns.saturating_sub(began_ns).saturating_mul(1000) / next.saturating_sub(first).max(1);
        let (state, lasts) = match self.state {
            State::Calm | State::Pausing | State::Resting => (State::Measuring, MEASURED),
            State::Measuring if ps < FAST_PS => (State::Trying { before_ps: ps }, TRIED),
            State::Trying { before_ps } if ps < before_ps / 5 * 4 => {
                self.again = AGAIN;
                (State::Pausing, AGAIN)
            }
            State::Measuring | State::Trying { .. } => {
                let again = self.again;
                self.again = (2 * again).min(AGAIN_AT_MOST);
                (State::Resting, again)
            }
        };
        (self.state, self.until, self.began) = (state, next.saturating_add(lasts), (next, now_ns));
    }
}

impl Subscriber {
    /// Called after an empty poll. The polls of a reader can slow the publisher's stores. If they do, this function waits a little, so that
    /// the publisher gets ahead.
    #[inline(always)]
    pub(super) fn avoid_contention(&mut self) {
        if self.contention.is_close_at(self.reader.place().position) {
            self.let_publisher_ahead();
        }
    }

    #[cold]
    #[inline(never)]
    fn let_publisher_ahead(&mut self) {
        let (clock, next) = (self.clock, self.next_sequence());
        // `Wait::Burst` makes pauses of its own.
        if self.wait == Wait::Burst || !self.contention.step(next, || clock.ns(clock.now())) {
            return;
        }
        let start = clock.now();
        while self.reader.lag() < AHEAD
            && clock.ns_between(start, clock.now()) < PAUSE_NS
            && !self.reader.is_far_behind()
        {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simulation of a reader that catches up with the publisher again and again. The time is simulated, too.
    struct Play {
        contention: Contention,
        sequence: u64,
        now_ns: u64,
        paused: u64,
    }

    impl Play {
        fn new() -> Self {
            Self { contention: Contention::none(), sequence: 1, now_ns: 5, paused: 0 }
        }

        /// Simulates a reader that polls `polls` times and finds nothing. If the reader did not pause, it then receives one message, which
        /// takes `alone_ns`. If it paused, it receives 64 messages, and each takes `after_pause_ns`.
        fn turn(&mut self, polls: u32, alone_ns: u64, after_pause_ns: u64) {
            let now_ns = self.now_ns;
            let mut pauses = false;
            for _ in 0..polls {
                pauses |= self.contention.is_close_at(64 * self.sequence)
                    && self.contention.step(self.sequence, || now_ns);
            }
            let (messages, ns) = if pauses { (64, after_pause_ns) } else { (1, alone_ns) };
            self.paused += u64::from(pauses);
            self.sequence += messages;
            self.now_ns += messages * ns;
        }
    }

    #[test]
    fn a_publisher_that_is_faster_with_pauses_gets_them_for_nearly_all_messages() {
        let mut play = Play::new();
        while play.sequence < 10_000_000 {
            play.turn(3, 40, 15);
        }
        assert!(play.paused * 64 > play.sequence * 99 / 100, "{} of {}", play.paused * 64, play.sequence);
    }

    #[test]
    fn a_publisher_with_a_pace_of_its_own_gets_few_pauses_and_fewer_with_time() {
        let mut play = Play::new();
        while play.sequence < 1_000_000 {
            play.turn(3, 50, 50);
        }
        let first = play.paused;
        assert!((1..=100).contains(&first), "{first} pauses in a million messages");
        while play.sequence < 20_000_000 {
            play.turn(3, 50, 50);
        }
        let later = play.paused - first;
        assert!(later < 19 * 4, "{later} pauses in 19 million messages more");
    }

    #[test]
    fn a_publisher_that_is_not_close_gets_no_pause() {
        let mut play = Play::new();
        for _ in 0..10_000 {
            play.turn(CLOSE + 1, 40, 15);
        }
        assert_eq!(play.paused, 0);
    }

    #[test]
    fn a_slow_publisher_gets_no_pause() {
        let mut play = Play::new();
        (0..1_000_000).for_each(|_| play.turn(1, 501, 100));
        assert_eq!(play.paused, 0);
    }

    #[test]
    fn short_bursts_get_no_pause() {
        let mut play = Play::new();
        for _ in 0..10_000 {
            play.turn(CLOSE + 1, 10_000, 10_000);
            (0..MEASURED - 1).for_each(|_| play.turn(2, 40, 15));
        }
        assert_eq!(play.paused, 0);
    }

    #[test]
    fn pauses_end_with_the_burst_and_another_stream_is_measured_anew() {
        let mut play = Play::new();
        while play.paused < 1000 {
            play.turn(2, 40, 15);
        }
        play.turn(CLOSE + 1, 40, 15);
        play.turn(2, 40, 15);
        let before = play.paused;
        (0..MEASURED - 1).for_each(|_| play.turn(2, 40, 15));
        assert_eq!(play.paused, before, "the burst is over");
    }

    #[test]
    fn a_channel_that_begins_anew_is_measured_anew() {
        let mut play = Play::new();
        play.sequence = 1 << 40;
        while play.contention.state != State::Resting {
            play.turn(2, 40, 40);
        }
        play.sequence = 1;
        (0..1000).for_each(|_| play.turn(2, 40, 15));
        assert_eq!(play.contention.state, State::Pausing);
    }
}
