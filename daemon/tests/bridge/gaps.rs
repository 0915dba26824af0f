//! Gaps of a channel that a bridge relays.

use shmcast::{Event, Publisher, Start, Subscriber};
use shmcast_bridge::egress::{Egress, EgressOptions};
use shmcast_bridge::ingress::{Ingress, IngressOptions};
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::spec::{BridgeSpec, LineSpec, ReceiveSpec, RepairSpec, SendSpec};
use shmcast_testkit::place::own_address;
use shmcast_testkit::turn::turn;
use shmcast_testkit::{PATIENCE, wait_for, wait_until};
use std::path::Path;
use std::time::Instant;

fn publisher(dir: &Path) -> Publisher {
    Publisher::builder("t").dir(dir).capacity(1 << 20).max_message(1_000).open().unwrap()
}

/// A line to an address of this host that nothing else uses.
fn line() -> LineSpec {
    LineSpec::to(own_address())
}

fn sending(dir: &Path, line: &LineSpec, repair: Option<RepairSpec>) -> Egress {
    let send = SendSpec { linger_ms: 60_000, repair, ..SendSpec::default() };
    let spec = BridgeSpec { send: Some(send), lines: vec![line.clone()], ..BridgeSpec::new("t") };
    Egress::start(&spec, Subscriber::builder("t").dir(dir), EgressOptions::default()).unwrap()
}

/// Receives from the line, and requests repairs from the servers.
fn receiving(dir: &Path, line: &LineSpec, servers: Vec<std::net::SocketAddr>) -> Ingress {
    let receive = ReceiveSpec { from: Some(1), servers, give_up_ms: 300, ..ReceiveSpec::default() };
    let spec = BridgeSpec { receive: Some(receive), lines: vec![line.clone()], ..BridgeSpec::new("t") };
    let channel = Publisher::builder("t").dir(dir).capacity(1 << 20).max_message(1_000);
    Ingress::start(&spec, channel, IngressOptions::default()).unwrap()
}

/// Reads the messages up to `last`. There are no gaps between them.
fn read_to(reader: &mut Subscriber, last: u64) {
    while reader.next_sequence() <= last {
        match reader.recv_deadline(Instant::now() + PATIENCE).unwrap() {
            Some(Event::Message(_) | Event::NewSession { .. }) => {}
            other => panic!("{other:?}, and not message {last}"),
        }
    }
}

/// The end of a relayed channel names a gap before the end.
///
/// An earlier mistake: the end named the last message, and the receivers of a relay saw the end without the gap.
#[test]
fn a_gap_right_before_the_end_is_passed_on() {
    let _turn = turn();
    for has_server in [true, false] {
        let (a, b, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), line());
        let mut source = publisher(a.path());
        let mut repair = RepairSpec::new("127.0.0.1:0".parse().unwrap());
        repair.allow = vec!["127.0.0.0/8".parse().unwrap()];
        let repair = has_server.then_some(repair);
        let egress = sending(a.path(), &line, repair);
        let ingress = receiving(b.path(), &line, egress.repair_address().into_iter().collect());
        source.publish_batch(["1", "2", "3", "4", "5", "6", "7"]).unwrap();
        let mut reader = wait_for("the channel", || {
            Subscriber::builder("t").dir(b.path()).start(Start::Oldest).open().ok()
        });
        read_to(&mut reader, 7);
        source.gap(10).unwrap();
        source.close();
        let news = [0, 1].map(|_| format!("{:?}", reader.recv_deadline(Instant::now() + PATIENCE)));
        assert_eq!(news, ["Ok(Some(Gap { from: 8, to: 10 }))", "Ok(Some(End))"], "server: {has_server}");
        wait_until("the gap in the counters", || ingress.counters().host.messages_missing == 3);
    }
}

/// An earlier mistake: a bridge published into a removed folder, where no new reader found the messages.
#[test]
fn a_receiver_whose_channel_was_removed_ends_with_an_error() {
    let _turn = turn();
    let (b, line) = (tempfile::tempdir().unwrap(), line());
    let ingress = receiving(b.path(), &line, Vec::new());
    std::fs::remove_dir_all(b.path().join("t")).unwrap();
    wait_until("the end", || ingress.is_finished());
    let error = ingress.life().error().unwrap();
    assert!(error.starts_with("the channel's files were removed or moved"), "{error}");
    receiving(b.path(), &line, Vec::new());
}

/// An earlier mistake: a receiver that got nothing at all said nothing.
#[test]
fn a_receiver_that_hears_nothing_says_so_until_something_comes() {
    let _turn = turn();
    let (a, b, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), line());
    let ingress = receiving(b.path(), &line, Vec::new());
    let said = wait_for("the silence to be told", || ingress.trouble());
    assert!(said.starts_with("nothing has arrived on ") && said.contains(&line.group.to_string()), "{said}");
    let _source = publisher(a.path());
    let _egress = sending(a.path(), &line, None);
    wait_until("the end of the silence", || ingress.trouble().is_none());
}

/// An earlier mistake: a receiver that was restarted after the end of its feed asked people to check the sender.
#[test]
fn a_receiver_whose_feed_had_ended_expects_nothing() {
    let _turn = turn();
    let dirs = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let mut channel = publisher(dirs[0].path());
    channel.session(*Session::of_channel("TEST", 1).unwrap().as_bytes()).unwrap();
    channel.close();
    let ended = receiving(dirs[0].path(), &line(), Vec::new());
    // The silence of the second receiver begins after the silence of the first one.
    let other = receiving(dirs[1].path(), &line(), Vec::new());
    wait_for("the silence of the other one", || other.trouble());
    assert_eq!(ended.trouble(), None);
}

/// An earlier mistake: the end of a gap in an earlier ring was taken for the beginning of a session in a later ring.
#[test]
fn a_gap_of_an_earlier_ring_is_none_of_a_later_one() {
    let _turn = turn();
    let (a, b, line) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), line());
    let of = |epoch| Session::of_channel("TEST", epoch).unwrap();
    let mut first = publisher(a.path());
    first.session(*of(1).as_bytes()).unwrap();
    let ingress = receiving(b.path(), &line, Vec::new());
    let egress = sending(a.path(), &line, None);
    first.gap(500_000).unwrap();
    first.publish(b"x").unwrap();
    wait_for("the message behind the gap", || (egress.counters().next_sequence == 500_002).then_some(()));
    first.leave_open();
    let mut second = Publisher::builder("t").dir(a.path()).anew().open().unwrap();
    second.session(*of(2).as_bytes()).unwrap();
    wait_for("the next ring", || egress.life().session().filter(|now| *now == of(2)));
    // This session begins in the same ring, and the session before had no message.
    second.session(*of(3).as_bytes()).unwrap();
    second.publish_batch(vec![b"y"; 100]).unwrap();
    let mut reader = wait_for("the last session", || {
        let reader = Subscriber::builder("t").dir(b.path()).start(Start::Oldest).open().ok()?;
        (reader.remote_session() == Some(*of(3).as_bytes())).then_some(reader)
    });
    read_to(&mut reader, 100);
    assert_eq!(ingress.life().session(), Some(of(3)));
    assert_eq!((egress.counters().messages_missed, egress.counters().next_sequence), (0, 101));
}
