//! Unicast leases and the clients that they must keep out, over the loopback interface.

use super::roles::{LONGEST, make_channel, write_message};
use nix::sys::socket::{setsockopt, sockopt};
use shmcast::{Event, Publisher, Start, Subscriber};
use shmcast_bridge::egress::{Egress, EgressOptions};
use shmcast_bridge::ingress::{Ingress, IngressOptions};
use shmcast_bridge::proto::control::{CONTROL_MAX_BYTES, ControlDatagram};
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::Request;
use shmcast_bridge::spec::{BridgeSpec, LineSpec, ReceiveSpec, RepairSpec, SendSpec};
use shmcast_testkit::turn::turn;
use shmcast_testkit::{number, wait_for, wait_until};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn sending(dir: &Path, change: impl FnOnce(&mut RepairSpec)) -> Egress {
    sending_to(Vec::new(), dir, change)
}

fn sending_to(lines: Vec<LineSpec>, dir: &Path, change: impl FnOnce(&mut RepairSpec)) -> Egress {
    let mut repair = RepairSpec::new("127.0.0.1:0".parse().unwrap());
    repair.allow = vec!["127.0.0.1".parse().unwrap()];
    change(&mut repair);
    let send = SendSpec { repair: Some(repair), ..SendSpec::default() };
    let spec = BridgeSpec { lines, send: Some(send), ..BridgeSpec::new("t") };
    Egress::start(&spec, Subscriber::builder("t").dir(dir), EgressOptions::default()).unwrap()
}

fn receiving(dir: &Path, server: SocketAddr) -> Ingress {
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
fn a_receiver_says_that_no_server_has_a_place_for_it() {
    let _turn = turn();
    let (a, b, c) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let _publisher = make_channel(a.path());
    let egress = sending(a.path(), |repair| repair.max_leases = 1);
    let server = egress.repair_address().unwrap();
    let mut first = receiving(b.path(), server);
    wait_until("the only place to be taken", || first.counters().host.leases_held == 2);
    let second = receiving(c.path(), server);
    wait_until("the reason", || {
        second.trouble().is_some_and(|said| said.contains("raise send.repair.max_leases"))
    });
    assert_eq!(first.trouble(), None);
    first.stop();
    first.join();
    wait_until("the place", || second.trouble().is_none());
}

#[test]
fn a_lease_is_renewed_given_back_and_runs_out() {
    let _turn = turn();
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut publisher = make_channel(a.path());
    // The lease is long enough for a receiver that waits for a CPU on a busy machine.
    let egress = sending(a.path(), |repair| repair.lease_s = 3);
    let server = egress.repair_address().unwrap();
    let leases = || egress.repair_counters().leases;
    let mut ingress = receiving(b.path(), server);
    // The receiver takes two leases: one for the feed, one for requests.
    wait_for("both leases", || (leases().held == 2).then_some(()));
    wait_for("renewals past the first three seconds", || (leases().renewed >= 8).then_some(()));
    publish(&mut publisher, 100);
    wait_for("the messages", || (ingress.counters().host.messages_published == 100).then_some(()));
    // On a busy machine, a receiver might stand still for longer than a lease lasts. Then it takes a new lease for each expired one.
    let now = wait_for("both leases", || Some(leases()).filter(|now| now.held == 2));
    assert_eq!(now.granted, 2 + now.expired, "{now:?}");

    ingress.stop();
    ingress.join();
    wait_for("the leases' return", || (leases().held == 0).then_some(()));
    let given_back = leases();
    let ran_out = given_back.expired;
    assert!(given_back.released > 0 && given_back.released + ran_out == given_back.granted, "{given_back:?}");
    // Counters that show this message also show all datagrams that left before it.
    publish(&mut publisher, 1);
    wait_for("the egress", || (egress.counters().messages == 101).then_some(()));
    let sent = egress.counters().datagrams_sent;
    publish(&mut publisher, 100);
    wait_for("the egress", || (egress.counters().messages == 201).then_some(()));
    assert_eq!(egress.counters().datagrams_sent, sent, "somebody without a lease was sent to");

    // This client takes a lease and then sends nothing any more.
    let (silent, mut out) = (client(), [0; CONTROL_MAX_BYTES]);
    let size = ControlDatagram::Hello { nonce: 1 }.encode(&mut out);
    silent.send_to(&out[..size], server).unwrap();
    let cookie = match answer(&silent).map(|bytes| ControlDatagram::parse(&bytes)) {
        Some(Ok(ControlDatagram::Cookie { nonce: 1, cookie })) => cookie,
        other => panic!("{other:?}"),
    };
    let size = ControlDatagram::Subscribe { nonce: 2, cookie, live: true, lease_ms: 300 }.encode(&mut out);
    silent.send_to(&out[..size], server).unwrap();
    assert!(matches!(
        answer(&silent).map(|bytes| ControlDatagram::parse(&bytes)),
        Some(Ok(ControlDatagram::Granted { .. }))
    ));
    wait_for("the lease's end", || (leases().expired == ran_out + 1).then_some(()));
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

/// The time for which a socket is read after the last request.
const LISTEN: Duration = Duration::from_millis(100);

/// The number of bytes that come back on a socket until nothing has come for [`LISTEN`].
fn drawn(socket: &UdpSocket) -> usize {
    socket.set_read_timeout(Some(LISTEN)).unwrap();
    std::iter::from_fn(|| answer(socket)).map(|datagram| datagram.len()).sum()
}

/// Sends a bridge every request without a cookie, to the port for repairs and to the port for live packets. Sends each request alone, and
/// counts all bytes of the answers.
#[test]
fn strangers_draw_no_byte_and_who_is_unproved_three_times_what_it_sent() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let builder = Publisher::builder("t").dir(dir.path()).capacity(1 << 20).max_message(LONGEST as u64);
    let mut publisher = builder.open().unwrap();
    let listener = client();
    let group = listener.local_addr().unwrap();
    let line = LineSpec::to(group);
    let egress = sending_to(vec![line], dir.path(), |_| {});
    // More messages than the ring holds, so that the first are gone.
    publish(&mut publisher, 10_000);
    publisher.publish(b"short").unwrap();
    let next = publisher.next_sequence();
    wait_for("the egress", || (egress.counters().next_sequence == next).then_some(()));
    let (repairs, session) = (egress.repair_address().unwrap(), egress.life().session().unwrap());
    let live = listener.recv_from(&mut [0; 2_048]).unwrap().1;

    let request = |session, first, count| Request { session, first, count }.encode().to_vec();
    let control = |control: ControlDatagram| {
        let mut out = [0; CONTROL_MAX_BYTES];
        let size = control.encode(&mut out);
        out[..size].to_vec()
    };
    let questions = [
        ("what is gone", request(session, 1, 1)),
        ("what is there and short", request(session, next - 1, 1)),
        ("as much as can be", request(session, next - 100, u16::MAX)),
        ("what is not there yet", request(session, next + 1_000, 1)),
        ("another session", request(Session::named("other").unwrap(), next - 1, 1)),
        ("zeros", vec![0; 20]),
        ("ones", vec![0xff; 20]),
        ("a cookie", control(ControlDatagram::Hello { nonce: 1 })),
        (
            "a lease without one",
            control(ControlDatagram::Subscribe { nonce: 2, cookie: [7; 24], live: true, lease_ms: 0 }),
        ),
    ];
    let counted = || {
        let counters = egress.repair_counters();
        (counters.refused.not_allowed + counters.leases.not_allowed, counters.serving.datagrams)
    };
    let (mut refused, mut most) = (0, 0.0f64);
    for (what, question) in &questions {
        let asked = [("repairs", repairs), ("live packets", live)].map(|(port, to)| {
            let (stranger, unproved) = (UdpSocket::bind("127.0.0.2:0").unwrap(), client());
            stranger.send_to(question, to).unwrap();
            unproved.send_to(question, to).unwrap();
            (port, to, stranger, unproved)
        });
        refused += 1;
        wait_for("both", || (counted() == (refused, 2 * refused)).then_some(()));
        for (port, to, stranger, unproved) in asked {
            assert_eq!(drawn(&stranger), 0, "a stranger asked the port of {port} for {what}");
            let bytes = drawn(&unproved);
            let most_bytes = if to == repairs { 3 * question.len() } else { 0 };
            assert!(bytes <= most_bytes, "{bytes} B for {} B: {what}, of the port of {port}", question.len());
            most = most.max(bytes as f64 / question.len() as f64);
        }
    }
    // At least one request must have been answered.
    assert!(most > 1.0, "{most}");
    eprintln!(
        "{} questions: strangers drew 0 B, the unproved at most {most:.2} times what they sent",
        questions.len()
    );
    // No client got a lease, so live packets go to none.
    assert_eq!(egress.repair_counters().leases.granted, 0);
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
    let flood = number("SHMCAST_FLOOD", 20_000);
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
            // The receiver's ring has room for some 700 of the longest messages. The publisher waits here, because this test is not about
            // lapped readers.
            if read() + 300 > publisher.next_sequence() {
                publish(&mut publisher, 10);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        publisher.next_sequence()
    });
    wait_for("the last message", || (read() == next).then_some(()));
    let counters = wait_for("the flood's end", || {
        let counters = egress.repair_counters();
        (counters.serving.datagrams + counters.serving.kernel_drops >= flood).then_some(counters)
    });
    assert!(counters.refused.malformed > 0 && ingress.counters().host.messages_missing == 0, "{counters:?}");
}

/// Ends a flood when dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The server stops on request, even during a flood of requests.
#[test]
fn a_flood_of_requests_does_not_keep_a_bridge_from_stopping() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = make_channel(dir.path());
    let mut egress = sending(dir.path(), |repair| repair.trust_allowed = true);
    publish(&mut publisher, 1_000);
    wait_for("the egress", || (egress.counters().messages == 1_000).then_some(()));
    let (server, session) = (egress.repair_address().unwrap(), egress.life().session().unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                let request = Request { session, first: 1, count: 10 }.encode();
                while !stop.load(Ordering::Relaxed) {
                    let _ = socket.send_to(&request, server);
                }
            });
        }
        // The flood also ends if this test fails.
        let _over = Over(&stop);
        wait_for("the flood", || (egress.repair_counters().replay.requests > 10_000).then_some(()));
        egress.stop();
        wait_until("the bridge's end", || egress.is_finished());
    });
    egress.join();
}
