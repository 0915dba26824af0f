//! Whether the end of a stream is the end of the channel as it is now, or the end of an earlier publisher.

use super::{Doubt, Subscriber};
use shmcast_layout::layout::header::{State, WRITER_PID};
use std::sync::atomic::{Ordering, fence};

impl Subscriber {
    /// Whether the channel ends here as things stand: nobody publishes on it, and nothing comes after what this subscriber has
    /// received, neither in the ring nor in the journal.
    ///
    /// [`Event::End`](crate::Event::End) says that *a* publisher closed the channel. A subscriber that reads the past gets one
    /// such event for each publisher that has closed. Ask this at each of them, and go on receiving while the answer is no.
    ///
    /// The answer is of this moment: a later publisher may open the channel again. After a publisher that died without closing, the
    /// answer stays no.
    ///
    /// Cost: a few loads; while the journal is read, also a short search in the ring. No system call.
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
            // The publisher sets the state after the end that was just read.
            Some(State::Active) => self.reader.has_ended(),
            // A ring that continues the channel, and that nobody has opened yet. One that this subscriber came to from the ring
            // before was made for a publisher, which is about to open it.
            Some(State::Recovering) | None => self.moves == 0 && self.segment.header_word(WRITER_PID) == 0,
            Some(State::Superseded) => false,
        };
        is_over && !self.has_anything_behind()
    }

    /// Whether a later segment is here or will come.
    fn is_leaving_or_withheld(&self) -> bool {
        let is_open = self.verdict_on_read() == shmcast_layout::layout::charter::Verdict::Open;
        !is_open || self.hosted.as_ref().is_some_and(|hosted| hosted.has_next())
    }

    /// Whether there is more after the last record received: in the ring, also while the journal is read.
    fn has_anything_behind(&self) -> bool {
        match self.doubt {
            Doubt::Past | Doubt::Behind => {
                self.reader.locator().tail().is_ok_and(|tail| tail.sequence > self.next_sequence())
            }
            Doubt::None | Doubt::Epoch => self.has_more(),
        }
    }
}
