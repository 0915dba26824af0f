//! Tests that pass arbitrary bytes to every parser, and arbitrary scripts of packets to a receiver. A test fails if the code panics or uses
//! too much memory, or if deliveries are out of order.

use proptest::prelude::*;
use shmcast_testkit::number;

use super::control::{CONTROL_MAX_BYTES, ControlDatagram};
use super::gap::{GapConfig, GapPolicy};
use super::lease::{LeaseConfig, LeaseServer};
use super::lease_client::LeaseClient;
use super::limit::AllowList;
use super::receiver::{Delivery, Follow, Join, Origin, Receiver, ReceiverConfig};
use super::replay::{Asker, Held, Holding, Replay, ReplayConfig};
use super::sender::{Sender, SenderConfig};
use super::session::Session;
use super::sim::check::check_backlog;
use super::wire::{Body, Downstream, PacketWriter, Request, end_of_session, heartbeat};

fn session(epoch: u64) -> Session {
    Session::of_channel("FUZZ", epoch).unwrap()
}

/// Makes arbitrary bytes, and bytes that are almost a valid datagram.
fn datagram() -> impl Strategy<Value = Vec<u8>> {
    let sequence = prop_oneof![0..200u64, any::<u64>(), Just(u64::MAX), Just(u64::MAX - 1)];
    let count = prop_oneof![0..20u16, Just(0xFFFF), Just(0xFFFE), any::<u16>()];
    let blocks = prop::collection::vec(0..40u8, 0..60);
    let nearly = (0..4u64, sequence, count, blocks).prop_map(|(epoch, sequence, count, blocks)| {
        let mut bytes = session(epoch).as_bytes().to_vec();
        bytes.extend(sequence.to_be_bytes());
        bytes.extend(count.to_be_bytes());
        bytes.extend(blocks);
        bytes
    });
    let control = (0..17u8, prop::collection::vec(any::<u8>(), 0..50)).prop_map(|(kind, body)| {
        let mut bytes = vec![0xFF, b'S', b'H', b'M', b'C', 1, kind, 0xFF];
        bytes.extend([0; 12]);
        bytes.extend(body);
        bytes
    });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..100), nearly, control]
}

/// One step of a receiver's script.
#[derive(Debug, Clone)]
enum Step {
    Raw(Origin, Vec<u8>),
    Packet { origin: Origin, epoch: u64, first: u64, count: u64, size: usize },
    Heartbeat { origin: Origin, epoch: u64, next: u64, end: bool },
    Gone { server: usize, first: u64, oldest: u64 },
    Later { server: usize, lag: usize },
    Held { server: usize, lag: usize, before: u64 },
    Wait(u64),
    Answer { lag: usize, extra: u64 },
}

fn origin() -> impl Strategy<Value = Origin> {
    prop_oneof![
        (0..6usize).prop_map(Origin::Line),
        (0..10usize).prop_map(Origin::Server),
        (0..10usize).prop_map(Origin::Repair)
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let near = || prop_oneof![9 => 1..400u64, 1 => any::<u64>().prop_map(|n| n.max(1))];
    prop_oneof![
        1 => (origin(), datagram()).prop_map(|(origin, bytes)| Step::Raw(origin, bytes)),
        8 => (origin(), 0..3u64, near(), 1..12u64, 0..100usize).prop_map(|(origin, epoch, first, count, size)| {
            Step::Packet { origin, epoch, first, count, size }
        }),
        2 => (origin(), 0..3u64, near(), any::<bool>())
            .prop_map(|(origin, epoch, next, end)| Step::Heartbeat { origin, epoch, next, end }),
        2 => (0..10usize, near(), near()).prop_map(|(server, first, oldest)| Step::Gone { server, first, oldest }),
        1 => (0..10usize, 0..5usize).prop_map(|(server, lag)| Step::Later { server, lag }),
        2 => (0..10usize, 0..5usize, 0..30u64)
            .prop_map(|(server, lag, before)| Step::Held { server, lag, before }),
        3 => prop_oneof![0..100_000u64, 0..100_000_000u64, any::<u64>()].prop_map(Step::Wait),
        4 => (0..5usize, 0..3u64).prop_map(|(lag, extra)| Step::Answer { lag, extra }),
    ]
}

fn packet(epoch: u64, first: u64, count: u64, size: usize) -> Vec<u8> {
    let mut buffer = vec![0; 1_400];
    let mut packet = PacketWriter::new(first);
    for sequence in first..first.saturating_add(count) {
        let data = [sequence as u8; 100];
        packet.push(&mut buffer, &data[..size]);
    }
    let bytes = packet.finish(&mut buffer, session(epoch)).unwrap_or(0);
    buffer.truncate(bytes);
    buffer
}

/// Runs a script, and checks the order of deliveries and all bounds after every step.
fn run(config: ReceiverConfig, script: &[Step]) {
    let mut receiver = Receiver::new(config);
    let (mut now_ns, mut next, mut asked) = (0u64, None, Vec::new());
    for step in script {
        let mut sink = |delivery: Delivery<'_>| check_order(&mut next, delivery);
        if let Step::Wait(wait_ns) = step {
            now_ns = now_ns.saturating_add(*wait_ns);
        }
        play(&mut receiver, now_ns, step, &asked, &mut sink);
        receiver.handle_timeout(now_ns, &mut sink);
        asked.extend(asks(&config, &mut receiver, now_ns));
        let requests = config.gaps.max_requests.max(1);
        check_backlog(&receiver, &config, config.gaps.max_holes.max(2 * requests) + requests + 8);
        assert!(receiver.next_deadline().is_none_or(|at_ns| at_ns >= now_ns || now_ns == u64::MAX));
    }
}

/// A request, and the number of the server to which it is sent.
type Asked = (usize, [u8; 20]);

/// Checks that deliveries are in order, and that each message is delivered once.
fn check_order(next: &mut Option<u64>, delivery: Delivery<'_>) {
    *next = match delivery {
        Delivery::NewSession { next: first, .. } => Some(first),
        Delivery::Message { sequence, .. } => {
            assert!(next.is_none_or(|next| next == sequence));
            Some(sequence + 1)
        }
        Delivery::Gap { missing } => {
            assert!(!missing.is_empty() && next.is_none_or(|next| next == missing.start));
            Some(missing.end)
        }
        Delivery::End { next: end, .. } => {
            assert!(next.is_none_or(|next| next == end));
            *next
        }
    };
}

/// Passes the step's datagram to the receiver. If the step is a server's answer, it answers one of the requests in `asked`.
fn play(
    receiver: &mut Receiver,
    now_ns: u64,
    step: &Step,
    asked: &[Asked],
    sink: &mut impl FnMut(Delivery<'_>),
) {
    let own = receiver.session().unwrap_or(session(0));
    let earlier = |lag: usize| {
        let (server, request) = asked.iter().rev().nth(lag)?;
        Some((*server, Request::parse(request).expect("the receiver asks in the right form")))
    };
    let first_asked = |lag: usize| earlier(lag).map_or(1, |(_, request)| request.first);
    match step {
        Step::Raw(origin, bytes) => receiver.handle_datagram(now_ns, *origin, bytes, sink),
        Step::Packet { origin, epoch, first, count, size } => {
            receiver.handle_datagram(now_ns, *origin, &packet(*epoch, *first, *count, *size), sink);
        }
        Step::Heartbeat { origin, epoch, next, end } => {
            let beat = if *end { end_of_session } else { heartbeat }(session(*epoch), *next);
            receiver.handle_datagram(now_ns, *origin, &beat, sink);
        }
        Step::Gone { server, first, oldest } => {
            receiver.handle_gone(now_ns, *server, (own, *first, *oldest), sink);
        }
        Step::Later { server, lag } => {
            receiver.handle_later(now_ns, *server, (own, first_asked(*lag)));
        }
        Step::Held { server, lag, before } => {
            let first = first_asked(*lag);
            let next = first.saturating_sub(*before).max(1);
            receiver.handle_held(now_ns, *server, (own, first, next), sink);
        }
        Step::Wait(_) => {}
        Step::Answer { lag, extra } => {
            if let Some((server, Request { session, first, count })) = earlier(*lag) {
                let count = u64::from(count).min(12) + extra;
                let bytes = packet(session.epoch().unwrap_or(0), first, count, 50);
                receiver.handle_datagram(now_ns, Origin::Server(server), &bytes, sink);
            }
        }
    }
}

/// Returns the requests that the receiver makes now. Checks that they are not too many, and that each is valid.
fn asks(config: &ReceiverConfig, receiver: &mut Receiver, now_ns: u64) -> Vec<Asked> {
    // The receiver makes at most `max_requests` requests for confirmed messages, and requests for claims can double this number. If the
    // script waits for a very long time, test requests to doubted servers can double it again.
    let limit = 4 * config.gaps.max_requests.max(1);
    let asks: Vec<_> = std::iter::from_fn(|| receiver.poll_request(now_ns)).take(limit + 1).collect();
    assert!(asks.len() <= limit, "more requests than the window");
    for (server, request) in &asks {
        assert!(*server < config.gaps.servers && Request::parse(request).is_ok());
    }
    asks
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(number("PROPTEST_CASES", 170)) })]

    #[test]
    fn no_datagram_makes_a_parser_panic(bytes in datagram()) {
        if let Ok(Downstream { body: Body::Messages(messages), .. }) = Downstream::parse(&bytes) {
            prop_assert_eq!(messages.iter().count() as u64, messages.count());
            let data: usize = messages.iter().map(|(_, data)| data.len() + 2).sum();
            prop_assert_eq!(data, messages.blocks().len());
        }
        if let Ok(request) = Request::parse(&bytes) {
            prop_assert_eq!(&request.encode()[..], &bytes[..]);
        }
        if let Ok(control) = ControlDatagram::parse(&bytes) {
            let mut out = [0; CONTROL_MAX_BYTES];
            let size = control.encode(&mut out);
            prop_assert_eq!(&out[..size], &bytes[..]);
        }
    }

    #[test]
    fn no_datagram_makes_a_server_panic_or_talk_too_much(
        all in prop::collection::vec((datagram(), any::<u32>(), any::<bool>()), 1..20),
    ) {
        let allow = AllowList::new(vec!["0.0.0.0/1".parse().unwrap()]);
        let mut replay = Replay::new(ReplayConfig { allow: allow.clone(), ..ReplayConfig::default() });
        let mut leases = LeaseServer::new(LeaseConfig { allow: allow.clone(), ..LeaseConfig::default() }, [1; 16], 1);
        let mut client = LeaseClient::new(0, true, 0, 1);
        for (now_ns, (bytes, source, proved)) in all.into_iter().enumerate() {
            let (now_ns, from) = (now_ns as u64, std::net::SocketAddr::from((source.to_be_bytes(), 9)));
            let held = Held::of_ring(5, 150);
            let mut out = [0; 1_400];
            let read = |sequence: u64, room: &mut [u8]| (room.len() >= 30 && sequence < 150).then_some(30);
            let asker = Asker { from, is_proved: proved, has_waited: false };
            let holding = Holding { session: session(1), held };
            let reply = replay.handle_request(now_ns, asker, &bytes, holding, &mut out, read);
            let drawn = reply.bytes().unwrap_or(0);
            let leased = leases.handle_datagram(now_ns, from, &bytes, &mut [0; CONTROL_MAX_BYTES]).unwrap_or(0);
            let limit = if !allow.allows(from.ip()) { 0 } else if proved { 1_400 } else { 3 * bytes.len() };
            prop_assert!(drawn <= limit && leased <= limit.min(3 * bytes.len()));
            if let Ok(control) = ControlDatagram::parse(&bytes) {
                client.handle_control(now_ns, &control);
            }
            client.poll_transmit(now_ns, &mut [0; CONTROL_MAX_BYTES]);
        }
    }

    #[test]
    fn no_script_breaks_a_receiver(
        script in prop::collection::vec(step(), 1..200),
        (lines, servers, packets, requests, holes) in (1..4usize, 0..4usize, 1..40usize, 1..20usize, 1..40usize),
        (policy, join) in (0..3u8, 0..3u8),
    ) {
        let policy = match policy {
            0 => GapPolicy::Block,
            1 => GapPolicy::Skip { give_up_ns: 1_000_000 },
            _ => GapPolicy::Skip { give_up_ns: u64::MAX },
        };
        let join = match join {
            0 => Join::FirstSeen,
            1 => Join::From(1),
            _ => Join::Resume { session: session(0), next: 7 },
        };
        let gaps = GapConfig { servers, policy, max_requests: requests, max_holes: holes, ..GapConfig::default() };
        let follow = if lines == 1 { Follow::First { silence_ns: 1_000_000 } } else { Follow::Channel(*b"FUZZ") };
        let config = ReceiverConfig {
            join,
            lines,
            max_early_packets: packets,
            max_early_bytes: packets * 700,
            gaps,
            ..ReceiverConfig::following(follow)
        };
        run(config, &script);
    }

    #[test]
    fn no_order_of_calls_breaks_a_sender(
        calls in prop::collection::vec((0..6u8, 0..300usize, 0..3u64), 1..200),
        payload_bytes in 0..400usize,
        batch in 0..4usize,
    ) {
        let config = SenderConfig { payload_bytes, batch, linger_ns: 1_000_000 };
        let mut sender = Sender::new(config, session(1), 0, 0);
        for (now_ns, (call, size, skip)) in calls.into_iter().enumerate() {
            let now_ns = now_ns as u64 * 100_000;
            match call {
                0..=2 => drop(sender.push(sender.next() + skip, &vec![1; size])),
                3 => sender.close(),
                4 => sender.clear(now_ns),
                _ => drop(sender.poll_idle(now_ns)),
            }
            for datagram in sender.datagrams() {
                prop_assert!(Downstream::parse(datagram).is_ok());
            }
        }
    }
}
