//! Distinguishes the end of a channel from the ends of its earlier publishers.

use crate::{Event, Start, State, Subscriber};

/// Tracks the events that a subscriber receives, and reports whether the channel has ended.
///
/// Pass each received event to [`note`](Self::note). Message events can be left out. Call [`is_over`](Self::is_over) whenever there is
/// nothing more to receive.
///
/// `is_over` can become true a little later than [`Event::End`] arrives. It stays false if another publisher has followed.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use shmcast::{EndWatch, Publisher, Start, Subscriber};
/// let open = || Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open();
/// drop(open()?);
/// let second = open()?;
/// let mut reader = Subscriber::builder("t").dir(dir.path()).start(Start::Oldest).open()?;
/// let mut end = EndWatch::default();
/// while let Some(event) = reader.try_recv()? {
///     end.note(&event);
/// }
/// assert!(!end.is_over(&reader), "that was the first publisher's end");
/// drop(second);
/// while let Some(event) = reader.try_recv()? {
///     end.note(&event);
/// }
/// assert!(end.is_over(&reader));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndWatch {
    /// True from the moment when an `End` is received until a later event announces another publisher.
    has_ended: bool,
    /// An earlier `End` that does not count: the epoch of the publisher that closed the channel, and the sequence of the next message.
    old_end: Option<(u64, u64)>,
}

impl EndWatch {
    /// Makes the watch of a subscriber that was just opened with the start `start`. Costs a few loads.
    ///
    /// A subscriber with [`Start::Latest`] on a closed channel waits for the next publisher. Therefore this watch ignores the end of the
    /// earlier publisher, however often the subscriber reads that end. A watch from [`EndWatch::default`] ignores no end. If the
    /// subscriber's builder waited until the channel existed, this watch ignores no end either, because the subscriber begins with the
    /// publisher's first message.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::{EndWatch, Event, Publisher, Start, Subscriber};
    /// let open = || Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open();
    /// drop(open()?);
    /// let mut reader = Subscriber::builder("t").dir(dir.path()).open()?;
    /// let mut end = EndWatch::of(&reader, Start::Latest);
    /// end.note(&reader.recv()?);
    /// assert!(!end.is_over(&reader), "a publisher is about to come");
    /// drop(open()?);
    /// while let Some(event) = reader.try_recv()? {
    ///     end.note(&event);
    /// }
    /// assert!(end.is_over(&reader));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(subscriber: &Subscriber, start: Start) -> Self {
        let old_end = match subscriber.publisher_state() {
            Some((epoch, State::Closed)) if start == Start::Latest && !subscriber.came_before_channel() => {
                Some((epoch, subscriber.next_sequence()))
            }
            _ => None,
        };
        Self { has_ended: false, old_end }
    }

    /// Tells this watch about an event that the subscriber has received. Costs a store. See [`EndWatch`] for an example.
    ///
    /// ```
    /// let mut end = shmcast::EndWatch::default();
    /// end.note(&shmcast::Event::End);
    /// ```
    #[inline]
    pub fn note(&mut self, event: &Event<'_>) {
        match event {
            Event::End => self.has_ended = true,
            Event::Message(_) | Event::NewEpoch { .. } | Event::NewSession { .. } => self.has_ended = false,
            Event::Restarted => *self = Self::default(),
            // Other events, such as losses, do not say anything about publishers.
            _ => {}
        }
    }

    /// Whether the last event was an end, and `subscriber` [is at the channel's end](Subscriber::is_at_end). Costs the same as `is_at_end`.
    /// See [`EndWatch`] for an example.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let reader = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// assert!(!shmcast::EndWatch::default().is_over(&reader));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_over(self, subscriber: &Subscriber) -> bool {
        self.has_ended && subscriber.is_at_end() && !self.is_old(subscriber)
    }

    fn is_old(self, subscriber: &Subscriber) -> bool {
        self.old_end.is_some_and(|(epoch, due)| {
            let now = subscriber.publisher_state().map(|(epoch, _)| epoch);
            (now, subscriber.next_sequence()) == (Some(epoch), due)
        })
    }
}
