//! Reads the journal of a channel separately from its ring.

use super::origin::Origin;
use super::{Doubt, Outcome, Subscriber};
use crate::journal::{JournalError, Reader};
use crate::message::{Event, RecvError};
use shmcast_layout::layout::stream::StreamId;

/// The journal of a channel. It can be read independently of the ring, on another thread. [`Subscriber::take_journal`] returns it.
#[derive(Debug)]
pub struct ChannelJournal {
    origin: Origin,
    stream: StreamId,
}

impl Subscriber {
    /// Takes the channel's journal, for a program that reads the journal beside the ring, such as one that answers requests for old
    /// messages. From now on this subscriber reads only the ring, as with [`History::Never`](crate::History::Never).
    ///
    /// Returns `None` if [`SubscriberBuilder::history`](crate::SubscriberBuilder::history) gives this subscriber no journal. Also returns
    /// `None` while the subscriber reads the journal or the board. A channel of a daemon can get its journal later: then a later call
    /// returns it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::{History, Subscriber};
    /// let mut live = Subscriber::builder("t").dir(dir.path()).history(History::Never).open()?;
    /// assert!(live.take_journal().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_journal(&mut self) -> Option<ChannelJournal> {
        let stream = self.header().stream;
        self.find_journal();
        let past = self.past.take_if(|_| self.doubt == Doubt::None)?;
        Some(ChannelJournal { origin: past.into_origin(), stream })
    }

    /// Whether the next event comes from the present ring. Otherwise it comes from the journal or from the channel's board, or the
    /// subscriber has yet to find the place at which it begins.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// assert!(subscriber.is_in_ring());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_in_ring(&self) -> bool {
        matches!(self.doubt, Doubt::None | Doubt::Epoch)
    }

    /// Returns the next event if there is one, as [`try_recv`](Self::try_recv) does. With a message from the journal, also returns the
    /// message's wall-clock time, in nanoseconds since 1970; 0 if the message has no time. With any other event, the second value is
    /// `None`. The time of a message from the ring is in ticks of [`clock`](Self::clock).
    ///
    /// The clock of a ring in the journal can be one of an earlier boot, so the journal also records the wall clock each second.
    ///
    /// # Errors
    /// Those of [`try_recv`](Self::try_recv).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// publisher.publish(b"x")?;
    /// let (event, past_ns) = subscriber.try_recv_dated()?.expect("a message");
    /// assert!(matches!(event, shmcast::Event::Message(_)) && past_ns.is_none(), "the ring had it");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_recv_dated(&mut self) -> Result<Option<(Event<'_>, Option<u64>)>, RecvError> {
        self.check_process()?;
        let Some(outcome) = self.poll()? else {
            self.look_for_name_at_end()?;
            return Ok(None);
        };
        let past_ns = match &outcome {
            Outcome::Message(copied) => {
                self.in_past_reader().map(|past| past.wall_ns(copied.time).unwrap_or(0))
            }
            Outcome::Board(..) | Outcome::Other(_) => None,
        };
        Ok(Some((self.lend(outcome), past_ns)))
    }
}

impl ChannelJournal {
    /// Opens a reader whose first entry is at `sequence`, or later, as [`Journal::read_from`](crate::journal::Journal::read_from) does.
    /// Returns `None` if the journal belongs to another stream, if it has no file yet, or if an untrusted user owns its directory.
    ///
    /// Cost: reads from the disk, or sends a request to the daemon and waits for its answer for at most half a second.
    ///
    /// # Errors
    /// [`JournalError`] if there is no journal, or if it cannot be read.
    ///
    /// ```no_run
    /// use shmcast::{Subscriber, journal::Entry};
    /// let mut live = Subscriber::builder("ticks").open()?;
    /// if let Some(journal) = live.take_journal()
    ///     && let Some(mut reader) = journal.read_from(4711)?
    ///     && let Some(Entry::Message(message)) = reader.next()?
    /// {
    ///     println!("{} B", message.payload.len());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_from(&self, sequence: u64) -> Result<Option<Reader>, JournalError> {
        let Some(mut files) = self.origin.files(self.stream)? else { return Ok(None) };
        match files.has_stream(sequence)? {
            true => Reader::open(files, sequence).map(Some),
            false => Ok(None),
        }
    }
}
