//! Boards on both ends of a line: the mirror makes its own, of the same messages.

use shmcast::{BoardSpec, Event, Publisher, Start, Subscriber};
use shmcast_bridge::egress::{Egress, EgressOptions};
use shmcast_bridge::ingress::{Ingress, IngressOptions};
use shmcast_bridge::spec::{BridgeSpec, LineSpec, Profile, ReceiveSpec, RepairSpec, SendSpec, StartAt};
use shmcast_testkit::place::own_address;
use shmcast_testkit::{PATIENCE, scratch, wait_for};
use std::path::Path;
use std::time::Instant;

const MESSAGES: u64 = 3_000;

/// Each key, with the sequence, the count and the payload of its newest message.
fn board(dir: &Path) -> Vec<(Vec<u8>, u64, u64, Vec<u8>)> {
    let mut board = Subscriber::builder("t").dir(dir).open_board().unwrap();
    let entries = board.entries().unwrap();
    let all = entries.map(|entry| {
        let payload = entry.message.map_or_else(Vec::new, |message| message.payload.to_vec());
        (entry.key.to_vec(), entry.sequence, entry.count, payload)
    });
    all.collect()
}

/// The sequence of a message from the board, the number of those that it stands for, and its payload.
type FromBoard = (u64, Option<u64>, Vec<u8>);

/// The messages that a reader which begins with the board gets from it, and how many messages the reader is told of that are not on
/// the board.
fn begun(dir: &Path, conflates: bool) -> (Vec<FromBoard>, u64) {
    let builder = Subscriber::builder("t").dir(dir).start(Start::Board);
    let builder = if conflates { builder.conflate() } else { builder };
    let (mut reader, mut all, mut missed) = (builder.open().unwrap(), Vec::new(), 0);
    loop {
        match reader.recv_deadline(Instant::now() + PATIENCE).unwrap().expect("the board ends") {
            Event::Message(m) => all.push((m.sequence, m.conflated, m.payload.to_vec())),
            Event::Live { sequence } => {
                assert_eq!(sequence, MESSAGES + 1);
                return (all, missed);
            }
            Event::Lapped(lapped) => missed += lapped.missed,
            other => panic!("{other:?}"),
        }
    }
}

fn carried(profile: Profile) {
    let (here, there) = (scratch(), scratch());
    let spec = BoardSpec::new(0..2).keys(150).value(40);
    let channel =
        |dir: &Path| Publisher::builder("t").dir(dir).capacity(4 << 20).max_message(1000).board(spec);
    let mut publisher = channel(here.path()).open().unwrap();
    for i in 0..MESSAGES {
        // One key in 40 goes, some messages are too large for the board, and more keys come than find room.
        let mut payload = (i * i % 211).to_le_bytes()[..2].to_vec();
        payload.resize(if i % 40 == 0 { 2 } else { 3 + i as usize % 50 }, i as u8);
        publisher.publish(&payload).unwrap();
    }
    let line = LineSpec::to(own_address());
    let mut repair = RepairSpec::new("127.0.0.1:0".parse().unwrap());
    repair.allow = vec!["127.0.0.1".parse().unwrap()];
    let send = SendSpec { from: StartAt::Oldest, listen_ms: 0, repair: Some(repair), ..SendSpec::default() };
    let bridge = BridgeSpec { lines: vec![line], profile, ..BridgeSpec::new("t") };
    let sending = BridgeSpec { send: Some(send), ..bridge.clone() };
    let egress =
        Egress::start(&sending, Subscriber::builder("t").dir(here.path()), EgressOptions::default()).unwrap();
    let server = egress.repair_address().unwrap();
    let receive = ReceiveSpec { servers: vec![server], from: Some(1), ..ReceiveSpec::default() };
    let receiving = BridgeSpec { receive: Some(receive), ..bridge };
    let ingress = Ingress::start(&receiving, channel(there.path()), IngressOptions::default()).unwrap();
    wait_for("the mirror", || {
        let mut board = Subscriber::builder("t").dir(there.path()).open_board().ok()?;
        board.entries().ok()?;
        (board.counters().through == MESSAGES).then_some(())
    });
    let expected = board(here.path());
    assert!(expected.len() > 50, "{} keys", expected.len());
    assert_eq!(board(there.path()), expected);
    for conflates in [false, true] {
        let expected = begun(here.path(), conflates);
        assert!(expected.0.len() > 50, "{} messages", expected.0.len());
        assert_eq!(begun(there.path(), conflates), expected, "conflates: {conflates}");
    }
    ingress.stop();
    egress.leave();
}

#[test]
fn a_mirror_by_plain_packets_has_the_same_board() {
    carried(Profile::Plain);
}

#[test]
fn a_mirror_by_native_packets_has_the_same_board() {
    carried(Profile::Native);
}
