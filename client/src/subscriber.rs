//! The receiving end of a channel.

use crate::clock::Clock;
use crate::connect::{Client, Conversation};
use crate::directory::{ChannelFiles, Directory, is_absent, open_plain, unique};
use crate::error::ChannelError;
use crate::keeper::Attachment;
use crate::lock;
use crate::message::{Event, Lapped, Message, RecvError};
use crate::park::{self, ALONE, LONGEST_NAP, Parking};
use crate::publisher::TOUCHED_BYTES;
use crate::wait::{BURST, BURST_PAUSE, Wait, Waiter};
use shmcast_layout::control::Request;
use shmcast_layout::layout::geometry::{GRANULE, record_bytes};
use shmcast_layout::layout::header::{FIRST_SEQUENCE, GENERATION, Header, State};
use shmcast_layout::layout::record::Control;
use shmcast_layout::mem::{Preparation, Step};
use shmcast_layout::reader_page::ReaderPage;
use shmcast_layout::ring::locate::{LocateError, Place};
use shmcast_layout::ring::reader::{Poll, Reader};
use shmcast_layout::segment::{Access, Segment};
use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

pub use shmcast_layout::ring::reader::Resume;

/// Where a subscriber begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// With the next message published.
    #[default]
    Latest,
    /// With the oldest message that is still safe in the ring.
    Oldest,
    /// With this message. If it has been overwritten, the first event is [`Event::Lapped`] with the exact loss.
    Sequence(u64),
}

/// Receives a channel's messages, in order, each once.
///
/// Reads through a map that the kernel lets nobody write through; neither the publisher nor other readers can notice
/// it. Receiving makes no system call unless the wait strategy does, takes no lock and allocates nothing.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use shmcast::{Event, Publisher, Start, Subscriber, Wait};
/// let mut publisher = Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
/// publisher.publish(b"one")?;
/// let mut subscriber =
///     Subscriber::builder("t").dir(dir.path()).start(Start::Oldest).wait(Wait::Spin).open()?;
/// match subscriber.recv()? {
///     Event::Message(m) => assert_eq!((m.payload, m.sequence), (&b"one"[..], 1)),
///     other => panic!("{other:?}"),
/// }
/// assert_eq!(subscriber.try_recv()?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Subscriber {
    reader: Reader,
    clock: Clock,
    wait: Wait,
    /// The sequence at the last empty poll of a wait, for [`Wait::Burst`].
    caught_up_at: u64,
    resume: Resume,
    /// The publisher's incarnation as last told.
    epoch: u64,
    /// The incarnation at the time of the last start or seek: no news, whatever a lap hides.
    began_in: u64,
    /// Whether a lap may have hidden that another publisher took over.
    is_epoch_in_doubt: bool,
    /// The sequence to begin with, if it lies before all that is left of a segment that continues another: nothing in
    /// the ring tells of that loss.
    behind: Option<u64>,
    buffer: Box<[Line]>,
    page: Option<Page>,
    record_latency: bool,
    segment: Segment,
    steps: Vec<Step>,
    /// Our place at the daemon's table, where a daemon owns the channel.
    attachment: Option<Attachment>,
    /// Which of a strict channel's segments this is; 0 for a channel that keeps one.
    generation: u64,
    /// Where the channel goes on, once everything here has been read.
    next_segment: Option<File>,
    /// What it takes to sleep and be woken, for one opened with [`Wait::Park`].
    parking: Option<Parking>,
}

/// Keeps payloads on a 64-byte boundary, so that fixed-layout messages can be read in place.
#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// This subscriber's page, shown to tools under a name for as long as it lives.
#[derive(Debug)]
struct Page {
    page: ReaderPage,
    /// Where it is shown, and the lock that says that this reader lives. A daemon's page needs neither.
    shown: Option<(PathBuf, File)>,
}

impl Drop for Page {
    fn drop(&mut self) {
        // A page that cannot be removed is swept by the next who lists the readers: its lock is gone.
        if let Some((path, _)) = &self.shown {
            let _ = fs::remove_file(path);
        }
    }
}

/// What to do when there is nothing to receive.
enum Rest {
    /// There is something.
    Found(Outcome),
    /// Look again.
    None,
    /// Sleep a little: nobody will ring.
    Pause,
    /// Sleep until the bell rings.
    Nap,
}

/// An event without its payload: what is known before the buffer is lent out.
enum Outcome {
    /// The message's length, and all of it but the payload.
    Message(usize, Message<'static>),
    Other(Event<'static>),
}

impl Outcome {
    #[inline]
    fn into_event(self, buffer: &[u8]) -> Event<'_> {
        match self {
            Self::Message(length, message) => {
                Event::Message(Message { payload: &buffer[..length], ..message })
            }
            Self::Other(event) => event,
        }
    }
}

impl Subscriber {
    /// Begins to subscribe to channel `name`.
    pub fn builder(name: impl Into<String>) -> SubscriberBuilder {
        SubscriberBuilder {
            name: name.into(),
            directory: Directory::default(),
            client: None,
            start: Start::default(),
            wait: Wait::default(),
            resume: Resume::default(),
            preparation: Preparation { prefault: true, ..Preparation::NONE },
            page: true,
            record_latency: false,
            wait_for_channel: None,
            schema_id: None,
            longest_nap: LONGEST_NAP,
        }
    }

    /// Waits for the next event and returns it; messages are copied into a buffer that this subscriber owns.
    ///
    /// Blocks, by the wait strategy, for as long as nothing comes: the end of a stream is an event, and so is a new
    /// publisher. A publisher that dies says nothing: see [`publisher_state`](Self::publisher_state).
    ///
    /// # Errors
    /// [`RecvError`]; only the [`TooSmall`](RecvError::TooSmall) of the `_into` variant is worth another try.
    pub fn recv(&mut self) -> Result<Event<'_>, RecvError> {
        let event = self.recv_until(None)?;
        Ok(event.expect("waiting without a deadline ends with an event"))
    }

    /// As [`recv`](Self::recv), in an event loop: other tasks run until something comes. To be opened with
    /// [`Wait::Park`], so that the daemon's waker rings; with any other strategy, and on channels that are files, this
    /// looks every millisecond.
    ///
    /// Cancel-safe: a future that is dropped before it is ready has received nothing. A stream that always has more
    /// gives way to other tasks now and then. Cost when something is there: as [`try_recv`](Self::try_recv), and no
    /// system call; before a sleep, a few.
    ///
    /// # Errors
    /// [`RecvError`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with both I/O and time enabled, if it has to wait.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use shmcast::{Client, Event, Subscriber, Wait};
    /// let client = Client::connect()?;
    /// let mut ticks = Subscriber::builder("ticks").client(&client).wait(Wait::Park).open()?;
    /// loop {
    ///     tokio::select! {
    ///         event = ticks.recv_async() => match event? {
    ///             Event::Message(m) => println!("{}: {} B", m.sequence, m.payload.len()),
    ///             Event::End => return Ok(()),
    ///             other => eprintln!("{other:?}"),
    ///         },
    ///         _ = tokio::time::sleep(std::time::Duration::from_secs(1)) => println!("a quiet second"),
    ///     }
    /// }
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn recv_async(&mut self) -> Result<Event<'_>, RecvError> {
        tokio::task::coop::consume_budget().await;
        let outcome = loop {
            if let Some(outcome) = self.poll()? {
                break outcome;
            }
            match self.rest()? {
                Rest::Found(outcome) => break outcome,
                Rest::None => {}
                Rest::Pause => tokio::time::sleep(ALONE).await,
                Rest::Nap => self.parking.as_ref().expect("naps are for those who park").nap().await,
            }
        };
        Ok(self.lend(outcome))
    }

    /// As [`recv`](Self::recv), but `None` when nothing came before `deadline`.
    ///
    /// # Errors
    /// [`RecvError`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// use std::time::{Duration, Instant};
    /// assert_eq!(subscriber.recv_deadline(Instant::now() + Duration::from_millis(5))?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<Option<Event<'_>>, RecvError> {
        self.recv_until(Some(deadline))
    }

    #[inline(always)]
    fn recv_until(&mut self, deadline: Option<Instant>) -> Result<Option<Event<'_>>, RecvError> {
        let poll = self.reader.poll(self.buffer.as_mut_bytes());
        if let Poll::Message { length, sequence, tag, key, time } = poll
            && self.generation == 0
        {
            return Ok(Some(self.receive(length, sequence, tag, key, time)));
        }
        let outcome = match self.take(poll, self.buffer.as_bytes().len())? {
            None => self.wait_for(deadline)?,
            outcome => outcome,
        };
        Ok(outcome.map(|outcome| self.lend(outcome)))
    }

    /// The next event if there is one. Never waits.
    ///
    /// Cost when nothing is there: one load of a line in this core's cache.
    ///
    /// # Errors
    /// [`RecvError`].
    #[inline(always)]
    pub fn try_recv(&mut self) -> Result<Option<Event<'_>>, RecvError> {
        let poll = self.reader.poll(self.buffer.as_mut_bytes());
        // The two common answers go straight to the caller, without a detour through memory.
        match poll {
            Poll::Empty if self.attachment.is_none() && !self.is_epoch_in_doubt => Ok(None),
            Poll::Message { length, sequence, tag, key, time } if self.generation == 0 => {
                Ok(Some(self.receive(length, sequence, tag, key, time)))
            }
            poll => {
                let outcome = self.take(poll, self.buffer.as_bytes().len())?;
                Ok(outcome.map(|outcome| self.lend(outcome)))
            }
        }
    }

    /// As [`try_recv`](Self::try_recv), with the payload copied to the start of `buffer`: the only copy between the
    /// ring and the caller.
    ///
    /// # Errors
    /// [`RecvError::TooSmall`] when the message is larger than the buffer; it stays the next one.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// publisher.publish(b"abc")?;
    /// let mut buffer = [0; 8];
    /// assert!(subscriber.try_recv_into(&mut buffer[..2]).is_err());
    /// assert!(subscriber.try_recv_into(&mut buffer)?.is_some());
    /// assert_eq!(&buffer[..3], b"abc");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_recv_into<'a>(&mut self, buffer: &'a mut [u8]) -> Result<Option<Event<'a>>, RecvError> {
        let poll = self.reader.poll(buffer);
        let outcome = self.take(poll, buffer.len())?;
        Ok(outcome.map(|outcome| outcome.into_event(buffer)))
    }

    /// Hands up to `most` events that are there already to `each`, and returns how many there were. Never waits.
    ///
    /// # Errors
    /// [`RecvError`]; the events before it have been handed out.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// publisher.publish_batch(["a", "b", "c"])?;
    /// assert_eq!(subscriber.recv_batch(2, |_| ())?, 2);
    /// assert_eq!(subscriber.recv_batch(2, |_| ())?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recv_batch(&mut self, most: usize, mut each: impl FnMut(Event<'_>)) -> Result<usize, RecvError> {
        for handed in 0..most {
            match self.try_recv()? {
                Some(event) => each(event),
                None => return Ok(handed),
            }
        }
        Ok(most)
    }

    /// Goes on at message `sequence`, forwards or backwards. O(1). Messages passed over do not count as missed.
    ///
    /// # Errors
    /// [`LocateError::TooOld`] and [`LocateError::NotYet`] say what is there instead; the subscriber stays where it is.
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
        let place = self.reader.locator().seek(sequence)?;
        self.reader.jump(place);
        (self.behind, self.is_epoch_in_doubt) = (None, false);
        self.epoch = 0;
        self.began_in = self.reader.state().map_or(0, |(epoch, _)| epoch);
        Ok(())
    }

    /// The sequence of the next message expected.
    pub fn next_sequence(&self) -> u64 {
        self.reader.place().sequence
    }

    /// Bytes of the stream before the next record expected.
    pub fn position(&self) -> u64 {
        self.reader.place().position
    }

    /// Messages published and not yet received; up to 64 behind the truth.
    pub fn lag(&self) -> u64 {
        self.reader.lag()
    }

    /// The publisher's incarnation, as far as the stream has told: 0 as long as it has not, after a start or a seek
    /// somewhere in its middle. Who is lapped past the news is told once there is nothing else to receive.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What the segment says of its publisher now: its epoch, and whether it closed the channel. A publisher that died
    /// still reads [`State::Active`]; [`Directory::channel`] asks the kernel.
    pub fn publisher_state(&self) -> Option<(u64, State)> {
        self.reader.state()
    }

    /// The remote session that this channel carries, as its publisher last noted it; `None` where the channel is its
    /// publisher's own. While it changes, half of each may be seen: the stream tells where it changes.
    pub fn remote_session(&self) -> Option<[u8; 10]> {
        self.segment.session()
    }

    /// The channel's clock, for the ages of messages.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// What the channel was made with.
    pub fn header(&self) -> &Header {
        self.segment.header()
    }

    /// How the preparation of the memory went, step by step.
    pub fn preparation(&self) -> &[Step] {
        &self.steps
    }

    /// Whether a daemon knows of this subscriber at the moment; `None` where the channel is a file. Data flows either
    /// way.
    pub fn is_registered(&self) -> Option<bool> {
        self.attachment.as_ref().map(Attachment::is_connected)
    }

    fn wait_for(&mut self, deadline: Option<Instant>) -> Result<Option<Outcome>, RecvError> {
        if self.parking.is_some() {
            return self.sleep_for(deadline);
        }
        let mut waiter = Waiter::new(self.wait);
        loop {
            if self.wait == Wait::Burst {
                self.pause_after_burst();
            }
            if waiter.idle() {
                if let Some(outcome) = self.look()? {
                    return Ok(Some(outcome));
                }
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Ok(None);
                }
            }
            if let Some(outcome) = self.poll()? {
                return Ok(Some(outcome));
            }
        }
    }

    /// Called at an empty poll: if it ended a burst, the publisher may get ahead now.
    #[inline]
    fn pause_after_burst(&mut self) {
        let next = self.next_sequence();
        if next.wrapping_sub(self.caught_up_at) >= BURST {
            let start = self.clock.now();
            while self.clock.ns_between(start, self.clock.now()) < BURST_PAUSE.as_nanos() as u64 {
                std::hint::spin_loop();
            }
        }
        self.caught_up_at = next;
    }

    /// As [`wait_for`](Self::wait_for), for one who parks.
    #[cold]
    fn sleep_for(&mut self, deadline: Option<Instant>) -> Result<Option<Outcome>, RecvError> {
        loop {
            if let Some(outcome) = self.poll()? {
                return Ok(Some(outcome));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return self.look();
            }
            let limit = left.unwrap_or(Duration::MAX);
            match self.rest()? {
                Rest::Found(outcome) => return Ok(Some(outcome)),
                Rest::None => {}
                Rest::Pause => std::thread::sleep(limit.min(ALONE)),
                Rest::Nap => self.parking.as_ref().expect("naps are for those who park").sleep(limit),
            }
        }
    }

    /// Called where a poll found nothing: decides how to wait for the next. [`Rest::Nap`] is only for those who have
    /// said where they sleep, found nothing there since, and rung for the waker.
    #[cold]
    fn rest(&mut self) -> Result<Rest, RecvError> {
        if let Some(outcome) = self.look()? {
            return Ok(Rest::Found(outcome));
        }
        if self.next_segment.is_some() {
            return Ok(Rest::None);
        }
        let (position, is_watched) = (self.position(), self.is_registered() == Some(true));
        let Some(parking) = self.parking.as_mut().filter(|_| is_watched) else { return Ok(Rest::Pause) };
        parking.lie_down(position);
        let found = self.poll();
        let parking = self.parking.as_ref().expect("looked at above");
        if found.as_ref().is_ok_and(Option::is_none) && self.next_segment.is_none() {
            parking.ring();
            return Ok(Rest::Nap);
        }
        parking.rise();
        Ok(found?.map_or(Rest::None, Rest::Found))
    }

    /// Looks at what empty polls do not see.
    fn look(&mut self) -> Result<Option<Outcome>, RecvError> {
        if let Some(page) = &self.page {
            page.page.heartbeat(self.clock.now());
        }
        let poll = self.reader.look();
        if let Some(outcome) = self.take(poll, 0)? {
            return Ok(Some(outcome));
        }
        if poll != Poll::Empty {
            return Ok(None);
        }
        Ok(self.epoch_in_force())
    }

    /// A new epoch that the segment's state tells of and whose record this reader has jumped over.
    fn epoch_in_force(&mut self) -> Option<Outcome> {
        // While a successor is recovering, its record is yet to come; one that has closed is news no more.
        let (epoch, State::Active) = self.reader.state()? else { return None };
        if epoch <= self.epoch {
            return None;
        }
        // Everything that was there when this state was set comes first.
        fence(Ordering::Acquire);
        if self.reader.locator().is_ready(self.position()) {
            return None;
        }
        self.tell_epoch(epoch)
    }

    /// Called where nothing is left to receive after a lap: a takeover that was not told in its place, since its record was
    /// overwritten, is told now.
    #[cold]
    fn hidden_epoch(&mut self) -> Option<Outcome> {
        let state = self.reader.state();
        // Everything that was there when this state was set comes first.
        fence(Ordering::Acquire);
        if self.reader.locator().is_ready(self.position()) {
            return None;
        }
        // Records from here on are read in their places.
        self.is_epoch_in_doubt = false;
        let (epoch, State::Active) = state? else { return None };
        if epoch <= self.epoch.max(self.began_in) {
            return None;
        }
        self.epoch = epoch;
        Some(Outcome::Other(Event::NewEpoch { epoch }))
    }

    /// Who has not been told of any publisher has nobody for this one to succeed.
    fn tell_epoch(&mut self, epoch: u64) -> Option<Outcome> {
        let told = std::mem::replace(&mut self.epoch, epoch);
        (told > 0).then_some(Outcome::Other(Event::NewEpoch { epoch }))
    }

    #[inline]
    fn poll(&mut self) -> Result<Option<Outcome>, RecvError> {
        let buffer = self.buffer.as_mut_bytes();
        let available = buffer.len();
        let poll = self.reader.poll(buffer);
        self.take(poll, available)
    }

    /// Counts what a poll found and decides what the caller is told.
    #[inline]
    fn take(&mut self, poll: Poll, available: usize) -> Result<Option<Outcome>, RecvError> {
        match poll {
            Poll::Empty if self.attachment.is_none() && !self.is_epoch_in_doubt => Ok(None),
            _ if self.generation != 0 && self.behind.is_some() => self.begin(),
            Poll::Empty if self.is_epoch_in_doubt => match self.hidden_epoch() {
                None => self.follow(),
                told => Ok(told),
            },
            Poll::Empty => self.follow(),
            Poll::Message { length, sequence, .. } if self.generation != 0 && self.is_void(sequence) => {
                self.step_back(length, sequence);
                self.follow()
            }
            Poll::Message { length, sequence, tag, key, time } => {
                self.note_received(time);
                Ok(Some(Outcome::Message(length, Message { payload: &[], sequence, tag, key, time })))
            }
            other => self.take_rare(other, available),
        }
    }

    /// Counts a message that a poll put into the buffer, and hands it out. Always inline, as the polls that lead here:
    /// the event then travels in registers and is never put together in memory.
    #[inline(always)]
    fn receive(&mut self, length: usize, sequence: u64, tag: u16, key: bool, time: u64) -> Event<'_> {
        self.note_received(time);
        Event::Message(Message { payload: &self.buffer.as_bytes()[..length], sequence, tag, key, time })
    }

    /// Counts a message on the page.
    #[inline(always)]
    fn note_received(&self, time: u64) {
        if let Some(page) = &self.page {
            page.page.received(self.reader.place());
            if self.record_latency {
                let now = self.clock.now();
                page.page.heartbeat(now);
                page.page.latency(self.clock.latency_ns(time, now));
            }
        }
    }

    #[cold]
    fn take_rare(&mut self, poll: Poll, available: usize) -> Result<Option<Outcome>, RecvError> {
        if self.generation != 0 && self.is_void_news(&poll) {
            return self.follow();
        }
        let event = match poll {
            Poll::Empty | Poll::Message { .. } => return Ok(None),
            Poll::Control(control) => match control {
                // Known from the segment's state already.
                Control::Epoch { epoch } if epoch == self.epoch => return Ok(None),
                Control::Epoch { epoch } => {
                    self.epoch = epoch;
                    Event::NewEpoch { epoch }
                }
                Control::End => Event::End,
                Control::Gap { from, to } => {
                    self.count(|page, place| page.missed(to - from + 1, place));
                    Event::Gap { from, to }
                }
                Control::Session { high, low } => {
                    let mut session = [0; 10];
                    session[..8].copy_from_slice(&high.to_le_bytes());
                    session[8..].copy_from_slice(&low.to_le_bytes()[..2]);
                    Event::NewSession { session }
                }
                Control::Unknown { .. } => return Ok(None),
            },
            Poll::Lapped => return self.skip(),
            Poll::TooSmall { needed } => return Err(RecvError::TooSmall { needed, available }),
            Poll::Superseded if self.attachment.is_some() => return self.follow(),
            Poll::Superseded => return Err(RecvError::Superseded),
            Poll::Corrupt(corrupt) => return Err(corrupt.into()),
        };
        Ok(Some(Outcome::Other(event)))
    }

    /// Tells one who asked for a sequence that is no longer here what it missed.
    #[cold]
    fn begin(&mut self) -> Result<Option<Outcome>, RecvError> {
        let Some(sequence) = self.behind else { return Ok(None) };
        // Whatever the poll made of a place that is not this reader's.
        self.reader.jump(Place { position: 0, sequence });
        self.skip()
    }

    /// Goes on behind what is lost.
    #[cold]
    fn skip(&mut self) -> Result<Option<Outcome>, RecvError> {
        let before = self.reader.place();
        let missed = self.reader.resume(self.resume)?;
        if self.generation != 0 && self.is_void(self.next_sequence()) {
            // Cut off meanwhile: what was found are void messages, which must not count as missed.
            self.reader.jump(before);
            return self.follow();
        }
        // Looked at after the jump: whatever record it skipped, the state was set before that was committed.
        fence(Ordering::Acquire);
        let known = self.epoch.max(self.began_in);
        self.is_epoch_in_doubt = self.reader.state().is_some_and(|(epoch, _)| epoch > known);
        self.behind = None;
        self.count(|page, place| page.lapped(missed, place));
        Ok(Some(Outcome::Other(Event::Lapped(Lapped { missed, resumed_at: self.next_sequence() }))))
    }

    #[inline]
    fn is_void(&self, sequence: u64) -> bool {
        self.page.as_ref().is_some_and(|page| page.page.is_void(self.generation, sequence))
    }

    /// Whether anything but a message comes from a publisher that was cut off. Where the cut is, everything valid has
    /// been read, so that nothing found there can matter.
    #[cold]
    fn is_void_news(&mut self, poll: &Poll) -> bool {
        let next = self.next_sequence();
        match poll {
            // Its void messages may overrun us: they count for nothing.
            Poll::Lapped => self.is_void(u64::MAX),
            Poll::Control(Control::Gap { from, .. }) if self.is_void(*from) => {
                let position = self.reader.place().position - GRANULE;
                self.reader.jump(Place { position, sequence: *from });
                true
            }
            // An end right at the cut is valid if it came before the segment was given up; a later one has put its own
            // state in place of that.
            Poll::Control(Control::End) => {
                let is_given_up = matches!(self.reader.state(), Some((_, State::Superseded)));
                self.is_void(next) && (self.is_void(next - 1) || !is_given_up)
            }
            Poll::Control(_) | Poll::TooSmall { .. } | Poll::Corrupt(_) => self.is_void(next),
            Poll::Empty | Poll::Message { .. } | Poll::Superseded => false,
        }
    }

    /// Takes back the reading of a message that turned out to be void.
    #[cold]
    fn step_back(&mut self, length: usize, sequence: u64) {
        let position = self.reader.place().position - record_bytes(length as u64);
        self.reader.jump(Place { position, sequence });
    }

    /// Called where nothing valid is left here: goes on in the next segment if the daemon has sent it.
    ///
    /// The daemon sends it after the last word on what is void, so the segment must have been here *before* the poll
    /// that found nothing: the first call only takes it, and has everything looked at once more.
    #[inline]
    fn follow(&mut self) -> Result<Option<Outcome>, RecvError> {
        if self.next_segment.is_some() {
            return self.go_on();
        }
        self.next_segment = self.attachment.as_ref().and_then(Attachment::moved);
        Ok(None)
    }

    #[cold]
    fn go_on(&mut self) -> Result<Option<Outcome>, RecvError> {
        let Some(file) = self.next_segment.take() else { return Ok(None) };
        let segment = Segment::open(&file, Access::Read).map_err(|_| RecvError::Superseded)?;
        let generation = segment.header_word(GENERATION);
        if generation < self.generation {
            // From a daemon that has not yet been shown the newest one.
            return Ok(None);
        }
        self.steps = segment.prepare(Preparation { prefault: true, ..Preparation::NONE });
        let mut expected = self.next_sequence();
        if generation > self.generation {
            // Who joined behind void messages expects more than there is.
            expected = expected.min(segment.header_word(FIRST_SEQUENCE).max(1));
        }
        let place = seek(&segment, expected)?;
        self.reader = segment.reader(place.unwrap_or(Place { position: 0, sequence: expected }));
        self.generation = generation;
        self.segment = segment;
        self.behind = place.is_none().then_some(expected);
        if self.behind.is_some() {
            return self.begin();
        }
        // The place lies behind the record that says so.
        let successor = self.reader.state().filter(|(epoch, _)| *epoch > self.epoch);
        Ok(successor.and_then(|(epoch, _)| self.tell_epoch(epoch)))
    }

    fn count(&self, note: impl FnOnce(&ReaderPage, Place)) {
        if let Some(page) = &self.page {
            note(&page.page, self.reader.place());
        }
    }

    fn lend(&self, outcome: Outcome) -> Event<'_> {
        outcome.into_event(self.buffer.as_bytes())
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Subscriber");
        f.field("channel", &self.header().channel).field("epoch", &self.epoch);
        f.field("next_sequence", &self.next_sequence()).finish_non_exhaustive()
    }
}

/// How to subscribe to a channel.
#[derive(Debug, Clone)]
#[must_use]
pub struct SubscriberBuilder {
    name: String,
    directory: Directory,
    client: Option<Client>,
    start: Start,
    wait: Wait,
    resume: Resume,
    preparation: Preparation,
    page: bool,
    record_latency: bool,
    wait_for_channel: Option<Duration>,
    schema_id: Option<u64>,
    longest_nap: Duration,
}

impl SubscriberBuilder {
    /// Looks for the channel in the directory at `path` rather than in the default one.
    pub fn dir(self, path: impl Into<PathBuf>) -> Self {
        self.directory(&Directory::at(path))
    }

    /// Looks for the channel in `directory`.
    pub fn directory(mut self, directory: &Directory) -> Self {
        self.directory = directory.clone();
        self.client = None;
        self
    }

    /// Asks a daemon for the channel rather than a directory.
    pub fn client(mut self, client: &Client) -> Self {
        self.client = Some(client.clone());
        self
    }

    /// Where to begin; [`Start::Latest`] by default.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// How [`Subscriber::recv`] waits; [`Wait::Yield`] by default.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// How long a reader with [`Wait::Park`] sleeps at most before it looks for itself: 0.1 s by default. This is what
    /// a daemon that hangs can make it late by, and what a reader costs while nothing happens at all; a daemon that has
    /// died is noticed at once.
    pub fn longest_nap(mut self, longest: Duration) -> Self {
        self.longest_nap = longest;
        self
    }

    /// Where to go on after having been lapped; [`Resume::Oldest`] by default.
    pub fn resume(mut self, resume: Resume) -> Self {
        self.resume = resume;
        self
    }

    /// What to do to the memory first; by default every page is touched, so that no message meets a page fault. What
    /// was refused is in [`Subscriber::preparation`].
    pub fn prepare(mut self, preparation: Preparation) -> Self {
        self.preparation = preparation;
        self
    }

    /// Whether tools can see this subscriber, its lag and its losses: yes by default. Costs a few stores a message to
    /// a line of its own, and a 4 KiB file. Without it, `--wait-readers` does not count it and `rm` does not spare it.
    pub fn page(mut self, page: bool) -> Self {
        self.page = page;
        self
    }

    /// Whether each message's latency goes into the page's histogram: no by default. Costs one reading of the clock a
    /// message.
    pub fn record_latency(mut self, record: bool) -> Self {
        self.record_latency = record;
        self
    }

    /// How long to wait for the channel to appear: not at all by default.
    pub fn wait_for_channel(mut self, patience: Duration) -> Self {
        self.wait_for_channel = Some(patience);
        self
    }

    /// Refuses a channel whose message schema has another number.
    pub fn schema(mut self, id: u64) -> Self {
        self.schema_id = Some(id);
        self
    }

    /// Attaches. Takes time in proportion to the capacity where pages are touched first, about 0.1 ms a MiB.
    ///
    /// # Errors
    /// [`ChannelError`]; nothing is left behind.
    pub fn open(self) -> Result<Subscriber, ChannelError> {
        let start = Instant::now();
        let patience = self.wait_for_channel.unwrap_or_default();
        loop {
            match self.attach() {
                Err(e) if e.is_unknown_channel() && start.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                attached => return attached,
            }
        }
    }

    /// Attaches if the channel is there, and not just being removed.
    fn attach(&self) -> Result<Subscriber, ChannelError> {
        match &self.client {
            Some(client) => self.attach_by(client),
            None => self.attach_to_file(),
        }
    }

    fn attach_by(&self, client: &Client) -> Result<Subscriber, ChannelError> {
        let mut conversation = Conversation::open(client.socket())?;
        let parks = self.wait == Wait::Park;
        let request = |resume| Request::Subscribe { channel: self.name.clone(), resume, park: parks };
        let path = PathBuf::from(format!("memfd:{}", self.name));
        let bell = if parks {
            Some(park::bell().map_err(ChannelError::os("make a bell for", &path))?)
        } else {
            None
        };
        let shown: Vec<BorrowedFd<'_>> = bell.iter().map(|(_, far)| far.as_fd()).collect();
        let [file, lock, page_file] = conversation.attach(&request(false), &shown)?;
        let damaged = |source| ChannelError::Segment { path: path.clone(), source };
        let segment = Segment::open(&file, Access::Read).map_err(damaged)?;
        let mut subscriber = self.read(segment, |header, place| {
            let page =
                ReaderPage::create(&page_file, std::process::id(), header.uuid, place).map_err(damaged)?;
            Ok(Some(Page { page, shown: None }))
        })?;
        let socket = conversation.into_socket()?;
        let mut shown = vec![file, lock, page_file];
        if let (Some((near, far)), Some(page)) = (bell, &subscriber.page) {
            subscriber.parking = Some(Parking::new(near, page.page.clone(), self.longest_nap));
            shown.push(far);
        }
        subscriber.attachment =
            Some(Attachment::new(client.socket().to_owned(), socket, request(true), shown));
        Ok(subscriber)
    }

    fn attach_to_file(&self) -> Result<Subscriber, ChannelError> {
        let files = self.directory.files(&self.name)?;
        if self.wait == Wait::Park {
            let (name, dir) = (self.name.clone(), self.directory.path().to_owned());
            return Err(ChannelError::NoWaker { name, dir });
        }
        let file = match open_plain(&files.segment, OpenOptions::new().read(true)) {
            Ok(file) => file,
            Err(e) if is_absent(&e) => return Err(self.directory.not_found(&self.name)),
            Err(e) => return Err(ChannelError::os("open", &files.segment)(e)),
        };
        let segment = Segment::open(&file, Access::Read)
            .map_err(|source| ChannelError::Segment { path: files.segment.clone(), source })?;
        self.read(segment, |header, place| match self.page.then(|| show_page(&files, header, place)) {
            None => Ok(None),
            Some(Ok(page)) => Ok(Some(page)),
            Some(Err(e)) if e.is_absent() => Err(self.directory.not_found(&self.name)),
            Some(Err(e)) => Err(e),
        })
    }

    fn read(
        &self,
        segment: Segment,
        show_page: impl FnOnce(&Header, Place) -> Result<Option<Page>, ChannelError>,
    ) -> Result<Subscriber, ChannelError> {
        let header = segment.header();
        if let Some(wanted) = self.schema_id.filter(|id| *id != header.schema_id) {
            let (name, found) = (self.name.clone(), header.schema_id);
            return Err(ChannelError::Mismatch { name, what: "schema", found, wanted });
        }
        let steps = segment.prepare(self.preparation);
        // Looked at before the place: a takeover in between is news.
        let began_in = segment.state().map_or(0, |(epoch, _)| epoch);
        let epoch = if self.start == Start::Latest || began_in == 1 { began_in } else { 0 };
        let (place, behind) = self.place(&segment)?;
        let page = show_page(header, place)?;
        // A daemon's reader follows: where to is on its way.
        if self.client.is_none() && matches!(segment.state(), Some((_, State::Superseded))) {
            return Err(self.directory.not_found(&self.name));
        }
        // One line more than the largest message, so that a length of 0 is no special case. Zeros come as pages yet to
        // be faulted in: touch those that messages of common sizes need.
        let lines = header.geometry.max_message as usize / size_of::<Line>() + 1;
        let mut buffer = <[Line]>::new_box_zeroed_with_elems(lines).expect("room for one message");
        buffer.iter_mut().take(TOUCHED_BYTES / size_of::<Line>()).for_each(|line| line.0[0] = 0xff);
        let generation = segment.header_word(GENERATION);
        Ok(Subscriber {
            reader: segment.reader(place),
            clock: Clock::of_segment(header),
            wait: self.wait,
            caught_up_at: place.sequence,
            resume: self.resume,
            epoch,
            began_in,
            is_epoch_in_doubt: false,
            behind: behind.filter(|_| generation != 0),
            buffer,
            page,
            record_latency: self.record_latency,
            segment,
            steps,
            attachment: None,
            generation,
            next_segment: None,
            parking: None,
        })
    }

    /// Where to begin, and the sequence asked for if that is gone.
    fn place(&self, segment: &Segment) -> Result<(Place, Option<u64>), ChannelError> {
        let locator = segment.locator();
        let place = match self.start {
            Start::Latest => locator.tail().map(|place| (place, None)),
            Start::Oldest => locator.oldest().map(|place| (place, None)),
            Start::Sequence(sequence) => {
                let sequence = sequence.max(1);
                // In a channel's only segment, position 0 was overwritten with it: the first poll finds that out.
                let gone = (Place { position: 0, sequence }, Some(sequence));
                seek(segment, sequence).map(|place| place.map_or(gone, |place| (place, None)))
            }
        };
        place.map_err(|source| ChannelError::Locate { name: self.name.clone(), source })
    }
}

/// The place of message `sequence`; `None` if it is no longer there.
fn seek(segment: &Segment, sequence: u64) -> Result<Option<Place>, LocateError> {
    match segment.locator().seek(sequence) {
        Err(LocateError::TooOld { .. }) => Ok(None),
        found => found.map(Some),
    }
}

/// Makes a page under a hidden name, locks it, and only then shows it: a page without a lock is a dead one.
fn show_page(files: &ChannelFiles, header: &Header, place: Place) -> Result<Page, ChannelError> {
    let pid = std::process::id();
    let name = format!("{pid}-{}", unique());
    let (hidden, path) = (files.readers.join(format!(".{name}")), files.readers.join(name));
    let os = |what| ChannelError::os(what, &hidden);
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&hidden);
    let file = file.map_err(os("create the reader page"))?;
    let show = || {
        lock::try_lock(&file).map_err(os("lock the reader page"))?;
        // Whatever the umask: a page that the channel's owner cannot read would not keep the channel from removal.
        file.set_permissions(Permissions::from_mode(0o644)).map_err(os("set the mode of"))?;
        let page = ReaderPage::create(&file, pid, header.uuid, place)
            .map_err(|source| ChannelError::Segment { path: hidden.clone(), source })?;
        fs::rename(&hidden, &path).map_err(os("show the reader page"))?;
        Ok(page)
    };
    let page = show().inspect_err(|_: &ChannelError| drop(fs::remove_file(&hidden)))?;
    Ok(Page { page, shown: Some((path, file)) })
}

#[cfg(test)]
mod tests;
