//! `shmcast stat`: shows one channel and its readers, once or every second.

use super::HostArg;
use super::figures::{Ns, counted, grouped, is_seen, of_role, printable, size, table};
use super::ls::{publisher_of, who};
use super::say::{print, print_json};
use super::stop::Stop;
use super::waiting::View;
use anyhow::Result;
use shmcast::control::GateReport;
use shmcast::{ChannelStatus, Process, ReaderStatus, Role};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: shmcast stat ticks --watch\n\nCtrl-C and SIGTERM end --watch with exit code 0. While the channel cannot be \
                  read, --watch shows the reason and goes on."
)]
pub(super) struct Args {
    /// Name of the channel
    channel: String,
    #[command(flatten)]
    host: HostArg,
    /// Show the channel again every second, with rates, until interrupted
    #[arg(long)]
    watch: bool,
    /// Print as JSON, one line each time
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    let (host, name) = match args.host.host_of(&args.channel) {
        Err(_) if args.watch && stop.is_set() => return Ok(ExitCode::SUCCESS),
        found => found?,
    };
    let mut view = View::new(&name, args.json, &stop);
    let mut before: Option<(Instant, ChannelStatus)> = None;
    loop {
        let now = Instant::now();
        match host.channel(&name) {
            Ok(channel) => {
                if args.json {
                    print_json(&channel)?;
                } else {
                    let rate =
                        before.as_ref().and_then(|(then, earlier)| rate(earlier, &channel, now - *then));
                    let clear = if args.watch { view.clear() } else { "" };
                    print(format_args!("{clear}{}", describe(&channel, rate)))?;
                }
                view.shown();
                before = Some((now, channel));
            }
            Err(e) if args.watch => view.fail(e.into())?,
            Err(e) => return Err(e.into()),
        }
        if !args.watch || !view.wait(now) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Messages a second between two readings of the channel.
fn rate(earlier: &ChannelStatus, later: &ChannelStatus, between: Duration) -> Option<u64> {
    let published = later.next_sequence?.saturating_sub(earlier.next_sequence?);
    Some((published as f64 / between.as_secs_f64()) as u64)
}

fn describe(channel: &ChannelStatus, rate: Option<u64>) -> String {
    let mut facts = table(["CHANNEL", &channel.channel], 2);
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            facts.add_row([name.to_owned(), printable(&value)]);
        }
    };
    fact("state", Some(channel.state.clone()));
    fact("error", channel.error.clone());
    fact("publisher", Some(publisher_of(channel, "none", "unknown")));
    fact("mode", channel.mode.clone());
    // If the channel's header is not valid, its figures are unknown.
    let known = |figure: String| Some(figure).filter(|_| channel.capacity_bytes > 0);
    fact("epoch", known(channel.epoch.to_string()));
    fact("next sequence", channel.next_sequence.map(grouped));
    fact("oldest in the ring", channel.oldest_sequence.map(grouped));
    fact("messages a second", rate.map(grouped));
    fact("payload published", known(size(channel.published_bytes)));
    fact("capacity", known(size(channel.capacity_bytes)));
    fact("largest message", known(size(channel.max_message_bytes)));
    fact("schema", (channel.schema_id != 0).then(|| format!("{} {}", channel.schema_id, channel.schema)));
    for label in channel.labels.lines() {
        fact("label", Some(label.to_owned()));
    }
    if let Some(board) = &channel.board {
        fact("keys on the board", Some(format!("{} of {}", grouped(board.keys), grouped(board.room))));
        fact("board up to", Some(grouped(board.through)));
        let left_out = |count: u64| (count > 0).then(|| grouped(count));
        fact("no room on the board", left_out(board.refused));
        fact("too large for the board", left_out(board.too_large));
        fact("without a key", left_out(board.no_key));
    }
    if let Some(journal) = &channel.journal {
        let why = journal.why.as_ref().map_or(String::new(), |why| format!(": {why}"));
        fact("journal", Some(format!("{}{why}", journal.state)));
        fact("journal's directory", Some(journal.directory.clone()));
        fact("durable up to", Some(grouped(journal.durable)));
        fact("oldest in the journal", Some(grouped(journal.oldest)));
        fact("missing in the journal", Some(grouped(journal.lost().iter().map(|(_, lost)| lost).sum())));
        fact("size of the journal", Some(size(journal.size_bytes)));
    }
    let gates = described_gates(&channel.gates);
    let mut text = format!("{}\n\n{gates}{}", facts.trim_fmt(), counted_by_role(channel));
    if channel.readers.is_empty() {
        return text;
    }
    let mut rows =
        table(["PID", "COMMAND", "ROLE", "LAG", "RECEIVED", "LAPPED", "MISSED", "P50", "P99", "MAX"], 2);
    for reader in &channel.readers {
        rows.add_row(reader_row(reader));
    }
    text += &format!("\n{}", rows.trim_fmt());
    text
}

/// Describes how many readers, recorders and bridges read a channel.
fn counted_by_role(channel: &ChannelStatus) -> String {
    if !is_seen(channel, "readers") {
        return "readers unknown: this user may not see them".to_owned();
    }
    let readers = &channel.readers;
    let mut text = counted(of_role(readers, Role::Reader), "reader");
    for role in [Role::Recorder, Role::Bridge] {
        let count = of_role(readers, role);
        if count > 0 {
            text += &format!(", {}", counted(count, role.name()));
        }
    }
    text
}

/// The table of the gates. Without gates, the text is empty.
fn described_gates(gates: &[GateReport]) -> String {
    if gates.is_empty() {
        return String::new();
    }
    let mut rows =
        table(["GATE", "STATE", "PID", "BEHIND", "LAG", "HELD", "P99", "MAX", "DROPPED", "REFUSED"], 3);
    for gate in gates {
        rows.add_row([
            gate.terms.gate.clone(),
            gate.state.clone(),
            gate.reader.as_ref().map_or("-".to_owned(), holder),
            gate.behind_bytes.map_or("-".to_owned(), size),
            size(gate.terms.lag_bytes),
            grouped(gate.held),
            gate.waits_ns.map_or("-".to_owned(), |waits| Ns(waits.p99).to_string()),
            gate.waits_ns.map_or("-".to_owned(), |waits| Ns(waits.max).to_string()),
            grouped(gate.dropped),
            grouped(gate.refused + gate.turned_away),
        ]);
    }
    format!("{}\n\n", rows.trim_fmt())
}

/// The process that holds a gate. If only the gate's page names the process, the text says so.
fn holder(process: &Process) -> String {
    let is_claimed = process.pid.is_some() && process.uid.is_none() && process.command.is_none();
    if is_claimed { format!("{} claimed", who(process)) } else { who(process) }
}

fn reader_row(reader: &ReaderStatus) -> [String; 10] {
    let latency = |pick: fn(&shmcast::LatencyStatus) -> u64| {
        reader.latency_ns.as_ref().map_or("-".to_owned(), |latency| Ns(pick(latency)).to_string())
    };
    [
        reader.process.pid.map_or("?".to_owned(), |pid| pid.to_string()),
        reader.process.command.as_deref().map_or(String::new(), printable),
        reader.role.clone(),
        reader.lag.map_or("?".to_owned(), grouped),
        grouped(reader.received),
        grouped(reader.lapped),
        grouped(reader.missed),
        latency(|l| l.p50),
        latency(|l| l.p99),
        latency(|l| l.max),
    ]
}
