//! `shmcast bridge send`: a local channel to other hosts.

use super::{Alarm, Common, LOOK, Stop, engine, finish, outcome, parse_word, progress, tell_refusals};
use crate::cli::HostArg;
use crate::cli::figures::{grouped, size};
use crate::cli::say::{note, print_json};
use crate::cli::stop::Interrupted;
use crate::cli::units::{parse_address, parse_duration, words};
use anyhow::{Result, bail};
use serde_json::json;
use shmcast::hosting::fault;
use shmcast::{History, Role, SubscriberBuilder};
use shmcast_bridge::BridgeError;
use shmcast_bridge::egress::{Egress, EgressOptions};
use shmcast_bridge::proto::limit::Network;
use shmcast_bridge::proto::sender::LEAST_ENDS;
use shmcast_bridge::spec::{BridgeSpec, HistoryFrom, LinkSpeed, RepairSpec, SendRole, SendSpec, StartAt};
use shmcast_bridge::status::{Phase, RepairCounters};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLE: &str = "\
Examples:
  shmcast bridge send ticks --to 239.1.2.3:30001 --interface eth0
  shmcast bridge send ticks --to 239.1.2.3:30001 --to 239.1.2.4:30001 --interface eth0 --interface eth1 \\
      --repair 10.0.0.1:30002 --allow 10.0.0.0/24
  shmcast bridge send ticks --repair 10.0.0.1:30002 --allow 10.0.0.0/24      # unicast, to whoever takes a lease
  shmcast bridge send ticks --to 239.1.2.3:30001 --interface eth0 --repair 10.0.0.1:30002 --allow 10.0.0.0/24 \\
      --history /var/lib/ticks                    # where `shmcast record ticks --to /var/lib/ticks` writes
  shmcast bridge send ticks --to 239.1.2.3:30001 --interface eth0 --claim-bind 10.0.0.1:30003 --peer 10.0.0.2:30003
  shmcast bridge send ticks --nats nats://10.0.0.1:4222 --create              # through a server, to far sites

The channel's max_message must fit a packet: make it with `shmcast pub --max-message 1378`.
The first Ctrl-C sends what waits, leaves, and serves repairs for --linger; the session goes on if another bridge carries it.
One after the channel's end ends the program.

Exit codes: 0 success, 3 messages were overwritten before they were sent, 1 error, 2 wrong usage.
Ctrl-C and SIGTERM are the ordinary end, 0 or 3; with --until-end the code is 130 or 143 if the
channel has not ended.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Name of the channel
    channel: String,
    #[command(flatten)]
    host: HostArg,
    /// Multicast group, or a host's address, and port; several are copies of one feed
    #[arg(long, value_name = "GROUP:PORT", value_parser = parse_address, required_unless_present_any = ["repair", "nats"])]
    to: Vec<SocketAddr>,
    /// How many routers a multicast packet may pass
    #[arg(long, value_name = "N", default_value_t = 1)]
    ttl: u8,
    /// Let receivers on this very host have the multicast packets too
    #[arg(long)]
    loopback: bool,
    /// Begin where --state says (resume; without it as latest), with the next message published (latest), or with the
    /// oldest in the ring
    #[arg(long, default_value = "resume", value_parser = words(&["resume", "latest", "oldest"], parse_word::<StartAt>),
          hide_possible_values = true)]
    from: StartAt,
    /// Note in this file how far it is, and go on there when started again
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// How long to listen on the lines before a new session begins, so that it is later than any that is heard
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "300ms")]
    listen: Duration,
    /// Share the stream with the other senders of these --claim-bind addresses: one sends, and another takes over when it
    /// falls silent
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address, requires = "claim_bind")]
    peer: Vec<SocketAddr>,
    /// Address that the claims leave from, and that those of each --peer come to; take the IP address of the --interface
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address, requires = "peer")]
    claim_bind: Option<SocketAddr>,
    /// Rank of this sender, 0 to 15: the lowest takes over first
    #[arg(long, value_name = "N", default_value_t = 0, requires = "peer", value_parser = clap::value_parser!(u8).range(0..=15))]
    rank: u8,
    /// Silence after which another sender takes over
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "15ms", requires = "peer")]
    takeover: Duration,
    /// Serve repairs and unicast leases at this address
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address, requires = "allow")]
    repair: Option<SocketAddr>,
    /// Networks that may ask for repairs and leases; nobody without it
    #[arg(long, value_name = "NET", requires = "repair")]
    allow: Vec<Network>,
    /// Answer allowed receivers in full though they have not proved their address, as those of other makes need it
    #[arg(long, requires = "repair")]
    trust_allowed: bool,
    /// Repairs for all receivers together, in bytes a second [default: 100000000, or twice the feed if that is more]
    #[arg(long, value_name = "BYTES", requires = "repair")]
    rate: Option<u64>,
    /// Repairs for each receiver, in bytes a second [default: 25000000, or twice the feed if that is more]
    #[arg(long, value_name = "BYTES", requires = "repair")]
    source_rate: Option<u64>,
    /// Multicast group for plain repairs that several receivers need, by the interface of the first line; give receivers the
    /// same with --repair-group
    #[arg(long, value_name = "GROUP:PORT", value_parser = parse_address, requires = "repair")]
    repair_group: Option<SocketAddr>,
    /// How soon a second receiver asks for the same messages to draw one repair for all [default: two of the longest round
    /// trip of any receiver, 300us to 5ms]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, requires = "repair")]
    repair_merge: Option<Duration>,
    /// How long requests are ignored after a repair for all that brings the same messages [default: the longest round trip of
    /// any receiver and 100us]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, requires = "repair")]
    repair_linger: Option<Duration>,
    /// Directory with the channel's journal, for what the ring has no more [default: the daemon's; for a channel
    /// that is a file, the directory of its name in $SHMCAST_JOURNALS]
    #[arg(long, value_name = "DIR", conflicts_with = "no_history")]
    history: Option<PathBuf>,
    /// Repair, or go on, from the ring alone
    #[arg(long)]
    no_history: bool,
    /// How long a unicast lease lasts that is not renewed [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, requires = "repair")]
    lease: Option<Duration>,
    /// How long the end is repeated and repairs are served after the session's end, or repairs after Ctrl-C
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10s")]
    linger: Duration,
    /// Speed of the link that packets leave by, such as 10Gbit: live packets take at most 95 % of it, and repairs what those
    /// leave; auto is the speed that the interface states, and none holds nothing back
    #[arg(long, value_name = "SPEED", default_value = "auto", value_parser = str::parse::<LinkSpeed>)]
    link: LinkSpeed,
    /// Wait for the channel
    #[arg(long)]
    wait_channel: bool,
    #[command(flatten)]
    engine: engine::SendArgs,
    #[command(flatten)]
    common: Common,
}

impl Args {
    fn spec(&self, channel: String) -> Result<BridgeSpec> {
        let repair = self.repair.map(|bind| {
            let mut repair = RepairSpec::new(bind);
            repair.allow.clone_from(&self.allow);
            repair.trust_allowed = self.trust_allowed;
            repair.rate_bytes = self.rate;
            repair.source_rate_bytes = self.source_rate;
            repair.group = self.repair_group;
            let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            (repair.merge_us, repair.linger_us) = (self.repair_merge.map(us), self.repair_linger.map(us));
            repair.lease_s = self.lease.map_or(repair.lease_s, |lease| lease.as_secs().max(1));
            repair
        });
        let common = &self.common;
        let mut nats = self.engine.spec()?;
        if let (Some(nats), Some(dir)) = (&mut nats, &self.history) {
            nats.history = HistoryFrom::Dir(dir.clone());
        }
        if nats.is_none() && repair.is_none() && (self.history.is_some() || self.no_history) {
            bail!("--history and --no-history are for --repair and --nats: give one of these too");
        }
        Ok(BridgeSpec {
            engine: engine::of(&nats),
            nats,
            lines: common.lines(&self.to, &[])?,
            session: common.session.clone(),
            profile: common.profile,
            keys: common.keys.clone(),
            auth: common.auth,
            payload_bytes: common.payload_bytes(),
            wait: common.wait,
            cpu: common.cpu,
            dscp: common.dscp,
            priority: common.priority,
            link: self.link,
            send: Some(SendSpec {
                ttl: self.ttl,
                loopback: self.loopback,
                from: self.from,
                state: self.state.clone(),
                listen_ms: u64::try_from(self.listen.as_millis()).unwrap_or(u64::MAX),
                role: if self.peer.is_empty() { SendRole::Only } else { SendRole::Auto },
                rank: self.rank,
                claim_bind: self.claim_bind,
                peers: self.peer.clone(),
                takeover_ms: u64::try_from(self.takeover.as_millis()).unwrap_or(u64::MAX),
                linger_ms: u64::try_from(self.linger.as_millis()).unwrap_or(u64::MAX),
                repair,
            }),
            ..BridgeSpec::new(channel)
        })
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    let (host, channel) = args.host.host_of(&args.channel)?;
    let spec = args.spec(channel)?;
    let history = match (&args.history, args.no_history) {
        (Some(dir), _) => History::Dir(dir.clone()),
        (None, true) => History::Never,
        (None, false) => History::Auto,
    };
    let subscriber = host.subscriber(&spec.channel).role(Role::Bridge).history(history);
    if spec.nats().is_some() {
        args.common.refuse_capture()?;
        let options = engine::Sending {
            until_end: args.common.until_end,
            waits: args.wait_channel,
            json: args.common.json,
        };
        return engine::send(&spec, &subscriber, &options, &stop);
    }
    let capture = args.common.capture()?;
    let tap = || capture.as_ref().map(|capture| capture.tap());
    let Some(mut egress) = start(args, spec, &subscriber, tap, &stop)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let channel = &args.channel;
    tell_refusals(channel, egress.life());
    if let Some(session) = egress.life().session() {
        note!("{channel}: sending session {session}");
    }
    let interrupted = watch(args, &egress, &stop);
    egress.join();
    finish(capture)?;
    report(args, &egress)?;
    outcome(channel, egress.life(), egress.counters().messages_missed, interrupted)
}

/// Shows how the bridge does until it has ended. Returns the interruption, if there was one.
fn watch(args: &Args, egress: &Egress, stop: &Stop) -> Option<Interrupted> {
    let channel = &args.channel;
    let progress = progress();
    let (mut missed, mut strangers, mut unproved) = (Alarm { told: 0 }, Alarm { told: 0 }, Alarm { told: 0 });
    let (mut interrupted, mut is_told, mut is_in_haste, mut role) = (None, false, false, 0);
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
            grouped(egress.repair_counters().messages),
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
            format!("{channel}: refused {more} repairs to receivers that cannot prove their address: see --trust-allowed")
        });
        missed.look(&progress, counters.messages_missed, |more| {
            format!("{channel}: overtaken by the publisher: {} messages were not sent", grouped(more))
        });
    }
    progress.finish_and_clear();
    interrupted
}

/// Starts the bridge, after waiting for the channel if asked. `None` when interrupted meanwhile.
fn start(
    args: &Args,
    spec: BridgeSpec,
    subscriber: &SubscriberBuilder,
    tap: impl Fn() -> Option<shmcast_bridge::pcap::Tap>,
    stop: &Stop,
) -> Result<Option<Egress>> {
    let mut is_channel_new = false;
    loop {
        if let Some(dir) = &args.history {
            check_history(&args.channel, dir, subscriber)?;
        }
        let options = EgressOptions {
            tap: tap(),
            ends_with_channel: args.common.until_end,
            is_channel_new,
            ..EgressOptions::default()
        };
        match Egress::start(&spec, subscriber.clone(), options) {
            Err(BridgeError::Channel(e)) if e.is_unknown_channel() => {
                if !args.wait_channel {
                    bail!("{e} (--wait-channel)");
                }
                if stop.is_set() {
                    return Ok(None);
                }
                // Everything in a channel that appears from now on is new.
                is_channel_new = true;
                std::thread::sleep(LOOK);
            }
            started => return Ok(Some(started?)),
        }
    }
}

/// Refuses a directory that has no journal of the channel. A channel that is not there is somebody else's to report.
fn check_history(channel: &str, dir: &Path, subscriber: &SubscriberBuilder) -> Result<()> {
    let Ok(mut subscriber) = subscriber.clone().page(false).open() else { return Ok(()) };
    let Some(journal) = subscriber.take_journal() else { return Ok(()) };
    if journal.read_from(subscriber.next_sequence())?.is_none() {
        bail!(
            "{}: holds the journal of another stream than {channel:?}: give the directory that `shmcast record {channel}` \
             writes to, or --no-history",
            dir.display()
        );
    }
    Ok(())
}

fn from_journal(repair: &RepairCounters) -> String {
    match repair.journal.messages {
        0 => String::new(),
        messages => format!(" ({} from the journal)", grouped(messages)),
    }
}

fn report(args: &Args, egress: &Egress) -> Result<()> {
    let (counters, repair) = (egress.counters(), egress.repair_counters());
    if args.common.json {
        return print_json(&json!({
            "channel": args.channel,
            "direction": "send",
            "session": egress.life().session().map(|session| session.to_string()),
            "refusals": egress.life().refusals(),
            "wait": egress.life().waiting(),
            "send": counters,
            "repair": args.repair.map(|_| repair),
        }));
    }
    note!(
        "{}: sent {} messages in {} packets ({}), {} repaired{}; up to sequence {}, {} missed",
        args.channel,
        grouped(counters.messages),
        grouped(counters.packets),
        size(counters.bytes),
        grouped(repair.messages),
        from_journal(&repair),
        counters.next_sequence.saturating_sub(1),
        grouped(counters.messages_missed),
    );
    Ok(())
}
