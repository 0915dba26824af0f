//! The types that a channel can have, and the codecs between their values and messages.

#[cfg(feature = "serde")]
use super::EncodeError;
use super::{DecodeError, Event, Message, RecvError};
use crate::error::SchemaId;
use crate::journal::format::FileHeader;
use crate::publisher::Mark;
#[cfg(feature = "serde")]
use serde::{Serialize, de::DeserializeOwned};
#[cfg(feature = "pod")]
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A type that a channel's messages can have, with a number and a name.
///
/// The publisher that makes a channel writes `ID` and `NAME` into the channel. Each publisher or subscriber that opens the channel compares
/// both values with its own. Neither value is computed from the type. Change both values whenever the meaning of the type's bytes changes,
/// such as when a field is added.
pub trait Schema {
    /// The number of the schema, by which programs distinguish schemas. It must not be 0.
    const ID: u64;
    /// The name of the schema, such as `"quote/1"`. The name is for people. It also distinguishes two schemas for which different programs
    /// use the same number.
    const NAME: &'static str;
}

/// A codec that turns values of a type into messages and back: [`Pod`] or [`Serde`].
pub trait Codec<T>: sealed::Sealed {
    /// The error that a publisher returns if it cannot publish a value.
    type PublishError: std::error::Error + Send + Sync + 'static;

    #[doc(hidden)]
    fn publish(publisher: &mut crate::Publisher, value: &T, mark: Mark) -> Result<u64, Self::PublishError>;

    #[doc(hidden)]
    fn decode(message: &Message<'_>) -> Result<T, DecodeError>;
}

mod sealed {
    pub trait Sealed {}
}

/// Plain old data: a message consists of the value's own bytes. Publisher and reader must have the same layout of the type: `#[repr(C)]`,
/// the same word size and the same byte order.
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

/// Any type of serde. A message contains the value in the postcard format.
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

/// The schema of this type, in the form of a channel's header.
pub(super) fn schema<T: Schema>() -> SchemaId {
    const { assert!(T::ID != 0, "a schema's number must not be 0, which stands for none") };
    SchemaId { id: T::ID, name: T::NAME.to_owned() }
}

/// Returns an error in place of a message of another type. The next segment of a channel can have another type, and so can a file of the
/// channel's journal. `checked` is the last ring whose schema matched.
#[inline]
pub(super) fn check<T: Schema>(
    subscriber: &crate::Subscriber,
    checked: &mut [u64; 2],
    event: Result<Event<T>, DecodeError>,
) -> Result<Event<T>, RecvError> {
    let header = subscriber.header();
    let past = subscriber.in_past();
    let ring = past.map_or(header.uuid, |file| file.ring.uuid);
    let is_message = matches!(event, Ok(Event::Message(_)) | Err(_));
    if is_message && ring != *checked {
        let wanted = schema::<T>();
        let of_file = |file: &FileHeader| SchemaId { id: file.schema_id, name: file.schema.clone() };
        let found = past.map_or_else(|| SchemaId::of(header), of_file);
        if !wanted.fits(&found) {
            return Err(RecvError::Schema { found, wanted });
        }
        *checked = ring;
    }
    Ok(event?)
}
