//! The wait of a subscriber that has nothing to receive. The subscriber polls, yields, sleeps or parks, and from time to time makes the
//! checks that polls do not make.

use super::{Outcome, Subscriber};
use crate::attach::park::ALONE;
use crate::message::{Event, RecvError};
use crate::wait::{BURST, BURST_CLOSE, BURST_PAUSE, BURST_WITHIN, Wait, Waiter};
use shmcast_layout::ring::reader::Poll;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// The next step after a poll that has found nothing.
pub(super) enum Rest {
    /// There is an event.
    Found(Outcome),
    /// Poll again.
    None,
    /// Sleep a little, because no waker will ring.
    Pause,
    /// Sleep until the bell rings.
    Nap,
}

/// Returns the time until a deadline. Without a deadline, returns the longest duration.
pub(super) fn time_left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
}

impl Subscriber {
    /// Does the same as [`recv`](Self::recv), and copies the payload to the start of `buffer`. This is the only copy between the ring and
    /// the caller.
    ///
    /// # Errors
    /// [`RecvError::TooSmall`] when the message is larger than the buffer. It remains the next message.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// publisher.publish(b"abc")?;
    /// let mut buffer = [0; 8];
    /// subscriber.recv_into(&mut buffer)?;
    /// assert_eq!(&buffer[..3], b"abc");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recv_into<'a>(&mut self, buffer: &'a mut [u8]) -> Result<Event<'a>, RecvError> {
        let event = self.wait_into(buffer, None)?;
        Ok(event.expect("waiting without a deadline ends with an event"))
    }

    /// Does the same as [`recv_into`](Self::recv_into), but returns `None` if nothing arrived before `deadline`.
    ///
    /// # Errors
    /// The same as for [`recv_into`](Self::recv_into).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// use std::time::{Duration, Instant};
    /// let soon = Instant::now() + Duration::from_millis(5);
    /// assert_eq!(subscriber.recv_into_deadline(&mut [0; 64], soon)?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recv_into_deadline<'a>(
        &mut self,
        buffer: &'a mut [u8],
        deadline: Instant,
    ) -> Result<Option<Event<'a>>, RecvError> {
        self.wait_into(buffer, Some(deadline))
    }

    fn wait_into<'a>(
        &mut self,
        buffer: &'a mut [u8],
        deadline: Option<Instant>,
    ) -> Result<Option<Event<'a>>, RecvError> {
        let mut waiter = Waiter::default();
        let outcome = loop {
            if let Some(outcome) = self.poll_into(buffer)? {
                break Some(outcome);
            }
            if let ControlFlow::Break(end) = self.idle(&mut waiter, deadline, Some(buffer))? {
                break end;
            }
        };
        Ok(outcome.map(|outcome| outcome.into_event(buffer)))
    }

    /// Called after a poll that found nothing. Waits a little, by the user's strategy. Returns an event that polls do not find, or `None`
    /// after the deadline. Copies a message to `out`, or to this subscriber's buffer.
    #[inline(always)]
    pub(super) fn idle(
        &mut self,
        waiter: &mut Waiter,
        deadline: Option<Instant>,
        out: Option<&mut [u8]>,
    ) -> Result<ControlFlow<Option<Outcome>>, RecvError> {
        // Only a subscriber that checks each message leaves messages out.
        if self.is_checked && self.take_stopped_early() {
            return self.look_up(deadline);
        }
        if !matches!(self.wait, Wait::Burst | Wait::Sleep(_) | Wait::Park) {
            self.avoid_contention();
        }
        let is_time_to_look = match self.wait {
            Wait::Yield => !self.reader.rest_until_due(|| waiter.idle(Wait::Yield)) || waiter.found(),
            Wait::Sleep(pause) => {
                std::thread::sleep(pause.min(time_left(deadline)));
                true
            }
            Wait::Park => return self.sleep_for(deadline, out).map(ControlFlow::Break),
            wait => {
                if wait == Wait::Burst {
                    self.pause_after_burst();
                }
                waiter.idle(wait)
            }
        };
        if is_time_to_look { self.look_up(deadline) } else { Ok(ControlFlow::Continue(())) }
    }

    /// Whether the caller must poll again without a sleep, because the last poll left out many messages and ended early.
    pub(super) fn take_stopped_early(&mut self) -> bool {
        std::mem::take(&mut self.stopped_early)
    }

    /// Makes the checks that polls do not make. If they find an event, or if the deadline has passed, ends the wait.
    #[inline(never)]
    fn look_up(&mut self, deadline: Option<Instant>) -> Result<ControlFlow<Option<Outcome>>, RecvError> {
        let outcome = self.look()?;
        let is_over = outcome.is_some() || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        Ok(if is_over { ControlFlow::Break(outcome) } else { ControlFlow::Continue(()) })
    }

    /// Called when this reader is close to the publisher. If messages arrive in a burst, waits until the publisher is further ahead.
    #[inline(never)]
    pub(super) fn pause_after_burst(&mut self) {
        self.came_close = false;
        let next = self.next_sequence();
        let (sequence, time) = self.burst_mark;
        if next.wrapping_sub(sequence) < BURST {
            return;
        }
        let start = self.clock.now();
        let mut now = start;
        if self.clock.ns_between(time, start) < BURST_WITHIN.as_nanos() as u64 {
            let enough = BURST_PAUSE.as_nanos() as u64;
            while self.clock.ns_between(start, now) < enough && !self.reader.is_far_behind() {
                std::hint::spin_loop();
                now = self.clock.now();
            }
        }
        self.burst_mark = (next, now);
        self.burst_target = next.saturating_add(self.reader.lag());
    }

    /// Whether to wait until the publisher is further ahead, before the reader takes more messages. The result is true if the publisher is
    /// close, and the reader has taken all messages that existed after the last such wait. So no message waits for more than one pause.
    #[inline]
    pub(super) fn is_close_in_a_burst(&self) -> bool {
        self.reader.lag() < BURST_CLOSE && self.next_sequence() >= self.burst_target
    }

    /// Does the same as [`idle`](Self::idle) until the wait has ended. This function is for a reader that parks.
    #[cold]
    fn sleep_for(
        &mut self,
        deadline: Option<Instant>,
        mut out: Option<&mut [u8]>,
    ) -> Result<Option<Outcome>, RecvError> {
        loop {
            if let Some(outcome) = self.poll_to(out.as_deref_mut())? {
                return Ok(Some(outcome));
            }
            let limit = time_left(deadline);
            if limit.is_zero() {
                return self.look();
            }
            if self.take_stopped_early() {
                continue;
            }
            match self.rest(out.as_deref_mut())? {
                Rest::Found(outcome) => return Ok(Some(outcome)),
                Rest::None => {}
                Rest::Pause => std::thread::sleep(limit.min(ALONE)),
                Rest::Nap => self.parking.as_ref().expect("naps are for those who park").sleep(limit),
            }
        }
    }

    /// The asynchronous form of [`sleep_for`](Self::sleep_for): other tasks run during the wait. It has no deadline.
    #[cfg(feature = "tokio")]
    pub(super) async fn wait_async(&mut self) -> Result<Outcome, RecvError> {
        tokio::task::coop::consume_budget().await;
        loop {
            self.read_ahead_async().await;
            if let Some(outcome) = self.poll()? {
                return Ok(outcome);
            }
            if self.take_stopped_early() {
                tokio::task::yield_now().await;
                continue;
            }
            match self.rest(None)? {
                Rest::Found(outcome) => return Ok(outcome),
                Rest::None => tokio::task::yield_now().await,
                Rest::Pause => tokio::time::sleep(ALONE).await,
                Rest::Nap => self.parking.as_ref().expect("naps are for those who park").nap().await,
            }
        }
    }

    fn poll_to(&mut self, out: Option<&mut [u8]>) -> Result<Option<Outcome>, RecvError> {
        match out {
            Some(out) => self.poll_into(out),
            None => self.poll(),
        }
    }

    /// Called after a poll that found nothing. Decides how to wait. Before this function returns [`Rest::Nap`], the reader announces the
    /// position at which it sleeps, polls once more, and sends a byte to the daemon's waker.
    #[cold]
    pub(super) fn rest(&mut self, out: Option<&mut [u8]>) -> Result<Rest, RecvError> {
        if let Some(outcome) = self.look()? {
            return Ok(Rest::Found(outcome));
        }
        if self.is_leaving() {
            return Ok(Rest::None);
        }
        if !self.lie_down() {
            return Ok(Rest::Pause);
        }
        let moves = self.moves;
        let found = self.poll_to(out);
        let is_waiting = !self.is_leaving() && self.moves == moves && !self.take_stopped_early();
        let parking = self.parking.as_ref().expect("looked at above");
        if found.as_ref().is_ok_and(Option::is_none) && is_waiting {
            parking.ring();
            return Ok(Rest::Nap);
        }
        parking.rise();
        Ok(found?.map_or(Rest::None, Rest::Found))
    }

    /// Announces that this reader will sleep until something arrives. Returns whether a waker will wake the reader. After this call, the
    /// caller must poll once more.
    pub(super) fn lie_down(&mut self) -> bool {
        let (position, is_watched) = (self.position(), self.is_registered() == Some(true));
        let is_in_the_ring = !self.is_elsewhere();
        let Some(parking) = self.parking.as_mut().filter(|_| is_watched && is_in_the_ring) else {
            return false;
        };
        parking.lie_down(position);
        true
    }

    /// Whether the next poll continues in another segment. False while the next event comes from the journal or the board, because the
    /// subscriber can have to wait for this event.
    pub(super) fn is_leaving(&self) -> bool {
        !self.is_elsewhere() && self.hosted.as_ref().is_some_and(|hosted| hosted.may_go_on())
    }

    /// Makes the checks that empty polls do not make.
    pub(super) fn look(&mut self) -> Result<Option<Outcome>, RecvError> {
        if let Some(page) = &self.page {
            page.page.heartbeat(self.clock.now());
        }
        if self.is_elsewhere() {
            return Ok(None); // the next poll reads the journal or the board
        }
        let before = self.reader.place();
        // There is a record, and the next poll takes it.
        let Some(poll) = self.reader.look() else { return Ok(None) };
        if let Some(outcome) = self.admit(before, poll, 0)? {
            return Ok(Some(outcome));
        }
        if poll != Poll::Empty {
            return Ok(None);
        }
        match self.epoch_in_force().or_else(|| self.publisher_gone()) {
            None => self.look_for_name(),
            found => Ok(found),
        }
    }
}
