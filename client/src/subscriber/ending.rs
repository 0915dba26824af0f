//! Distinguishes the present end of the channel from the end of an earlier publisher.

use super::{Doubt, Subscriber};
use shmcast_layout::layout::header::{State, WRITER_PID};
use std::sync::atomic::{Ordering, fence};

impl Subscriber {
    /// Whether the channel has ended at this moment: no publisher is active, and neither the ring nor the journal has anything after the
    /// events that this subscriber has received.
    ///
    /// [`Event::End`](crate::Event::End) says that *a* publisher closed the channel. A subscriber that reads from the journal gets one such
    /// event for each publisher that has closed. Call this at each `End`, and continue to receive while the result is false.
    ///
    /// The result is valid only for this moment, because a later publisher can open the channel again. After a publisher that died without
    /// closing, the result stays false.
    ///
    /// Cost: a few loads. While the journal is read, also a short search in the ring. It makes no system call.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::{Event, Publisher, Start, Subscriber};
    /// let open = || Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open();
    /// drop(open()?);
    /// let second = open()?;
    /// let mut reader = Subscriber::builder("t").dir(dir.path()).start(Start::Oldest).open()?;
    /// assert_eq!(reader.recv()?, Event::End);
    /// assert!(!reader.is_at_end(), "that was the first publisher's end");
    /// assert_eq!(reader.recv()?, Event::NewEpoch { epoch: 2 });
    /// drop(second);
    /// assert_eq!(reader.recv()?, Event::End);
    /// assert!(reader.is_at_end());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_at_end(&self) -> bool {
        if self.is_leaving_or_withheld() {
            return false;
        }
        let state = self.reader.state().map(|(_, state)| state);
        // Records that were committed before this state was set are visible from here on.
        fence(Ordering::Acquire);
        let is_over = match state {
            Some(State::Closed) => true,
            // The publisher sets the state after the end record that was just read.
            Some(State::Active) => self.reader.has_ended(),
            // This ring continues the channel, and no publisher has opened it yet. If this subscriber moved to it from an earlier ring, the
            // ring was made for a publisher that is about to open it.
            Some(State::Recovering) | None => self.moves == 0 && self.segment.header_word(WRITER_PID) == 0,
            Some(State::Superseded) => false,
        };
        is_over && !self.has_anything_behind()
    }

    /// Whether there is a later segment, or one is about to arrive.
    fn is_leaving_or_withheld(&self) -> bool {
        let is_open = self.verdict_on_read() == shmcast_layout::layout::charter::Verdict::Open;
        !is_open || self.hosted.as_ref().is_some_and(|hosted| hosted.has_next())
    }

    /// Whether there is anything after the last received record. While the subscriber reads the journal, this call searches the ring.
    fn has_anything_behind(&self) -> bool {
        match self.doubt {
            Doubt::Board => true,
            Doubt::Past | Doubt::Behind => {
                self.reader.locator().tail().is_ok_and(|tail| tail.sequence > self.next_sequence())
            }
            Doubt::None | Doubt::Epoch => self.has_more(),
        }
    }
}
