//! One publisher, a reader on each further CPU, all in one process: what each reader received, missed, and how old
//! its messages were on arrival.

use shmcast::{Event, Publisher, Subscriber, Wait, pin_current_thread};
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const MESSAGES: u64 = 20_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let mut publisher = Publisher::builder("fan-out").dir(dir.path()).capacity(8 << 20).open()?;
    let cpus = std::thread::available_parallelism()?.get();
    let readers = (cpus - 1).max(1);
    let ready = Barrier::new(readers + 1);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..readers)
            .map(|reader| {
                let (cpu, path, ready) = ((reader + 1) % cpus, dir.path(), &ready);
                scope.spawn(move || read(cpu, path, ready).map_err(|e| e.to_string()))
            })
            .collect();
        pin_current_thread(0)?;
        ready.wait();
        for number in 0..MESSAGES {
            publisher.publish(&number.to_le_bytes())?;
            let pause = Instant::now();
            while pause.elapsed() < Duration::from_micros(10) {
                std::hint::spin_loop();
            }
        }
        publisher.close();
        for reader in readers {
            println!("{}", reader.join().map_err(|_| "a reader panicked")??);
        }
        Ok(())
    })
}

fn read(cpu: usize, path: &Path, ready: &Barrier) -> Result<String, Box<dyn std::error::Error>> {
    // Everybody arrives at the barrier, also who could not open.
    let pinned = pin_current_thread(cpu);
    let opened = Subscriber::builder("fan-out").dir(path).wait(Wait::SpinThenYield(10_000)).open();
    ready.wait();
    pinned?;
    let mut subscriber = opened?;
    let clock = subscriber.clock();
    let (mut missed, mut ages_ns) = (0, Vec::with_capacity(MESSAGES as usize));
    loop {
        match subscriber.recv()? {
            Event::Message(m) => ages_ns.push(clock.ns_since(m.time)),
            Event::Lapped(lapped) => missed += lapped.missed,
            Event::End => break,
            other => println!("{other:?}"),
        }
    }
    ages_ns.sort_unstable();
    let at = |quantile: f64| ages_ns.get((ages_ns.len() as f64 * quantile) as usize).copied().unwrap_or(0);
    let (p50, p99, max) = (at(0.5), at(0.99), ages_ns.last().copied().unwrap_or(0));
    let received = ages_ns.len();
    Ok(format!(
        "CPU {cpu}: {received} received, {missed} missed, age p50 {p50} ns, p99 {p99} ns, max {max} ns"
    ))
}
