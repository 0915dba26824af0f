//! The thread that reads the journal for retransmissions. No other thread waits for this thread: orders and answers pass through queues.
//! After each answer, the disk thread sends a byte through a socket (the bell), on which the repair thread sleeps.

use shmcast::ChannelJournal;
use shmcast::journal::format::ControlRecord;
use shmcast::journal::{Entry, JournalControl, JournalError, Reader};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel, sync_channel};

use crate::BridgeError;
use crate::proto::replay::{Block, Fetched};
use crate::proto::wire::Meta;
use crate::thread::spawn;

/// The repair thread's handle to the disk thread. When the handle is dropped, the disk thread finishes its present order and ends.
#[derive(Debug)]
pub(super) struct Disk {
    orders: Sender<u64>,
    answers: Receiver<Fetched>,
    bell: UnixDatagram,
}

impl Disk {
    /// Starts the thread. Each order is the first sequence of the block to read.
    pub(super) fn start(journal: Arc<ChannelJournal>) -> Result<Disk, BridgeError> {
        let (bell, other) = UnixDatagram::pair().map_err(BridgeError::Start)?;
        for end in [&bell, &other] {
            end.set_nonblocking(true).map_err(BridgeError::Start)?;
        }
        let mut work = Work { journal, reader: None, has_read: false };
        let mut fetch = move |sequence| {
            work.fetch(sequence).unwrap_or_else(|error| {
                work.reader = None;
                // A journal that existed before can be absent for a moment, for example while its file system is not mounted.
                if is_absence(&error) && !work.has_read { Fetched::Unusable } else { Fetched::Failed }
            })
        };
        // Only one order is under way at a time.
        let ((orders, taken), (answers, told)) = (channel::<u64>(), sync_channel(1));
        let work = move || {
            while let Ok(sequence) = taken.recv() {
                if answers.send(fetch(sequence)).is_err() {
                    return;
                }
                let _ = other.send(&[0]);
            }
        };
        // A read of the disk can take long, and nothing waits for the thread's end.
        drop(spawn("bridge-journal", None, work)?);
        Ok(Disk { orders, answers: told, bell })
    }

    /// Orders the block that begins with `sequence`.
    pub(super) fn order(&self, sequence: u64) {
        // If the disk thread has died, the next answer reports this.
        let _ = self.orders.send(sequence);
    }

    /// Returns the next answer, if there is one.
    pub(super) fn take(&self) -> Option<Fetched> {
        // The bell can ring after its answer was taken.
        let _ = self.bell.recv(&mut [0]);
        match self.answers.try_recv() {
            Ok(fetched) => Some(fetched),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Fetched::Failed),
        }
    }

    /// Returns a descriptor for waiting. It is readable when the disk thread has answered.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The journal and its reader, which the thread uses.
struct Work {
    journal: Arc<ChannelJournal>,
    reader: Option<Reader>,
    /// Whether the journal has been read before.
    has_read: bool,
}

impl Work {
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
        let fetched = read(reader, first)?;
        self.has_read = true;
        Ok(fetched)
    }
}

/// Whether the error means that no journal is there. All other errors mean that the journal cannot be read at the moment.
fn is_absence(error: &JournalError) -> bool {
    match error {
        JournalError::Empty { .. } => true,
        JournalError::Os { source, .. } => source.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// Reads the block that begins with `first`, at the reader's position. If the journal has only later messages, the block is empty, and says
/// how many messages are missing.
fn read(reader: &mut Reader, first: u64) -> Result<Fetched, JournalError> {
    let mut block = Block::new(first);
    if reader.due() > first {
        // The messages up to here were removed by the journal's retention.
        block.lose(reader.due());
        return Ok(Fetched::Block(block));
    }
    let mut is_final = false;
    loop {
        let Some(entry) = reader.next()? else {
            match (block.end() > first, reader.is_recording(), is_final) {
                (true, ..) => break,
                (false, true, _) => return Ok(Fetched::NotYet(first)),
                // The recorder might have written its last frames just before it ended.
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
                block.date(reader.wall_ns(time).unwrap_or(0));
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
