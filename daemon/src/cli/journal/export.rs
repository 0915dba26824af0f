//! `shmcast journal export`: writes a journal as packets of a feed. `shmcast replay --unwrap` and network tools can read these packets.

use super::span::{Item, Lacking, Span};
use super::{Source, above, check_above, not_written};
use crate::cli::code_if;
use crate::cli::figures::{grouped, size};
use crate::cli::say::{note, print_json};
use crate::cli::stop::Stop;
use crate::cli::units::parse_address;
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use serde_json::json;
use shmcast::Message;
use shmcast::journal::Entry;
use shmcast_bridge::pcap::PacketFile;
use shmcast_bridge::pcap::unwrap::FAR_MESSAGES;
use shmcast_bridge::proto::session::{Session, tag_of};
use shmcast_bridge::proto::wire::{
    HEADER_BYTES, LENGTH_BYTES, MAX_DATAGRAM_BYTES, PacketWriter, end_of_session, heartbeat,
};
use std::io::{BufWriter, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLE: &str = "\
Examples:
  shmcast journal export /var/lib/shmcast/ticks ticks.pcap --from 09:30 --to 10:00
  shmcast replay ticks.pcap --into again --unwrap

Packets of MoldUDP64 with the times of the messages, as a bridge would have sent them. Tags and key
flags are not in them. Sequences that are missing are left out, and --unwrap makes them a gap. More
than 64,836 at once are announced by heartbeats.

Exit codes: 0 nothing missing, 3 sequences are missing or skipped, 1 error; 130 (Ctrl-C),
143 (SIGTERM) or 129 (SIGHUP) if it came before the end: there is no OUT then.";

/// The size of a packet in bytes. A message that does not fit begins a new packet.
const PACKET_BYTES: usize = 1_400;
/// Longest time between the messages of one packet.
const TOGETHER_NS: u64 = 100_000;
/// Largest message that a packet can carry.
const MAX_MESSAGE: usize = MAX_DATAGRAM_BYTES - HEADER_BYTES - LENGTH_BYTES;
/// The number of heartbeats before a packet that skips many sequences. A receiver ignores a single packet that is more than
/// [`FAR_MESSAGES`] ahead, until other packets confirm it.
const HEARTBEATS: usize = 8;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    #[command(flatten)]
    source: Source,
    /// Capture to write, with nanoseconds; must not be there
    out: PathBuf,
    #[command(flatten)]
    span: Span,
    /// Address and port that the packets go to
    #[arg(value_name = "IP:PORT", default_value = "239.192.0.1:26400", value_parser = parse_address)]
    address: SocketAddr,
    /// Print the sums as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::listen()?;
    let place = || args.out.display().to_string();
    if args.out.is_dir() {
        bail!("{0} is a directory: give the name of a new file in it, as {0}/ticks.pcap", place());
    }
    if args.out.symlink_metadata().is_ok() {
        bail!("{} is there already: remove it, or give another name", place());
    }
    check_above(&args.out)?;
    // The file gets its final name when it is complete. If it is dropped before, it is removed.
    let unfinished = tempfile::Builder::new().prefix(".shmcast-export-").tempfile_in(above(&args.out));
    let mut unfinished = unfinished.with_context(place)?;
    let sums = write(args, unfinished.as_file_mut(), &stop)?;
    unfinished.as_file().sync_all().with_context(place)?;
    unfinished.persist_noclobber(&args.out).with_context(place)?;
    let Lacking { missing, skipped } = sums.lacking;
    if args.json {
        print_json(&json!({
            "pcap": args.out, "messages": sums.messages, "bytes": sums.bytes, "packets": sums.packets,
            "missing": missing, "skipped": skipped, "session": sums.session,
        }))?;
    } else {
        let (messages, packets) = (grouped(sums.messages), grouped(sums.packets));
        let missing = if missing > 0 { format!("; {} are missing", grouped(missing)) } else { String::new() };
        let skipped = sums.lacking.say_skipped();
        let (place, bytes) = (args.out.display(), size(sums.bytes));
        note!("{place}: {messages} messages, {bytes} of payload, in {packets} packets{missing}{skipped}");
    }
    Ok(code_if(sums.lacking.is_any() || sums.lacks_files))
}

#[derive(Debug, Default)]
struct Sums {
    messages: u64,
    bytes: u64,
    packets: u64,
    lacking: Lacking,
    /// Whether files that cannot be read might have messages that are missing.
    lacks_files: bool,
    session: String,
}

fn write(args: &Args, out: &mut std::fs::File, stop: &Stop) -> Result<Sums> {
    let mut part = args.span.open(&args.source)?;
    let session = {
        let journal = args.source.open()?;
        let header = &journal.files().first().context("no file: see `shmcast journal verify`")?.header;
        Session::of_channel(&tag_of(&header.channel), header.epoch)?
    };
    let out = PacketFile::begin(BufWriter::with_capacity(1 << 20, out));
    let lacking = Lacking { missing: part.too_old, skipped: 0 };
    let mut feed = Feed {
        out: out.with_context(|| args.out.display().to_string())?,
        path: &args.out,
        to: args.address,
        session,
        packet: PacketWriter::new(part.due()),
        begun_ns: 0,
        time_ns: 0,
        buffer: vec![0; PACKET_BYTES],
        sums: Sums { lacking, session: session.to_string(), ..Sums::default() },
    };
    let bar = ProgressBar::new_spinner().with_message("exporting");
    while let Some(Item { entry, about_ns, .. }) = part.next()? {
        if stop.is_set() {
            bar.finish_and_clear();
            return Err(not_written(stop, &args.out));
        }
        if let Entry::Message(message) = &entry {
            feed.message(message, about_ns)?;
        }
        entry.missing().into_iter().for_each(|loss| feed.sums.lacking.add(loss));
        if feed.sums.messages.is_multiple_of(4096) {
            bar.tick();
        }
    }
    bar.finish_and_clear();
    feed.sums.lacks_files = part.lacks_files(part.due());
    feed.end(part.due())
}

/// The feed that is written.
struct Feed<'a, W: Write> {
    out: PacketFile<W>,
    /// The name of the file, for errors.
    path: &'a Path,
    to: SocketAddr,
    session: Session,
    packet: PacketWriter,
    /// The time of the packet's first message. The next field has the time of the last message.
    begun_ns: u64,
    time_ns: u64,
    buffer: Vec<u8>,
    sums: Sums,
}

impl<W: Write> Feed<'_, W> {
    fn message(&mut self, message: &Message<'_>, wall_ns: Option<u64>) -> Result<()> {
        let &Message { payload, sequence, .. } = message;
        if payload.len() > MAX_MESSAGE {
            bail!(
                "message {sequence} has {} B, and a packet takes {MAX_MESSAGE}: export what is before and behind it, with --to and --from",
                payload.len()
            );
        }
        self.time_ns = wall_ns.unwrap_or(self.time_ns);
        let is_late = self.time_ns.saturating_sub(self.begun_ns) > TOGETHER_NS;
        if is_late || self.packet.next() != sequence || !self.packet.push(&mut self.buffer, payload) {
            self.flush()?;
            self.begun_ns = self.time_ns;
            self.go_to(sequence)?;
            let needed = HEADER_BYTES + LENGTH_BYTES + payload.len();
            self.buffer.resize(needed.max(PACKET_BYTES), 0);
            self.packet.push(&mut self.buffer, payload);
        }
        self.sums.messages += 1;
        self.sums.bytes += payload.len() as u64;
        Ok(())
    }

    /// Begins a packet with the sequence `sequence`. If the packet skips many sequences, writes heartbeats first, which confirm the new
    /// sequence.
    fn go_to(&mut self, sequence: u64) -> Result<()> {
        if self.sums.packets > 0 && self.has_leapt(sequence) {
            // A receiver learns where the feed begins only from several packets that agree. So heartbeats are added here if the feed has
            // fewer packets so far.
            if self.sums.packets < HEARTBEATS as u64 {
                for _ in 0..HEARTBEATS {
                    self.send(&heartbeat(self.session, self.packet.next()))?;
                }
            }
            for _ in 0..HEARTBEATS {
                self.send(&heartbeat(self.session, sequence))?;
            }
        }
        self.packet = PacketWriter::new(sequence);
        Ok(())
    }

    /// Whether a packet with messages from `sequence` on skips so many sequences that a receiver might ignore the packet.
    fn has_leapt(&self, sequence: u64) -> bool {
        sequence - self.packet.next() > FAR_MESSAGES - (PACKET_BYTES / LENGTH_BYTES) as u64
    }

    /// Writes the packet, if there is a message in it.
    fn flush(&mut self) -> Result<()> {
        if let Some(bytes) = self.packet.finish(&mut self.buffer, self.session) {
            let datagram = std::mem::take(&mut self.buffer);
            self.send(&datagram[..bytes])?;
            self.buffer = datagram;
            self.packet = PacketWriter::new(self.packet.next());
        }
        Ok(())
    }

    fn send(&mut self, datagram: &[u8]) -> Result<()> {
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, self.to.port()));
        let written = self.out.write(self.begun_ns, from, self.to, datagram);
        written.with_context(|| self.path.display().to_string())?;
        self.sums.packets += 1;
        Ok(())
    }

    /// Ends the feed, whose next sequence would be `next`.
    fn end(mut self, next: u64) -> Result<Sums> {
        self.flush()?;
        if self.sums.messages == 0 {
            bail!("there is no message between --from and --to, only gaps");
        }
        self.begun_ns = self.time_ns;
        self.go_to(next)?;
        self.send(&end_of_session(self.session, next))?;
        self.out.finish().with_context(|| self.path.display().to_string())?;
        Ok(self.sums)
    }
}
