//! Events that own their messages. A program can keep them, or send them to another thread. Each message is
//! one allocation.

use crate::message::{Event, Lapped, Message};
use shmcast_layout::journal::Cause;
use std::convert::Infallible;

/// A [`Message`] that owns its payload. The payload is bytes, or a value that was decoded from bytes (see module `typed`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedMessage<P = Vec<u8>> {
    /// The message's bytes or value.
    pub payload: P,
    /// As [`Message::sequence`].
    pub sequence: u64,
    /// As [`Message::tag`].
    pub tag: u16,
    /// As [`Message::key`].
    pub key: bool,
    /// As [`Message::time`].
    pub time: u64,
    /// As [`Message::conflated`].
    pub conflated: Option<u64>,
}

/// An [`Event`] that borrows nothing. Its variants mean the same as those of [`Event`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each variant and field is explained where it comes from")]
pub enum OwnedEvent<P = Vec<u8>> {
    Message(OwnedMessage<P>),
    Lapped(Lapped),
    Gap { from: u64, to: u64 },
    Lost { from: u64, to: u64, cause: Cause },
    Live { sequence: u64 },
    NewEpoch { epoch: u64 },
    PublisherGone { epoch: u64 },
    NewSession { session: [u8; 10] },
    Restarted,
    End,
}

impl Message<'_> {
    /// Copies the message with its bytes. Cost: an allocation and a copy.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// # publisher.publish(b"kept")?;
    /// let mut book = Vec::new();
    /// if let shmcast::Event::Message(message) = subscriber.recv()? {
    ///     book.push(message.into_owned());
    /// }
    /// assert_eq!(book[0].payload, b"kept");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_owned(self) -> OwnedMessage {
        let Self { payload, sequence, tag, key, time, conflated } = self;
        OwnedMessage { payload: payload.to_vec(), sequence, tag, key, time, conflated }
    }
}

impl Event<'_> {
    /// Copies the event, so that it borrows nothing. Cost: an allocation and a copy for a message, nothing
    /// for other events.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// # publisher.publish(b"x")?;
    /// let (send, receive) = std::sync::mpsc::channel();
    /// send.send(subscriber.recv()?.into_owned())?;
    /// assert!(matches!(receive.recv()?, shmcast::OwnedEvent::Message(m) if m.sequence == 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_owned(self) -> OwnedEvent {
        let Ok(owned) = self.try_map(|message| Ok::<_, Infallible>(message.payload.to_vec()));
        owned
    }

    /// Returns an event that borrows nothing. The function `payload` makes the payload of a message.
    pub(crate) fn try_map<P, E>(
        self,
        payload: impl FnOnce(&Message<'_>) -> Result<P, E>,
    ) -> Result<OwnedEvent<P>, E> {
        Ok(match self {
            Self::Message(message) => {
                let Message { sequence, tag, key, time, conflated, .. } = message;
                let payload = payload(&message)?;
                OwnedEvent::Message(OwnedMessage { payload, sequence, tag, key, time, conflated })
            }
            Self::Lapped(lapped) => OwnedEvent::Lapped(lapped),
            Self::Gap { from, to } => OwnedEvent::Gap { from, to },
            Self::Lost { from, to, cause } => OwnedEvent::Lost { from, to, cause },
            Self::Live { sequence } => OwnedEvent::Live { sequence },
            Self::NewEpoch { epoch } => OwnedEvent::NewEpoch { epoch },
            Self::PublisherGone { epoch } => OwnedEvent::PublisherGone { epoch },
            Self::NewSession { session } => OwnedEvent::NewSession { session },
            Self::Restarted => OwnedEvent::Restarted,
            Self::End => OwnedEvent::End,
        })
    }
}
