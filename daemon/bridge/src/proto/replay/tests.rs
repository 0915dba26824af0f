use super::super::native::ask::{self, Ask, Entry, MAX_ASK_BYTES};
use super::super::native::container::Kind;
use super::super::wire::{Body, Downstream, Meta};
use super::*;

const HELD: Held = Held { oldest: 10, next: 100, place: Place::Ring, is_backed: false };

fn session() -> Session {
    Session::of_channel("TEST", 1).unwrap()
}

fn asker(from: &str, is_proved: bool) -> Asker {
    Asker { from: from.parse().unwrap(), is_proved, has_waited: false }
}

fn holding(held: Held) -> Holding {
    Holding { session: session(), held }
}

fn replay(config: ReplayConfig) -> Replay {
    Replay::new(ReplayConfig { allow: AllowList::new(vec!["10.0.0.0/8".parse().unwrap()]), ..config })
}

fn request(first: u64, count: u16) -> [u8; 20] {
    Request { session: session(), first, count }.encode()
}

fn ask(replay: &mut Replay, from: &str, proved: bool, datagram: &[u8]) -> (Reply, Vec<u8>) {
    let mut out = [0; 2_000];
    let read = |sequence: u64, room: &mut [u8]| {
        room.get_mut(..100)?.fill(sequence as u8);
        Some(100)
    };
    let reply = replay.handle_request(0, asker(from, proved), datagram, holding(HELD), &mut out, read);
    (reply, out.to_vec())
}

#[test]
fn reply_starts_where_asked_and_never_reaches_further() {
    let mut replay = replay(ReplayConfig::default());
    for (first, count, expected) in [(10, 3, 3), (98, 10, 2), (20, 60_000, 13), (99, 1, 1)] {
        let (reply, out) = ask(&mut replay, "10.0.0.1:9", true, &request(first, count));
        let Reply::Messages { bytes, count, .. } = reply else { panic!("{reply:?}") };
        assert!(bytes <= DEFAULT_PAYLOAD_BYTES);
        let Body::Messages(messages) = Downstream::parse(&out[..bytes]).unwrap().body else { panic!() };
        assert_eq!((messages.first(), messages.count(), count), (first, expected, expected as u16));
        assert!(messages.iter().all(|(sequence, data)| data == [sequence as u8; 100]));
    }
}

#[test]
fn stranger_draws_no_byte() {
    let mut replay = replay(ReplayConfig::default());
    assert_eq!(ask(&mut replay, "11.0.0.1:9", true, &request(10, 1)).0, Reply::Nothing(Refusal::NotAllowed));
    let mut closed = Replay::new(ReplayConfig::default());
    assert_eq!(ask(&mut closed, "127.0.0.1:9", true, &request(10, 1)).0, Reply::Nothing(Refusal::NotAllowed));
}

#[test]
fn unproved_source_draws_at_most_three_times_what_it_sent() {
    let mut own = replay(ReplayConfig::default());
    assert_eq!(ask(&mut own, "10.0.0.1:9", false, &request(10, 9)).0, Reply::Nothing(Refusal::Unproved));
    let (reply, _) = ask(&mut own, "10.0.0.1:9", false, &request(1, 9));
    assert!(matches!(reply, Reply::Gone { bytes } if bytes <= 60), "{reply:?}");
    let mut trusting = replay(ReplayConfig { trust_allowed: true, ..ReplayConfig::default() });
    let (reply, _) = ask(&mut trusting, "10.0.0.1:9", false, &request(10, 9));
    assert!(matches!(reply, Reply::Messages { count: 9, .. }), "{reply:?}");
}

#[test]
fn what_is_not_published_yet_is_said_so_within_three_times_the_question() {
    let mut own = replay(ReplayConfig { trust_allowed: true, ..ReplayConfig::default() });
    for first in [100, u64::MAX - 9] {
        let of_another_make = ask(&mut own, "10.0.0.1:9", false, &request(first, 9)).0;
        assert_eq!(
            of_another_make,
            Reply::Nothing(Refusal::NotYet),
            "they believe the session of any datagram"
        );
        let (reply, out) = ask(&mut own, "10.0.0.1:9", true, &request(first, 9));
        let Reply::Held { bytes } = reply else { panic!("{reply:?}") };
        let held = ControlDatagram::Held { session: session(), first, oldest: 10, next: 100 };
        assert_eq!((ControlDatagram::parse(&out[..bytes]), bytes <= 60), (Ok(held), true));
    }
    assert_eq!(own.counters().refused.not_yet, 4);
}

#[test]
fn every_refusal_has_its_reason() {
    let mut own = replay(ReplayConfig { announce: false, ..ReplayConfig::default() });
    let mut reason = |datagram: &[u8]| ask(&mut own, "10.0.0.1:9", true, datagram).0;
    assert_eq!(reason(&request(100, 1)), Reply::Nothing(Refusal::NotYet));
    assert_eq!(reason(&request(9, 5)), Reply::Nothing(Refusal::Gone));
    assert_eq!(reason(&request(10, 1)[..19]), Reply::Nothing(Refusal::Malformed));
    let foreign = Request { session: Session::named("other").unwrap(), first: 10, count: 1 }.encode();
    assert_eq!(reason(&foreign), Reply::Nothing(Refusal::ForeignSession));
    assert_eq!(own.counters().totals.requests, 4);
    assert_eq!(own.counters().refused.gone, 1);
}

#[test]
fn flood_is_held_to_the_rates() {
    let rate = Rate { per_second: 1_000, burst: 5_000 };
    let mut own = replay(ReplayConfig { source_rate: rate, ..ReplayConfig::default() });
    for _ in 0..1_000 {
        ask(&mut own, "10.0.0.1:9", true, &request(20, 13));
    }
    assert_eq!(own.counters().totals.replies, 4, "four datagrams of 1346 bytes use up 5000");
    assert_eq!(own.counters().refused.source_rate, 996);
    let (reply, _) = ask(&mut own, "10.0.0.2:9", true, &request(20, 1));
    assert!(matches!(reply, Reply::Messages { .. }), "another source has its own bucket");
    let mut own = replay(ReplayConfig { global_rate: rate, ..ReplayConfig::default() });
    for n in 0..100 {
        ask(&mut own, &format!("10.0.0.{n}:9"), true, &request(20, 13));
    }
    assert_eq!((own.counters().totals.replies, own.counters().refused.global_rate), (4, 96));
}

#[test]
fn who_must_wait_is_told_so_once_proved() {
    let rate = Rate { per_second: 1_000, burst: 1_000 };
    let mut own = replay(ReplayConfig { source_rate: rate, ..ReplayConfig::default() });
    assert!(matches!(ask(&mut own, "10.0.0.1:9", true, &request(20, 13)).0, Reply::Messages { .. }));
    let (reply, out) = ask(&mut own, "10.0.0.1:9", true, &request(20, 13));
    let Reply::Later { bytes } = reply else { panic!("{reply:?}") };
    assert_eq!(
        ControlDatagram::parse(&out[..bytes]),
        Ok(ControlDatagram::Later { session: session(), first: 20 })
    );
    assert!(bytes <= UNPROVED_FACTOR * 20);
    let unproved = ask(&mut own, "10.0.0.1:9", false, &request(20, 13)).0;
    assert_eq!(unproved, Reply::Nothing(Refusal::SourceRate));
    let gone = ask(&mut own, "10.0.0.1:9", true, &request(9, 1)).0;
    assert_eq!(gone, Reply::Nothing(Refusal::SourceRate), "what is gone must not be promised");
}

#[test]
fn rates_grow_with_the_feed_unless_they_were_given() {
    for (source_grows, expected) in [(true, 10), (false, 1)] {
        let rate = Rate { per_second: 10_000, burst: 1_346 };
        let mut own = replay(ReplayConfig { source_rate: rate, source_grows, ..ReplayConfig::default() });
        own.note_live_rate(50_000);
        for _ in 0..20 {
            ask(&mut own, "10.0.0.1:9", true, &request(20, 13));
        }
        assert_eq!(
            own.counters().totals.replies,
            expected,
            "of 1346 bytes, from a burst of ten times as much"
        );
        own.note_live_rate(0);
        assert_eq!(own.global_rate, ReplayConfig::default().global_rate);
    }
}

/// Requests each of these messages natively. Returns the kinds of the packets in the answers.
fn ask_natively(replay: &mut Replay, firsts: &[u64]) -> Vec<Kind> {
    let (mut body, mut out, mut kinds) = ([0; MAX_ASK_BYTES], [0; 2_000], Vec::new());
    let entries = firsts.iter().map(|&first| Entry { first, count: 1, offset: 0, bytes: 0 });
    let size = ask::write(entries, &mut body);
    let ask = Ask::parse(&body[..size]).unwrap();
    let asked = AskedEntries { session: session(), ask, datagram_bytes: 100 };
    let mut read = |sequence: u64, _: u32, room: &mut [u8]| {
        room.get_mut(..100)?.fill(sequence as u8);
        Some(Piece { size: 100, total: 100, meta: Meta::default() })
    };
    let mut emit = |_: &mut [u8], (kind, _), _: (Session, u64, u16), _: usize| kinds.push(kind);
    let mut fetch = |entry: Entry| panic!("{entry:?} is in the ring");
    let mut exchange =
        Exchange { session: session(), read: &mut read, emit: &mut emit, fetch: &mut fetch, to_all: false };
    replay.handle_ask(0, asker("10.0.0.1:9", true), &asked, &mut |_| HELD, &mut exchange, &mut out);
    kinds
}

#[test]
fn native_receivers_are_told_as_much_as_plain_ones() {
    let (gone, later, held) = (Kind::Control(8), Kind::Control(9), Kind::Control(10));
    let source_rate = Rate { per_second: 1_000, burst: 200 };
    for (announce, expected) in [(true, vec![gone, held, Kind::Data, later]), (false, vec![Kind::Data; 2])] {
        let mut own = replay(ReplayConfig { announce, source_rate, ..ReplayConfig::default() });
        assert_eq!(ask_natively(&mut own, &[9, 100, 20, 21, 22]), expected, "announce = {announce}");
        let refused = own.counters().refused;
        assert_eq!([refused.gone, refused.not_yet, refused.source_rate], [1; 3]);
    }
}

/// Requests messages of the journal. `place` says where the server can read them.
fn ask_past(replay: &mut Replay, proved: bool, place: Place) -> (Reply, Vec<u8>) {
    let mut out = [0; 2_000];
    let held = Held { place, is_backed: true, ..HELD };
    let read = |_: u64, room: &mut [u8]| room.get(..100).map(<[u8]>::len);
    let reply = replay.handle_request(
        0,
        asker("10.0.0.1:9", proved),
        &request(20, 13),
        holding(held),
        &mut out,
        read,
    );
    (reply, out.to_vec())
}

#[test]
fn what_the_journal_has_is_fetched_or_promised_to_who_has_proved_his_address() {
    let mut own = replay(ReplayConfig::default());
    assert_eq!(ask_past(&mut own, true, Place::Disk).0, Reply::Fetch);
    assert_eq!(ask_past(&mut own, false, Place::Disk).0, Reply::Nothing(Refusal::Unproved));
    let (reply, out) = ask_past(&mut own, true, Place::Busy);
    let Reply::Later { bytes } = reply else { panic!("{reply:?}") };
    let later = ControlDatagram::Later { session: session(), first: 20 };
    assert_eq!(ControlDatagram::parse(&out[..bytes]), Ok(later));
    assert!(matches!(ask_past(&mut own, true, Place::Shelf).0, Reply::Messages { .. }));
    assert!(matches!(ask_past(&mut own, true, Place::Ring).0, Reply::Messages { .. }));
    let counters = own.counters();
    assert_eq!((counters.totals.replies, counters.journal.replies, counters.journal.messages), (2, 1, 13));
    assert_eq!((counters.totals.requests, counters.refused.journal_busy), (5, 1));
    // If the ring overwrites a message just before it is read, the journal has the message.
    let held = Held { is_backed: true, ..HELD };
    let from = asker("10.0.0.1:9", true);
    let reply = own.handle_request(0, from, &request(20, 13), holding(held), &mut [0; 2_000], |_, _| None);
    assert_eq!(reply, Reply::Fetch);
}

#[test]
fn the_past_leaves_evenly_and_leaves_room_for_what_the_ring_has() {
    let global_rate = Rate { per_second: 1_000_000, burst: 10_000 };
    let mut own = replay(ReplayConfig { global_rate, ..ReplayConfig::default() });
    let later = |reply: &Reply| matches!(reply, Reply::Later { .. });
    let replies: Vec<Reply> = (0..10).map(|_| ask_past(&mut own, true, Place::Shelf).0).collect();
    assert_eq!(replies.iter().filter(|reply| !later(reply)).count(), 2, "of 1346 bytes, in 2 ms");
    assert!(later(&ask_past(&mut own, true, Place::Disk).0), "nobody waits for what may not be sent");
    let replies: Vec<Reply> = (0..10).map(|_| ask_past(&mut own, true, Place::Ring).0).collect();
    assert_eq!(replies.iter().filter(|reply| !later(reply)).count(), 6, "10000 bytes in all");
}
