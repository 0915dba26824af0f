//! `shmcast pub`: real input into a channel.

use super::figures::{grouped, size};
use super::framing::{InputFraming, read_message};
use super::{Host, HostArg, print_json, stop_flag, stopped};
use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

const EXAMPLE: &str = "\
Examples:
  seq 1 1000000 | shmcast pub ticks --wait-readers 1
  shmcast pub itch --input 12302019.NASDAQ_ITCH50 --framing u16be --rate 1000000/s";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Name of the channel
    channel: String,
    #[command(flatten)]
    host: HostArg,
    /// Size of the ring for a new channel: a power of two from 64KiB to 16GiB [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    capacity: Option<ByteSize>,
    /// Largest message [default: an eighth of the capacity, at most 16MiB]
    #[arg(long, value_name = "SIZE")]
    max_message: Option<ByteSize>,
    /// File to publish, or - for stdin
    #[arg(long, value_name = "FILE", default_value = "-")]
    input: PathBuf,
    /// How the input is cut into messages
    #[arg(long, value_enum, default_value = "lines")]
    framing: InputFraming,
    /// Messages a second, as 5000/s, or max
    #[arg(long, default_value = "max")]
    rate: Rate,
    /// Wait until this many readers are attached
    #[arg(long, value_name = "N", default_value_t = 0)]
    wait_readers: usize,
    /// Publish the input this many times
    #[arg(long = "loop", value_name = "K", default_value_t = 1)]
    repeat: u64,
    /// Pin the publisher to this CPU
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Print the summary as JSON on stdout
    #[arg(long)]
    json: bool,
}

/// Messages a second.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rate {
    Max,
    PerSecond(f64),
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self::Max);
        }
        let number = text.strip_suffix("/s").unwrap_or(text);
        let rate = number.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
        rate.map(Self::PerSecond)
            .ok_or_else(|| "give a positive number a second, as 5000/s, or max".to_owned())
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let from_stdin = args.input.as_os_str() == "-";
    if from_stdin && args.repeat != 1 {
        bail!("stdin can be read only once: give --loop a file with --input");
    }
    let stop = stop_flag()?;
    // Before the channel exists: a wrong file name should leave nothing behind.
    let open = || -> Result<BufReader<Interruptible<'_>>> {
        let file = if from_stdin {
            File::from(io::stdin().as_fd().try_clone_to_owned()?)
        } else {
            File::open(&args.input).with_context(|| format!("open --input {}", args.input.display()))?
        };
        Ok(BufReader::with_capacity(1 << 20, Interruptible { file, stop: &stop }))
    };
    let first_input = open()?;
    if let Some(cpu) = args.cpu {
        shmcast::pin_current_thread(cpu).with_context(|| format!("pin to --cpu {cpu}"))?;
    }

    let (host, channel) = args.host.host_of(&args.channel)?;
    let mut builder = host.publisher(&channel);
    if let Some(capacity) = args.capacity {
        builder = builder.capacity(capacity.as_u64());
    }
    if let Some(max_message) = args.max_message {
        builder = builder.max_message(max_message.as_u64());
    }
    let mut publisher = builder.open()?;
    let memory: Vec<String> = publisher.preparation().iter().map(ToString::to_string).collect();
    for step in publisher.preparation().iter().filter(|step| step.result.is_err()) {
        eprintln!("shmcast: memory: {step}");
    }
    wait_for_readers(args.wait_readers, &host, &channel, &stop)?;

    let first_sequence = publisher.next_sequence();
    let started = Instant::now();
    let mut pace = Pace::new(args.rate);
    let progress = progress();
    let mut bytes = 0;
    let mut input = Some(first_input);
    let mut message = Vec::new();
    'input: for _ in 0..args.repeat {
        let mut input = input.take().map_or_else(open, Ok)?;
        while !stopped(&stop) {
            if !read_message(args.framing, &mut input, &mut message)? {
                continue 'input;
            }
            pace.wait();
            let sequence = publisher.publish(&message)?;
            bytes += message.len() as u64;
            if sequence.is_multiple_of(4096) {
                progress.set_position(sequence + 1 - first_sequence);
            }
        }
        break;
    }
    let elapsed = started.elapsed();
    progress.finish_and_clear();
    let published = publisher.next_sequence() - first_sequence;
    let (epoch, next_sequence) = (publisher.epoch(), publisher.next_sequence());
    publisher.close();

    if args.json {
        print_json(&json!({
            "channel": args.channel, "epoch": epoch, "published": published, "bytes": bytes,
            "first_sequence": first_sequence, "next_sequence": next_sequence, "seconds": elapsed.as_secs_f64(),
            "memory": memory,
        }))?;
    } else {
        let rate = (published as f64 / elapsed.as_secs_f64().max(1e-9)) as u64;
        eprintln!(
            "shmcast: {}: published {} messages, {} of payload, in {:.3} s ({}/s), sequences {} to {}, epoch {}",
            args.channel,
            grouped(published),
            size(bytes),
            elapsed.as_secs_f64(),
            grouped(rate),
            first_sequence,
            next_sequence - 1,
            epoch,
        );
    }
    Ok(ExitCode::SUCCESS)
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

/// Keeps to a schedule that does not shift when one message is late.
struct Pace {
    started: Instant,
    interval_s: Option<f64>,
    sent: u64,
}

impl Pace {
    fn new(rate: Rate) -> Self {
        let interval_s = match rate {
            Rate::Max => None,
            Rate::PerSecond(rate) => Some(1.0 / rate),
        };
        Self { started: Instant::now(), interval_s, sent: 0 }
    }

    fn wait(&mut self) {
        let Some(interval_s) = self.interval_s else { return };
        let due = self.started + Duration::from_secs_f64(self.sent as f64 * interval_s);
        self.sent += 1;
        loop {
            match due.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return,
                // A sleep overshoots by some tens of microseconds: the rest is spent awake.
                left if left > Duration::from_micros(200) => {
                    std::thread::sleep(left - Duration::from_micros(100))
                }
                _ => std::hint::spin_loop(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_people_write_them() {
        assert_eq!("max".parse(), Ok(Rate::Max));
        assert_eq!("5000/s".parse(), Ok(Rate::PerSecond(5000.0)));
        assert_eq!("0.5".parse(), Ok(Rate::PerSecond(0.5)));
        for bad in ["", "0", "-1/s", "fast", "inf", "nan", "5000/m"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
    }
}
