//! `shmcast bridge`: sends a channel to other hosts or receives one, without a daemon. It also shows the state of a daemon's bridges.

mod capture;
mod check;
mod engine;
mod heard;
mod key;
mod options;
mod promote;
mod recv;
mod send;
mod status;
mod stream;
mod takeover;

use super::MISSED;
use super::figures::grouped;
use super::say::note;
use super::stop::{Interrupted, Stop};
use anyhow::{Result, bail};
use capture::{CaptureArg, outcome_of};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
pub(super) use options::ACCOUNT_VARIABLE;
use options::{Options, Side};
use shmcast_bridge::status::Life;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Interval at which the command checks the bridge, which has threads of its own.
const LOOK: Duration = Duration::from_millis(50);

const EXAMPLE: &str = "\
Examples:
  shmcast bridge send ticks --to 239.1.2.3:30001 --interface eth0
  shmcast bridge status --json";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Send a channel to other hosts
    Send(Box<send::Args>),
    /// Receive a channel from another host and publish it here
    Recv(Box<recv::Args>),
    /// Check whether the bridges of a configuration can work here
    Check(check::Args),
    /// Show what the daemon's bridges are doing
    Status(status::Args),
    /// Let a standby bridge of the daemon take over the sending from its peer
    Takeover(takeover::Args),
    /// Turn a received channel into a channel of this host, after the host of its publisher was lost
    Promote(promote::Args),
    /// Make and show the keys of native lines and of blocks
    Key(key::Args),
    /// Make, show, check and remove the stream of a channel on servers of NATS JetStream
    Stream(Box<stream::Args>),
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        Verb::Send(args) => send::run(args),
        Verb::Recv(args) => recv::run(args),
        Verb::Check(args) => check::run(args),
        Verb::Status(args) => status::run(args),
        Verb::Takeover(args) => takeover::run(args),
        Verb::Promote(args) => promote::run(args),
        Verb::Key(args) => key::run(args),
        Verb::Stream(args) => stream::run(args),
    }
}

/// Options of both directions.
#[derive(Debug, clap::Args)]
struct Common {
    /// Servers of NATS JetStream that carry the channel in place of lines, such as nats://10.0.0.1:4222, or tls://host:4222 with TLS;
    /// several with commas between
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    nats: Vec<String>,
    #[command(flatten)]
    options: Options,
    /// Interface of the lines, by name or address. Give one for all lines, or one for each line in their order
    #[arg(long, value_name = "NAME")]
    interface: Vec<String>,
    #[command(flatten)]
    capture: CaptureArg,
    /// End when the session has ended, and do not wait for the next one
    #[arg(long)]
    until_end: bool,
    /// Print the counters as JSON on stdout at the end
    #[arg(long)]
    json: bool,
}

impl Common {
    /// Returns the error for a signal that arrives before the end of the session. Returns `None` without `--until-end`, or without a
    /// signal.
    fn interrupted(&self, channel: &str, stop: &Stop) -> Option<Interrupted> {
        let is_early = self.until_end && stop.is_set();
        is_early.then(|| stop.interrupted(format!("{channel}: INTERRUPTED before the session's end")))
    }

    /// Ends a verb that a signal has stopped before it began.
    fn left_early(&self, channel: &str, stop: &Stop) -> Result<ExitCode> {
        left_early(channel, self.until_end, stop)
    }
}

/// Returns one value for each line. The user can give none, one for all lines, or one for each line.
fn for_each_line<T: Clone>(option: &str, lines: usize, values: &[T]) -> Result<Vec<Option<T>>> {
    match values {
        [] => Ok(vec![None; lines]),
        [one] => Ok(vec![Some(one.clone()); lines]),
        each if each.len() == lines => Ok(each.iter().cloned().map(Some).collect()),
        each => {
            bail!(
                "{option} is given {} times, but there are {lines} lines: give it once, or once a line",
                each.len()
            )
        }
    }
}

/// Returns the exit code, which says whether messages were missed. Fails if the bridge failed or a signal came too early.
fn outcome(channel: &str, life: &Life, missed: u64, interrupted: Option<Interrupted>) -> Result<ExitCode> {
    match (life.error(), interrupted) {
        (Some(error), _) => bail!("{channel}: {error}"),
        (None, _) if missed > 0 => Ok(ExitCode::from(MISSED)),
        (None, Some(interrupted)) => Err(interrupted.into()),
        (None, None) => Ok(ExitCode::SUCCESS),
    }
}

/// Ends a verb that a signal has stopped before it began. With `--until-end`, this is an error.
fn left_early(channel: &str, until_end: bool, stop: &Stop) -> Result<ExitCode> {
    if until_end {
        return Err(stop.interrupted(format!("{channel}: INTERRUPTED before the channel's start")).into());
    }
    Ok(ExitCode::SUCCESS)
}

fn tell_refusals(channel: &str, life: &Life) {
    life.refusals.iter().for_each(|refusal| note!("{channel}: {refusal}"));
}

/// Reports once that the bridge waits for its channel.
fn tell_away(channel: &str, life: &Life, progress: &ProgressBar, is_told: &mut bool) {
    let away = life.away();
    if let Some(why) = away.as_ref().filter(|_| !*is_told) {
        progress.suspend(|| note!("{channel}: {why}"));
    }
    *is_told = away.is_some();
}

/// Makes a progress line, which is shown only if stderr is a terminal.
fn progress() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}").expect("the template is ours");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style)
}

/// The shortest time between two reports of a problem that continues.
const AGAIN: Duration = Duration::from_secs(60);

/// Reports that a count of problems has grown, but at most once a minute.
#[derive(Default)]
struct Seldom {
    seen: u64,
    told: Option<Instant>,
}

impl Seldom {
    fn look(&mut self, progress: &ProgressBar, now: u64, text: impl FnOnce() -> String) {
        if now > self.seen && self.told.is_none_or(|told| told.elapsed() >= AGAIN) {
            (self.seen, self.told) = (now, Some(Instant::now()));
            progress.suspend(|| note!("{}", text()));
        }
    }
}

/// Reports that a count of losses has grown.
struct Alarm {
    told: u64,
}

impl Alarm {
    fn look(&mut self, progress: &ProgressBar, now: u64, text: impl FnOnce(u64) -> String) {
        if now > self.told {
            let more = now - self.told;
            self.told = now;
            progress.suspend(|| note!("{}", text(more)));
        }
    }
}

/// Returns the text of an alarm. It says that `more` messages were given up since the last alarm.
fn missed(channel: &str, too_large: u64, more: u64) -> String {
    let hint = match too_large {
        0 => String::new(),
        large => format!(
            "; {} so far are larger than the channel takes: make it with a larger --set max_message=SIZE",
            grouped(large)
        ),
    };
    format!("{channel}: {} messages are not on this channel{hint}", grouped(more))
}

/// Returns a text about received messages that are not published. Without any, the text is empty.
fn held(messages: u64) -> String {
    if messages == 0 { String::new() } else { format!(", {} received and not published", grouped(messages)) }
}
