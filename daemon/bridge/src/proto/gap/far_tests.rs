//! Far servers: logs, which are asked last and may be behind the feed.

use super::super::{MICROSECOND_NS, MILLISECOND_NS};
use super::*;

const US: u64 = MICROSECOND_NS;
const MS: u64 = MILLISECOND_NS;

/// Servers that are near, and one that is far, all of whose round trips are known.
fn gaps(near: usize) -> (Gaps, ReceiverCounters) {
    let mut gaps = Gaps::new(GapConfig { servers: near + 1, far: 1, ..GapConfig::default() });
    (0..=near).for_each(|server| gaps.note_rtt(server, 50 * US));
    (gaps, ReceiverCounters::default())
}

fn asked(gaps: &mut Gaps, now_ns: u64, counters: &mut ReceiverCounters) -> Vec<usize> {
    std::iter::from_fn(|| gaps.poll_request(now_ns, 1_000, counters)).map(|ask| ask.server).collect()
}

/// The servers that are asked for one hole, one after another, while nobody answers.
fn turns(gaps: &mut Gaps, counters: &mut ReceiverCounters, count: usize) -> Vec<usize> {
    let mut servers = Vec::new();
    while servers.len() < count {
        let now_ns = gaps.next_deadline().expect("something is missing");
        gaps.handle_timeout(now_ns, counters);
        servers.extend(asked(gaps, now_ns, counters));
    }
    servers
}

#[test]
fn a_far_server_is_asked_when_each_near_one_has_left_the_request_unanswered() {
    for near in 1..4 {
        let (mut gaps, mut counters) = gaps(near);
        gaps.extend(0, 1, 2, &mut counters);
        gaps.show(0, 2);
        let servers = turns(&mut gaps, &mut counters, 2 * near + 2);
        assert!(servers[..=near].iter().all(|server| *server < near), "{servers:?}");
        assert!(servers[near + 1..].contains(&near), "{servers:?}");
    }
}

#[test]
fn a_far_server_is_asked_at_once_for_what_no_near_one_holds() {
    let (mut gaps, mut counters) = gaps(2);
    gaps.extend(0, 1, 2, &mut counters);
    gaps.show(0, 2);
    gaps.handle_timeout(50 * US, &mut counters);
    let mut servers = Vec::new();
    for now_ns in (50 * US..).step_by(10_000).take(5) {
        let [server] = asked(&mut gaps, now_ns, &mut counters)[..] else { panic!("{servers:?}") };
        servers.push(server);
        if server < 2 {
            assert!(gaps.handle_gone(now_ns, server, 1, 2, &mut counters));
        }
    }
    // Each has to say it twice.
    assert_eq!(servers[..4].iter().filter(|server| **server < 2).count(), 4, "{servers:?}");
    assert_eq!((servers[4], gaps.take_expired(1)), (2, None));
    assert_eq!(gaps.fill(MS, 1..2, Some(2), &mut counters), 1);
    assert_eq!(counters.servers[2].messages_recovered, 1);
}

/// One that says nothing is down after a quarter of a second, and then what the others do not hold is gone.
#[test]
fn a_far_server_that_is_silent_is_waited_for_no_longer_than_another() {
    let (mut gaps, mut counters) = gaps(1);
    gaps.extend(0, 1, 2, &mut counters);
    gaps.show(0, 2);
    let mut now_ns = 0;
    while gaps.take_expired(1).is_none() {
        now_ns = gaps.next_deadline().expect("something is missing").max(now_ns + 1);
        gaps.handle_timeout(now_ns, &mut counters);
        for server in asked(&mut gaps, now_ns, &mut counters) {
            if server == 0 {
                gaps.handle_gone(now_ns, server, 1, 2, &mut counters);
            }
        }
    }
    assert!((250 * MS..400 * MS).contains(&now_ns), "{now_ns} ns");
}

#[test]
fn what_a_far_server_lacks_is_not_shown_to_exist() {
    let (mut gaps, mut counters) = gaps(0);
    gaps.extend(0, 1, 11, &mut counters);
    gaps.show(0, 6);
    gaps.handle_timeout(50 * US, &mut counters);
    for now_ns in [60 * US, 70 * US] {
        asked(&mut gaps, now_ns, &mut counters);
        gaps.handle_gone(now_ns, 0, 1, u64::MAX, &mut counters);
        gaps.handle_gone(now_ns, 0, 6, u64::MAX, &mut counters);
    }
    assert_eq!(gaps.take_expired(1), Some(6), "those that surely exist are given up");
    assert_eq!((gaps.take_expired(6), gaps.shown()), (None, 6), "the rest may come yet");
}

#[test]
fn a_claim_ends_by_the_word_of_near_servers_alone() {
    let (gaps, _) = gaps(3);
    assert_eq!(gaps.denials_needed(), 3);
}
