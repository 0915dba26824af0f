//! An attacker on a line, who sends valid packets of every kind between the packets of the feed, one at a time.

use shmcast::{Event, Publisher, Start, Subscriber};
use shmcast_bridge::egress::{Egress, EgressOptions};
use shmcast_bridge::ingress::{Ingress, IngressOptions};
use shmcast_bridge::proto::session::{Session, tag_of};
use shmcast_bridge::proto::wire::{PacketWriter, end_of_session, heartbeat};
use shmcast_bridge::spec::{BridgeSpec, LineSpec, ReceiveSpec, RepairSpec, SendSpec};
use shmcast_testkit::place::own_address;
use shmcast_testkit::turn::turn;
use shmcast_testkit::{number, wait_for};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

fn data(session: Session, first: u64) -> Vec<u8> {
    let mut buffer = [0; 100];
    let mut packet = PacketWriter::new(first);
    assert!(packet.push(&mut buffer, b"never published"));
    let size = packet.finish(&mut buffer, session).unwrap();
    buffer[..size].to_vec()
}

fn forgeries(session: Session, next: u64) -> Vec<Vec<u8>> {
    let other = |epoch| Session::of_channel(&tag_of("t"), epoch).unwrap();
    let epoch = session.epoch().unwrap();
    vec![
        heartbeat(session, next + 10_000).to_vec(),
        heartbeat(session, next + (1 << 20)).to_vec(),
        end_of_session(session, next).to_vec(),
        end_of_session(session, next + 5_000).to_vec(),
        data(session, next + 5_000),
        data(session, next + (1 << 30)),
        data(other(epoch + 1_000), 1),
        heartbeat(other(epoch + 7), 1).to_vec(),
        data(other(epoch - 1), next),
        data(Session::named("stranger").unwrap(), 1),
    ]
}

fn none_costs_a_message(has_server: bool) {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let channel = |dir: &tempfile::TempDir| {
        Publisher::builder("t").dir(dir.path()).capacity(1 << 20).max_message(1_000)
    };
    let mut publisher = channel(&a).open().unwrap();
    let group = own_address();
    let line = vec![LineSpec::to(group)];
    let mut repair = RepairSpec::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    repair.allow = vec!["127.0.0.1".parse().unwrap()];
    let send = SendSpec { repair: Some(repair), ..SendSpec::default() };
    let spec = BridgeSpec { send: Some(send), lines: line.clone(), ..BridgeSpec::new("t") };
    let egress =
        Egress::start(&spec, Subscriber::builder("t").dir(a.path()), EgressOptions::default()).unwrap();
    let servers = if has_server { vec![egress.repair_address().unwrap()] } else { Vec::new() };
    let receive = ReceiveSpec { servers, from: Some(1), give_up_ms: 50, ..ReceiveSpec::default() };
    let spec = BridgeSpec { receive: Some(receive), lines: line, ..BridgeSpec::new("t") };
    let ingress = Ingress::start(&spec, channel(&b), IngressOptions::default()).unwrap();
    let session = wait_for("the session", || ingress.life().session());
    let mut reader = Subscriber::builder("t").dir(b.path()).start(Start::Oldest).open().unwrap();
    let forger = UdpSocket::bind("127.0.0.1:0").unwrap();
    // The test waits for each packet, so it sends far fewer packets than tests at full speed.
    let rounds: u64 = number("SHMCAST_FORGERIES", 300);
    for _ in 0..rounds.div_ceil(700) {
        for kind in 0..forgeries(session, 1).len() {
            forger.send_to(&forgeries(session, publisher.next_sequence())[kind], group).unwrap();
            // This is longer than the receiver waits for anything before it gives up.
            std::thread::sleep(Duration::from_millis(100));
            for _ in 0..10 {
                publisher.publish(&publisher.next_sequence().to_le_bytes()).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    let next = publisher.next_sequence();
    wait_for("the last message", || (ingress.counters().host.next_sequence == next).then_some(()));
    let mut expected = 1u64;
    while let Some(event) = reader.try_recv().unwrap() {
        match event {
            Event::Message(message) => {
                assert_eq!((message.sequence, message.payload), (expected, &expected.to_le_bytes()[..]));
                expected += 1;
            }
            Event::NewSession { .. } if expected == 1 => {}
            other => panic!("{other:?} before message {expected}"),
        }
    }
    let counters = ingress.counters();
    eprintln!(
        "{} messages; {} claims contradicted, {} packets stale, {} foreign, {} early, {} implausible",
        expected - 1,
        counters.feed.claims_contradicted,
        counters.feed.packets_stale,
        counters.feed.packets_foreign,
        counters.feed.packets_early,
        counters.feed.packets_implausible
    );
    assert_eq!((expected, counters.host.messages_missing, counters.feed.sessions), (next, 0, 1));
    assert!(counters.feed.claims_contradicted > 0 && counters.feed.packets_early > 0);
}

#[test]
fn no_single_forged_packet_costs_a_message_where_there_is_a_server() {
    let _turn = turn();
    none_costs_a_message(true);
}

#[test]
fn no_single_forged_packet_costs_a_message_where_there_is_none() {
    let _turn = turn();
    none_costs_a_message(false);
}
