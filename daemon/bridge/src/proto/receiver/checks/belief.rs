//! Tests the effect of forged packets. One packet alone can do little, and several packets together can do more.

use super::super::super::gap::GapConfig;
use super::super::super::gap::GapPolicy;
use super::*;

/// Runs the receiver's timeouts until `until_ns`. No server answers its requests.
fn idle(rig: &mut Rig, from_ns: u64, until_ns: u64) -> Vec<String> {
    let mut out = Vec::new();
    let mut now_ns = from_ns;
    loop {
        out.extend(rig.wait(now_ns));
        rig.requests(now_ns);
        match rig.receiver.next_deadline() {
            Some(at_ns) if at_ns <= until_ns => now_ns = at_ns,
            _ => return out,
        }
    }
}

fn with_servers(servers: usize) -> ReceiverConfig {
    let policy = GapPolicy::Skip { give_up_ns: 20 * MS };
    ReceiverConfig { gaps: GapConfig { servers, policy, ..GapConfig::default() }, ..config() }
}

#[test]
fn a_claim_is_not_given_up_by_time_and_forgotten_when_the_line_goes_on_below_it() {
    for servers in 0..3 {
        for claim in [heartbeat(session(1), 1_000), end_of_session(session(1), 1_000)] {
            let mut rig = Rig::new(with_servers(servers));
            rig.put(0, LINE, &packet(session(1), 1, 1));
            assert!(rig.put(1, LINE, &claim).is_empty());
            assert_eq!(idle(&mut rig, 2, 900 * MS), [""; 0]);
            for n in 2..8 {
                assert_eq!(rig.put(900 * MS + n, LINE, &packet(session(1), n, 1)), [n.to_string()]);
            }
            assert_eq!((rig.receiver.horizon(), rig.receiver.counters().totals.claims_contradicted), (8, 1));
            assert!(rig.receiver.backlog().0.is_empty());
        }
    }
}

#[test]
fn a_single_packet_far_ahead_gives_nothing_up_and_says_nothing_when_it_is_contradicted() {
    for servers in 0..2 {
        let mut rig = Rig::new(with_servers(servers));
        rig.put(0, LINE, &packet(session(1), 1, 1));
        let mut forged = packet(session(1), 20, 1);
        forged[22..].fill(0xFF);
        assert!(rig.put(1, LINE, &forged).is_empty());
        assert_eq!(idle(&mut rig, 2, 900 * MS), [""; 0]);
        for n in 2..30 {
            assert_eq!(rig.put(900 * MS + n, LINE, &packet(session(1), n, 1)), [n.to_string()], "{n}");
        }
    }
}

/// Missing messages that a second packet has shown to exist are given up in the end. Messages at the end of the feed are also given up, if
/// the line announces them again and again.
#[test]
fn what_is_shown_is_given_up_and_what_is_claimed_for_a_second() {
    for servers in 0..2 {
        let mut rig = Rig::new(with_servers(servers));
        rig.put(0, LINE, &packet(session(1), 1, 1));
        rig.put(1, LINE, &packet(session(1), 4, 1));
        assert_eq!(idle(&mut rig, 2, 900 * MS), [""; 0]);
        rig.put(900 * MS, LINE, &heartbeat(session(1), 5));
        assert_eq!(idle(&mut rig, 900 * MS, 1_000 * MS), ["gap 2..4", "4"]);
        rig.put(1_000 * MS, LINE, &heartbeat(session(1), 7));
        rig.put(1_900 * MS, LINE, &heartbeat(session(1), 7));
        assert_eq!(idle(&mut rig, 1_900 * MS, 1_990 * MS), [""; 0]);
        rig.put(2_000 * MS, LINE, &heartbeat(session(1), 7));
        assert_eq!(idle(&mut rig, 2_000 * MS, 2_100 * MS), ["gap 5..7"]);
    }
}

#[test]
fn servers_that_deny_a_claim_end_it() {
    let mut rig = Rig::new(with_servers(1));
    rig.receiver.note_rtt(0, 100 * US);
    rig.put(0, LINE, &packet(session(1), 1, 1));
    rig.put(1, LINE, &heartbeat(session(1), 1_000));
    let mut denied = 0;
    let mut now_ns = 1;
    while let Some(at_ns) = rig.receiver.next_deadline() {
        now_ns = at_ns;
        assert!(rig.wait(now_ns).is_empty() && now_ns < 100 * MS);
        for (first, _) in rig.requests(now_ns) {
            rig.receiver.handle_held(now_ns + 1, 0, (session(1), first, 2), &mut |_| panic!());
            denied += 1;
        }
    }
    assert_eq!(rig.receiver.horizon(), 2);
    assert!((2..20).contains(&denied), "asked {denied} times for what does not exist");
    // This time the receiver has requested nothing, so the server's answer has no effect.
    rig.put(now_ns, LINE, &packet(session(1), 2, 8));
    rig.receiver.handle_held(now_ns, 0, (session(1), 5, 5), &mut |_| panic!());
    assert_eq!((rig.receiver.horizon(), rig.receiver.next()), (10, 10));
}

/// A server's answer shows that the messages in the answer exist.
#[test]
fn a_servers_word_shows_what_it_holds() {
    let mut rig = Rig::new(with_servers(2));
    rig.put(0, LINE, &packet(session(1), 1, 1));
    rig.put(1, LINE, &heartbeat(session(1), 10));
    rig.wait(60 * US);
    assert_eq!(rig.requests(60 * US), [(2, 8)]);
    assert_eq!(rig.put(100 * US, Origin::Server(0), &packet(session(1), 2, 3)), ["2", "3", "4"]);
    assert_eq!(rig.requests(100 * US), [(5, 5)]);
    rig.put(150 * US, Origin::Server(0), &packet(session(1), 5, 1));
    assert_eq!(rig.receiver.backlog().0.shown(), 6);
    assert_eq!(rig.receiver.horizon(), 10, "the rest is a claim");
}

#[test]
fn a_forged_end_ends_nothing() {
    let mut rig = Rig::new(config());
    rig.put(0, LINE, &packet(session(1), 1, 1));
    let end = end_of_session(session(1), 2);
    assert!(rig.put(1, LINE, &end).is_empty() && rig.put(2, LINE, &end).is_empty(), "copies come together");
    assert_eq!(rig.put(MS, LINE, &packet(session(1), 2, 1)), ["2"]);
    assert!(rig.put(2 * MS, LINE, &end).is_empty());
    let mut rig = Rig::new(ReceiverConfig { lines: 2, ..config() });
    rig.put(0, LINE, &packet(session(1), 1, 1));
    rig.put(1, LINE, &end);
    assert_eq!(rig.put(2, Origin::Line(1), &end), ["end 2"], "the other line says so too");
    let mut rig = Rig::new(config());
    rig.put(0, LINE, &packet(session(1), 1, 1));
    assert!(rig.put(1, LINE, &end).is_empty() && rig.put(1, LINE, &end).is_empty());
    assert_eq!(rig.put(1, LINE, &end), ["end 2"], "three that were taken in at once are no copies");
}

#[test]
fn one_packet_begins_no_session_and_none_is_lost_by_waiting() {
    let mut rig = Rig::new(config());
    rig.put(0, LINE, &packet(session(5), 1, 1));
    assert!(rig.put(1, LINE, &packet(session(1 << 30), 1, 1)).is_empty(), "forged");
    assert!(rig.put(2, LINE, &packet(session(6), 1, 2)).is_empty());
    assert_eq!(rig.put(3, LINE, &packet(session(5), 2, 1)), ["2"]);
    for n in 1..200 {
        assert!(rig.put(3 + n, LINE, &packet(session(6), 2 * n + 1, 2)).is_empty());
    }
    let out = rig.put(2 + 10 * MS, LINE, &packet(session(6), 401, 2));
    let expected = std::iter::once("+6@1".to_owned()).chain((1..403).map(|n| n.to_string()));
    assert_eq!(out, expected.collect::<Vec<_>>());
    assert_eq!(rig.receiver.counters().totals.packets_early, 201);
}

/// The receiver follows session 5. Session 6 sends one packet with 30 messages and then only heartbeats, of which one is lost. Once session
/// 5 counts as silent, the receiver must follow session 6 and deliver all 30 messages.
#[test]
fn a_session_that_sends_few_messages_and_is_idle_loses_none() {
    let mut rig = Rig::new(config());
    rig.put(0, LINE, &packet(session(5), 1, 1));
    assert!(rig.put(MS, LINE, &packet(session(6), 1, 30)).is_empty());
    let followed = [1, 3, 4, 5, 6].into_iter().find_map(|n| {
        let out = rig.put(n * 1_050 * MS, LINE, &heartbeat(session(6), 31));
        (!out.is_empty()).then_some((n, out))
    });
    let expected: Vec<String> =
        std::iter::once("+6@1".to_owned()).chain((1..31).map(|n| n.to_string())).collect();
    assert_eq!(followed, Some((4, expected)), "once the other is silent");
}

/// The feed gets a lower epoch, because the sender's clock was set back or an older backup was restored.
#[test]
fn an_older_session_is_followed_once_the_newer_is_silent() {
    for follow in [Follow::Channel(*b"TEST"), Follow::First { silence_ns: DEFAULT_SILENCE_NS }] {
        let mut rig = Rig::new(ReceiverConfig { follow, ..config() });
        rig.put(0, LINE, &packet(session(7), 1, 1));
        for n in 1..30 {
            assert!(rig.put(n * 100 * MS, LINE, &packet(session(3), n, 1)).is_empty());
        }
        assert_eq!(
            (rig.receiver.counters().totals.packets_stale, rig.receiver.session()),
            (29, Some(session(7)))
        );
        let followed = (30..40).find_map(|n| {
            let out = rig.put(n * 100 * MS, LINE, &packet(session(3), n, 1));
            (!out.is_empty()).then_some((n, out))
        });
        assert_eq!(followed, Some((32, vec!["+3@1".to_owned()])), "three packets after three seconds");
        rig.wait(3_300 * MS);
        assert_eq!(rig.requests(3_300 * MS)[0].0, 1);
    }
}

/// Some servers answer a long request in several packets that all have the sequence of the first packet.
#[test]
fn packets_of_an_answer_that_all_bear_its_first_sequence_are_not_believed() {
    let mut rig = Rig::new(config());
    rig.put(0, LINE, &packet(session(1), 1, 1));
    rig.put(1, LINE, &packet(session(1), 9, 1));
    rig.put(2, LINE, &packet(session(1), 10, 1));
    rig.wait(60 * US);
    assert_eq!(rig.requests(60 * US), [(2, 7)]);
    let answer = |sequences: std::ops::Range<u64>| {
        let mut buffer = [0; 1_400];
        let mut packet = PacketWriter::new(2);
        sequences.for_each(|sequence| assert!(packet.push(&mut buffer, &sequence.to_be_bytes())));
        let bytes = packet.finish(&mut buffer, session(1)).unwrap();
        buffer[..bytes].to_vec()
    };
    assert_eq!(rig.put(70 * US, Origin::Server(0), &answer(2..4)), ["2", "3"]);
    // The answer has four messages. Without the check, the last two would be taken for messages 4 and 5.
    assert!(rig.put(70 * US, Origin::Server(0), &answer(4..8)).is_empty());
    assert_eq!(rig.receiver.counters().totals.repairs_unasked, 1);
    assert_eq!(rig.requests(80 * US), [(4, 5)]);
}
