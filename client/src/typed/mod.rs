//! Messages with a type.
//!
//! There are two codecs, each with a feature of its own:
//!
//! - **Plain old data** ([`Pod`], feature `pod`) is for types with a fixed layout. A value is published as its own bytes.
//! - **Serde** ([`Serde`], feature `serde`) is for any serde type. A value is published in the postcard format.
//!
//! A program can use a codec in two ways:
//!
//! - For single messages, it uses an ordinary publisher or subscriber, with calls such as
//!   [`Publisher::publish_pod`](crate::Publisher) and [`Message::decode`](crate::Message).
//! - For a channel with only one type, it uses a [`typed::Publisher`](Publisher) and [`typed::Subscriber`](Subscriber)s. These compare the
//!   type's [`Schema`] with the channel's schema when they attach.
//!
//! ```
//! # #[cfg(feature = "pod")] {
//! # let dir = tempfile::tempdir()?;
//! use shmcast::typed::{Event, Schema};
//! use shmcast::{Publisher, Subscriber};
//! use zerocopy::{FromBytes, Immutable, IntoBytes};
//!
//! #[derive(Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
//! #[repr(C)]
//! struct Quote { instrument: u64, bid: i64, ask: i64 }
//!
//! impl Schema for Quote {
//!     const ID: u64 = 7;
//!     const NAME: &'static str = "quote/1";
//! }
//!
//! let mut publisher = Publisher::builder("quotes").dir(dir.path()).capacity(64 << 10).open_pod::<Quote>()?;
//! let mut subscriber = Subscriber::builder("quotes").dir(dir.path()).open_pod::<Quote>()?;
//! publisher.publish(&Quote { instrument: 7, bid: 10_025, ask: 10_030 })?;
//! match subscriber.recv()? {
//!     Event::Message(quote) => assert_eq!((quote.sequence, quote.payload.bid), (1, 10_025)),
//!     other => println!("{other:?}"),
//! }
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod publisher;
mod schema;
mod select;
mod subscriber;

use crate::message::Message;
use thiserror::Error;

pub use publisher::Publisher;
#[cfg(feature = "pod")]
pub use schema::Pod;
#[cfg(feature = "serde")]
pub use schema::Serde;
pub use schema::{Codec, Schema};
pub use select::{Member, Selected};
pub use subscriber::{Event, Iter, RecvError, Subscriber};

/// The reason why a payload is not a value of the requested type.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// There are bytes after the value, so the message does not have the requested type.
    #[cfg(feature = "serde")]
    #[error("message {sequence} has {left} B behind the value: publisher and reader disagree on the schema")]
    Trailing {
        /// The sequence of the message.
        sequence: u64,
        /// Number of bytes after the value.
        left: usize,
    },
    /// The payload has another size than the type.
    #[error(
        "message {sequence} has {found} B, the type {wanted} B: publisher and reader disagree on the schema"
    )]
    Size {
        /// The sequence of the message.
        sequence: u64,
        /// Bytes of the payload.
        found: usize,
        /// Bytes of the type.
        wanted: usize,
    },
    /// The payload is not aligned for the type, because the caller's buffer is not aligned.
    #[error(
        "message {sequence} is not aligned for its type: receive into the subscriber's own buffer, where messages start on \
         16 bytes, or into one that is aligned for it"
    )]
    Alignment {
        /// The sequence of the message.
        sequence: u64,
    },
    /// The bytes do not decode.
    #[cfg(feature = "serde")]
    #[error("message {sequence} does not decode: {source}")]
    Postcard {
        /// The sequence of the message.
        sequence: u64,
        /// The error of postcard.
        source: postcard::Error,
    },
}

/// The reason why a value could not be published.
#[cfg(feature = "serde")]
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The value does not fit the channel's largest message.
    #[error(
        "the value does not fit a message of {max_message} B: make the channel with a larger max_message, or with a larger capacity"
    )]
    TooLarge {
        /// The channel's largest message, in bytes.
        max_message: usize,
    },
    /// The value fits, but the publisher cannot publish it, for example after [`PublishError::CutOff`](crate::PublishError::CutOff).
    #[error(transparent)]
    NotPublished(crate::PublishError),
    /// The value's own serializer failed.
    #[error("the value does not encode: {0}")]
    Postcard(postcard::Error),
}

#[cfg(feature = "pod")]
mod pod {
    use super::{DecodeError, Message};
    use crate::error::PublishError;
    use crate::publisher::{Mark, Publisher};
    use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

    impl Publisher {
        /// Publishes a value of fixed layout as its own bytes. Costs the same as [`publish`](Self::publish).
        ///
        /// # Errors
        /// [`PublishError`].
        ///
        /// ```
        /// use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
        /// #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Debug, PartialEq)]
        /// #[repr(C)]
        /// struct Quote { instrument: u64, bid: i64, ask: i64 }
        ///
        /// # let dir = tempfile::tempdir()?;
        /// # let mut publisher = shmcast::Publisher::builder("q").dir(dir.path()).capacity(64 << 10).open()?;
        /// # let mut subscriber = shmcast::Subscriber::builder("q").dir(dir.path()).open()?;
        /// publisher.publish_pod(&Quote { instrument: 7, bid: 10_025, ask: 10_030 })?;
        /// let shmcast::Event::Message(message) = subscriber.recv()? else { panic!() };
        /// assert_eq!(message.pod::<Quote>()?.bid, 10_025);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[inline]
        pub fn publish_pod<T: IntoBytes + Immutable>(&mut self, value: &T) -> Result<u64, PublishError> {
            self.publish_pod_with(value, Mark::default())
        }

        /// Does the same as [`publish_pod`](Self::publish_pod), with a tag or as a key message.
        ///
        /// # Errors
        /// [`PublishError`].
        ///
        /// ```
        /// # let dir = tempfile::tempdir()?;
        /// # let mut publisher = shmcast::Publisher::builder("q").dir(dir.path()).capacity(64 << 10).open()?;
        /// # let mut subscriber = shmcast::Subscriber::builder("q").dir(dir.path()).open()?;
        /// use shmcast::{Event, Mark};
        /// publisher.publish_pod_with(&[10_025_i64, 10_030], Mark { tag: 7, key: true })?;
        /// assert!(matches!(subscriber.recv()?, Event::Message(m) if m.tag == 7 && m.key));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[inline]
        pub fn publish_pod_with<T: IntoBytes + Immutable>(
            &mut self,
            value: &T,
            mark: Mark,
        ) -> Result<u64, PublishError> {
            self.publish_with(value.as_bytes(), mark)
        }
    }

    impl<'a> Message<'a> {
        /// Returns the payload as a value of fixed layout, in place. Checks size and alignment, and copies nothing.
        ///
        /// # Errors
        /// [`DecodeError::Size`] or [`DecodeError::Alignment`].
        ///
        /// ```
        /// # let dir = tempfile::tempdir()?;
        /// # let mut publisher = shmcast::Publisher::builder("q").dir(dir.path()).capacity(64 << 10).open()?;
        /// # let mut subscriber = shmcast::Subscriber::builder("q").dir(dir.path()).open()?;
        /// publisher.publish_pod(&[10_025_i64, 10_030])?;
        /// let shmcast::Event::Message(message) = subscriber.recv()? else { panic!() };
        /// assert_eq!(message.pod::<[i64; 2]>()?, &[10_025, 10_030]);
        /// assert!(message.pod::<i64>().is_err(), "another size");
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[inline]
        pub fn pod<T: FromBytes + Immutable + KnownLayout>(&self) -> Result<&'a T, DecodeError> {
            let (sequence, found, wanted) = (self.sequence, self.payload.len(), size_of::<T>());
            if found != wanted {
                return Err(DecodeError::Size { sequence, found, wanted });
            }
            T::ref_from_bytes(self.payload).map_err(|_| DecodeError::Alignment { sequence })
        }
    }
}

#[cfg(feature = "serde")]
mod with_serde {
    use super::{DecodeError, EncodeError, Message};
    use crate::publisher::{Mark, Publisher};
    use serde::{Deserialize, Serialize};

    impl Publisher {
        /// Publishes any serde value in the postcard format.
        ///
        /// # Errors
        /// [`EncodeError`]. After an error nothing was published.
        ///
        /// ```
        /// # let dir = tempfile::tempdir()?;
        /// # let mut publisher = shmcast::Publisher::builder("q").dir(dir.path()).capacity(64 << 10).open()?;
        /// # let mut subscriber = shmcast::Subscriber::builder("q").dir(dir.path()).open()?;
        /// publisher.publish_serde(&("bid", 100.25))?;
        /// let shmcast::Event::Message(message) = subscriber.recv()? else { panic!() };
        /// assert_eq!(message.decode::<(&str, f64)>()?, ("bid", 100.25));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn publish_serde<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<u64, EncodeError> {
            self.publish_serde_with(value, Mark::default())
        }

        /// Does the same as [`publish_serde`](Self::publish_serde), with a tag or as a key message.
        ///
        /// # Errors
        /// [`EncodeError`]. After an error nothing was published.
        ///
        /// ```
        /// # let dir = tempfile::tempdir()?;
        /// # let mut publisher = shmcast::Publisher::builder("q").dir(dir.path()).capacity(64 << 10).open()?;
        /// # let mut subscriber = shmcast::Subscriber::builder("q").dir(dir.path()).open()?;
        /// use shmcast::{Event, Mark};
        /// publisher.publish_serde_with("whole book", Mark { tag: 7, key: true })?;
        /// assert!(matches!(subscriber.recv()?, Event::Message(m) if m.tag == 7 && m.key));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn publish_serde_with<T: Serialize + ?Sized>(
            &mut self,
            value: &T,
            mark: Mark,
        ) -> Result<u64, EncodeError> {
            let max_message = self.max_message();
            let mut claim = self.claim(max_message).map_err(EncodeError::NotPublished)?;
            let length = match postcard::to_slice(value, &mut claim) {
                Ok(written) => written.len(),
                Err(postcard::Error::SerializeBufferFull) => {
                    return Err(EncodeError::TooLarge { max_message });
                }
                Err(e) => return Err(EncodeError::Postcard(e)),
            };
            claim.mark(mark).commit(length).map_err(EncodeError::NotPublished)
        }
    }

    impl<'a> Message<'a> {
        /// Decodes the payload as a serde value in the postcard format. The value can borrow from the payload.
        ///
        /// # Errors
        /// [`DecodeError::Postcard`], or [`DecodeError::Trailing`] when the value ends before the payload does.
        ///
        /// ```
        /// # let dir = tempfile::tempdir()?;
        /// # let mut publisher = shmcast::Publisher::builder("q").dir(dir.path()).capacity(64 << 10).open()?;
        /// # let mut subscriber = shmcast::Subscriber::builder("q").dir(dir.path()).open()?;
        /// publisher.publish_serde(&("halted", 7_u64))?;
        /// let shmcast::Event::Message(message) = subscriber.recv()? else { panic!() };
        /// assert_eq!(message.decode::<(&str, u64)>()?, ("halted", 7));
        /// assert!(message.decode::<&str>().is_err(), "bytes are left");
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn decode<T: Deserialize<'a>>(&self) -> Result<T, DecodeError> {
            let sequence = self.sequence;
            let decoded = postcard::take_from_bytes(self.payload);
            match decoded.map_err(|source| DecodeError::Postcard { sequence, source })? {
                (value, []) => Ok(value),
                (_, rest) => Err(DecodeError::Trailing { sequence, left: rest.len() }),
            }
        }
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::DecodeError;
    use crate::message::Message;

    #[test]
    fn bytes_behind_a_value_are_no_part_of_it() {
        let message =
            Message { payload: &[0; 24], sequence: 7, tag: 0, key: false, time: 0, conflated: None };
        let decoded = message.decode::<u8>();
        assert!(matches!(decoded, Err(DecodeError::Trailing { sequence: 7, left: 23 })), "{decoded:?}");
    }
}
