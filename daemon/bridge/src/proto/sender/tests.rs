use super::super::wire::{Body, Downstream};
use super::*;

fn sender(payload_bytes: usize, batch: usize) -> Sender {
    let session = Session::of_channel("TEST", 1).unwrap();
    Sender::new(SenderConfig { payload_bytes, batch, linger_ns: 2 * SECOND_NS }, session, 1, 0)
}

fn packets(sender: &Sender) -> Vec<(u64, u64)> {
    let range = |datagram: &[u8]| match Downstream::parse(datagram).unwrap().body {
        Body::Messages(messages) => (messages.first(), messages.end()),
        body => panic!("a batch holds {body:?}"),
    };
    sender.datagrams().map(range).collect()
}

#[test]
fn waiting_messages_share_packets_and_nothing_waits_to_fill_one() {
    let mut sender = sender(HEADER_BYTES + 3 * 10, 8);
    (1..=7).for_each(|sequence| sender.push(sequence, b"8 bytes.").unwrap());
    assert_eq!(packets(&sender), vec![(1, 4), (4, 7)]);
    sender.close();
    assert_eq!(packets(&sender), vec![(1, 4), (4, 7), (7, 8)]);
    sender.clear(0);
    sender.close();
    assert_eq!(packets(&sender), vec![]);
}

#[test]
fn full_batch_loses_nothing() {
    let mut sender = sender(HEADER_BYTES + 10, 2);
    let (mut sequence, mut sent) = (1, Vec::new());
    while sequence <= 5 {
        match sender.push(sequence, b"8 bytes.") {
            Ok(()) => sequence += 1,
            Err(PushError::BatchFull) => {
                sent.extend(packets(&sender));
                sender.clear(0);
            }
            Err(error) => panic!("{error}"),
        }
    }
    sender.close();
    sent.extend(packets(&sender));
    assert_eq!(sent, vec![(1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]);
}

#[test]
fn open_packet_survives_the_sending_of_the_closed_ones() {
    let mut sender = sender(HEADER_BYTES + 20, 4);
    (1..=3).for_each(|sequence| sender.push(sequence, b"8 bytes.").unwrap());
    assert_eq!(packets(&sender), vec![(1, 3)]);
    sender.clear(0);
    assert_eq!(sender.poll_idle(SECOND_NS), None, "a heartbeat may not overtake what waits");
    sender.push(4, b"8 bytes.").unwrap();
    sender.close();
    assert_eq!(packets(&sender), vec![(3, 5)]);
}

#[test]
fn skipped_sequences_start_a_new_packet() {
    let mut sender = sender(1_400, 4);
    sender.push(1, b"a").unwrap();
    sender.push(9, b"b").unwrap();
    sender.close();
    assert_eq!((packets(&sender), sender.counters().messages_missed), (vec![(1, 2), (9, 10)], 7));
    assert_eq!(sender.push(3, b"c"), Err(PushError::WentBack { sequence: 3, next: 10 }));
    let long = vec![0; 1_379];
    assert_eq!(sender.push(10, &long), Err(PushError::TooLong { size: 1_379, max: 1_378 }));
    assert_eq!(sender.push(10, &long[1..]), Ok(()));
}

#[test]
fn heartbeats_come_fast_and_then_thin_out() {
    let mut sender = sender(1_400, 4);
    sender.push(1, b"a").unwrap();
    sender.close();
    sender.clear(1_000);
    let mut beats = Vec::new();
    while let Some(now_ns) = sender.next_deadline(0).filter(|&at_ns| at_ns < 4 * SECOND_NS) {
        let beat = sender.poll_idle(now_ns).expect("the deadline has come");
        assert_eq!(beat, wire::heartbeat(sender.session(), 2));
        assert_eq!(sender.poll_idle(now_ns), None, "one at a time");
        beats.push((now_ns - 1_000) / MICROSECOND_NS);
    }
    assert_eq!(beats, [250, 1_000, 4_000, 16_000, 64_000, 256_000, 1_256_000, 2_256_000, 3_256_000]);
}

#[test]
fn late_caller_sends_one_heartbeat_not_a_burst() {
    let mut sender = sender(1_400, 4);
    assert!(sender.poll_idle(0).is_some());
    assert!(sender.poll_idle(50 * MILLISECOND_NS).is_some());
    assert_eq!(sender.next_deadline(0), Some(64 * MILLISECOND_NS));
}

#[test]
fn late_caller_repeats_the_end_all_the_same() {
    let mut sender = sender(1_400, 4);
    sender.end(0);
    let late = |at: u64| 60 * at * SECOND_NS;
    let ends = (0..5).filter(|at| sender.poll_idle(late(*at)).is_some()).count();
    assert_eq!((ends, sender.is_finished(late(2))), (3, true));
}

#[test]
fn end_is_repeated_until_it_has_lingered() {
    let mut sender = sender(1_400, 4);
    sender.end(SECOND_NS);
    let mut ends = 0;
    while let Some(now_ns) = sender.next_deadline(SECOND_NS) {
        match sender.poll_idle(now_ns) {
            Some(end) => assert_eq!(end, wire::end_of_session(sender.session(), 1)),
            None => break,
        }
        ends += 1;
    }
    assert_eq!(ends, 8, "at once, the six quick ones, one a second later");
    assert!(!sender.is_finished(SECOND_NS) && sender.is_finished(3 * SECOND_NS));
    assert_eq!(sender.next_deadline(3 * SECOND_NS), None);
}
