//! Measures the cost of clients in other languages, compared with the client in Rust.
//!
//! The clients are the testees of the conformance suite. Each testee reads a full ring to which nobody writes, receives live messages, and
//! publishes into a ring that nobody reads. All testees run on the same CPU, one after the other in each lap.

use crate::rig::stats::median;
use anyhow::{Context, Result, ensure};
use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use serde::Serialize;
use shmcast::{ClockKind, Preparation, Publisher, Start, Subscriber};
use shmcast_conformance::testee::{Answer, Testee};
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

/// The size of the rings in bytes.
const RING_BYTES: u64 = 8 << 20;
/// Payload sizes in bytes.
pub const SIZES: [usize; 3] = [32, 256, 1024];
/// The number of times that a testee reads the ring in a lap.
const PASSES: u32 = 20;
/// The time between two live messages.
const BEAT: Duration = Duration::from_micros(10);
/// The time for which testees run before the measurement. Some languages compile code at run time.
const WARM_UP: Duration = Duration::from_secs(2);
/// The CPU of the testees. The publisher of live messages runs on CPU 0.
const CPU: usize = 1;

/// The cost of an operation in one language.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// The operation that was timed.
    pub what: String,
    /// Bytes of a payload.
    pub size: usize,
    /// The language.
    pub language: String,
    /// Nanoseconds per message: the median over the laps. For latency, the cost of a lap is the lap's median latency.
    pub ns: f64,
    /// The cost divided by the first language's cost in the same lap: the median of these quotients over the laps.
    pub ratio: f64,
}

/// The size of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// The number of laps.
    pub laps: usize,
    /// The number of messages in a lap, for live messages and for publishing.
    pub messages: usize,
    /// Whether to skip the warm-up, to check only that everything runs.
    pub quick: bool,
}

/// Measures all testees. The first command is the testee in Rust, with which the others are compared.
///
/// # Errors
/// If a testee fails, or if two testees receive different messages.
pub fn run(commands: &[String], dir: &Path, sizes: &[usize], effort: Effort) -> Result<Vec<Figure>> {
    let mut testees = Vec::new();
    for command in commands {
        let bound = ["taskset".into(), "-c".into(), CPU.to_string()];
        let words = bound.iter().map(String::as_str).chain(command.split_whitespace());
        let testee = Testee::start(&words.map(OsString::from).collect::<Vec<_>>())
            .with_context(|| format!("start {command} by taskset"))?;
        testees.push(testee);
    }
    let mut figures = Vec::new();
    for &size in sizes {
        eprintln!("{size} B: drain");
        drain(&mut testees, dir, size, effort, &mut figures)?;
        eprintln!("{size} B: publish");
        publish(&mut testees, dir, size, effort, &mut figures)?;
        eprintln!("{size} B: live");
        live(&mut testees, dir, size, effort, &mut figures)?;
    }
    Ok(figures)
}

/// Makes a publisher that takes its times from the system's clock, because every language can read this clock.
fn publisher(dir: &Path, name: &str) -> Result<Publisher> {
    let builder = Publisher::builder(name).dir(dir).capacity(RING_BYTES).clock_kind(ClockKind::Monotonic);
    Ok(builder.prepare(Preparation { prefault: true, ..Preparation::NONE }).open()?)
}

/// Calls `once` for every testee in each of several laps. `once` returns the testee's cost in this lap.
fn laps(
    testees: &mut [Testee],
    effort: Effort,
    (what, size): (&str, usize),
    figures: &mut Vec<Figure>,
    mut once: impl FnMut(&mut Testee) -> Result<f64>,
) -> Result<()> {
    let mut once = |testee: &mut Testee| once(testee).with_context(|| testee.hello.testee.clone());
    for testee in testees.iter_mut().filter(|_| !effort.quick) {
        let until = Instant::now() + WARM_UP;
        while Instant::now() < until {
            once(testee)?;
        }
    }
    let mut costs = vec![Vec::new(); testees.len()];
    for _ in 0..effort.laps {
        for (testee, costs) in testees.iter_mut().zip(&mut costs) {
            costs.push(once(testee)?);
        }
    }
    let first = costs[0].clone();
    for (testee, costs) in testees.iter().zip(costs) {
        let ratio = median(costs.iter().zip(&first).map(|(cost, first)| cost / first));
        let (Some(ns), Some(ratio)) = (median(costs.iter().copied()), ratio) else { continue };
        let (what, language) = (what.to_owned(), testee.hello.testee.clone());
        figures.push(Figure { what, size, language, ns, ratio });
    }
    Ok(())
}

/// Sends a request to a testee. The answer must say that the request succeeded.
fn done(testee: &mut Testee, request: &str) -> Result<()> {
    let answer = testee.ask(request)?;
    ensure!(answer == Answer::done(), "{}: to {request} it answers {answer:?}", testee.hello.testee);
    Ok(())
}

fn drain(
    testees: &mut [Testee],
    dir: &Path,
    size: usize,
    effort: Effort,
    figures: &mut Vec<Figure>,
) -> Result<()> {
    let channel = format!("drain-{size}");
    let mut publisher = publisher(dir, &channel)?;
    let mut payload = vec![0; size];
    for n in 0..2 * RING_BYTES / (size as u64 + 16) {
        let word = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        let most = size.min(8);
        payload[..most].copy_from_slice(&word[..most]);
        publisher.publish(&payload)?;
    }
    let reader = Subscriber::builder(&*channel).dir(dir).start(Start::Oldest).page(false).open()?;
    let sequence = reader.next_sequence();
    let wanted = (publisher.next_sequence() - sequence) * u64::from(PASSES);
    let place = dir.display();
    let open = format!(r#"{{"do":"open","dir":"{place}","channel":"{channel}","start":"oldest"}}"#);
    testees.iter_mut().try_for_each(|testee| done(testee, &open))?;
    let mut sum = None;
    for how in ["poll", "batch"] {
        let request = format!(r#"{{"do":"drain","how":"{how}","passes":{PASSES},"sequence":{sequence}}}"#);
        laps(testees, effort, (how, size), figures, |testee| {
            let answer = testee.ask(&request)?;
            let messages = answer.number("messages")?;
            ensure!(messages == wanted, "{messages} messages, and not {wanted}");
            let theirs = answer.number("sum")?;
            ensure!(*sum.get_or_insert(theirs) == theirs, "other bytes than the first's");
            Ok(answer.number("ns")? as f64 / messages as f64)
        })?;
    }
    testees.iter_mut().try_for_each(|testee| done(testee, r#"{"do":"close"}"#))
}

fn publish(
    testees: &mut [Testee],
    dir: &Path,
    size: usize,
    effort: Effort,
    figures: &mut Vec<Figure>,
) -> Result<()> {
    let readers = testees.iter().position(|testee| !testee.hello.levels.contains(&7));
    let place = dir.display();
    // The testees that cannot publish are at the end of the list.
    let count = readers.unwrap_or(testees.len());
    let testees = &mut testees[..count];
    for (i, testee) in testees.iter_mut().enumerate() {
        let channel = format!("own-{size}-{i}");
        let create =
            format!(r#"{{"do":"create","dir":"{place}","channel":"{channel}","capacity":{RING_BYTES}}}"#);
        done(testee, &create)?;
    }
    let messages = effort.messages * 10;
    for (what, how) in [("publish", "one"), ("publish many", "batch")] {
        let request = format!(r#"{{"do":"fill","how":"{how}","length":{size},"messages":{messages}}}"#);
        laps(testees, effort, (what, size), figures, |testee| {
            Ok(testee.ask(&request)?.number("ns")? as f64 / messages as f64)
        })?;
    }
    testees.iter_mut().try_for_each(|testee| done(testee, r#"{"do":"end"}"#))
}

fn live(
    testees: &mut [Testee],
    dir: &Path,
    size: usize,
    effort: Effort,
    figures: &mut Vec<Figure>,
) -> Result<()> {
    let channel = format!("live-{size}");
    let mut publisher = publisher(dir, &channel)?;
    let payload = vec![7; size];
    shmcast::pin_current_thread(0)?;
    let place = dir.display();
    let open = format!(r#"{{"do":"open","dir":"{place}","channel":"{channel}","start":"latest"}}"#);
    let request = format!(r#"{{"do":"live","messages":{}}}"#, effort.messages);
    laps(testees, effort, ("live p50", size), figures, |testee| {
        // Each testee begins with the next message.
        done(testee, &open)?;
        testee.tell(&request)?;
        let (began, mut sent) = (Instant::now(), 0_u32);
        loop {
            while began.elapsed() < BEAT * sent {
                std::hint::spin_loop();
            }
            publisher.publish(&payload)?;
            sent += 1;
            if sent.is_multiple_of(256)
                && let Some(answer) = testee.hear_within(Duration::ZERO)?
            {
                return Ok(answer.number("p50")? as f64);
            }
        }
    })?;
    testees.iter_mut().try_for_each(|testee| done(testee, r#"{"do":"close"}"#))
}

/// Makes a table of the figures. Each row is an operation and a size, each column a language.
pub fn table(figures: &[Figure]) -> Table {
    let mut languages: Vec<&str> = Vec::new();
    let mut rows: Vec<(&str, usize)> = Vec::new();
    for figure in figures {
        if !languages.contains(&&*figure.language) {
            languages.push(&figure.language);
        }
        if !rows.contains(&(&*figure.what, figure.size)) {
            rows.push((&figure.what, figure.size));
        }
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["what", "B"].into_iter().chain(languages.iter().copied()));
    for (what, size) in rows {
        let mut row = vec![what.to_owned(), size.to_string()];
        for language in &languages {
            let found = figures.iter().find(|f| f.what == what && f.size == size && f.language == *language);
            row.push(found.map_or("-".into(), |f| format!("{:.1} ({:.2})", f.ns, f.ratio)));
        }
        table.add_row(row);
    }
    table
}
