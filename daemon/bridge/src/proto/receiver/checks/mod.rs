use super::super::wire::{PacketWriter, end_of_session, heartbeat};
use super::super::{MICROSECOND_NS, MILLISECOND_NS, SECOND_NS};
use super::*;

mod belief;

const LINE: Origin = Origin::Line(0);
const US: u64 = MICROSECOND_NS;
const MS: u64 = MILLISECOND_NS;

fn session(epoch: u64) -> Session {
    Session::of_channel("TEST", epoch).unwrap()
}

fn packet(session: Session, first: u64, count: u64) -> Vec<u8> {
    let mut buffer = [0; 1_400];
    let mut packet = PacketWriter::new(first);
    (first..first + count).for_each(|sequence| assert!(packet.push(&mut buffer, &sequence.to_be_bytes())));
    let bytes = packet.finish(&mut buffer, session).unwrap();
    buffer[..bytes].to_vec()
}

fn config() -> ReceiverConfig {
    ReceiverConfig::following(Follow::Channel(*b"TEST"))
}

/// A receiver, and its deliveries as texts: `+epoch@next`, sequences, `gap a..b`, `end n`.
struct Rig {
    receiver: Receiver,
    out: Vec<String>,
}

impl Rig {
    fn new(config: ReceiverConfig) -> Rig {
        Rig { receiver: Receiver::new(config), out: Vec::new() }
    }

    fn put(&mut self, now_ns: u64, origin: Origin, datagram: &[u8]) -> Vec<String> {
        let out = &mut self.out;
        self.receiver.handle_datagram(now_ns, origin, datagram, &mut |delivery| out.push(text(delivery)));
        std::mem::take(out)
    }

    /// Begins a session with this packet, and sends heartbeats until the receiver follows the session.
    fn announce(&mut self, now_ns: u64, session: Session, first: &[u8]) -> Vec<String> {
        let next = Downstream::parse(first).unwrap().sequence + 1;
        assert!(self.put(now_ns, LINE, first).is_empty());
        assert!(self.put(now_ns + MS, LINE, &heartbeat(session, next)).is_empty());
        self.put(now_ns + 10 * MS, LINE, &heartbeat(session, next))
    }

    fn wait(&mut self, now_ns: u64) -> Vec<String> {
        let out = &mut self.out;
        self.receiver.handle_timeout(now_ns, &mut |delivery| out.push(text(delivery)));
        std::mem::take(out)
    }

    fn requests(&mut self, now_ns: u64) -> Vec<(u64, u16)> {
        let request = |(_, bytes): (usize, [u8; REQUEST_BYTES])| Request::parse(&bytes).unwrap();
        let all = std::iter::from_fn(|| self.receiver.poll_request(now_ns)).map(request);
        all.map(|request| (request.first, request.count)).collect()
    }
}

fn text(delivery: Delivery<'_>) -> String {
    match delivery {
        Delivery::NewSession { session, next, .. } => {
            format!("+{}@{next}", session.epoch().unwrap_or(0))
        }
        Delivery::Message { sequence, data, .. } => {
            assert_eq!(data, sequence.to_be_bytes());
            sequence.to_string()
        }
        Delivery::Gap { missing } => format!("gap {missing:?}"),
        Delivery::End { next, .. } => format!("end {next}"),
    }
}

#[test]
fn in_order_data_passes_and_leaves_no_trace() {
    let mut rig = Rig::new(config());
    assert_eq!(rig.put(0, LINE, &packet(session(1), 5, 2)), ["+1@5", "5", "6"]);
    assert_eq!(rig.put(1, LINE, &packet(session(1), 7, 1)), ["7"]);
    assert_eq!(rig.receiver.backlog().1.reserved_bytes(), 0, "the store was not touched");
    assert_eq!(rig.receiver.next_deadline(), None);
}

#[test]
fn first_copy_wins_whatever_the_line() {
    let mut rig = Rig::new(ReceiverConfig { lines: 2, ..config() });
    rig.put(0, LINE, &packet(session(1), 1, 2));
    assert_eq!(rig.put(1, Origin::Line(1), &packet(session(1), 1, 3)), ["3"]);
    assert!(rig.put(2, LINE, &packet(session(1), 3, 1)).is_empty());
    let counters = rig.receiver.counters();
    assert_eq!((counters.lines[0].messages_first, counters.lines[1].messages_first), (2, 1));
    assert_eq!((counters.totals.messages_duplicate, counters.totals.messages_delivered), (3, 3));
}

#[test]
fn line_b_fills_what_line_a_lost_without_a_request() {
    let mut rig = Rig::new(ReceiverConfig { lines: 2, ..config() });
    rig.put(0, LINE, &packet(session(1), 1, 1));
    rig.put(1, LINE, &packet(session(1), 3, 1));
    assert_eq!(rig.put(20 * US, Origin::Line(1), &packet(session(1), 1, 2)), ["2", "3"]);
    assert_eq!((rig.requests(60 * US), rig.receiver.next()), (vec![], 4));
}

#[test]
fn overlapping_packets_deliver_each_message_once() {
    let mut rig = Rig::new(config());
    rig.put(0, LINE, &packet(session(1), 1, 1));
    assert!(rig.put(1, LINE, &packet(session(1), 10, 5)).is_empty());
    assert!(rig.put(1, LINE, &packet(session(1), 8, 4)).is_empty());
    assert!(rig.put(1, LINE, &packet(session(1), 9, 9)).is_empty());
    let expected: Vec<_> = (2..18).map(|n| n.to_string()).collect();
    assert_eq!(rig.put(2, LINE, &packet(session(1), 2, 7)), expected);
    assert!(rig.receiver.backlog().0.is_empty() && rig.receiver.backlog().1.is_empty());
}

#[test]
fn lost_tail_is_noticed_by_the_heartbeat() {
    let mut rig = Rig::new(config());
    rig.put(0, LINE, &packet(session(1), 1, 1));
    rig.put(250 * US, LINE, &heartbeat(session(1), 3));
    rig.wait(300 * US);
    assert_eq!(rig.requests(300 * US), [(2, 1)]);
    assert_eq!(rig.put(400 * US, Origin::Server(0), &packet(session(1), 2, 1)), ["2"]);
    assert_eq!(rig.receiver.counters().servers[0].messages_recovered, 1);
}

#[test]
fn late_joiner_starts_where_it_was_told() {
    let mut rig = Rig::new(config());
    assert_eq!(rig.put(0, LINE, &heartbeat(session(1), 9)), ["+1@9"]);
    assert_eq!(rig.put(0, LINE, &packet(session(1), 9, 1)), ["9"]);
    let mut rig = Rig::new(ReceiverConfig { join: Join::From(4), ..config() });
    assert_eq!(rig.put(0, LINE, &packet(session(1), 9, 1)), ["+1@4"]);
    rig.wait(50 * US);
    assert_eq!(rig.requests(50 * US), [(4, 5)]);
    let mut rig = Rig::new(ReceiverConfig { join: Join::From(4), ..config() });
    assert_eq!(rig.put(0, LINE, &packet(session(1), 2, 4)), ["+1@4", "4", "5"]);
    let resume = Join::Resume { session: session(3), next: 7 };
    let mut rig = Rig::new(ReceiverConfig { join: resume, ..config() });
    assert_eq!(rig.put(0, LINE, &packet(session(3), 6, 2)), ["7"], "the same session goes on unannounced");
    let mut rig = Rig::new(ReceiverConfig { join: resume, ..config() });
    assert_eq!(rig.announce(0, session(4), &packet(session(4), 1, 1)), ["+4@1", "1"]);
}

#[test]
fn restarted_publisher_is_followed_and_what_it_left_is_told() {
    let mut rig = Rig::new(config());
    rig.put(0, LINE, &packet(session(1), 1, 1));
    rig.put(1, LINE, &packet(session(1), 4, 2));
    let out = rig.announce(2, session(2), &packet(session(2), 1, 1));
    assert_eq!(out, ["gap 2..4", "4", "5", "+2@1", "1"]);
    assert!(rig.put(30 * MS, LINE, &packet(session(1), 2, 2)).is_empty());
    assert_eq!(rig.receiver.counters().totals.packets_stale, 1);
}

#[test]
fn strangers_are_counted_not_followed() {
    let mut rig = Rig::new(config());
    rig.put(0, LINE, &packet(session(1), 1, 1));
    let stranger = Session::of_channel("ELSE", 9).unwrap();
    assert!(rig.put(1, LINE, &packet(stranger, 2, 1)).is_empty());
    assert!(
        rig.put(1, Origin::Server(0), &packet(session(2), 1, 1)).is_empty(),
        "servers introduce no session"
    );
    assert_eq!((rig.receiver.counters().totals.packets_foreign, rig.receiver.next()), (2, 2));
    let follow = Follow::First { silence_ns: SECOND_NS };
    let mut rig = Rig::new(ReceiverConfig { follow, ..config() });
    rig.put(0, LINE, &packet(session(9), 1, 1));
    assert!(rig.put(SECOND_NS - 1, LINE, &packet(stranger, 1, 1)).is_empty());
    rig.put(SECOND_NS - MS, LINE, &end_of_session(session(9), 2));
    assert_eq!(rig.put(SECOND_NS - 1, LINE, &end_of_session(session(9), 2)), ["end 2"]);
    let out = rig.announce(SECOND_NS, stranger, &packet(stranger, 1, 1));
    assert_eq!(out, ["+9@1", "1"], "the first session had ended");
}

#[test]
fn end_waits_for_what_is_missing_and_is_told_once() {
    let mut rig = Rig::new(config());
    rig.put(0, LINE, &packet(session(1), 1, 1));
    assert!(rig.put(1, LINE, &end_of_session(session(1), 3)).is_empty());
    assert!(rig.put(MS, LINE, &end_of_session(session(1), 3)).is_empty());
    assert_eq!(rig.put(MS, LINE, &packet(session(1), 2, 1)), ["2", "end 3"]);
    assert!(rig.put(2 * MS, LINE, &end_of_session(session(1), 3)).is_empty());
    assert_eq!(rig.put(3 * MS, LINE, &packet(session(1), 3, 1)), ["3"], "the publisher came back");
    assert!(rig.put(4 * MS, LINE, &end_of_session(session(1), 4)).is_empty());
    assert_eq!(rig.put(5 * MS, LINE, &end_of_session(session(1), 4)), ["end 4"]);
}

#[test]
fn one_wild_packet_does_not_skip_the_feed() {
    let mut rig = Rig::new(config());
    rig.put(0, LINE, &packet(session(1), 1, 1));
    assert!(rig.put(1, LINE, &heartbeat(session(1), 1 << 60)).is_empty());
    assert!(rig.put(1, LINE, &packet(session(1), 1 << 60, 1)).is_empty());
    assert_eq!(rig.put(2, LINE, &packet(session(1), 2, 1)), ["2"]);
    assert_eq!((rig.receiver.horizon(), rig.receiver.counters().totals.packets_implausible), (3, 2));
    for n in 0..3 {
        rig.put(3, LINE, &heartbeat(session(1), 10_000_000 + n));
    }
    assert_eq!(rig.receiver.horizon(), 3, "three at once are as good as one");
    rig.put(3 + MS, LINE, &heartbeat(session(1), 10_000_002));
    assert_eq!(rig.receiver.horizon(), 10_000_002, "those that agree over a while are believed");
}

/// The receiver never believes a packet whose sequence is above the highest possible sequence, even if several packets agree. The message
/// of such a packet could not be published here.
#[test]
fn packets_beyond_all_sequences_are_dropped_and_counted() {
    for first in [MAX_SEQUENCE, (1 << 62) - 1, u64::MAX - 8] {
        let mut rig = Rig::new(config());
        for n in 0..4 {
            assert!(rig.put(n, LINE, &packet(session(1), first, 1)).is_empty());
            assert!(rig.put(n, LINE, &heartbeat(session(1), first + 1)).is_empty());
            assert!(rig.put(n, LINE, &end_of_session(session(1), first + 1)).is_empty());
        }
        assert_eq!((rig.receiver.session(), rig.receiver.counters().totals.packets_implausible), (None, 12));
        assert_eq!(rig.put(9, LINE, &packet(session(1), 5, 1)), ["+1@5", "5"]);
    }
    let mut rig = Rig::new(config());
    let last = MAX_SEQUENCE - 1;
    assert_eq!(rig.put(0, LINE, &packet(session(1), last, 1)), [format!("+1@{last}"), last.to_string()]);
}

#[test]
fn full_store_refuses_and_recovers() {
    let mut rig = Rig::new(ReceiverConfig { max_early_packets: 4, ..config() });
    rig.receiver.note_rtt(0, 100 * US);
    rig.put(0, LINE, &packet(session(1), 1, 1));
    for n in 0..20 {
        rig.put(1, LINE, &packet(session(1), 3 + n, 1));
    }
    assert_eq!(
        (rig.receiver.backlog().1.packets(), rig.receiver.counters().totals.messages_refused),
        (3, 17)
    );
    assert_eq!(rig.put(2, LINE, &packet(session(1), 2, 1)), ["2", "3", "4", "5"]);
    rig.wait(100 * US);
    assert_eq!(rig.requests(100 * US).iter().map(|ask| u64::from(ask.1)).sum::<u64>(), 17);
}

#[test]
fn gap_is_told_exactly_when_the_ring_has_moved_on() {
    let mut rig = Rig::new(config());
    rig.put(0, LINE, &packet(session(1), 1, 1));
    rig.put(1, LINE, &packet(session(1), 8, 1));
    rig.wait(60 * US);
    assert_eq!(rig.requests(60 * US), [(2, 6)]);
    let mut out = Vec::new();
    rig.receiver.handle_gone(70 * US, 0, (session(1), 2, 5), &mut |delivery| out.push(text(delivery)));
    assert!(out.is_empty(), "one word may be forged");
    assert_eq!(rig.requests(70 * US), [(2, 3), (5, 3)]);
    rig.receiver.handle_gone(75 * US, 0, (session(1), 2, 5), &mut |delivery| out.push(text(delivery)));
    assert_eq!(out, ["gap 2..5"]);
    assert_eq!(rig.put(80 * US, Origin::Server(0), &packet(session(1), 5, 3)), ["5", "6", "7", "8"]);
    assert_eq!(rig.receiver.counters().totals.messages_expired, 3);
}
