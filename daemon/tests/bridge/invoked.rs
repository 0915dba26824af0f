//! Both ends of a bridge on one thread that also publishes and reads, over the loopback interface.

use super::roles::{LONGEST, make_channel, write_message};
use shmcast::{Event, Publisher, Start, Subscriber};
use shmcast_bridge::egress::{EgressInvoker, EgressOptions};
use shmcast_bridge::ingress::{IngressInvoker, IngressOptions};
use shmcast_bridge::spec::{BridgeSpec, LineSpec, ReceiveSpec, RepairSpec, SendSpec, StartAt};
use shmcast_bridge::status::Phase;
use shmcast_testkit::place::own_address;
use shmcast_testkit::turn::turn;
use shmcast_testkit::wait_for;

const MESSAGES: u64 = 1_000;

#[test]
fn one_thread_publishes_sends_receives_and_reads() {
    let _turn = turn();
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let line = LineSpec::to(own_address());
    let mut publisher = make_channel(a.path());
    let mut repair = RepairSpec::new("127.0.0.1:0".parse().unwrap());
    repair.allow = vec!["127.0.0.1".parse().unwrap()];
    let send =
        SendSpec { from: StartAt::Oldest, linger_ms: 100, repair: Some(repair), ..SendSpec::default() };
    let spec = BridgeSpec { lines: vec![line.clone()], send: Some(send), ..BridgeSpec::new("t") };
    let channel = Subscriber::builder("t").dir(a.path());
    let mut egress = EgressInvoker::open(&spec, channel, EgressOptions::default()).unwrap();

    // Nobody receives the first half, so it is requested later.
    let mut buffer = [0; LONGEST];
    let mut publish = |egress: &mut EgressInvoker| {
        let size = write_message(publisher.next_sequence(), &mut buffer);
        publisher.publish(&buffer[..size]).unwrap();
        assert!(egress.invoke());
    };
    (0..MESSAGES / 2).for_each(|_| publish(&mut egress));

    let server = egress.egress.repair_address().unwrap();
    let receive = ReceiveSpec { servers: vec![server], from: Some(1), ..ReceiveSpec::default() };
    let spec = BridgeSpec { lines: vec![line], receive: Some(receive), ..BridgeSpec::new("t") };
    let channel = Publisher::builder("t").dir(b.path()).capacity(4 << 20).max_message(LONGEST as u64);
    let mut ingress = IngressInvoker::open(&spec, channel, IngressOptions::default()).unwrap();
    let mut reader = Subscriber::builder("t").dir(b.path()).start(Start::Oldest).open().unwrap();

    let (mut next, mut expected) = (1, [0; LONGEST]);
    let mut read = |reader: &mut Subscriber| {
        while let Some(event) = reader.try_recv().unwrap() {
            match event {
                Event::Message(message) => {
                    let size = write_message(next, &mut expected);
                    assert_eq!((message.sequence, message.payload), (next, &expected[..size]));
                    next += 1;
                }
                Event::NewSession { .. } | Event::NewEpoch { .. } => {}
                Event::End => return None,
                other => panic!("{other:?}"),
            }
        }
        Some(next)
    };
    for _ in 0..MESSAGES / 2 {
        publish(&mut egress);
        assert!(ingress.invoke());
        read(&mut reader).unwrap();
    }
    wait_for("all messages", || {
        assert!(egress.invoke() && ingress.invoke());
        (read(&mut reader) == Some(MESSAGES + 1)).then_some(())
    });

    publisher.close();
    wait_for("the reader's end", || {
        egress.invoke();
        assert!(ingress.invoke(), "an ingress waits for the next session");
        read(&mut reader).is_none().then_some(())
    });
    egress.egress.leave();
    wait_for("the sending end", || (!egress.invoke()).then_some(()));
    assert!(!egress.invoke(), "over is over");
    assert_eq!(egress.egress.life().phase(), Phase::Ended);
    ingress.ingress.stop();
    assert!(!ingress.invoke() && !ingress.invoke());
    assert_eq!(ingress.ingress.life().phase(), Phase::Ended);
    let counters = ingress.ingress.counters();
    assert_eq!((counters.host.messages_published, counters.host.messages_missing), (MESSAGES, 0));
}
