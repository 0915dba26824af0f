//! The last message before a silence is lost. Only heartbeats show that it existed.

use shmcast::{Publisher, Subscriber};
use shmcast_bridge::egress::{Egress, EgressOptions};
use shmcast_bridge::ingress::{Ingress, IngressOptions};
use shmcast_bridge::proto::wire::{Body, Downstream};
use shmcast_bridge::spec::{BridgeSpec, LineSpec, ReceiveSpec, RepairSpec, SendSpec};
use shmcast_testkit::place::own_address;
use shmcast_testkit::turn::turn;
use shmcast_testkit::{number, wait_for};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Forwards packets, except those with messages. Returns, for each lost message, the time until a heartbeat showed it.
fn lose_all_messages(from: &UdpSocket, to: SocketAddr, stop: &AtomicBool) -> Vec<Duration> {
    from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (mut bytes, mut lost, mut noticed) = ([0; 2_048], None, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let Ok(size) = from.recv(&mut bytes) else { continue };
        match Downstream::parse(&bytes[..size]).unwrap().body {
            Body::Fragment(fragment) => panic!("a plain packet with {fragment:?}"),
            Body::Messages(messages) => lost = Some((messages.end(), Instant::now())),
            Body::Heartbeat | Body::End => {
                let next = Downstream::parse(&bytes[..size]).unwrap().sequence;
                noticed.extend(lost.take_if(|(end, _)| next >= *end).map(|(_, at)| at.elapsed()));
                from.send_to(&bytes[..size], to).unwrap();
            }
        }
    }
    noticed
}

#[test]
fn a_lost_tail_is_noticed_by_heartbeats_and_mended() {
    let _turn = turn();
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut publisher =
        Publisher::builder("t").dir(a.path()).capacity(1 << 20).max_message(1_000).open().unwrap();
    let relay = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sent_to = relay.local_addr().unwrap();
    let line = |group| vec![LineSpec::to(group)];
    let mut repair = RepairSpec::new("127.0.0.1:0".parse().unwrap());
    repair.allow = vec!["127.0.0.1".parse().unwrap()];
    let send = SendSpec { repair: Some(repair), ..SendSpec::default() };
    let spec = BridgeSpec { send: Some(send), lines: line(sent_to), ..BridgeSpec::new("t") };
    let egress =
        Egress::start(&spec, Subscriber::builder("t").dir(a.path()), EgressOptions::default()).unwrap();
    let arrives_at = own_address();
    let servers = vec![egress.repair_address().unwrap()];
    let receive = ReceiveSpec { servers, from: Some(1), ..ReceiveSpec::default() };
    let spec = BridgeSpec { receive: Some(receive), lines: line(arrives_at), ..BridgeSpec::new("t") };
    let channel = Publisher::builder("t").dir(b.path()).capacity(1 << 20).max_message(1_000);
    let ingress = Ingress::start(&spec, channel, IngressOptions::default()).unwrap();
    wait_for("the lease", || (ingress.counters().host.leases_held == 1).then_some(()));
    let rounds: u64 = number("SHMCAST_TAILS", 50);
    let stop = AtomicBool::new(false);
    let mut noticed = std::thread::scope(|scope| {
        let relaying = scope.spawn(|| lose_all_messages(&relay, arrives_at, &stop));
        for round in 1..=rounds {
            publisher.publish(&round.to_le_bytes()).unwrap();
            wait_for("the lost message", || {
                (ingress.counters().host.messages_published == round).then_some(())
            });
        }
        stop.store(true, Ordering::Relaxed);
        relaying.join().unwrap()
    });
    noticed.sort_unstable();
    let at = |share: usize| noticed[(noticed.len() - 1) * share / 100];
    eprintln!(
        "a lost tail was noticed after p50 {:?}, p90 {:?}, max {:?}, {} samples; mended {} after that",
        at(50),
        at(90),
        at(100),
        noticed.len(),
        serde_json::to_string(&shmcast_bridge::status::Latency::from(&ingress.latencies().recovery)).unwrap(),
    );
    assert_eq!(noticed.len() as u64, rounds);
    let counters = ingress.counters();
    assert_eq!((counters.host.recovered_by_servers, counters.host.messages_missing), (rounds, 0));
}
