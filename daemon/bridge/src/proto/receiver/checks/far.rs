//! A log beside, or in place of, the servers that are near.

use super::super::super::gap::{GapConfig, GapPolicy};
use super::*;

fn with_log(near: usize) -> ReceiverConfig {
    let policy = GapPolicy::Skip { give_up_ns: 20 * MS };
    let gaps = GapConfig { servers: near + 1, far: 1, policy, ..GapConfig::default() };
    ReceiverConfig { gaps, ..config() }
}

/// A heartbeat is forged, and the log says that it has none of that: it is behind the feed, for all that it knows.
#[test]
fn a_log_without_messages_that_are_only_claimed_gives_nothing_up() {
    let mut rig = Rig::new(with_log(0));
    rig.put(0, LINE, &packet(session(1), 1, 1));
    assert!(rig.put(1, LINE, &heartbeat(session(1), 1_000)).is_empty());
    let mut now_ns = 1;
    for _ in 0..50 {
        now_ns = rig.receiver.next_deadline().unwrap_or(now_ns + MS).max(now_ns + US);
        let mut out = rig.wait(now_ns);
        for (first, _) in rig.requests(now_ns) {
            let told = (session(1), first, u64::MAX);
            rig.receiver.handle_gone(now_ns, 0, told, &mut |delivery| out.push(text(delivery)));
        }
        assert_eq!(out, [""; 0]);
    }
    for n in 2..8 {
        assert_eq!(rig.put(900 * MS + n, LINE, &packet(session(1), n, 1)), [n.to_string()]);
    }
}

#[test]
fn what_the_log_brings_is_delivered_like_any_repair() {
    let mut rig = Rig::new(with_log(0));
    rig.put(0, LINE, &packet(session(1), 1, 1));
    rig.put(1, LINE, &packet(session(1), 4, 1));
    rig.put(2, LINE, &packet(session(1), 5, 1));
    rig.wait(MS);
    assert_eq!(rig.requests(MS), [(2, 2)]);
    assert_eq!(rig.put(MS + US, Origin::Server(0), &packet(session(1), 2, 2)), ["2", "3", "4", "5"]);
    assert!(rig.receiver.backlog().0.is_far(0));
    assert_eq!(rig.receiver.counters().servers[0].messages_recovered, 2);
}

/// Samples say whether a log is of this feed. A packet that repeats what came, with other bytes, must not make one of them false.
#[test]
fn samples_are_of_messages_that_came_for_the_first_time() {
    let mut rig = Rig::new(with_log(0));
    let sampled = |rig: &Rig| {
        let (samples, _) = rig.receiver.samples();
        let one =
            |sample: &Sample| (sample.sequence, u64::from_be_bytes(sample.bytes[..].try_into().unwrap()));
        samples.map(one).collect::<Vec<_>>()
    };
    let forged = |sequence: u64| {
        let mut forged = packet(session(1), sequence, 1);
        *forged.last_mut().unwrap() ^= 1;
        forged
    };
    rig.put(0, LINE, &packet(session(1), 1, 3));
    assert_eq!(sampled(&rig), [(1, 1)]);
    // 3 was delivered, and 5 waits for 4.
    rig.put(SECOND_NS - MS, LINE, &packet(session(1), 5, 1));
    assert_eq!(sampled(&rig), [(1, 1), (5, 5)]);
    for (n, sequence) in [3, 5].into_iter().enumerate() {
        rig.put((2 + n as u64) * SECOND_NS, LINE, &forged(sequence));
        assert_eq!(sampled(&rig), [(1, 1), (5, 5)], "{sequence} came before");
    }
    // Of a packet that begins with old messages, the first new one is kept.
    rig.put(4 * SECOND_NS, LINE, &packet(session(1), 4, 3));
    assert_eq!(sampled(&rig), [(1, 1), (5, 5), (4, 4)]);
    rig.put(5 * SECOND_NS, LINE, &packet(session(1), 5, 4));
    assert_eq!(sampled(&rig), [(1, 1), (5, 5), (4, 4), (7, 7)]);
}
