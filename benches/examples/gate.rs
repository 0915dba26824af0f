//! Measures the cost of a gate for the publisher, and the effect of a slow reader that holds a gate.
//!
//! - `publish`: the duration of a `publish` of 64 bytes, with and without a gate, in ns. A channel with a gate and a channel without one
//!   take turns in one process, and have one reader each. In each turn, a burst of 32 messages is published, and then received. The figures
//!   are the median and the 99th percentile of the bursts.
//! - `stopped`: the longest `publish` while the gate's reader never reads, for several limits of the wait. Each figure is the least of 5
//!   rounds, because the system sometimes takes the CPU away.
//! - `hundred`: 100 readers of 1,000,000 messages. One reader holds the gate, and spends 2 us more on each message than the other readers.
//!   The publisher has one CPU, and the readers share another one. In the first run, the gate can hold messages up for as long as the reader needs. In the second run, the gate holds a message up for
//!   200 us, and is then dropped. An argument sets another number of messages.
//!
//! Run it by `cargo run --release -p shmcast-bench --example gate`. The figures give a first impression. Published figures follow the rules
//! of METHOD.md.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use shmcast::{Event, Gate, Preparation, Publisher, Subscriber, Wait};
use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BURSTS: usize = 20_000;
const BURST: u64 = 32;
const READERS: usize = 100;
const MESSAGES: u64 = 1_000_000;

type Outcome<T, E = Box<dyn Error>> = Result<T, E>;

/// The counts of one reader.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    received: u64,
    missed: u64,
}

fn open(dir: &Path, name: &str, gate: Option<Gate>) -> Outcome<Publisher> {
    let builder = Publisher::builder(name).dir(dir).capacity(4 << 20).prepare(Preparation::FULL);
    Ok(match gate {
        Some(gate) => builder.gate(gate).open()?,
        None => builder.open()?,
    })
}

fn reader(dir: &Path, name: &str, gate: Option<&str>, wait: Wait) -> Outcome<Subscriber> {
    let builder = Subscriber::builder(name).dir(dir).wait(wait);
    Ok(match gate {
        Some(gate) => builder.gate(gate).open()?,
        None => builder.open()?,
    })
}

/// Receives until the channel ends. After each message, stores the message's sequence in `last`, and spins for `work`.
fn receive(mut reader: Subscriber, last: &AtomicU64, work: Duration) -> Count {
    let mut count = Count::default();
    loop {
        match reader.recv() {
            Ok(Event::Message(m)) => {
                count.received += 1;
                last.store(m.sequence, Ordering::Release);
                let until = Instant::now() + work;
                while !work.is_zero() && Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
            Ok(Event::Lapped(lapped)) => count.missed += lapped.missed,
            Ok(Event::End) | Err(_) => return count,
            Ok(_) => {}
        }
    }
}

/// Publishes a burst, and waits until the reader has received it. Returns the mean time of a `publish` in ns, without the wait.
fn burst(publisher: &mut Publisher, last: &AtomicU64) -> Outcome<f64> {
    let message = [7; 64];
    let start = Instant::now();
    let mut sequence = 0;
    for _ in 0..BURST {
        sequence = publisher.publish(black_box(&message))?;
    }
    let time = start.elapsed();
    while last.load(Ordering::Acquire) < sequence {
        std::hint::spin_loop();
    }
    Ok(time.as_nanos() as f64 / BURST as f64)
}

fn publish(dir: &Path) -> Outcome<()> {
    let names = ["plain", "gated"];
    let mut publishers = [open(dir, names[0], None)?, open(dir, names[1], Some(Gate::new("g")))?];
    let readers = [reader(dir, names[0], None, Wait::Spin)?, reader(dir, names[1], Some("g"), Wait::Spin)?];
    let last = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| -> Outcome<()> {
        // One thread receives both channels, so that no channel has a core for itself.
        let [one, other] = readers;
        scope.spawn(|| both([one, other], &last));
        let mut figures = [Vec::new(), Vec::new()];
        for _ in 0..BURSTS {
            for at in 0..2 {
                figures[at].push(burst(&mut publishers[at], &last[at])?);
            }
        }
        for publisher in publishers {
            publisher.close();
        }
        let at = |figures: &mut Vec<f64>, part: f64| {
            figures.sort_by(f64::total_cmp);
            figures[((figures.len() - 1) as f64 * part) as usize]
        };
        let [mut plain, mut gated] = figures;
        for part in [0.5, 0.99] {
            let (plain, gated) = (at(&mut plain, part), at(&mut gated, part));
            let difference = gated - plain;
            println!(
                "publish 64 B, p{}: {plain:.1} ns without a gate, {gated:.1} with one, {difference:+.1}",
                part * 100.0
            );
        }
        Ok(())
    })
}

fn both(mut readers: [Subscriber; 2], last: &[AtomicU64; 2]) {
    let mut open = 2;
    while open > 0 {
        for (reader, last) in readers.iter_mut().zip(last) {
            match reader.try_recv() {
                Ok(Some(Event::Message(m))) => last.store(m.sequence, Ordering::Release),
                Ok(Some(Event::End)) | Err(_) => open -= 1,
                Ok(_) => {}
            }
        }
    }
}

/// Returns the duration of the longest `publish` while the gate's reader never reads.
fn stopped(dir: &Path, name: &str, wait: Duration) -> Outcome<Duration> {
    let mut publisher = open(dir, name, Some(Gate::new("g").wait(wait)))?;
    let _reader = reader(dir, name, Some("g"), Wait::Spin)?;
    let mut longest = Duration::ZERO;
    for _ in 0..80_000 {
        let start = Instant::now();
        publisher.publish(black_box(&[7; 64]))?;
        longest = longest.max(start.elapsed());
    }
    Ok(longest)
}

fn hundred(dir: &Path, name: &str, wait: Duration, messages: u64) -> Outcome<()> {
    // The publisher has the first CPU, and the readers share the second one.
    shmcast::pin_current_thread(0)?;
    let mut publisher = open(dir, name, Some(Gate::new("g").wait(wait)))?;
    let last = AtomicU64::new(0);
    let slow = reader(dir, name, Some("g"), Wait::Yield)?;
    let fast: Vec<Subscriber> =
        (1..READERS).map(|_| reader(dir, name, None, Wait::Yield)).collect::<Outcome<_>>()?;
    std::thread::scope(|scope| -> Outcome<()> {
        let last = &last;
        let receive = |reader, work| {
            scope.spawn(move || -> Outcome<Count, std::io::Error> {
                shmcast::pin_current_thread(1)?;
                Ok(receive(reader, last, work))
            })
        };
        let slow = receive(slow, Duration::from_micros(2));
        for reader in fast {
            receive(reader, Duration::ZERO);
        }
        let start = Instant::now();
        for _ in 0..messages {
            publisher.publish(black_box(&[7; 64]))?;
        }
        let (time, gate) = (start.elapsed(), publisher.gates()[0]);
        publisher.close();
        let count = slow.join().map_err(|_| "the reader failed")??;
        println!(
            "{READERS} readers, one slow with a gate of {wait:?}: {:.2} M msg/s; it received {}, missed {}; {} messages were held up, \
             the longest for {:?}; dropped {} times",
            messages as f64 / time.as_secs_f64() / 1e6,
            count.received,
            count.missed,
            gate.held,
            gate.longest,
            gate.dropped
        );
        Ok(())
    })
}

fn main() -> Outcome<()> {
    let dir = tempfile::tempdir_in("/dev/shm")?;
    publish(dir.path())?;
    for wait_us in [50, 200, 1000, 5000] {
        let rounds = (0..5)
            .map(|i| stopped(dir.path(), &format!("stopped-{wait_us}-{i}"), Duration::from_micros(wait_us)));
        let least = rounds.collect::<Outcome<Vec<_>>>()?.into_iter().min().unwrap_or_default();
        println!("a stopped reader, wait {wait_us} us: longest publish {} us", least.as_micros());
    }
    let messages = std::env::args().nth(1).map_or(Ok(MESSAGES), |count| count.parse())?;
    hundred(dir.path(), "kept", Duration::from_secs(1000), messages)?;
    hundred(dir.path(), "dropped", Duration::from_micros(200), messages)
}
