//! What does a gate cost `publish`, how long does a stopped reader hold a message up, and how fast is a lossless stream?
//!
//! `cargo run --profile dist -p shmcast-bench --example gates`. One process; the readers are threads of it. The rounds without a gate, with a
//! gate that nobody holds, and with a gate whose reader keeps up follow each other, so that a change of the machine meets all of them. Each figure is
//! the median of the rounds.

use shmcast::{Event, Gate, Publisher, Subscriber, Wait};
use std::time::{Duration, Instant};

const MESSAGES: u64 = 400_000;
const ROUNDS: usize = 15;
const CAPACITY: u64 = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Case {
    None,
    Absent,
    KeepsUp,
}

/// Nanoseconds a message of 64 B. The reader takes each batch of 1000 before the next is published, so that it keeps up on any machine.
fn publish(case: Case) -> f64 {
    let dir = tempfile::tempdir_in("/dev/shm").expect("shared memory");
    let mut builder = Publisher::builder("t").dir(dir.path()).capacity(CAPACITY);
    if case != Case::None {
        builder = builder.gate(Gate::new("g"));
    }
    let mut publisher = builder.open().expect("a new channel");
    let mut reader = Subscriber::builder("t").dir(dir.path());
    if case == Case::KeepsUp {
        reader = reader.gate("g");
    }
    let mut reader = reader.open().expect("a channel");
    let mut spent = Duration::ZERO;
    for _ in 0..MESSAGES / 1000 {
        let begun = Instant::now();
        for _ in 0..1000 {
            publisher.publish(&[7; 64]).expect("it fits");
        }
        spent += begun.elapsed();
        while reader.try_recv().expect("a sound ring").is_some() {}
    }
    spent.as_nanos() as f64 / MESSAGES as f64
}

/// The longest `publish` while the gate's reader never reads.
fn stopped(wait: Duration) -> Duration {
    let dir = tempfile::tempdir_in("/dev/shm").expect("shared memory");
    let gate = Gate::new("g").wait(wait);
    let builder = Publisher::builder("t").dir(dir.path()).capacity(1 << 20).gate(gate);
    let mut publisher = builder.open().expect("a new channel");
    let _reader = Subscriber::builder("t").dir(dir.path()).gate("g").open().expect("a channel");
    let mut longest = Duration::ZERO;
    for _ in 0..20_000 {
        let begun = Instant::now();
        publisher.publish(&[7; 64]).expect("it fits");
        longest = longest.max(begun.elapsed());
    }
    longest
}

/// Messages a second that reach a gate's reader without a loss, on another thread.
fn lossless(length: usize) -> f64 {
    let dir = tempfile::tempdir_in("/dev/shm").expect("shared memory");
    let gate = Gate::new("g").wait(Duration::from_secs(10));
    let builder = Publisher::builder("t").dir(dir.path()).capacity(1 << 20).gate(gate);
    let mut publisher = builder.open().expect("a new channel");
    let reader = Subscriber::builder("t").dir(dir.path()).gate("g").wait(Wait::SpinThenYield(2000));
    let mut reader = reader.open().expect("a channel");
    let count = 3_000_000;
    let reading = std::thread::spawn(move || {
        let mut due = 1;
        while due <= count {
            let take = |event: Event<'_>| match event {
                Event::Message(m) => {
                    assert_eq!(m.sequence, due);
                    due += 1;
                }
                other => panic!("{other:?}"),
            };
            if reader.recv_batch(1024, take).expect("a sound ring") == 0 {
                std::hint::spin_loop();
            }
        }
    });
    let payload = vec![7; length];
    let begun = Instant::now();
    for _ in 0..count {
        publisher.publish(&payload).expect("the reader lives");
    }
    reading.join().expect("no loss");
    count as f64 / begun.elapsed().as_secs_f64()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() {
    let cases = [Case::None, Case::Absent, Case::KeepsUp];
    let mut found = [const { Vec::new() }; 3];
    for round in 0..=ROUNDS {
        for turn in 0..cases.len() {
            // Each round begins with another case.
            let case = (round + turn) % cases.len();
            let ns = publish(cases[case]);
            if round > 0 {
                found[case].push(ns); // the first round warms up
            }
        }
    }
    for (figures, case) in found.into_iter().zip(cases) {
        let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
        println!("publish of 64 B, gate {case:?}: {:.1} ns, at least {least:.1} ns", median(figures));
    }
    for wait_us in [50, 200, 1000, 5000] {
        let longest = (0..5).map(|_| stopped(Duration::from_micros(wait_us))).min().expect("five rounds");
        println!(
            "stopped reader, wait {wait_us} us: longest publish {} us (the least of 5 rounds)",
            longest.as_micros()
        );
    }
    for length in [32, 256, 1024] {
        let rate = median((0..5).map(|_| lossless(length)).collect());
        println!("lossless, {length} B: {:.2} million messages a second", rate / 1e6);
    }
}
