//! The beginning of a recording: recovery, the position in the ring, and the first records.

use super::{LAG_ERROR, now};
use crate::by_name::ByName;
use crate::core::{Begin, Packer, Packing, Pool, Recovered, Settings, Writer, recover};
use crate::directory::Directory;
use crate::error::RecordError;
use shmcast::hosting::fault;
use shmcast::journal::format::{Cause, ControlRecord, FileHeader, Loss};
use shmcast::journal::{Entry, Journal, JournalControl, header_of, salt};
use shmcast::{Event, LocateError, Subscriber};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The state with which a recording continues.
pub(super) struct Begun {
    pub(super) directory: Directory,
    pub(super) subscriber: Subscriber,
    pub(super) packer: Packer,
    pub(super) writer: Writer,
    /// Control records that follow the journal's last message. The ring delivers these records again, although the journal has them.
    pub(super) known: Vec<ControlRecord>,
    /// A sequence and an epoch. If the ring has delivered all messages before this sequence without the beginning of this epoch, the
    /// recorder records the epoch itself.
    pub(super) epoch_by: Option<(u64, u64)>,
    pub(super) first: u64,
    pub(super) missing: u64,
}

pub(super) fn begin(
    directory: Directory,
    mut subscriber: Subscriber,
    settings: Settings,
    start: Instant,
) -> Result<Begun, RecordError> {
    let path = directory.path().to_owned();
    let os = |source| RecordError::Os { path: path.clone(), source };
    let mut recovered = recover(&mut ByName::new(&directory))
        .map_err(|source| RecordError::Recover { path: path.clone(), source })?;
    if recovered.last.is_none() {
        recovered.next_number = recovered.next_number.max(directory.first_number());
    }
    let mut epoch = subscriber.publisher_state().map_or(subscriber.epoch(), |(epoch, _)| epoch);
    let is_same_ring = recovered.ring == Some(subscriber.header().uuid);
    let took_over = recovered.last.is_some() && (1..epoch).contains(&recovered.epoch);
    let is_behind = recovered.last.is_some() && is_same_ring && {
        if took_over {
            // A publisher took over while no recorder ran. The subscriber must read the ring's record of this takeover.
            subscriber.go_on_after_epoch(recovered.epoch);
        }
        go_behind(&mut subscriber, recovered.due - 1)
    };
    let last = if recovered.last.is_some() { Last::of(&path, recovered.due)? } else { Last::default() };
    let known = if is_behind { last.controls } else { Vec::new() };
    let loss = if is_behind { None } else { place(&mut subscriber, &recovered, &path)? };
    // The first messages can be from earlier publishers, whose epochs are not known. The ring reports the epoch of each later publisher.
    // The journal records no epoch before such a report.
    let is_new = recovered.last.is_none() && epoch > 1 && subscriber.lag() > 0;
    let waits = is_new || took_over && !is_behind;
    let epoch_by = waits.then(|| (subscriber.next_sequence() + subscriber.lag() + LAG_ERROR, epoch));
    if is_new || took_over {
        epoch = recovered.epoch;
    }
    let due = loss.map_or(subscriber.next_sequence(), |loss| loss.from);
    let header = header(&subscriber, &recovered, due, epoch).map_err(os)?;
    let pool = Pool::default();
    let (now, ticks) = (now(start), subscriber.clock().now());
    let begin = Begin {
        header: Arc::new(header.clone()),
        loss,
        mended: &recovered.mended,
        reserve: recovered.reserve,
        latest_ns: last.latest_ns,
    };
    let mut packer = Packer::begin(Packing::default(), pool.clone(), &begin, now, ticks);
    packer.close();
    let mut writer = Writer::new(settings, header, pool, salt().map_err(os)?);
    while let Some(frame) = packer.take() {
        writer.push(frame);
    }
    let missing = loss.map_or(0, |loss| missing(&loss, &recovered, is_same_ring));
    Ok(Begun { directory, subscriber, packer, writer, known, epoch_by, first: due, missing })
}

/// Moves the subscriber to the message after the journal's last message. Returns the sequences in between that the ring no longer has.
fn place(
    subscriber: &mut Subscriber,
    recovered: &Recovered,
    path: &Path,
) -> Result<Option<Loss>, RecordError> {
    if recovered.last.is_none() {
        // Messages that the ring had overwritten before the recording began are recorded as lost.
        let (from, next) = (subscriber.first_sequence(), subscriber.next_sequence());
        let is_missing = next > from && !fault!("a_recorder_names_no_loss");
        return Ok(is_missing.then(|| Loss { from, to: next - 1, cause: Cause::Unrecorded }));
    }
    let due = recovered.due;
    // Whether the journal's last records come from this ring. If so, the ring continued while no recorder ran.
    let is_known = recovered.ring == Some(subscriber.header().uuid);
    let behind = |channel| RecordError::Behind { path: path.to_owned(), journal: due, channel };
    // The subscriber must not seek here, because a seek would skip the control records before the message.
    if subscriber.next_sequence() == due {
        return Ok(None);
    }
    let first = match subscriber.seek(due) {
        Ok(()) => return Ok(None),
        Err(LocateError::NotYet { next, .. }) if next == due => {
            return Ok(None); // nothing was published since
        }
        Err(LocateError::NotYet { next, .. }) => return Err(behind(next)),
        Err(LocateError::TooOld { .. }) => oldest(subscriber)?,
        Err(other) => return Err(other.into()),
    };
    if first <= due || fault!("a_recorder_names_no_loss") {
        return Ok(None);
    }
    let is_reserve = !is_known && first == recovered.reserve + 1;
    let cause = if is_reserve { Cause::Reserve } else { Cause::Unrecorded };
    Ok(Some(Loss { from: due, to: first - 1, cause }))
}

/// Returns how many sequences of a loss might have been messages. If the ring is new, it began after the journal's reserve. Its sequences
/// up to the reserve were skipped, so they do not count.
fn missing(loss: &Loss, recovered: &Recovered, is_same_ring: bool) -> u64 {
    if loss.cause != Cause::Unrecorded {
        return 0;
    }
    let is_behind_reserve = !is_same_ring && loss.to > recovered.reserve;
    let from = if is_behind_reserve { loss.from.max(recovered.reserve + 1) } else { loss.from };
    loss.to - from + 1
}

/// Moves the subscriber to just after the message `sequence`, or after the gap that ends with this sequence. The subscriber then reads the
/// control records there, which a seek to the following message would skip. Returns false if the ring no longer has the message or the gap.
fn go_behind(subscriber: &mut Subscriber, sequence: u64) -> bool {
    if sequence == 0 || subscriber.seek(sequence).is_err() {
        return false;
    }
    loop {
        match subscriber.try_recv() {
            Ok(Some(Event::Message(message))) => return message.sequence == sequence,
            Ok(Some(Event::Gap { to, .. })) if to >= sequence => return to == sequence,
            Ok(Some(Event::Lapped(_)) | None) | Err(_) => return false,
            // An event before the message: the journal already has it.
            Ok(Some(_)) => {}
        }
    }
}

/// The last records of a journal, as its readers see them.
#[derive(Default)]
struct Last {
    /// The control records after the last message.
    controls: Vec<ControlRecord>,
    /// The latest wall-clock time of a message.
    latest_ns: u64,
}

impl Last {
    /// Reads the last records of the journal. `due` is the sequence of the next message.
    fn of(path: &Path, due: u64) -> Result<Self, RecordError> {
        let journal = Journal::open(path)?;
        // A frame's index time is at least as late as all records of earlier frames. So only the last records must be read to find the
        // latest time.
        let indexed =
            journal.files().iter().filter_map(|file| file.trailer).map(|trailer| trailer.greatest_ns);
        let mut last = Self { controls: Vec::new(), latest_ns: indexed.max().unwrap_or(0) };
        let mut reader = journal.read_from(due.saturating_sub(1))?;
        while let Some(entry) = reader.next()? {
            match entry {
                Entry::Message(message) => {
                    let time = message.time;
                    last.latest_ns = last.latest_ns.max(reader.wall_ns(time).unwrap_or(0));
                }
                Entry::Control { sequence, control: JournalControl::Ring(control), .. }
                    if sequence == due =>
                {
                    last.controls.push(control);
                }
                _ => {}
            }
        }
        Ok(last)
    }
}

/// Moves the subscriber to the oldest message in the ring, and returns the message's sequence. The publisher can overwrite messages during
/// the call.
fn oldest(subscriber: &mut Subscriber) -> Result<u64, RecordError> {
    let mut wanted = 1;
    loop {
        match subscriber.seek(wanted) {
            Ok(()) => return Ok(wanted),
            // The subscriber is already at the oldest message, before its control records. A seek would skip these records.
            Err(LocateError::TooOld { oldest, .. }) if oldest == subscriber.next_sequence() => {
                return Ok(oldest);
            }
            Err(LocateError::TooOld { oldest, .. }) => wanted = oldest,
            Err(LocateError::NotYet { next, .. }) if next <= wanted => return Ok(next),
            Err(other) => return Err(other.into()),
        }
    }
}

fn header(
    subscriber: &Subscriber,
    recovered: &Recovered,
    sequence: u64,
    epoch: u64,
) -> io::Result<FileHeader> {
    Ok(FileHeader {
        file: recovered.next_number,
        sequence,
        epoch,
        previous_salt: recovered.previous.0,
        previous_chain: recovered.previous.1 ^ u32::from(fault!("a_recorder_does_not_chain")),
        ..header_of_ring(subscriber)?
    })
}

/// Returns a file header that describes the subscriber's ring.
pub(super) fn header_of_ring(subscriber: &Subscriber) -> io::Result<FileHeader> {
    let header = header_of(subscriber.header())?;
    header.encode().map_err(io::Error::other)?;
    Ok(header)
}
