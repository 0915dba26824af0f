//! `shmcast bridge recv`: receives a channel from another host and publishes it here under the same
//! sequences.

use super::{
    Alarm, Common, LOOK, Side, Stop, engine, held, missed, outcome, outcome_of, progress, tell_refusals,
};
use crate::cli::figures::{Ns, grouped};
use crate::cli::ring::Settings;
use crate::cli::say::{note, print_json};
use crate::cli::units::{parse_address, parse_size};
use crate::cli::{Host, HostArg};
use anyhow::Result;
use serde_json::json;
use shmcast::hosting::fault;
use shmcast::{DEFAULT_CAPACITY, Preparation, PublisherBuilder};
use shmcast_bridge::ingress::{Ingress, IngressOptions};
use shmcast_bridge::proto::wire::{HEADER_BYTES, LENGTH_BYTES};
use shmcast_bridge::spec::{BridgeSpec, ETHERNET_PAYLOAD_BYTES, Profile};
use shmcast_bridge::status::{Latency, Phase, ReceiveCounters};
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

const EXAMPLE: &str = "\
Examples:
  shmcast bridge recv ticks --from 239.1.2.3:30001 --interface eth0 --server 10.0.0.1:30002
  # Two lines from one sender
  shmcast bridge recv ticks --from 10.0.0.1@239.1.2.3:30001 --from 10.0.0.1@239.1.2.4:30001 \\
      --set wait=spin --set cpu=3
  # Where the network has no multicast
  shmcast bridge recv ticks --server 10.0.0.1:30002 --set receive.unicast=true
  # Through a server, from a far site
  shmcast bridge recv ticks --nats nats://10.0.0.1:4222
  # From a sender of another make
  shmcast bridge recv itch --from 233.54.12.111:26477 --server 206.200.1.1:18001 \\
      --set receive.lease=false

--set receive.from=SEQUENCE names the message to begin with, if there is no session to resume.
--set also takes keys of the channel that is made here: max_message, permissions, board and gate,
as `shmcast pub --help` lists them. Without max_message, messages on plain lines may be as large
as fits an Ethernet frame, or payload_bytes if that is more.

Exit codes: 0 success, 3 messages were missed, 1 error, 2 wrong usage. Ctrl-C and SIGTERM are the
ordinary end, 0 or 3; with --until-end the code is 130 (Ctrl-C), 143 (SIGTERM) or
129 (SIGHUP) if the session has not ended.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Name of the channel
    channel: String,
    #[command(flatten)]
    host: HostArg,
    /// Multicast group, or an address of this host, and port; several lines carry copies of one feed. With SOURCE@GROUP:PORT, only packets
    /// from the address SOURCE are accepted
    #[arg(long, value_name = "GROUP:PORT", value_parser = parse_line, required_unless_present_any = ["nats", "config", "set"])]
    from: Vec<(SocketAddr, Option<IpAddr>)>,
    /// Servers to ask for what is missing, in turn
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    server: Vec<SocketAddr>,
    /// Size of the ring for a new channel: a power of two from 64KiB to 16GiB [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    capacity: Option<u64>,
    #[command(flatten)]
    common: Common,
}

impl Args {
    fn spec(&self, channel: &str) -> Result<BridgeSpec> {
        let mut draft = self.common.options.draft(channel, Side::Receive)?;
        draft.put_lines(&self.from, &self.common.interface)?;
        draft.put_all("receive.servers", &self.server);
        self.common.options.finish(draft, Side::Receive, &self.common.nats)
    }

    /// Returns the options for opening the channel. A message of a new channel must fit in one packet, so that a bridge can forward the
    /// channel.
    fn publisher(&self, host: &Host, spec: &BridgeSpec) -> Result<PublisherBuilder> {
        let settings = Settings::read(self.capacity, self.common.options.of_channel())?;
        // The bridge starts once and runs for a long time, so a slow start is acceptable.
        let publisher = settings.publisher(host, &spec.channel)?.prepare(Preparation::FULL);
        let is_any_size = spec.receive_profile() == Profile::Native || spec.nats().is_some();
        // Native packets carry messages of any size that a channel accepts.
        if is_any_size || settings.max_message.is_some() || host.channel(&spec.channel).is_ok() {
            return Ok(publisher);
        }
        // Other senders might fill an Ethernet frame, so the limit is at least the payload of such a frame.
        let most = if fault!("only_our_payloads_fit") { 0 } else { ETHERNET_PAYLOAD_BYTES };
        let datagram = spec.payload_bytes.max(most);
        let fits = (datagram - HEADER_BYTES - LENGTH_BYTES) as u64;
        Ok(publisher.max_message(fits.min(settings.capacity.unwrap_or(DEFAULT_CAPACITY) / 8)))
    }
}

/// Parses the address of a line. The address of the line's source can come first, as in `SOURCE@GROUP:PORT`.
fn parse_line(text: &str) -> Result<(SocketAddr, Option<IpAddr>), String> {
    let Some((source, group)) = text.split_once('@') else { return Ok((parse_address(text)?, None)) };
    // The text might contain an account by mistake. So the error does not quote the text, and shows nothing before an `@`.
    let source = source.parse().map_err(|_| {
        "no address of a sender in front of the group: write its IP address, as in 10.0.0.1".to_owned()
    })?;
    Ok((parse_address(group)?, Some(source)))
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    let (host, channel) = args.host.host_of(&args.channel)?;
    let spec = args.spec(&channel)?;
    let publisher = args.publisher(&host, &spec)?;
    if spec.nats().is_some() {
        args.common.capture.refuse()?;
        return engine::receive(&spec, publisher, args.common.until_end, args.common.json, &stop);
    }
    let mut capture = args.common.capture.begin(&spec, args.common.json)?;
    let options = IngressOptions { tap: capture.tap(), ..IngressOptions::default() };
    let mut ingress = Ingress::start(&spec, publisher, options)?;
    let channel = &args.channel;
    tell_refusals(channel, ingress.life());
    let progress = progress();
    let (mut missing, mut dropped) = (Alarm { told: 0 }, Alarm { told: 0 });
    let (mut session, mut troubles) = (None, HashSet::new());
    let mut interrupted = None;
    while !ingress.is_finished() {
        std::thread::sleep(LOOK);
        if args.common.until_end && ingress.life().phase() == Phase::Ending {
            ingress.stop();
        } else if stop.is_set() {
            if ingress.life().phase() == Phase::Running {
                interrupted = args.common.interrupted(channel, &stop);
            }
            ingress.stop();
        }
        let counters = ingress.counters();
        if let Some(now) = ingress.life().session().filter(|now| session != Some(*now)) {
            session = Some(now);
            progress.suspend(|| note!("{channel}: receiving session {now}{}", ingress.life().beginning()));
        }
        // Each trouble is reported once, even if it comes and goes.
        if let Some(trouble) = ingress.trouble().filter(|trouble| troubles.insert(trouble.clone())) {
            progress.suspend(|| note!("{channel}: {trouble}"));
        }
        capture.look(&progress, channel);
        progress.set_message(so_far(&counters));
        progress.tick();
        missing.look(&progress, counters.host.messages_missing, |more| {
            missed(channel, counters.host.messages_too_large, more)
        });
        let drops = counters.lines.iter().map(|line| line.socket.kernel_drops).sum();
        dropped.look(&progress, drops, |more| {
            format!(
                "{channel}: the kernel dropped at least {} datagrams: raise receive.buffer_bytes, or give the bridge a CPU",
                grouped(more)
            )
        });
    }
    ingress.join();
    progress.finish_and_clear();
    let captured = capture.finish();
    report(args, &ingress)?;
    let missing = ingress.counters().host.messages_missing;
    outcome_of(captured, outcome(channel, ingress.life(), missing, interrupted))
}

/// Returns the progress line of the bridge.
fn so_far(counters: &ReceiveCounters) -> String {
    format!(
        "published {} messages, {} repaired, {} missing now, {} for ever",
        grouped(counters.host.messages_published),
        grouped(counters.host.recovered_by_servers),
        grouped(counters.host.horizon.saturating_sub(counters.host.next_sequence)),
        grouped(counters.host.messages_missing),
    )
}

fn report(args: &Args, ingress: &Ingress) -> Result<()> {
    let counters = ingress.counters();
    let latencies = ingress.latencies();
    let (recovery, to_ring) = (Latency::from(&latencies.recovery), Latency::from(&latencies.to_ring));
    if args.common.json {
        return print_json(&json!({
            "channel": args.channel,
            "direction": "receive",
            "session": ingress.life().session().map(|session| session.to_string()),
            "refusals": ingress.life().refusals,
            "wait": ingress.life().waiting,
            "receive": counters,
            "recovery": recovery,
            "receive_to_ring": to_ring,
        }));
    }
    note!(
        "{}: published {} messages up to sequence {}, {} missing{}; {} repaired{}{}",
        args.channel,
        grouped(counters.host.messages_published),
        counters.host.next_sequence.saturating_sub(1),
        grouped(counters.host.messages_missing),
        held(counters.host.messages_held),
        grouped(counters.host.recovered_by_servers),
        percentiles("repair", &recovery),
        percentiles("receive to ring", &to_ring),
    );
    Ok(())
}

/// Returns the percentiles as text. Without any measurement, the text is empty.
fn percentiles(what: &str, latency: &Latency) -> String {
    let Latency { count, p50_ns, p99_ns, max_ns, .. } = *latency;
    if count == 0 {
        return String::new();
    }
    format!("; {what} p50 {}, p99 {}, max {}", Ns(p50_ns), Ns(p99_ns), Ns(max_ns))
}
