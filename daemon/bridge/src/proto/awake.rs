//! A clock that counts only the time in which a receiver ran. While a receiver is stopped or gets no CPU, packets wait in its sockets. So
//! the time without the CPU must not count as silence of the senders.

use super::MILLISECOND_NS;
use shmcast::hosting::fault;

/// This clock advances by at most this many nanoseconds from one reading to the next. A sleeping receiver wakes after 20 ms, so a longer
/// time means that the receiver did not run. In a program that calls the receiver less often, this clock runs slow but does not stop.
pub(crate) const COUNTED_NS: u64 = 40 * MILLISECOND_NS;

/// A clock that stops while its owner does not run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Awake {
    read_ns: u64,
    left_out_ns: u64,
}

impl Awake {
    /// Returns the time of this clock. `now_ns` is the time of a clock that never stops. Call this each time before you read the sockets.
    #[inline]
    pub(crate) fn at(&mut self, now_ns: u64) -> u64 {
        let since_ns = now_ns.saturating_sub(self.read_ns);
        if !fault!("a_standstill_is_a_silence") {
            self.left_out_ns += since_ns.saturating_sub(COUNTED_NS);
        }
        self.read_ns = now_ns;
        now_ns - self.left_out_ns
    }

    /// Returns how much time was left out so far, in nanoseconds.
    pub(crate) fn left_out_ns(&self) -> u64 {
        self.left_out_ns
    }
}

#[cfg(test)]
mod tests {
    use super::super::SECOND_NS;
    use super::super::counters::ReceiverCounters;
    use super::super::gap::{GapConfig, GapPolicy, Gaps};
    use super::super::limit::AllowList;
    use super::super::source::SourceLock;
    use super::super::wire::Head;
    use super::*;
    use std::net::IpAddr;

    const LOOK_NS: u64 = 20 * MILLISECOND_NS;
    /// The lengths of the standstills. The longest stands for a host that was suspended.
    const STANDSTILLS_NS: [u64; 3] = [4 * SECOND_NS, 60 * SECOND_NS, 1_000_000 * SECOND_NS];

    /// The two clocks of a receiver.
    #[derive(Default)]
    struct Receiver {
        now_ns: u64,
        awake: Awake,
    }

    impl Receiver {
        fn look_after(&mut self, ns: u64) -> u64 {
            self.now_ns += ns;
            self.awake.at(self.now_ns)
        }

        /// Polls for `ns` nanoseconds, finds no packet, and returns the time of the receiver's clock.
        fn look_for(&mut self, ns: u64) -> u64 {
            (0..ns / LOOK_NS).for_each(|_| _ = self.look_after(LOOK_NS));
            self.look_after(ns % LOOK_NS)
        }
    }

    #[test]
    fn a_receiver_that_looks_has_the_time_of_the_clock() {
        let mut receiver = Receiver::default();
        for ns in [0, 1, LOOK_NS, COUNTED_NS, 0] {
            assert_eq!(receiver.look_after(ns), receiver.now_ns);
        }
        assert_eq!(receiver.look_for(100 * SECOND_NS), receiver.now_ns);
        assert_eq!(receiver.awake.left_out_ns(), 0);
    }

    #[test]
    fn one_that_is_seldom_invoked_has_a_clock_that_goes_on() {
        let mut receiver = Receiver::default();
        (0..50).for_each(|_| _ = receiver.look_after(SECOND_NS));
        assert_eq!(receiver.look_after(0), 50 * COUNTED_NS);
        assert_eq!(receiver.awake.left_out_ns(), 50 * (SECOND_NS - COUNTED_NS));
    }

    /// A line accepts another host only after its source was silent. The source does not count as silent while the receiver stands still.
    /// After the standstill, the first packet in the socket is from another host, and the line must refuse it.
    #[test]
    fn a_line_stays_its_sources_while_the_receiver_stands_still() {
        let (source, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let packet = |sequence| (Some(Head { sequence, messages: 1 }), [].as_slice());
        for standstill_ns in STANDSTILLS_NS {
            let (mut receiver, mut lock) = (Receiver::default(), SourceLock::new(AllowList::default()));
            let mut admits = |now_ns, from, sequence| {
                let (head, bytes) = packet(sequence);
                lock.admits(now_ns, from, (head.as_ref(), bytes), 17)
            };
            assert!((1..=16).all(|sequence| admits(receiver.look_after(1), source, sequence)));
            receiver.look_for(SECOND_NS);
            let now_ns = receiver.look_after(standstill_ns);
            assert!(!admits(now_ns, other, 5_000), "after {standstill_ns} ns");
            assert!(admits(now_ns, source, 17));
            assert!(!admits(receiver.look_for(2 * SECOND_NS), other, 5_000));
            assert!(admits(receiver.look_for(SECOND_NS), other, 5_000), "a silence that was listened to");
        }
    }

    /// A receiver with missing messages stands still, either before or after it has requested the messages. The time in which it stood
    /// still must not count as a silence of the server.
    #[test]
    fn nothing_is_given_up_because_the_receiver_stood_still() {
        let policy = GapPolicy::Skip { give_up_ns: 2 * SECOND_NS };
        for (standstill_ns, is_asked) in STANDSTILLS_NS.into_iter().flat_map(|ns| [(ns, true), (ns, false)]) {
            let (mut receiver, mut counters) = (Receiver::default(), ReceiverCounters::default());
            let mut gaps = Gaps::new(GapConfig { policy, ..GapConfig::default() });
            let now_ns = receiver.look_after(1);
            gaps.extend(now_ns, 1, 41, &mut counters);
            gaps.show(now_ns, 41);
            let now_ns = receiver.look_after(MILLISECOND_NS);
            if is_asked {
                gaps.handle_timeout(now_ns, &mut counters);
                assert!(gaps.poll_request(now_ns, 1_000, &mut counters).is_some_and(|ask| ask.first == 1));
            }
            gaps.handle_timeout(receiver.look_after(standstill_ns), &mut counters);
            assert_eq!(gaps.take_expired(1), None, "after {standstill_ns} ns, asked: {is_asked}");
            gaps.handle_timeout(receiver.look_for(2 * SECOND_NS), &mut counters);
            assert_eq!(gaps.take_expired(1), Some(41), "the server was silent while it was listened to");
        }
    }
}
