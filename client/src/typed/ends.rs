//! A publisher and subscribers of one type.

#[cfg(feature = "serde")]
use super::EncodeError;
use super::{DecodeError, Message};
use crate::error::{ChannelError, SchemaId};
use crate::owned::OwnedEvent;
use crate::{Mark, PublisherBuilder, SubscriberBuilder};
#[cfg(feature = "serde")]
use serde::{Serialize, de::DeserializeOwned};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Instant;
use thiserror::Error;
#[cfg(feature = "pod")]
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What a subscriber of a type hands out: an event whose message is a value of the type.
pub type Event<T> = OwnedEvent<T>;

/// A type that a channel's messages may have, by number and name.
///
/// Both are written into the channel when it is made, and both are compared when an end opens it. Neither is derived from the
/// type: change them whenever its bytes come to mean something else, such as after a field was added.
pub trait Schema {
    /// Its number, by which programs tell schemas apart: anything but 0.
    const ID: u64;
    /// Its name, for people and for programs that disagree on numbers, such as `"quote/1"`.
    const NAME: &'static str;
}

/// How values of a type become messages and the reverse: [`Pod`] or [`Serde`].
pub trait Codec<T>: sealed::Sealed {
    /// Why a value was not published.
    type PublishError: std::error::Error + Send + Sync + 'static;

    #[doc(hidden)]
    fn publish(publisher: &mut crate::Publisher, value: &T, mark: Mark) -> Result<u64, Self::PublishError>;

    #[doc(hidden)]
    fn decode(message: &Message<'_>) -> Result<T, DecodeError>;
}

mod sealed {
    pub trait Sealed {}
}

/// Plain old data: a message is the value's own bytes. Both ends must lay the type out alike: `#[repr(C)]`, the same word
/// size, the same byte order.
#[cfg(feature = "pod")]
#[derive(Debug, Clone, Copy)]
pub struct Pod;

#[cfg(feature = "pod")]
impl sealed::Sealed for Pod {}

#[cfg(feature = "pod")]
impl<T: FromBytes + IntoBytes + Immutable> Codec<T> for Pod {
    type PublishError = crate::PublishError;

    #[inline]
    fn publish(publisher: &mut crate::Publisher, value: &T, mark: Mark) -> Result<u64, Self::PublishError> {
        publisher.publish_pod_with(value, mark)
    }

    #[inline]
    fn decode(message: &Message<'_>) -> Result<T, DecodeError> {
        let (sequence, found, wanted) = (message.sequence, message.payload.len(), size_of::<T>());
        T::read_from_bytes(message.payload).map_err(|_| DecodeError::Size { sequence, found, wanted })
    }
}

/// Any serde type: a message is the value in the postcard format.
#[cfg(feature = "serde")]
#[derive(Debug, Clone, Copy)]
pub struct Serde;

#[cfg(feature = "serde")]
impl sealed::Sealed for Serde {}

#[cfg(feature = "serde")]
impl<T: Serialize + DeserializeOwned> Codec<T> for Serde {
    type PublishError = EncodeError;

    fn publish(publisher: &mut crate::Publisher, value: &T, mark: Mark) -> Result<u64, Self::PublishError> {
        publisher.publish_serde_with(value, mark)
    }

    fn decode(message: &Message<'_>) -> Result<T, DecodeError> {
        message.decode()
    }
}

/// Why a subscriber of a type handed out no event.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecvError {
    /// Nothing more can be received.
    #[error(transparent)]
    Recv(#[from] crate::RecvError),
    /// The message is no value of the type, although the channel is for it. It has been received: the next call returns the
    /// event behind it.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The message is of another type: the channel goes on with another schema, which its daemon was configured to. It has been
    /// received, and so will be all that follow. Events that are no messages still come.
    #[error(
        "the channel goes on with {found}, and {wanted} was asked for: subscribe again with the new type"
    )]
    Schema {
        /// Its schema now.
        found: SchemaId,
        /// The schema asked for.
        wanted: SchemaId,
    },
}

fn schema<T: Schema>() -> SchemaId {
    const { assert!(T::ID != 0, "a schema's number must not be 0, which stands for none") };
    SchemaId { id: T::ID, name: T::NAME.to_owned() }
}

/// Publishes values of one type. What there is to know of the untyped [`Publisher`](crate::Publisher), it dereferences to.
///
/// ```
/// # #[cfg(feature = "serde")] {
/// # let dir = tempfile::tempdir()?;
/// use serde::{Deserialize, Serialize};
/// use shmcast::{Publisher, typed::Schema};
/// #[derive(Serialize, Deserialize)]
/// enum News { Halted { instrument: u64, reason: String }, Resumed { instrument: u64 } }
/// impl Schema for News {
///     const ID: u64 = 8;
///     const NAME: &'static str = "news/1";
/// }
/// let mut news = Publisher::builder("news").dir(dir.path()).capacity(64 << 10).open_serde::<News>()?;
/// news.publish(&News::Halted { instrument: 7, reason: "volatility".into() })?;
/// news.publish(&News::Resumed { instrument: 7 })?;
/// assert_eq!(news.next_sequence(), 3);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Publisher<T, C> {
    untyped: crate::Publisher,
    types: PhantomData<fn(T, C)>,
}

impl<T: Schema, C: Codec<T>> Publisher<T, C> {
    /// Publishes a value; returns its sequence. Costs what [`publish_pod`](crate::Publisher) or `publish_serde` costs.
    ///
    /// # Errors
    /// [`PublishError`](crate::PublishError) or [`EncodeError`](crate::EncodeError); nothing is published then.
    #[inline]
    pub fn publish(&mut self, value: &T) -> Result<u64, C::PublishError> {
        C::publish(&mut self.untyped, value, Mark::default())
    }

    /// As [`publish`](Self::publish), with a tag or as a key message.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # struct Level;
    /// # #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// use shmcast::{Mark, Publisher};
    /// let mut prices = Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// prices.publish_with(&Price(10_025), Mark { tag: 7, key: true })?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn publish_with(&mut self, value: &T, mark: Mark) -> Result<u64, C::PublishError> {
        C::publish(&mut self.untyped, value, mark)
    }

    /// Closes the channel, as [`Publisher::close`](crate::Publisher::close) does.
    pub fn close(self) {}

    /// The same end without its type, such as to send bytes that were encoded elsewhere.
    pub fn into_untyped(self) -> crate::Publisher {
        self.untyped
    }
}

impl<T, C> Deref for Publisher<T, C> {
    type Target = crate::Publisher;

    fn deref(&self) -> &crate::Publisher {
        &self.untyped
    }
}

impl<T, C> fmt::Debug for Publisher<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.untyped.fmt(f)
    }
}

/// Receives values of one type. What there is to know of the untyped [`Subscriber`](crate::Subscriber), it dereferences to.
///
/// Each value is decoded into one of its own. Large ones of fixed layout can be read in place instead, by the untyped end and
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
    /// The segment whose schema was found to be this type's.
    checked: [u64; 2],
    types: PhantomData<fn(C) -> T>,
}

impl<T: Schema, C: Codec<T>> Subscriber<T, C> {
    /// Waits for the next event and returns it, as [`Subscriber::recv`](crate::Subscriber::recv) does.
    ///
    /// # Errors
    /// [`RecvError`].
    #[inline]
    pub fn recv(&mut self) -> Result<Event<T>, RecvError> {
        let event = self.untyped.recv()?.try_map(C::decode);
        self.check(event)
    }

    /// As [`recv`](Self::recv), but `None` when nothing came before `deadline`.
    ///
    /// # Errors
    /// [`RecvError`].
    #[inline]
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<Option<Event<T>>, RecvError> {
        let Some(event) = self.untyped.recv_deadline(deadline)? else { return Ok(None) };
        let event = event.try_map(C::decode);
        self.check(event).map(Some)
    }

    /// The next event if there is one. Never waits.
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

    /// As [`recv`](Self::recv), in an event loop: see [`Subscriber::recv_async`](crate::Subscriber::recv_async).
    ///
    /// # Errors
    /// [`RecvError`].
    ///
    /// # Panics
    /// Outside of a tokio runtime, if it has to wait.
    #[cfg(feature = "tokio")]
    pub async fn recv_async(&mut self) -> Result<Event<T>, RecvError> {
        let event = self.untyped.recv_async().await?.try_map(C::decode);
        self.check(event)
    }

    /// The events from here on, one after the other: as [`recv`](Self::recv) again and again, without an end.
    pub fn iter(&mut self) -> Iter<'_, T, C> {
        Iter { subscriber: self }
    }

    /// The events from here on as a stream: see [`Subscriber::stream`](crate::Subscriber::stream).
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

    /// As [`stream`](Self::stream), for a task of its own: the subscriber goes with it.
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

    /// Goes on at message `sequence`, as [`Subscriber::seek`](crate::Subscriber::seek) does.
    ///
    /// # Errors
    /// As there.
    pub fn seek(&mut self, sequence: u64) -> Result<(), crate::LocateError> {
        self.untyped.seek(sequence)
    }

    /// The same end without its type, such as for a [`Select`](crate::Select).
    pub fn into_untyped(self) -> crate::Subscriber {
        self.untyped
    }

    /// Withholds messages of another type. A channel that goes on in other memory may be for another.
    #[inline]
    fn check(&mut self, event: Result<Event<T>, DecodeError>) -> Result<Event<T>, RecvError> {
        let header = self.untyped.header();
        let is_message = matches!(event, Ok(Event::Message(_)) | Err(_));
        if is_message && header.uuid != self.checked {
            let wanted = schema::<T>();
            if !wanted.fits(header) {
                return Err(RecvError::Schema { found: SchemaId::of(header), wanted });
            }
            self.checked = header.uuid;
        }
        Ok(event?)
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

/// What [`Subscriber::iter`] returns.
#[derive(Debug)]
pub struct Iter<'a, T, C> {
    subscriber: &'a mut Subscriber<T, C>,
}

impl<T: Schema, C: Codec<T>> Iterator for Iter<'_, T, C> {
    type Item = Result<Event<T>, RecvError>;

    /// Waits as [`Subscriber::recv`] does. Never `None`: behind an end the next publisher may come.
    fn next(&mut self) -> Option<Self::Item> {
        Some(self.subscriber.recv())
    }
}

impl PublisherBuilder {
    /// As [`open`](Self::open), for a channel of values of fixed layout. A new channel gets the type's [`Schema`].
    ///
    /// # Errors
    /// As there, and [`ChannelError::Schema`] for a channel that exists with another schema.
    #[cfg(feature = "pod")]
    pub fn open_pod<T: Schema>(self) -> Result<Publisher<T, Pod>, ChannelError>
    where
        Pod: Codec<T>,
    {
        self.open_typed()
    }

    /// As [`open`](Self::open), for a channel of values of a serde type. A new channel gets the type's [`Schema`].
    ///
    /// # Errors
    /// As there, and [`ChannelError::Schema`] for a channel that exists with another schema.
    #[cfg(feature = "serde")]
    pub fn open_serde<T: Schema>(self) -> Result<Publisher<T, Serde>, ChannelError>
    where
        Serde: Codec<T>,
    {
        self.open_typed()
    }

    fn open_typed<T: Schema, C>(self) -> Result<Publisher<T, C>, ChannelError> {
        let SchemaId { id, name } = schema::<T>();
        Ok(Publisher { untyped: self.schema(id, name).open()?, types: PhantomData })
    }
}

impl SubscriberBuilder {
    /// As [`open`](Self::open), for a channel of values of fixed layout.
    ///
    /// # Errors
    /// As there, and [`ChannelError::Schema`] for a channel of another schema than the type's.
    #[cfg(feature = "pod")]
    pub fn open_pod<T: Schema>(self) -> Result<Subscriber<T, Pod>, ChannelError>
    where
        Pod: Codec<T>,
    {
        self.open_typed()
    }

    /// As [`open`](Self::open), for a channel of values of a serde type.
    ///
    /// # Errors
    /// As there, and [`ChannelError::Schema`] for a channel of another schema than the type's.
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
