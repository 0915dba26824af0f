//! Decides which source's packets a line takes: once it has a source, only that source's, until the source
//! falls silent.
//!
//! ```text
//! open ── 16 packets in a row from one address ──> locked to it
//!  locked ── 1 s without a packet of its source ─────────────────────────────> open, locked by the next 16
//!  locked ── 5 ms without one, and 3 packets of another in order ────────────> locked to that other
//! ```
//! So a host that sends a copy of the feed is ready to take over, and a host that sends anything else is not
//! heard. If the operator lists the sources, only those are heard, and all of them at the same time.

use std::net::IpAddr;

use super::limit::AllowList;
use super::wire::Head;
use super::{MILLISECOND_NS, SECOND_NS};
use shmcast::hosting::fault;

/// How many packets in a row lock an open line.
const LOCKING_PACKETS: u32 = 16;
/// After this silence of its source a line is open to anybody.
const OPEN_NS: u64 = SECOND_NS;
/// After this silence it is open to a source that goes on in order.
const PASS_NS: u64 = 5 * MILLISECOND_NS;
/// How many packets in order that source must send.
const PASS_PACKETS: u32 = 3;

/// The lock of one line.
#[derive(Debug)]
pub struct SourceLock {
    listed: AllowList,
    /// The source that the line is locked to, or that sent the packets before.
    source: Option<IpAddr>,
    packets: u32,
    heard_ns: u64,
    rival: Option<Rival>,
}

/// Another source that sends to a locked line.
#[derive(Debug, Clone, Copy)]
struct Rival {
    source: IpAddr,
    /// How many packets in order have come from it. The one after them begins at `next`.
    packets: u32,
    next: u64,
}

impl SourceLock {
    /// An open line. If `listed` is not empty, the line takes packets of the listed sources only.
    pub fn new(listed: AllowList) -> SourceLock {
        SourceLock { listed, source: None, packets: 0, heard_ns: 0, rival: None }
    }

    /// Whether the operator lists no sources.
    pub fn is_open_to_all(&self) -> bool {
        self.listed.is_empty()
    }

    /// Whether to take a packet. `head` is its beginning, if that is sound, and `due` the sequence that the
    /// receiver waits for. The packet's session makes no difference.
    pub fn admits(&mut self, now_ns: u64, from: IpAddr, head: Option<&Head>, due: u64) -> bool {
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
        if !is_locked || silent_ns >= PASS_NS && self.goes_on(from, head, due) {
            (self.source, self.packets, self.heard_ns, self.rival) = (Some(from), 1, now_ns, None);
            self.packets += if is_locked { LOCKING_PACKETS } else { 0 };
            return true;
        }
        false
    }

    // Whether this is the last of enough packets in order, from where the receiver is.
    fn goes_on(&mut self, source: IpAddr, head: &Head, due: u64) -> bool {
        let known = self.rival.filter(|rival| rival.source == source && rival.next == head.sequence);
        let packets = match known {
            Some(rival) => rival.packets + 1,
            None => u32::from(head.sequence == due),
        };
        self.rival = (packets > 0).then_some(Rival { source, packets, next: head.end() });
        packets >= PASS_PACKETS
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

    /// A line locked to host 1, whose next sequence is 17, at the time 0.
    fn locked() -> SourceLock {
        let mut lock = SourceLock::new(AllowList::default());
        assert!((1..=16).all(|sequence| lock.admits(0, ip(1), Some(&head(sequence)), sequence)));
        lock
    }

    #[test]
    fn a_line_is_open_until_one_source_has_sent_enough_in_a_row() {
        let mut lock = SourceLock::new(AllowList::default());
        for sequence in 1..100 {
            assert!(lock.admits(0, ip(sequence as u8 % 2), Some(&head(sequence)), sequence));
        }
        let mut lock = locked();
        assert!(!lock.admits(1, ip(2), Some(&head(17)), 17) && !lock.admits(1, ip(2), None, 17));
        assert!(lock.admits(1, ip(1), Some(&head(17)), 17) && lock.admits(1, ip(1), None, 17));
    }

    #[test]
    fn a_copy_takes_over_after_milliseconds_and_nobody_else_does() {
        let mut lock = locked();
        for sequence in 17..40 {
            assert!(!lock.admits(PASS_NS - 1, ip(2), Some(&head(sequence)), 17), "the source is not silent");
            assert!(!lock.admits(PASS_NS, ip(3), Some(&head(sequence * 1_000)), 17), "that is not in order");
        }
        // Packets in order from before the silence do not count.
        let taken = (17..21).map(|sequence| lock.admits(PASS_NS, ip(4), Some(&head(sequence)), 17));
        assert_eq!(taken.collect::<Vec<_>>(), [false, false, true, true]);
        assert!(!lock.admits(PASS_NS, ip(1), Some(&head(21)), 21), "the lock has passed on");
    }

    #[test]
    fn anybody_is_heard_after_a_second() {
        let mut lock = locked();
        assert!(!lock.admits(OPEN_NS - 1, ip(2), Some(&head(5)), 17));
        assert!(lock.admits(OPEN_NS, ip(2), Some(&head(5)), 17));
        assert!(lock.admits(OPEN_NS, ip(3), Some(&head(5)), 17), "one packet is no lock");
    }

    #[test]
    fn a_list_keeps_out_who_is_not_on_it_and_locks_nobody_out_who_is() {
        let mut lock =
            SourceLock::new(AllowList::new(vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()]));
        for sequence in 1..100 {
            assert!(lock.admits(0, ip(1 + sequence as u8 % 2), Some(&head(sequence)), sequence));
            assert!(!lock.admits(10 * OPEN_NS, ip(3), Some(&head(sequence)), sequence));
        }
    }
}
