//! `shmcast demo`: the same messages to the same number of reader processes, once through shared memory and once
//! through kernel multicast over `lo`, side by side.
//!
//! The demo needs no daemon, no root and no configuration: the channel lives in a temporary directory, and
//! the readers are this program again. The same two times are measured for both transports: how long one
//! message holds up the publisher, and how long it takes until the *last* reader has it.

use super::figures::{Ns, Percentiles, grouped, table};
use super::say::{print, print_json};
use super::stop::Stop;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use shmcast::{Clock, Preparation, Publisher, Wait};
use std::process::ExitCode;
use std::time::{Duration, Instant};

mod machine;
mod multicast;
pub(super) mod reader;

use machine::Machine;
use multicast::Group;
use reader::{Pool, Source};

const EXAMPLE: &str = "\
Examples:
  shmcast demo
  shmcast demo --readers 100 --messages 10000 --json

Latency is measured from just before the publisher sends to just after the slowest reader has the bytes.

Exit codes: 0 success, 1 error or loss, 2 wrong usage; 130 (Ctrl-C) or 143 (SIGTERM) if it came
before the end.";

/// Bytes at the start of a demo message: its send time and its number.
const STAMP: usize = 16;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Reader processes
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    readers: u32,
    /// Messages to publish through each transport
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    messages: u64,
    /// Bytes of payload, 16 to 1400
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(STAMP as i64..=1400))]
    size: u32,
    /// Microseconds between two messages
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    interval_us: u64,
    /// Leave kernel multicast out
    #[arg(long)]
    no_multicast: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// The result of one transport.
#[derive(Debug, Serialize)]
struct Figures {
    name: &'static str,
    published: u64,
    /// Messages received by all readers together.
    delivered: u64,
    /// Messages that some reader did not get, summed over the readers.
    lost: u64,
    publish_ns: Option<Percentiles>,
    last_reader_ns: Option<Percentiles>,
}

#[derive(Debug, Serialize)]
struct Unavailable {
    name: &'static str,
    error: String,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Transport {
    Ran(Figures),
    CouldNot(Unavailable),
}

#[derive(Debug, Serialize)]
struct Ratio {
    /// Factor by which a message is cheaper for the publisher, by the medians.
    publish_p50: f64,
    /// Factor by which the last reader has it sooner, by the medians.
    last_reader_p50: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    readers: u32,
    size: u32,
    interval_us: u64,
    transports: Vec<Transport>,
    ratio: Option<Ratio>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    let machine = Machine::read();
    let shm = over_shared_memory(args, machine.cpus, &stop)?;
    let mut transports = vec![Transport::Ran(shm)];
    if !args.no_multicast {
        transports.push(match over_multicast(args, &stop) {
            Ok(figures) => Transport::Ran(figures),
            Err(e) if stop.is_set() => return Err(e),
            Err(e) => Transport::CouldNot(Unavailable { name: "multicast", error: format!("{e:#}") }),
        });
    }
    let Args { readers, size, interval_us, .. } = *args;
    let ratio = ratio(&transports);
    let report = Report { machine, readers, size, interval_us, transports, ratio };
    let lost = match &report.transports[0] {
        Transport::Ran(shm) => shm.lost,
        Transport::CouldNot(_) => unreachable!("shared memory ran, or we returned its error"),
    };
    if args.json {
        print_json(&report)?;
    } else {
        print(for_eyes(&report))?;
    }
    if lost > 0 {
        bail!("shared memory lost {lost} messages: readers were overtaken; raise --interval-us");
    }
    Ok(ExitCode::SUCCESS)
}

fn over_shared_memory(args: &Args, cpus: usize, stop: &Stop) -> Result<Figures> {
    let place =
        if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    let dir = tempfile::Builder::new().prefix("shmcast-demo-").tempdir_in(place)?;
    // The ring has room for all messages at once, up to 1 GiB: a demo measures latency, not overruns.
    let record = u64::from(args.size) + 80;
    let capacity = (args.messages * record * 2).next_power_of_two().clamp(1 << 20, 1 << 30);
    let publisher = Publisher::builder("demo").dir(dir.path()).capacity(capacity);
    let mut publisher = publisher.prepare(Preparation::FULL).open()?;
    let wait = if (args.readers as usize) < cpus { Wait::Spin } else { Wait::Yield };
    let source = Source::Channel { dir: dir.path().to_owned(), spin: wait == Wait::Spin };
    let pool = Pool::start(args.readers, args.messages, &source, stop)?;
    let publish_ticks = publish(args, "shared memory", stop, |message| {
        publisher.publish(message)?;
        Ok(())
    })?;
    publisher.close();
    figures("shm", args, publish_ticks, pool)
}

fn over_multicast(args: &Args, stop: &Stop) -> Result<Figures> {
    let group = Group::choose();
    let sender = group.sender().context("open a multicast sender on lo")?;
    let pool = Pool::start(args.readers, args.messages, &Source::Multicast(group), stop)?;
    let publish_ticks = publish(args, "kernel multicast", stop, |message| {
        sender.send(message).context("send to the multicast group on lo")?;
        Ok(())
    })?;
    figures("multicast", args, publish_ticks, pool)
}

/// Sends all messages at their intended times. Returns how many ticks each took to send.
fn publish(
    args: &Args,
    what: &'static str,
    stop: &Stop,
    mut send: impl FnMut(&[u8]) -> Result<()>,
) -> Result<Vec<u64>> {
    let clock = Clock::of_this_host();
    let style = ProgressStyle::with_template("{msg:>16} {bar:40} {pos}/{len} messages")
        .expect("the template is ours");
    let bar = ProgressBar::new(args.messages).with_style(style).with_message(what);
    let mut message = vec![0xa5; args.size as usize];
    let mut took = Vec::with_capacity(args.messages as usize);
    let started = Instant::now();
    for number in 0..args.messages {
        let due = started + Duration::from_micros(args.interval_us * number);
        let early = due.saturating_duration_since(Instant::now());
        if !early.is_zero() {
            std::thread::sleep(early);
        }
        let before = clock.now();
        message[..8].copy_from_slice(&before.to_le_bytes());
        message[8..STAMP].copy_from_slice(&number.to_le_bytes());
        send(&message)?;
        took.push(clock.now().saturating_sub(before));
        if number.is_multiple_of(64) {
            bar.set_position(number);
        }
        if stop.is_set() {
            return Err(stop.interrupted("INTERRUPTED: nothing is shown of a demo that did not end").into());
        }
    }
    bar.finish_and_clear();
    Ok(took)
}

fn figures(name: &'static str, args: &Args, publish_ticks: Vec<u64>, pool: Pool) -> Result<Figures> {
    let clock = Clock::of_this_host();
    let received = pool.collect()?;
    let delivered = received.iter().map(|latencies| latencies.iter().flatten().count() as u64).sum();
    // A message that some reader lost has no last reader. It counts as lost instead.
    let last = (0..args.messages as usize).filter_map(|number| {
        received.iter().map(|latencies| latencies[number]).try_fold(0, |last, ticks| Some(last.max(ticks?)))
    });
    Ok(Figures {
        name,
        published: args.messages,
        delivered,
        lost: args.messages * u64::from(args.readers) - delivered,
        last_reader_ns: Percentiles::of(last.map(|ticks| clock.ns(ticks)).collect()),
        publish_ns: Percentiles::of(publish_ticks.into_iter().map(|ticks| clock.ns(ticks)).collect()),
    })
}

fn ratio(transports: &[Transport]) -> Option<Ratio> {
    let [Transport::Ran(shm), Transport::Ran(multicast)] = transports else { return None };
    let of = |mine: Option<Percentiles>, theirs: Option<Percentiles>| {
        Some(theirs?.p50 as f64 / mine?.p50.max(1) as f64)
    };
    Some(Ratio {
        publish_p50: of(shm.publish_ns, multicast.publish_ns)?,
        last_reader_p50: of(shm.last_reader_ns, multicast.last_reader_ns)?,
    })
}

fn for_eyes(report: &Report) -> String {
    let Report { machine, readers, size, interval_us, .. } = report;
    let plural = if *readers == 1 { "" } else { "s" };
    let mut text =
        format!("{machine}\n{readers} reader{plural}, {size} B, one message each {interval_us} us\n\n");
    let header = ["", "", "p50", "p99", "p99.9", "max", "published", "delivered", "lost"];
    let mut rows = table(header, 2);
    for transport in &report.transports {
        let Transport::Ran(f) = transport else { continue };
        let name = if f.name == "shm" { "shared memory" } else { "kernel multicast" };
        let counts = [f.published, f.delivered, f.lost].map(grouped);
        let mut row = vec![name.to_owned(), "publish".to_owned()];
        row.extend(Percentiles::cells(f.publish_ns));
        row.extend(counts);
        rows.add_row(row);
        let mut row = vec![String::new(), "last reader".to_owned()];
        row.extend(Percentiles::cells(f.last_reader_ns));
        rows.add_row(row);
    }
    text += &rows.trim_fmt();
    for transport in &report.transports {
        if let Transport::CouldNot(u) = transport {
            text += &format!("\n\n{} could not run here: {}", u.name, u.error);
        }
    }
    if let Some(ratio) = &report.ratio {
        let (times, when) = match ratio.last_reader_p50 {
            sooner if sooner >= 1.0 => (sooner, "sooner"),
            later => (1.0 / later, "later"),
        };
        text += &format!(
            "\n\nBy the medians, publishing is {:.0} times cheaper and the last reader is served {times:.1} times {when}.",
            ratio.publish_p50
        );
    }
    if *readers as usize >= machine.cpus {
        let cpus = machine.cpus;
        text += &format!(
            "\n{readers} readers share {cpus} CPUs here, so the last one waits for the scheduler to reach it; with a core\n\
             each it waits for one cache line. Longest wait seen: {}.",
            Ns(longest(report))
        );
    }
    text
}

fn longest(report: &Report) -> u64 {
    match &report.transports[0] {
        Transport::Ran(shm) => shm.last_reader_ns.map_or(0, |p| p.max),
        Transport::CouldNot(_) => 0,
    }
}
