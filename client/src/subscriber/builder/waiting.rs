//! Opens a subscriber, and waits for its channel.

use super::SubscriberBuilder;
use crate::error::ChannelError;
use crate::subscriber::{Start, Subscriber};
use std::time::{Duration, Instant, SystemTime};

/// The first pause between two attempts, and the longest time between two calls of `goes_on`.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause between two attempts at a daemon. A daemon limits the requests of each user.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

impl SubscriberBuilder {
    /// Opens the subscriber. Touching the pages takes about 0.1 ms per MiB of the ring.
    ///
    /// # Errors
    /// [`ChannelError`]. After an error, no file is left.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let refused = shmcast::Subscriber::builder("nobody").dir(dir.path()).open();
    /// assert!(refused.is_err_and(|e| e.is_unknown_channel()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(self) -> Result<Subscriber, ChannelError> {
        let start = Instant::now();
        let patience = self.wait_for_channel.unwrap_or_default();
        self.open_while(|| start.elapsed() < patience)
    }

    /// Does the same as [`open`](Self::open). But while the channel does not exist, this call waits until `goes_on` returns false. It calls
    /// `goes_on` every 5 ms, and ignores [`wait_for_channel`](Self::wait_for_channel). Use it in programs that must stop on request.
    ///
    /// # Errors
    /// [`ChannelError`]. After an error, no file is left.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let mut looks = 0;
    /// let opened = shmcast::Subscriber::builder("nobody").dir(dir.path()).open_while(|| {
    ///     looks += 1;
    ///     looks < 3
    /// });
    /// assert!(opened.is_err_and(|e| e.is_unknown_channel()) && looks == 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_while(self, mut goes_on: impl FnMut() -> bool) -> Result<Subscriber, ChannelError> {
        self.open_through(|_| goes_on())
    }

    /// Waits as [`open_while`](Self::open_while). `goes_on` gets the error of the last attempt.
    pub(crate) fn open_through(
        mut self,
        mut goes_on: impl FnMut(&ChannelError) -> bool,
    ) -> Result<Subscriber, ChannelError> {
        let begun = self.waited_since.unwrap_or_else(SystemTime::now);
        let is_for_latest = self.start == Start::Latest;
        if is_for_latest && self.waited_since.is_some() {
            self.begin_at(begun);
        }
        let longest = if self.client.is_some() { LONGEST_PAUSE } else { FIRST_PAUSE };
        let (mut pause, mut is_over) = (FIRST_PAUSE, false);
        loop {
            let error = match self.attach() {
                Err(e) if !is_over && (e.is_unknown_channel() || e.is_passing()) && goes_on(&e) => e,
                attached => return attached,
            };
            if is_for_latest {
                self.begin_late(&error, begun);
            }
            is_over = !rest(pause, || goes_on(&error));
            // Another attempt at a daemon that has just not answered would delay the end of the wait. So the wait ends here.
            if is_over && matches!(error, ChannelError::Silent { .. }) {
                return Err(error);
            }
            pause = (pause * 2).min(longest);
        }
    }

    /// Sets the start of a subscriber with [`Start::Latest`] that must wait. If the channel did not exist, all its messages are new, so the
    /// subscriber begins with the oldest. If the daemon gave no answer, the channel can be older than the wait, so the subscriber begins
    /// with the messages after the beginning of the wait.
    fn begin_late(&mut self, error: &ChannelError, begun: SystemTime) {
        if error.is_unknown_channel() {
            (self.start, self.begins_in_ring) = (Start::Oldest, true);
        } else {
            self.begin_at(begun);
        }
    }

    fn begin_at(&mut self, begun: SystemTime) {
        if self.conflation.is_none() && !self.begins_in_ring {
            self.start = Start::Time(begun);
        }
    }
}

/// Sleeps for `pause`, and calls `goes_on` every 5 ms. Returns false as soon as `goes_on` returns false.
fn rest(pause: Duration, mut goes_on: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + pause;
    loop {
        std::thread::sleep(FIRST_PAUSE.min(until.saturating_duration_since(Instant::now())));
        if Instant::now() >= until {
            return true;
        }
        if !goes_on() {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Publisher;

    #[test]
    fn a_wait_for_the_daemon_decides_only_the_start_in_a_channel_that_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let publisher = || {
            let mut publisher = Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open().unwrap();
            publisher.publish(b"first").unwrap();
            publisher
        };
        let hour = Duration::from_secs(3_600);
        let builder = |begun| Subscriber::builder("t").dir(dir.path()).waited_since(begun);
        let mut made = None;
        let late = builder(SystemTime::now() + hour).open_while(|| {
            made.get_or_insert_with(publisher);
            true
        });
        let has_message = |mut subscriber: Subscriber| subscriber.try_recv().unwrap().is_some();
        assert!(has_message(late.unwrap()), "each message of a new channel is new");
        assert!(!has_message(builder(SystemTime::now() + hour).open().unwrap()));
        assert!(has_message(builder(SystemTime::now() - hour).open().unwrap()));
    }
}
