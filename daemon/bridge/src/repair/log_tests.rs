//! The port of a log on the loopback interface.

use shmcast::Publisher;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::log::{LogRepair, LogSocket};
use crate::ingress::{Ingress, IngressOptions};
use crate::log::{Log, LogLine, LogSource, LogState, LogWord};
use crate::native::Keys;
use crate::proto::replay::{Block, Fetched};
use crate::proto::session::Session;
use crate::proto::wire::{Body, Downstream, Request};
use crate::spec::{BridgeSpec, LineSpec, NatsSpec, ReceiveSpec};
use crate::thread::Clock;

/// A log that has the messages 1 to 100 of every session.
struct Hundred(Arc<LogWord>);

impl Log for Hundred {
    fn set_keys(&mut self, _: Arc<Keys>, _: bool) {}

    fn fetch(&mut self, _: &LogLine<'_>, first: u64) -> Fetched {
        self.0.enter(LogState::Serving, None);
        if first == 0 || first > 100 {
            return Fetched::Absent { from: first, to: first };
        }
        let mut block = Block::new(first);
        for sequence in first..=100u64 {
            block.push(&sequence.to_be_bytes(), Default::default());
        }
        Fetched::Block(block)
    }
}

fn spec() -> BridgeSpec {
    let receive = ReceiveSpec {
        log: Some(NatsSpec { servers: vec!["nats://h:1".to_owned()], ..NatsSpec::default() }),
        ..ReceiveSpec::default()
    };
    let lines = vec![LineSpec::to("127.0.0.1:9".parse().unwrap())];
    BridgeSpec { lines, receive: Some(receive), ..BridgeSpec::new("ticks") }
}

fn receive(socket: &UdpSocket, patience: Duration) -> Option<Vec<u8>> {
    let mut buffer = [0; 2_048];
    socket.set_read_timeout(Some(patience)).unwrap();
    socket.recv(&mut buffer).ok().map(|size| buffer[..size].to_vec())
}

#[test]
fn nobody_but_the_receiver_is_answered() {
    only_the_receiver_is_answered("127.0.0.1:0", &[]);
}

/// The port of the log is of the family of the receiver's servers.
#[test]
fn nobody_but_the_receiver_is_answered_beside_servers_of_ipv6() {
    if UdpSocket::bind("[::1]:0").is_err() {
        return eprintln!("SKIPPED nobody_but_the_receiver_is_answered_beside_servers_of_ipv6: no IPv6 here");
    }
    only_the_receiver_is_answered("[::1]:0", &["[fd00::1]:30002".parse().unwrap()]);
}

fn only_the_receiver_is_answered(here: &str, servers: &[SocketAddr]) {
    let (ours, stranger) = (UdpSocket::bind(here).unwrap(), UdpSocket::bind(here).unwrap());
    let socket = LogSocket::open(servers).unwrap();
    let (to, word) = (socket.address, Arc::new(LogWord::default()));
    let source = LogSource { log: Box::new(Hundred(word.clone())), word };
    let asker = ours.local_addr().unwrap().port();
    let keys = Arc::new(Keys::open(&spec()).unwrap());
    let log = LogRepair::start(&spec(), source, (socket, asker), (Clock::start(), keys)).unwrap();
    let session = Session::of_channel("TICK", 1).unwrap();
    log.shared().follow(session, 1);
    let request = Request { session, first: 10, count: 5 }.encode();
    let deadline = Instant::now() + Duration::from_secs(10);
    let answer = loop {
        stranger.send_to(&request, to).unwrap();
        ours.send_to(&request, to).unwrap();
        if let Some(answer) = receive(&ours, Duration::from_millis(100)) {
            break answer;
        }
        assert!(Instant::now() < deadline, "no answer: {:?}", log.shared().status());
    };
    let packet = Downstream::parse(&answer).unwrap();
    let Body::Messages(messages) = packet.body else { panic!("{packet:?}") };
    let seen: Vec<_> = messages.iter().map(|(sequence, data)| (sequence, data.to_vec())).collect();
    let expected: Vec<_> = (10..15u64).map(|sequence| (sequence, sequence.to_be_bytes().to_vec())).collect();
    assert_eq!(seen, expected);
    assert_eq!(receive(&stranger, Duration::from_millis(50)), None);
    let status = log.shared().status();
    assert!(status.state == LogState::Serving && status.counters.strangers > 0, "{status:?}");
}

#[test]
fn a_log_without_its_spec_and_a_spec_without_its_log_are_refused_by_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let channel = || Publisher::builder("ticks").dir(dir.path()).capacity(64 << 10).max_message(1_000);
    let error = Ingress::start(&spec(), channel(), IngressOptions::default()).unwrap_err().to_string();
    assert!(error.contains("log: another package reads it: shmcast-engine"), "{error}");
    let (without, word) =
        (BridgeSpec { receive: Some(ReceiveSpec::default()), ..spec() }, Arc::new(LogWord::default()));
    let log = Some(LogSource { log: Box::new(Hundred(word.clone())), word });
    let options = IngressOptions { log, ..IngressOptions::default() };
    let error = Ingress::start(&without, channel(), options).unwrap_err().to_string();
    assert!(error.contains("log: the bridge was given one, and its spec names none"), "{error}");
}
