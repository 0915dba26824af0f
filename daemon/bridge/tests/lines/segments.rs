//! Packets in segments (`UDP_SEGMENT`) and put together (`UDP_GRO`), on a virtual wire between two namespaces.

use nix::sys::socket::{setsockopt, sockopt};
use shmcast::{Event, Publisher, Start, Subscriber};
use shmcast_bridge::egress::{Egress, EgressOptions};
use shmcast_bridge::ingress::{Ingress, IngressOptions};
use shmcast_bridge::proto::wire::{Body, Downstream, Message};
use shmcast_bridge::spec::{BridgeSpec, LineSpec, LinkSpeed, ReceiveSpec, RepairSpec, SendSpec, StartAt};
use shmcast_testkit::hosts::{Host, Hosts, ip};
use shmcast_testkit::{PATIENCE, Process, scratch, skip, wait_for, wait_until, works};
use std::fmt::Debug;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MESSAGES: u64 = 20_000;
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 78, 0, 1);

fn message(sequence: u64) -> Vec<u8> {
    sequence.to_be_bytes().repeat(125)
}

/// A channel with all messages in it.
fn channel(dir: &Path) -> Publisher {
    let mut publisher = Publisher::builder("t").dir(dir).capacity(64 << 20).max_message(1000).open().unwrap();
    (1..=MESSAGES).for_each(|sequence| _ = publisher.publish(&message(sequence)).unwrap());
    publisher
}

fn bridge(interface: &str) -> BridgeSpec {
    let line = LineSpec { interface: Some(interface.to_owned()), ..LineSpec::to((GROUP, 30_001).into()) };
    BridgeSpec { lines: vec![line], link: LinkSpeed::None, ..BridgeSpec::new("t") }
}

fn send(dir: &Path) -> Egress {
    let mut repair = RepairSpec::new("10.77.0.1:30002".parse().unwrap());
    (repair.allow, repair.trust_allowed) = (vec!["10.77.0.0/24".parse().unwrap()], true);
    let send = SendSpec { from: StartAt::Oldest, listen_ms: 0, repair: Some(repair), ..SendSpec::default() };
    let spec = BridgeSpec { send: Some(send), ..bridge("va0") };
    Egress::start(&spec, Subscriber::builder("t").dir(dir), EgressOptions::default()).unwrap()
}

/// Receives from the far end of the wire into a channel of `dir`, and has what is lost repaired.
fn receive(dir: &Path, receive: ReceiveSpec) -> Ingress {
    let servers = vec!["10.77.0.1:30002".parse().unwrap()];
    let receive = ReceiveSpec { servers, from: Some(1), ..receive };
    let spec = BridgeSpec { receive: Some(receive), ..bridge("vb0") };
    let channel = Publisher::builder("t").dir(dir).capacity(64 << 20).max_message(1000);
    Ingress::start(&spec, channel, IngressOptions::default()).unwrap()
}

/// A program without a bridge, whose socket takes datagrams one by one.
#[test]
fn segments_are_sound_packets_to_a_plain_socket_and_to_wireshark() {
    let test = "segments_are_sound_packets_to_a_plain_socket_and_to_wireshark";
    let Some(hosts) = Hosts::new(test, 1) else { return };
    let dir = scratch();
    let _publisher = channel(dir.path());
    // A virtual wire carries the segments in one, and a capture would show them so. A card takes them apart.
    let apart = ip(&format!("-n {} link set va0 gso_max_segs 1", hosts.name(Host::A)));
    hosts.enter(Host::B);
    let socket = UdpSocket::bind((GROUP, 30_001)).unwrap();
    setsockopt(&socket, sockopt::RcvBufForce, &(64 << 20)).unwrap();
    socket.join_multicast_v4(&GROUP, &Ipv4Addr::new(10, 77, 0, 2)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let capture = dir.path().join("far.pcap");
    let has_tshark = works("tshark", &["--version"]);
    let tshark = has_tshark.then(|| {
        let mut command = Command::new("tshark");
        command.args(["-q", "-i", "vb0", "-f", "udp port 30001", "-c", "300", "-F", "pcap", "-w"]);
        Process::start(command.arg(&capture).stderr(Stdio::null()))
    });
    if has_tshark {
        wait_until("the capture to begin", || capture.exists());
    }
    hosts.enter(Host::A);
    let egress = send(dir.path());
    let (mut next, mut bytes) = (1, [0; 65_536]);
    while next <= MESSAGES {
        let size = socket.recv(&mut bytes).unwrap();
        assert!(size <= 1_472, "a packet of {size} B");
        let packet = Downstream::parse(&bytes[..size]).expect("a sound packet");
        let Body::Messages(messages) = packet.body else { continue };
        for Message { sequence, data, .. } in messages.messages() {
            assert!(sequence == next && data == message(next), "{sequence}, not {next}");
            next += 1;
        }
    }
    let sent = wait_for_counters(|| egress.counters(), |sent| sent.messages == MESSAGES);
    assert!(sent.datagrams_segmented > sent.datagrams_sent / 2 && sent.segments_refused == 0, "{sent:?}");
    let (Some(mut tshark), Ok(())) = (tshark, apart) else {
        return skip(&format!("the capture of {test}"), "no tshark, or an old ip");
    };
    tshark.wait();
    let output = Command::new("tshark")
        .args(["-n", "-d", "udp.port==30001,moldudp64", "-T", "fields"])
        .args(["-e", "moldudp64.count", "-e", "_ws.expert.severity", "-E", "separator=;", "-r"])
        .arg(&capture)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 300);
    assert!(text.lines().all(|line| line == "1;" || line == "0;"), "{text}");
}

fn wait_for_counters<T: Debug>(read: impl Fn() -> T, is_so: impl Fn(&T) -> bool) -> T {
    wait_for("the counters", || Some(read()).filter(&is_so))
}

/// A drop takes all packets of a call.
#[test]
fn segments_that_are_put_together_bring_every_byte_though_some_are_lost() {
    let test = "segments_that_are_put_together_bring_every_byte_though_some_are_lost";
    let Some(hosts) = Hosts::new(test, 1) else { return };
    let [here, there] = [(); 2].map(|()| scratch());
    let mut publisher = channel(here.path());
    hosts.enter(Host::B);
    // A burst of a megabyte mostly overflows so small a buffer, or leaves nothing to put together. There are more of them until both
    // have happened.
    let ingress = receive(there.path(), ReceiveSpec { buffer_bytes: 1 << 16, ..ReceiveSpec::default() });
    assert_eq!(ingress.life().refusals.iter().filter(|r| r.contains("UDP_GRO")).count(), 0);
    let mut reader = Subscriber::builder("t").dir(there.path()).start(Start::Oldest).open().unwrap();
    hosts.enter(Host::A);
    let egress = send(here.path());
    let (mut next, mut last) = (1, MESSAGES);
    let received = loop {
        while next <= last {
            let event = reader.recv_deadline(Instant::now() + PATIENCE).unwrap();
            match event.expect("it goes on") {
                Event::Message(m) => {
                    assert!(m.sequence == next && m.payload == message(next), "{}, not {next}", m.sequence);
                    next += 1;
                }
                Event::NewSession { .. } | Event::NewEpoch { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        let received =
            wait_for_counters(|| ingress.counters(), |received| received.host.messages_published == last);
        let are_lost = received.lines[0].socket.kernel_drops > 0 && received.host.recovered_by_servers > 0;
        if are_lost && received.host.datagrams_merged > 0 || last >= 50 * MESSAGES {
            break received;
        }
        last += MESSAGES;
        (next..=last).for_each(|n| _ = publisher.publish(&message(n)).unwrap());
    };
    let (merged, repaired) = (received.host.datagrams_merged, received.host.recovered_by_servers);
    assert!(merged > 0 && repaired > 0 && received.lines[0].socket.kernel_drops > 0, "{received:?}");
    assert!(egress.counters().datagrams_segmented > 0);
}

/// A packet that comes alone takes longer while the kernel puts packets together.
#[test]
fn packets_are_put_together_during_a_burst_and_not_a_second_later() {
    let test = "packets_are_put_together_during_a_burst_and_not_a_second_later";
    let Some(hosts) = Hosts::new(test, 1) else { return };
    let [here, there] = [(); 2].map(|()| scratch());
    let mut publisher = channel(here.path());
    hosts.enter(Host::B);
    let ingress = receive(there.path(), ReceiveSpec::default());
    hosts.enter(Host::A);
    let egress = send(here.path());
    let mut last = MESSAGES;
    let arrived = |last| {
        let received = wait_for_counters(|| ingress.counters(), |it| it.host.messages_published == last);
        assert_eq!(
            (received.host.messages_published, received.host.messages_missing),
            (last, 0),
            "{received:?}"
        );
        received.host.datagrams_merged
    };
    let mut merged = 0;
    for _ in 0..2 {
        // A receiver that keeps up with a burst has nothing to put together: there are more of them until it falls behind.
        wait_until("a burst that is put together", || {
            let before = std::mem::replace(&mut merged, arrived(last));
            if merged == before {
                (last + 1..=last + MESSAGES).for_each(|n| _ = publisher.publish(&message(n)).unwrap());
                last += MESSAGES;
            }
            merged > before
        });
        // They leave in one call, and are too few for a burst. Merging ends after a hundred windows of 10 ms or more.
        wait_until("packets that come one by one", || {
            std::thread::sleep(Duration::from_millis(100));
            let before = std::mem::replace(&mut merged, arrived(last));
            let few = egress.counters().datagrams_segmented;
            let messages: Vec<_> = (last + 1..=last + 30).map(message).collect();
            last += 30;
            publisher.publish_batch(&messages).unwrap();
            let after = arrived(last);
            let left_in_one = egress.counters().datagrams_segmented > few;
            left_in_one && before == merged && after == merged
        });
    }
}
