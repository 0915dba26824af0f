//! The receiving end of a channel.

mod arming;
mod batch;
mod board;
mod buffer;
mod builder;
mod contention;
mod ending;
mod following;
mod gated;
mod hosted;
mod iter;
mod journal;
mod known;
mod ledger;
#[cfg(test)]
mod model;
mod named;
mod origin;
mod outcome;
mod page;
mod past;
mod records;
mod select;
mod stalls;
mod starting;
#[cfg(feature = "tokio")]
mod stream;
mod tags;
mod telling;
mod turns;
mod waiting;
mod watch;

use crate::attach::park::Parking;
use crate::clock::Clock;
use crate::gate::HeldGate;
use crate::message::{Event, RecvError};
use crate::wait::{Wait, Waiter};
pub(crate) use batch::{Border, in_batch};
use buffer::Buffer;
use contention::Contention;
use hosted::Hosted;
use origin::Past;
use outcome::{Outcome, message};
use page::{Page, note_latency};
use shmcast_layout::mem::Step;
use shmcast_layout::ring::reader::{Flow, Glance, Poll, Reader};
use shmcast_layout::segment::Segment;
use std::io;
use std::mem::offset_of;
use std::ops::ControlFlow;
use std::time::Instant;

pub use arming::Armed;
pub use builder::SubscriberBuilder;
pub use iter::Iter;
pub use journal::ChannelJournal;
pub(crate) use known::RingAhead;
pub use origin::History;
pub use records::Records;
pub use select::Select;
pub use shmcast_layout::ring::reader::Resume;
pub use starting::Start;
#[cfg(feature = "tokio")]
pub use stream::EventStream;
use tags::Tags;
pub use turns::{Lent, SelectError, Turns};
use watch::Watch;

/// The greatest number of messages that the subscriber returns before it updates the counts on the reader page.
const BATCH: usize = 64;

/// Receives a channel's messages, in order, each one once.
///
/// A subscriber reads through a read-only mapping, so neither the publisher nor other readers can notice it. Receiving takes no lock and
/// allocates nothing, and makes no system call unless the wait strategy does. Receiving from the journal can do all three (see
/// [`SubscriberBuilder::history`]).
///
/// After a `fork` the subscriber belongs to the parent. The child's copy receives nothing, and returns [`RecvError::Forked`]. Dropping the
/// copy changes nothing that tools see.
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
// The fields are in the order in which a message uses them; `Reader` gives the reason. A message uses the second and the third cache line,
// and the page.
#[repr(C, align(64))]
pub struct Subscriber {
    reader: Reader,
    buffer: Buffer,
    /// The attachment to the daemon, if a daemon owns the channel.
    hosted: Option<Box<Hosted>>,
    wait: Wait,
    /// Whether each message needs a check before it is returned: if the channel is strict, or if the subscriber selects tags, holds a gate,
    /// conflates, or reads the journal or the board. Other fields say the same, but are not in the cache lines that each message uses.
    is_checked: bool,
    doubt: Doubt,
    /// Whether the last batch ended close to the publisher. Set only with [`Wait::Burst`].
    came_close: bool,
    record_latency: bool,
    /// The value of `fork::count` in the process that opened the subscriber. A forked child has a higher count.
    forks: u32,
    // The fourth cache line.
    page: Option<Page>,
    clock: Clock,
    contention: Contention,
    // Cold fields.
    /// The sequence and the time from which [`Wait::Burst`] counts messages.
    burst_mark: (u64, u64),
    /// The sequence of the next message to come, at the time of the last pause of [`Wait::Burst`].
    burst_target: u64,
    resume: Resume,
    /// The epoch that the last event about the publisher reported.
    epoch: u64,
    /// The epoch at the time of the last start or seek. This epoch is not reported as a new one, even after a lap.
    began_in: u64,
    /// The sequence at which the reader should begin. It is set only if the ring no longer has that message and has no record of the loss.
    /// This happens in a segment that continues an earlier one.
    behind: Option<u64>,
    segment: Segment,
    steps: Vec<Step>,
    /// Number of times that the channel has continued in another segment since this subscriber was opened.
    moves: u64,
    /// Whether the channel was made while the builder waited for it. Then the subscriber began with the ring's first message.
    came_before_channel: bool,
    /// Whether a poll found no event because it had left out [`telling::MOST_LEFT_OUT`] bytes. There can be more to receive. The wait for
    /// the next event resets this flag.
    stopped_early: bool,
    /// The reason why there is no reader page, if the builder requested a page but it could not be made.
    page_refused: Option<io::Error>,
    /// The reader's side of parking (sleep until the daemon wakes the reader), for a subscriber that was opened with [`Wait::Park`].
    parking: Option<Parking>,
    /// The tags of the messages that are returned; all tags if `None`.
    tags: Option<Tags>,
    /// Detects the death of the publisher, if the builder requested this event.
    watch: Option<Box<Watch>>,
    named: Option<Box<named::Named>>,
    /// The gate that this subscriber holds.
    gate: Option<Box<HeldGate>>,
    /// The channel's journal, if it can have one.
    past: Option<Box<Past>>,
    /// The channel's board, if this subscriber begins with the board or conflates (can skip old messages of a key).
    joining: Option<Box<board::Joining>>,
}

const _: () = assert!(offset_of!(Subscriber, page) == 3 * 64, "what a message needs fills the third line");

/// The reason why another event can come before the ring's next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    None,
    /// A lap has possibly hidden the takeover of another publisher.
    Epoch,
    /// The reader expects messages that are older than everything in the ring. `behind` is the first of them.
    Behind,
    /// The reader reads the journal; see module `past`.
    Past,
    /// The reader gets messages of the board; see module `board`.
    Board,
}

impl Subscriber {
    /// Begins to subscribe to channel `name`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(name: impl Into<String>) -> SubscriberBuilder {
        SubscriberBuilder::new(name.into())
    }

    /// Waits for the next event and returns it. Messages are copied into a buffer that this subscriber owns.
    ///
    /// Blocks, by the wait strategy, until something arrives. The end of a stream is an event, and so is a new publisher. The death of a
    /// publisher is an event only with [`watch_publisher`](SubscriberBuilder::watch_publisher).
    ///
    /// # Errors
    /// [`RecvError`]. Each variant says whether a further call can succeed. Only the `_into` calls return
    /// [`TooSmall`](RecvError::TooSmall).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// use shmcast::Event;
    /// publisher.publish(b"x")?;
    /// match subscriber.recv()? {
    ///     Event::Message(m) => assert_eq!(m.payload, b"x"),
    ///     Event::Lapped(l) => eprintln!("missed {} messages", l.missed),
    ///     other => println!("{other:?}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn recv(&mut self) -> Result<Event<'_>, RecvError> {
        let event = self.recv_until(None)?;
        Ok(event.expect("waiting without a deadline ends with an event"))
    }

    /// Does the same as [`recv`](Self::recv), in an event loop: other tasks run until something arrives. Open the subscriber with
    /// [`Wait::Park`]. With any other strategy, and on channels that are files, this call polls every millisecond.
    ///
    /// Cancel-safe: a future that is dropped before it is ready has received nothing. Other tasks run now and then even if there is always
    /// another event. An available event costs the same as with [`try_recv`](Self::try_recv). A sleep costs some system calls.
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
        let outcome = self.wait_async().await?;
        Ok(self.lend(outcome))
    }

    /// Does the same as [`recv`](Self::recv), but returns `None` if nothing arrived before `deadline`. If `deadline` is in the past, `None`
    /// can have the second meaning that [`try_recv`](Self::try_recv) names.
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
    #[inline(always)]
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<Option<Event<'_>>, RecvError> {
        self.recv_until(Some(deadline))
    }

    #[inline(always)]
    fn recv_until(&mut self, deadline: Option<Instant>) -> Result<Option<Event<'_>>, RecvError> {
        if self.came_close {
            self.pause_after_burst();
        }
        self.receive::<true>(deadline)
    }

    /// Returns the next event if there is one. Never waits for one.
    ///
    /// With [`tags`](SubscriberBuilder::tags), `None` can also mean that this call has left out many messages, and that more can follow.
    ///
    /// Of the calls that find no message, only one in 64 checks for the end of the channel, a segment that has replaced this one, a removed
    /// file, or a lap by exactly one ring. A program that calls seldom should call [`recv_deadline`](Self::recv_deadline) with a deadline
    /// in the past, which makes all these checks. A file is checked once a second at most.
    ///
    /// Cost if there is no event: one load of a line in this core's cache. On a channel at full rate, this call can first let the publisher
    /// get ahead, for at most 4 us; see [`Wait`].
    ///
    /// # Errors
    /// [`RecvError`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// assert_eq!(subscriber.try_recv()?, None);
    /// publisher.publish(b"x")?;
    /// assert!(subscriber.try_recv()?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn try_recv(&mut self) -> Result<Option<Event<'_>>, RecvError> {
        self.receive::<false>(None)
    }

    /// Does the same as [`try_recv`](Self::try_recv), and copies the payload to the start of `buffer`. This is the only copy between the
    /// ring and the caller.
    ///
    /// # Errors
    /// [`RecvError::TooSmall`] when the message is larger than the buffer. It remains the next message.
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
    #[inline(always)]
    pub fn try_recv_into<'a>(&mut self, buffer: &'a mut [u8]) -> Result<Option<Event<'a>>, RecvError> {
        self.check_process()?;
        let before = self.reader.place();
        // The two common results are returned in place, as in `receive`.
        let outcome = match self.reader.glance_into(buffer) {
            Glance::Message(copied) if !self.is_checked => {
                self.note_received(copied.time);
                return Ok(Some(Event::Message(message(copied, buffer))));
            }
            Glance::Message(copied) => self.go_on_into(before, Poll::Message(copied), buffer)?,
            Glance::Nothing if self.is_all_in_the_ring() && self.watch.is_none() => None,
            Glance::Nothing => self.go_on_into(before, Poll::Empty, buffer)?,
            Glance::Other => self.poll_into_and_look(buffer)?,
        };
        if outcome.is_none() {
            self.avoid_contention();
        }
        Ok(outcome.map(|outcome| outcome.into_event(buffer)))
    }

    /// Passes up to `most` available events to `each`, and returns their number. Never waits for one, but can let the publisher get ahead,
    /// as [`Wait`] describes.
    ///
    /// A batch ends where the channel continues in another ring, and where the journal continues with another ring's messages, so it can be
    /// short or empty although there are more events. With [`tags`](SubscriberBuilder::tags), a batch can also end after many messages that
    /// were left out. The [`header`](Self::header) and the [`clock`](Self::clock) of the subscriber before the call apply to all messages
    /// of the batch.
    ///
    /// `each` returns nothing, or a [`ControlFlow`] that can stop the batch. The event that stopped the batch has been received and counts.
    ///
    /// If `each` panics and the caller catches the panic, messages that were passed before the panic can come again.
    ///
    /// # Errors
    /// [`RecvError`]. The events before the error have been passed to `each`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// publisher.publish_batch(["a", "b", "c"])?;
    /// assert_eq!(subscriber.recv_batch(2, |_| ())?, 2);
    /// assert_eq!(subscriber.recv_batch(2, |_| ())?, 1);
    ///
    /// use shmcast::Event;
    /// use std::ops::ControlFlow;
    /// publisher.publish_batch(["a", "stop", "c"])?;
    /// let to_stop = |event: Event<'_>| match event {
    ///     Event::Message(m) if m.payload == b"stop" => ControlFlow::Break(()),
    ///     _ => ControlFlow::Continue(()),
    /// };
    /// assert_eq!(subscriber.recv_batch(64, to_stop)?, 2);
    /// assert_eq!(subscriber.recv_batch(64, |_| ())?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn recv_batch<F: Flow>(
        &mut self,
        most: usize,
        each: impl FnMut(Event<'_>) -> F,
    ) -> Result<usize, RecvError> {
        self.check_process()?;
        if self.came_close {
            self.pause_after_burst();
        }
        in_batch(self, |own| own, |own| own.pass_on(most, each))
    }

    /// Does the work of [`recv_batch`](Self::recv_batch) after the checks.
    #[inline(always)]
    fn pass_on<F: Flow>(
        &mut self,
        most: usize,
        mut each: impl FnMut(Event<'_>) -> F,
    ) -> Result<usize, RecvError> {
        let mut handed = 0;
        while handed < most {
            let (taken, is_over) = self.recv_messages((most - handed).min(BATCH), &mut each);
            handed += taken;
            if is_over {
                break;
            }
            if handed == most {
                self.came_close = matches!(self.wait, Wait::Burst) && self.is_close_in_a_burst();
                break;
            }
            match self.try_recv()? {
                Some(event) => {
                    handed += 1;
                    let border = Border::of(&event);
                    let stops = each(event).stops();
                    if stops || border.is_some_and(|border| self.has_changed_ring(border)) {
                        break;
                    }
                }
                None => {
                    self.came_close = matches!(self.wait, Wait::Burst);
                    break;
                }
            }
        }
        Ok(handed)
    }

    /// Passes at most `most` messages to the closure `each`. Ends before the first event that is not a message, or when the closure asks to
    /// stop. Passes nothing if messages must be checked one by one. Returns the number of passed messages, and whether the closure asked to
    /// stop.
    #[inline(always)]
    fn recv_messages<F: Flow>(&mut self, most: usize, mut each: impl FnMut(Event<'_>) -> F) -> (usize, bool) {
        if self.checks_each() {
            return (0, false);
        }
        let mut is_over = false;
        let Self { reader, buffer, page, clock, record_latency, .. } = self;
        let page = page.as_ref().map(|page| &page.page);
        let latency_page = page.filter(|_| *record_latency);
        let taken = reader.poll_batch(most, buffer.records(), |copied, payload| {
            if let Some(page) = latency_page {
                note_latency(page, clock, copied.time);
            }
            is_over = each(Event::Message(message(copied, payload))).stops();
            if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if taken > 0
            && let Some(page) = page
        {
            page.received(taken as u64, reader.place());
        }
        self.note_passed();
        (taken, is_over)
    }

    /// Polls for the next event: once if `WAITS` is false, and otherwise until there is an event or the deadline has passed.
    ///
    /// The loop is small and inline: if many readers share a core, each page of code causes a TLB miss in each time slice.
    #[inline(always)]
    fn receive<const WAITS: bool>(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<Option<Event<'_>>, RecvError> {
        self.check_process()?;
        let mut waiter = Waiter::default();
        loop {
            let outcome = match self.reader.glance(self.buffer.records()) {
                Glance::Message(copied) if !self.is_checked => {
                    self.note_received(copied.time);
                    return Ok(Some(Event::Message(message(copied, self.buffer.payload()))));
                }
                // The message can be invalid, or have another tag than the caller asked for.
                Glance::Message(copied) => self.admit_message(copied)?,
                Glance::Nothing if self.is_all_in_the_ring() => None,
                Glance::Nothing => self.tell_nothing()?,
                Glance::Other => self.poll_and_look()?,
            };
            if let Some(outcome) = outcome {
                return Ok(Some(self.lend(outcome)));
            }
            if !WAITS {
                self.avoid_contention();
                return Ok(None);
            }
            if let ControlFlow::Break(end) = self.idle(&mut waiter, deadline, None)? {
                return Ok(end.map(|outcome| self.lend(outcome)));
            }
        }
    }

    /// Whether the next event can only be a record of this ring: no daemon can move the channel to another segment, and no lap has possibly
    /// hidden a takeover.
    #[inline(always)]
    fn is_all_in_the_ring(&self) -> bool {
        self.hosted.is_none() && self.doubt == Doubt::None
    }
}

#[cfg(test)]
mod tests;
