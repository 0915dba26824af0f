//! The marks of packets, as their receivers see them.

use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};
use shmcast::{Publisher, Subscriber};
use shmcast_bridge::egress::{Egress, EgressOptions};
use shmcast_bridge::ingress::{Ingress, IngressOptions};
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::spec::{BridgeSpec, LineSpec, ReceiveSpec, RepairSpec, SendSpec, StartAt};
use shmcast_testkit::{PATIENCE, scratch, skip};
use socket2::SockRef;
use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

const FEED: u8 = 46;
const REPAIRS: u8 = 10;

/// This host, by both protocols.
const HOSTS: [&str; 2] = ["127.0.0.1", "::1"];

/// A socket that is told the marks of what it receives, and its address.
fn receiver(host: &str) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((host, 0)).unwrap();
    match socket.local_addr().unwrap() {
        SocketAddr::V4(_) => SockRef::from(&socket).set_recv_tos_v4(true).unwrap(),
        SocketAddr::V6(_) => SockRef::from(&socket).set_recv_tclass_v6(true).unwrap(),
    }
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// The hosts that can be tried here. Without IPv6, prints the name of the test.
fn hosts(test: &str) -> impl Iterator<Item = &'static str> {
    HOSTS.into_iter().filter(move |host| {
        let is_there = UdpSocket::bind((*host, 0)).is_ok();
        if !is_there {
            skip(test, format!("no address {host}"));
        }
        is_there
    })
}

/// The code point of the next datagram.
fn dscp_of_next(socket: &UdpSocket) -> u8 {
    let (mut bytes, mut room) = ([0; 2048], nix::cmsg_space!(i32));
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let got = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut room), MsgFlags::empty())
        .unwrap();
    let mut told = got.cmsgs().unwrap();
    told.find_map(|told| match told {
        ControlMessageOwned::Ipv4Tos(tos) => Some(tos >> 2),
        ControlMessageOwned::Ipv6TClass(class) => u8::try_from(class >> 2).ok(),
        _ => None,
    })
    .expect("the kernel says it of each datagram")
}

fn marked(lines: Vec<LineSpec>) -> BridgeSpec {
    BridgeSpec { lines, dscp: Some(FEED), priority: Some(6), ..BridgeSpec::new("t") }
}

#[test]
fn the_feed_and_its_repairs_carry_the_marks_of_the_spec() {
    hosts("the_feed_and_its_repairs_carry_the_marks_of_the_spec").for_each(feed_and_repairs_are_marked);
}

fn feed_and_repairs_are_marked(host: &str) {
    let dir = scratch();
    let (line, group) = receiver(host);
    let mut publisher =
        Publisher::builder("t").dir(dir.path()).capacity(1 << 20).max_message(1000).open().unwrap();
    publisher.publish(b"one").unwrap();
    let mut repair = RepairSpec::new(SocketAddr::new(host.parse().unwrap(), 0));
    (repair.allow, repair.trust_allowed) = (vec![host.parse().unwrap()], true);
    repair.dscp = Some(REPAIRS);
    let send = SendSpec { from: StartAt::Oldest, listen_ms: 0, repair: Some(repair), ..SendSpec::default() };
    let spec = BridgeSpec { send: Some(send), ..marked(vec![LineSpec::to(group)]) };
    let egress =
        Egress::start(&spec, Subscriber::builder("t").dir(dir.path()), EgressOptions::default()).unwrap();
    assert_eq!(egress.life().refusals, [""; 0]);
    assert_eq!(dscp_of_next(&line), FEED);

    let (receiver, _) = receiver(host);
    let session: Session = egress.life().session().unwrap();
    let mut request = session.as_bytes().to_vec();
    request.extend_from_slice(&1_u64.to_be_bytes());
    request.extend_from_slice(&1_u16.to_be_bytes());
    receiver.send_to(&request, egress.repair_address().unwrap()).unwrap();
    assert_eq!(dscp_of_next(&receiver), REPAIRS);
}

#[test]
fn requests_carry_the_marks_of_the_spec() {
    hosts("requests_carry_the_marks_of_the_spec").for_each(requests_are_marked);
}

fn requests_are_marked(host: &str) {
    let dir = scratch();
    let (server, address) = receiver(host);
    let (_line, group) = receiver(host);
    drop(_line);
    let receive = ReceiveSpec { servers: vec![address], ..ReceiveSpec::default() };
    let spec = BridgeSpec { receive: Some(receive), ..marked(vec![LineSpec::to(group)]) };
    let channel = Publisher::builder("t").dir(dir.path()).capacity(1 << 20).max_message(1000);
    let ingress = Ingress::start(&spec, channel, IngressOptions::default()).unwrap();
    assert_eq!(dscp_of_next(&server), FEED);
    ingress.stop();
}

#[test]
fn marks_that_have_no_place_are_named() {
    let mut repair = RepairSpec::new("127.0.0.1:0".parse().unwrap());
    (repair.allow, repair.dscp) = (vec!["127.0.0.1".parse().unwrap()], Some(255));
    let send = SendSpec { repair: Some(repair), ..SendSpec::default() };
    let lines = vec![LineSpec::to("239.1.2.3:30001".parse().unwrap())];
    let spec =
        BridgeSpec { dscp: Some(64), priority: Some(7), lines, send: Some(send), ..BridgeSpec::new("t") };
    let fields: Vec<_> = spec.problems().into_iter().map(|(field, _)| field).collect();
    assert_eq!(fields, ["dscp", "priority", "repair.dscp"]);
}
