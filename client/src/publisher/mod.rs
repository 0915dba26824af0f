//! The publishing end of a channel.

mod behind;
mod borrowed;
mod builder;
mod claim;
mod files;
mod gated;
mod known;
mod prepared;
pub(crate) mod required;

use crate::attach::keeper::Attachment;
use crate::clock::Clock;
use crate::directory::Place;
use crate::error::PublishError;
use crate::gate::{Gates, Patience};
use crate::lock::Held;
use prepared::Prepared;
use shmcast_layout::board::BoardWriter;
use shmcast_layout::charter::Charter;
use shmcast_layout::error::TooLarge;
use shmcast_layout::layout::charter::Verdict;
use shmcast_layout::layout::record::NO_TIME;
use shmcast_layout::ring::writer::Writer;
use shmcast_layout::segment::Segment;
use std::fmt;
use std::ops::Range;

pub use builder::{DEFAULT_CAPACITY, PublisherBuilder};
pub use claim::Claim;

/// Number of bytes that are touched at the start of a new message buffer, so that writing there causes no page fault.
pub(crate) const TOUCHED_BYTES: usize = 64 << 10;

/// Publishes messages into a channel: one publisher a channel, any number of readers.
///
/// Without gates, no call of a publisher waits. `publish` makes a few dozen stores to memory that readers poll. It makes no system call,
/// takes no lock and allocates nothing. It costs the same for one reader and for a hundred.
///
/// Readers that cannot keep up are lapped, and learn how many messages they missed. A [`Gate`](crate::Gate) lets the publisher wait for one
/// reader, within a limit.
///
/// Dropping a publisher closes the channel, except while the thread panics. After a panic, readers get no end, and the next publisher takes
/// over as after a crash.
///
/// After a `fork` the publisher belongs to the parent. The child's copy publishes nothing and returns [`PublishError::Forked`]. Dropping
/// the copy does not close the channel. If the parent ends, the channel is free for another publisher, even if children of the parent live.
///
/// A program that forks itself into the background must open its publishers after the fork.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use shmcast::{Event, Publisher, Start, Subscriber};
/// let mut publisher = Publisher::builder("ticks").dir(dir.path()).capacity(1 << 20).open()?;
/// let mut subscriber = Subscriber::builder("ticks").dir(dir.path()).open()?;
/// publisher.publish(b"bid 100.25")?;
/// publisher.close();
/// assert!(matches!(subscriber.recv()?, Event::Message(m) if m.payload == b"bid 100.25"));
/// assert_eq!(subscriber.recv()?, Event::End);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Publisher {
    writer: Writer,
    clock: Clock,
    stamps: Stamps,
    segment: Segment,
    /// The buffer for claimed messages. The program writes the payload here, and the commit copies it into the ring in one burst.
    staging: Box<[u8]>,
    prepared: Prepared,
    /// Whether the channel was closed when this publisher opened it.
    follows_end: bool,
    /// Whether the stream stays open, without a record of its end, when the publisher is dropped.
    stays_open: bool,
    /// The writer lock. It is held until the writer is dropped. If this process dies, the kernel releases the lock.
    lock: Held,
    /// The place of the segment's file, and its device and inode; `None` if a daemon owns the channel.
    place: Option<(Place, (u64, u64))>,
    /// The attachment to the daemon, if a daemon owns the channel.
    hosted: Option<Hosted>,
    /// The readers that this publisher waits for, if the channel has gates.
    gates: Option<Box<Gates>>,
    /// The board, on which each message is stored in addition to the ring; `None` if the channel has no board.
    board: Option<Box<BoardWriter>>,
}

/// A publisher's attachment to a daemon.
struct Hosted {
    attachment: Attachment,
    charter: Charter,
    /// The generation into which this publisher publishes.
    generation: u64,
}

impl Hosted {
    #[inline]
    fn is_cut_off(&self) -> bool {
        let verdict = self.charter.verdict(self.generation);
        matches!(verdict, Verdict::Cut { .. }) || self.attachment.is_cut_off()
    }
}

#[inline]
fn is_cut_off(hosted: &Option<Hosted>) -> bool {
    hosted.as_ref().is_some_and(Hosted::is_cut_off)
}

/// The properties of a message besides its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark {
    /// A number for the publisher's own use, such as a message type. Every reader gets it.
    pub tag: u16,
    /// Whether a reader can start from this message without the messages before it, as from a snapshot.
    pub key: bool,
}

/// Chooses which messages carry the time of their publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Stamps {
    /// Every message. The publisher reads the clock for each message, or once for a batch.
    #[default]
    Each,
    /// Only messages of [`Publisher::publish_at`] have a time, which the caller gives. For all other messages, the publisher does not read
    /// the clock, and readers do not know the latency. This saves 8 to 10 ns, about half of the time that a message of 32 B takes at full
    /// rate.
    Given,
}

impl Stamps {
    #[inline(always)]
    fn stamp(self, clock: Clock) -> u64 {
        match self {
            Self::Each => clock.now(),
            Self::Given => NO_TIME,
        }
    }
}

impl Publisher {
    /// Begins to open channel `name` for publishing.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let mut publisher = shmcast::Publisher::builder("ticks").dir(dir.path()).capacity(1 << 20).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(name: impl Into<String>) -> PublisherBuilder {
        PublisherBuilder::new(name.into())
    }

    /// Publishes one message and returns its sequence.
    ///
    /// Cost: about one store a word, or 50 to 100 ns for 64 bytes while readers poll on other cores. The call is wait-free without gates.
    /// If a gate's reader is too far behind, the call waits for at most the gate's longest wait.
    ///
    /// # Errors
    /// [`PublishError::TooLarge`] when the payload exceeds [`max_message`](Self::max_message), [`PublishError::CutOff`] once a daemon
    /// has given the channel to another publisher, and [`PublishError::Full`] after the wait for a gate that refuses. After an error
    /// nothing was published.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// assert_eq!(publisher.publish(b"bid 100.25")?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn publish(&mut self, payload: &[u8]) -> Result<u64, PublishError> {
        self.publish_with(payload, Mark::default())
    }

    /// Does the same as [`publish`](Self::publish), with a tag or as a key message.
    ///
    /// # Errors
    /// [`PublishError`]. After an error nothing was published.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::Mark;
    /// let sequence = publisher.publish_with(b"whole book", Mark { key: true, ..Mark::default() })?;
    /// assert_eq!(sequence, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn publish_with(&mut self, payload: &[u8], mark: Mark) -> Result<u64, PublishError> {
        self.publish_now(payload, mark, Patience::Waits)
    }

    /// Does the same as [`publish_with`](Self::publish_with), with a time that the caller has read from [`clock`](Self::clock), such as the
    /// time of the event that the message reports. This saves some 8 ns. Readers get the low 48 bits of the time, and count latencies from
    /// it.
    ///
    /// # Errors
    /// The same as for [`publish`](Self::publish).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// use shmcast::{Event, Mark};
    /// let arrived = publisher.clock().now();
    /// publisher.publish_at(b"tick", Mark::default(), arrived)?;
    /// assert!(matches!(subscriber.recv()?, Event::Message(m) if m.time == arrived & ((1 << 48) - 1)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn publish_at(&mut self, payload: &[u8], mark: Mark, time: u64) -> Result<u64, PublishError> {
        self.check_usable()?;
        self.publish_timed(payload, mark, time, Patience::Waits)
    }

    /// Publishes several messages with one time stamp and returns their sequences. This saves reading the clock for each message.
    ///
    /// # Errors
    /// [`PublishError`] at the first payload that is too large, or that a gate refuses. Only the payloads before it are published.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// assert_eq!(publisher.publish_batch(["a", "b", "c"])?, 1..4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publish_batch<P: AsRef<[u8]>>(
        &mut self,
        payloads: impl IntoIterator<Item = P>,
    ) -> Result<Range<u64>, PublishError> {
        self.publish_batch_with(payloads, Mark::default())
    }

    /// Does the same as [`publish_batch`](Self::publish_batch), with the same mark on each message.
    ///
    /// # Errors
    /// The same as for [`publish_batch`](Self::publish_batch).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::Mark;
    /// assert_eq!(publisher.publish_batch_with(["a", "b"], Mark { tag: 7, key: false })?, 1..3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publish_batch_with<P: AsRef<[u8]>>(
        &mut self,
        payloads: impl IntoIterator<Item = P>,
        mark: Mark,
    ) -> Result<Range<u64>, PublishError> {
        self.check_usable()?;
        let time = self.stamps.stamp(self.clock);
        let first = self.writer.next_sequence();
        for payload in payloads {
            self.publish_timed(payload.as_ref(), mark, time, Patience::Waits)?;
        }
        Ok(first..self.writer.next_sequence())
    }

    /// Lends `length` bytes into which the caller writes a message, for serializers that need memory to write to. Nothing is published
    /// before [`Claim::commit`], and a dropped claim has no effect.
    ///
    /// The bytes are not cleared: they can have the contents of earlier claims of this publisher. Cost: the commit copies the payload into
    /// the ring.
    ///
    /// # Errors
    /// [`PublishError`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// let mut claim = publisher.claim(100)?;
    /// claim[..5].copy_from_slice(b"hello");
    /// claim.commit(5)?;
    /// publisher.claim(100)?.abort();
    /// assert_eq!(publisher.next_sequence(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn claim(&mut self, length: usize) -> Result<Claim<'_>, PublishError> {
        self.check_usable()?;
        let max_message = self.max_message() as u64;
        if length as u64 > max_message {
            return Err(TooLarge { length: length as u64, max_message }.into());
        }
        Ok(Claim { publisher: self, length, mark: Mark::default() })
    }

    /// Publishes one message whose payload consists of several pieces, as `writev` does. Cost: one more copy in the cache than
    /// [`publish`](Self::publish), as for a [`claim`](Self::claim).
    ///
    /// # Errors
    /// [`PublishError`]. After an error nothing was published.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// use shmcast::{Event, Mark};
    /// publisher.publish_vectored(&[b"price ", b"4200"], Mark::default())?;
    /// assert!(matches!(subscriber.recv()?, Event::Message(m) if m.payload == b"price 4200"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publish_vectored(&mut self, pieces: &[&[u8]], mark: Mark) -> Result<u64, PublishError> {
        let length = pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len()));
        let mut claim = self.claim(length)?;
        let mut rest = &mut claim[..];
        for piece in pieces {
            let (place, behind) = rest.split_at_mut(piece.len());
            place.copy_from_slice(piece);
            rest = behind;
        }
        claim.mark(mark).commit(length)
    }

    /// Whether a daemon has given the channel to another publisher. If so, no reader receives what this publisher publishes. Costs two
    /// loads. Always false if the channel is a file.
    ///
    /// If a message was being published when the channel was given away, it might have reached no reader. The next publisher's sequences
    /// continue after the last message that readers receive from this publisher.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// assert!(!publisher.is_cut_off());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn is_cut_off(&self) -> bool {
        is_cut_off(&self.hosted)
    }

    #[inline]
    fn check_usable(&self) -> Result<(), PublishError> {
        if self.is_cut_off() {
            return Err(PublishError::CutOff);
        }
        if self.lock.is_copied() { Err(PublishError::Forked) } else { Ok(()) }
    }

    /// Closes the channel. Readers get everything published so far, and then the end of the stream. Dropping the publisher does the same.
    ///
    /// If the reader of a gate with [`Then::Refuse`](crate::Then::Refuse) is so far behind that the ring has no room for the end, this call
    /// first waits as the gate says. If there is still no room, the channel stays open, as after [`leave_open`](Self::leave_open).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// publisher.publish(b"the last")?;
    /// publisher.close();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(self) {}

    /// Leaves the channel to the next publisher without an end of the stream. Readers wait as after a crash.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let open = || shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open();
    /// let mut first = open()?;
    /// first.publish(b"a")?;
    /// first.leave_open();
    /// assert_eq!(open()?.publish(b"b")?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn leave_open(mut self) {
        self.stays_open = true;
    }

    /// Announces to readers that the messages from the next one up to and including `last` will never be published. The next message gets
    /// sequence `last + 1`. Use it in a program that copies a numbered stream from elsewhere into a channel. Does nothing when `last` is
    /// below the next sequence.
    ///
    /// # Errors
    /// - [`PublishError::OutOfSequences`] when `last` is [`MAX_SEQUENCE`](crate::MAX_SEQUENCE) or more.
    /// - [`PublishError::CutOff`].
    /// - [`PublishError::Full`] when this call has waited for a gate with [`Then::Refuse`](crate::Then::Refuse), and the announcement might
    ///   still overwrite messages that the gate's reader has not read.
    ///
    /// After an error nothing was announced.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// publisher.gap(99)?;
    /// assert_eq!(publisher.publish(b"the hundredth")?, 100);
    /// assert!(publisher.gap(u64::MAX).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gap(&mut self, last: u64) -> Result<(), PublishError> {
        self.check_usable()?;
        // A call that announces nothing needs no room.
        if last >= self.next_sequence() {
            self.make_way_for_control(Patience::Insists)?;
        }
        self.writer.gap(last, self.clock.now())?;
        if let Some(board) = &mut self.board {
            board.skip_to(last);
        }
        Ok(())
    }

    /// Announces to readers that the remote publisher behind this channel began a new session.
    ///
    /// # Errors
    /// [`PublishError::CutOff`], and [`PublishError::Full`] as for [`gap`](Self::gap). After an error nothing was announced.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// publisher.session(*b"SESSION-01")?;
    /// assert_eq!(publisher.remote_session(), Some(*b"SESSION-01"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn session(&mut self, identity: [u8; 10]) -> Result<(), PublishError> {
        self.check_usable()?;
        self.make_way_for_control(Patience::Insists)?;
        self.writer.session(identity, self.clock.now());
        Ok(())
    }

    /// Checks, without waiting, whether a gate holds up the next [`gap`](Self::gap), [`session`](Self::session) or [`close`](Self::close).
    /// After `Ok`, the next of these calls does not wait for a gate.
    ///
    /// A program that must not wait calls this function first, and tries again later after an error. A gate with
    /// [`Then::Drop`](crate::Then::Drop) is dropped as in [`try_publish`](Self::try_publish).
    ///
    /// # Errors
    /// [`PublishError::Full`] when the reader of a gate is too far behind; [`PublishError::CutOff`] when a gate holds up the call and a daemon
    /// has given the channel to another publisher.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// publisher.try_make_way()?;
    /// publisher.gap(99)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_make_way(&mut self) -> Result<(), PublishError> {
        self.make_way_for_control(Patience::Never)
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Publisher");
        f.field("channel", &self.header().channel).field("epoch", &self.epoch());
        f.field("next_sequence", &self.next_sequence()).finish_non_exhaustive()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if !self.stays_open && !self.lock.is_a_childs() && !std::thread::panicking() {
            // If the ring has no room for the record of the end, the stream stays open, because the record would overwrite messages that a
            // gate's reader has not read.
            if self.make_way_for_control(Patience::Ends).is_ok() {
                self.writer.close(self.clock.now());
            }
        }
    }
}
