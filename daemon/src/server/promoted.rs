//! Remembers the received channels that were promoted to channels of this host. The next daemon does not receive them, and lets programs
//! publish on them.
//!
//! Each such channel has an empty file beside the socket. The file is gone after a boot, as the ring is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The notes of promoted channels.
#[derive(Debug, Clone)]
pub struct Promoted {
    socket: PathBuf,
}

impl Promoted {
    /// The notes beside this socket.
    pub(super) fn beside(socket: &Path) -> Promoted {
        Promoted { socket: socket.to_owned() }
    }

    fn note(&self, channel: &str) -> PathBuf {
        self.socket.with_extension(format!("promoted-{channel}"))
    }

    /// Whether the channel is promoted.
    pub(super) fn contains(&self, channel: &str) -> bool {
        self.note(channel).exists()
    }

    /// Notes that the channel is promoted.
    pub(super) fn add(&self, channel: &str) -> Result<(), String> {
        let note = self.note(channel);
        fs::write(&note, "").map_err(|e| format!("note in {} that it is promoted: {e}", note.display()))
    }

    /// Forgets it.
    pub(super) fn remove(&self, channel: &str) {
        let note = self.note(channel);
        match fs::remove_file(&note) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                tracing::error!("{} stays, and its channel is not received: {e}", note.display());
            }
            _ => {}
        }
    }
}
