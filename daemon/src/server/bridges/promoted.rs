//! Remembers that the channel of a bridge was promoted, so that the next daemon does not receive it again.
//!
//! There is a file for each such channel, beside the socket. It is gone after a boot, as the ring is.

use std::io;
use std::path::{Path, PathBuf};

/// The place of the note about one channel.
#[derive(Debug, Clone)]
pub(super) struct Note(PathBuf);

impl Note {
    pub(super) fn new(socket: &Path, channel: &str) -> Note {
        Note(socket.with_extension(format!("promoted-{channel}")))
    }

    /// Whether the channel was promoted.
    pub(super) fn is_there(&self) -> bool {
        self.0.exists()
    }

    /// Notes that the channel is promoted.
    pub(super) fn write(&self) -> Result<(), String> {
        std::fs::write(&self.0, "").map_err(|e| format!("{}: {e}", self.0.display()))
    }

    /// Forgets it.
    pub(super) fn remove(&self) {
        match std::fs::remove_file(&self.0) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                tracing::error!("{} stays, and its bridge receives nothing: {e}", self.0.display());
            }
            _ => {}
        }
    }
}
