//! `shmcast pub --pcap`: publishes the packets of a network capture on a channel.
//!
//! Each UDP payload becomes a message. With `--unwrap`, each message of a MoldUDP64 feed or of a native line becomes one (`unwrapped`). The
//! capture's time stamps only decide when a message is published. Each packet is published, or counted with the reason why it was not.

mod packets;
mod unwrapped;

use super::Interruptible;
use crate::cli::figures::grouped;
use crate::cli::pace::{Schedule, Speed};
use crate::cli::say::note;
use crate::cli::stop::Stop;
use crate::cli::units::{parse_duration, words};
use anyhow::{Context, Error, Result, bail};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use shmcast::Publisher;
use shmcast_bridge::pcap::{Capture, CaptureCounters, Protocols, Skipped};
use shmcast_bridge::proto::session::Session;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use unwrapped::Unwrapped;

pub(super) use packets::Packets;

/// How many protocols the summary for programs names.
const NAMED_PROTOCOLS: usize = 32;

#[derive(Debug, clap::Args)]
pub(super) struct CaptureArgs {
    /// Capture to publish, as tcpdump and Wireshark write it, or - for stdin; each UDP payload becomes a message
    #[arg(long, value_name = "FILE", conflicts_with_all = ["input", "framing", "rate"])]
    pcap: Option<PathBuf>,
    /// How fast to play the capture: 1 as it was recorded, 10 ten times as fast, or max
    #[arg(long, value_name = "SPEED", requires = "pcap", default_value = "1", value_parser = words(&["max"], Speed::from_str),
          hide_possible_values = true)]
    speed: Speed,
    /// Shorten each pause in the capture to this time, before --speed counts, because clocks of captures may jump
    #[arg(long, value_name = "TIME", requires = "pcap", default_value = "2s", value_parser = parse_duration)]
    max_pause: Duration,
    /// Publish the messages of a MoldUDP64 feed or a native line, in order and without repetitions; missing messages become gaps
    #[arg(long, requires = "pcap")]
    unwrap: bool,
    /// Publish only this session of the capture [default: the first session, and each session that follows after its end]
    #[arg(long, value_name = "NAME", requires = "unwrap", value_parser = Session::named)]
    session: Option<Session>,
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
    protocols: Protocols,
    unwrapped: Option<Unwrapped>,
    shortened: u64,
    max_pause: Duration,
    path: PathBuf,
    /// Why the file could not be read to its end.
    failure: Option<Error>,
}

impl CaptureArgs {
    /// The file, if one is to be played.
    pub(super) fn file(&self) -> Option<&Path> {
        self.pcap.as_deref()
    }

    /// Opens the file, and checks that it is a capture. Waits for the first bytes of a pipe. A pipe that is to be played several times is
    /// refused.
    pub(super) fn open<'a>(&self, path: &Path, times: u64, stop: &'a Stop) -> Result<Packets<'a>> {
        let place = || format!("--pcap {}", path.display());
        let input = Interruptible::open(path, stop).with_context(|| format!("open {}", place()))?;
        let is_file = input.file.metadata().with_context(place)?.is_file();
        if times > 1 && !is_file {
            bail!("{} can be read only once: give --loop a file", place());
        }
        match Capture::open(input, &self.ports) {
            Err(_) if stop.is_set() => Err(stop.interrupted("interrupted before the capture began").into()),
            capture => Ok(Packets::new(capture.with_context(place)?, is_file)),
        }
    }

    /// Publishes all of a capture.
    pub(super) fn play(
        &self,
        path: &Path,
        mut packets: Packets<'_>,
        publisher: &mut Publisher,
        stop: &Stop,
        progress: &ProgressBar,
    ) -> Result<Played> {
        let place = || format!("--pcap {}", path.display());
        let first_sequence = publisher.next_sequence();
        let mut unwrapped = self.unwrap.then(|| Unwrapped::new(self.session));
        let mut schedule = Schedule::new(stop, self.speed, Some(self.max_pause));
        let (mut published, mut bytes) = (0, 0);
        while let Some(packet) = packets.next() {
            if let Some(time_ns) = packet.time_ns {
                schedule.wait(time_ns);
            }
            if stop.is_set() {
                packets.put_back(packet);
                break;
            }
            match &mut unwrapped {
                Some(unwrapped) => {
                    unwrapped.take(&packet.payload, &mut packets.ahead(), publisher).with_context(place)?;
                }
                None => {
                    publisher.publish(&packet.payload).with_context(place)?;
                    published += 1;
                    bytes += packet.payload.len() as u64;
                }
            }
            packets.recycle(packet);
            progress.set_position(publisher.next_sequence() - first_sequence);
        }
        if let Some(unwrapped) = &mut unwrapped {
            unwrapped.finish(publisher).with_context(place)?;
            (published, bytes) = (unwrapped.messages(), unwrapped.bytes());
        }
        let (counters, protocols, failure) = packets.finish();
        let is_complete = !stop.is_set();
        let played = Played {
            published,
            bytes,
            is_complete,
            counters,
            protocols,
            unwrapped,
            shortened: schedule.shortened(),
            max_pause: self.max_pause,
            path: path.to_owned(),
            failure: failure.filter(|_| is_complete).map(|e| Error::new(e).context(place())),
        };
        played.check_for_feed()?;
        Ok(played)
    }
}

impl Played {
    /// Fails if there was nothing of a feed in the whole file.
    fn check_for_feed(&self) -> Result<()> {
        if !self.is_complete || self.failure.is_some() {
            return Ok(());
        }
        let place = format!("--pcap {}", self.path.display());
        if self.counters.datagrams == 0 {
            bail!("{place}: no UDP datagram to publish: {}; found: {}", self.packets(), self.protocols);
        }
        match &self.unwrapped {
            Some(unwrapped) if !unwrapped.has_feed() => {
                bail!(
                    "{place}: no feed of MoldUDP64 to publish: {}; found: {}; {}",
                    self.packets(),
                    self.protocols,
                    unwrapped.describe()
                )
            }
            _ => Ok(()),
        }
    }

    /// Describes how many packets the file has, how many were left out, and why.
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
        if self.shortened > 0 {
            let times = grouped(self.shortened);
            text += &format!("; {times} silences shortened to {:?} by --max-pause", self.max_pause);
        }
        text
    }

    /// Takes the reason why the file could not be read to its end.
    pub(super) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Whether anything of the capture was lost: packets that could not be read, or messages of the feed that are missing or were left out.
    pub(super) fn has_lost(&self) -> bool {
        let is_unread = self.counters.cut_off || self.counters.unread() > 0;
        is_unread || self.unwrapped.as_ref().is_some_and(Unwrapped::has_lost)
    }

    /// Prints the result for people.
    pub(super) fn print(&self) {
        note!("{}: {}", self.path.display(), self.packets());
        if let Some(unwrapped) = &self.unwrapped {
            note!("{}: {}", self.path.display(), unwrapped.describe());
        }
    }

    /// Returns the result for programs.
    pub(super) fn json(&self) -> Value {
        let counters = &self.counters;
        let of = |reason| counters.skipped(reason);
        let protocols = self.protocols.by_packets().into_iter().take(NAMED_PROTOCOLS);
        let protocols: serde_json::Map<_, _> =
            protocols.map(|(protocol, packets)| (protocol.to_string(), packets.into())).collect();
        json!({
            "packets": counters.packets, "datagrams": counters.datagrams, "cut_off": counters.cut_off,
            "not_udp": of(Skipped::NotUdp), "other_port": of(Skipped::OtherPort),
            "fragments": of(Skipped::Fragment), "truncated": of(Skipped::Truncated),
            "malformed": of(Skipped::Malformed), "unknown_link_type": of(Skipped::LinkType),
            "protocols": protocols, "shortened_pauses": self.shortened,
            "error": self.failure.as_ref().map(|failure| format!("{failure:#}")),
            "has_lost": self.has_lost(),
            "unwrapped": self.unwrapped.as_ref().map(Unwrapped::json),
        })
    }
}
