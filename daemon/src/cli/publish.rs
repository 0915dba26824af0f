//! `shmcast pub`: real input into a channel.

mod capture;
mod pace;

use super::figures::{grouped, size};
use super::framing::{InputFraming, read_message};
use super::units::{parse_cpu, parse_size};
use super::{Host, HostArg, print_json, stop_flag, stopped};
use crate::bridge::pcap::Capture;
use anyhow::{Context, Result, bail};
use capture::{CaptureArgs, Played};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pace::{Pace, Rate};
use serde_json::json;
use shmcast::Publisher;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

const EXAMPLE: &str = "\
Examples:
  seq 1 1000000 | shmcast pub ticks --wait-readers 1
  shmcast pub itch --input 12302019.NASDAQ_ITCH50 --framing u16be --rate 1000000/s
  shmcast pub itch --pcap morning.pcap --unwrap --port 26400 --speed 10";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Name of the channel
    channel: String,
    #[command(flatten)]
    host: HostArg,
    /// Size of the ring for a new channel: a power of two from 64KiB to 16GiB [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    capacity: Option<u64>,
    /// Largest message [default: an eighth of the capacity, at most 16MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_message: Option<u64>,
    /// File to publish, or - for stdin
    #[arg(long, value_name = "FILE", default_value = "-")]
    input: PathBuf,
    /// How the input is cut into messages
    #[arg(long, value_enum, default_value = "lines")]
    framing: InputFraming,
    /// Messages a second, as 5000/s, or max
    #[arg(long, default_value = "max")]
    rate: Rate,
    #[command(flatten)]
    capture: CaptureArgs,
    /// Wait until this many readers are attached
    #[arg(long, value_name = "N", default_value_t = 0)]
    wait_readers: usize,
    /// Publish the input this many times
    #[arg(long = "loop", value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// Pin the publisher to this CPU
    #[arg(long, value_name = "N", value_parser = parse_cpu)]
    cpu: Option<usize>,
    /// Print the summary as JSON on stdout
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = stop_flag()?;
    // Before the channel exists: a wrong file name should leave nothing behind.
    let source = Source::open(args, &stop)?;
    if let Some(cpu) = args.cpu {
        shmcast::pin_current_thread(cpu).with_context(|| format!("pin to --cpu {cpu}"))?;
    }

    let (host, channel) = args.host.host_of(&args.channel)?;
    let mut builder = host.publisher(&channel);
    if let Some(capacity) = args.capacity {
        builder = builder.capacity(capacity);
    }
    if let Some(max_message) = args.max_message {
        builder = builder.max_message(max_message);
    }
    let mut publisher = builder.open()?;
    let memory: Vec<String> = publisher.preparation().iter().map(ToString::to_string).collect();
    for step in publisher.preparation().iter().filter(|step| step.result.is_err()) {
        eprintln!("shmcast: memory: {step}");
    }
    wait_for_readers(args.wait_readers, &host, &channel, &stop)?;

    let first_sequence = publisher.next_sequence();
    let started = Instant::now();
    let progress = progress();
    let (published, bytes, played) = match source {
        Source::Input(input) => {
            let (published, bytes) = publish_input(args, input, &mut publisher, &stop, &progress)?;
            (published, bytes, None)
        }
        Source::Capture(path, capture) => {
            publish_capture(args, path, capture, &mut publisher, &stop, &progress)?
        }
    };
    let elapsed = started.elapsed();
    progress.finish_and_clear();
    let (epoch, next_sequence) = (publisher.epoch(), publisher.next_sequence());
    publisher.close();

    if args.json {
        print_json(&json!({
            "channel": args.channel, "epoch": epoch, "published": published, "bytes": bytes,
            "first_sequence": first_sequence, "next_sequence": next_sequence, "seconds": elapsed.as_secs_f64(),
            "memory": memory, "capture": played.map(|played| played.json()),
        }))?;
    } else {
        let rate = (published as f64 / elapsed.as_secs_f64().max(1e-9)) as u64;
        let sequences = match published {
            0 => format!("the next sequence is {next_sequence}"),
            _ => format!("sequences {first_sequence} to {}", next_sequence - 1),
        };
        eprintln!(
            "shmcast: {}: published {} messages, {} of payload, in {:.3} s ({}/s), {sequences}, epoch {epoch}",
            args.channel,
            grouped(published),
            size(bytes),
            elapsed.as_secs_f64(),
            grouped(rate),
        );
        if let Some(played) = played {
            played.print();
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Where messages come from.
enum Source<'a> {
    Input(BufReader<Interruptible<'a>>),
    Capture(&'a Path, Capture<'static>),
}

impl<'a> Source<'a> {
    fn open(args: &'a Args, stop: &'a AtomicBool) -> Result<Self> {
        match args.capture.file() {
            Some(path) => Ok(Self::Capture(path, args.capture.open(path)?)),
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

fn open_input<'a>(args: &Args, stop: &'a AtomicBool) -> Result<BufReader<Interruptible<'a>>> {
    let file = if from_stdin(args) {
        File::from(io::stdin().as_fd().try_clone_to_owned()?)
    } else {
        File::open(&args.input).with_context(|| format!("open --input {}", args.input.display()))?
    };
    Ok(BufReader::with_capacity(1 << 20, Interruptible { file, stop }))
}

/// Publishes the input as often as asked for; says how many messages and bytes that were.
fn publish_input(
    args: &Args,
    first_input: BufReader<Interruptible<'_>>,
    publisher: &mut Publisher,
    stop: &AtomicBool,
    progress: &ProgressBar,
) -> Result<(u64, u64)> {
    let (mut published, mut bytes) = (0, 0);
    let pace = Pace::new(stop);
    let mut input = Some(first_input);
    let mut message = Vec::new();
    'input: for _ in 0..args.repeat {
        let mut input = input.take().map_or_else(|| open_input(args, stop), Ok)?;
        while !stopped(stop) {
            if !read_message(args.framing, &mut input, &mut message)? {
                continue 'input;
            }
            pace.wait_turn(args.rate, published);
            publisher.publish(&message)?;
            bytes += message.len() as u64;
            published += 1;
            if published % 4096 == 0 {
                progress.set_position(published);
            }
        }
        break;
    }
    Ok((published, bytes))
}

/// Plays the capture as often as asked for; what became of it is the first time's.
fn publish_capture(
    args: &Args,
    path: &Path,
    first: Capture<'_>,
    publisher: &mut Publisher,
    stop: &AtomicBool,
    progress: &ProgressBar,
) -> Result<(u64, u64, Option<Played>)> {
    let played = args.capture.play(path, first, publisher, stop, progress)?;
    let (mut published, mut bytes) = (played.published, played.bytes);
    for _ in 1..args.repeat {
        if stopped(stop) {
            break;
        }
        let again = args.capture.play(path, args.capture.open(path)?, publisher, stop, progress)?;
        published += again.published;
        bytes += again.bytes;
    }
    Ok((published, bytes, Some(played)))
}

/// Input that ends when the program is told to stop, also while there is nothing to read.
struct Interruptible<'a> {
    file: File,
    stop: &'a AtomicBool,
}

impl Read for Interruptible<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if stopped(self.stop) {
                return Ok(0);
            }
            let mut input = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
            match poll(&mut input, PollTimeout::from(100u8)) {
                // Nothing yet, or a signal: look whether it was meant for us.
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return self.file.read(buffer),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// A line on a terminal, nothing elsewhere.
fn progress() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} published {human_pos} ({per_sec}) {elapsed}")
        .expect("the template is ours");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style)
}

fn wait_for_readers(wanted: usize, host: &Host, channel: &str, stop: &AtomicBool) -> Result<()> {
    if wanted == 0 {
        return Ok(());
    }
    let bar = ProgressBar::new(wanted as u64).with_style(
        ProgressStyle::with_template("waiting for readers {bar:40} {pos}/{len}")
            .expect("the template is ours"),
    );
    loop {
        let attached = host.channel(channel)?.readers.len();
        bar.set_position(attached as u64);
        if attached >= wanted {
            bar.finish_and_clear();
            return Ok(());
        }
        if stopped(stop) {
            bar.finish_and_clear();
            bail!("interrupted with {attached} of {wanted} readers attached; nothing was published");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
