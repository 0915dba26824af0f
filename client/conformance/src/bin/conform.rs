//! `conform`: plays the suite with a testee.
#![allow(clippy::print_stdout, reason = "it is a program")]

use anyhow::{Result, bail};
use clap::Parser;
use shmcast_conformance::testee::Testee;
use shmcast_conformance::{LEVELS, vectors};
use std::ffi::OsString;
use std::process::ExitCode;

/// Plays the conformance suite with a testee, and says which vectors it failed.
#[derive(Debug, Parser)]
#[command(version, after_help = "Example: conform --level 2 ./my-testee")]
struct Arguments {
    /// Only this level
    #[arg(long)]
    level: Option<u8>,
    /// Only vectors whose name has this in it
    #[arg(long)]
    only: Option<String>,
    /// One line of JSON for each vector
    #[arg(long)]
    json: bool,
    /// The testee's command
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    testee: Vec<OsString>,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let mut testee = Testee::start(&arguments.testee)?;
    let command = arguments.testee.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let (name, version) = (testee.hello.testee.clone(), testee.hello.version.clone());
    let levels: Vec<u8> = LEVELS
        .into_iter()
        .filter(|level| {
            arguments.level.is_none_or(|only| only == *level) && testee.hello.levels.contains(level)
        })
        .collect();
    let (mut played, mut failed) = (0, 0);
    for level in levels {
        let (mut of_level, mut bad) = (0, 0);
        for vector in vectors(level) {
            if arguments.only.as_ref().is_some_and(|only| !vector.name.contains(only)) {
                continue;
            }
            // A testee that ended is started again, so that one vector does not hide the others.
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
