//! `shmcast bridge recv`: receives a channel from another host and publishes it here under the same
//! sequences.

use super::{Alarm, Common, LOOK, Stop, engine, finish, outcome, parse_word, progress, tell_refusals};
use crate::cli::figures::{Ns, grouped};
use crate::cli::say::{note, print_json};
use crate::cli::units::{parse_address, parse_duration, parse_size, words};
use crate::cli::{Host, HostArg};
use anyhow::Result;
use serde_json::json;
use shmcast::hosting::fault;
use shmcast::{DEFAULT_CAPACITY, Preparation, PublisherBuilder};
use shmcast_bridge::ingress::{Ingress, IngressOptions};
use shmcast_bridge::proto::wire::{HEADER_BYTES, LENGTH_BYTES};
use shmcast_bridge::spec::{BridgeSpec, ETHERNET_PAYLOAD_BYTES, GapMode, Profile, ReceiveSpec, TimeMode};
use shmcast_bridge::status::{Latency, Phase, ReceiveCounters};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLE: &str = "\
Examples:
  shmcast bridge recv ticks --from 239.1.2.3:30001 --interface eth0 --server 10.0.0.1:30002
  shmcast bridge recv ticks --from 239.1.2.3:30001 --from 239.1.2.4:30001 --source 10.0.0.1 --wait spin --cpu 3
  shmcast bridge recv ticks --server 10.0.0.1:30002 --unicast
  shmcast bridge recv ticks --nats nats://10.0.0.1:4222                       # through a server, from a far site
  shmcast bridge recv itch --from 233.54.12.111:26477 --no-lease --server 206.200.1.1:18001   # another make's feed

Exit codes: 0 success, 3 messages were missed, 1 error, 2 wrong usage. Ctrl-C and SIGTERM are the
ordinary end, 0 or 3; with --until-end the code is 130 or 143 if the session has not ended.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Name of the channel
    channel: String,
    #[command(flatten)]
    host: HostArg,
    /// Multicast group, or an address of this host, and port; several are copies of one feed
    #[arg(long, value_name = "GROUP:PORT", value_parser = parse_address, required_unless_present_any = ["unicast", "nats"])]
    from: Vec<SocketAddr>,
    /// Take the groups from this sender only: one for all, or one for each in their order
    #[arg(long, value_name = "IP")]
    source: Vec<IpAddr>,
    /// Servers to ask for what is missing, in turn
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    server: Vec<SocketAddr>,
    /// Multicast group of the servers' plain repairs for all receivers, as they have it
    #[arg(long, value_name = "GROUP:PORT", value_parser = parse_address, requires = "server")]
    repair_group: Option<SocketAddr>,
    /// Have the servers send the feed itself, for networks without multicast
    #[arg(long, requires = "server")]
    unicast: bool,
    /// Do not ask the servers for leases: those of other makes know none
    #[arg(long, conflicts_with = "unicast")]
    no_lease: bool,
    /// How to treat messages that no server has: skip tells readers which, block waits for them
    #[arg(long, default_value = "skip", value_parser = words(&["skip", "block"], parse_word::<GapMode>),
          hide_possible_values = true)]
    gap: GapMode,
    /// With --gap skip: how long to ask in vain before messages are given up: of servers that say nothing, or never this
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5s")]
    give_up: Duration,
    /// Begin with this sequence, asking for what went by already [default: with what is heard first]
    #[arg(long, value_name = "SEQUENCE", value_parser = clap::value_parser!(u64).range(1..))]
    first: Option<u64>,
    /// Native lines: give messages the time of their publication (origin) if both hosts' clocks are good enough, or that of
    /// their arrival
    #[arg(long, default_value = "origin", value_parser = words(&["origin", "arrival"], parse_word::<TimeMode>),
          hide_possible_values = true)]
    time: TimeMode,
    /// With --time origin: the most that either clock may be wrong, in microseconds; 0 believes any clock
    #[arg(long, value_name = "US", default_value_t = 1_000)]
    clock_limit_us: u32,
    /// Native lines: the most memory for messages larger than a packet that come before the one that is due
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "32MiB")]
    reassembly: u64,
    /// Size of the ring for a new channel: a power of two from 64KiB to 16GiB [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    capacity: Option<u64>,
    /// Largest message of a new channel [default: what fits an Ethernet frame, or --payload if that is more]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_message: Option<u64>,
    /// Size of the sockets' receive buffers
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4MiB")]
    buffer: u64,
    /// Have the kernel poll the network card for this many microseconds
    #[arg(long, value_name = "US", default_value_t = 0)]
    busy_poll_us: u32,
    #[command(flatten)]
    engine: engine::Servers,
    #[command(flatten)]
    common: Common,
}

impl Args {
    fn spec(&self, channel: String) -> Result<BridgeSpec> {
        let common = &self.common;
        let nats = self.engine.spec()?;
        Ok(BridgeSpec {
            engine: engine::of(&nats),
            nats,
            lines: common.lines(&self.from, &self.source)?,
            session: common.session.clone(),
            profile: common.profile,
            keys: common.keys.clone(),
            auth: common.auth,
            payload_bytes: common.payload_bytes(),
            wait: common.wait,
            cpu: common.cpu,
            busy_poll_us: self.busy_poll_us,
            dscp: common.dscp,
            priority: common.priority,
            receive: Some(ReceiveSpec {
                servers: self.server.clone(),
                unicast: self.unicast,
                lease: !self.no_lease,
                repair_group: self.repair_group,
                gap: self.gap,
                give_up_ms: u64::try_from(self.give_up.as_millis()).unwrap_or(u64::MAX),
                from: self.first,
                time: self.time,
                clock_limit_us: self.clock_limit_us,
                reassembly_bytes: usize::try_from(self.reassembly).unwrap_or(usize::MAX),
                buffer_bytes: usize::try_from(self.buffer).unwrap_or(usize::MAX),
                ..ReceiveSpec::default()
            }),
            ..BridgeSpec::new(channel)
        })
    }

    /// The options for opening the channel. A new channel is for messages that fit a packet, so that it can
    /// be sent on.
    fn publisher(&self, host: &Host, channel: &str) -> PublisherBuilder {
        // The bridge starts once and runs for a long time, so it may take its time at the start.
        let mut publisher = host.publisher(channel).prepare(Preparation::FULL);
        let is_new = host.channel(channel).is_err();
        if let Some(capacity) = self.capacity {
            publisher = publisher.capacity(capacity);
        }
        // A sender of another make may fill an Ethernet frame.
        let most = if fault!("only_our_payloads_fit") { 0 } else { ETHERNET_PAYLOAD_BYTES };
        let datagram = self.common.payload_bytes().max(most);
        let fits = (datagram - HEADER_BYTES - LENGTH_BYTES) as u64;
        match self.max_message {
            // Native packets bring messages of any size that a channel takes.
            None if self.common.profile == Profile::Native || self.engine.is_given() => publisher,
            Some(max_message) => publisher.max_message(max_message),
            None if is_new => publisher.max_message(fits.min(self.capacity.unwrap_or(DEFAULT_CAPACITY) / 8)),
            None => publisher,
        }
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    let (host, channel) = args.host.host_of(&args.channel)?;
    let spec = args.spec(channel)?;
    let publisher = args.publisher(&host, &spec.channel);
    if spec.nats().is_some() {
        args.common.refuse_capture()?;
        return engine::receive(&spec, publisher, (args.common.until_end, args.common.json), &stop);
    }
    let capture = args.common.capture()?;
    let tap = capture.as_ref().map(|capture| capture.tap());
    let options = IngressOptions { tap, ..IngressOptions::default() };
    let mut ingress = Ingress::start(&spec, publisher, options)?;
    let channel = &args.channel;
    tell_refusals(channel, ingress.life());
    let progress = progress();
    let (mut missing, mut dropped) = (Alarm { told: 0 }, Alarm { told: 0 });
    let (mut session, mut stranger) = (None, None);
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
            progress.suspend(|| note!("{channel}: receiving session {now}"));
        }
        // Each one is named once, though it comes and goes.
        if let Some(now) = ingress.life().stranger().filter(|now| stranger != Some(*now)) {
            stranger = Some(now);
            if let Some(trouble) = ingress.trouble() {
                progress.suspend(|| note!("{channel}: {trouble}"));
            }
        }
        progress.set_message(so_far(&counters));
        progress.tick();
        missing.look(&progress, counters.messages_missing, |more| missed(channel, &counters, more));
        let drops = counters.lines.iter().map(|line| line.kernel_drops).sum();
        dropped.look(&progress, drops, |more| {
            format!(
                "{channel}: the kernel dropped at least {} datagrams: raise --buffer, or give the bridge a CPU",
                grouped(more)
            )
        });
    }
    ingress.join();
    progress.finish_and_clear();
    finish(capture)?;
    report(args, &ingress)?;
    outcome(channel, ingress.life(), ingress.counters().messages_missing, interrupted)
}

/// The line that shows how far the bridge is.
fn so_far(counters: &ReceiveCounters) -> String {
    format!(
        "published {} messages, {} repaired, {} missing now, {} for ever",
        grouped(counters.messages_published),
        grouped(counters.recovered_by_servers),
        grouped(counters.horizon.saturating_sub(counters.next_sequence)),
        grouped(counters.messages_missing),
    )
}

/// The alarm for `more` messages that are given up since the last alarm.
fn missed(channel: &str, counters: &ReceiveCounters, more: u64) -> String {
    let hint = match counters.messages_too_large {
        0 => String::new(),
        large => format!(
            "; {} so far are larger than the channel takes: make it with a larger --max-message",
            grouped(large)
        ),
    };
    format!("{channel}: {} messages never reached this host{hint}", grouped(more))
}

fn report(args: &Args, ingress: &Ingress) -> Result<()> {
    let counters = ingress.counters();
    let recovery = Latency::from(&ingress.recovery());
    let to_ring = Latency::from(&ingress.receive_to_ring());
    if args.common.json {
        return print_json(&json!({
            "channel": args.channel,
            "direction": "receive",
            "session": ingress.life().session().map(|session| session.to_string()),
            "refusals": ingress.life().refusals(),
            "wait": ingress.life().waiting(),
            "receive": counters,
            "recovery": recovery,
            "receive_to_ring": to_ring,
        }));
    }
    note!(
        "{}: published {} messages up to sequence {}, {} missing; {} repaired{}{}",
        args.channel,
        grouped(counters.messages_published),
        counters.next_sequence.saturating_sub(1),
        grouped(counters.messages_missing),
        grouped(counters.recovered_by_servers),
        percentiles("repair", &recovery),
        percentiles("receive to ring", &to_ring),
    );
    Ok(())
}

/// The percentiles, or nothing if nothing was measured.
fn percentiles(what: &str, latency: &Latency) -> String {
    let Latency { count, p50_ns, p99_ns, max_ns, .. } = *latency;
    if count == 0 {
        return String::new();
    }
    format!("; {what} p50 {}, p99 {}, max {}", Ns(p50_ns), Ns(p99_ns), Ns(max_ns))
}
