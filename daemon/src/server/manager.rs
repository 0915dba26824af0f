//! Notices of the daemon to the service manager.

use sd_notify::NotifyState;
use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};

/// A spare descriptor. If no descriptor is free for a notice to the service manager, the spare one is closed for the notice. Without
/// notices, the watchdog would kill the daemon.
static RESERVE: Mutex<Option<File>> = Mutex::new(None);

/// Opens the reserved descriptor. Call this before programs can use up all descriptors.
pub(super) fn reserve() {
    let mut reserve = RESERVE.lock().unwrap_or_else(PoisonError::into_inner);
    if reserve.is_none() {
        *reserve = File::open("/dev/null").ok();
    }
}

/// Returns the error of a notice that the service manager did not get, with advice. An error about descriptors stays as it is.
pub(super) fn unheard(e: io::Error) -> io::Error {
    if matches!(e.raw_os_error(), Some(nix::libc::EMFILE | nix::libc::ENFILE)) {
        return e;
    }
    let socket = std::env::var_os("NOTIFY_SOCKET").unwrap_or_default();
    let what = format!(
        "tell the service manager at NOTIFY_SOCKET={}: {e}: unset it if no service manager runs this",
        socket.display()
    );
    io::Error::new(e.kind(), what)
}

/// Notifies the service manager, if there is one. This also works if this process has no free descriptor.
pub(super) fn tell(states: &[NotifyState<'_>]) -> io::Result<()> {
    let told = sd_notify::notify(states);
    match told {
        Err(e) if e.raw_os_error() == Some(nix::libc::EMFILE) => {
            *RESERVE.lock().unwrap_or_else(PoisonError::into_inner) = None;
            let told = sd_notify::notify(states);
            reserve();
            told
        }
        told => told,
    }
    .map_err(unheard)
}
