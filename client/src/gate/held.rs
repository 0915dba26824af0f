//! The reader's side of a gate. The reader holds the gate's lock, and writes to the gate's page how far it has read.

use super::name::{GateError, GateName};
use crate::directory::ChannelFiles;
use crate::lock::{self, Held};
use shmcast_layout::gate::{GateClaim, GatePage};
use shmcast_layout::ring::locate::Place;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

/// A gate that this process holds. Dropping this value frees the gate.
#[derive(Debug)]
pub(crate) struct HeldGate {
    name: GateName,
    page: GatePage,
    lock: Held,
    /// Device and inode of the page.
    file: (u64, u64),
}

/// The reason why a gate cannot be held.
pub(crate) enum NotHeld {
    Refused(GateError),
    Failed(io::Error),
}

impl From<io::Error> for NotHeld {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::InvalidData => Self::Refused(GateError::Damaged),
            _ => Self::Failed(e),
        }
    }
}

impl HeldGate {
    /// Takes a gate for a reader of the segment with the identity `segment`. `lock` and `page` are the same file, the gate's page, which
    /// was opened twice for the caller alone. The reader locks `lock`, and maps `page`.
    pub(crate) fn take(name: GateName, [lock, page]: [File; 2], segment: [u64; 2]) -> Result<Self, NotHeld> {
        let is_taken = !lock::try_lock(&lock)?;
        // A publisher without this gate might have removed the page after it was opened for this reader.
        let found = lock.metadata()?;
        if found.nlink() == 0 {
            return Err(NotHeld::Refused(GateError::Unknown { gates: Vec::new() }));
        }
        if is_taken {
            let pid = GateClaim::read(&lock, segment).map_or(0, |claim| claim.pid);
            return Err(NotHeld::Refused(GateError::Taken { pid }));
        }
        let lock = Held::new(lock);
        let page = GatePage::open(&page, std::process::id(), segment)?;
        Ok(Self { name, page, lock, file: (found.dev(), found.ino()) })
    }

    /// Whether the gate's page is no longer at its name. If so, the next publisher makes another page, and does not wait for this reader.
    /// `files` are the channel's files; `None` for a daemon's channel. For a daemon's channel, this function notices a removed page, but
    /// not a moved page. If the folder of the pages was moved, the daemon removes the page. Costs a system call or two.
    pub(crate) fn is_lost(&self, files: Option<&ChannelFiles>) -> bool {
        let is_removed = self.lock.file.metadata().is_ok_and(|found| found.nlink() == 0);
        is_removed || files.is_some_and(|files| !files.names_gate(self.name, self.file))
    }

    pub(crate) fn name(&self) -> GateName {
        self.name
    }

    /// Writes to the gate's page that the reader no longer needs the records before `place`. Costs three stores.
    #[inline]
    pub(crate) fn passed(&self, place: Place) {
        self.page.passed(place);
    }

    /// Writes to the gate's page that the reader has no place in the ring. Costs two stores.
    #[inline]
    pub(crate) fn leave(&self) {
        self.page.leave();
    }

    /// Notes that the reader has moved to another segment, `segment`. The gate's page has no valid position until the next call of
    /// [`passed`](Self::passed).
    pub(crate) fn go_on(&mut self, segment: [u64; 2]) {
        self.page.go_on(segment);
    }
}

impl Drop for HeldGate {
    fn drop(&mut self) {
        // A forked child shares the mapping of the page, and must not change its parent's page.
        if !self.lock.is_a_childs() {
            self.page.leave();
        }
    }
}
