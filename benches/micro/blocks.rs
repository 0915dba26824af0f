//! The cost of a message on its way from a ring into a block of an engine, and from a block into a ring, for one thread: `cargo
//! bench -p shmcast-bench --bench blocks`. The figure is that of a whole pass, and a pass has the messages that its line names.
//! `near` rings stay in the thread's own cache; `far` ones are larger than it, as that of a bridge that is behind.
#![forbid(unsafe_code)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use shmcast::{Event, Preparation, Publisher, Start, Subscriber};
use shmcast_bridge::local::Local;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::Meta;
use shmcast_bridge::times::{Moment, OriginTimes};
use shmcast_engine::proto::block::{BlockId, Body, Head, Packing, Stream};
use shmcast_engine::proto::seal::{Opener, Sealer};
use std::hint::black_box;
use std::ops::ControlFlow;

/// The size of a block, as bridges have it by default.
const BLOCK_BYTES: usize = 64 << 10;
/// The sizes of messages.
const SIZES: [usize; 2] = [64, 1024];
/// Rings by name.
const RINGS: [(&str, u64); 2] = [("near", 1 << 20), ("far", 256 << 20)];

fn head(number: u64) -> Head {
    Head::new(
        Stream([7; 16]),
        Session::of_channel("BNCH", 1).expect("a sound name"),
        BlockId { writer: 1, number },
    )
}

/// Opens a channel, and fills three quarters of its ring. Returns how many messages there are.
fn filled(dir: &tempfile::TempDir, name: &str, ring_bytes: u64, size: usize) -> u64 {
    let builder = Publisher::builder(name).dir(dir.path()).capacity(ring_bytes);
    let mut publisher = builder.prepare(Preparation::FULL).open().expect("a new channel");
    let record = (size + 16).next_multiple_of(64) as u64;
    let (count, body) = (ring_bytes / 4 * 3 / record, vec![7; size]);
    for _ in 0..count {
        publisher.publish(&body).expect("it fits");
    }
    count
}

/// Hands the messages from the first one on to `block` as blocks.
fn cut(subscriber: &mut Subscriber, packing: &mut Packing, mut block: impl FnMut(&[u8])) {
    subscriber.seek(1).expect("the ring holds all of them");
    let moment = Moment::now(subscriber.clock());
    let sealer = Sealer::default();
    let mut number = 0;
    let mut close = |packing: &mut Packing| {
        if let Some(cut) = packing.cut() {
            number += 1;
            let (bytes, _) = cut.finish(head(number), &sealer);
            block(&bytes);
            packing.give(bytes);
        }
    };
    loop {
        let taken = subscriber.recv_batch(4096, |event| {
            let Event::Message(message) = event else { return ControlFlow::Break(()) };
            let time_ns = moment.wall_of(message.time);
            let meta = Meta { tag: message.tag, key: message.key, time_ns };
            if !packing.push(message.sequence, message.payload, meta) {
                close(packing);
                assert!(packing.push(message.sequence, message.payload, meta), "it fits an empty block");
            }
            ControlFlow::Continue(())
        });
        if taken.expect("a sound ring") == 0 {
            return close(packing);
        }
    }
}

/// From a ring into blocks: read, packed and with their checksums.
fn pack(c: &mut Criterion) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let mut group = c.benchmark_group("ring to blocks");
    group.sample_size(20);
    for (size, (place, ring_bytes)) in SIZES.into_iter().flat_map(|size| RINGS.map(|ring| (size, ring))) {
        let name = format!("pack-{place}-{size}");
        let count = filled(&dir, &name, ring_bytes, size);
        let mut subscriber =
            Subscriber::builder(&name).dir(dir.path()).start(Start::Oldest).open().expect("the channel");
        let mut packing = Packing::new(BLOCK_BYTES);
        group.throughput(Throughput::Elements(count));
        group.bench_function(BenchmarkId::new(place, size), |b| {
            b.iter(|| cut(&mut subscriber, &mut packing, |block| _ = black_box(block)));
        });
    }
}

/// From blocks into a ring: checked and published with their times.
fn unpack(c: &mut Criterion) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let mut group = c.benchmark_group("blocks to ring");
    group.sample_size(20);
    for (size, (place, ring_bytes)) in SIZES.into_iter().flat_map(|size| RINGS.map(|ring| (size, ring))) {
        let name = format!("from-{place}-{size}");
        let count = filled(&dir, &name, ring_bytes, size);
        let mut subscriber =
            Subscriber::builder(&name).dir(dir.path()).start(Start::Oldest).open().expect("the channel");
        let mut blocks = Vec::new();
        cut(&mut subscriber, &mut Packing::new(BLOCK_BYTES), |block| blocks.push(block.to_vec()));
        let publisher = Publisher::builder(format!("to-{place}-{size}")).dir(dir.path()).capacity(ring_bytes);
        let publisher = publisher.prepare(Preparation::FULL).open().expect("a new channel");
        let mut local = Local::new(publisher, OriginTimes::new(Some(0)));
        let mut opener = Opener::default();
        group.throughput(Throughput::Elements(count));
        group.bench_function(BenchmarkId::new(place, size), |b| {
            b.iter(|| {
                for block in &blocks {
                    let (_, body) = opener.open(black_box(block)).expect("a sound block");
                    let Body::Messages(messages) = body else { panic!("{body:?}") };
                    let first = local.publisher.as_ref().map_or(0, Publisher::next_sequence);
                    for (sequence, message) in (first..).zip(messages.messages()) {
                        assert!(
                            local.publish(sequence, message.data, message.meta),
                            "no gate holds a message up"
                        );
                    }
                }
            });
        });
        assert!(local.error.is_none() && local.counts.missing == 0);
    }
}

criterion_group!(benches, pack, unpack);
criterion_main!(benches);
