//! `shmcast replay`: publishes a recording again. The recording is a journal, or a capture of a network.

mod capture;
mod journal;

use super::HostArg;
use super::journal::span::Span;
use super::pace::Speed;
use super::ring::{RingArgs, keys_and};
use super::stop::Stop;
use super::units::{parse_duration, words};
use anyhow::{Result, bail};
use shmcast_bridge::proto::session::Session;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

const EXAMPLE: &str = "\
Examples:
  shmcast replay /var/lib/shmcast/ticks --into ticks-again --wait-readers 1
  shmcast replay ticks.journal --into ticks-again --from 09:30 --to 10:00 --speed 100 --max-pause 1s
  shmcast replay morning.pcap --into itch --unwrap --port 26400 --speed 10

A directory is a journal, and anything else a capture. The channel of a journal must be new,
or go on where the replay begins: readers get the sequences that were recorded. Messages that
the journal lacks are a gap to them. Messages are published when they are due, or with
--speed max one behind the other: readers that are slower are lapped, as by pub, unless they
have a gate.

Exit codes: 0 all was published, 3 messages are missing or skipped in the journal, or missing in the feed of
--unwrap, or packets of the capture could not be read, 1 error, 2 wrong usage; 130 (Ctrl-C),
143 (SIGTERM) or 129 (SIGHUP) if it came before the end: the last line says how far it came.";

#[derive(Debug, clap::Args)]
#[command(after_help = keys_and(EXAMPLE))]
pub(super) struct Args {
    /// Directory of a journal, or the folder of one stream in it; or a capture of tcpdump or Wireshark, or - for a capture on stdin. Each
    /// UDP payload of a capture is published as a message
    recording: PathBuf,
    /// Name of the channel to publish on
    #[arg(long, value_name = "CHANNEL")]
    into: String,
    #[command(flatten)]
    host: HostArg,
    #[command(flatten)]
    span: Span,
    /// Speed: 1 as in the recording, 10 ten times as fast, 0.5 half as fast, or max
    #[arg(long, value_name = "SPEED", default_value = "1", value_parser = words(&["max"], Speed::from_str),
          hide_possible_values = true)]
    speed: Speed,
    /// Shorten each silence of the recording to this time, such as 1s. --speed applies to the shortened time [default: 2s for a capture,
    /// because clocks of captures may leap]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    max_pause: Option<Duration>,
    /// For a capture: publish the single MoldUDP64 messages, in order and each once, with gaps where messages are missing. With SESSION,
    /// publish only this session; without it, the first session and those that follow its end
    #[arg(long, value_name = "SESSION", num_args = 0..=1, require_equals = true, value_parser = Session::named)]
    unwrap: Option<Option<Session>>,
    /// Of a capture: take datagrams to these ports only
    #[arg(long = "port", value_name = "PORT", value_delimiter = ',')]
    ports: Vec<u16>,
    /// Of a capture: publish it this many times
    #[arg(long = "loop", value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    #[command(flatten)]
    ring: RingArgs,
    /// Print the summary as JSON on stdout
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    let place = args.recording.display();
    if !args.recording.is_dir() {
        if args.span.is_given() {
            bail!("{place} is no directory, and so no journal: --from and --to are for journals");
        }
        return capture::run(args, &stop);
    }
    if args.unwrap.is_some() || !args.ports.is_empty() || args.repeat > 1 {
        bail!("{place} is a directory, and so no capture: --unwrap, --port and --loop are for captures");
    }
    journal::run(args, &stop)
}
