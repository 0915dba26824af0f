//! Remembers which received channels were promoted to channels of this host. The next daemon does not receive a promoted channel, and lets
//! programs publish on it.
//!
//! Each promoted channel has an empty file beside the socket. A boot removes the file and the channel's ring. If somebody removes the file,
//! a running daemon makes it again.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The notes of promoted channels. Clones share the same notes.
#[derive(Debug, Clone)]
pub struct Promoted {
    socket: PathBuf,
    /// The channels that this daemon knows to be promoted. The value is true once the daemon has reported that it cannot make the channel's
    /// file again.
    known: Arc<Mutex<BTreeMap<String, bool>>>,
}

impl Promoted {
    /// Returns the notes that are beside this socket.
    pub(super) fn beside(socket: &Path) -> Promoted {
        Promoted { socket: socket.to_owned(), known: Arc::default() }
    }

    fn note(&self, channel: &str) -> PathBuf {
        self.socket.with_extension(format!("promoted-{channel}"))
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the channel is promoted.
    pub(super) fn contains(&self, channel: &str) -> bool {
        let mut known = self.known();
        let is_promoted = known.contains_key(channel) || self.note(channel).exists();
        if is_promoted {
            known.entry(channel.to_owned()).or_default();
        }
        is_promoted
    }

    /// Notes that the channel is promoted.
    pub(super) fn add(&self, channel: &str) -> Result<(), String> {
        let mut known = self.known();
        let note = self.note(channel);
        fs::write(&note, "").map_err(|e| format!("note in {} that it is promoted: {e}", note.display()))?;
        known.insert(channel.to_owned(), false);
        Ok(())
    }

    /// Forgets that the channel is promoted.
    pub(super) fn remove(&self, channel: &str) {
        let mut known = self.known();
        known.remove(channel);
        let note = self.note(channel);
        match fs::remove_file(&note) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                tracing::error!("{} stays, and its channel is not received: {e}", note.display());
            }
            _ => {}
        }
    }

    /// Makes removed files again. Without the file of a channel, the next daemon would receive the channel again, although it is a channel
    /// of this host.
    pub(super) fn renew(&self) {
        for (channel, told) in self.known().iter_mut() {
            let note = self.note(channel);
            match fs::symlink_metadata(&note) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                _ => continue,
            }
            match fs::write(&note, "") {
                Ok(()) => {
                    *told = false;
                    tracing::warn!(channel, "{} was removed: it is made again", note.display());
                }
                Err(e) if !std::mem::replace(told, true) => {
                    tracing::error!(
                        channel,
                        "the next daemon will receive a promoted channel: {}: {e}",
                        note.display()
                    );
                }
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody removes the directory, and it exists again later. The daemon never forgets the promotion, and the next daemon knows it,
    /// too.
    #[test]
    fn a_note_that_is_removed_is_made_again() {
        let room = tempfile::tempdir().expect("a directory");
        let run = room.path().join("run");
        fs::create_dir(&run).expect("a directory");
        let promoted = Promoted::beside(&run.join("s"));
        promoted.add("t").expect("it is noted");
        fs::remove_dir_all(&run).expect("it is there");
        promoted.renew();
        promoted.renew();
        assert!(promoted.clone().contains("t"));
        fs::create_dir(&run).expect("a directory");
        promoted.renew();
        let next = Promoted::beside(&run.join("s"));
        assert!(next.contains("t") && !next.contains("u"));
        next.remove("t");
        next.renew();
        assert!(!Promoted::beside(&run.join("s")).contains("t"));
        assert!(promoted.contains("t"), "each daemon has a memory of its own");
    }
}
