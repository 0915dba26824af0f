//! Unicast leases and what they are to keep out, on the loopback interface of this very process.

use super::hosts::{turn, wait_for};
use super::roles::{LONGEST, make_channel, write_message};
use nix::sys::socket::{setsockopt, sockopt};
use shmcast::{Event, Publisher, Start, Subscriber};
use shmcast_daemon::bridge::egress::{Egress, EgressOptions};
use shmcast_daemon::bridge::ingress::{Ingress, IngressOptions};
use shmcast_daemon::bridge::proto::control::{CONTROL_MAX_BYTES, Control};
use shmcast_daemon::bridge::proto::wire::Request;
use shmcast_daemon::bridge::spec::{BridgeSpec, ReceiveSpec, RepairSpec, SendSpec};
use std::net::{SocketAddrV4, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn sending(dir: &Path, change: impl FnOnce(&mut RepairSpec)) -> Egress {
    let mut repair = RepairSpec::new("127.0.0.1:0".parse().unwrap());
    repair.allow = vec!["127.0.0.1".parse().unwrap()];
    change(&mut repair);
    let send = SendSpec { repair: Some(repair), ..SendSpec::default() };
    let spec = BridgeSpec { send: Some(send), ..BridgeSpec::new("t") };
    Egress::start(&spec, Subscriber::builder("t").dir(dir), EgressOptions::default()).unwrap()
}

fn receiving(dir: &Path, server: SocketAddrV4) -> Ingress {
    let receive = ReceiveSpec { servers: vec![server], unicast: true, ..ReceiveSpec::default() };
    let spec = BridgeSpec { receive: Some(receive), ..BridgeSpec::new("t") };
    let channel = Publisher::builder("t").dir(dir).capacity(1 << 20).max_message(LONGEST as u64);
    Ingress::start(&spec, channel, IngressOptions::default()).unwrap()
}

fn publish(publisher: &mut Publisher, count: u64) {
    let mut buffer = [0; LONGEST];
    for _ in 0..count {
        let size = write_message(publisher.next_sequence(), &mut buffer);
        publisher.publish(&buffer[..size]).unwrap();
    }
}

#[test]
fn a_lease_is_renewed_given_back_and_runs_out() {
    let _turn = turn();
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut publisher = make_channel(a.path());
    let egress = sending(a.path(), |repair| repair.lease_s = 1);
    let server = egress.repair_address().unwrap();
    let leases = || egress.repair_counters().leases;
    let mut ingress = receiving(b.path(), server);
    // One for the feed, one for requests.
    wait_for("both leases", || (leases().held == 2).then_some(()));
    wait_for("renewals past the first second", || (leases().renewed >= 8).then_some(()));
    publish(&mut publisher, 100);
    wait_for("the messages", || (ingress.counters().messages_published == 100).then_some(()));
    assert_eq!((leases().expired, leases().granted), (0, 2));

    ingress.stop();
    ingress.join();
    wait_for("the leases' return", || (leases().held == 0).then_some(()));
    assert_eq!((leases().released, leases().expired), (2, 0));
    // What was on its way when the leases came back is shown after a moment.
    std::thread::sleep(Duration::from_millis(100));
    let sent = egress.counters().datagrams_sent;
    publish(&mut publisher, 100);
    wait_for("the egress", || (egress.counters().messages == 200).then_some(()));
    assert_eq!(egress.counters().datagrams_sent, sent, "somebody without a lease was sent to");

    // One that takes a lease and is never heard of again.
    let (silent, mut out) = (client(), [0; CONTROL_MAX_BYTES]);
    let size = Control::Hello { nonce: 1 }.encode(&mut out);
    silent.send_to(&out[..size], server).unwrap();
    let cookie = match answer(&silent).map(|bytes| Control::parse(&bytes)) {
        Some(Ok(Control::Cookie { nonce: 1, cookie })) => cookie,
        other => panic!("{other:?}"),
    };
    let size = Control::Subscribe { nonce: 2, cookie, live: true, lease_ms: 300 }.encode(&mut out);
    silent.send_to(&out[..size], server).unwrap();
    assert!(matches!(answer(&silent).map(|bytes| Control::parse(&bytes)), Some(Ok(Control::Granted { .. }))));
    wait_for("the lease's end", || (leases().expired == 1).then_some(()));
}

fn client() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

fn answer(socket: &UdpSocket) -> Option<Vec<u8>> {
    let mut bytes = [0; 2_048];
    socket.recv(&mut bytes).ok().map(|size| bytes[..size].to_vec())
}

#[test]
fn who_is_not_allowed_draws_nothing_and_who_is_unproved_three_times_at_most() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = make_channel(dir.path());
    let egress = sending(dir.path(), |_| {});
    publisher.publish(b"short").unwrap();
    publish(&mut publisher, 20);
    wait_for("the egress", || (egress.counters().messages == 21).then_some(()));
    let (server, session) = (egress.repair_address().unwrap(), egress.life().session().unwrap());
    let request = |first, count| Request { session, first, count }.encode();

    let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
    stranger.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut out = [0; CONTROL_MAX_BYTES];
    let size = Control::Hello { nonce: 1 }.encode(&mut out);
    stranger.send_to(&request(1, 1), server).unwrap();
    stranger.send_to(&out[..size], server).unwrap();
    assert_eq!(answer(&stranger), None);
    wait_for("the refusals", || {
        let counters = egress.repair_counters();
        (counters.refused.not_allowed == 1 && counters.leases.not_allowed == 1).then_some(())
    });

    // "short" fits three times twenty bytes; nothing more may.
    let unproved = client();
    unproved.send_to(&request(1, 20), server).unwrap();
    let drawn = answer(&unproved).unwrap();
    assert!(drawn.len() <= 60 && drawn.ends_with(b"short"), "{} B", drawn.len());
}

#[test]
fn a_flood_of_nonsense_costs_no_message() {
    let _turn = turn();
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut publisher = make_channel(a.path());
    let egress = sending(a.path(), |_| {});
    let server = egress.repair_address().unwrap();
    let ingress = receiving(b.path(), server);
    wait_for("both leases", || (egress.repair_counters().leases.held == 2).then_some(()));
    let mut reader = Subscriber::builder("t").dir(b.path()).start(Start::Oldest).open().unwrap();
    let flood = super::hosts::number("SHMCAST_FLOOD", 50_000);
    let stop = AtomicBool::new(false);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut expected = 1;
    let mut read = || {
        while let Some(event) = reader.try_recv().unwrap() {
            match event {
                Event::Message(message) => {
                    assert_eq!(message.sequence, expected);
                    expected += 1;
                }
                Event::NewSession { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        expected
    };
    let next = std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            setsockopt(&socket, sockopt::SndBuf, &(1 << 16)).unwrap();
            for _ in 0..flood {
                let bytes: Vec<u8> = (0..rng.usize(0..80)).map(|_| rng.u8(..)).collect();
                let _ = socket.send_to(&bytes, server);
            }
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) {
            publish(&mut publisher, 10);
            read();
            std::thread::sleep(Duration::from_millis(1));
        }
        publisher.next_sequence()
    });
    wait_for("the last message", || (read() == next).then_some(()));
    let counters = wait_for("the flood's end", || {
        let counters = egress.repair_counters();
        (counters.datagrams + counters.kernel_drops >= flood).then_some(counters)
    });
    assert!(counters.refused.malformed > 0 && ingress.counters().messages_missing == 0, "{counters:?}");
}
