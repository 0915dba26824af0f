//! The thread that reads the journal for retransmissions. No other thread waits for this thread: orders and answers pass through queues.
//! After each answer, the disk thread sends a byte through a socket (the bell), on which the repair thread sleeps.

use shmcast::ChannelJournal;
use shmcast::journal::{Entry, JournalError, Reader};
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
        let mut work = Work { journal, reader: None };
        let mut fetch = move |sequence| {
            work.fetch(sequence).unwrap_or_else(|_| {
                work.reader = None;
                // The error can be temporary, for example because the journal's file system is not mounted. So the next order opens another
                // reader.
                Fetched::Failed
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
        // The handle is dropped, because nothing waits for the thread's end: a read of the disk can take long.
        drop(spawn("bridge-journal", None, work)?);
        Ok(Disk { orders, answers: told, bell })
    }

    /// Orders the disk thread to read the block that begins with `sequence`.
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
        read(reader, first)
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
                // The recorder might have written its last frames just before it ended, so read once more.
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
            entry => {
                if let Some(loss) = entry.missing() {
                    block.lose(loss.to.saturating_add(1));
                    break;
                }
            }
        }
    }
    Ok(Fetched::Block(block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmcast::{History, Publisher, Subscriber};
    use shmcast_testkit::wait_for;

    /// An earlier mistake: if the journal's directory was missing at the first request, all messages of the journal counted as gone at
    /// once.
    #[test]
    fn a_journal_that_is_away_at_the_first_request_is_not_gone() {
        let dir = tempfile::tempdir().unwrap();
        let _publisher = Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open().unwrap();
        let history = History::DirIfThere(dir.path().join("away"));
        let mut live = Subscriber::builder("t").dir(dir.path()).history(history).open().unwrap();
        let disk = Disk::start(Arc::new(live.take_journal().unwrap())).unwrap();
        disk.order(1);
        let fetched = wait_for("an answer", || disk.take());
        assert!(matches!(fetched, Fetched::Failed), "{fetched:?}");
    }
}
