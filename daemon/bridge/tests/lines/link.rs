//! A link of a known speed: what live packets and repairs take of it.

use shmcast::{Publisher, Subscriber};
use shmcast_bridge::egress::{Egress, EgressOptions};
use shmcast_bridge::proto::link::{BURST_BYTES, FRAME_BYTES, Link};
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::spec::{BridgeSpec, LineSpec, LinkSpeed, RepairSpec, SendSpec, StartAt};
use shmcast_testkit::{PATIENCE, scratch};
use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

/// Messages and their size: half a second of the link.
const MESSAGES: u64 = 12_000;
const MESSAGE: [u8; 1_000] = [7; 1_000];
const LINK_BITS: u64 = 200_000_000;

fn bridge(line: &UdpSocket, link: Link) -> BridgeSpec {
    let line = line.local_addr().unwrap();
    let mut repair = RepairSpec::new("127.0.0.1:0".parse().unwrap());
    (repair.allow, repair.trust_allowed) = (vec!["127.0.0.1".parse().unwrap()], true);
    repair.source_rate_bytes = Some(1 << 30);
    let send = SendSpec { from: StartAt::Oldest, listen_ms: 0, repair: Some(repair), ..SendSpec::default() };
    let lines = vec![LineSpec::to(line)];
    BridgeSpec { lines, link: LinkSpeed::Of(link), send: Some(send), ..BridgeSpec::new("t") }
}

/// One who asks without end: each request asks for the packet of the next message. The answers are not read.
fn ask(asker: &UdpSocket, session: Session, server: SocketAddr, first: u64) {
    let mut request = session.as_bytes().to_vec();
    request.extend_from_slice(&first.to_be_bytes());
    request.extend_from_slice(&1_u16.to_be_bytes());
    let _ = asker.send_to(&request, server);
}

#[test]
fn live_packets_and_repairs_asked_for_without_end_stay_within_the_link_and_the_ring_holds_the_rest() {
    let (dir, link) = (scratch(), Link::of_bits(LINK_BITS));
    let (line, asker) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let mut publisher =
        Publisher::builder("t").dir(dir.path()).capacity(32 << 20).max_message(1000).open().unwrap();
    (0..MESSAGES).for_each(|_| _ = publisher.publish(&MESSAGE).unwrap());
    let began = Instant::now();
    let channel = Subscriber::builder("t").dir(dir.path());
    let egress = Egress::start(&bridge(&line, link), channel, EgressOptions::default()).unwrap();
    let session = egress.life().session().unwrap();
    let server = egress.repair_address().unwrap();
    for asked in 0.. {
        ask(&asker, session, server, 1 + asked % 1_000);
        if egress.counters().messages == MESSAGES {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{:?}", egress.counters());
    }
    // In this order: a pause between the two makes the time too long, and never the bytes too many.
    let (live, repairs) = (egress.counters(), egress.repair_counters());
    let took = began.elapsed().as_secs_f64();
    assert_eq!((live.messages_missed, live.link_bits), (0, 200_000_000));
    assert!(
        live.link_waits > 0 && live.link_waited_ns > 0 && repairs.serving.link_rate_bytes > 0,
        "{live:?} {repairs:?}"
    );

    let link_bytes = LINK_BITS as f64 / 8.0;
    let live_bytes = (live.bytes + live.packets * FRAME_BYTES) as f64;
    let repair_bytes = (repairs.replay.bytes + repairs.replay.replies * FRAME_BYTES) as f64;
    assert!(live_bytes <= 0.95 * link_bytes * took + BURST_BYTES as f64, "{live_bytes} in {took} s");
    // Where the sending thread gets no CPU for a while, repairs take its share, and go on with it for 10 ms after that.
    assert!(
        live_bytes + repair_bytes <= 1.25 * link_bytes * took,
        "{live_bytes} and {repair_bytes} in {took} s"
    );
    assert!(repairs.replay.replies > 0, "nobody is answered beside live packets: {repairs:?}");
}
