//! `shmcast pub`: publishes real input on a channel.

mod capture;

use super::figures::grouped;
use super::framing::{InputFraming, read_message};
use super::pace::{Pace, Rate};
use super::ring::{RingArgs, told, wait_for_readers};
use super::say::{note, print_json};
use super::stop::Stop;
use super::units::{parse_cpu, parse_name, words};
use super::{Host, HostArg, MISSED};
use anyhow::{Context, Result, bail};
use capture::{CaptureArgs, Packets, Played};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;
use shmcast::hosting::fault;
use shmcast::{Mark, Preparation, Publisher, PublisherBuilder};
use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

const EXAMPLE: &str = "\
Examples:
  seq 1 1000000 | shmcast pub ticks --wait-readers 1
  shmcast pub itch --input 12302019.NASDAQ_ITCH50 --framing u16be --rate 1000000/s
  shmcast pub prices --board 0..6 --board-keys 10000 < prices.txt
  seq 1 1000000 | shmcast pub ticks --continue-from /var/tmp/ticks   # with shmcast record
  shmcast pub itch --pcap morning.pcap --unwrap --port 26400 --speed 10

Exit codes: 0 all was published, 1 error, 2 wrong usage, 3 packets of the capture could not be read,
or messages of the feed of --unwrap are missing or were left out; 130 (Ctrl-C) or 143 (SIGTERM) if it came before the end: the last line says how many messages were published, and up to which sequence.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Name of the channel
    channel: String,
    #[command(flatten)]
    host: HostArg,
    #[command(flatten)]
    ring: RingArgs,
    /// File to publish, or - for stdin
    #[arg(long, value_name = "FILE", default_value = "-")]
    input: PathBuf,
    /// How the input is cut into messages
    #[arg(long, value_enum, default_value = "lines")]
    framing: InputFraming,
    /// Messages a second, as 5000/s, or max
    #[arg(long, default_value = "max", value_parser = words(&["max"], Rate::from_str), hide_possible_values = true)]
    rate: Rate,
    #[command(flatten)]
    capture: CaptureArgs,
    /// Wait until this many readers are attached; recorders and bridges do not count
    #[arg(long, value_name = "N", default_value_t = 0)]
    wait_readers: usize,
    /// If the channel does not exist, continue after the journal in DIR, so that no sequence is used twice. If there is no journal, begin
    /// one
    #[arg(long, value_name = "DIR")]
    continue_from: Option<PathBuf>,
    /// Tag of each message, from 0 to 65535
    #[arg(long, value_name = "TAG", default_value_t = 0)]
    tag: u16,
    /// Publish each message as a key message, from which a reader may start afresh
    #[arg(long)]
    key: bool,
    /// Number of the messages' schema. An existing channel must have it, and a new channel gets it. Without this option, a channel with a
    /// schema is refused
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    schema: Option<u64>,
    /// Publish the input this many times
    #[arg(long = "loop", value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// Pin the publisher to this CPU
    #[arg(long, value_name = "N", value_parser = parse_cpu)]
    cpu: Option<usize>,
    /// How the ring's memory is made ready
    #[arg(long, value_enum, default_value = "quick")]
    prepare: Prepare,
    /// Name of this process in tools, in place of shmcast: 1 to 15 bytes
    #[arg(long, value_parser = parse_name)]
    name: Option<CString>,
    /// Print how the memory was prepared, and which steps the system refused
    #[arg(long, short)]
    verbose: bool,
    /// Print the summary as JSON on stdout
    #[arg(long)]
    json: bool,
}

/// How the ring's memory is made ready.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Prepare {
    /// Touch and lock the pages; a thread does this for a large ring while messages are published
    Quick,
    /// Touch and lock all pages before the first message, and use huge pages: takes up to seconds, for the steadiest latency
    Full,
    /// Do nothing; the first message in each page waits for the page
    None,
}

impl Args {
    /// The options for opening the channel.
    fn publisher(&self, host: &Host, channel: &str) -> Result<PublisherBuilder> {
        let mut builder = self.ring.publisher(host, channel)?;
        if let Some(journal) = &self.continue_from {
            if let Host::Daemon(_) = host {
                bail!("{host} goes on behind its channels' journals by itself: leave --continue-from out");
            }
            builder = builder.continue_from(journal);
        }
        if let Some(schema) = self.schema {
            builder = builder.schema(schema, "");
        } else if let Ok(found) = host.channel(channel)
            && found.schema_id != 0
        {
            let (id, name) = (found.schema_id, &found.schema);
            bail!(
                "{channel} has schema {id} {name:?}, as which its readers decode each message: give --schema {id} if that is what you publish"
            );
        }
        Ok(match self.prepare {
            Prepare::Quick => builder,
            Prepare::Full => builder.prepare(Preparation::FULL),
            Prepare::None => builder.prepare(Preparation::NONE),
        })
    }

    fn say_preparation(&self, memory: &[String]) {
        for step in memory {
            note!("memory: {step}");
        }
        if memory.is_empty() && !matches!(self.prepare, Prepare::None) {
            note!("memory: all was published before it was made ready");
        }
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    // The source is opened before the channel is made, so that a wrong file name leaves no channel behind.
    let source = Source::open(args, &stop)?;
    super::name_and_pin(args.name.as_deref(), args.cpu)?;

    let (host, channel) = args.host.host_of(&args.channel)?;
    let mut publisher = args.publisher(&host, &channel)?.open()?;
    wait_for_readers(args.wait_readers, &host, &channel, &stop)?;

    let first_sequence = publisher.next_sequence();
    let started = Instant::now();
    let progress = progress();
    let mut done = match source {
        Source::Input(input) => publish_input(args, input, &mut publisher, &stop, &progress)?,
        Source::Capture(path, capture) => {
            publish_capture(args, path, *capture, &mut publisher, &stop, &progress)?
        }
    };
    let elapsed = started.elapsed();
    progress.finish_and_clear();
    let (epoch, next_sequence) = (publisher.epoch(), publisher.next_sequence());
    // The preparation of a large ring is known only at the end, and perhaps not even then.
    let memory: Vec<String> = publisher.preparation().iter().map(ToString::to_string).collect();
    publisher.close();
    if args.verbose {
        args.say_preparation(&memory);
    }

    let seconds = elapsed.as_secs_f64();
    if args.json {
        print_json(&json!({
            "channel": args.channel, "epoch": epoch, "published": done.published, "bytes": done.bytes,
            "interrupted": !done.is_complete, "first_sequence": first_sequence, "next_sequence": next_sequence,
            "seconds": seconds, "memory": memory, "capture": done.played.as_ref().map(Played::json),
        }))?;
    } else if let Some(played) = &done.played {
        played.print();
    }
    let said = done.describe(&args.channel, seconds, first_sequence..next_sequence, epoch);
    if !done.is_complete {
        return Err(stop.interrupted(said).into());
    }
    if !args.json {
        note!("{said}");
    }
    if let Some(failure) = done.played.as_mut().and_then(Played::take_failure) {
        return Err(failure);
    }
    let has_lost = done.played.as_ref().is_some_and(Played::has_lost);
    Ok(if has_lost { ExitCode::from(MISSED) } else { ExitCode::SUCCESS })
}

/// The number of published messages, and whether they were all messages of the input.
struct Done {
    published: u64,
    bytes: u64,
    is_complete: bool,
    played: Option<Played>,
}

impl Done {
    fn describe(&self, channel: &str, seconds: f64, sequences: Range<u64>, epoch: u64) -> String {
        let Range { start, end } = sequences;
        let sequences = match self.published {
            0 => format!("the next sequence is {end}"),
            _ => format!("sequences {start} to {}", end - 1),
        };
        let &Self { published, bytes, is_complete, .. } = self;
        let text = told("published", channel, is_complete, published, bytes, seconds, &sequences);
        format!("{text}, epoch {epoch}")
    }
}

/// The source of the messages.
enum Source<'a> {
    Input(BufReader<Interruptible<'a>>),
    Capture(&'a Path, Box<Packets<'a>>),
}

impl<'a> Source<'a> {
    fn open(args: &'a Args, stop: &'a Stop) -> Result<Self> {
        match args.capture.file() {
            Some(path) => Ok(Self::Capture(path, Box::new(args.capture.open(path, args.repeat, stop)?))),
            None if from_stdin(args) && args.repeat != 1 => {
                bail!("stdin can be read only once: give --loop a file with --input")
            }
            None => Ok(Self::Input(open_input(args, stop)?)),
        }
    }
}

fn from_stdin(args: &Args) -> bool {
    args.input.as_os_str() == "-"
}

fn open_input<'a>(args: &Args, stop: &'a Stop) -> Result<BufReader<Interruptible<'a>>> {
    let input = Interruptible::open(&args.input, stop);
    let input = input.with_context(|| format!("open --input {}", args.input.display()))?;
    Ok(BufReader::with_capacity(1 << 20, input))
}

/// Publishes the input as often as asked for.
fn publish_input(
    args: &Args,
    first_input: BufReader<Interruptible<'_>>,
    publisher: &mut Publisher,
    stop: &Stop,
    progress: &ProgressBar,
) -> Result<Done> {
    let (mut published, mut bytes) = (0, 0);
    let pace = Pace::new(stop);
    let mut input = Some(first_input);
    let mut message = Vec::new();
    let is_complete = 'all: {
        for _ in 0..args.repeat {
            let mut input = input.take().map_or_else(|| open_input(args, stop), Ok)?;
            loop {
                let is_there = match read_message(args.framing, &mut input, &mut message) {
                    // The input was cut off, possibly within a message.
                    Err(_) if stop.is_set() => break 'all false,
                    read => read?,
                };
                if !is_there {
                    break;
                }
                pace.wait_turn(args.rate, published);
                if stop.is_set() && !fault!("cut_line_is_published") {
                    break 'all false;
                }
                publisher.publish_with(&message, Mark { tag: args.tag, key: args.key })?;
                bytes += message.len() as u64;
                published += 1;
                if published % 4096 == 0 {
                    progress.set_position(published);
                }
            }
        }
        true
    };
    Ok(Done { published, bytes, is_complete, played: None })
}

/// Plays the capture as many times as the user asked. `Done::played` is the result of the first time.
fn publish_capture(
    args: &Args,
    path: &Path,
    first: Packets<'_>,
    publisher: &mut Publisher,
    stop: &Stop,
    progress: &ProgressBar,
) -> Result<Done> {
    let played = args.capture.play(path, first, publisher, stop, progress)?;
    let (mut published, mut bytes, mut is_complete) = (played.published, played.bytes, played.is_complete);
    for _ in 1..args.repeat {
        if !is_complete {
            break;
        }
        let packets = args.capture.open(path, args.repeat, stop)?;
        let again = args.capture.play(path, packets, publisher, stop, progress)?;
        published += again.published;
        bytes += again.bytes;
        is_complete = again.is_complete;
    }
    Ok(Done { published, bytes, is_complete, played: Some(played) })
}

/// An input that a signal interrupts: the next read fails, even if the input has no data.
struct Interruptible<'a> {
    file: File,
    stop: &'a Stop,
}

impl<'a> Interruptible<'a> {
    /// Opens a file, or stdin for `-`. Opening a named pipe does not wait for its writer.
    fn open(path: &Path, stop: &'a Stop) -> io::Result<Self> {
        let file = match path.as_os_str() == "-" {
            true => File::from(io::stdin().as_fd().try_clone_to_owned()?),
            false => File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?,
        };
        Ok(Self { file, stop })
    }
}

impl Read for Interruptible<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.stop.is_set() {
                if fault!("cut_line_is_published") {
                    return Ok(0);
                }
                return Err(io::Error::other(self.stop.interrupted("interrupted")));
            }
            let mut input = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
            match poll(&mut input, PollTimeout::from(100u8)) {
                // There is no input yet, or a signal came: check whether it was meant for us.
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => match self.file.read(buffer) {
                    // Somebody else has read it.
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    read => return read,
                },
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Makes a progress line, which is shown only if stderr is a terminal.
pub(super) fn progress() -> ProgressBar {
    let rate = |state: &ProgressState, out: &mut dyn fmt::Write| {
        // An error is ignored: the line is for people, and the terminal may be gone.
        let _ = write!(out, "{}/s", grouped(state.per_sec() as u64));
    };
    let style = ProgressStyle::with_template("{spinner} published {human_pos} ({rate}) {elapsed}")
        .expect("the template is ours")
        .with_key("rate", rate);
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style)
}
