//! Receiving from several channels in one thread or task.
//!
//! A select owns its subscribers. The module `turns` polls them one after another, and waits for all of them together.

use super::Subscriber;
#[cfg(any(feature = "pod", feature = "serde"))]
use super::turns::Found;
use super::turns::{SelectError, Turns};
use crate::message::Event;
use crate::wait::Wait;
use std::io;
use std::time::Instant;

/// Receives from several subscribers. It returns the first event that any of them has.
///
/// **Order.** The events of one subscriber come in the order of its channel. There is no order between subscribers.
///
/// **Fairness.** Subscribers take turns: after an event of one subscriber, the select polls all other subscribers before it polls the same
/// subscriber again. So a subscriber with an event waits for at most one event of each other subscriber, however many events the others
/// have.
///
/// **Waiting.** The strategy given to [`new`](Self::new) applies, and not those of the subscribers. However, [`Wait::Park`] and
/// `recv_async` poll every millisecond if a subscriber was opened without [`Wait::Park`], or if its daemon is away. [`Wait::Burst`] has the
/// same effect as [`Wait::Spin`].
///
/// **Types.** [`add_typed`](Self::add_typed) adds subscribers of one type. A select can have subscribers of several types, and untyped ones
/// (features `pod` and `serde`).
///
/// **Cost.** Polling a subscriber that has nothing costs one load of a line in this core's cache, as for [`Subscriber::try_recv`]. Before
/// each sleep, the select makes one system call for each subscriber. There is no allocation after the last [`add`](Self::add).
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let open = |name: &str| shmcast::Publisher::builder(name).dir(dir.path()).capacity(64 << 10).open();
/// # let (mut quotes_out, mut trades_out) = (open("quotes")?, open("trades")?);
/// use shmcast::{Event, Select, Subscriber, Wait};
/// let mut select = Select::new(Wait::Yield);
/// let quotes = select.add(Subscriber::builder("quotes").dir(dir.path()).open()?)?;
/// let trades = select.add(Subscriber::builder("trades").dir(dir.path()).open()?)?;
/// trades_out.publish(b"100 at 10025")?;
/// match select.recv()? {
///     (index, Event::Message(m)) if index == trades => assert_eq!(m.payload, b"100 at 10025"),
///     (index, event) if index == quotes => println!("a quote: {event:?}"),
///     (_, other) => println!("{other:?}"),
/// }
/// # quotes_out.publish(b"")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Select {
    subscribers: Vec<Subscriber>,
    turns: Turns,
}

/// An event, with the index and a reference of the subscriber that received it.
#[cfg(any(feature = "pod", feature = "serde"))]
pub(crate) type Source<'a> = (usize, Event<'a>, &'a Subscriber);

impl Select {
    /// Makes a select without subscribers, which waits by this strategy.
    ///
    /// ```
    /// let select = shmcast::Select::new(shmcast::Wait::Yield);
    /// assert!(select.get(0).is_none());
    /// ```
    pub fn new(wait: Wait) -> Self {
        Self { subscribers: Vec::new(), turns: Turns::new(wait) }
    }

    /// Adds a subscriber, and returns its index: the number of subscribers before it.
    ///
    /// # Errors
    /// The system's error, if there is no descriptor left for a subscriber that parks. The subscriber is dropped in this case.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// let mut select = shmcast::Select::new(shmcast::Wait::Yield);
    /// assert_eq!(select.add(subscriber)?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add(&mut self, subscriber: Subscriber) -> io::Result<usize> {
        let index = self.turns.add(&subscriber)?;
        self.subscribers.push(subscriber);
        Ok(index)
    }

    /// The subscriber of this index.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::{Select, Subscriber, Wait};
    /// let mut select = Select::new(Wait::Spin);
    /// let ticks = select.add(Subscriber::builder("t").dir(dir.path()).open()?)?;
    /// assert_eq!(select.get(ticks).map(|ticks| ticks.next_sequence()), Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get(&self, index: usize) -> Option<&Subscriber> {
        self.subscribers.get(index)
    }

    /// The subscriber of this index, for example to seek in its channel.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// let mut select = shmcast::Select::new(shmcast::Wait::Yield);
    /// let ticks = select.add(subscriber)?;
    /// publisher.publish_batch(["a", "b", "c"])?;
    /// select.get_mut(ticks).expect("just added").seek(3)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Subscriber> {
        self.subscribers.get_mut(index)
    }

    /// Returns the subscribers, in the order in which they were added.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// let mut select = shmcast::Select::new(shmcast::Wait::Yield);
    /// select.add(subscriber)?;
    /// assert_eq!(select.into_subscribers().len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_subscribers(self) -> Vec<Subscriber> {
        self.subscribers
    }

    /// Waits for the next event of any subscriber and returns it with the subscriber's index.
    ///
    /// # Errors
    /// [`SelectError`], each time when it is the turn of a subscriber that cannot receive.
    ///
    /// # Panics
    /// If there is no subscriber, since nothing could ever arrive.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// let mut select = shmcast::Select::new(shmcast::Wait::Yield);
    /// let ticks = select.add(subscriber)?;
    /// publisher.publish(b"x")?;
    /// let (index, event) = select.recv()?;
    /// assert!(index == ticks && matches!(event, shmcast::Event::Message(_)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recv(&mut self) -> Result<(usize, Event<'_>), SelectError> {
        self.turns.recv(&mut self.subscribers[..])
    }

    /// Waits as [`recv`](Self::recv) does. Returns `None` if nothing arrived before `deadline`.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    ///
    /// # Panics
    /// If there is no subscriber.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::{Select, Subscriber, Wait};
    /// use std::time::{Duration, Instant};
    /// let mut select = Select::new(Wait::Sleep(Duration::from_micros(100)));
    /// select.add(Subscriber::builder("t").dir(dir.path()).open()?)?;
    /// assert_eq!(select.recv_deadline(Instant::now() + Duration::from_millis(5))?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<Option<(usize, Event<'_>)>, SelectError> {
        self.turns.recv_deadline(&mut self.subscribers[..], deadline)
    }

    /// Returns the next event of any subscriber if there is one. Never waits.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::{Select, Subscriber, Wait};
    /// let mut select = Select::new(Wait::Spin);
    /// let ticks = select.add(Subscriber::builder("t").dir(dir.path()).open()?)?;
    /// publisher.publish(b"x")?;
    /// assert!(select.try_recv()?.is_some_and(|(index, _)| index == ticks));
    /// assert_eq!(select.try_recv()?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_recv(&mut self) -> Result<Option<(usize, Event<'_>)>, SelectError> {
        self.turns.try_recv(&mut self.subscribers[..])
    }

    /// Waits as [`recv`](Self::recv) does, in an event loop: other tasks run until something arrives. Open every subscriber with
    /// [`Wait::Park`], as for [`Subscriber::recv_async`].
    ///
    /// Cancel-safe: a future that is dropped before it is ready has received nothing.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    ///
    /// # Panics
    /// If there is no subscriber, or if it has to wait outside of a tokio runtime with both I/O and time
    /// enabled.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use shmcast::{Client, Select, Subscriber, Wait};
    /// let client = Client::connect()?;
    /// let mut select = Select::new(Wait::Park);
    /// for channel in ["quotes", "trades"] {
    ///     select.add(Subscriber::builder(channel).client(&client).wait(Wait::Park).open()?)?;
    /// }
    /// loop {
    ///     let (index, event) = select.recv_async().await?;
    ///     println!("{index}: {event:?}");
    /// }
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn recv_async(&mut self) -> Result<(usize, Event<'_>), SelectError> {
        let (index, outcome) = self.turns.find_async(&mut self.subscribers).await?;
        Ok((index, self.subscribers[index].lend(outcome)))
    }

    /// Waits until there is an event, or until the deadline has passed. Returns the event with its subscriber.
    #[cfg(any(feature = "pod", feature = "serde"))]
    pub(crate) fn find(&mut self, deadline: Option<Instant>) -> Result<Option<Source<'_>>, SelectError> {
        let found = self.turns.find(&mut self.subscribers[..], deadline)?;
        Ok(found.map(|found| self.source(found)))
    }

    /// Like [`find`](Self::find), but never waits.
    #[cfg(any(feature = "pod", feature = "serde"))]
    pub(crate) fn find_now(&mut self) -> Result<Option<Source<'_>>, SelectError> {
        let found = self.turns.poll(&mut self.subscribers[..])?;
        Ok(found.map(|found| self.source(found)))
    }

    /// Like [`find`](Self::find), but has no deadline, and lets other tasks run during the wait.
    #[cfg(all(feature = "tokio", any(feature = "pod", feature = "serde")))]
    pub(crate) async fn find_async(&mut self) -> Result<Source<'_>, SelectError> {
        let found = self.turns.find_async(&mut self.subscribers).await?;
        Ok(self.source(found))
    }

    #[cfg(any(feature = "pod", feature = "serde"))]
    fn source(&self, (index, outcome): Found) -> Source<'_> {
        let subscriber = &self.subscribers[index];
        (index, subscriber.lend(outcome), subscriber)
    }
}
