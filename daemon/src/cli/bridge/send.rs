//! `shmcast bridge send`: sends a local channel to other hosts.

use super::capture::Capture;
use super::{
    Alarm, Common, LOOK, Seldom, Side, Stop, engine, outcome, outcome_of, progress, tell_away, tell_refusals,
};
use crate::cli::HostArg;
use crate::cli::figures::{grouped, size};
use crate::cli::say::{note, print_json};
use crate::cli::stop::Interrupted;
use crate::cli::units::parse_address;
use crate::cli::waiting::{Waiting, rest};
use anyhow::{Result, bail};
use indicatif::ProgressBar;
use serde_json::json;
use shmcast::hosting::fault;
use shmcast::journal::{Journal, JournalError};
use shmcast::{History, Role, SubscriberBuilder};
use shmcast_bridge::BridgeError;
use shmcast_bridge::egress::{Egress, EgressOptions};
use shmcast_bridge::proto::limit::Network;
use shmcast_bridge::proto::sender::LEAST_ENDS;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::spec::{BridgeSpec, HistoryFrom};
use shmcast_bridge::status::{Phase, RepairCounters};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

const EXAMPLE: &str = "\
Examples:
  shmcast bridge send ticks --to 239.1.2.3:30001 --interface eth0
  shmcast bridge send ticks --to 239.1.2.3:30001 --to 239.1.2.4:30001 \\
      --interface eth0 --interface eth1 --repair 10.0.0.1:30002 --allow 10.0.0.0/24
  # Unicast, to whoever takes a lease
  shmcast bridge send ticks --repair 10.0.0.1:30002 --allow 10.0.0.0/24
  # Repairs also from where `shmcast record ticks --to /var/lib/ticks` writes
  shmcast bridge send ticks --to 239.1.2.3:30001 --interface eth0 --repair 10.0.0.1:30002 \\
      --allow 10.0.0.0/24 --set send.repair.history=/var/lib/ticks
  # Through a server, to far sites
  shmcast bridge send ticks --nats nats://10.0.0.1:4222 --set nats.create=true
  shmcast bridge send ticks --config /etc/shmcast/shmcast.toml --set send.from=oldest

The channel's max_message must fit a packet: make it with `shmcast pub --set max_message=1378`.
--set send.from=oldest begins with the oldest message, latest with the next, and resume, the
default, behind the last one that was sent. The first Ctrl-C sends what waits, leaves, and serves
repairs for send.linger_ms; the session goes on if another bridge carries it. One after the
channel's end ends the program.

Exit codes: 0 success, 3 messages were overwritten before they were sent, 1 error, 2 wrong usage.
Ctrl-C and SIGTERM are the ordinary end, 0 or 3; with --until-end the code is 130 (Ctrl-C),
143 (SIGTERM) or 129 (SIGHUP) if the channel has not ended.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Name of the channel
    channel: String,
    #[command(flatten)]
    host: HostArg,
    /// Multicast group, or a host's address, and port; several lines carry copies of one feed
    #[arg(long, value_name = "GROUP:PORT", value_parser = parse_address, required_unless_present_any = ["repair", "nats", "config", "set"])]
    to: Vec<SocketAddr>,
    /// Serve repairs and unicast leases at this address
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    repair: Option<SocketAddr>,
    /// Networks that may request repairs and leases [default: none]
    #[arg(long, value_name = "NET")]
    allow: Vec<Network>,
    /// Wait for the channel, and for a daemon that does not answer
    #[arg(long)]
    wait_channel: bool,
    #[command(flatten)]
    common: Common,
}

impl Args {
    fn spec(&self, channel: &str) -> Result<BridgeSpec> {
        let lines: Vec<_> = self.to.iter().map(|group| (*group, None)).collect();
        let mut draft = self.common.options.draft(channel, Side::Send)?;
        draft.put_lines(&lines, &self.common.interface)?;
        if let Some(repair) = self.repair {
            draft.put("send.repair.bind", repair.to_string());
        }
        draft.put_all("send.repair.allow", &self.allow);
        self.common.options.finish(draft, Side::Send, &self.common.nats)
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    let mut waiting = Waiting::new(&args.channel, &stop);
    let Some((host, channel)) = args.host.host_of_waiting(args.wait_channel, &mut waiting)? else {
        return args.common.left_early(&args.channel, &stop);
    };
    let spec = args.spec(&channel)?;
    let history = match history(&spec) {
        Some(HistoryFrom::Dir(dir)) => History::Dir(dir.clone()),
        Some(HistoryFrom::Channel(false)) => History::Never,
        Some(HistoryFrom::Channel(true)) | None => History::Auto,
    };
    let subscriber = host.subscriber(&spec.channel).role(Role::Bridge).history(history);
    if spec.nats().is_some() {
        args.common.capture.refuse()?;
        let options = engine::Sending {
            until_end: args.common.until_end,
            waits: args.wait_channel,
            json: args.common.json,
        };
        return engine::send(&spec, &subscriber, &options, &mut waiting);
    }
    let mut capture = args.common.capture.begin(&spec, args.common.json)?;
    let Some(mut egress) = start(args, &spec, &subscriber, &capture, &mut waiting)? else {
        return args.common.left_early(&args.channel, &stop);
    };
    let channel = &args.channel;
    tell_refusals(channel, egress.life());
    let interrupted = watch(args, &egress, &stop, &mut capture);
    egress.join();
    let captured = capture.finish();
    report(args, &spec, &egress)?;
    let missed = egress.counters().messages_missed;
    outcome_of(captured, outcome(channel, egress.life(), missed, interrupted))
}

/// Shows the bridge's progress until the bridge has ended. With `--until-end`, returns the error for a signal that came before the end of
/// the session.
fn watch(args: &Args, egress: &Egress, stop: &Stop, capture: &mut Capture) -> Option<Interrupted> {
    let channel = &args.channel;
    let progress = progress();
    let (mut missed, mut strangers, mut unproved) = (Alarm { told: 0 }, Alarm { told: 0 }, Alarm { told: 0 });
    let mut troubles = Troubles::default();
    let (mut interrupted, mut is_told, mut is_in_haste, mut role) = (None, false, false, 0);
    let (mut session, mut is_away) = (None, false);
    tell_session(channel, egress, &progress, &mut session);
    while !egress.is_finished() {
        std::thread::sleep(LOOK);
        if stop.is_set() && !is_told {
            is_told = true;
            if egress.life().phase() == Phase::Running {
                interrupted = args.common.interrupted(channel, stop);
                egress.leave();
            } else {
                is_in_haste = true;
            }
        }
        tell_session(channel, egress, &progress, &mut session);
        tell_away(channel, egress.life(), &progress, &mut is_away);
        let counters = egress.counters();
        if is_in_haste && counters.ends >= LEAST_ENDS {
            egress.stop();
        }
        if counters.role != role {
            role = counters.role;
            let (name, claim) = (counters.part(), counters.claim);
            progress.suspend(|| note!("{channel}: claim {claim}, now {name}"));
        }
        let state = match egress.life().phase() {
            Phase::Leaving => "leaving, sent",
            Phase::Ending => "ending, sent",
            Phase::Running | Phase::Ended | Phase::Failed => "sent",
        };
        progress.set_message(format!(
            "{state} {} messages in {} packets, {} repaired{}",
            grouped(counters.messages),
            grouped(counters.packets),
            grouped(egress.repair_counters().replay.messages),
            from_journal(&egress.repair_counters()),
        ));
        progress.tick();
        let refused = egress.repair_counters().refused;
        strangers.look(&progress, refused.not_allowed, |more| {
            format!("{channel}: refused {} repairs to hosts that --allow does not list", grouped(more))
        });
        let told = if fault!("refused_repairs_are_silent") { 0 } else { refused.unproved };
        unproved.look(&progress, told, |more| {
            let more = grouped(more);
            format!("{channel}: refused {more} repairs to receivers that cannot prove their address: see send.repair.trust_allowed")
        });
        troubles.look(&progress, channel, egress);
        capture.look(&progress, channel);
        missed.look(&progress, counters.messages_missed, |more| {
            format!("{channel}: overtaken by the publisher: {} messages were not sent", grouped(more))
        });
    }
    progress.finish_and_clear();
    interrupted
}

/// Reports the session that the bridge sends, and each later session. A channel that is removed and made again gets another session.
fn tell_session(channel: &str, egress: &Egress, progress: &ProgressBar, told: &mut Option<Session>) {
    let now = egress.life().session();
    if let Some(session) = now.filter(|_| now != *told) {
        *told = now;
        progress.suspend(|| note!("{channel}: sending session {session}"));
    }
}

/// The problems with the sender's files, and when each was last reported.
#[derive(Default)]
struct Troubles {
    state: Seldom,
    failed: Seldom,
    unusable: Seldom,
}

impl Troubles {
    fn look(&mut self, progress: &ProgressBar, channel: &str, egress: &Egress) {
        let (state, journal) = (egress.counters().state_errors, egress.repair_counters().journal.past);
        self.state.look(progress, state, || {
            let why = egress.state_error().unwrap_or_default();
            format!("{channel}: the state file cannot be written: {why}: the next bridge does not know where to continue")
        });
        self.failed.look(progress, journal.errors, || {
            format!("{channel}: the journal cannot be read for repairs; after 5 s its messages count as gone")
        });
        self.unusable.look(progress, journal.unusable, || {
            format!("{channel}: no repairs come from the journal: it is not that of this stream")
        });
    }
}

/// Starts the bridge. Waits for the channel first, if the user asked for that. Returns `None` after a signal.
fn start(
    args: &Args,
    spec: &BridgeSpec,
    subscriber: &SubscriberBuilder,
    capture: &Capture,
    waiting: &mut Waiting<'_>,
) -> Result<Option<Egress>> {
    let mut is_channel_new = false;
    loop {
        if let Some(HistoryFrom::Dir(dir)) = history(spec) {
            check_history(&args.channel, dir, subscriber)?;
        }
        let options = EgressOptions {
            tap: capture.tap(),
            ends_with_channel: args.common.until_end,
            is_channel_new,
            ..EgressOptions::default()
        };
        match Egress::start(spec, subscriber.clone(), options) {
            Err(BridgeError::Channel(e)) if e.is_unknown_channel() && !args.wait_channel => {
                bail!("{e} (--wait-channel)");
            }
            Err(BridgeError::Channel(e))
                if args.wait_channel && (e.is_unknown_channel() || e.is_passing()) =>
            {
                if !waiting.goes_on(&e) {
                    return Ok(None);
                }
                // If the channel did not exist before, all its messages are new.
                is_channel_new |= e.is_unknown_channel();
                rest(waiting.stop);
            }
            started => return Ok(Some(started?)),
        }
    }
}

/// Returns the source from which the bridge gets overwritten messages; `None` if the spec names no such source.
fn history(spec: &BridgeSpec) -> Option<&HistoryFrom> {
    let repair = spec.send.as_ref().and_then(|send| send.repair.as_ref());
    spec.nats().map(|nats| &nats.history).or(repair.map(|repair| &repair.history))
}

/// Refuses a directory that has no journal of the channel's stream. If the channel does not exist, does nothing.
fn check_history(channel: &str, dir: &Path, subscriber: &SubscriberBuilder) -> Result<()> {
    let Ok(subscriber) = subscriber.clone().page(false).open() else { return Ok(()) };
    match Journal::open_stream(dir, subscriber.header().stream) {
        Err(JournalError::OtherStream { .. }) => bail!(
            "{}: holds the journal of another stream than {channel:?}: give the directory that `shmcast record {channel}` \
             writes to, or set it to false",
            dir.display()
        ),
        // A recorder has made the folder of the stream, and is about to make the first file in it.
        Err(JournalError::Empty { path }) if path != dir => Ok(()),
        opened => Ok(opened.map(drop)?),
    }
}

fn from_journal(repair: &RepairCounters) -> String {
    match repair.journal.replies.messages {
        0 => String::new(),
        messages => format!(" ({} from the journal)", grouped(messages)),
    }
}

fn report(args: &Args, spec: &BridgeSpec, egress: &Egress) -> Result<()> {
    let (counters, repair) = (egress.counters(), egress.repair_counters());
    if args.common.json {
        return print_json(&json!({
            "channel": args.channel,
            "direction": "send",
            "session": egress.life().session().map(|session| session.to_string()),
            "refusals": egress.life().refusals,
            "wait": egress.life().waiting,
            "send": counters,
            "repair": spec.send.as_ref().and_then(|send| send.repair.as_ref()).map(|_| repair),
        }));
    }
    note!(
        "{}: sent {} messages in {} packets ({}), {} repaired{}; up to sequence {}, {} missed",
        args.channel,
        grouped(counters.messages),
        grouped(counters.packets),
        size(counters.bytes),
        grouped(repair.replay.messages),
        from_journal(&repair),
        counters.next_sequence.saturating_sub(1),
        grouped(counters.messages_missed),
    );
    Ok(())
}
