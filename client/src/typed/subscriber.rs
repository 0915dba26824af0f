//! The receiving end of a channel of one type.

use super::DecodeError;
#[cfg(feature = "pod")]
use super::Pod;
#[cfg(feature = "serde")]
use super::Serde;
use super::schema::{Codec, Schema, check, schema};
use crate::error::{ChannelError, SchemaId};
use crate::owned::OwnedEvent;
use crate::subscriber::{Border, SubscriberBuilder, in_batch};
use shmcast_layout::ring::reader::Flow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Instant;
use thiserror::Error;

/// An event of a typed subscriber. Its message is a value of the type.
pub type Event<T> = OwnedEvent<T>;

/// The reason why a typed subscriber returned no event.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecvError {
    /// The untyped subscriber returned this error.
    #[error(transparent)]
    Recv(#[from] crate::RecvError),
    /// The message is not a value of the type, although the channel has that type. The message counts as received, so the next call returns
    /// the event after it.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The message has another type than the requested one. There are two possible reasons: the channel now has another schema in the
    /// daemon's configuration, or the message comes from the channel's journal and was published before such a change.
    ///
    /// The message counts as received. Later messages from the journal can have the requested type again. Events that are no messages are
    /// still returned.
    #[error(
        "the channel goes on with {found} here, and {wanted} was asked for: subscribe again with that type, or begin behind these messages"
    )]
    Schema {
        /// The schema of the message.
        found: SchemaId,
        /// The requested schema.
        wanted: SchemaId,
    },
}

/// Receives values of one type. It dereferences to the untyped [`Subscriber`](crate::Subscriber), for getters such as `lag`.
///
/// Each message is decoded into a new value. To read a large value of fixed layout in place, use the untyped subscriber and
/// [`Message::pod`](crate::Message::pod).
///
/// ```
/// # #[cfg(feature = "pod")] {
/// # let dir = tempfile::tempdir()?;
/// # #[derive(Debug, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
/// # #[repr(C)]
/// # struct Price(i64);
/// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
/// # let publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10);
/// use shmcast::{ChannelError, Subscriber};
/// let bytes = publisher.open()?; // of no schema
/// let refused = Subscriber::builder("p").dir(dir.path()).open_pod::<Price>();
/// assert!(matches!(refused, Err(ChannelError::Schema { found, .. }) if found.id == 0));
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Subscriber<T, C> {
    untyped: crate::Subscriber,
    /// UUID of the last ring whose schema matched this type's.
    checked: [u64; 2],
    types: PhantomData<fn(C) -> T>,
}

impl<T: Schema, C: Codec<T>> Subscriber<T, C> {
    /// Waits for the next event and returns it, as [`Subscriber::recv`](crate::Subscriber::recv) does.
    ///
    /// # Errors
    /// [`RecvError`].
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// # let mut publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// # let mut prices = shmcast::Subscriber::builder("p").dir(dir.path()).open_pod::<Price>()?;
    /// use shmcast::typed::Event;
    /// publisher.publish(&Price(10_025))?;
    /// match prices.recv()? {
    ///     Event::Message(m) => assert_eq!((m.sequence, m.payload), (1, Price(10_025))),
    ///     other => println!("{other:?}"),
    /// }
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn recv(&mut self) -> Result<Event<T>, RecvError> {
        let event = self.untyped.recv()?.try_map(C::decode);
        self.check(event)
    }

    /// Waits as [`recv`](Self::recv) does. Returns `None` if nothing arrived before `deadline`.
    ///
    /// # Errors
    /// [`RecvError`].
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// # let publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// # let mut prices = shmcast::Subscriber::builder("p").dir(dir.path()).open_pod::<Price>()?;
    /// use std::time::{Duration, Instant};
    /// assert_eq!(prices.recv_deadline(Instant::now() + Duration::from_millis(5))?, None);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<Option<Event<T>>, RecvError> {
        let Some(event) = self.untyped.recv_deadline(deadline)? else { return Ok(None) };
        let event = event.try_map(C::decode);
        self.check(event).map(Some)
    }

    /// Returns the next event if there is one. Never waits for one.
    ///
    /// # Errors
    /// [`RecvError`].
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// # let mut publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// use shmcast::{Subscriber, typed::Event};
    /// let mut prices = Subscriber::builder("p").dir(dir.path()).open_pod::<Price>()?;
    /// assert_eq!(prices.try_recv()?, None);
    /// publisher.publish(&Price(10_025))?;
    /// assert!(matches!(prices.try_recv()?, Some(Event::Message(m)) if m.payload == Price(10_025)));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_recv(&mut self) -> Result<Option<Event<T>>, RecvError> {
        let Some(event) = self.untyped.try_recv()? else { return Ok(None) };
        let event = event.try_map(C::decode);
        self.check(event).map(Some)
    }

    /// Passes up to `most` available events to `each`, and returns their number, as
    /// [`Subscriber::recv_batch`](crate::Subscriber::recv_batch) does. Never waits. An event costs as much as with
    /// [`try_recv`](Self::try_recv).
    ///
    /// `each` returns nothing, or a [`ControlFlow`](std::ops::ControlFlow) that can stop the batch. The event that stopped the batch has
    /// been received and counts.
    ///
    /// # Errors
    /// [`RecvError`]. The events before the error have been passed to `each`.
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// # let mut publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// # let mut prices = shmcast::Subscriber::builder("p").dir(dir.path()).open_pod::<Price>()?;
    /// use shmcast::typed::Event;
    /// use std::ops::ControlFlow;
    /// for cents in [10_025, 10_030, 10_035] {
    ///     publisher.publish(&Price(cents))?;
    /// }
    /// let until_30 = |event: Event<Price>| match event {
    ///     Event::Message(m) if m.payload == Price(10_030) => ControlFlow::Break(()),
    ///     _ => ControlFlow::Continue(()),
    /// };
    /// assert_eq!(prices.recv_batch(64, until_30)?, 2);
    /// assert_eq!(prices.recv_batch(64, |_| ())?, 1);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn recv_batch<F: Flow>(
        &mut self,
        most: usize,
        each: impl FnMut(Event<T>) -> F,
    ) -> Result<usize, RecvError> {
        in_batch(self, |own| &mut own.untyped, |own| own.pass_on(most, each))
    }

    #[inline]
    fn pass_on<F: Flow>(
        &mut self,
        most: usize,
        mut each: impl FnMut(Event<T>) -> F,
    ) -> Result<usize, RecvError> {
        let mut handed = 0;
        while handed < most {
            let Some(event) = self.try_recv()? else { break };
            handed += 1;
            let border = match event {
                Event::Restarted => Some(Border::Restarted),
                Event::Live { .. } => Some(Border::Live),
                _ => None,
            };
            let stops = each(event).stops();
            if stops || border.is_some_and(|border| self.untyped.has_changed_ring(border)) {
                break;
            }
        }
        Ok(handed)
    }

    /// Waits as [`recv`](Self::recv) does, in an event loop: see
    /// [`Subscriber::recv_async`](crate::Subscriber::recv_async).
    ///
    /// # Errors
    /// [`RecvError`].
    ///
    /// # Panics
    /// Outside of a tokio runtime, if it has to wait.
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// # let mut publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// # let mut prices = shmcast::Subscriber::builder("p").dir(dir.path()).open_pod::<Price>()?;
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// publisher.publish(&Price(10_025))?;
    /// println!("{:?}", prices.recv_async().await?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn recv_async(&mut self) -> Result<Event<T>, RecvError> {
        let event = self.untyped.recv_async().await?.try_map(C::decode);
        self.check(event)
    }

    /// Iterates over all later events. Each step waits as [`recv`](Self::recv) does. The iterator never ends.
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// # let mut publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// # let mut prices = shmcast::Subscriber::builder("p").dir(dir.path()).open_pod::<Price>()?;
    /// use shmcast::typed::Event;
    /// publisher.publish(&Price(10_025))?;
    /// publisher.close();
    /// for event in prices.iter() {
    ///     match event? {
    ///         Event::Message(price) => println!("{:?}", price.payload),
    ///         Event::End => break,
    ///         other => println!("{other:?}"),
    ///     }
    /// }
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&mut self) -> Iter<'_, T, C> {
        Iter { subscriber: self }
    }

    /// All later events as a stream: see [`Subscriber::stream`](crate::Subscriber::stream).
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// # let mut publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// # let mut prices = shmcast::Subscriber::builder("p").dir(dir.path()).open_pod::<Price>()?;
    /// use futures_util::StreamExt;
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// publisher.publish(&Price(10_025))?;
    /// let first = prices.stream().next().await;
    /// assert!(matches!(first, Some(Ok(shmcast::typed::Event::Message(m))) if m.payload == Price(10_025)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tokio")]
    pub fn stream(&mut self) -> crate::EventStream<'_, Result<Event<T>, RecvError>>
    where
        T: Send,
    {
        let events = futures_util::stream::unfold(self, |own| async {
            let event = own.recv_async().await;
            Some((event, own))
        });
        crate::EventStream::new(events)
    }

    /// Does the same as [`stream`](Self::stream), but the stream owns the subscriber, so that a task can own the stream.
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// # let mut publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// # let prices = shmcast::Subscriber::builder("p").dir(dir.path()).open_pod::<Price>()?;
    /// use futures_util::StreamExt;
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// publisher.publish(&Price(10_025))?;
    /// let prices = prices.into_stream();
    /// let received = tokio::spawn(async move { prices.take(1).count().await });
    /// assert_eq!(received.await?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tokio")]
    pub fn into_stream(self) -> crate::EventStream<'static, Result<Event<T>, RecvError>>
    where
        T: Send + 'static,
        C: 'static,
    {
        let events = futures_util::stream::unfold(self, |mut own| async {
            let event = own.recv_async().await;
            Some((event, own))
        });
        crate::EventStream::new(events)
    }

    /// Continues at message `sequence`, as [`Subscriber::seek`](crate::Subscriber::seek) does.
    ///
    /// # Errors
    /// Those of `seek`.
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// # let mut publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// # let mut prices = shmcast::Subscriber::builder("p").dir(dir.path()).open_pod::<Price>()?;
    /// publisher.publish(&Price(1))?;
    /// publisher.publish(&Price(2))?;
    /// prices.seek(2)?;
    /// assert!(matches!(prices.recv()?, shmcast::typed::Event::Message(m) if m.payload == Price(2)));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn seek(&mut self, sequence: u64) -> Result<(), crate::LocateError> {
        self.untyped.seek(sequence)
    }

    /// Returns the same subscriber without its type. [`Select::add_typed`](crate::Select::add_typed) takes a subscriber with its type.
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// # let publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// # let prices = shmcast::Subscriber::builder("p").dir(dir.path()).open_pod::<Price>()?;
    /// let mut select = shmcast::Select::new(shmcast::Wait::Yield);
    /// select.add(prices.into_untyped())?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_untyped(self) -> crate::Subscriber {
        self.untyped
    }

    /// Returns the untyped subscriber, and the ring whose schema matched.
    pub(super) fn into_parts(self) -> (crate::Subscriber, [u64; 2]) {
        (self.untyped, self.checked)
    }

    #[inline]
    fn check(&mut self, event: Result<Event<T>, DecodeError>) -> Result<Event<T>, RecvError> {
        check(&self.untyped, &mut self.checked, event)
    }
}

impl<T, C> Deref for Subscriber<T, C> {
    type Target = crate::Subscriber;

    fn deref(&self) -> &crate::Subscriber {
        &self.untyped
    }
}

impl<T, C> fmt::Debug for Subscriber<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.untyped.fmt(f)
    }
}

/// The iterator of [`Subscriber::iter`].
#[derive(Debug)]
pub struct Iter<'a, T, C> {
    subscriber: &'a mut Subscriber<T, C>,
}

impl<T: Schema, C: Codec<T>> Iterator for Iter<'_, T, C> {
    type Item = Result<Event<T>, RecvError>;

    /// Waits as [`Subscriber::recv`] does. Never returns `None`: after the end of a stream, another publisher can begin.
    fn next(&mut self) -> Option<Self::Item> {
        Some(self.subscriber.recv())
    }
}

impl SubscriberBuilder {
    /// Opens a channel of values of fixed layout, as [`open`](Self::open) does.
    ///
    /// # Errors
    /// Those of `open`, and [`ChannelError::Schema`] if the channel's schema differs from the type's.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use zerocopy::{FromBytes, Immutable, IntoBytes};
    /// #[derive(FromBytes, IntoBytes, Immutable)]
    /// #[repr(C)]
    /// struct Price(i64);
    /// impl shmcast::typed::Schema for Price {
    ///     const ID: u64 = 9;
    ///     const NAME: &'static str = "price/1";
    /// }
    /// # let publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// let subscriber = shmcast::Subscriber::builder("p").dir(dir.path()).open_pod::<Price>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "pod")]
    pub fn open_pod<T: Schema>(self) -> Result<Subscriber<T, Pod>, ChannelError>
    where
        Pod: Codec<T>,
    {
        self.open_typed()
    }

    /// Opens a channel of values of a serde type, as [`open`](Self::open) does.
    ///
    /// # Errors
    /// Those of `open`, and [`ChannelError::Schema`] if the channel's schema differs from the type's.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use serde::{Deserialize, Serialize};
    /// #[derive(Serialize, Deserialize)]
    /// struct Halt { reason: String }
    /// impl shmcast::typed::Schema for Halt {
    ///     const ID: u64 = 10;
    ///     const NAME: &'static str = "halt/1";
    /// }
    /// # let publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_serde::<Halt>()?;
    /// let subscriber = shmcast::Subscriber::builder("p").dir(dir.path()).open_serde::<Halt>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "serde")]
    pub fn open_serde<T: Schema>(self) -> Result<Subscriber<T, Serde>, ChannelError>
    where
        Serde: Codec<T>,
    {
        self.open_typed()
    }

    fn open_typed<T: Schema, C>(self) -> Result<Subscriber<T, C>, ChannelError> {
        let untyped = self.schema_of(schema::<T>()).open()?;
        Ok(Subscriber { checked: untyped.header().uuid, untyped, types: PhantomData })
    }
}
