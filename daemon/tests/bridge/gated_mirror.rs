//! A received channel with a gate: the receiving end waits for the gate's reader, and does its other work meanwhile.

use super::roles::{LONGEST, make_channel, write_message};
use shmcast::{Event, Gate, Publisher, Subscriber};
use shmcast_bridge::egress::{EgressInvoker, EgressOptions};
use shmcast_bridge::ingress::{IngressInvoker, IngressOptions};
use shmcast_bridge::promotion::PromoteError;
use shmcast_bridge::spec::{BridgeSpec, LineSpec, ReceiveSpec, SendSpec, StartAt};
use shmcast_testkit::place::own_address;
use shmcast_testkit::turn::turn;
use shmcast_testkit::wait_for;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

const MESSAGES: u64 = 2_000;

/// A reader, and the message that it expects next.
struct Reading(Subscriber, u64);

impl Reading {
    /// Reads everything that is there, in order and without a gap. Returns whether the stream has ended.
    fn read(&mut self) -> bool {
        let mut expected = [0; LONGEST];
        while let Some(event) = self.0.try_recv().unwrap() {
            match event {
                Event::Message(message) => {
                    let size = write_message(self.1, &mut expected);
                    assert_eq!((message.sequence, message.payload), (self.1, &expected[..size]));
                    self.1 += 1;
                }
                Event::NewSession { .. } | Event::NewEpoch { .. } => {}
                Event::End => return true,
                other => panic!("{other:?}"),
            }
        }
        false
    }
}

/// An earlier mistake: the first message that a gate refused ended the bridge, and the stream of every reader.
#[test]
fn a_gate_that_refuses_holds_up_a_mirror_and_nothing_else() {
    let _turn = turn();
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let line = LineSpec::to(own_address());
    let mut publisher = make_channel(a.path());
    let send = SendSpec { from: StartAt::Oldest, linger_ms: 100, ..SendSpec::default() };
    let spec = BridgeSpec { lines: vec![line.clone()], send: Some(send), ..BridgeSpec::new("t") };
    let channel = Subscriber::builder("t").dir(a.path());
    let mut egress = EgressInvoker::open(&spec, channel, EgressOptions::default()).unwrap();

    let receive = ReceiveSpec { from: Some(1), ..ReceiveSpec::default() };
    let spec = BridgeSpec { lines: vec![line], receive: Some(receive), ..BridgeSpec::new("t") };
    let gate = Gate::new("g").refuse().wait(Duration::from_secs(100));
    let channel =
        Publisher::builder("t").dir(b.path()).capacity(64 << 10).max_message(LONGEST as u64).gate(gate);
    let mut ingress = IngressInvoker::open(&spec, channel, IngressOptions::default()).unwrap();
    let reader = || Subscriber::builder("t").dir(b.path());
    let mut slow = Reading(reader().gate("g").open().unwrap(), 1);
    let mut other = Reading(reader().open().unwrap(), 1);

    let mut buffer = [0; LONGEST];
    let start = Instant::now();
    for next in 1..=MESSAGES {
        let size = write_message(next, &mut buffer);
        publisher.publish(&buffer[..size]).unwrap();
        assert!(egress.invoke() && ingress.invoke());
        assert!(!other.read());
    }
    assert!(other.1 < MESSAGES, "the gate holds nothing up");
    assert!(start.elapsed() < Duration::from_secs(90), "a message waits for the gate as the publisher would");
    let said = wait_for("the bridge to say so", || {
        assert!(egress.invoke() && ingress.invoke());
        ingress.ingress.trouble()
    });
    assert!(said.contains("gate g of the channel"), "{said}");

    // A promotion would lose the messages that were received and are held up.
    let promoter = ingress.ingress.promoter();
    let (tell, told) = sync_channel(1);
    let asks = std::thread::spawn(move || tell.send(promoter.promote(true, u64::MAX)).unwrap());
    let refused = wait_for("an answer", || {
        assert!(egress.invoke() && ingress.invoke());
        told.try_recv().ok()
    });
    asks.join().unwrap();
    assert!(matches!(&refused, Err(PromoteError::Held { gate }) if gate == "g"), "{refused:?}");

    publisher.close();
    let mut is_over = (false, false);
    wait_for("the end, behind all messages", || {
        egress.invoke();
        assert!(ingress.invoke());
        is_over = (is_over.0 || slow.read(), is_over.1 || other.read());
        (is_over == (true, true)).then_some(())
    });
    assert_eq!((slow.1, other.1), (MESSAGES + 1, MESSAGES + 1));
    let counters = ingress.ingress.counters().host;
    assert_eq!((counters.messages_published, counters.messages_missing), (MESSAGES, 0));
    assert_eq!(ingress.ingress.trouble(), None);
}

/// An earlier mistake: a bridge that ended threw away the messages that a gate held up, and did not say so.
#[test]
fn a_bridge_that_ends_says_how_many_messages_a_gate_held_up() {
    let _turn = turn();
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let line = LineSpec::to(own_address());
    let mut publisher = make_channel(a.path());
    let send = SendSpec { from: StartAt::Oldest, ..SendSpec::default() };
    let spec = BridgeSpec { lines: vec![line.clone()], send: Some(send), ..BridgeSpec::new("t") };
    let channel = Subscriber::builder("t").dir(a.path());
    let mut egress = EgressInvoker::open(&spec, channel, EgressOptions::default()).unwrap();

    let receive = ReceiveSpec { from: Some(1), ..ReceiveSpec::default() };
    let spec = BridgeSpec { lines: vec![line], receive: Some(receive), ..BridgeSpec::new("t") };
    let gate = Gate::new("g").refuse().wait(Duration::from_secs(100));
    let channel =
        Publisher::builder("t").dir(b.path()).capacity(64 << 10).max_message(LONGEST as u64).gate(gate);
    let mut ingress = IngressInvoker::open(&spec, channel, IngressOptions::default()).unwrap();
    let _slow = Subscriber::builder("t").dir(b.path()).gate("g").open().unwrap();

    let mut buffer = [0; LONGEST];
    for next in 1..=MESSAGES {
        let size = write_message(next, &mut buffer);
        publisher.publish(&buffer[..size]).unwrap();
        assert!(egress.invoke() && ingress.invoke());
    }
    wait_for("all messages to arrive", || {
        assert!(egress.invoke() && ingress.invoke());
        let counters = ingress.ingress.counters().host;
        (counters.messages_published + counters.messages_held == MESSAGES).then_some(())
    });
    ingress.ingress.stop();
    assert!(!ingress.invoke());
    let counters = ingress.ingress.counters().host;
    assert!(counters.messages_held > 0, "{counters:?}");
    assert_eq!(
        (counters.messages_published + counters.messages_held, counters.messages_missing),
        (MESSAGES, 0)
    );
    let said = ingress.ingress.life().error().unwrap_or_default();
    let wanted =
        format!("{} received messages are not published: gate g holds them up", counters.messages_held);
    assert!(said.starts_with(&wanted), "{said}");
}
