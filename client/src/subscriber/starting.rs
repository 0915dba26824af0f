//! Finds the first message of a reader that begins with the oldest message, or at a certain time. The message is in the ring or in the
//! journal.

use super::{Doubt, Subscriber};
use crate::error::ChannelError;
use crate::journal::{Files, JournalError, Reader};
use shmcast_layout::layout::record::NO_TIME;
use shmcast_layout::ring::locate::{LocateError, Place};
use shmcast_layout::ring::reader::Poll;
use std::time::{SystemTime, UNIX_EPOCH};

/// The message with which a subscriber begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Start {
    /// Start with the next message that is published.
    #[default]
    Latest,
    /// Start with the oldest message in the channel's journal. If there is no journal, start with the oldest message in the ring that is
    /// not about to be overwritten.
    Oldest,
    /// Start with this message. If it has been overwritten and the channel's journal does not have it, the first event is
    /// [`Event::Lapped`](crate::Event::Lapped) with the exact loss.
    Sequence(u64),
    /// Start with the first message, in the order of the stream, that was published at this time of the wall clock or later. The search
    /// goes as far back as the channel's journal and the ring.
    ///
    /// If the clock was set back, messages with earlier times can follow, but no message with this time or a later time is left out. If a
    /// publisher stamps no times, all of its messages are read.
    ///
    /// The journal has the wall clock of each moment. The ring has only the ages of messages, so the message times are computed from the
    /// present wall clock. If the journal and the ring give different places, the earlier place counts.
    Time(SystemTime),
    /// Start with the last key message in the ring or the channel's journal. A key message is, for example, a snapshot that later messages
    /// change.
    ///
    /// - If the key message has been overwritten, and the journal does not have it, the first event is
    ///   [`Event::Lapped`](crate::Event::Lapped) with the exact loss.
    /// - If there has been no key message, this is the same as [`Oldest`](Self::Oldest).
    ///
    /// Cost: if the ring has had no key message yet, the reader searches the journal backwards, with one read for each finished file.
    Key,
    /// Start with the channel's board: the newest message of each key, in the order of their sequences, then
    /// [`Event::Live`](crate::Event::Live), then every later message. However fast the publisher is, no later message is missing, and no
    /// message comes twice. `open` allocates the reader's memory for this.
    ///
    /// Keys that were removed are left out. If the newest message of a key is too large for the board,
    /// [`Event::Lapped`](crate::Event::Lapped) counts it as missed, before `Live`. A channel without a board is an error. Cost: about a
    /// millisecond for 10,000 keys of 256 bytes.
    Board,
}

impl Subscriber {
    /// Begins at the first sequence in the journal, if that is older than everything in the ring.
    pub(super) fn begin_with_oldest(&mut self) -> Result<(), ChannelError> {
        // There are no messages before sequence 1.
        let due = self.next_sequence();
        self.begin_in_past(due, |files| Reader::open(files, 1))
    }

    /// Begins at the place in the journal that `open` finds, if this place is before `oldest`, the first sequence in the ring.
    fn begin_in_past(
        &mut self,
        oldest: u64,
        open: impl Fn(Files) -> Result<Reader, JournalError>,
    ) -> Result<(), ChannelError> {
        let reader = self.open_journal(open)?;
        if let Some(due) = reader.map(|reader| reader.due()).filter(|due| *due < oldest) {
            self.begin_behind(due);
        }
        Ok(())
    }

    fn open_journal(
        &mut self,
        open: impl Fn(Files) -> Result<Reader, JournalError>,
    ) -> Result<Option<Reader>, ChannelError> {
        let stream = self.header().stream;
        let Some(past) = &mut self.past else { return Ok(None) };
        past.open_and_wait(stream, 1, open).map_err(|source| ChannelError::Journal {
            name: self.header().channel.clone(),
            source: Box::new(source),
        })
    }

    /// Returns the sequence of the journal's first message of this time or later. Returns `None` if the journal has no such message.
    fn time_in_journal(&mut self, time_ns: u64) -> Result<Option<u64>, ChannelError> {
        let reader = self.open_journal(|files| Reader::open_at_time(files, time_ns))?;
        Ok(reader.filter(|reader| !reader.is_between_frames()).map(|reader| reader.due()))
    }

    /// Begins at the first message of this time or later. The journal decides which message this is, if the ring does not reach back so
    /// far, or if the clock was set back after that time.
    pub(super) fn begin_at_time(&mut self, time: SystemTime) -> Result<(), ChannelError> {
        let time_ns = since_1970_ns(time);
        let oldest = self.next_sequence();
        let name = self.header().channel.clone();
        let locate = |source| ChannelError::Locate { name, source };
        match self.find_time(time_ns) {
            Ok(found) if found > oldest => match self.time_in_journal(time_ns)?.filter(|due| *due < found) {
                Some(due) if due < oldest => {
                    self.begin_behind(due);
                    Ok(())
                }
                earlier => self.seek(earlier.unwrap_or(found)).map_err(locate),
            },
            Ok(_) => self.begin_in_past(oldest, |files| Reader::open_at_time(files, time_ns)),
            Err(source) => Err(locate(source)),
        }
    }

    /// Begins at the last key message in the journal, if this message is older than everything in the ring. If there is no key message,
    /// begins with the oldest message.
    pub(super) fn begin_with_key(&mut self) -> Result<(), ChannelError> {
        let due = self.next_sequence();
        self.begin_in_past(due, Reader::open_at_last_key)
    }

    fn begin_behind(&mut self, sequence: u64) {
        self.reader.jump(Place::nowhere(sequence));
        (self.behind, self.doubt) = (Some(sequence), Doubt::Behind);
    }

    /// Finds the sequence of the first message of this time or later in the ring. If the oldest message is of this time or later, returns
    /// the oldest sequence.
    fn find_time(&mut self, time_ns: u64) -> Result<u64, LocateError> {
        let age = since_1970_ns(SystemTime::now()).saturating_sub(time_ns);
        let (mut low, mut high) = (self.next_sequence(), self.reader.locator().tail()?.sequence);
        let before = self.reader.place();
        while low < high {
            let middle = low + (high - low) / 2;
            let is_earlier = match self.reader.locator().seek(middle) {
                Ok(place) => {
                    self.reader.jump(place);
                    self.is_older(age)
                }
                Err(LocateError::TooOld { .. }) => true,
                Err(e) => return Err(e),
            };
            if is_earlier { low = middle + 1 } else { high = middle }
        }
        self.reader.jump(before);
        Ok(low)
    }

    /// Whether the next message is older than `age` nanoseconds.
    fn is_older(&mut self, age: u64) -> bool {
        for _ in 0..64 {
            match self.reader.poll(self.buffer.payload_mut()) {
                Poll::Message(copied) => {
                    return copied.time != NO_TIME && self.clock.ns_since(copied.time) > age;
                }
                Poll::Control(_) | Poll::Empty => {}
                Poll::Lapped => return true,
                _ => return false,
            }
        }
        false
    }
}

fn since_1970_ns(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

impl Subscriber {
    /// Continues at message `sequence`, forwards or backwards. In the ring, the call takes O(1). For older messages, the call opens files
    /// of the journal. Skipped messages do not count as missed.
    ///
    /// # Errors
    /// [`LocateError::TooOld`] and [`LocateError::NotYet`] say which sequences are available instead. [`LocateError::Forked`] in a forked
    /// child. After an error, the subscriber keeps its place.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// publisher.publish_batch(["a", "b", "c"])?;
    /// subscriber.seek(3)?;
    /// assert!(matches!(subscriber.recv()?, shmcast::Event::Message(m) if m.payload == b"c"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn seek(&mut self, sequence: u64) -> Result<(), LocateError> {
        // A forked child shares the gate's page with its parent. The page must keep the parent's place.
        self.check_process().map_err(|_| LocateError::Forked)?;
        if !self.seek_ahead(sequence)? {
            match self.reader.locator().seek(sequence) {
                Ok(place) => {
                    self.leave_past();
                    self.leave_board();
                    self.reader.jump(place);
                }
                Err(LocateError::TooOld { .. }) if self.seek_past(sequence) => {}
                Err(e) => return Err(e),
            }
        }
        self.behind = None;
        self.doubt = if self.doubt == Doubt::Past { Doubt::Past } else { Doubt::None };
        self.past.iter_mut().for_each(|past| past.told.clear());
        self.epoch = 0;
        self.began_in = self.reader.state().map_or(0, |(epoch, _)| epoch);
        self.note_passed();
        Ok(())
    }
}
