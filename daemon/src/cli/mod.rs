//! The command line: verbs, their common options, and exit codes.
//!
//! A verb prints its data to stdout. It prints messages for the user to stderr (`say`).
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | success |
//! | 1 | error |
//! | 2 | wrong usage |
//! | 3 | messages were missed |
//! | 4 | a file of a journal is damaged |
//! | 130, 143 | a signal came before the work was done (`stop`) |

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use shmcast::{
    ChannelError, ChannelInfo, ChannelStatus, Client, DIR_VARIABLE, Directory, Publisher, PublisherBuilder,
    SOCKET_VARIABLE, Subscriber, SubscriberBuilder,
};
use shmcast_demo::exit::{FAILED, describe, end, parse};
use shmcast_demo::{say, stop};
use std::ffi::CStr;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

#[cfg(not(all(feature = "top", feature = "tune")))]
mod absent;
mod board;
mod bridge;
mod check;
pub mod daemon;
mod death;
mod doctor;
mod events;
mod figures;
mod framing;
mod hiccups;
mod journal;
mod ls;
mod man;
mod moved;
mod pace;
mod publish;
mod record;
mod replay;
mod ring;
mod rm;
mod seccomp;
mod set;
mod stat;
mod subscribe;
mod takeover;
#[cfg(feature = "top")]
mod top;
#[cfg(feature = "tune")]
mod tune;
mod units;
mod verify_release;

#[cfg(not(feature = "top"))]
use absent::top;
#[cfg(not(feature = "tune"))]
use absent::tune;

/// Exit code when messages were missed.
const MISSED: u8 = 3;

/// One publisher, a hundred local readers, one cache line a message.
#[derive(Debug, Parser)]
#[command(name = "shmcast", version, arg_required_else_help = true, max_term_width = 110)]
#[command(after_help = "Example: shmcast demo --readers 50\n\n\
    Exit codes: 0 success, 1 error, 2 wrong usage, 3 messages were missed, 4 a journal is damaged;\n\
    130 (Ctrl-C) or 143 (SIGTERM) if it came before the work was done. Verbs without an end of\n\
    their own are ended by Ctrl-C: it is no failure of theirs. If the reader of a pipe leaves, the\n\
    command ends with 0.")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure shared memory beside kernel multicast on this machine; needs no daemon and no configuration
    Demo(shmcast_demo::Args),
    /// Publish lines or length-prefixed messages from a file or stdin
    Pub(publish::Args),
    /// Receive a channel's messages to stdout
    Sub(subscribe::Args),
    /// Record a channel into files that survive a power cut
    Record(record::Args),
    /// Publish a journal or a capture of a network on a channel
    Replay(replay::Args),
    /// Show the last message of each key
    Board(board::Args),
    /// List channels
    Ls(ls::Args),
    /// Show one channel and its readers
    Stat(stat::Args),
    /// Show all channels and their readers, live
    Top(top::Args),
    /// Show what happens on the daemon's channels, as it happens
    Events(events::Args),
    /// Take a strict channel away from a publisher that runs but does not answer
    Takeover(takeover::Args),
    /// Remove a channel that nobody uses
    Rm(rm::Args),
    /// Carry a channel between hosts
    Bridge(bridge::Args),
    /// Look into a channel's journal
    Journal(journal::Args),
    /// Check a daemon's configuration file
    Check(check::Args),
    Doctor(doctor::Args),
    Tune(tune::Args),
    Hiccups(hiccups::Args),
    Seccomp(seccomp::Args),
    VerifyRelease(verify_release::Args),
    /// Write the manual pages of both programs
    Man(man::ManArgs),
    /// Print a completion script for a shell
    Completions(man::CompletionsArgs),
    #[command(hide = true)]
    DemoReader(shmcast_demo::reader::Args),
}

/// Where channels are.
#[derive(Debug, Clone, Default, clap::Args)]
struct HostArg {
    /// Use the channels in this directory [default: $SHMCAST_DIR; else those of the daemon, if one answers; else /dev/shm/shmcast, if root
    /// has made it and you may use it; else your own /dev/shm/shmcast-UID]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// The owner of the channels.
#[derive(Debug, Clone)]
enum Host {
    Directory(Directory),
    Daemon(Client),
}

impl HostArg {
    /// Returns the directory or the socket that the command line or the environment names. If they name none, returns the daemon if one
    /// answers, and otherwise the default directory of files.
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
            // If the user names a socket, no other place is tried. The same holds if a daemon answers and refuses.
            Err(e) if is_set(SOCKET_VARIABLE) || !matches!(e, ChannelError::NoDaemon { .. }) => Err(e.into()),
            Err(_) => Ok(Host::Directory(Directory::default())),
        }
    }

    /// Does the same as [`host`](Self::host), for a verb about one channel. The channel must be given by a name. A path is refused, because
    /// it would lead out of the directory of channels.
    fn host_of(&self, channel: &str) -> Result<(Host, String)> {
        if channel.contains('/') {
            let (dir, name) = channel.trim_end_matches('/').rsplit_once('/').unwrap_or((".", channel));
            let (dir, name) = (if dir.is_empty() { "/" } else { dir }, name.trim_end_matches('/'));
            if shmcast::hosting::fault!("paths_lead_out_of_the_directory") {
                return Ok((Host::Directory(Directory::at(dir)), name.to_owned()));
            }
            bail!(
                "channel {channel:?}: a channel is a name, not a path: give the directory with --dir DIR and the \
                 channel's name, here `--dir {dir} {name}`"
            );
        }
        Ok((self.host()?, channel.to_owned()))
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

/// Parses the arguments of this process, and runs the verb.
pub fn main() -> ExitCode {
    match man::complete() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        // The error is not printed, because it would appear in the middle of the command line that the user types.
        Err(_) => return ExitCode::from(FAILED),
    }
    let cli: Cli = match parse(moved::shown) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    if let Err(e) = stop::survive_file_size_limit() {
        return ExitCode::from(end(&e.into()));
    }
    let result = match cli.verb {
        Verb::Demo(args) => shmcast_demo::run(&args),
        Verb::Pub(args) => publish::run(&args),
        Verb::Sub(args) => subscribe::run(&args),
        Verb::Record(args) => record::run(&args),
        Verb::Replay(args) => replay::run(&args),
        Verb::Board(args) => board::run(&args),
        Verb::Ls(args) => ls::run(&args),
        Verb::Stat(args) => stat::run(&args),
        Verb::Top(args) => top::run(&args),
        Verb::Events(args) => events::run(&args),
        Verb::Takeover(args) => takeover::run(&args),
        Verb::Rm(args) => rm::run(&args),
        Verb::Bridge(args) => bridge::run(&args),
        Verb::Journal(args) => journal::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Seccomp(args) => seccomp::run(&args),
        Verb::VerifyRelease(args) => verify_release::run(&args),
        Verb::Tune(args) => tune::run(&args),
        Verb::Hiccups(args) => hiccups::run(&args),
        Verb::Man(args) => man::manuals(&args),
        Verb::Completions(args) => man::completions(&args),
        Verb::DemoReader(args) => shmcast_demo::reader::run(&args),
    };
    result.unwrap_or_else(|error| ExitCode::from(end(&error)))
}

/// Sets the name that tools show for this process, if the user gave one. If the user gave a CPU, pins this thread to it.
fn name_and_pin(name: Option<&CStr>, cpu: Option<usize>) -> Result<()> {
    name.map_or(Ok(()), nix::sys::prctl::set_name)?;
    match cpu {
        Some(cpu) => shmcast::pin_current_thread(cpu).with_context(|| format!("pin to --cpu {cpu}")),
        None => Ok(()),
    }
}
