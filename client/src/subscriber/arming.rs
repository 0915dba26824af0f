//! Waiting in the caller's own event loop. The loop waits for the descriptor of the subscriber's bell, which is the socket by which a
//! daemon wakes the subscriber. The loop calls `arm` before each sleep.

use super::Subscriber;
use super::waiting::Rest;
use crate::attach::park::{ALONE, Parking};
use crate::message::{Event, RecvError};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The next step of a program that waits in an event loop of its own. [`Subscriber::arm`] returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Armed<'a> {
    /// An event had already arrived, and this call has received the event. Continue to receive.
    Event(Event<'a>),
    /// There is nothing to receive. Wait until the descriptor is readable, but at most for this time, and then receive.
    Wait(Duration),
}

impl Subscriber {
    /// The descriptor that becomes readable when there is something to receive; `None` if the subscriber was not opened with
    /// [`Wait::Park`](crate::Wait::Park). The descriptor is for `epoll`, `poll` and event loops over them. A program must not read from the
    /// descriptor, because [`arm`](Self::arm) and [`disarm`](Self::disarm) read from it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// let subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// assert!(subscriber.descriptor().is_none(), "nobody wakes readers of a channel that is a file");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.parking.as_ref().map(|parking| parking.bell().as_fd())
    }

    /// Prepares a sleep. Call this before each sleep in an event loop, when [`try_recv`](Self::try_recv) has found nothing. The call
    /// requests a wake-up from the daemon's waker, and polls once more, so that the program does not sleep while there is a message.
    ///
    /// If no daemon would wake the reader, the time to wait is a millisecond. So the same loop works for channels that are files, and while
    /// the daemon is away. Cost: three system calls if there is a daemon.
    ///
    /// # Errors
    /// [`RecvError`].
    ///
    /// ```no_run
    /// # let client = shmcast::Client::connect()?;
    /// use shmcast::{Armed, Subscriber, Wait};
    /// use std::os::fd::AsRawFd;
    /// let mut ticks = Subscriber::builder("ticks").client(&client).wait(Wait::Park).open()?;
    /// loop {
    ///     while let Some(event) = ticks.try_recv()? {
    ///         println!("{event:?}");
    ///     }
    ///     match ticks.arm()? {
    ///         Armed::Event(event) => println!("{event:?}"),
    ///         Armed::Wait(limit) => {
    ///             let bell = ticks.descriptor().expect("it parks").as_raw_fd();
    ///             println!("now wait for {bell} in an event loop, for {limit:?} at most");
    ///         }
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn arm(&mut self) -> Result<Armed<'_>, RecvError> {
        // A forked child shares the bell with its parent. If the child emptied the bell, the parent could miss a wake-up.
        self.check_process()?;
        if let Some(parking) = &self.parking {
            parking.hear();
        }
        loop {
            if let Some(outcome) = self.poll()? {
                return Ok(Armed::Event(self.lend(outcome)));
            }
            if self.take_stopped_early() {
                return Ok(Armed::Wait(Duration::ZERO));
            }
            match self.rest(None)? {
                Rest::Found(outcome) => return Ok(Armed::Event(self.lend(outcome))),
                Rest::None => {}
                Rest::Pause => return Ok(Armed::Wait(ALONE)),
                Rest::Nap => return Ok(Armed::Wait(self.parking.as_ref().map_or(ALONE, Parking::longest))),
            }
        }
    }

    /// Withdraws the request of [`arm`](Self::arm), and empties the descriptor. Call this function if the program receives more messages
    /// before the next `arm`, while the descriptor stays in an event loop. In a forked child this does nothing.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// use shmcast::Armed;
    /// assert!(matches!(subscriber.arm()?, Armed::Wait(_)));
    /// subscriber.disarm();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn disarm(&mut self) {
        if let Some(parking) = self.parking.as_ref().filter(|_| self.check_process().is_ok()) {
            parking.rise();
            parking.hear();
        }
    }
}
