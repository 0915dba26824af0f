//! Decides from which source a line accepts packets. Once the line has a source, it accepts packets from no other, until the source falls
//! silent.
//!
//! ```text
//! open ── 16 packets in a row from one address ──> locked to it
//!  locked ── 3 s without a packet of its source ─────────────────────────────> open, locked by the next 16
//!  locked ── 5 ms without one, and 3 packets of another in order ────────────> locked to that other
//! ```
//! Another host that sends a copy of the feed can take over when the first host falls silent. The line stores the packets of the copy
//! meanwhile, so that no message is lost when the lock changes to that host. A host that sends anything else is ignored.
//!
//! If the operator lists sources, packets of all listed sources are accepted at any time, and packets of other sources never.
//!
//! The clock that measures silence is [`Awake`](super::awake::Awake). This clock leaves out the time in which the receiver stood still.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::MILLISECOND_NS;
use super::limit::AllowList;
use super::sender::HEARTBEAT_EVERY_NS;
use super::wire::Head;
use shmcast::hosting::fault;

/// The number of consecutive packets of one source after which an open line is locked to that source.
const LOCKING_PACKETS: u32 = 16;
/// If the line's source is silent for this time, the line is open to any source. The unit is nanoseconds. An idle source sends heartbeats.
/// The line must not open between two heartbeats, nor when one heartbeat is late or lost.
const OPEN_NS: u64 = 3 * HEARTBEAT_EVERY_NS;
/// If the line's source is silent for this time, the line can change to another source whose packets are in order. The unit is nanoseconds.
const PASS_NS: u64 = 5 * MILLISECOND_NS;
/// The number of consecutive packets that a source must send before the line is locked to it.
const PASS_PACKETS: u32 = 3;
/// The largest number of stored packets of a copy of the feed. If more arrive, the oldest packets are dropped. If the line then changes to
/// the source of the copy, the messages of the dropped packets can be missing.
const MAX_KEPT: usize = 512;

/// The lock of one line.
#[derive(Debug)]
pub(crate) struct SourceLock {
    listed: AllowList,
    /// The source to which the line is locked, or the source of the previous packets if the line is open.
    source: Option<IpAddr>,
    packets: u32,
    heard_ns: u64,
    rival: Option<Rival>,
    /// The stored packets of the line's new source. The last of them is the packet with which the line changed to this source.
    passed: Option<Kept>,
}

/// The last packets of a copy of the feed, in the order in which they arrived.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The packets, each with the sequence after its last message.
    packets: VecDeque<(u64, Vec<u8>)>,
    /// The memory of dropped packets, which is reused for later packets.
    spare: Vec<Vec<u8>>,
}

impl Kept {
    /// Stores a packet, and drops the packets that end before `due`.
    fn push(&mut self, end: u64, datagram: &[u8], due: u64) {
        while self.packets.len() >= MAX_KEPT || self.packets.front().is_some_and(|(end, _)| *end < due) {
            self.spare.extend(self.packets.pop_front().map(|(_, bytes)| bytes));
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(datagram);
        self.packets.push_back((end, bytes));
    }

    /// Returns the stored datagrams.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.packets.iter().map(|(_, bytes)| &bytes[..])
    }
}

/// Another source, which sends to a locked line.
#[derive(Debug)]
struct Rival {
    source: IpAddr,
    /// The number of packets in order that the source has sent. Its next packet must begin at `next`.
    packets: u32,
    next: u64,
    kept: Kept,
}

impl SourceLock {
    /// Makes an open line. If `listed` is not empty, the line accepts only packets of these sources.
    pub(crate) fn new(listed: AllowList) -> SourceLock {
        SourceLock { listed, source: None, packets: 0, heard_ns: 0, rival: None, passed: None }
    }

    /// Whether to accept a packet of the source `from`. `head` has the packet's first fields if they are valid. `due` is the sequence after
    /// the last message of which the receiver knows. If the packet is accepted, the packets of [`take_kept`](Self::take_kept) must be
    /// handled first.
    pub(crate) fn admits(
        &mut self,
        now_ns: u64,
        from: IpAddr,
        (head, datagram): (Option<&Head>, &[u8]),
        due: u64,
    ) -> bool {
        if !self.listed.is_empty() {
            return self.listed.allows(from);
        }
        let Some(head) = head else { return self.packets < LOCKING_PACKETS || self.source == Some(from) };
        if self.source == Some(from) {
            (self.packets, self.heard_ns) = (self.packets.saturating_add(1), now_ns);
            return true;
        }
        let silent_ns = now_ns.saturating_sub(self.heard_ns);
        let is_locked = self.packets >= LOCKING_PACKETS && silent_ns < OPEN_NS && !fault!("anybody_may_send");
        let goes_on = is_locked && self.goes_on(from, (head, datagram), due);
        if !is_locked || silent_ns >= PASS_NS && goes_on {
            self.passed = match fault!("what_a_copy_sent_first_is_lost") {
                false => self.rival.take().filter(|_| goes_on).map(|rival| rival.kept),
                true => None,
            };
            (self.source, self.packets, self.heard_ns) = (Some(from), 1, now_ns);
            self.packets += if is_locked { LOCKING_PACKETS } else { 0 };
            return true;
        }
        false
    }

    /// Returns the stored packets of the new source of the line. The last of them is the packet with which the line changed to this source.
    /// Returns `None` unless the line's source has just changed. Call this after every accepted packet, and before the next one.
    #[inline]
    pub(crate) fn take_kept(&mut self) -> Option<Kept> {
        self.passed.take()
    }

    // Handles a packet of a source to which the line is not locked. Stores the packet if it continues the source's earlier packets, or
    // begins at or before `due`. Returns whether the line can change to this source: the source has sent enough packets in order, and has
    // reached `due`.
    fn goes_on(&mut self, source: IpAddr, (head, datagram): (&Head, &[u8]), due: u64) -> bool {
        let (end, is_copy) = (head.end(), head.sequence <= due);
        let known = self.rival.as_mut().filter(|rival| rival.source == source);
        match known {
            Some(rival) if rival.next == head.sequence => {
                (rival.packets, rival.next) = (rival.packets.saturating_add(1), end);
                rival.kept.push(end, datagram, due);
                rival.packets >= PASS_PACKETS && end >= due
            }
            Some(rival) if is_copy => {
                (rival.packets, rival.next) = (1, end);
                rival.kept.push(end, datagram, due);
                false
            }
            Some(_) => {
                self.rival = None;
                false
            }
            None if is_copy => {
                let mut kept = Kept::default();
                kept.push(end, datagram, due);
                self.rival = Some(Rival { source, packets: 1, next: end, kept });
                false
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn head(sequence: u64) -> Head {
        Head { sequence, messages: 1 }
    }

    /// Makes a line that is locked to host 1 at the time 0. Its next sequence is 17.
    fn locked() -> SourceLock {
        let mut lock = SourceLock::new(AllowList::default());
        assert!((1..=16).all(|sequence| lock.admits(0, ip(1), (Some(&head(sequence)), b""), sequence)));
        lock
    }

    #[test]
    fn a_line_is_open_until_one_source_has_sent_enough_in_a_row() {
        let mut lock = SourceLock::new(AllowList::default());
        for sequence in 1..100 {
            assert!(lock.admits(0, ip(sequence as u8 % 2), (Some(&head(sequence)), b""), sequence));
        }
        let mut lock = locked();
        assert!(
            !lock.admits(1, ip(2), (Some(&head(17)), b""), 17) && !lock.admits(1, ip(2), (None, b""), 17)
        );
        assert!(lock.admits(1, ip(1), (Some(&head(17)), b""), 17) && lock.admits(1, ip(1), (None, b""), 17));
    }

    #[test]
    fn a_copy_takes_over_after_milliseconds_and_nobody_else_does() {
        let mut lock = locked();
        for sequence in 17..40 {
            assert!(
                !lock.admits(PASS_NS - 1, ip(2), (Some(&head(sequence)), b""), 17),
                "the source is not silent"
            );
            assert!(
                !lock.admits(PASS_NS, ip(3), (Some(&head(sequence * 1_000)), b""), 17),
                "that is not in order"
            );
        }
        // The packets of a third host are counted separately.
        let taken = (17..21).map(|sequence| lock.admits(PASS_NS, ip(4), (Some(&head(sequence)), b""), 17));
        assert_eq!(taken.collect::<Vec<_>>(), [false, false, true, true]);
        assert!(!lock.admits(PASS_NS, ip(1), (Some(&head(21)), b""), 21), "the lock has passed on");
    }

    /// Another host sends a copy of the feed. The copy begins with messages that the source has already sent. Then the source stops, and
    /// the line passes to the other host. The receiver must get every message of the copy that the source has not sent.
    #[test]
    fn nothing_that_a_copy_has_sent_is_lost_when_the_lock_passes_on() {
        let mut lock = locked();
        let mut due = 17;
        for sequence in 10..30 {
            assert!(!lock.admits(1, ip(2), (Some(&head(sequence)), &[sequence as u8]), due));
            if sequence < 15 {
                assert!(lock.admits(1, ip(1), (Some(&head(due)), &[due as u8]), due));
                due += 1;
            }
        }
        assert!(lock.take_kept().is_none());
        assert!(lock.admits(1 + PASS_NS, ip(2), (Some(&head(30)), &[30]), due));
        let kept = lock.take_kept().expect("all that came before");
        let kept: Vec<u8> = kept.iter().map(|datagram| datagram[0]).collect();
        let expected: Vec<u8> = (due as u8..=30).collect();
        assert!(due == 22 && kept.ends_with(&expected), "{kept:?}, due {due}");
        assert!(lock.take_kept().is_none());
    }

    #[test]
    fn an_idle_source_keeps_its_line_though_a_heartbeat_is_late_or_lost() {
        let mut lock = locked();
        let mut now_ns = 0;
        for beats in [1, 1, 2, 1, 2] {
            now_ns += beats * HEARTBEAT_EVERY_NS + 20 * MILLISECOND_NS;
            assert!(!lock.admits(now_ns, ip(2), (Some(&head(5_000)), b""), 17));
            assert!(lock.admits(now_ns, ip(1), (Some(&head(17)), b""), 17));
        }
    }

    #[test]
    fn anybody_is_heard_after_three_heartbeats_are_missed() {
        let mut lock = locked();
        assert!(!lock.admits(OPEN_NS - 1, ip(2), (Some(&head(5)), b""), 17));
        assert!(lock.admits(OPEN_NS, ip(2), (Some(&head(5)), b""), 17));
        assert!(lock.admits(OPEN_NS, ip(3), (Some(&head(5)), b""), 17), "one packet is no lock");
    }

    #[test]
    fn a_list_keeps_out_who_is_not_on_it_and_locks_nobody_out_who_is() {
        let mut lock =
            SourceLock::new(AllowList::new(vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()]));
        for sequence in 1..100 {
            assert!(lock.admits(0, ip(1 + sequence as u8 % 2), (Some(&head(sequence)), b""), sequence));
            assert!(!lock.admits(10 * OPEN_NS, ip(3), (Some(&head(sequence)), b""), sequence));
        }
    }
}
