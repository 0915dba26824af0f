//! After start-up the data plane must not allocate, make system calls, or cause page faults.

use crate::support::{drain, publisher, subscriber};
use allocation_counter::{AllocationInfo, measure};
use nix::sys::resource::{UsageWho, getrusage};
use shmcast::{ClockKind, Event, Mark, Publisher, Subscriber};
use shmcast_testkit::process::{in_dir, my_dir, my_role, run};
use shmcast_testkit::{role, scratch, skip, works};
use std::path::Path;

/// Uses every way of publishing and receiving, with wraps, pads, frontier moves and laps, in a ring of 1 MiB.
fn exercise(
    publisher: &mut Publisher,
    subscriber: &mut Subscriber,
    buffer: &mut [u8],
    payload: &[u8],
) -> u64 {
    let mut received = 0;
    for round in 0..400usize {
        let length = round * 337 % payload.len();
        publisher.publish(&payload[..length]).expect("it fits");
        publisher.publish_with(&payload[..48], Mark { tag: 7, key: true }).expect("it fits");
        let mut claim = publisher.claim(length).expect("it fits");
        claim.fill(round as u8);
        claim.commit(length / 2).unwrap();
        publisher.claim(100).expect("it fits").abort();
        publisher.publish_batch([&payload[..1], &payload[..2]]).expect("they fit");
        let refused = publisher.publish(&[0; 200_000]);
        assert!(refused.is_err());
        if round % 100 < 50 {
            received += subscriber.recv_batch(3, |_| ()).expect("a sound ring") as u64;
            while let Some(event) = subscriber.try_recv_into(buffer).expect("a sound ring") {
                received += u64::from(matches!(event, Event::Message(_) | Event::Lapped(_)));
            }
        }
    }
    subscriber.seek(publisher.next_sequence() - 1).expect("just published");
    received
}

#[test]
fn publishing_and_receiving_allocate_nothing() {
    let dir = scratch();
    let mut publisher = publisher(dir.path()).capacity(1 << 20).open().unwrap();
    let mut subscriber = subscriber(dir.path()).record_latency(true).open().unwrap();
    let (mut buffer, payload) = (vec![0; publisher.max_message()], vec![1; 20_000]);
    let mut received = 0;
    let counted = measure(|| received = exercise(&mut publisher, &mut subscriber, &mut buffer, &payload));
    assert_eq!(counted, AllocationInfo::default(), "of this thread; others allocate as they like");
    assert!(received > 500, "{received}");
    let counted = measure(|| drop(vec![1u8; 10]));
    assert_eq!((counted.count_total, counted.count_current), (1, 0), "the counter counts");
    let kept = vec![1u8; 10];
    assert_eq!(measure(|| drop(kept)).count_current, -1, "and what is given back");
}

fn faults() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).unwrap().minor_page_faults()
}

/// A ring of 1 MiB takes 288 pages, and each of the two buffers for messages of 128 KiB takes 32.
#[test]
fn the_first_messages_touch_no_new_page() {
    let dir = scratch();
    let payload = vec![1; 1 << 17];
    let warm_up = scratch();
    for (dir, is_measured) in [(warm_up, false), (dir, true)] {
        let mut publisher = publisher(dir.path()).capacity(1 << 20).open().unwrap();
        let mut subscriber = subscriber(dir.path()).open().unwrap();
        let before = faults();
        for _ in 0..20 {
            publisher.claim(payload.len()).unwrap().commit(payload.len() - 1).unwrap();
            publisher.publish(&payload).unwrap();
            assert_eq!(subscriber.recv_batch(10, |_| ()).unwrap(), 2);
        }
        let faults = faults() - before;
        // The kernel itself causes a few, such as for pages that it moves.
        assert!(!is_measured || faults < 16, "{faults} page faults");
    }
}

/// Plays the roles of other processes, which other tests here start.
#[test]
#[ignore = "plays a part in other tests"]
fn play() {
    let Some(role) = my_role() else { return skip("play", "started by other tests only") };
    assert_eq!(role, "traced");
    traced(&my_dir());
}

const BEGIN: &str = "/data-plane-begins";
const END: &str = "/data-plane-ends";

fn traced(dir: &Path) {
    let mut publisher = publisher(dir).capacity(1 << 20).open().unwrap();
    let mut subscriber = subscriber(dir).record_latency(true).open().unwrap();
    let (mut buffer, payload) = (vec![0; publisher.max_message()], vec![1; 20_000]);
    // These calls only mark a place in the trace.
    let mark = |path: &str| assert!(!Path::new(path).exists());
    mark(BEGIN);
    exercise(&mut publisher, &mut subscriber, &mut buffer, &payload);
    mark(END);
    assert_eq!(drain(&mut subscriber).len(), 1);
}

#[test]
fn publishing_and_receiving_call_the_system_never() {
    let name = "publishing_and_receiving_call_the_system_never";
    if !works("strace", &["-o", "/dev/null", "true"]) {
        return skip(name, "no strace here, or it may not trace");
    }
    if shmcast::Clock::of_this_host().kind() != ClockKind::Counter {
        return skip(name, "this machine's clock is the kernel's");
    }
    let dir = scratch();
    let trace = dir.path().join("trace");
    let strace = ["strace", "-f", "-o", trace.to_str().unwrap()];
    run(in_dir(&mut role!(under strace, "traced"), &dir.path().join("channels"))).unwrap();
    let trace = std::fs::read_to_string(&trace).unwrap();
    let begin = trace.lines().find(|line| line.contains(BEGIN)).expect("the mark at the beginning");
    let thread = begin.split_whitespace().next().unwrap();
    // A reader checks once a second that the files still have their name.
    let is_other = |line: &&str| !line.contains("newfstatat(");
    let of_thread = trace
        .lines()
        .filter(|line| line.split_whitespace().next() == Some(thread))
        .filter(|line| is_other(line) || line.contains(BEGIN) || line.contains(END));
    let calls: Vec<_> = of_thread
        .skip_while(|line| !line.contains(BEGIN))
        .skip(1)
        .take_while(|line| !line.contains(END))
        .collect();
    assert_eq!(calls, Vec::<&str>::new(), "calls by the thread that publishes and receives");
    assert!(trace.contains(END), "the trace goes on to the end");
}
