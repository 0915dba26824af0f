//! `shmcast pub`: publishes real input on a channel.

use super::HostArg;
use super::figures::grouped;
use super::framing::{InputFraming, read_message};
use super::pace::{Pace, Rate};
use super::ring::{Counts, Published, RingArgs, close, keys_and, memory, wait_for_readers};
use super::say::{note, print_json};
use super::stop::Stop;
use super::units::words;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;
use shmcast::hosting::fault;
use shmcast::{Mark, PublishError, Publisher};
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

const EXAMPLE: &str = "\
Examples:
  seq 1 1000000 | shmcast pub ticks --wait-readers 1
  shmcast pub itch --input 12302019.NASDAQ_ITCH50 --framing u16be --rate 1000000/s
  shmcast pub prices --set board.key=0..6 --set board.keys=10000 < prices.txt
  seq 1 1000000 | shmcast pub ticks --set continue_from=/var/tmp/ticks   # with shmcast record

`shmcast replay` publishes journals and captures of a network.

Exit codes: 0 all was published, 1 error, 2 wrong usage; 130 (Ctrl-C), 143 (SIGTERM) or
129 (SIGHUP) if it came before the end: the last line says how many messages were published, and
up to which sequence.";

#[derive(Debug, clap::Args)]
#[command(after_help = keys_and(EXAMPLE))]
pub(super) struct Args {
    /// Name of the channel
    channel: String,
    #[command(flatten)]
    host: HostArg,
    /// File to publish, or - for stdin
    #[arg(long, value_name = "FILE", default_value = "-")]
    input: PathBuf,
    /// How the input is cut into messages
    #[arg(long, value_enum, default_value = "lines")]
    framing: InputFraming,
    /// Messages a second, as 5000/s, or max
    #[arg(long, default_value = "max", value_parser = words(&["max"], Rate::from_str), hide_possible_values = true)]
    rate: Rate,
    /// Publish the input this many times
    #[arg(long = "loop", value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// Tag of each message, from 0 to 65535
    #[arg(long, value_name = "TAG", default_value_t = 0)]
    tag: u16,
    /// Publish each message as a key message. A reader may start at a key message without earlier messages
    #[arg(long)]
    key: bool,
    #[command(flatten)]
    ring: RingArgs,
    /// Print the summary as JSON on stdout
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    // The arguments are checked before the channel is made, so that a wrong file name leaves no channel.
    if from_stdin(args) && args.repeat != 1 {
        bail!("stdin can be read only once: give --loop a file with --input");
    }
    let input = open_input(args, &stop)?;
    let settings = args.ring.begin()?;
    let (host, channel) = args.host.host_of(&args.channel)?;
    let mut publisher = settings.open_for_input(&host, &channel)?;
    publisher.hurry_after(stop.flag());
    wait_for_readers(args.ring.wait_readers, &host, &channel, &stop)?;

    let first_sequence = publisher.next_sequence();
    let (started, bar) = (Instant::now(), progress());
    let mut done = Counts { messages: 0, bytes: 0, is_complete: false };
    let published = publish_input(args, input, &mut publisher, &stop, &bar, &mut done);
    let sums = Published::by(&publisher, first_sequence, done, started);
    bar.finish_and_clear();
    let memory = memory(&publisher);
    close(publisher, &published);
    let place = args.host.unnamed(&host);
    if args.json {
        print_json(&sums.json(&args.channel, json!({ "memory": memory })))?;
    }
    if published.is_err() && !args.json {
        note!("{}{place}", sums.text("published only", &args.channel));
    }
    published?;
    let said = format!("{}, epoch {}{place}", sums.text("published", &args.channel), sums.epoch);
    sums.end(said, args.json, &stop)?;
    Ok(ExitCode::SUCCESS)
}

fn from_stdin(args: &Args) -> bool {
    args.input.as_os_str() == "-"
}

fn open_input<'a>(args: &Args, stop: &'a Stop) -> Result<BufReader<Interruptible<'a>>> {
    let input = Interruptible::open(&args.input, stop);
    let input = input.with_context(|| format!("open --input {}", args.input.display()))?;
    Ok(BufReader::with_capacity(1 << 20, input))
}

/// Publishes the input `--loop` times. Counts the messages in `done`, so that the counts are also right after an error.
fn publish_input(
    args: &Args,
    first_input: BufReader<Interruptible<'_>>,
    publisher: &mut Publisher,
    stop: &Stop,
    progress: &ProgressBar,
    done: &mut Counts,
) -> Result<()> {
    let pace = Pace::new(stop);
    let mut input = Some(first_input);
    let mut message = Vec::new();
    let mut files = FilesLook::new();
    for _ in 0..args.repeat {
        let mut input = input.take().map_or_else(|| open_input(args, stop), Ok)?;
        loop {
            let is_there = match read_message(args.framing, &mut input, &mut message) {
                // The input was cut off, possibly within a message.
                Err(_) if stop.is_set() => return Ok(()),
                read => read.with_context(|| format!("read --input {}", args.input.display()))?,
            };
            if !is_there {
                break;
            }
            pace.wait_turn(args.rate, done.messages);
            if stop.is_set() && !fault!("cut_line_is_published") {
                return Ok(());
            }
            files.check_if_due(publisher)?;
            match publisher.publish_with(&message, Mark { tag: args.tag, key: args.key }) {
                // The message waited for a gate when the signal came.
                Err(PublishError::Full { .. }) if stop.is_set() => return Ok(()),
                published => published?,
            };
            done.bytes += message.len() as u64;
            done.messages += 1;
            if done.messages.is_multiple_of(4096) {
                progress.set_position(done.messages);
            }
        }
    }
    files.check(publisher)?;
    done.is_complete = true;
    Ok(())
}

/// The pause between two checks of the names of the channel's files.
const LOOK: Duration = Duration::from_millis(10);

/// Notices that the files of a channel were removed or moved. Otherwise the verb would publish where new readers find nothing.
pub(super) struct FilesLook(Instant);

impl FilesLook {
    pub(super) fn new() -> Self {
        Self(Instant::now())
    }

    /// Checks the names if the last check was some time ago.
    pub(super) fn check_if_due(&mut self, publisher: &Publisher) -> Result<()> {
        if self.0.elapsed() < LOOK {
            return Ok(());
        }
        self.check(publisher)
    }

    pub(super) fn check(&mut self, publisher: &Publisher) -> Result<()> {
        self.0 = Instant::now();
        if publisher.is_removed() {
            bail!(
                "the channel's files were removed or moved, so new readers do not find the channel: publish again, which makes it anew"
            );
        }
        Ok(())
    }
}

/// An input that can be interrupted. After Ctrl-C or SIGTERM a read fails, even a read that is waiting for input.
pub(super) struct Interruptible<'a> {
    pub(super) file: File,
    stop: &'a Stop,
}

impl<'a> Interruptible<'a> {
    /// Opens a file, or stdin for `-`. If the file is a named pipe, does not wait for a program that writes to it.
    pub(super) fn open(path: &Path, stop: &'a Stop) -> io::Result<Self> {
        let file = match path.as_os_str() == "-" {
            true => File::from(io::stdin().as_fd().try_clone_to_owned()?),
            false => File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?,
        };
        if file.metadata()?.is_dir() {
            return Err(Errno::EISDIR.into());
        }
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
                // There is no input yet, or a signal came. The loop checks whether the signal ends the verb.
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => match self.file.read(buffer) {
                    // `poll` reported input, but another process has read it. The loop waits again.
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    read => return read,
                },
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// A progress line. It is shown only if stderr is a terminal.
pub(super) fn progress() -> ProgressBar {
    let rate = |state: &ProgressState, out: &mut dyn fmt::Write| {
        // An error is ignored: the line is for people, and the terminal might be gone.
        let _ = write!(out, "{}/s", grouped(state.per_sec() as u64));
    };
    let style = ProgressStyle::with_template("{spinner} published {human_pos} ({rate}) {elapsed}")
        .expect("the template is ours")
        .with_key("rate", rate);
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style)
}
