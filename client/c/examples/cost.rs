//! Compares the cost of a call from C with that of a call from Rust: `cargo run --profile dist -p shmcast-c --example cost -- PREFIX`. The
//! library was installed below PREFIX by `client/c/install.sh`. With `-- PROGRAM ..` instead, the program of another language is measured,
//! such as `client/python/examples/cost.py`.
//!
//! A ring of 8 MiB is full of messages of 32 B, and nobody publishes. Both languages read the ring from its oldest message to the end, in
//! turns on one CPU: one message at a time, and in batches. Then each language publishes as many messages into a ring of its own that
//! nobody reads. Prints the medians of the laps and their ratio.
#![allow(clippy::print_stdout, reason = "it is a program")]

use shmcast::{Event, Publisher, Start, Subscriber};
use std::error::Error;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LAPS: usize = 41;
const CAPACITY: u64 = 8 << 20;
const CPU: usize = 1;

/// The program in the other language.
struct Other {
    child: Child,
    asked: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Other {
    /// Compiles the program in C against the library below `prefix`.
    fn in_c(prefix: &Path, dir: &Path) -> Result<Command> {
        let program = dir.join("cost");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/cost.c");
        let mut build = Command::new("cc");
        build.args(["-std=c11", "-O2", "-D_GNU_SOURCE", "-I"]).arg(prefix.join("include")).arg(source);
        build.arg("-o").arg(&program).arg(prefix.join("lib/libshmcast.so"));
        if !build.status()?.success() {
            return Err("cost.c does not compile: is the library installed below PREFIX?".into());
        }
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", prefix.join("lib"));
        Ok(command)
    }

    fn start(mut command: Command, dir: &Path, messages: u64) -> Result<Self> {
        command.arg(dir).args(["of-other", &messages.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (asked, said) = (child.stdin.take(), child.stdout.take());
        let (Some(asked), Some(said)) = (asked, said) else { return Err("no pipes".into()) };
        Ok(Self { child, asked, said: BufReader::new(said) })
    }

    /// Returns the nanoseconds per message of one lap, and the sum of the messages.
    fn lap(&mut self, how: char) -> Result<(f64, u64)> {
        writeln!(self.asked, "{how}")?;
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        let (ns, sum) = line.trim().split_once(' ').ok_or("the other program has ended")?;
        Ok((ns.parse()?, sum.parse()?))
    }
}

fn first_word(payload: &[u8]) -> u64 {
    payload.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}

fn one_at_a_time(subscriber: &mut Subscriber) -> Result<u64> {
    let mut sum = 0;
    while let Some(event) = subscriber.try_recv()? {
        let Event::Message(message) = event else { return Err(format!("{event:?}").into()) };
        sum += first_word(message.payload);
    }
    Ok(sum)
}

fn in_batches(subscriber: &mut Subscriber) -> Result<u64> {
    let mut sum = 0;
    let mut add = |event: Event<'_>| {
        if let Event::Message(message) = event {
            sum += first_word(message.payload);
        }
    };
    while subscriber.recv_batch(1024, &mut add)? > 0 {}
    Ok(sum)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let prefix = arguments.next().ok_or("usage: cost PREFIX, or cost -- PROGRAM ..")?;
    shmcast::pin_current_thread(CPU)?;
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let mut full = Publisher::builder("full").dir(dir.path()).capacity(CAPACITY).open()?;
    for number in 0..CAPACITY / 32 {
        full.publish(&[number, 0, 0, 0].map(u64::to_ne_bytes).concat())?;
    }
    let mut subscriber = Subscriber::builder("full").dir(dir.path()).start(Start::Oldest).open()?;
    let (first, messages) = (subscriber.next_sequence(), full.next_sequence() - subscriber.next_sequence());
    let mut own = Publisher::builder("of-rust").dir(dir.path()).open()?;
    let command = if prefix == "--" {
        let mut command = Command::new(arguments.next().ok_or("usage: cost -- PROGRAM ..")?);
        command.args(arguments);
        command
    } else {
        Other::in_c(Path::new(&prefix), dir.path())?
    };
    let mut other = Other::start(command, dir.path(), messages)?;
    println!("{messages} messages of 32 B a lap, {LAPS} laps each, medians in ns a message");
    for (what, how) in [("one at a time", 'r'), ("in batches", 'b'), ("publish", 'p')] {
        let (mut rust, mut c) = (Vec::new(), Vec::new());
        for _ in 0..LAPS {
            subscriber.seek(first)?;
            let start = Instant::now();
            let sum = match how {
                'r' => one_at_a_time(&mut subscriber)?,
                'b' => in_batches(&mut subscriber)?,
                _ => {
                    for number in 0..messages {
                        // As in C, the compiler does not know the length.
                        let words = black_box([number, 0, 0, 0]).map(u64::to_ne_bytes);
                        own.publish(&words.as_flattened()[..black_box(32)])?;
                    }
                    0
                }
            };
            rust.push(start.elapsed().as_nanos() as f64 / messages as f64);
            let (ns, sum_of_c) = other.lap(how)?;
            if how != 'p' && sum != sum_of_c {
                return Err(format!("the sums differ: {sum} and {sum_of_c}").into());
            }
            c.push(ns);
        }
        let ratio = median(rust.iter().zip(&c).map(|(rust, c)| c / rust).collect());
        println!("{what}: Rust {:.1}, the other {:.1}, ratio {ratio:.2}", median(rust), median(c));
    }
    drop(other.asked);
    other.child.wait()?;
    Ok(())
}
