//! The captures of these tests have packets out of order, several feeds in one file, and packets that belong to no feed.

use super::*;
use crate::proto::native::container::{Container, HEAD_BYTES, Kind};
use crate::proto::wire::{PacketWriter, Request, end_of_session, heartbeat};
use proptest::prelude::*;

fn session(name: &str) -> Session {
    Session::named(name).unwrap()
}

/// A packet of messages. The content of each message is its sequence.
fn packet(name: &str, first: u64, count: u64) -> Vec<u8> {
    let mut buffer = vec![0; 1_400];
    let mut packet = PacketWriter::new(first);
    for sequence in first..first + count {
        assert!(packet.push(&mut buffer, &sequence.to_be_bytes()));
    }
    let bytes = packet.finish(&mut buffer, session(name)).unwrap();
    buffer.truncate(bytes);
    buffer
}

/// A delivery: a session, a run of messages, or a gap.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    Session(String),
    Messages(Range<u64>),
    Gap(Range<u64>),
}

fn begun(name: &str) -> Got {
    Got::Session(name.to_owned())
}

/// Unwraps a capture. With `is_file`, the datagrams after each packet are known in advance.
fn unwrap(only: Option<&str>, datagrams: &[Vec<u8>], is_file: bool) -> (Vec<Got>, UnwrapCounters) {
    let mut unwrap = Unwrap::new(only.map(session));
    let mut got: Vec<Got> = Vec::new();
    let mut sink = |delivery: Delivery<'_>| match delivery {
        Delivery::NewSession { session, .. } => got.push(Got::Session(session.to_string())),
        Delivery::Message { sequence, data, .. } => {
            assert_eq!(data, sequence.to_be_bytes());
            match got.last_mut() {
                Some(Got::Messages(run)) if run.end == sequence => run.end += 1,
                _ => got.push(Got::Messages(sequence..sequence + 1)),
            }
        }
        Delivery::Gap { missing } => got.push(Got::Gap(missing)),
        Delivery::End { .. } => {}
    };
    for (at, datagram) in datagrams.iter().enumerate() {
        let behind = if is_file { &datagrams[at + 1..] } else { &[] };
        unwrap.take(datagram, &mut behind.iter().map(|datagram| &datagram[..]), &mut sink);
    }
    unwrap.finish(&mut sink);
    let counters = unwrap.counters;
    assert_eq!(counters.datagrams, datagrams.len() as u64);
    assert_eq!(counters.accounted(), counters.datagrams, "{counters:?}");
    (got, counters)
}

/// A hole is given up after a fixed number of packets, independent of the time. A longer wait would delay a live pipe.
#[test]
fn a_hole_is_held_for_packets_and_no_longer() {
    for (behind, is_late) in [(HELD_PACKETS as u64 - 1, false), (HELD_PACKETS as u64 + 1, true)] {
        let mut datagrams: Vec<_> = (1..=5).chain(7..7 + behind).map(|n| packet("FEED", n, 1)).collect();
        datagrams.push(packet("FEED", 6, 1));
        let (got, counters) = unwrap(None, &datagrams, false);
        assert_eq!((counters.missing, counters.late_messages), (u64::from(is_late), u64::from(is_late)));
        assert_eq!((counters.late, counters.copies, counters.duplicates), (u64::from(is_late), 0, 0));
        let whole = vec![begun("FEED"), Got::Messages(1..7 + behind)];
        assert_eq!(got == whole, !is_late, "{got:?}");
        assert_eq!(counters.has_lost(), is_late);
    }
}

/// When one hole is given up, the receiver still waits for the messages of a newer hole.
#[test]
fn each_hole_has_its_own_time() {
    let held = HELD_PACKETS as u64;
    let mut datagrams: Vec<_> = (1..=2).chain(4..held).map(|n| packet("FEED", n, 1)).collect();
    // Message 3 is lost. The packet at `held` is 10 packets late, and message 3 is given up meanwhile.
    datagrams.extend(
        (held + 1..held + 10).chain([held]).chain(held + 10..held + 20).map(|n| packet("FEED", n, 1)),
    );
    let (_, counters) = unwrap(None, &datagrams, false);
    assert_eq!((counters.missing, counters.late_messages), (1, 0), "{counters:?}");
}

/// The first packet of a file need not have the first message.
#[test]
fn a_file_begins_with_its_first_message_and_a_pipe_tells_what_came_before_its_first() {
    let datagrams = [4, 5, 2, 3, 6].map(|n| packet("FEED", n, 1));
    let (got, counters) = unwrap(None, &datagrams, true);
    assert_eq!(got, [begun("FEED"), Got::Messages(2..7)]);
    assert!(!counters.has_lost());
    let (got, counters) = unwrap(None, &datagrams, false);
    assert_eq!(got, [begun("FEED"), Got::Messages(4..7)]);
    assert_eq!((counters.late_messages, counters.late), (2, 2));
    assert!(counters.has_lost());
    // A first packet that is far off is not believed if the packets after it agree with each other.
    let datagrams = [9_000_000, 1, 2, 3, 4].map(|n| packet("FEED", n, 1));
    let (got, counters) = unwrap(None, &datagrams, true);
    assert_eq!((got, counters.implausible), (vec![begun("FEED"), Got::Messages(1..5)], 1));
}

/// If three packets have sequences that are far ahead but close to each other, the receiver accepts them, and no message is lost. This is
/// also true if packets of a slower line arrive between them.
#[test]
fn a_leap_that_others_agree_with_loses_nothing() {
    let far = 5_000_000_000;
    let firsts = [1, 2, far, 3, far + 1, 4, far + 2, far + 3];
    let (got, counters) = unwrap(None, &firsts.map(|n| packet("FEED", n, 1)), false);
    assert_eq!(got, [begun("FEED"), Got::Messages(1..5), Got::Gap(5..far), Got::Messages(far..far + 4)]);
    assert_eq!((counters.implausible, counters.packets), (0, 8));
    let (got, counters) = unwrap(None, &[1, far, 2, far + 1, 3].map(|n| packet("FEED", n, 1)), false);
    assert_eq!((got, counters.implausible), (vec![begun("FEED"), Got::Messages(1..4)], 2));
    assert!(counters.has_lost());
    let (_, counters) = unwrap(None, &[packet("FEED", 1, 1), packet("FEED", MAX_SEQUENCE, 1)], false);
    assert_eq!(counters.implausible, 1);
}

/// The receiver stays with a feed that continues, even if the name of another session seems to have a later epoch.
#[test]
fn two_feeds_beside_each_other_are_one_feed_and_packets_that_are_told() {
    for (a, b) in [("AAAA012345", "BBBB012346"), ("0000012346", "0000012345"), ("0000012345", "0000012346")] {
        for packets in [5, 3 * HELD_PACKETS as u64] {
            let datagrams: Vec<_> = (1..=packets).flat_map(|n| [packet(a, n, 1), packet(b, n, 1)]).collect();
            let (got, counters) = unwrap(None, &datagrams, true);
            assert_eq!(got, [begun(a), Got::Messages(1..packets + 1)]);
            assert_eq!((counters.other_sessions, counters.packets), (packets, packets));
            let (got, counters) = unwrap(Some(b), &datagrams, true);
            assert_eq!(got, [begun(b), Got::Messages(1..packets + 1)]);
            assert_eq!(counters.other_sessions, packets);
        }
    }
}

/// If one session follows another, both are delivered completely, even if copies and repairs of the first session arrive late.
#[test]
fn sessions_that_follow_each_other_are_whole() {
    let feed = |name: &'static str, messages: u64| (1..=messages).map(move |n| packet(name, n, 1));
    for (a, b, ends) in
        [("FEED000001", "FEED000002", false), ("MONDAY", "TUESDAY", false), ("MONDAY", "TUESDAY", true)]
    {
        for messages in [3, 70, 2 * HELD_PACKETS as u64] {
            let mut datagrams: Vec<_> = feed(a, messages).collect();
            datagrams.remove(1);
            if ends {
                datagrams.push(end_of_session(session(a), messages + 1).to_vec());
            }
            datagrams.extend(feed(b, messages).take(2));
            datagrams.extend([packet(a, 1, 1)]);
            datagrams.extend(feed(b, messages).skip(2));
            let (got, counters) = unwrap(None, &datagrams, true);
            let first = [begun(a), Got::Messages(1..2), Got::Gap(2..3), Got::Messages(3..messages + 1)];
            let expected: Vec<_> =
                first.into_iter().chain([begun(b), Got::Messages(1..messages + 1)]).collect();
            assert_eq!(got, expected, "{a} {b} {ends} {messages}");
            assert_eq!((counters.missing, counters.copies), (1, 1), "{counters:?}");
            assert_eq!(counters.other_sessions + counters.stale + counters.late, 0);
        }
    }
}

/// If packets of a session arrive after the receiver has left the session, they are counted.
#[test]
fn what_a_session_says_after_it_was_left_is_counted() {
    let long = 2 * HELD_PACKETS as u64;
    let mut datagrams = vec![packet("A", 1, 1)];
    datagrams.extend((1..=long).map(|n| packet("B", n, 1)));
    datagrams.push(packet("A", 2, 1));
    datagrams.push(packet("A", 1, 1));
    datagrams.push(packet("B", long + 1, 1));
    let (got, counters) = unwrap(None, &datagrams, false);
    let expected = [begun("A"), Got::Messages(1..2), begun("B"), Got::Messages(1..long + 2)];
    assert_eq!(got, expected);
    assert_eq!((counters.stale, counters.copies), (1, 1));
    assert!(counters.has_lost());
}

/// A native packet is also a valid plain packet, whose only message is the native container. The container must not be published as a
/// message.
#[test]
fn native_packets_are_opened_or_told_and_never_published_as_they_are() {
    let sealed = |number: u64| {
        let mut buffer = vec![7; 100];
        let container = Container {
            session: session("FEED"),
            sequence: number,
            kind: Kind::Data,
            is_sealed: true,
            is_repair: false,
            is_from_receiver: false,
            key: 1,
            messages: 1,
            sender: 9,
            number,
        };
        let bytes = container.write(&mut buffer, 100 - HEAD_BYTES).unwrap();
        buffer[..bytes].to_vec()
    };
    let (got, counters) = unwrap(None, &[sealed(1), sealed(2)], true);
    assert_eq!((got, counters.sealed), (vec![], 2));
    assert!(counters.has_lost());
}

#[test]
fn what_is_no_packet_of_the_feed_is_named() {
    let mut damaged = packet("FEED", 2, 1);
    damaged.pop();
    let request = Request { session: session("FEED"), first: 1, count: 2 }.encode().to_vec();
    let datagrams =
        [heartbeat(session("FEED"), 1).to_vec(), packet("FEED", 1, 1), damaged, b"noise".to_vec(), request];
    let (got, counters) = unwrap(None, &datagrams, true);
    assert_eq!(got, [begun("FEED"), Got::Messages(1..2)]);
    assert_eq!((counters.heartbeats, counters.requests, counters.malformed.total()), (1, 1, 2));
    assert_eq!((counters.damaged, counters.has_lost()), (1, true));
}

/// An earlier mistake: an unreadable packet counted as damaged only if its session was already followed.
#[test]
fn an_unreadable_packet_before_its_session_is_damage() {
    let mut first = packet("FEED", 1, 1);
    first.pop();
    let mut other = packet("OTHER", 1, 1);
    other.pop();
    let datagrams = [first.clone(), other, b"noise".to_vec(), packet("FEED", 2, 1), packet("FEED", 3, 1)];
    let (got, counters) = unwrap(None, &datagrams, true);
    assert!(got.contains(&Got::Messages(2..4)), "{got:?}");
    assert_eq!((counters.malformed.total(), counters.damaged, counters.has_lost()), (3, 1, true));
    // An earlier mistake: unreadable packets were no longer noted after 256 other datagrams.
    let noise = (0..300u64).map(|n| [n.to_be_bytes(), n.to_be_bytes()].concat());
    let datagrams: Vec<_> = noise.chain([first.clone(), packet("FEED", 2, 1)]).collect();
    let (_, counters) = unwrap(None, &datagrams, true);
    assert_eq!((counters.malformed.total(), counters.damaged), (301, 1));
    let (_, counters) = unwrap(Some("FEED"), &[packet("FEED", 2, 1), first], true);
    assert_eq!((counters.damaged, counters.has_lost()), (1, true));
}

proptest! {
    /// In this test, the receiver waits long enough for every late packet. Then each message of the capture is delivered once, every other
    /// message counts as missing, and each datagram is in one counter.
    #[test]
    fn what_is_in_the_file_comes_out(
        lost in prop::collection::btree_set(0u64..600, 0..200),
        late in prop::collection::vec((0usize..600, 1usize..400), 0..100),
        copies in prop::collection::vec(any::<prop::sample::Index>(), 0..50),
        is_file in any::<bool>(),
    ) {
        // The first packet stays first, because a pipe begins with it.
        let mut order: Vec<u64> = (1..600).filter(|n| !lost.contains(n)).collect();
        for (from, by) in late {
            if from < order.len() {
                let packet = order.remove(from);
                order.insert((from + by).min(order.len()), packet);
            }
        }
        for index in copies {
            if !order.is_empty() {
                let (from, to) = (index.index(order.len()), order.len() / 2);
                order.insert(to, order[from]);
            }
        }
        let datagrams: Vec<_> = [0].into_iter().chain(order).map(|n| packet("FEED", 1 + 3 * n, 3)).collect();
        let (got, counters) = unwrap(None, &datagrams, is_file);
        let mut next = 1;
        for got in &got[1..] {
            let (Got::Messages(run) | Got::Gap(run)) = got else { panic!("{got:?}") };
            prop_assert_eq!(run.start, next);
            next = run.end;
        }
        let distinct: std::collections::BTreeSet<_> = datagrams.iter().collect();
        prop_assert_eq!(counters.messages, 3 * distinct.len() as u64);
        prop_assert_eq!(counters.messages + counters.missing, next - 1);
        prop_assert_eq!(counters.copies, (datagrams.len() - distinct.len()) as u64);
        prop_assert_eq!(counters.late_messages, 0);
    }

    /// No datagrams cause a panic, and each datagram is in one counter.
    #[test]
    fn any_datagrams_are_accounted_for(
        script in prop::collection::vec((0u8..8, 0usize..4, prop_oneof![1u64..40, any::<u64>()], 1u64..20), 0..300),
        is_file in any::<bool>(),
    ) {
        let names = ["FEED000001", "FEED000002", "OTHER", "0000012345"];
        let datagrams: Vec<Vec<u8>> = script.into_iter().map(|(kind, name, first, count)| {
            let first = first.clamp(1, u64::MAX - 100);
            match kind {
                0 => end_of_session(session(names[name]), first).to_vec(),
                1 => heartbeat(session(names[name]), first).to_vec(),
                2 => first.to_be_bytes().repeat(5),
                _ => packet(names[name], first, count),
            }
        }).collect();
        unwrap(None, &datagrams, is_file);
    }
}
