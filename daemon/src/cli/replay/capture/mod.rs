//! Publishes the packets of a network capture in a channel.
//!
//! Each UDP payload becomes a message. With `--unwrap`, the packets are taken apart instead, and each message of a MoldUDP64 feed or of a
//! native line becomes a message (`unwrapped`). The capture's time stamps only decide when a message is published. A packet that is not
//! published is counted, with the reason.

mod packets;
mod unwrapped;

use super::Args;
use crate::cli::MISSED;
use crate::cli::figures::grouped;
use crate::cli::pace::Schedule;
use crate::cli::publish::{Interruptible, progress};
use crate::cli::ring::{Counts, Published, close, is_full, memory, wait_for_readers};
use crate::cli::say::{note, print_json};
use crate::cli::stop::Stop;
use anyhow::{Context, Error, Result, bail};
use indicatif::ProgressBar;
use packets::Packets;
use serde_json::{Value, json};
use shmcast::Publisher;
use shmcast_bridge::pcap::{Capture, CaptureCounters, Protocols, Skipped};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use unwrapped::Unwrapped;

/// The limit for protocols that the JSON summary names.
const NAMED_PROTOCOLS: usize = 32;
/// The longest silence of a capture, if the user names none.
const MAX_PAUSE: Duration = Duration::from_secs(2);

pub(super) fn run(args: &Args, stop: &Stop) -> Result<ExitCode> {
    // The file is opened before the channel is made, so that a wrong file name leaves no channel.
    let packets = args.open(stop)?;
    let settings = args.ring.begin()?;
    let (host, channel) = args.host.host_of(&args.into)?;
    let mut publisher = settings.open_for_input(&host, &channel)?;
    publisher.hurry_after(stop.flag());
    wait_for_readers(args.ring.wait_readers, &host, &channel, stop)?;

    let first = publisher.next_sequence();
    let (started, bar) = (Instant::now(), progress());
    let mut done = Counts { messages: 0, bytes: 0, is_complete: false };
    let played = args.play_all(packets, &mut publisher, stop, &bar, &mut done);
    let sums = Published::by(&publisher, first, done, started);
    bar.finish_and_clear();
    let memory = memory(&publisher);
    close(publisher, &played);
    if args.json {
        let capture = played.as_ref().ok().map(Played::json);
        print_json(&sums.json(&channel, json!({ "memory": memory, "capture": capture })))?;
    } else if let Ok(played) = &played {
        played.print();
    } else {
        note!("{}", sums.text("published only", &channel));
    }
    let mut played = played?;
    let place = args.host.unnamed(&host);
    let said = format!("{}, epoch {}{place}", sums.text("published", &channel), sums.epoch);
    sums.end(said, args.json, stop)?;
    match played.failure.take() {
        Some(failure) => Err(failure),
        None if played.has_lost() => Ok(ExitCode::from(MISSED)),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// The result of playing a capture.
struct Played {
    /// Whether the whole file was played before any signal.
    is_complete: bool,
    counters: CaptureCounters,
    protocols: Protocols,
    unwrapped: Option<Unwrapped>,
    shortened: u64,
    max_pause: Duration,
    path: PathBuf,
    /// The reason why the file could not be read to its end.
    failure: Option<Error>,
}

impl Args {
    /// Opens the file, and checks that it is a capture. If it is a pipe, waits for the first bytes. Refuses a pipe that is to be played
    /// several times.
    fn open<'a>(&self, stop: &'a Stop) -> Result<Packets<'a>> {
        let place = || self.recording.display().to_string();
        let input =
            Interruptible::open(&self.recording, stop).with_context(|| format!("open {}", place()))?;
        let is_file = input.file.metadata().with_context(place)?.is_file();
        if self.repeat > 1 && !is_file {
            bail!("{} can be read only once: give --loop a file", place());
        }
        match Capture::open(input, &self.ports) {
            Err(_) if stop.is_set() => Err(stop.interrupted("interrupted before the capture began").into()),
            capture => Ok(Packets::new(capture.with_context(place)?, is_file)),
        }
    }

    /// Publishes a capture `--loop` times. Counts the messages in `done`, so that the counts are also right after an error. Returns the
    /// result of the first time.
    fn play_all(
        &self,
        packets: Packets<'_>,
        publisher: &mut Publisher,
        stop: &Stop,
        progress: &ProgressBar,
        done: &mut Counts,
    ) -> Result<Played> {
        let played = self.play(packets, publisher, stop, progress, done)?;
        for _ in 1..self.repeat {
            if !done.is_complete {
                break;
            }
            self.play(self.open(stop)?, publisher, stop, progress, done)?;
        }
        Ok(played)
    }

    /// Publishes all of a capture once.
    fn play(
        &self,
        mut packets: Packets<'_>,
        publisher: &mut Publisher,
        stop: &Stop,
        progress: &ProgressBar,
        done: &mut Counts,
    ) -> Result<Played> {
        let place = || self.recording.display().to_string();
        done.is_complete = false;
        let max_pause = self.max_pause.unwrap_or(MAX_PAUSE);
        let first_sequence = publisher.next_sequence();
        let mut unwrapped = self.unwrap.map(Unwrapped::new);
        let mut schedule = Schedule::new(stop, self.speed, Some(max_pause));
        let mut all = || -> Result<()> {
            while let Some(packet) = packets.next() {
                if let Some(time_ns) = packet.time_ns {
                    schedule.wait(time_ns);
                }
                if stop.is_set() {
                    packets.put_back(packet);
                    break;
                }
                match &mut unwrapped {
                    Some(unwrapped) => unwrapped.take(&packet.payload, &mut packets.ahead(), publisher)?,
                    None => {
                        publisher.publish(&packet.payload)?;
                        done.messages += 1;
                        done.bytes += packet.payload.len() as u64;
                    }
                }
                packets.recycle(packet);
                progress.set_position(publisher.next_sequence() - first_sequence);
            }
            unwrapped.as_mut().map_or(Ok(()), |unwrapped| unwrapped.finish(publisher))
        };
        let mut published = all().with_context(place);
        if published.as_ref().is_err_and(is_full) && stop.is_set() {
            // A message waited for a gate when the signal came.
            published = Ok(());
        }
        if let Some(unwrapped) = &unwrapped {
            done.messages += unwrapped.messages();
            done.bytes += unwrapped.bytes();
        }
        published?;
        let (counters, protocols, failure) = packets.finish();
        let is_complete = !stop.is_set();
        done.is_complete = is_complete;
        let played = Played {
            is_complete,
            counters,
            protocols,
            unwrapped,
            shortened: schedule.shortened(),
            max_pause,
            path: self.recording.clone(),
            failure: failure.filter(|_| is_complete).map(|e| Error::new(e).context(place())),
        };
        played.check_for_feed()?;
        Ok(played)
    }
}

impl Played {
    /// Fails if the whole file had no UDP datagram, or no session of a feed although the user gave `--unwrap`.
    fn check_for_feed(&self) -> Result<()> {
        if !self.is_complete || self.failure.is_some() {
            return Ok(());
        }
        let place = self.path.display();
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

    /// Whether a part of the capture is lost: packets that could not be read, or messages of the feed that are missing or were left out.
    fn has_lost(&self) -> bool {
        let is_unread = self.counters.cut_off || self.counters.unread() > 0;
        is_unread || self.unwrapped.as_ref().is_some_and(Unwrapped::has_lost)
    }

    /// Prints the result for people.
    fn print(&self) {
        note!("{}: {}", self.path.display(), self.packets());
        if let Some(unwrapped) = &self.unwrapped {
            note!("{}: {}", self.path.display(), unwrapped.describe());
        }
    }

    /// Returns the result for programs.
    fn json(&self) -> Value {
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
