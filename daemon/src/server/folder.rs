//! The daemon's files that other programs find by name: the socket and its lock, the marker, and the charters.
//!
//! New programs look for the socket, other daemons for the lock, and the next daemon for the marker and the charters. Attached programs
//! need no name, so they do not notice if somebody removes or moves the folder. The daemon checks the names once a second, restores them,
//! and reports names that it cannot restore.

use super::connection;
use super::listen::{Identity, Place, leads_to};
use super::state::ServerState;
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::UnixDatagram;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::MissedTickBehavior;

/// The pause between two checks of the names.
const LOOK: Duration = Duration::from_secs(1);

/// The names of the daemon's files. Clones share one state.
#[derive(Debug, Clone)]
pub(super) struct Folder(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    socket: PathBuf,
    marker: PathBuf,
    owner: Owner,
    /// The last reported problem.
    told: Option<String>,
    /// Whether the log already says that the marker cannot be written.
    is_markless: bool,
}

/// The maker of the socket.
#[derive(Debug)]
enum Owner {
    /// This daemon made the socket.
    Daemon(Place),
    /// The service manager made the socket. The value identifies the file of the socket. It is `None` if the socket had no name at the
    /// start.
    Manager(Option<Identity>),
}

/// The result of a check of the names.
#[derive(Debug, Default)]
struct Renewed {
    /// The new listening socket, if the old one lost its name.
    listener: Option<OwnedFd>,
    /// Whether any name was restored.
    is_any: bool,
}

impl Folder {
    /// Makes the record of the names of the daemon's files. The daemon listens at `socket`. `place` is `None` if the service manager made
    /// the socket.
    pub(super) fn new(socket: &Path, marker: PathBuf, place: Option<Place>) -> Self {
        let owner = place.map_or_else(|| Owner::Manager(leads_to(socket)), Owner::Daemon);
        let inner = Inner { socket: socket.to_owned(), marker, owner, told: None, is_markless: false };
        Self(Arc::new(Mutex::new(inner)))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the marker. If the next daemon finds the marker, this daemon did not stop in order.
    pub(super) fn mark(&self) {
        self.inner().mark();
    }

    /// Removes the marker, unless another daemon has written it.
    pub(super) fn unmark(&self) {
        let marker = &self.inner().marker;
        // The marker is empty if the disk was full.
        let is_ours = |text: String| text.is_empty() || text == std::process::id().to_string();
        if fs::read_to_string(marker).is_ok_and(is_ours) {
            let _ = fs::remove_file(marker);
        }
    }

    /// Checks the names once a second, and restores them. Never returns. Sends each new listening socket to `listeners`.
    pub(super) async fn keep(self, shared: Arc<ServerState>, listeners: UnboundedSender<UnixDatagram>) {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let folder = self.clone();
            // The files might be on a slow disk, so they are checked on another thread.
            let looked = tokio::task::spawn_blocking(move || folder.inner().renew()).await;
            let Ok(looked) = looked else { continue };
            let renewed = looked.and_then(|Renewed { listener, is_any }| {
                if let Some(listener) = listener {
                    let _ = listeners.send(connection::watch(listener)?);
                }
                let lost = shared.registry().renew_charters();
                Ok((is_any, lost.context("the next daemon would not find the memory of the channels")?))
            });
            self.tell(&shared, renewed);
        }
    }

    fn tell(&self, shared: &ServerState, renewed: Result<(bool, Vec<String>)>) {
        let mut inner = self.inner();
        let at = inner.socket.display().to_string();
        match renewed {
            Ok((is_any, lost)) => {
                let was_told = inner.told.take().is_some();
                let again = format!("files beside {at} were removed or moved, and are made again");
                let detail = match lost.is_empty() {
                    true => again,
                    false => format!(
                        "{again}; the next daemon does not know the memory of {}: these channels begin anew with it",
                        lost.join(", ")
                    ),
                };
                if is_any || was_told || !lost.is_empty() {
                    shared.events.tell("folder-anew", None, None, None, &detail);
                }
            }
            Err(e) => {
                let why = format!("files beside {at} were removed or moved: {e:#}");
                if inner.told.as_ref() != Some(&why) {
                    shared.events.tell("folder-failed", None, None, None, &why);
                    inner.told = Some(why);
                }
            }
        }
    }
}

impl Inner {
    /// Restores the names that do not lead to this daemon's files.
    fn renew(&mut self) -> Result<Renewed> {
        const SHUT: &str = "no other program can attach, and attached ones go on";
        let mut renewed = Renewed::default();
        match &mut self.owner {
            Owner::Daemon(place) => {
                if !place.has_its_names() {
                    renewed = Renewed { listener: place.renew().context(SHUT)?, is_any: true };
                }
            }
            Owner::Manager(None) => {}
            Owner::Manager(made) => {
                if leads_to(&self.socket) != *made {
                    bail!("{SHUT}: the service manager made the socket: restart its socket unit");
                }
            }
        }
        if leads_to(&self.marker).is_none() {
            renewed.is_any |= self.mark();
        }
        Ok(renewed)
    }

    /// Writes the marker. Returns whether the marker was written. A lasting failure is logged once.
    fn mark(&mut self) -> bool {
        let marker = self.marker.display();
        match fs::write(&self.marker, std::process::id().to_string()) {
            Ok(()) => self.is_markless = false,
            Err(e) if !std::mem::replace(&mut self.is_markless, true) => {
                tracing::warn!("cannot write {marker}: {e}; after a crash, newcomers are not held back");
            }
            Err(_) => {}
        }
        !self.is_markless
    }
}
