//! From a publication to a reader of the far ring: both bridges, the server, publisher and reader on this machine.

use shmcast::{Event, Publisher, Start, Subscriber, Wait};
use shmcast_bridge::spec::{BridgeSpec, Engine, NatsSpec, ReceiveSpec, SendSpec};
use shmcast_engine::{Receiver, ReceiverOptions, Sender, SenderOptions};
use std::time::{Duration, Instant};

use crate::servers::{Servers, addresses};
use crate::{Words, quantile};

const CHANNEL: &str = "latency";
/// Messages before the first that counts.
const WARM_UP: u64 = 1_000;

pub(crate) fn run(words: &Words) {
    let (per_second, count) = (words.number("--rate", 1_000), words.number("--messages", 20_000));
    let (size, runs) = (words.number("--size", 64usize).max(8), words.number("--runs", 3));
    println!("{count} messages of {size} B, {per_second} a second");
    for _ in 0..runs {
        let mut found = once(words, per_second, count, size);
        found.sort_unstable();
        let at = |share| quantile(&found, share) as f64 / 1e6;
        println!(
            "p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, max {:.2} ms, {} samples",
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0),
            found.len()
        );
    }
}

fn once(words: &Words, per_second: u64, count: u64, size: usize) -> Vec<u64> {
    let (dir, near) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let far = tempfile::tempdir_in("/dev/shm").unwrap();
    let servers = Servers::start(&words.server(), words.number("--servers", 1), dir.path(), None);
    let nats = NatsSpec { servers: addresses(&servers.urls()), create: true, ..NatsSpec::default() };
    let spec = BridgeSpec { engine: Engine::Nats, nats: Some(nats), ..BridgeSpec::new(CHANNEL) };
    let mut publisher = Publisher::builder(CHANNEL).dir(near.path()).capacity(16 << 20).open().unwrap();
    let sends = BridgeSpec { send: Some(SendSpec::default()), ..spec.clone() };
    let channel = Subscriber::builder(CHANNEL).dir(near.path());
    let sender = Sender::start(&sends, channel, SenderOptions::default()).unwrap();
    let receives = BridgeSpec { receive: Some(ReceiveSpec::default()), ..spec };
    let mirror = Publisher::builder(CHANNEL).dir(far.path()).capacity(16 << 20);
    let receiver = Receiver::start(&receives, mirror, ReceiverOptions::default()).unwrap();
    let start = Instant::now();
    let reader = Subscriber::builder(CHANNEL).dir(far.path()).start(Start::Oldest);
    let mut reader = reader.wait(Wait::Sleep(Duration::from_micros(20))).open().unwrap();
    let reads = std::thread::spawn(move || {
        let (mut found, mut due) = (Vec::with_capacity(count as usize), 1);
        while due <= WARM_UP + count {
            if let Event::Message(message) = reader.recv().unwrap() {
                assert_eq!(message.sequence, due, "each message once, in order");
                let sent = u64::from_le_bytes(message.payload[..8].try_into().unwrap());
                if due > WARM_UP {
                    found.push(start.elapsed().as_nanos() as u64 - sent);
                }
                due += 1;
            }
        }
        found
    });
    let mut message = vec![0; size];
    // The grid is fixed at the start: a send that is late counts as late.
    let begin = start.elapsed().as_nanos() as u64 + 500_000_000;
    for n in 0..WARM_UP + count {
        let due = begin + n * 1_000_000_000 / per_second;
        let now = start.elapsed().as_nanos() as u64;
        std::thread::sleep(Duration::from_nanos(due.saturating_sub(now)));
        message[..8].copy_from_slice(&due.to_le_bytes());
        publisher.publish(&message).unwrap();
    }
    let found = reads.join().unwrap();
    assert_eq!((sender.counters().messages_missed, receiver.counters().messages_missing), (0, 0));
    found
}
