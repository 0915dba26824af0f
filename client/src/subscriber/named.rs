//! Detects that the file of the segment was removed, for example by a cleanup program. New readers then do not find the channel, and the
//! next publisher makes another channel. In the same way, detects that the page of the subscriber's gate was removed or moved. The next
//! publisher then makes another page, and does not wait for the subscriber.

use super::{Outcome, Subscriber};
use crate::directory::ChannelFiles;
use crate::gate::HeldGate;
use crate::message::RecvError;
use shmcast_layout::fault;
use shmcast_layout::layout::header::State;
use std::time::Duration;

/// Pause between two checks. A check costs three system calls, and two more for a gate.
const PAUSE: Duration = Duration::from_secs(1);

/// Checks the names of the segment's file and of the page of the subscriber's gate. Keeps device and inode of the segment, and does not
/// keep the segment's file open.
#[derive(Debug)]
pub(super) struct Named {
    /// The channel's files, with device and inode of the segment; `None` for a daemon's channel.
    files: Option<(ChannelFiles, (u64, u64))>,
    /// Time of the last check, in ticks of the channel's clock.
    looked: Option<u64>,
    /// The result of the last check.
    lost: Option<RecvError>,
    /// Number of calls that found nothing since the last check.
    calls: u8,
}

/// The number of empty calls for which the segment's name is checked once.
const CALLS: u8 = 64;

impl Named {
    /// Watches the name of the segment with this device and inode.
    pub(super) fn new(files: ChannelFiles, segment: (u64, u64)) -> Self {
        Self { files: Some((files, segment)), ..Self::of_gate() }
    }

    /// Watches only the page of a gate, in a daemon's channel.
    pub(super) fn of_gate() -> Self {
        Self { files: None, looked: None, lost: None, calls: 0 }
    }

    /// Checks the names. Returns an error if a file is no longer at its name.
    fn loss(&self, gate: Option<&HeldGate>) -> Option<RecvError> {
        if self.files.as_ref().is_some_and(|(files, segment)| !files.names_segment(*segment)) {
            return Some(RecvError::Superseded);
        }
        let files = self.files.as_ref().map(|(files, _)| files);
        gate.filter(|gate| gate.is_lost(files)).map(|gate| RecvError::GateLost { gate: gate.name() })
    }
}

impl Subscriber {
    /// Does the same as [`poll`](Self::poll). If there is nothing, also checks the segment's name.
    #[inline(never)]
    pub(super) fn poll_and_look(&mut self) -> Result<Option<Outcome>, RecvError> {
        let found = self.poll()?;
        if found.is_none() {
            self.look_for_name_if_empty()?;
        }
        Ok(found)
    }

    /// Does the same as [`poll_into`](Self::poll_into). If there is nothing, also checks the segment's name.
    #[inline(never)]
    pub(super) fn poll_into_and_look(&mut self, buffer: &mut [u8]) -> Result<Option<Outcome>, RecvError> {
        let found = self.poll_into(buffer)?;
        if found.is_none() {
            self.look_for_name_if_empty()?;
        }
        Ok(found)
    }

    /// Checks the segment's name in one of 64 calls that found nothing. While the channel is closed, checks nothing, because a later call
    /// must return the end of the channel first.
    pub(super) fn look_for_name_at_end(&mut self) -> Result<(), RecvError> {
        let Some(named) = self.named.as_deref_mut() else { return Ok(()) };
        named.calls = (named.calls + 1) % CALLS;
        if named.calls != 0 {
            return Ok(());
        }
        let is_closed = matches!(self.reader.state(), Some((_, State::Closed)));
        if is_closed { Ok(()) } else { self.look_for_name_if_empty() }
    }

    /// Returns an error if the segment or the gate's page no longer has its name. Checks the names only if the caller has received every
    /// record of the segment.
    fn look_for_name_if_empty(&mut self) -> Result<(), RecvError> {
        if self.named.is_some() && !self.is_elsewhere() && !self.has_more() {
            self.look_for_name()?;
        }
        Ok(())
    }

    /// Called when there is no other event. Returns an error if the segment or the gate's page no longer has its name.
    pub(super) fn look_for_name(&mut self) -> Result<Option<Outcome>, RecvError> {
        let Some(named) = self.named.as_deref_mut() else { return Ok(None) };
        let now = self.clock.now();
        let pause = PAUSE.as_nanos() as u64;
        let is_due = named.looked.is_none_or(|looked| self.clock.ns_between(looked, now) >= pause);
        if is_due {
            named.looked = Some(now);
            named.lost = named.loss(self.gate.as_deref());
        }
        match named.lost {
            Some(lost) if !fault!("removed_segments_are_waited_on") => Err(lost),
            _ => Ok(None),
        }
    }
}
