//! The service manager's descriptor store. Descriptors in it outlive this process, however it ends.
//!
//! With systemd's `FileDescriptorStoreMax=`, the daemon puts the descriptors of each new segment and of its lock into the store. At the
//! next start, the daemon gets these descriptors back. Without this setting, attached programs pass their segments to the next daemon.

use sd_notify::NotifyState;
use shmcast::hosting::HostedSegment;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

const SEGMENT: &str = "segment-";
const LOCK: &str = "lock-";

/// The service manager's descriptor store, if there is one.
#[derive(Debug)]
pub struct Store {
    _private: (),
}

impl Store {
    /// Returns the store of this process's service manager. Without a service manager, all methods do nothing.
    pub fn of_service_manager() -> Self {
        Self { _private: () }
    }

    /// Puts a segment and its lock into the store.
    ///
    /// # Errors
    /// If the service manager cannot be notified. In that case, neither descriptor is in the store.
    pub fn keep(&mut self, hosted: &HostedSegment) -> io::Result<()> {
        for (file, kind) in hosted.files().into_iter().zip([SEGMENT, LOCK]) {
            let name = format!("{kind}{}", id(hosted));
            let state = [NotifyState::FdStore, NotifyState::FdName(&name)];
            let kept = sd_notify::notify_with_fds(&state, &[file.as_fd()]).map_err(super::manager::unheard);
            kept.inspect_err(|_| self.forget(hosted))?;
        }
        Ok(())
    }

    /// Removes a segment and its lock from the store.
    pub fn forget(&mut self, hosted: &HostedSegment) {
        self.forget_id(&id(hosted));
    }

    /// Removes a segment and its lock from the store. `id` is the identity that they had when the service manager returned them.
    pub fn forget_id(&mut self, id: &str) {
        for kind in [SEGMENT, LOCK] {
            let name = format!("{kind}{id}");
            let state = [NotifyState::FdStoreRemove, NotifyState::FdName(&name)];
            if let Err(e) = super::manager::tell(&state) {
                tracing::error!(name, "the service manager keeps it: {e}");
            }
        }
    }
}

/// A segment and its lock that the service manager returned. The charters say which channel uses the segment, if any does.
#[derive(Debug)]
pub struct Kept {
    /// The identity under which the store kept the segment.
    pub id: String,
    /// The segment.
    pub segment: File,
    /// The lock.
    pub lock: File,
}

/// The segment's identity as a name for the store. Such a name has at most 255 characters and no colons.
fn id(hosted: &HostedSegment) -> String {
    let [high, low] = hosted.uuid();
    format!("{high:016x}{low:016x}")
}

/// Sorts the descriptors that the service manager passed. Returns the segments with their locks, and all other descriptors.
pub fn sort(inherited: Vec<(String, OwnedFd)>) -> (Vec<Kept>, Vec<(String, OwnedFd)>) {
    let (mut segments, mut locks, mut rest) = (Vec::new(), HashMap::new(), Vec::new());
    for (name, descriptor) in inherited {
        if let Some(id) = name.strip_prefix(SEGMENT) {
            segments.push((id.to_owned(), File::from(descriptor)));
        } else if let Some(id) = name.strip_prefix(LOCK) {
            locks.insert(id.to_owned(), File::from(descriptor));
        } else {
            rest.push((name, descriptor));
        }
    }
    let with_lock = |(id, segment): (String, File)| {
        let lock = locks.remove(&id);
        if lock.is_none() {
            tracing::error!(segment = id, "kept, but without its lock: not usable");
        }
        Some(Kept { lock: lock?, id, segment })
    };
    (segments.into_iter().filter_map(with_lock).collect(), rest)
}
