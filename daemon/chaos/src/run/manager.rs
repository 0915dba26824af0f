//! A small replacement for the service manager. This manager keeps the descriptors that a daemon sends to it, and passes them to the next
//! daemon.
//!
//! See `sd_notify(3)` (`FDSTORE=1`, `FDNAME=`, `FDSTOREREMOVE=1`) and `sd_listen_fds(3)`.

use anyhow::{Context, Result};
use command_fds::{CommandFdExt, FdMapping};
use shmcast::sys::handoff;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// The kept descriptors, by name.
type Kept = Arc<Mutex<Vec<(String, File)>>>;

/// The manager, which serves one daemon at a time.
#[derive(Debug)]
pub(super) struct Manager {
    path: PathBuf,
    kept: Kept,
    /// Receives an item for each message that the manager sent to itself.
    heard: Receiver<()>,
}

impl Manager {
    /// Listens at `path`. The thread ends with the process.
    pub(super) fn start(path: &Path) -> Result<Self> {
        let socket = UnixDatagram::bind(path).with_context(|| format!("listen at {}", path.display()))?;
        let kept = Kept::default();
        let store = kept.clone();
        let (hears, heard) = channel();
        std::thread::spawn(move || listen(&socket, &store, &hears));
        Ok(Self { path: path.to_owned(), kept, heard })
    }

    /// Waits until the manager's thread has received everything that the last daemon sent.
    fn hear_out(&self) -> Result<()> {
        UnixDatagram::unbound()?.send_to(b"X_HEAR=1", &self.path).context("speak to the manager's thread")?;
        self.heard.recv().context("the manager's thread has ended")
    }

    /// Lets the daemon that `command` starts inherit all stored descriptors.
    pub(super) fn pass_to(&self, command: &mut Command) -> Result<()> {
        command.env("NOTIFY_SOCKET", &self.path);
        self.hear_out()?;
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names = Vec::new();
        let mut mappings = Vec::new();
        for (at, (name, file)) in kept.iter().enumerate() {
            names.push(name.as_str());
            let parent_fd = OwnedFd::from(file.try_clone().context("duplicate what is kept")?);
            mappings.push(FdMapping { parent_fd, child_fd: 3 + at as i32 });
        }
        command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        command.fd_mappings(mappings).context("pass what is kept")?;
        Ok(())
    }

    /// Number of kept descriptors.
    pub(super) fn count(&self) -> Option<usize> {
        self.hear_out().ok()?;
        Some(self.kept.lock().unwrap_or_else(PoisonError::into_inner).len())
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // This message ends the thread.
        if let Ok(socket) = UnixDatagram::unbound() {
            let _ = socket.send_to(b"X_OVER=1", &self.path);
        }
    }
}

fn listen(socket: &UnixDatagram, kept: &Kept, hears: &Sender<()>) {
    let mut buffer = vec![0; 4096];
    loop {
        let packet = match handoff::receive(socket, &mut buffer) {
            Ok(packet) => packet,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let text = String::from_utf8_lossy(&buffer[..packet.length]).into_owned();
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        let name = value("FDNAME").unwrap_or("stored").to_owned();
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if value("X_OVER").is_some() {
            kept.clear();
            return;
        }
        if value("X_HEAR").is_some() {
            let _ = hears.send(());
        }
        if value("FDSTOREREMOVE") == Some("1") {
            kept.retain(|(there, _)| *there != name);
        } else if value("FDSTORE") == Some("1") {
            kept.extend(packet.descriptors.into_iter().map(|file| (name.clone(), file)));
        }
    }
}
