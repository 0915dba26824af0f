//! The service manager's keeping: descriptors that outlive this process, however it ends.
//!
//! With systemd's `FileDescriptorStoreMax=`, segments and locks are handed to it as they are made, and come back with
//! the next start. Elsewhere nothing is kept, and attached programs bring their segments back themselves.

use sd_notify::NotifyState;
use shmcast::hosting::HostedSegment;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

const SEGMENT: &str = "segment-";
const LOCK: &str = "lock-";

/// The service manager's descriptor store, if there is one.
#[derive(Debug)]
pub struct Store {
    _private: (),
}

impl Store {
    /// The store of the service manager that started us; without one, keeping does nothing.
    pub fn of_service_manager() -> Self {
        Self { _private: () }
    }

    /// Keeps a segment and its lock.
    pub fn keep(&mut self, hosted: &HostedSegment) {
        for (file, name) in hosted.files().into_iter().zip(names(hosted)) {
            let state = [NotifyState::FdStore, NotifyState::FdName(&name)];
            if let Err(e) = sd_notify::notify_with_fds(&state, &[file.as_fd()]) {
                tracing::error!(
                    channel = hosted.header().channel,
                    "the service manager does not keep it: {e}"
                );
            }
        }
    }

    /// Keeps a segment and its lock no longer.
    pub fn forget(&mut self, hosted: &HostedSegment) {
        for name in names(hosted) {
            let state = [NotifyState::FdStoreRemove, NotifyState::FdName(&name)];
            if let Err(e) = sd_notify::notify(&state) {
                tracing::error!(channel = hosted.header().channel, "the service manager keeps it: {e}");
            }
        }
    }
}

/// Names in the store may hold no colons and at most 255 characters: the segment's identity serves both.
fn names(hosted: &HostedSegment) -> [String; 2] {
    let [high, low] = hosted.uuid();
    [SEGMENT, LOCK].map(|kind| format!("{kind}{high:016x}{low:016x}"))
}

/// Sorts what the service manager passed into the segments that it kept and the rest, such as sockets.
pub fn sort(inherited: Vec<(String, OwnedFd)>) -> (Vec<HostedSegment>, Vec<(String, OwnedFd)>) {
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
    let adopt = |(id, file): (String, File)| {
        let adopted = HostedSegment::adopt(None, &file, locks.remove(&id));
        adopted.inspect_err(|e| tracing::error!(segment = id, "kept, but not usable: {e}")).ok()
    };
    (segments.into_iter().filter_map(adopt).collect(), rest)
}
