//! `shmcast-bench` asks one question and prints the answer.
//!
//! The rig also starts this program as a child, in the role of the publisher or of a receiver.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use clap::builder::RangedU64ValueParser;
use clap::{Parser, Subcommand};
use shmcast_bench::questions::{
    bindings, bridge, churn, fanout, journal, latency, oversubscribed, sheet, soak, throughput,
};
use shmcast_bench::report;
use shmcast_bench::rig::hosts::Hosts;
use shmcast_bench::rig::journal::role::Way;
use shmcast_bench::rig::names::is_peer_between_hosts;
use shmcast_bench::rig::payload::MIN_SIZE;
use shmcast_bench::rig::plan::{Answer, Stage};
use shmcast_bench::rig::spec::{Contestant, Task, Wait};
use shmcast_bench::transport::{self, peers, peers::Peer};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Measures shmcast, and compares it with kernel multicast, an ideal ring, and other projects (peers).
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example:\n  cargo run --profile dist -p shmcast-bench -- latency --json latency.json"
)]
struct Args {
    #[command(subcommand)]
    question: Question,
    /// Only check delivery, in a few seconds; the times then mean nothing
    #[arg(long, global = true)]
    quick: bool,
    /// Write everything measured to this file
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Laps of interleaved rounds
    #[arg(long, global = true, default_value_t = 5, value_parser = count(1, 1000))]
    laps: usize,
    /// Number of times that rounds of a case (one size, one number of receivers) may be repeated because the machine was not quiet
    #[arg(long, global = true, default_value_t = 40)]
    retries: usize,
    /// The peers' program; benches/peers/build.sh prints its path. All of its transports take part, or only those that --with names
    #[arg(long, global = true, value_name = "PROGRAM")]
    peers: Option<PathBuf>,
    /// The daemon's program, for parked readers [default: the one beside this program]
    #[arg(long, global = true, value_name = "PROGRAM")]
    daemon: Option<PathBuf>,
    /// The program with the bridge [default: the one beside this program]
    #[arg(long, global = true, value_name = "PROGRAM")]
    shmcast: Option<PathBuf>,
    /// Add contestants, such as multicast/block
    #[arg(long = "with", global = true, value_name = "TRANSPORT/WAIT", value_parser = contestant)]
    with: Vec<Contestant>,
    /// Play only these contestants
    #[arg(long, global = true, value_name = "TRANSPORT/WAIT", value_parser = contestant, value_delimiter = ',')]
    only: Vec<Contestant>,
    /// Payload sizes in bytes; each payload contains its number and a check
    #[arg(long, global = true, value_delimiter = ',', value_parser = count(MIN_SIZE as u64, 1 << 24))]
    sizes: Vec<usize>,
    /// Bytes of ring, a power of two, for transports that have one
    #[arg(long, global = true, value_parser = ring_bytes)]
    ring_bytes: Option<u64>,
    /// Numbers of receivers for the fan-out
    #[arg(long, global = true, value_delimiter = ',', value_parser = count(1, 1000))]
    receivers: Vec<usize>,
    /// Messages a round
    #[arg(long, global = true, value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
}

#[derive(Debug, Clone, Subcommand)]
enum Question {
    /// One way from core to core, one message each 10 us
    Latency,
    /// Back to back, nothing lost
    Throughput,
    /// Many receivers, none bound to a CPU, one message each ms
    Fanout,
    /// Ways to wait: one receiver with a CPU of its own, and then more receivers than CPUs
    Oversubscribed,
    /// Receivers that come, leave and die while others stay
    Churn,
    /// From host to host over a virtual wire, compared with bare UDP; needs root
    Bridge,
    /// One channel for a long time: counts, latency, memory and hiccups in each window of time
    Soak {
        /// How long each round lasts, such as 90s, 30m or 12h
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
        duration: Duration,
    },
    /// Clients in other languages compared with Rust's: reading a ring, publishing, and live messages
    Bindings {
        /// The commands that start testees of client/conformance. Quote each command as one argument; put the testees that cannot publish
        /// at the end of the list
        #[arg(value_name = "TESTEE")]
        testees: Vec<String>,
        /// The testee in Rust [default: the one beside this program]
        #[arg(long, value_name = "PROGRAM")]
        rust: Option<PathBuf>,
    },
    /// A channel's journal: recording, durability and catching up, compared with bare system calls on the same file system
    #[command(after_help = JOURNAL_EXAMPLE)]
    Journal {
        /// Directory on the drive to measure; it holds at most 4 GB at a time, and is empty again at the end
        #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
        dir: PathBuf,
        /// Numbers of the requirements to measure, as METHOD.md lists them [default: all]
        #[arg(long, value_delimiter = ',', value_name = "ROWS", value_parser = journal_row)]
        rows: Vec<u32>,
        /// Ways to write bytes to the disk. Rows whose figures depend on the way are measured once for each way
        #[arg(long, value_delimiter = ',', value_enum, default_values = ["direct", "buffered"])]
        io: Vec<Way>,
        /// Length of each sustained recording
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
        sustained: Duration,
    },
    /// Ask all questions except bindings and journal; with --quick, only check delivery
    All {
        /// Directory for the answers, one JSON file each; histograms/ is written there too
        #[arg(value_name = "DIR")]
        results: Option<PathBuf>,
    },
    /// Tables and plots of the answers in a directory
    Report {
        /// Directory of the JSON files; RESULTS.md and report.html are written there
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// Compare two sets of answers: what became better or worse by more than the noise of the rounds
    Compare {
        /// Directory of earlier answers, or one answer's file
        #[arg(value_name = "OLD")]
        old: PathBuf,
        /// Directory of later answers, or one answer's file
        #[arg(value_name = "NEW")]
        new: PathBuf,
        /// Exit with 1 when a figure of shmcast became worse
        #[arg(long)]
        fail: bool,
    },
    /// Play a role in a round (the rig starts this)
    #[command(hide = true)]
    Play {
        /// The task as JSON
        task: String,
    },
    /// Play a role in a round with a recorder (the rig starts this)
    #[command(hide = true)]
    PlayJournal {
        /// The role as JSON
        role: String,
    },
}

const JOURNAL_EXAMPLE: &str = "\
Examples:
  shmcast-bench journal --dir /var/tmp --json journal.json
  shmcast-bench journal --rows 3,6 --sustained 10s --laps 3 --sizes 256
  shmcast-bench journal --rows 3 --peers \"$(benches/peers/journal/build.sh)\"

Each lap measures the limits of the file system first, and then each row. A row passes
if the median over the laps reaches what it must; that decides no exit code. The exit
code is 1 if a journal is not exactly what was published.";

fn journal_row(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| journal::NUMBERS.contains(number));
    number.ok_or_else(|| format!("no row {text} is measured here; there are {:?}", journal::NUMBERS))
}

fn count(least: u64, most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=most)
}

fn ring_bytes(text: &str) -> Result<u64, String> {
    let bytes = text.parse().ok().filter(|bytes: &u64| bytes.is_power_of_two());
    let bytes = bytes.filter(|bytes| (1 << 16..=1 << 34).contains(bytes));
    bytes.ok_or_else(|| format!("{text} is no ring's size: write a power of two from 65536 to 17179869184"))
}

fn contestant(text: &str) -> Result<Contestant, String> {
    let (transport, wait) =
        text.rsplit_once('/').ok_or("write it as TRANSPORT/WAIT, like multicast/block")?;
    let wait = Wait::ALL
        .into_iter()
        .find(|w| w.name() == wait)
        .ok_or_else(|| format!("no such wait; there are {}", Wait::ALL.map(Wait::name).join(", ")))?;
    Ok(Contestant::new(transport, wait))
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text} is no time: write a number and s, m or h, like 90s");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    let longest = 30 * 24 * 3600;
    let all = number.saturating_mul(seconds);
    if (1..=longest).contains(&all) { Ok(Duration::from_secs(all)) } else { Err(wrong() + ", up to 720h") }
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if let Question::Play { task } = &args.question {
        let task: Task = serde_json::from_str(task).context("the rig's task")?;
        transport::play(&task)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Question::PlayJournal { role } = &args.question {
        let role = serde_json::from_str(role).context("the rig's role")?;
        shmcast_bench::rig::journal::scene::play(&role)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Question::Report { dir } = &args.question {
        report::write(dir)?.iter().for_each(|path| println!("{path}"));
        return Ok(ExitCode::SUCCESS);
    }
    if let Question::Compare { old, new, fail } = &args.question {
        return compare(&args, old, new, *fail);
    }
    let dir = tempfile::Builder::new()
        .prefix("shmcast-bench-")
        .tempdir_in("/dev/shm")
        .context("make a directory in /dev/shm, where the rounds' files live")?;
    if let Question::Bindings { testees, rust } = &args.question {
        return compare_languages(&args, testees, rust.as_deref(), dir.path());
    }
    let stage = stage(&args, dir.path())?;
    if let Question::Journal { dir, rows, io, sustained } = &args.question {
        let ask = journal::Ask {
            dir: dir.clone(),
            rows: if rows.is_empty() { journal::NUMBERS.to_vec() } else { rows.clone() },
            sizes: or(&args.sizes, &journal::SIZES),
            ways: io.clone(),
            peers: args.peers.clone(),
            seconds: sustained.as_secs_f64(),
        };
        return ask_journal(&args, &stage, &ask);
    }
    ask_all(&args, &stage)
}

/// Asks one question, or all, with this program's transports and the peers. Prints and stores the answers.
fn ask_all(args: &Args, stage: &Stage) -> Result<ExitCode> {
    let peers = args.peers.as_deref().map(peers::list).transpose()?.unwrap_or_default();
    for peer in &peers {
        eprintln!("peer: {} {}", peer.name, peer.version);
    }
    let questions = match args.question {
        Question::All { .. } => vec![
            Question::Latency,
            Question::Throughput,
            Question::Fanout,
            Question::Oversubscribed,
            Question::Churn,
            Question::Bridge,
            Question::Soak { duration: Duration::from_secs(60) },
        ],
        ref one => vec![one.clone()],
    };
    let (mut passed, mut failed) = (0, 0);
    for question in &questions {
        let Some(answer) = ask(args, question, stage, &peers)? else { continue };
        if let Some(sheet) = sheet(&answer) {
            println!("{sheet}");
        }
        let (complete, incomplete) = answer.passed_and_failed();
        (passed, failed) = (passed + complete, failed + incomplete);
        print_failures(&answer);
        if let Some(path) = path_of(args, &answer) {
            report::files::write_answer(&answer, &path)?;
        }
    }
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn ask_journal(args: &Args, stage: &Stage, ask: &journal::Ask) -> Result<ExitCode> {
    let answer = journal::run(stage, ask)?;
    println!("{}", journal::sheet::text(&answer));
    if let Some(path) = &args.json {
        report::files::write_json(&answer, path)?;
    }
    Ok(if answer.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn compare_languages(args: &Args, testees: &[String], rust: Option<&Path>, dir: &Path) -> Result<ExitCode> {
    let rust = match rust {
        Some(program) => program.to_owned(),
        None => std::env::current_exe()?.with_file_name("shmcast-testee"),
    };
    anyhow::ensure!(rust.exists(), "no program {}: build shmcast-conformance too", rust.display());
    let all: Vec<String> = [rust.display().to_string()].into_iter().chain(testees.iter().cloned()).collect();
    let messages = args.messages.unwrap_or(20_000) as usize;
    let (laps, messages) = if args.quick { (1, 1_000) } else { (args.laps, messages) };
    let sizes = or(&args.sizes, &bindings::SIZES);
    let effort = bindings::Effort { laps, messages, quick: args.quick };
    let figures = bindings::run(&all, dir, &sizes, effort)?;
    println!(
        "ns a message, and in brackets beside the first: medians of {laps} laps\n{}",
        bindings::table(&figures)
    );
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&figures)?)
            .with_context(|| format!("write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the numbers that the user gave. If the user gave none, returns the default numbers.
fn or(given: &[usize], default: &[usize]) -> Vec<usize> {
    if given.is_empty() { default.to_vec() } else { given.to_vec() }
}

fn stage(args: &Args, dir: &Path) -> Result<Stage> {
    let program = std::env::current_exe().context("find this program")?;
    Ok(Stage {
        daemon: args
            .daemon
            .clone()
            .or_else(|| Some(program.with_file_name("shmcastd")).filter(|p| p.exists())),
        program,
        peers: args.peers.clone(),
        dir: dir.to_owned(),
        laps: if args.quick { 1 } else { args.laps },
        retries: if args.quick { 0 } else { args.retries },
        only: args.only.clone(),
        quick: args.quick,
        ring_bytes: args.ring_bytes,
    })
}

fn compare(args: &Args, old: &Path, new: &Path, fail: bool) -> Result<ExitCode> {
    let comparison = report::compare::compare(old, new)?;
    println!("{comparison}");
    comparison.skipped.iter().for_each(|what| eprintln!("not compared: {what}"));
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&comparison)?;
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(if fail && comparison.worse() > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn path_of(args: &Args, answer: &Answer) -> Option<PathBuf> {
    match &args.question {
        Question::All { results } => Some(results.as_ref()?.join(format!("{}.json", answer.question))),
        _ => args.json.clone(),
    }
}

/// Prints the failed rounds, because the table does not show them.
fn print_failures(answer: &Answer) {
    for round in &answer.rounds {
        if let Err(why) = &round.outcome {
            eprintln!("{}, {}: {why}", answer.question, round.case);
        }
    }
}

/// Makes the two hosts for the question about bridges. If the hosts cannot be made, prints the reason and returns `None`.
fn two_hosts(args: &Args) -> Option<Hosts> {
    let beside = || Ok(std::env::current_exe()?.with_file_name("shmcast"));
    let made = args.shmcast.clone().map_or_else(beside, Ok).and_then(|program: PathBuf| {
        anyhow::ensure!(program.exists(), "no program {}: build shmcast-daemon too", program.display());
        Hosts::new(program)
    });
    made.inspect_err(|why| eprintln!("SKIPPED bridge: {why:#}")).ok()
}

/// Returns the additional contestants on one host: those that the user named, and the peers, whose receivers wait by `wait`. If the user
/// named a peer, the peers that the user did not name take no part.
fn guests(named: &[Contestant], peers: &[Peer], wait: Wait) -> Vec<Contestant> {
    let is_named = |peer: &Peer| named.iter().any(|who| who.transport_name() == peer.name);
    let joining = if peers.iter().any(is_named) { &[] } else { peers };
    let joining = joining.iter().filter(|peer| !is_peer_between_hosts(&peer.name));
    joining.map(|peer| Contestant::new(&peer.name, wait)).chain(named.iter().cloned()).collect()
}

fn ask(args: &Args, question: &Question, stage: &Stage, peers: &[Peer]) -> Result<Option<Answer>> {
    let busy = guests(&args.with, peers, Wait::Spin);
    Ok(Some(match question {
        Question::Latency => latency::run(stage, &or(&args.sizes, &latency::SIZES), &busy, args.messages)?,
        Question::Throughput => {
            let messages = args.messages.unwrap_or(5_000_000);
            throughput::run(stage, &or(&args.sizes, &throughput::SIZES), &busy, messages)?
        }
        Question::Fanout => {
            let messages = args.messages.unwrap_or(2_000);
            let size = args.sizes.first().copied().unwrap_or(256);
            let receivers = or(&args.receivers, &fanout::RECEIVERS);
            let yielding = guests(&args.with, peers, Wait::Yield);
            fanout::run(stage, &receivers, size, &yielding, messages)?
        }
        Question::Oversubscribed => {
            let receivers = or(&args.receivers, &oversubscribed::RECEIVERS);
            let messages = args.messages.unwrap_or(2_000);
            oversubscribed::run(stage, &receivers, &args.with, messages)?
        }
        Question::Churn => churn::run(stage, &args.with, args.messages.unwrap_or(10_000))?,
        Question::Bridge => {
            let Some(hosts) = two_hosts(args) else { return Ok(None) };
            let messages = args.messages.unwrap_or(20_000);
            let peers: Vec<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
            bridge::run(stage, &hosts, &or(&args.sizes, &bridge::SIZES), messages, &peers)?
        }
        Question::Soak { duration } => soak::run(stage, &or(&args.receivers, &[1]), &args.with, *duration)?,
        Question::Bindings { .. }
        | Question::Journal { .. }
        | Question::PlayJournal { .. }
        | Question::All { .. }
        | Question::Report { .. }
        | Question::Compare { .. }
        | Question::Play { .. } => unreachable!("taken apart, or done before"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_join_unless_some_are_named() {
        let peers = ["a", "b"].map(|name| Peer { name: name.into(), version: "1".into() });
        let names = |with: &[Contestant]| -> Vec<String> {
            guests(with, &peers, Wait::Spin).iter().map(Contestant::name).collect()
        };
        assert_eq!(names(&[]), ["a/spin", "b/spin"]);
        assert_eq!(
            names(&[Contestant::new("multicast", Wait::Block)]),
            ["a/spin", "b/spin", "multicast/block"]
        );
        assert_eq!(names(&[Contestant::new("b", Wait::Yield)]), ["b/yield"]);
        let between = [Peer { name: "aeron-udp".into(), version: "1".into() }];
        assert!(guests(&[], &between, Wait::Spin).is_empty(), "it needs two hosts");
    }
}
