//! The pauses after refusals whose reasons do not pass soon.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The first pause after a refusal. Without a pause, the keeper would be refused again and again, and the daemon logs each refusal.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause after a refusal.
const LONGEST: Duration = Duration::from_secs(60);

/// A pause after a refusal. Each further refusal doubles the pause. The pause ends early if another daemon has made the socket, because the
/// other daemon can have another configuration, and waits only two seconds for the programs of an earlier daemon.
#[derive(Debug)]
pub(super) struct Pause {
    until: Instant,
    length: Duration,
    /// The socket of the daemon that refused.
    socket: Option<Socket>,
}

/// Device, inode and time of the last change of a socket's file.
type Socket = (u64, u64, i64, i64);

fn socket_at(path: &Path) -> Option<Socket> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.ctime(), found.ctime_nsec()))
}

impl Pause {
    /// Begins a pause. `before` is the pause after the refusal before this one.
    pub(super) fn after(before: Option<&Self>, daemon: &Path) -> Self {
        let length = before.map_or(FIRST, |before| (before.length * 2).min(LONGEST));
        Self { until: Instant::now() + length, length, socket: socket_at(daemon) }
    }

    /// Whether the pause is not over yet.
    pub(super) fn lasts(&self, daemon: &Path) -> bool {
        Instant::now() < self.until && socket_at(daemon) == self.socket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_minute_and_end_when_another_daemon_comes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        std::fs::write(&path, "").unwrap();
        let mut pause = Pause::after(None, &path);
        let lengths = std::iter::from_fn(|| {
            let length = pause.length.as_secs();
            pause = Pause::after(Some(&pause), &path);
            Some(length)
        });
        assert_eq!(lengths.take(8).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(pause.lasts(&path));
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        assert!(!pause.lasts(&path), "the daemon has gone");
        std::fs::write(&path, "").unwrap();
        assert!(!pause.lasts(&path), "another daemon has come");
        assert!(Pause::after(None, &dir.path().join("none")).lasts(&dir.path().join("none")));
    }
}
