//! A publisher that gives its messages no time, and what readers make of them.

use shmcast::{Event, Mark, Publisher, Stamps, Start, Subscriber};
use shmcast_testkit::scratch;

fn latency(subscriber: &mut Subscriber) -> Option<u64> {
    let clock = subscriber.clock();
    match subscriber.recv().unwrap() {
        Event::Message(message) => message.latency_ns(&clock),
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_messages_with_a_time_have_a_latency_and_are_counted() {
    let dir = scratch();
    let builder = Publisher::builder("t").dir(dir.path()).capacity(1 << 16);
    let mut publisher = builder.stamps(Stamps::Given).open().unwrap();
    let reader = Subscriber::builder("t").dir(dir.path()).start(Start::Oldest).record_latency(true);
    let mut subscriber = reader.open().unwrap();
    publisher.publish(b"plain").unwrap();
    publisher.publish_with(b"marked", Mark { tag: 1, key: true }).unwrap();
    publisher.publish_batch(["a", "b"]).unwrap();
    let mut claim = publisher.claim(1).unwrap();
    claim[0] = b'c';
    claim.commit(1).unwrap();
    let time = publisher.clock().now();
    publisher.publish_at(b"given", Mark::default(), time).unwrap();
    for _ in 0..5 {
        assert_eq!(latency(&mut subscriber), None);
    }
    assert!(latency(&mut subscriber).is_some());
    let readers = shmcast::Directory::at(dir.path()).channel("t").unwrap().readers;
    assert_eq!((readers.len(), readers[0].stats.received), (1, 6));
    assert_eq!(readers[0].stats.histogram.iter().sum::<u64>(), 1, "latencies that were counted");
}

#[test]
fn each_message_has_a_time_where_nothing_else_was_asked_for() {
    let dir = scratch();
    let mut publisher = Publisher::builder("t").dir(dir.path()).capacity(1 << 16).open().unwrap();
    let mut subscriber = Subscriber::builder("t").dir(dir.path()).open().unwrap();
    publisher.publish(b"plain").unwrap();
    publisher.publish_batch(["a"]).unwrap();
    for _ in 0..2 {
        assert!(latency(&mut subscriber).is_some());
    }
}
