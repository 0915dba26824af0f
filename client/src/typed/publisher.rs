//! The publishing end of a channel of one type.

#[cfg(feature = "pod")]
use super::Pod;
#[cfg(feature = "serde")]
use super::Serde;
use super::schema::{Codec, Schema, schema};
use crate::error::{ChannelError, SchemaId};
use crate::publisher::{Mark, PublisherBuilder};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

/// Publishes values of one type. It dereferences to the untyped [`Publisher`](crate::Publisher), for getters such as `next_sequence`.
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
    /// Publishes a value and returns its sequence. Costs as much as [`publish_pod`](crate::Publisher) or `publish_serde`.
    ///
    /// # Errors
    /// [`PublishError`](crate::PublishError) or [`EncodeError`](crate::EncodeError). After an error nothing was published.
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// # let mut publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// assert_eq!(publisher.publish(&Price(10_025))?, 1);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn publish(&mut self, value: &T) -> Result<u64, C::PublishError> {
        C::publish(&mut self.untyped, value, Mark::default())
    }

    /// Publishes a value as [`publish`](Self::publish) does, with a tag or as a key message.
    ///
    /// # Errors
    /// Those of [`publish`](Self::publish).
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
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// # let mut publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// publisher.publish(&Price(10_025))?;
    /// publisher.close();
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(self) {}

    /// Returns the same publisher without its type. It can send bytes that were encoded elsewhere.
    ///
    /// ```
    /// # #[cfg(feature = "pod")] {
    /// # let dir = tempfile::tempdir()?;
    /// # #[derive(Debug, PartialEq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    /// # #[repr(C)]
    /// # struct Price(i64);
    /// # impl shmcast::typed::Schema for Price { const ID: u64 = 9; const NAME: &'static str = "price/1"; }
    /// # let publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// let bytes = [0x27, 0x29, 0, 0, 0, 0, 0, 0];
    /// publisher.into_untyped().publish(&bytes)?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

impl PublisherBuilder {
    /// Opens a channel of values of fixed layout, as [`open`](Self::open) does. A new channel gets the type's
    /// [`Schema`].
    ///
    /// # Errors
    /// Those of `open`, and [`ChannelError::Schema`] for a channel that exists with another schema.
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
    /// let mut publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_pod::<Price>()?;
    /// publisher.publish(&Price(10_025))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "pod")]
    pub fn open_pod<T: Schema>(self) -> Result<Publisher<T, Pod>, ChannelError>
    where
        Pod: Codec<T>,
    {
        self.open_typed()
    }

    /// Opens a channel of values of a serde type, as [`open`](Self::open) does. A new channel gets the type's
    /// [`Schema`].
    ///
    /// # Errors
    /// Those of `open`, and [`ChannelError::Schema`] for a channel that exists with another schema.
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
    /// let mut publisher = shmcast::Publisher::builder("p").dir(dir.path()).capacity(64 << 10).open_serde::<Halt>()?;
    /// publisher.publish(&Halt { reason: "volatility".into() })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
