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
    /// Called when there is no other event. Fails if the segment no longer has its name.
    pub(super) fn look_for_name(&mut self) -> Result<Option<Outcome>, RecvError> {
        let Some(named) = self.named.as_deref_mut() else { return Ok(None) };
        let now = self.clock.now();
        let pause = PAUSE.as_nanos() as u64;
        let is_due = named.looked.is_none_or(|looked| self.clock.ns_between(looked, now) >= pause);
        if is_due {
            named.looked = Some(now);
            named.is_removed = !named.files.names_segment(named.segment);
        }
        match named.is_removed && !fault!("removed_segments_are_waited_on") {
            true => Err(RecvError::Superseded),
            false => Ok(None),
        }
    }
}
