//! Detects that the file of the segment was removed, for example by a cleanup program. New readers then do not find the channel, and the
//! next publisher makes another channel.

use super::{Outcome, Subscriber};
use crate::directory::ChannelFiles;
use crate::message::RecvError;
use shmcast_layout::fault;
use std::time::Duration;

/// Pause between two checks. A check costs three system calls.
const PAUSE: Duration = Duration::from_secs(1);

/// The name of a segment's file. The file itself is not kept open, so that the file's owner cannot map it for writing through our
/// descriptor.
#[derive(Debug)]
pub(super) struct Named {
    files: ChannelFiles,
    /// Device and inode of the segment.
    segment: (u64, u64),
    /// Time of the last check, in ticks of the channel's clock.
    looked: Option<u64>,
    is_removed: bool,
}

impl Named {
    /// Watches the name of the segment with this device and inode.
    pub(super) fn new(files: ChannelFiles, segment: (u64, u64)) -> Self {
        Self { files, segment, looked: None, is_removed: false }
    }
}

impl Subscriber {
    /// Does the same as [`poll`](Self::poll). If there is nothing, also checks the segment's name.
    #[inline(never)]
    pub(super) fn poll_and_look(&mut self) -> Result<Option<Outcome>, RecvError> {
        match self.poll()? {
            None => self.look_for_name_at_end(),
            found => Ok(found),
        }
    }

    /// Does the same as [`poll_into`](Self::poll_into). If there is nothing, also checks the segment's name.
    #[inline(never)]
    pub(super) fn poll_into_and_look(&mut self, buffer: &mut [u8]) -> Result<Option<Outcome>, RecvError> {
        match self.poll_into(buffer)? {
            None => self.look_for_name_at_end(),
            found => Ok(found),
        }
    }

    /// For a channel of files, makes the checks that empty polls do not make. The last of them is that of the segment's name.
    pub(super) fn look_for_name_at_end(&mut self) -> Result<Option<Outcome>, RecvError> {
        if self.named.is_some() { self.look() } else { Ok(None) }
    }

    /// Called when there is no other event. Fails if the segment no longer has its name.
    pub(super) fn look_for_name(&mut self) -> Result<Option<Outcome>, RecvError> {
        let Some(named) = self.named.as_deref_mut() else { return Ok(None) };
        let now = self.clock.now();
        // A reader that has just attached has found the name.
        let looked = *named.looked.get_or_insert(now);
        if self.clock.ns_between(looked, now) >= PAUSE.as_nanos() as u64 {
            named.looked = Some(now);
            named.is_removed = !named.files.names_segment(named.segment);
        }
        match named.is_removed && !fault!("removed_segments_are_waited_on") {
            true => Err(RecvError::Superseded),
            false => Ok(None),
        }
    }
}
