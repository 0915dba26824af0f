//! Detects that the publisher died.
//!
//! The publisher holds the writer lock, and the kernel releases this lock when the publisher ends, however that happens. A reader of a
//! channel that is a file checks the lock itself.
//!
//! A reader of a daemon's channel cannot check the lock, because only the publisher and the daemon can open the lock's file. So the daemon
//! reports the death. A reader looks for the death only after a poll that found nothing.

use super::{Doubt, Outcome, Subscriber};
use crate::lock;
use crate::message::Event;
use shmcast_layout::layout::header::State;
use shmcast_layout::ring::reader::Poll;
use std::fs::File;
use std::time::Duration;

/// Pause between two checks of the lock of a file. A check costs one system call.
const PAUSE: Duration = Duration::from_millis(10);

/// The state of a subscriber that requested the event of its publisher's death.
#[derive(Debug)]
pub(super) struct Watch {
    /// The lock, if the channel is a file.
    lock: Option<File>,
    /// Time of the last check of the lock, in ticks of the channel's clock.
    looked: Option<u64>,
    /// Generation and epoch of the last publisher whose death was reported.
    told: Option<(u64, u64)>,
}

impl Watch {
    /// Watches the lock of a channel that is a file.
    pub(super) fn of_lock(lock: File) -> Self {
        Self { lock: Some(lock), looked: None, told: None }
    }

    /// Uses the reports of the daemon that owns the channel.
    pub(super) fn of_the_daemon() -> Self {
        Self { lock: None, looked: None, told: None }
    }

    /// Forgets the reported deaths. Called when the channel restarts, because generations and epochs can also begin again.
    pub(super) fn forget(&mut self) {
        self.told = None;
    }
}

impl Subscriber {
    /// Returns the event of the publisher's death once, if the caller requested this event. Called after a poll that found nothing.
    #[inline]
    pub(super) fn publisher_gone(&mut self) -> Option<Outcome> {
        if self.watch.is_none() { None } else { self.look_for_death() }
    }

    #[cold]
    fn look_for_death(&mut self) -> Option<Outcome> {
        let Some((epoch, State::Active | State::Recovering)) = self.reader.state() else { return None };
        let generation = self.hosted.as_ref().map_or(0, |hosted| hosted.generation.generation);
        let watch = self.watch.as_mut()?;
        if watch.told == Some((generation, epoch)) {
            return None;
        }
        match (&watch.lock, &self.hosted) {
            (Some(lock), _) => {
                let now = self.clock.now();
                let is_early = |looked| self.clock.ns_between(looked, now) < PAUSE.as_nanos() as u64;
                if watch.looked.is_some_and(is_early) {
                    return None;
                }
                watch.looked = Some(now);
                let (died, _) = lock::dead_publisher(lock, || self.reader.state())?;
                if died != epoch {
                    return None;
                }
            }
            (None, Some(hosted)) if hosted.attachment.has_died(generation, epoch) => {}
            (None, _) => return None,
        }
        // All messages of the publisher, and all other events, are returned first.
        let is_all_received = self.doubt == Doubt::None && self.reader.look() == Some(Poll::Empty);
        if !is_all_received || self.is_withheld() {
            // The next empty poll checks again.
            self.watch.as_mut()?.looked = None;
            return None;
        }
        self.watch.as_mut()?.told = Some((generation, epoch));
        Some(Outcome::Other(Event::PublisherGone { epoch }))
    }
}
