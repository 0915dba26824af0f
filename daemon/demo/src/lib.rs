//! `shmcast demo` sends the same messages to the same number of reader processes in two ways: through shared memory, and through kernel
//! multicast over `lo`. It shows both results side by side.
//!
//! The demo needs no daemon, no root and no configuration: the channel lives in a temporary directory, and the readers are this program
//! again. For both transports the demo measures two durations: how long the publisher takes to publish a message, and how long it takes
//! until the *last* reader has the message.
//!
//! The transports take short turns, so that other load of the machine affects both transports alike. `verdict` decides whether a comparison
//! is printed.
//!
//! The package is small, because a newcomer's first command builds it. The command `shmcast` also uses this library: for its verb `demo`,
//! and for the modules [`say`], [`stop`], [`exit`] and [`figures`].
#![forbid(unsafe_code)]
// The command prints only through `say`, which does not panic if the output cannot be written.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod args;
mod cpu_times;
pub mod exit;
pub mod figures;
mod load;
mod machine;
mod multicast;
mod plan;
mod play;
mod pool;
mod progress;
pub mod reader;
mod report;
pub mod say;
mod side;
pub mod stop;
mod talk;
mod verdict;

pub use args::Args;
pub use cpu_times::{CpuTimes, cpu_times};

use anyhow::{Result, bail};
use figures::grouped;
use load::Meter;
use machine::Machine;
use plan::Plan;
use play::play;
use report::Report;
use say::{print, print_json};
use std::process::ExitCode;
use std::time::Duration;
use stop::Stop;

/// Runs the demo and prints what it measured.
///
/// # Errors
/// A reader failed, the demo was interrupted, or shared memory lost messages.
pub fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    let plan = Plan::new(args.messages, Duration::from_micros(args.interval_us));
    note!("{}", announcement(args, &plan));
    let (machine, meter) = (Machine::read(), Meter::new());
    if args.wait > 0 {
        let patience = Duration::from_secs(args.wait.into());
        note!("waiting up to {} s until other programs leave the CPUs alone for a second", args.wait);
        // The limit is half of the tolerated share, because a single second can be quiet by chance.
        if !meter.wait_for_quiet(patience, verdict::TOLERATED / 2.0, &stop)? {
            note!("they did not; measuring all the same");
        }
    }
    let played = play(args, &plan, machine.cpus, meter, &stop)?;
    let lost = played.shm.lost;
    let report = Report::new(args, &plan, machine, played);
    if args.json {
        print_json(&report)?;
    } else {
        print(report.for_eyes())?;
    }
    if lost > 0 {
        bail!("shared memory lost {lost} messages: readers were overtaken; raise --interval-us");
    }
    Ok(ExitCode::SUCCESS)
}

/// Describes what the demo will do, and how long this takes.
fn announcement(args: &Args, plan: &Plan) -> String {
    let (transports, how) = match args.no_multicast {
        true => (1, "shared memory, in"),
        false => (2, "shared memory and through kernel multicast by turns,"),
    };
    format!(
        "{} messages of {} B to {} reader {} through {how} {} turns of {:.2} s each: about {:.0} s",
        grouped(args.messages),
        args.size,
        grouped(args.readers.into()),
        if args.readers == 1 { "process" } else { "processes" },
        plan.turns() * u64::from(transports),
        plan.turn_takes().as_secs_f64(),
        plan.takes(transports).as_secs_f64().ceil()
    )
}
