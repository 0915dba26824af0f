//! Receiving from several channels in one thread or task.
//!
//! A select owns its subscribers, polls them in turn, and waits for all of them at once. A wait that sleeps
//! works as that of one subscriber (`waiting`), with one difference: all subscribers first announce where
//! they sleep, and then all are polled once more.

use super::waiting::time_left;
use super::{Outcome, Subscriber};
use crate::attach::park::{ALONE, Bells, Parking};
use crate::message::{Event, RecvError};
use crate::wait::{Wait, Waiter};
use std::io;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Receives from several subscribers. It returns the first event that any of them has.
///
/// **Order.** Events of one subscriber come in their order. There is no order between subscribers.
///
/// **Fairness.** Subscribers take turns: after an event of one, all others are asked before it is asked
/// again. So a subscriber that has an event waits for at most one event of each other subscriber, however
/// many these have.
///
/// **Waiting** is by the strategy given to [`new`](Self::new). The strategies of the subscribers do not
/// count, with one exception: a subscriber can be woken only if it was opened with [`Wait::Park`]. As long as
/// one of them was not, or its daemon is away, [`Wait::Park`] and `recv_async` look every millisecond.
/// [`Wait::Burst`] is [`Wait::Spin`] here.
///
/// **Cost.** A look at each subscriber that has nothing: one load of a line in this core's cache, as for
/// [`Subscriber::try_recv`]. Before a sleep, one system call a subscriber. No allocation after the last
/// [`add`](Self::add).
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
    wait: Wait,
    /// The subscriber that is polled first: the one after the subscriber that was polled last.
    next: usize,
    /// The bells of the subscribers that park; `None` if none does.
    bells: Option<Bells>,
}

/// The reason why one subscriber of a [`Select`] can receive nothing more. The next call continues with the
/// others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("subscriber {index} of the select: {source}")]
pub struct SelectError {
    /// The index of the subscriber, as [`Select::add`] returned it.
    pub index: usize,
    /// The subscriber's error.
    pub source: RecvError,
}

type Found = (usize, Outcome);

/// The next step when there is nothing to receive.
enum Rest {
    /// There is an event.
    Found(Found),
    /// Look again.
    None,
    /// Sleep for this long, or until a bell rings.
    Nap(Duration),
}

impl Select {
    /// Makes a select without subscribers, which waits by this strategy.
    ///
    /// ```
    /// let select = shmcast::Select::new(shmcast::Wait::Yield);
    /// assert!(select.get(0).is_none());
    /// ```
    pub fn new(wait: Wait) -> Self {
        Self { subscribers: Vec::new(), wait, next: 0, bells: None }
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
        let index = self.subscribers.len();
        if let Some(parking) = &subscriber.parking {
            let bells = match self.bells.take() {
                Some(bells) => bells,
                None => Bells::new()?,
            };
            self.bells.insert(bells).add(index, parking)?;
        }
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
    /// [`SelectError`], each time a subscriber that can receive nothing more has its turn.
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
        let event = self.recv_until(None)?;
        Ok(event.expect("waiting without a deadline ends with an event"))
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
        self.recv_until(Some(deadline))
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
        let found = self.poll()?;
        Ok(found.map(|found| self.lend(found)))
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
        self.expect_some();
        tokio::task::coop::consume_budget().await;
        let found = loop {
            for subscriber in &mut self.subscribers {
                subscriber.read_ahead_async().await;
            }
            if let Some(found) = self.poll()? {
                break found;
            }
            match self.rest()? {
                Rest::Found(found) => break found,
                Rest::None => {}
                Rest::Nap(limit) => {
                    let _nap = Nap(self);
                    match &self.bells {
                        Some(bells) => bells.nap(limit).await,
                        None => tokio::time::sleep(limit).await,
                    }
                }
            }
        };
        Ok(self.lend(found))
    }

    fn expect_some(&self) {
        assert!(!self.subscribers.is_empty(), "a select without subscribers would wait for ever: add one");
    }

    fn recv_until(&mut self, deadline: Option<Instant>) -> Result<Option<(usize, Event<'_>)>, SelectError> {
        self.expect_some();
        let mut waiter = Waiter::default();
        loop {
            if let Some(found) = self.poll()? {
                return Ok(Some(self.lend(found)));
            }
            match self.wait {
                Wait::Park => match self.rest()? {
                    Rest::Found(found) => return Ok(Some(self.lend(found))),
                    Rest::None => {}
                    Rest::Nap(limit) => self.sleep(limit.min(time_left(deadline))),
                },
                wait => {
                    if let Wait::Sleep(pause) = wait {
                        std::thread::sleep(pause.min(time_left(deadline)));
                    }
                    if !waiter.idle(wait) {
                        continue;
                    }
                    if let Some(found) = self.look()? {
                        return Ok(Some(self.lend(found)));
                    }
                }
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
        }
    }

    fn lend(&self, (index, outcome): Found) -> (usize, Event<'_>) {
        (index, self.subscribers[index].lend(outcome))
    }

    /// Polls each subscriber until one has an event. Begins after the subscriber that was polled last.
    #[inline]
    fn poll(&mut self) -> Result<Option<Found>, SelectError> {
        for _ in 0..self.subscribers.len() {
            let index = self.next;
            self.next = if index + 1 == self.subscribers.len() { 0 } else { index + 1 };
            let outcome = self.subscribers[index].poll().map_err(|source| SelectError { index, source })?;
            if let Some(outcome) = outcome {
                return Ok(Some((index, outcome)));
            }
        }
        Ok(None)
    }

    /// Makes, for each subscriber, the checks that an empty poll does not make.
    #[cold]
    fn look(&mut self) -> Result<Option<Found>, SelectError> {
        for (index, subscriber) in self.subscribers.iter_mut().enumerate() {
            if let Some(outcome) = subscriber.look().map_err(|source| SelectError { index, source })? {
                return Ok(Some((index, outcome)));
            }
        }
        Ok(None)
    }

    /// Decides how to wait for the next event. Called after a poll that found nothing. With [`Rest::Nap`],
    /// every subscriber that can be woken has announced where it sleeps, has found nothing there since, and
    /// has rung for the waker.
    #[cold]
    fn rest(&mut self) -> Result<Rest, SelectError> {
        if let Some(found) = self.look()? {
            return Ok(Rest::Found(found));
        }
        if self.subscribers.iter().any(Subscriber::is_leaving) {
            return Ok(Rest::None);
        }
        let mut longest = Duration::MAX;
        for subscriber in &mut self.subscribers {
            let own =
                if subscriber.lie_down() { subscriber.parking.as_ref().map(Parking::longest) } else { None };
            longest = longest.min(own.unwrap_or(ALONE));
        }
        let moves = |own: &Self| own.subscribers.iter().map(|subscriber| subscriber.moves).sum::<u64>();
        let before = moves(self);
        let found = self.poll();
        // A subscriber that has moved to another segment has not polled there yet.
        let is_leaving = self.subscribers.iter().any(Subscriber::is_leaving) || moves(self) != before;
        if found.as_ref().is_ok_and(Option::is_none) && !is_leaving {
            self.parked().for_each(Parking::ring);
            return Ok(Rest::Nap(longest));
        }
        drop(Nap(self));
        Ok(found?.map_or(Rest::None, Rest::Found))
    }

    fn sleep(&self, limit: Duration) {
        let _nap = Nap(self);
        match &self.bells {
            Some(bells) => bells.sleep(limit),
            None => std::thread::sleep(limit),
        }
    }

    /// The subscribers that may be woken.
    fn parked(&self) -> impl Iterator<Item = &Parking> {
        self.subscribers.iter().filter_map(|subscriber| subscriber.parking.as_ref())
    }
}

/// A nap of all subscribers. It ends when this value is dropped, even if the wait is given up.
struct Nap<'a>(&'a Select);

impl Drop for Nap<'_> {
    fn drop(&mut self) {
        self.0.parked().for_each(Parking::rise);
        let Some(bells) = &self.0.bells else { return };
        bells.ringing(|index| {
            if let Some(parking) = self.0.subscribers.get(index).and_then(|s| s.parking.as_ref()) {
                parking.hear();
            }
        });
    }
}
