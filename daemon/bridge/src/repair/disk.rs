//! The thread that reads the journal for retransmissions. Nobody waits for it: orders and answers go through queues,
//! and it rings a bell that the repair thread sleeps on.

use shmcast::ChannelJournal;
use shmcast::journal::format::ControlRecord;
use shmcast::journal::{Entry, JournalControl, JournalError, Reader};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use crate::BridgeError;
use crate::proto::SECOND_NS;
use crate::proto::replay::{Block, Fetched};
use crate::proto::wire::Meta;
use crate::thread::spawn;
use crate::times::Moment;

/// The repair thread's end. When it is dropped, the thread ends as soon as the disk lets it.
#[derive(Debug)]
pub(super) struct Disk {
    orders: SyncSender<u64>,
    answers: Receiver<Fetched>,
    bell: UnixDatagram,
}

/// The ring that the journal belongs to: its identity, and its clock.
pub(super) type Source = ([u64; 2], shmcast::Clock);

/// How far two times of one message may be apart that mean the same. Ticks of a ring come again after a day.
const SAME_NS: u64 = 12 * 3_600 * SECOND_NS;

/// The thread's end.
struct Work {
    journal: ChannelJournal,
    source: Source,
    reader: Option<Reader>,
    orders: Receiver<u64>,
    answers: SyncSender<Fetched>,
    bell: UnixDatagram,
}

impl Disk {
    /// Starts the thread.
    pub(super) fn start(journal: ChannelJournal, source: Source) -> Result<Disk, BridgeError> {
        let (bell, other) = UnixDatagram::pair().map_err(BridgeError::Start)?;
        for end in [&bell, &other] {
            end.set_nonblocking(true).map_err(BridgeError::Start)?;
        }
        // One order is under way at a time.
        let ((orders, taken), (answers, told)) = (sync_channel(1), sync_channel(1));
        let work = Work { journal, source, reader: None, orders: taken, answers, bell: other };
        // A disk may stand still for long. Nobody waits for the thread's end.
        drop(spawn("bridge-journal", None, move || work.run())?);
        Ok(Disk { orders, answers: told, bell })
    }

    /// Orders the block that begins with `sequence`.
    pub(super) fn order(&self, sequence: u64) {
        // If the thread has died, the next answer says so.
        let _ = self.orders.try_send(sequence);
    }

    /// The answer, if there is one.
    pub(super) fn take(&self) -> Option<Fetched> {
        match self.answers.try_recv() {
            Ok(fetched) => {
                let _ = self.bell.recv(&mut [0]);
                Some(fetched)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Fetched::Failed),
        }
    }

    /// It is readable when there is an answer.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Work {
    fn run(mut self) {
        while let Ok(sequence) = self.orders.recv() {
            let fetched = self.fetch(sequence).unwrap_or_else(|error| {
                self.reader = None;
                if is_absence(&error) { Fetched::Unusable } else { Fetched::Failed }
            });
            if self.answers.send(fetched).is_err() {
                return;
            }
            let _ = self.bell.send(&[0]);
        }
    }

    fn fetch(&mut self, first: u64) -> Result<Fetched, JournalError> {
        let reader = match &mut self.reader {
            Some(reader) => {
                if reader.due() != first {
                    reader.seek(first)?;
                }
                reader
            }
            None => match self.journal.read_from(first)? {
                Some(reader) => self.reader.insert(reader),
                None => return Ok(Fetched::Unusable),
            },
        };
        read(reader, first, self.source)
    }
}

/// Whether there is no journal, rather than one that cannot be read now.
fn is_absence(error: &JournalError) -> bool {
    match error {
        JournalError::Empty { .. } => true,
        JournalError::Os { source, .. } => source.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// Reads the block that begins with `first`, where the reader is, or the oldest message behind it.
fn read(reader: &mut Reader, first: u64, source: Source) -> Result<Fetched, JournalError> {
    let (mut block, moment) = (Block::new(first), Moment::now(source.1));
    if reader.due() > first {
        // Retention took what lies between.
        block.lose(reader.due());
        return Ok(Fetched::Block(block));
    }
    let mut is_final = false;
    loop {
        let Some(entry) = reader.next()? else {
            match (block.end() > first, reader.is_recording(), is_final) {
                (true, ..) => break,
                (false, true, _) => return Ok(Fetched::NotYet(first)),
                // The recorder wrote its last frames before it went.
                (false, false, false) => is_final = true,
                (false, false, true) => return Ok(Fetched::End(first)),
            }
            continue;
        };
        match entry {
            Entry::Message(message) => {
                if message.sequence != block.next() {
                    block.lose(message.sequence);
                    break;
                }
                let (meta, time) = (Meta { tag: message.tag, key: message.key, time_ns: 0 }, message.time);
                let is_full = block.push(message.payload, meta);
                block.date(wall_ns(reader, time, source.0, &moment));
                if is_full {
                    break;
                }
            }
            Entry::Lost(loss) => {
                block.lose(loss.to.saturating_add(1));
                break;
            }
            Entry::Control { control: JournalControl::Ring(ControlRecord::Gap { to, .. }), .. } => {
                block.lose(to.saturating_add(1));
                break;
            }
            _ => {}
        }
    }
    Ok(Fetched::Block(block))
}

/// When a message was published, in nanoseconds since 1970; 0 if that is unknown. The time of a message of the present ring is what
/// it would be if the ring had it still.
fn wall_ns(reader: &Reader, time: u64, ring: [u64; 2], moment: &Moment) -> u64 {
    let recorded = reader.wall_ns(time).unwrap_or(0);
    let own = moment.wall_of(time);
    let is_own = reader.ring().is_some_and(|source| source.uuid == ring);
    if is_own && own.abs_diff(recorded) < SAME_NS { own } else { recorded }
}
