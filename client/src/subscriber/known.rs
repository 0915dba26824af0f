//! The facts that a subscriber knows about itself and its channel. Getting them does not consume events.

use super::hosted::Hosted;
use super::{Doubt, Subscriber};
use crate::clock::Clock;
use shmcast_layout::layout::charter::Verdict;
use shmcast_layout::layout::header::{Header, State};
use shmcast_layout::mem::Step;
use shmcast_layout::ring::locate::Place;
use shmcast_layout::ring::reader::Reader;
use shmcast_layout::segment::Segment;
use std::fmt;
use std::io;

/// A reader of one of the channel's rings, apart from the subscriber.
pub(crate) struct RingAhead {
    pub(crate) reader: Reader,
    /// The longest message of the ring.
    pub(crate) room: usize,
    /// Messages from this sequence on are void.
    pub(crate) below: u64,
}

impl Subscriber {
    /// The sequence of the next message.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// assert_eq!(subscriber.next_sequence(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_sequence(&self) -> u64 {
        self.reader.place().sequence
    }

    /// The first sequence that the channel's present ring can have. It is 1 for a channel that began with this ring. A ring that continues
    /// a channel begins where the previous ring ended.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// assert_eq!(subscriber.first_sequence(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn first_sequence(&self) -> u64 {
        self.segment.first_sequence()
    }

    /// The first sequence that can belong to this channel since it last restarted. If a daemon's channel has moved to another ring since
    /// that restart, the result is 1, because the subscriber does not know the earlier rings.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// assert_eq!(subscriber.first_since_restart(), subscriber.first_sequence());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn first_since_restart(&self) -> u64 {
        let has_moved = |hosted: &Hosted| hosted.generation.generation > hosted.generation.restarted;
        if self.hosted.as_deref().is_some_and(has_moved) { 1 } else { self.first_sequence() }
    }

    /// The number of bytes of the stream before the next record. It is 0 while the subscriber reads the journal or the board, or is about
    /// to read one of them.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// let before = subscriber.position();
    /// publisher.publish(b"x")?;
    /// subscriber.recv()?;
    /// assert_eq!(subscriber.position() - before, 64, "the smallest record");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn position(&self) -> u64 {
        if matches!(self.doubt, Doubt::Past | Doubt::Board | Doubt::Behind) {
            0
        } else {
            self.reader.place().position
        }
    }

    /// The number of messages that are published and not yet received. It can be up to 64 too low.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// publisher.publish_batch(vec![b"x"; 100])?;
    /// assert!(subscriber.lag() <= 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lag(&self) -> u64 {
        self.reader.lag()
    }

    /// Returns further readers of the ring and of the rings in which the channel continues, in their order. The first reader is at this
    /// subscriber's place. They move neither the subscriber nor its gate.
    pub(crate) fn rings_ahead(&mut self) -> Vec<RingAhead> {
        let below_of = |verdict| if let Verdict::Cut { below, .. } = verdict { below } else { u64::MAX };
        let of = |segment: &Segment, place, verdict| RingAhead {
            reader: segment.reader(place),
            room: segment.header().geometry.max_message as usize,
            below: below_of(verdict),
        };
        let mut rings = vec![of(&self.segment, self.reader.place(), self.verdict_on_read())];
        let Some(hosted) = &mut self.hosted else { return rings };
        let charter = hosted.charter.clone();
        for next in hosted.later() {
            next.map();
            let Some((segment, _)) = &next.ready else { break };
            let place = Place { position: 0, sequence: next.generation.first };
            rings.push(of(segment, place, charter.verdict_on_read(next.generation.generation)));
        }
        rings
    }

    /// Whether the next call that receives continues in another ring if this ring has nothing more.
    pub(crate) fn has_ring_ahead(&mut self) -> bool {
        self.hosted.as_mut().is_some_and(|hosted| hosted.look_ahead() && hosted.may_go_on())
    }

    /// The publisher's epoch, as the stream last reported it. After a start or a seek into the middle of the stream it is 0, until the
    /// stream reports an epoch. If a lap skipped the event of a new epoch, the reader gets this event when there is nothing else to
    /// receive.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// assert_eq!(subscriber.epoch(), publisher.epoch());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The publisher's epoch and state in the segment now. The state of a publisher that has died is still [`State::Active`];
    /// [`Directory::channel`](crate::Directory::channel) detects the death.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// use shmcast::State;
    /// publisher.close();
    /// assert_eq!(subscriber.publisher_state(), Some((1, State::Closed)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publisher_state(&self) -> Option<(u64, State)> {
        self.reader.state()
    }

    /// The remote session that this channel carries; `None` if it carries no remote session. While the publisher changes the session, the
    /// result can mix the old and the new session. An event in the stream reports each change.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// publisher.session(*b"SESSION-01")?;
    /// assert_eq!(subscriber.remote_session(), Some(*b"SESSION-01"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remote_session(&self) -> Option<[u8; 10]> {
        self.segment.session()
    }

    /// The clock of the ring that had the last message, for the ages of messages. While this subscriber reads the journal, the ring can be
    /// from an earlier boot. Then the times of its clock have no meaning now. [`try_recv_dated`](Self::try_recv_dated) returns messages
    /// with the wall clock.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// let clock = subscriber.clock();
    /// publisher.publish(b"x")?;
    /// if let shmcast::Event::Message(m) = subscriber.recv()? {
    ///     println!("{} ns", clock.ns_since(m.time));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clock(&self) -> Clock {
        self.in_past().map_or(self.clock, |file| Clock::new(file.ring.clock, file.ring.clock_hz))
    }

    /// Whether the channel was made while the builder waited for it. If so, a subscriber that was to begin with the latest message began
    /// with the first message instead.
    pub(crate) fn came_before_channel(&self) -> bool {
        self.came_before_channel
    }

    /// The header with which the channel was made.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// assert_eq!(subscriber.header().geometry.capacity, 64 << 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn header(&self) -> &Header {
        self.segment.header()
    }

    /// The steps of the memory's preparation, with their results.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// assert!(subscriber.preparation().iter().all(|step| step.result.is_ok()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn preparation(&self) -> &[Step] {
        &self.steps
    }

    /// The reason why tools cannot see this subscriber although its builder requested a [`page`](crate::SubscriberBuilder::page): the file
    /// system was full or read-only, or this user is not allowed to write there. Otherwise `None`. Without the page, the subscriber
    /// receives messages as usual, but `shmcast rm` removes the channel while the subscriber uses it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// if let Some(why) = subscriber.page_refused() {
    ///     eprintln!("tools do not see this reader: {why}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn page_refused(&self) -> Option<&io::Error> {
        self.page_refused.as_ref()
    }

    /// Whether a daemon knows this subscriber now; `None` if the channel is a file. Data flows in any case.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// assert_eq!(subscriber.is_registered(), None, "a file");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_registered(&self) -> Option<bool> {
        self.hosted.as_ref().map(|hosted| hosted.attachment.is_connected())
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Subscriber");
        f.field("channel", &self.header().channel).field("epoch", &self.epoch);
        f.field("next_sequence", &self.next_sequence()).finish_non_exhaustive()
    }
}
