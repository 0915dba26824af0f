//! Receives from several channels, each of which has its own type.

use super::schema::{Codec, Schema, check};
use super::subscriber::{Event, RecvError, Subscriber};
use crate::subscriber::{Select, SelectError};
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::time::Instant;

/// A typed subscriber in a [`Select`]. [`Select::add_typed`] returns it. It decodes this subscriber's events to values of the type.
///
/// ```
/// # #[cfg(feature = "pod")] {
/// # let dir = tempfile::tempdir()?;
/// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
/// # #[repr(C)]
/// # struct Quote { bid: i64, ask: i64 }
/// # impl shmcast::typed::Schema for Quote { const ID: u64 = 7; const NAME: &'static str = "quote/1"; }
/// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
/// # #[repr(C)]
/// # struct Trade { price: i64 }
/// # impl shmcast::typed::Schema for Trade { const ID: u64 = 8; const NAME: &'static str = "trade/1"; }
/// # let out = |name: &str| shmcast::Publisher::builder(name).dir(dir.path()).capacity(64 << 10);
/// # let (quotes_out, mut trades_out) = (out("quotes").open_pod::<Quote>()?, out("trades").open_pod::<Trade>()?);
/// # let log_out = out("log").open()?;
/// use shmcast::{Select, Subscriber, Wait, typed::Event};
/// let open = |name: &str| Subscriber::builder(name).dir(dir.path());
/// let mut select = Select::new(Wait::Yield);
/// let mut quotes = select.add_typed(open("quotes").open_pod::<Quote>()?)?;
/// let mut trades = select.add_typed(open("trades").open_pod::<Trade>()?)?;
/// select.add(open("log").open()?)?;
/// trades_out.publish(&Trade { price: 10_025 })?;
///
/// let selected = select.recv_typed()?;
/// if let Some(quote) = selected.of(&mut quotes) {
///     println!("{:?}", quote?);
/// } else if let Some(trade) = selected.of(&mut trades) {
///     match trade? {
///         Event::Message(trade) => assert_eq!(trade.payload, Trade { price: 10_025 }),
///         other => println!("{other:?}"), // a loss or an end is told of each channel
///     }
/// } else {
///     println!("{:?}", selected.event()); // of the log, as bytes
/// }
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Member<T, C> {
    index: usize,
    /// UUID of the last ring whose schema matched this type's.
    checked: [u64; 2],
    types: PhantomData<fn(C) -> T>,
}

impl<T, C> Member<T, C> {
    /// The index of the subscriber in its select, counted together with the subscribers of [`Select::add`].
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// # let publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// # let subscriber = shmcast::Subscriber::builder("p").dir(dir.path()).open_pod::<Price>()?;
    /// let mut select = shmcast::Select::new(shmcast::Wait::Yield);
    /// let prices = select.add_typed(subscriber)?;
    /// assert_eq!(select.get(prices.index()).expect("just added").lag(), 0);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn index(&self) -> usize {
        self.index
    }
}

impl<T, C> fmt::Debug for Member<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("index", &self.index).finish_non_exhaustive()
    }
}

/// An event that a [`Select`] has received. It counts as received, even if the program ignores it.
#[must_use = "the event has been received, and nobody else gets it"]
pub struct Selected<'a> {
    index: usize,
    event: crate::Event<'a>,
    subscriber: &'a crate::Subscriber,
}

impl<'a> Selected<'a> {
    fn new((index, event, subscriber): (usize, crate::Event<'a>, &'a crate::Subscriber)) -> Self {
        Self { index, event, subscriber }
    }

    /// The index of the subscriber that received the event.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// let mut select = shmcast::Select::new(shmcast::Wait::Yield);
    /// let log = select.add(subscriber)?;
    /// publisher.publish(b"x")?;
    /// assert_eq!(select.recv_typed()?.index(), log);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn index(&self) -> usize {
        self.index
    }

    /// The event with its payload as bytes.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// let mut select = shmcast::Select::new(shmcast::Wait::Yield);
    /// select.add(subscriber)?;
    /// publisher.publish(b"x")?;
    /// assert!(matches!(select.recv_typed()?.event(), shmcast::Event::Message(m) if m.payload == b"x"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn event(&self) -> crate::Event<'a> {
        self.event
    }

    /// The event with its payload as a value of the member's type; `None` if another subscriber received the event. Each call decodes.
    ///
    /// # Errors
    /// [`RecvError::Decode`] and [`RecvError::Schema`], as for a typed [`Subscriber`].
    ///
    /// See [`Member`] for an example.
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// # let mut publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// # let subscriber = shmcast::Subscriber::builder("p").dir(dir.path()).open_pod::<Price>()?;
    /// use shmcast::typed::Event;
    /// let mut select = shmcast::Select::new(shmcast::Wait::Yield);
    /// let mut prices = select.add_typed(subscriber)?;
    /// publisher.publish(&Price(10_025))?;
    /// let price = select.recv_typed()?.of(&mut prices).transpose()?;
    /// assert!(matches!(price, Some(Event::Message(m)) if m.payload == Price(10_025)));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn of<T: Schema, C: Codec<T>>(
        &self,
        member: &mut Member<T, C>,
    ) -> Option<Result<Event<T>, RecvError>> {
        if self.index != member.index {
            return None;
        }
        Some(check(self.subscriber, &mut member.checked, self.event.try_map(C::decode)))
    }
}

impl fmt::Debug for Selected<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Selected");
        f.field("index", &self.index).field("event", &self.event).finish_non_exhaustive()
    }
}

impl Select {
    /// Adds a typed subscriber. [`recv_typed`](Self::recv_typed) and the similar calls return its events, in turn with those of all other
    /// subscribers. [`recv`](Self::recv) returns them as bytes.
    ///
    /// # Errors
    /// The same as for [`add`](Self::add).
    ///
    /// See [`Member`] for an example.
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// # let publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// # let subscriber = shmcast::Subscriber::builder("p").dir(dir.path()).open_pod::<Price>()?;
    /// let mut select = shmcast::Select::new(shmcast::Wait::Yield);
    /// assert_eq!(select.add_typed(subscriber)?.index(), 0);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_typed<T: Schema, C: Codec<T>>(
        &mut self,
        subscriber: Subscriber<T, C>,
    ) -> io::Result<Member<T, C>> {
        let (untyped, checked) = subscriber.into_parts();
        Ok(Member { index: self.add(untyped)?, checked, types: PhantomData })
    }

    /// Waits as [`recv`](Self::recv) does. [`Selected::of`] turns the returned event into a value. Costs the same as `recv`, plus the
    /// decoding.
    ///
    /// # Errors
    /// Those of `recv`.
    ///
    /// # Panics
    /// If there is no subscriber.
    ///
    /// See [`Member`] for an example.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// let mut select = shmcast::Select::new(shmcast::Wait::Yield);
    /// select.add(subscriber)?;
    /// publisher.publish(b"x")?;
    /// assert_eq!(select.recv_typed()?.index(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn recv_typed(&mut self) -> Result<Selected<'_>, SelectError> {
        let found = self.find(None)?;
        Ok(Selected::new(found.expect("waiting without a deadline ends with an event")))
    }

    /// Waits as [`recv_typed`](Self::recv_typed) does. Returns `None` if nothing arrived before `deadline`.
    ///
    /// # Errors
    /// Those of `recv`.
    ///
    /// # Panics
    /// If there is no subscriber.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// use std::time::{Duration, Instant};
    /// let mut select = shmcast::Select::new(shmcast::Wait::Yield);
    /// select.add(subscriber)?;
    /// assert!(select.recv_typed_deadline(Instant::now() + Duration::from_millis(5))?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn recv_typed_deadline(&mut self, deadline: Instant) -> Result<Option<Selected<'_>>, SelectError> {
        Ok(self.find(Some(deadline))?.map(Selected::new))
    }

    /// Returns the next event of any subscriber if there is one, as [`recv_typed`](Self::recv_typed) does. Never waits.
    ///
    /// # Errors
    /// Those of `recv`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// let mut select = shmcast::Select::new(shmcast::Wait::Yield);
    /// select.add(subscriber)?;
    /// assert!(select.try_recv_typed()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_recv_typed(&mut self) -> Result<Option<Selected<'_>>, SelectError> {
        Ok(self.find_now()?.map(Selected::new))
    }

    /// Waits as [`recv_typed`](Self::recv_typed) does, in an event loop: see [`recv_async`](Self::recv_async).
    ///
    /// # Errors
    /// Those of `recv`.
    ///
    /// # Panics
    /// The same as for `recv_async`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let mut select = shmcast::Select::new(shmcast::Wait::Park);
    /// select.add(subscriber)?;
    /// publisher.publish(b"x")?;
    /// println!("{:?}", select.recv_typed_async().await?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn recv_typed_async(&mut self) -> Result<Selected<'_>, SelectError> {
        Ok(Selected::new(self.find_async().await?))
    }
}
