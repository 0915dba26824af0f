//! `shmcast record`: this program itself records a channel, without the daemon's recorder. The recorded files survive a power cut.

use super::figures::grouped;
use super::journal::check_above;
use super::say::{note, print_json};
use super::set::{Draft, Setting};
use super::stop::Stop;
use super::units::words;
use super::waiting::nap;
use super::wanted::Wanted;
use super::{Host, HostArg, MISSED};
use crate::config::{JournalConfig, parse_sync};
use anyhow::{Result, anyhow, bail};
use indicatif::ProgressBar;
use serde_json::json;
use shmcast::{ChannelError, History, RecvError, Role, Start, Subscriber, SubscriberBuilder};
use shmcast_bridge::gate::{PATIENCE_NS, is_gate_refused};
use shmcast_journal::core::{Settings, SyncPolicy};
use shmcast_journal::{Progress, RecordError, Recorder};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const EXAMPLE: &str = "\
Keys of --set, as in a daemon's configuration:
  io          How files are written: direct, past the page cache, or buffered,
              through it [default: direct where the file system can]
  buffer      Memory for what waits for the disk, at least 1MiB [default: 64MiB]
  file        Size at which a file is sealed and the next one begun: 1MiB to
              64GiB [default: 1GiB]
  roll_after  Age at which a file is sealed, as in 1h
  gate        Gate of the channel to take: the publisher waits for the recorder,
              within the gate's limit

Example: shmcast record ticks --to /var/tmp/ticks --sync 10ms

Everything in the ring and everything published from now on goes into files of DIR.
Ctrl-C and SIGTERM seal the file and end it. Run again, it goes on where the journal
ends. A channel that begins anew is another stream, and goes into another folder of DIR. What is missing is named in the journal: what the ring had lost by then,
what came too fast for the disk, and what never reached this host.

What survives a power cut is set by --sync. 10ms, or any interval: everything up to
`durable`, which trails by that long and one sync. each: the same, trailing by one
write. none: what the kernel had written. A killed recorder loses nothing while the
ring has the rest.

Exit codes: 0 nothing missed, 3 messages are missing in the journal, 1 error, 2 wrong usage.
With --until-end: 130 (Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP) if it came before the channel's end.";

/// The limit for events at a channel's end that one check reads.
const MOST_EVENTS: usize = 100_000;
/// Interval between two attempts to continue after an error that passes.
const AGAIN: Duration = Duration::from_secs(1);
/// The note about a gate that has lost its page.
const GATE_LOST: &str = "the page of the gate was removed or moved: the recorder takes the gate again";
/// Interval between two checks of the state.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Name of the channel
    channel: String,
    #[command(flatten)]
    host: HostArg,
    /// Directory of the journal; made if it is not there
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// When written data is synced, so that a power cut cannot remove it: at an interval, each (with each write) or none [default: 10ms]
    #[arg(long, value_parser = words(&["each", "none"], parse_sync), hide_possible_values = true)]
    sync: Option<SyncPolicy>,
    /// Set one of the rarer options, such as file=256MiB; the keys are listed below
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Setting>,
    /// Wait for the channel, and for a daemon that does not answer
    #[arg(long)]
    wait_channel: bool,
    /// End when the publisher closes the channel
    #[arg(long)]
    until_end: bool,
    /// Print the sums at the end as JSON on stdout
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Returns the options as a daemon's settings of a journal.
    fn journal(&self) -> Result<JournalConfig> {
        check_above(&self.to).map_err(|e| anyhow!("--to {e}"))?;
        if let Some(Setting { key, .. }) =
            self.set.iter().find(|set| set.key == "dir" || set.key.starts_with("keep_"))
        {
            bail!(
                "--set {key} is for a daemon's journals: here --to names the directory, and no file is removed"
            );
        }
        let mut draft = Draft::of(&self.set);
        // The value is a placeholder, because the settings need an absolute directory. The journal is in the directory of --to.
        draft.put("dir", "/");
        let config: JournalConfig = draft.read()?;
        match config.broken().first() {
            Some((_, what)) => bail!("--set {}", what.trim_start_matches("journal.")),
            None => Ok(config),
        }
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    let config = args.journal()?;
    let settings = Settings { sync: args.sync.unwrap_or(config.sync), ..config.settings() };
    let channel = args.channel.clone();
    let (mut sums, mut waits, mut told) = (Sums::default(), args.wait_channel, None::<String>);
    let (mut lost, mut gate_lost) = (None, None::<Instant>);
    let ended = loop {
        let wanted = Wanted { host: &args.host, channel: &channel, waits, stop: &stop };
        let (host, subscriber) = match wanted.open(|host, channel| builder_of(&config, host, channel)) {
            Ok(Some(opened)) => opened,
            Ok(None) => break Ok(()),
            Err(e) if gate_lost.is_some_and(|at| may_come_back(&e, at)) && !stop.is_set() => {
                nap(LOOK, &stop);
                continue;
            }
            Err(e) => break Err(e),
        };
        let recorder = match Recorder::start(&args.to, subscriber, settings.clone()) {
            Ok(recorder) => recorder,
            // The error is temporary, and the ring still has the messages since the last recording. So the verb tries again.
            Err(e) if e.is_passing() && sums.streams > 0 && !stop.is_set() => {
                let text = e.to_string();
                if told.as_deref() != Some(&text) {
                    note!("{channel}: {text}: trying again each second");
                }
                told = Some(text);
                nap(AGAIN, &stop);
                continue;
            }
            Err(e) => break Err(e.into()),
        };
        told = None;
        sums.streams += u64::from(gate_lost.take().is_none());
        match record(args, &host, &channel, recorder, &stop, &mut sums) {
            Err(error) if is_restart(&error) && !stop.is_set() => {
                note_restart(&channel, &error);
                if is_loss(&error) {
                    note!("{channel}: {error:#}");
                    lost = Some(error);
                }
                // The new stream's ring might not exist yet, but appears soon.
                waits = true;
            }
            Err(error) if is_gate_lost(&error) && !stop.is_set() => {
                note!("{channel}: {GATE_LOST}");
                gate_lost = Some(Instant::now());
            }
            ended => break ended,
        }
    };
    sums.tell(args, &channel)?;
    ended?;
    lost.map_or(Ok(()), Err)?;
    if sums.overrun + sums.missing > 0 {
        return Ok(ExitCode::from(MISSED));
    }
    if args.until_end && stop.is_set() && !sums.has_ended {
        let said = format!("{channel}: INTERRUPTED before the channel's end");
        return Err(stop.interrupted(said).into());
    }
    Ok(ExitCode::SUCCESS)
}

fn builder_of(config: &JournalConfig, host: &Host, channel: &str) -> SubscriberBuilder {
    let builder = host.subscriber(channel).role(Role::Recorder).start(Start::Oldest).history(History::Never);
    match &config.gate {
        Some(gate) => builder.gate(gate),
        None => builder,
    }
}

/// Records one stream until the stream is over or the command is stopped.
fn record(
    args: &Args,
    host: &Host,
    channel: &str,
    recorder: Recorder,
    stop: &Stop,
    sums: &mut Sums,
) -> Result<()> {
    let begun = recorder.progress();
    note!("{channel}: recording into {} from sequence {}", args.to.display(), grouped(begun.first));
    if begun.missing > 0 {
        note!("{channel}: {} sequences before the ring's oldest are missing", grouped(begun.missing));
    }
    if args.set.iter().any(|set| set.key == "io" && set.value.as_str() != Some(begun.io.name())) {
        note!("{channel}: the file system takes no O_DIRECT: written through the page cache");
    }
    let (mut watch, mut end) = (Watch::new(channel), PresentEnd::default());
    let mut unseen = None;
    while recorder.is_running() && !stop.is_set() {
        std::thread::sleep(LOOK);
        let progress = recorder.progress();
        watch.errors(&recorder);
        watch.show(&progress);
        if args.until_end && progress.has_ended {
            match end.is_reached(host, channel, &progress) {
                Ok(true) => {
                    sums.has_ended = true;
                    break;
                }
                Ok(false) => {}
                // The channel is being replaced by a new channel of the same name, so it does not exist for a moment.
                Err(e) if e.is_unknown_channel() => {}
                Err(e) => {
                    unseen = Some(e);
                    break;
                }
            }
        }
    }
    let mut last = recorder.progress();
    let ended = recorder.stop();
    watch.end();
    match &ended {
        Ok(progress) => last = *progress,
        // Nobody can read back messages whose file has lost its name.
        Err(RecordError::Moved { .. }) => last.durable = 0,
        Err(RecordError::Unwritten { lost, progress, .. }) => {
            last = **progress;
            sums.unrecorded += lost;
        }
        Err(_) => {}
    }
    sums.add(last);
    ended?;
    unseen.map_or(Ok(()), |e| Err(e.into()))
}

/// Whether the recorder ended because the channel began anew.
fn is_restart(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(RecordError::is_restart)
}

/// Whether the recorder ended because its gate has lost its page. The channel and its stream have not changed.
fn is_gate_lost(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(RecordError::Receive(RecvError::GateLost { .. })))
}

/// Whether the recorder can expect its gate back soon. `error` refuses the gate, and `lost` is the time at which the gate was lost.
fn may_come_back(error: &anyhow::Error, lost: Instant) -> bool {
    error.downcast_ref().is_some_and(is_gate_refused) && lost.elapsed() < Duration::from_nanos(PATIENCE_NS)
}

fn note_restart(channel: &str, error: &anyhow::Error) {
    note!("{channel}: {}: goes on with the new stream, in a folder of its own", beginning(error));
}

/// Says why the old stream ended. If the channel's files are gone, the text names two causes, because the recorder does not know whether
/// the channel begins again.
fn beginning(error: &anyhow::Error) -> &'static str {
    match error.downcast_ref() {
        Some(RecordError::Receive(RecvError::Superseded)) => "was removed or began anew",
        _ => "began anew",
    }
}

/// Whether the recorder read messages that are not in the journal.
fn is_loss(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(RecordError::is_loss)
}

/// The sums over all recorded streams.
#[derive(Default)]
struct Sums {
    /// Number of recorded streams. A channel that is restarted begins another stream.
    streams: u64,
    messages: u64,
    bytes: u64,
    overrun: u64,
    missing: u64,
    /// The part of `missing` that never reached this host.
    gaps: u64,
    /// Messages that could not be written to the disk.
    unrecorded: u64,
    /// The progress of the last stream.
    last: Option<Progress>,
    /// Whether the channel's end was recorded, which `--until-end` waits for.
    has_ended: bool,
}

impl Sums {
    fn add(&mut self, progress: Progress) {
        self.messages += progress.messages;
        self.bytes += progress.bytes;
        self.overrun += progress.overrun;
        self.missing += progress.missing_with_gaps();
        self.gaps += progress.gaps;
        self.last = Some(progress);
    }

    fn tell(&self, args: &Args, channel: &str) -> Result<()> {
        let Some(last) = &self.last else { return Ok(()) };
        if args.json {
            return print_json(&json!({
                "channel": channel,
                "directory": args.to,
                "streams": self.streams,
                "first": last.first,
                "messages": self.messages,
                "drained": last.drained,
                "written": last.written,
                "durable": last.durable,
                "overrun": self.overrun,
                "missing": self.missing,
                "gaps": self.gaps,
                "unrecorded": self.unrecorded,
                "bytes": self.bytes,
                "file": last.file,
                "io": last.io.name(),
            }));
        }
        let of = if self.streams > 1 { format!(" of {} streams", self.streams) } else { String::new() };
        let (messages, bytes) = (grouped(self.messages), bytesize::ByteSize(self.bytes));
        let up_to = match last.durable {
            0 => String::new(),
            durable => format!(" up to sequence {}", grouped(durable)),
        };
        note!("{channel}: {messages} messages{of}{up_to} in {bytes}");
        if self.overrun > 0 {
            note!("{channel}: {} messages came too fast and are missing", grouped(self.overrun));
        }
        if self.gaps > 0 {
            note!("{channel}: {} messages never reached this host", grouped(self.gaps));
        }
        Ok(())
    }
}

/// Distinguishes the present end of a channel from an end that an earlier publisher made. A journal records each end of the channel.
#[derive(Default)]
struct PresentEnd {
    /// A reader at the ring's end. It is opened when the recorder has received an end of the channel.
    reader: Option<Subscriber>,
}

impl PresentEnd {
    /// Whether the channel has ended, and the recorder has read all its messages.
    fn is_reached(&mut self, host: &Host, channel: &str, progress: &Progress) -> Result<bool, ChannelError> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => {
                host.subscriber(channel).start(Start::Latest).history(History::Never).page(false).open()?
            }
        };
        let reader = self.reader.insert(reader);
        for _ in 0..MOST_EVENTS {
            match reader.try_recv() {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(reader.is_at_end() && progress.drained >= reader.next_sequence() - 1),
                // The channel is being replaced by a new channel of the same name. The recorder itself reports the cause.
                Err(_) => break,
            }
        }
        self.reader = None;
        Ok(false)
    }
}

/// Shows the progress of a recording.
struct Watch<'a> {
    channel: &'a str,
    /// Draws on stderr if that is a terminal.
    bar: ProgressBar,
    is_failed: bool,
    overrun: u64,
    last: Option<(Instant, Progress)>,
}

impl<'a> Watch<'a> {
    fn new(channel: &'a str) -> Self {
        Self { channel, bar: ProgressBar::new_spinner(), is_failed: false, overrun: 0, last: None }
    }

    fn errors(&self, recorder: &Recorder) {
        for error in recorder.errors() {
            note!("{}: {error}", self.channel);
        }
    }

    fn show(&mut self, progress: &Progress) {
        if progress.is_failed != self.is_failed {
            self.is_failed = progress.is_failed;
            if self.is_failed {
                note!("{}: the disk takes nothing; trying again each 5 s", self.channel);
            } else {
                note!("{}: recording again", self.channel);
            }
        }
        if progress.overrun > self.overrun {
            let more = grouped(progress.overrun - self.overrun);
            note!("{}: too fast for the disk: {more} messages are missing", self.channel);
            self.overrun = progress.overrun;
        }
        let is_due = self.last.as_ref().is_none_or(|(at, _)| at.elapsed() >= Duration::from_secs(1));
        if is_due {
            if let Some((at, last)) = &self.last {
                let rate = (progress.messages - last.messages) as f64 / at.elapsed().as_secs_f64();
                let trails = progress.drained.saturating_sub(progress.durable);
                let (rate, trails) = (grouped(rate as u64), grouped(trails));
                self.bar.set_message(format!("{}: {rate} msg/s, {trails} not yet durable", self.channel));
                self.bar.tick();
            }
            self.last = Some((Instant::now(), *progress));
        }
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}
