//! Measures the cost of a board for its publisher, and the time until a late reader has the newest message of each key.
//!
//! - `publish`: the duration of a `publish` of 64 bytes, with and without a board, in ns. A channel with a board and a channel without one
//!   take turns in one process, and have no readers. The figure is the median of the turns.
//! - `join`: the time in which a reader with `Start::Board` gets 10,000 keys of 256 bytes, from `open` to the last key. The first figure is
//!   for a silent publisher, and the second for a publisher at full rate.
//! - `get`: the time to read one of these keys.
//!
//! Run it by `cargo run --release -p shmcast-bench --example board`. The figures give a first impression. Published figures follow the
//! rules of METHOD.md.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use shmcast::{BoardSpec, Event, Preparation, Publisher, Start, Subscriber};
use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TURNS: usize = 40;
const MESSAGES: u64 = 200_000;
const KEYS: u64 = 10_000;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn open(dir: &Path, name: &str, board: Option<BoardSpec>) -> Outcome<Publisher> {
    let builder = Publisher::builder(name).dir(dir).capacity(16 << 20).prepare(Preparation::FULL);
    Ok(match board {
        Some(board) => builder.board(board).open()?,
        None => builder.open()?,
    })
}

/// Publishes messages of 64 bytes, whose first eight bytes are the key. Returns the mean time of a message in ns.
fn turn(publisher: &mut Publisher, keys: u64) -> Outcome<f64> {
    let mut message = [7; 64];
    let start = Instant::now();
    for i in 0..MESSAGES {
        message[..8].copy_from_slice(&(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % keys).to_le_bytes());
        publisher.publish(black_box(&message))?;
    }
    Ok(start.elapsed().as_nanos() as f64 / MESSAGES as f64)
}

fn publish(dir: &Path) -> Outcome<()> {
    for keys in [100, KEYS] {
        let mut plain = open(dir, &format!("plain-{keys}"), None)?;
        let mut with = open(dir, &format!("with-{keys}"), Some(BoardSpec::new(0..8).keys(keys).value(64)))?;
        let mut figures = [Vec::new(), Vec::new()];
        for _ in 0..TURNS {
            figures[0].push(turn(&mut plain, keys)?);
            figures[1].push(turn(&mut with, keys)?);
        }
        let [plain, with] = figures.map(median);
        println!(
            "publish 64 B, {keys} keys: {plain:.1} ns without a board, {with:.1} ns with one, {:+.1} ns",
            with - plain
        );
    }
    Ok(())
}

fn message(i: u64) -> [u8; 256] {
    let mut message = [i as u8; 256];
    message[..8].copy_from_slice(&(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS).to_le_bytes());
    message
}

/// Reads all keys with a new reader. Returns two times in ms: from `open` to the last key, and of `open` alone.
fn join(dir: &Path) -> Outcome<[f64; 2]> {
    let start = Instant::now();
    let builder = Subscriber::builder("join").dir(dir).start(Start::Board).page(false);
    let mut reader = builder.prepare(Preparation::NONE).open()?;
    let opened = start.elapsed();
    let mut bytes = 0;
    loop {
        match reader.recv()? {
            Event::Message(m) => bytes += m.payload.len(),
            Event::Live { .. } => break,
            other => return Err(format!("{other:?}").into()),
        }
    }
    black_box(bytes);
    Ok([start.elapsed(), opened].map(|time| time.as_secs_f64() * 1e3))
}

fn joins(dir: &Path, what: &str) -> Outcome<()> {
    let mut all = Vec::new();
    for _ in 0..TURNS {
        all.push(join(dir)?);
    }
    let of = |i: usize| all.iter().map(|figures| figures[i]).collect::<Vec<_>>();
    let most = of(0).into_iter().fold(0.0, f64::max);
    println!(
        "join of {KEYS} keys of 256 B, {what}: {:.2} ms, of which open {:.2} ms, most {most:.2} ms",
        median(of(0)),
        median(of(1))
    );
    Ok(())
}

fn main() -> Outcome<()> {
    let dir = tempfile::tempdir_in("/dev/shm")?;
    publish(dir.path())?;
    let board = BoardSpec::new(0..8).keys(KEYS).value(256);
    let mut publisher = open(dir.path(), "join", Some(board))?;
    for i in 0..20 * KEYS {
        publisher.publish(&message(i))?;
    }
    joins(dir.path(), "nobody publishes")?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Outcome<()> {
        let publishing = scope.spawn(|| {
            let mut i = 0;
            while !is_over.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    i += 1;
                    if publisher.publish(&message(i)).is_err() {
                        return;
                    }
                }
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        let joined = joins(dir.path(), "beside a publisher at full rate");
        is_over.store(true, Ordering::Relaxed);
        publishing.join().map_err(|_| "the publisher failed")?;
        joined
    })?;
    let mut board = Subscriber::builder("join").dir(dir.path()).open_board()?;
    let mut figures = Vec::new();
    for _ in 0..TURNS {
        let start = Instant::now();
        for key in 0..KEYS {
            black_box(board.get(&key.to_le_bytes())?.is_some());
        }
        figures.push(start.elapsed().as_nanos() as f64 / KEYS as f64);
    }
    println!("get, 256 B: {:.0} ns", median(figures));
    Ok(())
}
