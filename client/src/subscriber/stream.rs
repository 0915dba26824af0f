//! Events as a stream, for programs that combine them with other streams.

use super::Subscriber;
use crate::message::{Event, RecvError};
use crate::owned::OwnedEvent;
use futures_core::Stream;
use futures_util::stream::unfold;
use std::borrow::BorrowMut;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The stream of [`Subscriber::stream`] and [`Subscriber::into_stream`].
pub struct EventStream<'a, I = Result<OwnedEvent, RecvError>> {
    // The stream is boxed, so that its owner need not pin anything.
    events: Pin<Box<dyn Stream<Item = I> + Send + 'a>>,
}

impl<'a, I> EventStream<'a, I> {
    pub(crate) fn new(events: impl Stream<Item = I> + Send + 'a) -> Self {
        Self { events: Box::pin(events) }
    }
}

impl<I> Stream for EventStream<'_, I> {
    type Item = I;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<I>> {
        self.events.as_mut().poll_next(context)
    }
}

impl<I> fmt::Debug for EventStream<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}

impl Subscriber {
    /// Returns all later events as a stream. Each event owns its bytes. The stream waits as [`recv_async`](Self::recv_async) does, and
    /// panics outside of a tokio runtime.
    ///
    /// The stream is cancel-safe: a future that is dropped while it waits for the next item has received nothing. After the stream is
    /// dropped, the subscriber returns the next event.
    ///
    /// The stream never ends by itself, because another publisher can follow after an end. After an error, the caller decides whether to
    /// continue. Cost: one more allocation for each message than `recv_async`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// use futures_util::StreamExt;
    /// use shmcast::OwnedEvent;
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// publisher.publish_batch(["a", "b"])?;
    /// publisher.close();
    /// let mut words = Vec::new();
    /// let mut events = subscriber.stream();
    /// while let Some(event) = events.next().await {
    ///     match event? {
    ///         OwnedEvent::Message(message) => words.push(message.payload),
    ///         OwnedEvent::End => break,
    ///         other => println!("{other:?}"),
    ///     }
    /// }
    /// assert_eq!(words, [b"a", b"b"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stream(&mut self) -> EventStream<'_> {
        events(self)
    }

    /// Does the same as [`stream`](Self::stream), but the stream owns the subscriber, so that a task can own the stream.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use futures_util::StreamExt;
    /// use shmcast::{Client, Subscriber, Wait};
    /// let ticks = Subscriber::builder("ticks").client(&Client::connect()?).wait(Wait::Park).open()?;
    /// tokio::spawn(ticks.into_stream().take(1000).for_each(async |event| println!("{event:?}"))).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_stream(self) -> EventStream<'static> {
        events(self)
    }
}

fn events<'a, S: BorrowMut<Subscriber> + Send + 'a>(subscriber: S) -> EventStream<'a> {
    EventStream::new(unfold(subscriber, |mut subscriber: S| async move {
        let own: &mut Subscriber = subscriber.borrow_mut();
        let event = own.recv_async().await.map(Event::into_owned);
        Some((event, subscriber))
    }))
}
