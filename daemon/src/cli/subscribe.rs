//! `shmcast sub`: writes a channel's messages to stdout. It reports losses on stderr and by its exit code.

use super::death::{PublisherWatch, tell_death};
use super::figures::{Ns, grouped};
use super::framing::{OutputFraming, write_message};
use super::say::{self, Out, note};
use super::stop::Stop;
use super::units::{parse_cpu, parse_name, parse_time, words};
use super::wanted::Wanted;
use super::{Host, HostArg, MISSED};
use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use serde_json::json;
use shmcast::hosting::fault;
use shmcast::journal::{Cause, Journal, JournalError};
use shmcast::{
    EndWatch, Event, History, Message, RecvError, Resume, Start, State, Subscriber, SubscriberBuilder, Wait,
};
use std::ffi::CString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

const EXAMPLE: &str = "\
Examples:
  shmcast sub ticks --from oldest
  shmcast sub ticks --from 09:30:00.250 --history /var/lib/shmcast/ticks
  shmcast sub ticks --from board --conflate
  shmcast sub ticks --wait spin --cpu 3 --framing none --summary --wait-channel

It ends when the last publisher has closed the channel and nothing lies behind: an earlier publisher's
end is passed over.

Exit codes: 0 nothing missed, 3 messages were missed or a reserve was skipped, 1 error, or the channel
ended before --count, 2 wrong usage. Ctrl-C and SIGTERM end it as the end of the channel does; only if --count was not
reached the code is 130 (Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP).";

/// The longest wait for an event. After this time, an idle subscriber checks for a signal and for the death of the publisher.
const IDLE_LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Name of the channel
    channel: String,
    #[command(flatten)]
    host: HostArg,
    /// Where to begin: latest, oldest, key (the last key message), board (the last message of each key, then the stream), a sequence, or a
    /// time in UTC: HH:MM[:SS[.FRACTION]] of today, YYYY-MM-DDTHH:MM[:SS]Z, or @SECONDS since 1970. If the ring has overwritten messages,
    /// they come from the channel's journal, if there is one
    #[arg(long, default_value = "latest", value_parser = words(&["latest", "oldest", "key", "board"], parse_start), hide_possible_values = true)]
    from: Start,
    /// Way to wait: spin, burst, yield, spin-yield, backoff, sleep:MICROSECONDS, or park (only for a daemon's channel)
    #[arg(long, default_value = "yield", value_parser = words(WAITS, parse_wait), hide_possible_values = true)]
    wait: Wait,
    /// Where to continue after the ring has lapped this reader: oldest, latest or key
    #[arg(long, default_value = "oldest", value_parser = words(&["oldest", "latest", "key"], parse_resume), hide_possible_values = true)]
    resume: Resume,
    /// Read from the journal in this directory the messages that the ring no longer has. With the word none, no journal is read, and these
    /// messages are missed [default: the channel's journal, if it has one]
    #[arg(long, value_name = "DIR|none")]
    history: Option<PathBuf>,
    /// If this reader cannot keep up, skip messages that are no longer the newest of their key; needs a channel with a board
    #[arg(long, conflicts_with_all = ["history", "resume"])]
    conflate: bool,
    /// Receive only messages with these tags, as 7 or 7,9; not with --conflate or --from board
    #[arg(long, value_name = "TAGS", value_delimiter = ',')]
    tags: Option<Vec<u16>>,
    /// Take this gate of the channel: the publisher then waits for this reader, up to the gate's limit
    #[arg(long, value_name = "GATE")]
    gate: Option<String>,
    /// Pin to this CPU
    #[arg(long, value_name = "N", value_parser = parse_cpu)]
    cpu: Option<usize>,
    /// Name of this process in tools, in place of shmcast: 1 to 15 bytes
    #[arg(long, value_parser = parse_name)]
    name: Option<CString>,
    /// End after this many messages. It is an error if the channel ends earlier
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// How messages are written
    #[arg(long, value_enum, default_value = "lines")]
    framing: OutputFraming,
    /// Wait for the channel, and for a daemon that does not answer. With --from latest, also wait for a publisher if the last one has closed
    /// the channel. If the channel is new or is made again, read it from its first message on; with --conflate, from the board on
    #[arg(long)]
    wait_channel: bool,
    /// Report counts and latency percentiles on stderr at the end
    #[arg(long)]
    summary: bool,
    /// With --summary: as JSON
    #[arg(long, requires = "summary")]
    json: bool,
}

const WAITS: &[&str] = &["spin", "burst", "yield", "spin-yield", "backoff", "sleep:", "park"];

fn parse_start(text: &str) -> Result<Start, String> {
    match text {
        "latest" => Ok(Start::Latest),
        "key" => Ok(Start::Key),
        "oldest" => Ok(Start::Oldest),
        "board" => Ok(Start::Board),
        number => match u64::from_str(number) {
            Ok(sequence) if sequence > 0 => Ok(Start::Sequence(sequence)),
            Err(_) if number.contains([':', '@']) => parse_time(number).map(Start::Time),
            _ => Err("give latest, oldest, key, board, a sequence from 1 on, or a time such as 09:30:00.250"
                .to_owned()),
        },
    }
}

fn parse_wait(text: &str) -> Result<Wait, String> {
    match text {
        "spin" => Ok(Wait::Spin),
        "burst" => Ok(Wait::Burst),
        "yield" => Ok(Wait::Yield),
        "spin-yield" => Ok(Wait::SpinThenYield(2_000)),
        "backoff" => Ok(Wait::Backoff),
        "park" => Ok(Wait::Park),
        other => match other.strip_prefix("sleep:").map(u64::from_str) {
            Some(Ok(us)) => Ok(Wait::Sleep(Duration::from_micros(us))),
            _ => Err("give spin, burst, yield, spin-yield, backoff, sleep:MICROSECONDS, or park".to_owned()),
        },
    }
}

fn parse_resume(text: &str) -> Result<Resume, String> {
    match text {
        "oldest" => Ok(Resume::Oldest),
        "latest" => Ok(Resume::Latest),
        "key" => Ok(Resume::Key),
        _ => Err("give oldest, latest or key".to_owned()),
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    super::name_and_pin(args.name.as_deref(), args.cpu)?;
    let Some((host, mut subscriber)) = attach(args, args.from, &stop)? else {
        return ended(args, &stop, 0, 0);
    };
    let channel = args.channel.clone();

    let mut tally = Tally::new(subscriber.next_sequence());
    let mut out = Out::stdout()?;
    // A user who waits for a publisher is not interested in the end of the previous publisher.
    let was_closed =
        args.from == Start::Latest && matches!(subscriber.publisher_state(), Some((_, State::Closed)));
    let mut end = end_watch(args, &subscriber);
    let mut clock = subscriber.clock();
    let mut watch = PublisherWatch::new(&host, &channel);
    while args.count.is_none_or(|count| tally.received < count) && !stop.is_set() {
        let mut event = subscriber.try_recv();
        if matches!(event, Ok(None)) {
            // No message is waiting, so the messages received so far are shown before the next wait.
            out.flush()?;
            event = subscriber.recv_deadline(Instant::now() + IDLE_LOOK);
        }
        if args.wait_channel && is_made_again(&event) {
            let reached = subscriber.next_sequence();
            let Some(next) = attach_again(args, subscriber, &stop, &mut out)? else {
                return tally.end(args, &stop, reached);
            };
            (clock, end) = (next.clock(), EndWatch::default());
            subscriber = next;
            continue;
        }
        if let Err(RecvError::Stalled { sequence }) = event {
            tell_stalled(&channel, sequence);
            continue;
        }
        let Some(event) = event? else {
            // The stream's end is checked after each wait, because at the first check the daemon might not have decided yet whether the
            // stream has ended.
            if end.is_over(&subscriber) {
                break;
            }
            watch.idle();
            continue;
        };
        end.note(&event);
        if let Event::Message(message) = event {
            let latency_ns = message.latency_ns(&clock);
            tally.message(&message, latency_ns);
            write_message(args.framing, &mut out, &message, latency_ns)?;
            out.end_message()?;
            continue;
        }
        watch.alive();
        tally.event(&event);
        report(args, &event, &mut out)?;
        if end.is_over(&subscriber) {
            break;
        }
    }
    out.flush()?;
    if was_closed && tally.received == 0 && end.is_over(&subscriber) {
        tell_closed(&host, &channel);
    }
    tally.end(args, &stop, subscriber.next_sequence())
}

fn end_watch(args: &Args, subscriber: &Subscriber) -> EndWatch {
    if args.wait_channel { EndWatch::of(subscriber, args.from) } else { EndWatch::default() }
}

fn builder_of(args: &Args, from: Start, host: &Host, channel: &str) -> SubscriberBuilder {
    let history = match &args.history {
        None => History::Auto,
        Some(none) if none.as_os_str() == "none" => History::Never,
        Some(dir) => History::Dir(dir.clone()),
    };
    let builder = host.subscriber(channel).start(from).wait(args.wait).resume(args.resume);
    // A daemon tells its readers when a publisher dies. The subscriber must not ask the daemon itself, because a daemon that hangs would
    // delay the messages.
    let is_told = matches!(host, Host::Daemon(_));
    let mut builder = builder.history(history).record_latency(true).watch_publisher(is_told);
    if args.conflate {
        builder = builder.conflate();
    }
    if let Some(tags) = &args.tags {
        builder = builder.tags(tags.iter().copied());
    }
    match &args.gate {
        Some(gate) => builder.gate(gate),
        None => builder,
    }
}

/// Attaches to the channel that has replaced the channel of `old`, and reports this. All messages of the new channel are new to the user,
/// so the reader begins with the oldest. With `--conflate` it begins with the newest message of each key. Returns `None` after a signal.
fn attach_again(args: &Args, old: Subscriber, stop: &Stop, out: &mut Out) -> Result<Option<Subscriber>> {
    // The old subscriber has the lock of its gate, and the new one needs this lock.
    drop(old);
    out.flush()?;
    let start = if args.conflate { Start::Board } else { Start::Oldest };
    let next = attach(args, start, stop)?.map(|(_, next)| next);
    if next.is_some() {
        report(args, &Event::Restarted, out)?;
    }
    Ok(next)
}

/// Whether the channel was made again, so that this subscriber gets no more messages.
fn is_made_again(event: &Result<Option<Event<'_>>, RecvError>) -> bool {
    matches!(event, Err(RecvError::Superseded)) && !fault!("a_next_segment_ends_sub")
}

/// Returns the exit code for these counts. Fails if the user wanted more messages.
fn ended(args: &Args, stop: &Stop, received: u64, missed: u64) -> Result<ExitCode> {
    if missed > 0 {
        return Ok(ExitCode::from(MISSED));
    }
    let Some(count) = args.count.filter(|&count| received < count) else { return Ok(ExitCode::SUCCESS) };
    let (channel, received, count) = (&args.channel, grouped(received), grouped(count));
    if stop.is_set() {
        let said = format!("{channel}: INTERRUPTED: received {received} of {count} messages");
        return Err(stop.interrupted(said).into());
    }
    bail!("{channel}: ENDED: received {received} of {count} messages")
}

/// Attaches. Waits for the channel first, if the user asked for that. Returns `None` after a signal.
fn attach(args: &Args, from: Start, stop: &Stop) -> Result<Option<(Host, Subscriber)>> {
    let wanted = Wanted { host: &args.host, channel: &args.channel, waits: args.wait_channel, stop };
    let opened = wanted.open(|host, channel| builder_of(args, from, host, channel))?;
    if let Some((host, subscriber)) = &opened {
        if let Some(why) = subscriber.page_refused() {
            note!(
                "{}: no reader page ({why}): received all the same; tools and `rm` do not see this reader",
                args.channel
            );
        }
        tell_no_journal(args, host, subscriber);
    }
    Ok(opened)
}

fn tell_stalled(channel: &str, sequence: u64) {
    note!(
        "{channel}: the journal cannot give sequence {sequence} yet: its recorder or daemon stands still, or descriptors are \
         short: waiting"
    );
}

/// Reports where the reader begins if a given journal does not help. This is so if three conditions hold: the user or the environment names
/// the journal's directory, the reader is to begin in the past, and the directory has no journal of the channel's stream.
fn tell_no_journal(args: &Args, host: &Host, subscriber: &Subscriber) {
    let dir = match (&args.history, host) {
        (Some(none), _) if none.as_os_str() == "none" => None,
        (Some(dir), _) => Some(dir.clone()),
        (None, Host::Directory(_)) => std::env::var_os("SHMCAST_JOURNALS")
            .filter(|dir| !dir.is_empty())
            .map(|dir| PathBuf::from(dir).join(&args.channel)),
        (None, Host::Daemon(_)) => None,
    };
    let Some(dir) = dir else { return };
    let is_past = !matches!(args.from, Start::Latest | Start::Board);
    let is_none = match Journal::open_stream(&dir, subscriber.header().stream) {
        Err(JournalError::Empty { .. } | JournalError::OtherStream { .. }) => true,
        Err(JournalError::Os { source, .. }) => source.kind() == io::ErrorKind::NotFound,
        _ => false,
    };
    if is_past && is_none {
        let (dir, next) = (dir.display(), subscriber.next_sequence());
        note!("{}: {dir} has no journal of this stream: begins at {next}", args.channel);
    }
}

/// Reports how many messages a closed channel has. This is for a user who asked only for new messages, and so got none.
fn tell_closed(host: &Host, channel: &str) {
    let Ok(status) = host.channel(channel) else { return };
    match (status.oldest_sequence, status.next_sequence) {
        (Some(oldest), Some(next)) if oldest < next => {
            note!("{channel}: closed; {} messages are there: --from oldest", grouped(next - oldest));
        }
        _ => note!("{channel}: closed and holds no message: --wait-channel waits for its next publisher"),
    }
}

/// Reports an event of the stream. With JSON, the report goes to stdout between the messages. Otherwise it goes to stderr.
fn report(args: &Args, event: &Event<'_>, out: &mut impl Write) -> Result<()> {
    if let Event::PublisherGone { .. } = event {
        tell_death(&args.channel);
        return Ok(());
    }
    if args.framing == OutputFraming::Json {
        let line = match *event {
            Event::Lapped(l) => json!({"event": "lapped", "missed": l.missed, "resumed_at": l.resumed_at}),
            Event::Gap { from, to } => json!({"event": "gap", "from": from, "to": to}),
            Event::Lost { from, to, cause } => {
                json!({"event": "lost", "from": from, "to": to, "cause": cause.name()})
            }
            Event::Live { sequence } => json!({"event": "live", "sequence": sequence}),
            Event::NewEpoch { epoch } => json!({"event": "epoch", "epoch": epoch}),
            Event::NewSession { session } => {
                json!({"event": "session", "session": String::from_utf8_lossy(&session)})
            }
            Event::Restarted => json!({"event": "restarted"}),
            Event::End => json!({"event": "end"}),
            Event::Message(_) => return Ok(()),
            ref other => json!({"event": "other", "detail": format!("{other:?}")}),
        };
        writeln!(out, "{line}")?;
        return Ok(());
    }
    let channel = &args.channel;
    match *event {
        Event::Lapped(l) => {
            let (missed, resumed_at) = (grouped(l.missed), l.resumed_at);
            note!("{channel}: lapped: missed {missed} messages, going on at {resumed_at}");
        }
        Event::Gap { from, to } => {
            let missing = grouped(to - from + 1);
            note!("{channel}: gap: {missing} messages ({from} to {to}) never reached this host");
        }
        Event::Lost { from, to, cause: Cause::Reserve } => {
            note!(
                "{channel}: a reserve was skipped: how many of the sequences {from} to {to} were messages is not known"
            );
        }
        Event::Lost { from, to, cause } => {
            let missing = grouped(to - from + 1);
            note!(
                "{channel}: lost: {missing} messages ({from} to {to}) are not in the journal: {}",
                cause.name()
            );
        }
        Event::Live { sequence } => note!("{channel}: live again at {sequence}"),
        Event::NewEpoch { epoch } => {
            note!("{channel}: a new publisher took over (epoch {epoch})")
        }
        Event::NewSession { session } => {
            note!("{channel}: new session {:?}", String::from_utf8_lossy(&session));
        }
        Event::Restarted => note!("{channel}: the channel began again: its sequences are counted anew"),
        Event::End | Event::Message(_) => {}
        ref other => note!("{channel}: {other:?}"),
    }
    Ok(())
}

/// The counts of messages received and missed.
struct Tally {
    received: u64,
    bytes: u64,
    conflated: u64,
    missed: u64,
    /// The number of sequences that the channel skipped because a journal had reserved them.
    skipped: u64,
    lapped: u64,
    first: Option<u64>,
    started_at: u64,
    latency_ns: Histogram<u64>,
}

impl Tally {
    fn new(started_at: u64) -> Self {
        let latency_ns = Histogram::new_with_max(1 << 45, 3).expect("bounds that HdrHistogram documents");
        Self {
            received: 0,
            bytes: 0,
            conflated: 0,
            missed: 0,
            skipped: 0,
            lapped: 0,
            first: None,
            started_at,
            latency_ns,
        }
    }

    fn message(&mut self, message: &Message<'_>, latency_ns: Option<u64>) {
        self.received += 1;
        self.bytes += message.payload.len() as u64;
        self.conflated += message.conflated.unwrap_or(0);
        self.first.get_or_insert(message.sequence);
        // The board's messages were published before this reader asked for them, so their age is not the reader's latency.
        let latency_ns = latency_ns.filter(|_| message.conflated.is_none());
        latency_ns.into_iter().for_each(|ns| self.latency_ns.saturating_record(ns));
    }

    fn event(&mut self, event: &Event<'_>) {
        match *event {
            Event::Lapped(lapped) => {
                self.lapped += 1;
                self.missed += lapped.missed;
            }
            Event::Lost { from, to, cause: Cause::Reserve } => self.skipped += to - from + 1,
            Event::Gap { from, to } | Event::Lost { from, to, .. } => self.missed += to - from + 1,
            _ => {}
        }
    }

    /// Reports the counts, and gives the exit code.
    fn end(&self, args: &Args, stop: &Stop, next_sequence: u64) -> Result<ExitCode> {
        self.print(args, next_sequence);
        ended(args, stop, self.received, self.missed.max(self.skipped))
    }

    fn print(&self, args: &Args, next_sequence: u64) {
        if !args.summary {
            if self.missed > 0 {
                let (missed, received) = (grouped(self.missed), grouped(self.received));
                note!("{}: MISSED {missed} messages, received {received}", args.channel);
            }
            if self.skipped > 0 {
                let (skipped, received) = (grouped(self.skipped), grouped(self.received));
                note!("{}: SKIPPED a reserve of {skipped} sequences, received {received}", args.channel);
            }
            return;
        }
        let h = &self.latency_ns;
        let quantiles = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)];
        let latency: Vec<(&str, u64)> = quantiles
            .map(|(name, q)| (name, h.value_at_quantile(q)))
            .into_iter()
            .chain([("max", h.max())])
            .collect();
        if args.json {
            let latency: serde_json::Map<_, _> =
                latency.iter().map(|(name, ns)| ((*name).to_owned(), json!(ns))).collect();
            let latency = if h.is_empty() { json!(null) } else { json!(latency) };
            let summary = json!({
                "channel": args.channel, "received": self.received, "bytes": self.bytes, "missed": self.missed,
                "skipped": self.skipped, "conflated": self.conflated, "lapped": self.lapped, "started_at": self.started_at, "first_sequence": self.first,
                "next_sequence": next_sequence, "latency_ns": latency,
            });
            say::line(summary);
            return;
        }
        let figures: Vec<String> = latency.iter().map(|(name, ns)| format!("{name} {}", Ns(*ns))).collect();
        let figures = if h.is_empty() { "none".to_owned() } else { figures.join(", ") };
        note!(
            "{}: received {}, {}missed {}{}, lapped {} times; latency {figures}",
            args.channel,
            grouped(self.received),
            if args.conflate { format!("left out {}, ", grouped(self.conflated)) } else { String::new() },
            grouped(self.missed),
            if self.skipped > 0 { format!(", skipped {}", grouped(self.skipped)) } else { String::new() },
            grouped(self.lapped),
        );
    }
}
