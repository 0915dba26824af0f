//! Events as an iterator.

use super::Subscriber;
use crate::message::{Event, RecvError};
use crate::owned::OwnedEvent;

/// The iterator of [`Subscriber::iter`].
#[derive(Debug)]
pub struct Iter<'a> {
    subscriber: &'a mut Subscriber,
}

impl Iterator for Iter<'_> {
    type Item = Result<OwnedEvent, RecvError>;

    /// Waits as [`Subscriber::recv`] does. Never returns `None`, because another publisher can follow after an end.
    fn next(&mut self) -> Option<Self::Item> {
        Some(self.subscriber.recv().map(Event::into_owned))
    }
}

impl Subscriber {
    /// Returns an iterator over all later events. Each event owns its bytes. Cost: one more allocation for each message than
    /// [`recv`](Self::recv).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// use shmcast::OwnedEvent;
    /// publisher.publish_batch(["a", "b", "c"])?;
    /// publisher.close();
    /// let mut words = Vec::new();
    /// for event in subscriber.iter() {
    ///     match event? {
    ///         OwnedEvent::Message(message) => words.push(message.payload),
    ///         OwnedEvent::End => break,
    ///         other => println!("{other:?}"),
    ///     }
    /// }
    /// assert_eq!(words, [b"a", b"b", b"c"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&mut self) -> Iter<'_> {
        Iter { subscriber: self }
    }
}
