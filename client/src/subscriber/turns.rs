//! Receives from several subscribers. The caller lends them for each call.
//!
//! The subscribers are polled one after another, and wait together. A sleep works as for one subscriber (`waiting`), with one difference:
//! first all subscribers announce the position at which they sleep, and then all are polled once more.

use super::waiting::time_left;
use super::{Outcome, Subscriber};
use crate::attach::park::{ALONE, Bells, Parking};
use crate::message::{Event, RecvError};
use crate::wait::{Wait, Waiter};
use std::borrow::BorrowMut;
use std::io;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The error of one subscriber of a [`Select`](crate::Select). The variants of [`RecvError`] say whether this subscriber can receive again.
/// The next call continues with the other subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("subscriber {index} of the select: {source}")]
pub struct SelectError {
    /// The index of the subscriber, as [`Select::add`](crate::Select::add) returned it.
    pub index: usize,
    /// The subscriber's error.
    pub source: RecvError,
}

/// Receives from several subscribers that the caller lends for each call. A [`Select`](crate::Select) does the same with subscribers that
/// it owns. The documentation of `Select` describes order, fairness, waiting, errors and cost.
///
/// Lend the subscribers that were [added](Self::add), in the same order. A call also accepts a subscriber that was not added, in the place
/// of an added one. But nothing wakes the caller for such a subscriber, so [`Wait::Park`] then polls every millisecond.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let open = |name: &str| shmcast::Publisher::builder(name).dir(dir.path()).capacity(64 << 10).open();
/// # let (quotes_out, mut trades_out) = (open("quotes")?, open("trades")?);
/// use shmcast::{Event, Subscriber, Turns, Wait};
/// struct Desk { quotes: Subscriber, trades: Subscriber }
/// let open = |name: &str| Subscriber::builder(name).dir(dir.path()).open();
/// let mut desk = Desk { quotes: open("quotes")?, trades: open("trades")? };
/// let mut turns = Turns::new(Wait::Yield);
/// turns.add(&desk.quotes)?;
/// turns.add(&desk.trades)?;
/// trades_out.publish(b"100 at 10025")?;
/// match turns.recv(&mut [&mut desk.quotes, &mut desk.trades])? {
///     (1, Event::Message(m)) => assert_eq!(m.payload, b"100 at 10025"),
///     (index, other) => println!("{index}: {other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Turns {
    wait: Wait,
    /// The index of the subscriber that is polled first. It follows the subscriber that was polled last.
    next: usize,
    /// The bells of the subscribers that park; `None` if no subscriber parks.
    bells: Option<Bells>,
    /// For each added subscriber, the number of its bell; `None` for a subscriber that does not park.
    added: Vec<Option<u64>>,
}

/// Subscribers that a caller lends to [`Turns`] for a call. This trait is implemented for arrays and slices of [`Subscriber`]s, or of
/// values that borrow one.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
/// use shmcast::{Lent, Subscriber, Turns, Wait};
/// /// Subscribers, and their names.
/// struct Named(Vec<(String, Subscriber)>);
/// impl Lent for Named {
///     fn count(&self) -> usize {
///         self.0.len()
///     }
///     fn subscriber(&self, index: usize) -> &Subscriber {
///         &self.0[index].1
///     }
///     fn subscriber_mut(&mut self, index: usize) -> &mut Subscriber {
///         &mut self.0[index].1
///     }
/// }
/// let mut named = Named(vec![("ticks".into(), Subscriber::builder("t").dir(dir.path()).open()?)]);
/// assert_eq!(Turns::new(Wait::Yield).try_recv(&mut named)?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Lent {
    /// The number of subscribers.
    fn count(&self) -> usize;
    /// The subscriber with this index. The index must be less than the count.
    fn subscriber(&self, index: usize) -> &Subscriber;
    /// The same subscriber, to receive from.
    fn subscriber_mut(&mut self, index: usize) -> &mut Subscriber;
}

impl<S: BorrowMut<Subscriber>> Lent for [S] {
    fn count(&self) -> usize {
        self.len()
    }

    fn subscriber(&self, index: usize) -> &Subscriber {
        self[index].borrow()
    }

    fn subscriber_mut(&mut self, index: usize) -> &mut Subscriber {
        self[index].borrow_mut()
    }
}

impl<S: BorrowMut<Subscriber>, const N: usize> Lent for [S; N] {
    fn count(&self) -> usize {
        N
    }

    fn subscriber(&self, index: usize) -> &Subscriber {
        self[index].borrow()
    }

    fn subscriber_mut(&mut self, index: usize) -> &mut Subscriber {
        self[index].borrow_mut()
    }
}

/// An event of the subscriber of this index.
pub(super) type Found = (usize, Outcome);

/// The next step when there is nothing to receive.
enum Rest {
    /// There is an event.
    Found(Found),
    /// Look again.
    None,
    /// Sleep for this long, or until a bell rings.
    Nap(Duration),
}

impl Turns {
    /// Makes a value without subscribers, which waits by the strategy `wait`.
    ///
    /// ```
    /// let turns = shmcast::Turns::new(shmcast::Wait::Park);
    /// ```
    pub fn new(wait: Wait) -> Self {
        Self { wait, next: 0, bells: None, added: Vec::new() }
    }

    /// Adds a subscriber, so that it can be woken, and returns its index: the number of subscribers before it.
    ///
    /// # Errors
    /// The system's error, if there is no descriptor left for a subscriber that parks.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// let mut turns = shmcast::Turns::new(shmcast::Wait::Yield);
    /// assert_eq!(turns.add(&subscriber)?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add(&mut self, subscriber: &Subscriber) -> io::Result<usize> {
        let index = self.added.len();
        if let Some(parking) = &subscriber.parking {
            let bells = match self.bells.take() {
                Some(bells) => bells,
                None => Bells::new()?,
            };
            self.bells.insert(bells).add(index, parking)?;
        }
        self.added.push(subscriber.parking.as_ref().map(Parking::id));
        Ok(index)
    }

    /// Waits for the next event of any of these subscribers and returns it with the subscriber's index.
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
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// let mut turns = shmcast::Turns::new(shmcast::Wait::Yield);
    /// let ticks = turns.add(&subscriber)?;
    /// publisher.publish(b"x")?;
    /// let mut lent = [&mut subscriber];
    /// let (index, event) = turns.recv(&mut lent)?;
    /// assert!(index == ticks && matches!(event, shmcast::Event::Message(_)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recv<'a, S: Lent + ?Sized>(
        &mut self,
        subscribers: &'a mut S,
    ) -> Result<(usize, Event<'a>), SelectError> {
        let found = self.find(subscribers, None)?.expect("waiting without a deadline ends with an event");
        Ok(lend(subscribers, found))
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
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// use std::time::{Duration, Instant};
    /// let mut turns = shmcast::Turns::new(shmcast::Wait::Yield);
    /// let soon = Instant::now() + Duration::from_millis(5);
    /// assert_eq!(turns.recv_deadline(&mut [&mut subscriber], soon)?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recv_deadline<'a, S: Lent + ?Sized>(
        &mut self,
        subscribers: &'a mut S,
        deadline: Instant,
    ) -> Result<Option<(usize, Event<'a>)>, SelectError> {
        let found = self.find(subscribers, Some(deadline))?;
        Ok(found.map(|found| lend(subscribers, found)))
    }

    /// Returns the next event of any of these subscribers if there is one. Never waits.
    ///
    /// If a subscriber has [`tags`](crate::SubscriberBuilder::tags), `None` can also mean that it has left out many messages, and that more
    /// can follow.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// assert_eq!(shmcast::Turns::new(shmcast::Wait::Yield).try_recv(&mut [&mut subscriber])?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_recv<'a, S: Lent + ?Sized>(
        &mut self,
        subscribers: &'a mut S,
    ) -> Result<Option<(usize, Event<'a>)>, SelectError> {
        let found = match self.poll(subscribers)? {
            None => self.look_by(subscribers, |one| one.look_for_name_at_end().map(|()| None))?,
            found => found,
        };
        Ok(found.map(|found| lend(subscribers, found)))
    }

    /// Waits until there is an event, or until the deadline has passed.
    pub(super) fn find<S: Lent + ?Sized>(
        &mut self,
        subscribers: &mut S,
        deadline: Option<Instant>,
    ) -> Result<Option<Found>, SelectError> {
        expect_some(subscribers);
        let mut waiter = Waiter::default();
        loop {
            if let Some(found) = self.poll(subscribers)? {
                return Ok(Some(found));
            }
            match self.wait {
                _ if stopped_early(subscribers) => {}
                Wait::Park => match self.rest(subscribers)? {
                    Rest::Found(found) => return Ok(Some(found)),
                    Rest::None => {}
                    Rest::Nap(limit) => self.sleep(subscribers, limit.min(time_left(deadline))),
                },
                wait => {
                    if let Wait::Sleep(pause) = wait {
                        std::thread::sleep(pause.min(time_left(deadline)));
                    }
                    if !waiter.idle(wait) {
                        continue;
                    }
                    if let Some(found) = self.look(subscribers)? {
                        return Ok(Some(found));
                    }
                }
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
        }
    }

    /// Like [`find`](Self::find), but has no deadline, and lets other tasks run during the wait.
    #[cfg(feature = "tokio")]
    pub(super) async fn find_async(&mut self, subscribers: &mut [Subscriber]) -> Result<Found, SelectError> {
        expect_some(subscribers);
        tokio::task::coop::consume_budget().await;
        loop {
            for subscriber in &mut *subscribers {
                subscriber.read_ahead_async().await;
            }
            if let Some(found) = self.poll(subscribers)? {
                return Ok(found);
            }
            if stopped_early(subscribers) {
                tokio::task::yield_now().await;
                continue;
            }
            match self.rest(subscribers)? {
                Rest::Found(found) => return Ok(found),
                Rest::None => tokio::task::yield_now().await,
                Rest::Nap(limit) => {
                    let _nap = Nap(self, &*subscribers);
                    match &self.bells {
                        Some(bells) => bells.nap(limit).await,
                        None => tokio::time::sleep(limit).await,
                    }
                }
            }
        }
    }

    /// Polls the subscribers one after another until one has an event. Begins after the subscriber that was polled last.
    #[inline]
    pub(super) fn poll<S: Lent + ?Sized>(
        &mut self,
        subscribers: &mut S,
    ) -> Result<Option<Found>, SelectError> {
        let count = subscribers.count();
        for _ in 0..count {
            let index = if self.next < count { self.next } else { 0 };
            self.next = index + 1;
            let outcome =
                subscribers.subscriber_mut(index).poll().map_err(|source| SelectError { index, source })?;
            if let Some(outcome) = outcome {
                return Ok(Some((index, outcome)));
            }
        }
        Ok(None)
    }

    /// Makes the checks that an empty poll does not make, for each subscriber. Begins after the subscriber that was polled last, and ends at
    /// the first event or error. So a subscriber that fails each time does not hide the events of the others.
    #[cold]
    fn look<S: Lent + ?Sized>(&mut self, subscribers: &mut S) -> Result<Option<Found>, SelectError> {
        self.look_by(subscribers, Subscriber::look)
    }

    #[cold]
    fn look_by<S: Lent + ?Sized>(
        &mut self,
        subscribers: &mut S,
        look: fn(&mut Subscriber) -> Result<Option<Outcome>, RecvError>,
    ) -> Result<Option<Found>, SelectError> {
        let count = subscribers.count();
        for step in 0..count {
            let index = (self.next + step) % count;
            let told = look(subscribers.subscriber_mut(index));
            if matches!(told, Ok(None)) {
                continue;
            }
            self.next = index + 1;
            let told = told.map_err(|source| SelectError { index, source })?;
            return Ok(told.map(|outcome| (index, outcome)));
        }
        Ok(None)
    }

    /// Decides how to wait for the next event. Called after a poll that found nothing. Before this function returns [`Rest::Nap`], it does
    /// three things for every subscriber that can be woken: it announces the position at which the subscriber sleeps, polls it once more,
    /// and sends a byte to the daemon's waker.
    #[cold]
    fn rest<S: Lent + ?Sized>(&mut self, subscribers: &mut S) -> Result<Rest, SelectError> {
        if let Some(found) = self.look(subscribers)? {
            return Ok(Rest::Found(found));
        }
        if each(subscribers).any(Subscriber::is_leaving) {
            return Ok(Rest::None);
        }
        let mut longest = Duration::MAX;
        for index in 0..subscribers.count() {
            let subscriber = subscribers.subscriber_mut(index);
            let is_watched = subscriber.lie_down();
            let parking =
                subscriber.parking.as_ref().filter(|parking| is_watched && self.hears(index, parking));
            longest = longest.min(parking.map_or(ALONE, Parking::longest));
        }
        let moves = |of: &S| each(of).map(|subscriber| subscriber.moves).sum::<u64>();
        let before = moves(subscribers);
        let found = self.poll(subscribers);
        // A subscriber that has moved to another segment has not polled there yet.
        let is_leaving = each(subscribers).any(Subscriber::is_leaving)
            || moves(subscribers) != before
            || stopped_early(subscribers);
        if found.as_ref().is_ok_and(Option::is_none) && !is_leaving {
            parked(subscribers).for_each(Parking::ring);
            return Ok(Rest::Nap(longest));
        }
        drop(Nap(self, subscribers));
        Ok(found?.map_or(Rest::None, Rest::Found))
    }

    /// Whether a sleep ends when this bell rings.
    fn hears(&self, index: usize, parking: &Parking) -> bool {
        self.added.get(index).copied().flatten() == Some(parking.id())
    }

    fn sleep<S: Lent + ?Sized>(&self, subscribers: &S, limit: Duration) {
        let _nap = Nap(self, subscribers);
        match &self.bells {
            Some(bells) => bells.sleep(limit),
            None => std::thread::sleep(limit),
        }
    }
}

fn expect_some<S: Lent + ?Sized>(subscribers: &S) {
    assert!(subscribers.count() > 0, "a select without subscribers would wait for ever: add one");
}

fn each<S: Lent + ?Sized>(subscribers: &S) -> impl Iterator<Item = &Subscriber> {
    (0..subscribers.count()).map(|index| subscribers.subscriber(index))
}

/// The subscribers that can be woken.
fn parked<S: Lent + ?Sized>(subscribers: &S) -> impl Iterator<Item = &Parking> {
    each(subscribers).filter_map(|subscriber| subscriber.parking.as_ref())
}

fn lend<S: Lent + ?Sized>(subscribers: &S, (index, outcome): Found) -> (usize, Event<'_>) {
    (index, subscribers.subscriber(index).lend(outcome))
}

/// Whether a subscriber must be polled again without a sleep, because its last poll left out many messages and ended early.
fn stopped_early<S: Lent + ?Sized>(subscribers: &mut S) -> bool {
    let mut any = false;
    for index in 0..subscribers.count() {
        any |= subscribers.subscriber_mut(index).take_stopped_early();
    }
    any
}

/// A guard for the time of one sleep of all subscribers. Its drop writes to the subscribers' pages that they are awake, and empties the
/// bells that rang. This happens even if the future that waits is dropped before the sleep is over.
struct Nap<'a, S: Lent + ?Sized>(&'a Turns, &'a S);

impl<S: Lent + ?Sized> Drop for Nap<'_, S> {
    fn drop(&mut self) {
        let Self(turns, subscribers) = self;
        parked(*subscribers).for_each(Parking::rise);
        let Some(bells) = &turns.bells else { return };
        bells.ringing(|index| {
            if index < subscribers.count()
                && let Some(parking) = &subscribers.subscriber(index).parking
            {
                parking.hear();
            }
        });
    }
}
