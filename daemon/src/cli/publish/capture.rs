//! `shmcast pub --pcap`: publishes on a channel what was captured on a network.
//!
//! Each UDP payload becomes a message. When unwrapping, each MoldUDP64 message becomes one. These are put in
//! order by the same receiver that a bridge uses, so copies, disorder and losses of the captured lines have
//! the same result as they would have had then.

use crate::cli::figures::grouped;
use crate::cli::pace::{Pace, Speed};
use crate::cli::say::note;
use crate::cli::stop::Stop;
use crate::cli::units::words;
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use shmcast::Publisher;
use shmcast::hosting::fault;
use shmcast_bridge::pcap::{Capture, CaptureCounters, Datagram, Skipped};
use shmcast_bridge::proto::MILLISECOND_NS;
use shmcast_bridge::proto::control::is_control;
use shmcast_bridge::proto::gap::{GapConfig, GapPolicy};
use shmcast_bridge::proto::receiver::{
    DEFAULT_SILENCE_NS, Delivery, Follow, Origin, Receiver, ReceiverConfig,
};
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::Malformed;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Longest time between the captures of two copies of a message: lines differ, and repairs take a round trip.
const HOLD_NS: u64 = 10 * MILLISECOND_NS;

#[derive(Debug, clap::Args)]
pub(super) struct CaptureArgs {
    /// Capture to publish, as tcpdump and Wireshark write it: each UDP payload a message
    #[arg(long, value_name = "FILE", conflicts_with_all = ["input", "framing", "rate"])]
    pcap: Option<PathBuf>,
    /// How fast to play the capture: 1 as it was recorded, 10 ten times as fast, or max
    #[arg(long, value_name = "SPEED", requires = "pcap", default_value = "1", value_parser = words(&["max"], Speed::from_str),
          hide_possible_values = true)]
    speed: Speed,
    /// Publish the single MoldUDP64 messages, in order, each once, with gaps where some are missing
    #[arg(long, requires = "pcap")]
    unwrap: bool,
    /// Take datagrams to these ports only
    #[arg(long = "port", value_name = "PORT", value_delimiter = ',', requires = "pcap")]
    ports: Vec<u16>,
}

/// The result of playing a capture.
pub(super) struct Played {
    /// Messages published.
    pub(super) published: u64,
    /// Bytes of their payload.
    pub(super) bytes: u64,
    /// Whether the whole file was played before any signal.
    pub(super) is_complete: bool,
    counters: CaptureCounters,
    unwrapped: Option<Unwrapper>,
    path: PathBuf,
}

impl CaptureArgs {
    /// The file, if one is to be played.
    pub(super) fn file(&self) -> Option<&Path> {
        self.pcap.as_deref()
    }

    /// Opens the file, which proves that it is a capture.
    pub(super) fn open(&self, path: &Path) -> Result<Capture<'static>> {
        let file = File::open(path).with_context(|| format!("open --pcap {}", path.display()))?;
        Capture::open(file, &self.ports).with_context(|| format!("--pcap {}", path.display()))
    }

    /// Publishes all of a capture.
    pub(super) fn play(
        &self,
        path: &Path,
        mut capture: Capture<'_>,
        publisher: &mut Publisher,
        stop: &Stop,
        progress: &ProgressBar,
    ) -> Result<Played> {
        let place = || format!("--pcap {}", path.display());
        let first_sequence = publisher.next_sequence();
        let mut unwrapped = self.unwrap.then(Unwrapper::new);
        let pace = Pace::new(stop);
        let mut first_ns = None;
        let (mut published, mut bytes, mut is_complete) = (0, 0, true);
        while let Some(datagram) = capture.read().with_context(place)? {
            let begun_ns = *first_ns.get_or_insert(datagram.time_ns);
            pace.wait_recorded(self.speed, datagram.time_ns.saturating_sub(begun_ns));
            if stop.is_set() {
                is_complete = false;
                break;
            }
            match &mut unwrapped {
                Some(unwrapper) => unwrapper.take(&datagram, publisher).with_context(place)?,
                None => {
                    publisher.publish(datagram.payload).with_context(place)?;
                    published += 1;
                    bytes += datagram.payload.len() as u64;
                }
            }
            progress.set_position(publisher.next_sequence() - first_sequence);
        }
        if let Some(unwrapper) = &mut unwrapped {
            unwrapper.finish(publisher).with_context(place)?;
            (published, bytes) = (unwrapper.receiver.counters().messages_delivered, unwrapper.bytes);
        }
        let played = Played {
            published,
            bytes,
            is_complete,
            counters: *capture.counters(),
            unwrapped,
            path: path.to_owned(),
        };
        if played.counters.datagrams == 0 && is_complete {
            bail!("{}: no UDP datagram to publish: {}", place(), played.packets());
        }
        Ok(played)
    }
}

impl Played {
    /// The packets in the file, the packets that were left out, and the reasons.
    fn packets(&self) -> String {
        let counters = &self.counters;
        let mut text =
            format!("{} packets, {} UDP datagrams", grouped(counters.packets), grouped(counters.datagrams));
        for reason in Skipped::ALL.into_iter().filter(|&reason| counters.skipped(reason) > 0) {
            text += &format!("; left out {}: {reason}", grouped(counters.skipped(reason)));
        }
        if counters.cut_off {
            text += "; the file ends within a packet";
        }
        text
    }

    /// Whether packets of the feed were left out although they are sound.
    pub(super) fn left_out(&self) -> bool {
        let counters = self.unwrapped.as_ref().map(|unwrapper| unwrapper.receiver.counters());
        counters.is_some_and(|counters| counters.packets_implausible > 0)
            && !fault!("far_packets_are_left_out_silently")
    }

    /// Prints the result for people.
    pub(super) fn print(&self) {
        note!("{}: {}", self.path.display(), self.packets());
        if let Some(unwrapper) = &self.unwrapped {
            note!("{}: {}", self.path.display(), unwrapper.describe());
        }
    }

    /// Returns the result for programs.
    pub(super) fn json(&self) -> Value {
        let counters = &self.counters;
        let of = |reason| counters.skipped(reason);
        json!({
            "packets": counters.packets, "datagrams": counters.datagrams, "cut_off": counters.cut_off,
            "not_udp": of(Skipped::NotUdp), "other_port": of(Skipped::OtherPort),
            "fragments": of(Skipped::Fragment), "truncated": of(Skipped::Truncated),
            "malformed": of(Skipped::Malformed), "unknown_link_type": of(Skipped::LinkType),
            "unwrapped": self.unwrapped.as_ref().map(Unwrapper::json),
        })
    }
}

/// A receiver that listens to a file.
struct Unwrapper {
    receiver: Receiver,
    sessions: Vec<Session>,
    /// Number that is added to the feed's sequences; wraps. It is 0 unless the channel already has later
    /// sequences.
    shift: u64,
    bytes: u64,
    controls: u64,
    now_ns: u64,
}

impl Unwrapper {
    fn new() -> Self {
        let gaps = GapConfig {
            hold_ns: HOLD_NS,
            hold_max_ns: HOLD_NS,
            servers: 0,
            policy: GapPolicy::Skip { give_up_ns: 0 },
            ..GapConfig::default()
        };
        let follow = Follow::First { silence_ns: DEFAULT_SILENCE_NS };
        let receiver =
            Receiver::new(ReceiverConfig { gaps, trusts: true, ..ReceiverConfig::following(follow) });
        Self { receiver, sessions: Vec::new(), shift: 0, bytes: 0, controls: 0, now_ns: 0 }
    }

    fn take(&mut self, datagram: &Datagram<'_>, publisher: &mut Publisher) -> Result<()> {
        if is_control(datagram.payload) {
            self.controls += 1;
            return Ok(());
        }
        // Packets of several interfaces are in no strict order in a capture. A receiver's clock never goes
        // back.
        self.now_ns = self.now_ns.max(datagram.time_ns);
        let (now_ns, payload) = (self.now_ns, datagram.payload);
        self.deliver(publisher, |receiver, mut sink| {
            if receiver.next_deadline().is_some_and(|deadline_ns| deadline_ns <= now_ns) {
                receiver.handle_timeout(now_ns, &mut sink);
            }
            receiver.handle_datagram(now_ns, Origin::Line(0), payload, &mut sink);
        })
    }

    /// Ends the capture: missing messages become gaps, and messages that waited for them are published.
    fn finish(&mut self, publisher: &mut Publisher) -> Result<()> {
        while let Some(deadline_ns) = self.receiver.next_deadline() {
            self.now_ns = self.now_ns.max(deadline_ns);
            let now_ns = self.now_ns;
            self.deliver(publisher, |receiver, mut sink| receiver.handle_timeout(now_ns, &mut sink))?;
        }
        Ok(())
    }

    fn deliver(
        &mut self,
        publisher: &mut Publisher,
        handle: impl FnOnce(&mut Receiver, &mut dyn FnMut(Delivery<'_>)),
    ) -> Result<()> {
        let Self { receiver, sessions, shift, bytes, .. } = self;
        let mut failed = None;
        let mut sink = |delivery: Delivery<'_>| match delivery {
            Delivery::NewSession { session, next, .. } => {
                sessions.push(session);
                let told = publisher.session(*session.as_bytes());
                // The messages before the capture are a gap, so that sequences are the feed's own.
                if let Err(e) = told.and_then(|()| publisher.gap(next - 1)) {
                    failed.get_or_insert((next, e));
                }
                *shift = publisher.next_sequence().wrapping_sub(next);
            }
            Delivery::Message { sequence, data, .. } => match publisher.publish(data) {
                Ok(_) => *bytes += data.len() as u64,
                Err(e) => _ = failed.get_or_insert((sequence, e)),
            },
            Delivery::Gap { to, .. } => {
                if let Err(e) = publisher.gap((to - 1).wrapping_add(*shift)) {
                    failed.get_or_insert((to, e));
                }
                *shift = publisher.next_sequence().wrapping_sub(to);
            }
            Delivery::End { .. } => {}
        };
        handle(receiver, &mut sink);
        match failed {
            None => Ok(()),
            Some((sequence, e)) => Err(e).with_context(|| format!("message {sequence} of the feed")),
        }
    }

    fn describe(&self) -> String {
        let counters = self.receiver.counters();
        let sessions: Vec<String> = self.sessions.iter().map(ToString::to_string).collect();
        let mut text = match &sessions[..] {
            [] => "no MoldUDP64 session in it".to_owned(),
            sessions => format!("session {}", sessions.join(", ")),
        };
        text += &format!(": {} messages", grouped(counters.messages_delivered));
        for (count, what) in [
            (counters.messages_duplicate, "copies dropped"),
            (counters.packets_reordered, "packets put in order"),
            (counters.messages_expired, "messages MISSING, a gap to readers"),
            (counters.packets_foreign, "packets of other sessions left out: choose a feed with --port"),
            (counters.packets_implausible, "packets LEFT OUT: their sequences are more than a million ahead"),
            (self.controls, "control datagrams of a bridge"),
        ] {
            if count > 0 {
                text += &format!("; {} {what}", grouped(count));
            }
        }
        for reason in Malformed::ALL.into_iter().filter(|&reason| counters.malformed.of(reason) > 0) {
            let count = grouped(counters.malformed.of(reason));
            text += &format!("; {count} datagrams not MoldUDP64: {reason}");
        }
        if self.shift != 0 {
            let shift = self.shift.cast_signed();
            text +=
                &format!("; sequences of the channel are the feed's {shift:+}, as it had messages before");
        }
        text
    }

    fn json(&self) -> Value {
        let counters = self.receiver.counters();
        json!({
            "sessions": self.sessions.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "messages": counters.messages_delivered, "duplicates": counters.messages_duplicate,
            "reordered_packets": counters.packets_reordered, "missing": counters.messages_expired,
            "other_sessions": counters.packets_foreign, "implausible": counters.packets_implausible,
            "not_moldudp64": counters.malformed.total(), "controls": self.controls,
            "sequence_shift": self.shift.cast_signed(),
        })
    }
}
