//! `conform`: plays the suite with a testee.
#![allow(clippy::print_stdout, reason = "it is a program")]

use anyhow::{Result, bail, ensure};
use clap::{Args, Parser, Subcommand};
use shmcast_conformance::pairs::{self, Outcome, Plan};
use shmcast_conformance::testee::{Hello, Testee};
use shmcast_conformance::{Effort, LEVELS, vectors};
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

/// Plays the conformance suite with a testee, and says which vectors (test cases) the testee failed.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example: conform --level 2 ./my-testee",
    args_conflicts_with_subcommands = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    suite: Suite,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Let each testee that publishes send messages to each testee, and count the events that arrive
    #[command(after_help = "Example: conform pairs --kills 10 ./testee-in-c 'java -cp client.jar Testee'")]
    Pairs(Pairs),
}

#[derive(Debug, Args)]
struct Pairs {
    /// Messages of each pair, of 0 B to 64 KiB
    #[arg(long, default_value_t = 1_000_000)]
    messages: u64,
    /// Bytes of the ring
    #[arg(long, default_value_t = 1 << 20)]
    capacity: u64,
    /// The number of kills. The publisher is killed; for a daemon's channel, the publisher and the daemon are killed in turn
    #[arg(long, default_value_t = 0)]
    kills: u32,
    /// Use channels of a daemon. Only for testees with level 6
    #[arg(long)]
    daemon: bool,
    /// Seed of the times at which processes are killed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one line of JSON for each pair
    #[arg(long)]
    json: bool,
    /// The commands of the testees. Quote each command as one argument
    #[arg(required = true)]
    testees: Vec<String>,
}

#[derive(Debug, Args)]
struct Suite {
    /// Play only this level
    #[arg(long)]
    level: Option<u8>,
    /// Play only vectors whose name contains this text
    #[arg(long)]
    only: Option<String>,
    /// How long each race of level 4 lasts, in seconds
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// How many mutants of each history of level 5 a reader gets
    #[arg(long, default_value_t = shmcast_conformance::hostile::MUTANTS)]
    mutants: u64,
    /// Print one line of JSON for each vector
    #[arg(long)]
    json: bool,
    /// The testee's command
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    testee: Vec<OsString>,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    match &arguments.command {
        Some(Command::Pairs(pairs)) => play_pairs(pairs),
        None => play_suite(&arguments.suite),
    }
}

fn play_pairs(arguments: &Pairs) -> Result<ExitCode> {
    let mut testees = Vec::new();
    for command in &arguments.testees {
        let words: Vec<OsString> = command.split_whitespace().map(OsString::from).collect();
        let hello = Testee::start(&words)?.hello.clone();
        testees.push((hello, words));
    }
    let plan = Plan {
        messages: arguments.messages,
        capacity: arguments.capacity,
        kills: arguments.kills,
        by_daemon: arguments.daemon,
        seed: arguments.seed,
    };
    let writers: Vec<_> = testees.iter().filter(|(hello, _)| hello.levels.contains(&7)).collect();
    let reads = |hello: &Hello| !plan.by_daemon || hello.levels.contains(&6);
    let readers: Vec<_> = testees.iter().filter(|(hello, _)| reads(hello)).collect();
    ensure!(!writers.is_empty(), "no pair: none of these testees publishes (level 7); name one that does");
    ensure!(
        !readers.is_empty(),
        "no pair: none of these testees reads a daemon's channels (level 6); leave --daemon out"
    );
    let (mut played, mut failed) = (0, 0);
    for (from, writer) in &writers {
        for (to, reader) in &readers {
            let how = if played % 2 == 0 { "poll" } else { "batch" };
            let outcome = pairs::play(writer, reader, how, plan);
            let passed = outcome.as_ref().is_ok_and(|outcome| outcome.counts.judge(plan.messages).is_ok());
            played += 1;
            failed += usize::from(!passed);
            if arguments.json {
                let mut line = serde_json::json!({
                    "from": from.testee, "to": to.testee, "how": how, "passed": passed,
                });
                add(&mut line, &outcome);
                println!("{line}");
            } else {
                let failed = if passed { "" } else { "  FAILED" };
                println!("{} to {} by {how}: {}{failed}", from.testee, to.testee, told(&outcome));
            }
        }
    }
    if !arguments.json {
        println!("{played} pairs of {} messages, {failed} failed", plan.messages);
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Adds a pair's result to the pair's line of JSON.
fn add(line: &mut serde_json::Value, outcome: &Result<Outcome>) {
    match outcome {
        Err(e) => line["error"] = format!("{e:#}").into(),
        Ok(o) => {
            line["received"] = o.counts.received.into();
            line["missed"] = o.counts.missed.into();
            line["wrong"] = o.counts.wrong.into();
            line["seconds"] = o.took.as_secs_f64().into();
            line["publishers_killed"] = o.publishers_killed.into();
            line["daemons_killed"] = o.daemons_killed.into();
        }
    }
}

/// Returns a pair's result as text.
fn told(outcome: &Result<Outcome>) -> String {
    match outcome {
        Err(e) => format!("{e:#}"),
        Ok(o) => format!(
            "received {}, missed {}, wrong {}; killed {} publishers, {} daemons; {:.1} s",
            o.counts.received,
            o.counts.missed,
            o.counts.wrong,
            o.publishers_killed,
            o.daemons_killed,
            o.took.as_secs_f64()
        ),
    }
}

fn play_suite(arguments: &Suite) -> Result<ExitCode> {
    let mut testee = Testee::start(&arguments.testee)?;
    let command = arguments.testee.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let (name, version) = (testee.hello.testee.clone(), testee.hello.version.clone());
    let levels: Vec<u8> = LEVELS
        .into_iter()
        .filter(|level| {
            arguments.level.is_none_or(|only| only == *level) && testee.hello.levels.contains(level)
        })
        .collect();
    let effort = Effort { race: Duration::from_secs_f64(arguments.seconds), mutants: arguments.mutants };
    let (mut played, mut failed) = (0, 0);
    for level in levels {
        let (mut of_level, mut bad) = (0, 0);
        for vector in vectors(level, effort) {
            let is_left_out = arguments.only.as_ref().is_some_and(|only| !vector.name.contains(only));
            if is_left_out || !vector.is_for(&testee.hello) {
                continue;
            }
            // A testee that ended is restarted. Otherwise all later vectors (test cases) would fail.
            let failure = match vector.play(&mut testee) {
                Ok(verdict) => verdict.err().map(|failure| (failure.step, failure.expected, failure.got)),
                Err(e) => {
                    testee = Testee::start(&arguments.testee)?;
                    Some(("the testee".to_owned(), "an answer".to_owned(), format!("{e:#}")))
                }
            };
            of_level += 1;
            bad += usize::from(failure.is_some());
            if arguments.json {
                println!("{}", line(&name, level, &vector.name, failure.as_ref()));
            } else if let Some((step, expected, got)) = failure {
                println!(
                    "FAILED level {level}, {}: {step}\n  expected  {expected}\n  got       {got}",
                    vector.name
                );
                println!("  again     conform --level {level} --only {} -- {command}", vector.name);
            }
        }
        if !arguments.json {
            println!("{name} {version}  level {level}  {of_level} vectors, {bad} failed");
        }
        (played, failed) = (played + of_level, failed + bad);
    }
    if played == 0 {
        bail!("no vector was played: the testee has levels {:?}", testee.hello.levels);
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn line(
    testee: &str,
    level: u8,
    vector: &str,
    failure: Option<&(String, String, String)>,
) -> serde_json::Value {
    let mut line = serde_json::json!({
        "testee": testee, "level": level, "vector": vector, "passed": failure.is_none(),
    });
    if let Some((step, expected, got)) = failure {
        line["step"] = step.as_str().into();
        line["expected"] = expected.as_str().into();
        line["got"] = got.as_str().into();
    }
    line
}
