//! The cost of each operation for one thread with the ring in its own cache, beside the ideal ring: `cargo bench -p
//! shmcast-bench`. Nothing here crosses a core; `shmcast-bench latency` does.
#![forbid(unsafe_code)]

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use shmcast::{Event, Preparation, Publisher, Subscriber};
use shmcast_bench::ideal::{IdealReader, IdealWriter, Shape};
use std::hint::black_box;
use std::time::{Duration, Instant};

const SIZES: [usize; 5] = [32, 64, 256, 1024, 16384];
/// The same footprint for both rings, so that both live in the same cache.
const RING_BYTES: usize = 1 << 20;
const BATCH: usize = 64;
/// Messages that a receiver is behind where it takes one a call.
const BEHIND: usize = 1024;

fn pair(dir: &tempfile::TempDir, name: &str) -> (Publisher, Subscriber) {
    let publisher = Publisher::builder(name).dir(dir.path()).capacity(RING_BYTES as u64);
    let publisher = publisher.prepare(Preparation::FULL).open();
    let subscriber = Subscriber::builder(name).dir(dir.path()).open();
    (publisher.expect("a new channel"), subscriber.expect("the channel just made"))
}

fn ideal_pair(dir: &tempfile::TempDir, size: usize) -> (IdealWriter, IdealReader) {
    let (path, shape) = (dir.path().join(format!("ideal-{size}")), Shape::of_bytes(size, RING_BYTES));
    let writer = IdealWriter::create(&path, shape).expect("a new ring");
    (writer, IdealReader::open(&path, shape).expect("the ring just made"))
}

fn publish(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut group = c.benchmark_group("publish");
    for size in SIZES {
        let payload = vec![7; size];
        group.throughput(Throughput::Bytes(size as u64));
        let (mut publisher, _) = pair(&dir, &format!("publish-{size}"));
        group.bench_function(BenchmarkId::new("shmcast", size), |b| {
            b.iter(|| publisher.publish(black_box(&payload)).expect("it fits"));
        });
        let (mut writer, _) = ideal_pair(&dir, size);
        group.bench_function(BenchmarkId::new("ideal", size), |b| {
            b.iter(|| writer.publish(black_box(&payload)));
        });
    }
}

fn poll_empty(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut group = c.benchmark_group("poll empty");
    let (_publisher, mut subscriber) = pair(&dir, "empty");
    group.bench_function("shmcast", |b| {
        b.iter(|| assert!(subscriber.try_recv().expect("a sound ring").is_none()));
    });
    let (_writer, mut reader) = ideal_pair(&dir, 64);
    let mut out = [0; 64];
    group.bench_function("ideal", |b| b.iter(|| assert!(!reader.poll(&mut out))));
}

/// Publish and receive in turns: subtract `publish` for the cost of a poll that finds a message.
fn poll_hit(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut group = c.benchmark_group("publish and poll hit");
    for size in SIZES {
        let payload = vec![7; size];
        group.throughput(Throughput::Bytes(size as u64));
        let (mut publisher, mut subscriber) = pair(&dir, &format!("hit-{size}"));
        group.bench_function(BenchmarkId::new("shmcast", size), |b| {
            b.iter(|| {
                publisher.publish(&payload).expect("it fits");
                match subscriber.try_recv().expect("a sound ring") {
                    Some(Event::Message(m)) => black_box(m.payload).len(),
                    other => panic!("a message was published: {other:?}"),
                }
            });
        });
        let (mut writer, mut reader) = ideal_pair(&dir, size);
        let mut out = vec![0; size];
        group.bench_function(BenchmarkId::new("ideal", size), |b| {
            b.iter(|| {
                writer.publish(&payload);
                assert!(reader.poll(&mut out));
                black_box(&out).len()
            });
        });
    }
}

fn batch(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut group = c.benchmark_group("batch of 64");
    for size in SIZES.into_iter().filter(|size| size * BATCH < RING_BYTES / 2) {
        let payload = vec![7; size];
        group.throughput(Throughput::Elements(BATCH as u64));
        let (mut publisher, mut subscriber) = pair(&dir, &format!("batch-{size}"));
        group.bench_function(BenchmarkId::new("shmcast", size), |b| {
            b.iter(|| {
                publisher.publish_batch((0..BATCH).map(|_| &payload)).expect("it fits");
                let got = subscriber.recv_batch(BATCH, |event| {
                    black_box(event);
                });
                assert_eq!(got.expect("a sound ring"), BATCH);
            });
        });
        let (mut writer, mut reader) = ideal_pair(&dir, size);
        let mut out = vec![0; size];
        group.bench_function(BenchmarkId::new("ideal", size), |b| {
            b.iter(|| {
                (0..BATCH).for_each(|_| writer.publish(&payload));
                (0..BATCH).for_each(|_| {
                    assert!(reader.poll(&mut out));
                    black_box(&out);
                });
            });
        });
    }
}

/// A receiver that is far behind and takes one message a call. The time is that of the receiving calls alone.
fn one_a_call(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut group = c.benchmark_group("one message a call");
    for size in SIZES.into_iter().filter(|size| size * BEHIND < RING_BYTES / 2) {
        let payload = vec![7; size];
        let mut out = vec![0; size];
        let (mut publisher, mut subscriber) = pair(&dir, &format!("one-{size}"));
        let mut take = |group: &mut BenchmarkGroup<'_, WallTime>, call, into: bool| {
            group.bench_function(BenchmarkId::new(call, size), |b| {
                b.iter_custom(|times| {
                    let mut spent = Duration::ZERO;
                    for _ in 0..times.div_ceil(BEHIND as u64) {
                        publisher.publish_batch((0..BEHIND).map(|_| &payload)).expect("it fits");
                        let start = Instant::now();
                        for _ in 0..BEHIND {
                            let event =
                                if into { subscriber.try_recv_into(&mut out) } else { subscriber.try_recv() };
                            assert!(matches!(black_box(event), Ok(Some(Event::Message(_)))));
                        }
                        spent += start.elapsed();
                    }
                    spent.mul_f64(times as f64 / times.next_multiple_of(BEHIND as u64) as f64)
                });
            });
        };
        take(&mut group, "try_recv", false);
        take(&mut group, "try_recv_into", true);
    }
}

criterion_group!(benches, publish, poll_empty, poll_hit, batch, one_a_call);
criterion_main!(benches);
