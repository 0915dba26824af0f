//! The command line: verbs, their common options, and exit codes.
//!
//! Data goes to stdout, everything said about it to stderr. Exit code 0 is success, 1 an error, 2 wrong usage, 3 that
//! messages were missed.

use anyhow::{Error, Result};
use clap::{Parser, Subcommand};
use shmcast::{
    ChannelError, ChannelInfo, ChannelStatus, Client, DIR_VARIABLE, Directory, Publisher, PublisherBuilder,
    SOCKET_VARIABLE, Subscriber, SubscriberBuilder,
};
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

mod bridge;
mod check;
pub mod daemon;
mod demo;
mod doctor;
mod events;
mod figures;
mod framing;
mod hiccups;
mod ls;
mod man;
mod publish;
mod rm;
mod stat;
mod subscribe;
mod takeover;
mod top;
mod units;

/// Exit code when messages were missed.
const MISSED: u8 = 3;

/// One publisher, a hundred local readers, one cache line a message.
#[derive(Debug, Parser)]
#[command(name = "shmcast", version, arg_required_else_help = true, max_term_width = 110)]
#[command(
    after_help = "Example: shmcast demo --readers 50\n\nExit codes: 0 success, 1 error, 2 wrong usage, 3 messages were missed."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure shared memory beside kernel multicast on this machine; needs nothing else running
    Demo(demo::Args),
    /// Publish lines or length-prefixed messages from a file or stdin
    Pub(publish::Args),
    /// Receive a channel's messages to stdout
    Sub(subscribe::Args),
    /// List channels
    Ls(ls::Args),
    /// Show one channel and its readers
    Stat(stat::Args),
    /// Show all channels and their readers, live
    Top(top::Args),
    /// Show what happens on the daemon's channels, as it happens
    Events(events::Args),
    /// Take a strict channel away from a publisher that lives and does not answer
    Takeover(takeover::Args),
    /// Remove a channel that nobody uses
    Rm(rm::Args),
    /// Carry a channel between hosts
    Bridge(bridge::Args),
    /// Check a daemon's configuration file
    Check(check::Args),
    Doctor(doctor::Args),
    Hiccups(hiccups::Args),
    /// Write the manual pages of both programs
    Man(man::ManArgs),
    /// Print a completion script for a shell
    Completions(man::CompletionsArgs),
    #[command(hide = true)]
    DemoReader(demo::reader::Args),
}

/// Where channels are.
#[derive(Debug, Clone, clap::Args)]
struct HostArg {
    /// Use the channels in this directory [default: $SHMCAST_DIR; else the daemon's, if one answers; else
    /// /dev/shm/shmcast]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Who has the channels.
#[derive(Debug, Clone)]
enum Host {
    Directory(Directory),
    Daemon(Client),
}

impl HostArg {
    /// What was named on the command line or in the environment; else the daemon, if one answers; else files.
    fn host(&self) -> Result<Host> {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if let Some(dir) = &self.dir {
            return Ok(Host::Directory(Directory::at(dir)));
        }
        if is_set(DIR_VARIABLE) {
            return Ok(Host::Directory(Directory::default()));
        }
        match Client::connect() {
            Ok(client) => Ok(Host::Daemon(client)),
            // Whoever names a socket means it; a daemon that answers but refuses is no reason to look elsewhere.
            Err(e) if is_set(SOCKET_VARIABLE) || !matches!(e, ChannelError::NoDaemon { .. }) => Err(e.into()),
            Err(_) => Ok(Host::Directory(Directory::default())),
        }
    }

    /// As [`host`](Self::host), but a channel given as a path says by itself where it is.
    fn host_of(&self, channel: &str) -> Result<(Host, String)> {
        match (&self.dir, channel.rsplit_once('/')) {
            (None, Some((dir, name))) => {
                let dir = if dir.is_empty() { "/" } else { dir };
                Ok((Host::Directory(Directory::at(dir)), name.to_owned()))
            }
            _ => Ok((self.host()?, channel.to_owned())),
        }
    }
}

impl Host {
    fn channels(&self) -> Result<Vec<ChannelStatus>, ChannelError> {
        match self {
            Self::Directory(directory) => Ok(directory.channels()?.iter().map(ChannelInfo::status).collect()),
            Self::Daemon(client) => client.channels(),
        }
    }

    fn channel(&self, name: &str) -> Result<ChannelStatus, ChannelError> {
        match self {
            Self::Directory(directory) => Ok(directory.channel(name)?.status()),
            Self::Daemon(client) => client.channel(name),
        }
    }

    fn publisher(&self, name: &str) -> PublisherBuilder {
        match self {
            Self::Directory(directory) => Publisher::builder(name).directory(directory),
            Self::Daemon(client) => Publisher::builder(name).client(client),
        }
    }

    fn subscriber(&self, name: &str) -> SubscriberBuilder {
        match self {
            Self::Directory(directory) => Subscriber::builder(name).directory(directory),
            Self::Daemon(client) => Subscriber::builder(name).client(client),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory) => write!(f, "{}", directory.path().display()),
            Self::Daemon(client) => write!(f, "the daemon at {}", client.socket().display()),
        }
    }
}

/// Runs the command line this process was given.
pub fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Demo(args) => demo::run(&args),
        Verb::Pub(args) => publish::run(&args),
        Verb::Sub(args) => subscribe::run(&args),
        Verb::Ls(args) => ls::run(&args),
        Verb::Stat(args) => stat::run(&args),
        Verb::Top(args) => top::run(&args),
        Verb::Events(args) => events::run(&args),
        Verb::Takeover(args) => takeover::run(&args),
        Verb::Rm(args) => rm::run(&args),
        Verb::Bridge(args) => bridge::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Hiccups(args) => hiccups::run(&args),
        Verb::Man(args) => man::manuals(&args),
        Verb::Completions(args) => man::completions(&args),
        Verb::DemoReader(args) => demo::reader::run(&args),
    };
    result.unwrap_or_else(|error| {
        // Whoever reads our output has left: that is his decision, not an error.
        let pipe_closed = error.chain().filter_map(|e| e.downcast_ref::<std::io::Error>());
        if pipe_closed.into_iter().any(|e| e.kind() == std::io::ErrorKind::BrokenPipe) {
            return ExitCode::SUCCESS;
        }
        eprintln!("shmcast: {}", describe(&error));
        ExitCode::FAILURE
    })
}

/// An error and its causes in one line.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        // Some errors quote their cause, some leave it to the chain.
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Becomes true at the first Ctrl-C or SIGTERM; a second one ends the process at once.
fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

fn stopped(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed)
}

/// Prints a value as one line of JSON.
fn print_json(value: &impl serde::Serialize) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, value).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}
