//! The cost of a seal at each end of a native line, and of what was forged at the receiver, for one thread: `cargo bench -p
//! shmcast-bench --bench native`. Packets are in the thread's own cache.
#![forbid(unsafe_code)]

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use shmcast_bridge::proto::native::container::{HEAD_BYTES, Kind, SEAL_BYTES};
use shmcast_bridge::proto::native::keys::Keyring;
use shmcast_bridge::proto::native::records::RecordWriter;
use shmcast_bridge::proto::native::seal::{Opener, Sealer, Unopened};
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::Meta;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The size of a packet that is full.
const PACKET_BYTES: usize = 1_400;
/// The size of a small message.
const SMALL_BYTES: usize = 64;
/// How many packets are made ahead of a timed run.
const AHEAD: usize = 256;
/// The text of a keys file. It is nobody's secret.
const KEYS: &str = "7 000102030405060708090a0b0c0d0e0f\n";

fn keyring() -> Keyring {
    Keyring::parse(KEYS).expect("a sound file of keys")
}

fn sealer(sender: u64, is_sealed: bool) -> Sealer {
    let (mut sealer, ring) = (Sealer::new(sender, false), keyring());
    sealer.set_key(ring.sealing(0).filter(|_| is_sealed));
    sealer
}

fn opener() -> Opener {
    let mut opener = Opener::new(false, 64);
    opener.set_keys(Some(keyring()), false);
    opener
}

/// Makes a packet of the body that is in the buffer. Returns its size.
fn finish(sealer: &mut Sealer, buffer: &mut [u8], body_bytes: usize) -> usize {
    let session = Session::of_channel("BNCH", 1).expect("a sound name");
    sealer.finish(buffer, (Kind::Data, false), (session, 1, 1), body_bytes).expect("the buffer has room")
}

/// Makes full packets, with other numbers in each.
fn packets(sealer: &mut Sealer) -> Vec<Vec<u8>> {
    let packet = |_| {
        let mut buffer = vec![7; PACKET_BYTES];
        finish(sealer, &mut buffer, PACKET_BYTES - HEAD_BYTES - SEAL_BYTES);
        buffer
    };
    (0..AHEAD).map(packet).collect()
}

/// The sending end: one full packet with and without a seal, and all messages of 64 B that fit one.
fn sending(c: &mut Criterion) {
    let mut group = c.benchmark_group("send");
    for (name, is_sealed) in [("open", false), ("sealed", true)] {
        let (mut sealer, mut buffer) = (sealer(1, is_sealed), vec![7; PACKET_BYTES]);
        group.bench_function(format!("{PACKET_BYTES} B packet, {name}"), |b| {
            b.iter(|| finish(&mut sealer, black_box(&mut buffer), PACKET_BYTES - HEAD_BYTES - SEAL_BYTES));
        });
        let message = [7; SMALL_BYTES];
        let mut pack = move || {
            let mut writer = RecordWriter::new(1);
            // The room for the seal stays free.
            let room = &mut buffer[..PACKET_BYTES - SEAL_BYTES];
            while writer.push(room, black_box(&message), Meta::default()) {}
            let body_bytes = writer.finish(room).expect("at least one message");
            black_box(finish(&mut sealer, &mut buffer, body_bytes));
            writer.count()
        };
        let count = pack();
        group.bench_function(format!("{count} messages of {SMALL_BYTES} B in a packet, {name}"), |b| {
            b.iter(&mut pack)
        });
    }
}

/// The receiving end. The time of a call is that of one packet.
fn receiving(c: &mut Criterion) {
    let mut group = c.benchmark_group("receive");
    let mut out = vec![0; PACKET_BYTES];
    let (mut sealer, mut opener) = (sealer(1, true), opener());
    group.bench_function(format!("{PACKET_BYTES} B packet, sealed"), |b| {
        b.iter_custom(|times| {
            let mut spent = Duration::ZERO;
            for _ in 0..times.div_ceil(AHEAD as u64) {
                let packets = packets(&mut sealer);
                let start = Instant::now();
                for packet in &packets {
                    assert!(opener.open(0, black_box(packet), &mut out).is_ok());
                }
                spent += start.elapsed();
            }
            spent.mul_f64(times as f64 / times.next_multiple_of(AHEAD as u64) as f64)
        });
    });
    let taken = packets(&mut sealer);
    assert!(taken.iter().all(|packet| opener.open(0, packet, &mut out).is_ok()));
    refused(&mut group, "that was taken before", &mut opener, &taken, |reason| reason == Unopened::Replayed);
    let mut changed = packets(&mut sealer);
    changed.iter_mut().for_each(|packet| packet[PACKET_BYTES - 1] ^= 1);
    refused(&mut group, "with a wrong tag", &mut opener, &changed, |reason| reason == Unopened::Forged);
    let mut strangers: Vec<Vec<u8>> =
        (0..8).flat_map(|sender| packets(&mut self::sealer(100 + sender, true))).collect();
    strangers.iter_mut().for_each(|packet| packet[PACKET_BYTES - 1] ^= 1);
    refused(&mut group, "of senders that are not known", &mut opener, &strangers, |reason| {
        matches!(reason, Unopened::Forged | Unopened::Unknown)
    });
}

/// One packet after the other, none of which opens. They come as fast as they are refused.
fn refused(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    opener: &mut Opener,
    packets: &[Vec<u8>],
    is_expected: impl Fn(Unopened) -> bool,
) {
    let mut out = vec![0; PACKET_BYTES];
    let (mut next, mut now_ns, started) = (0, 0, Instant::now());
    group.bench_function(format!("{PACKET_BYTES} B packet {name}"), |b| {
        b.iter(|| {
            next = (next + 1) % packets.len();
            // A receiver reads the clock once a batch.
            if next.is_multiple_of(32) {
                now_ns = started.elapsed().as_nanos() as u64;
            }
            let opened = opener.open(now_ns, black_box(&packets[next]), &mut out);
            assert!(opened.is_err_and(&is_expected));
        });
    });
}

criterion_group!(benches, sending, receiving);
criterion_main!(benches);
