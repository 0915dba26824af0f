//! State that the daemon's tasks share: channels, limits, events, bridges and journals.

use super::access::Access;
use super::bridges::Bridges;
use super::events::Events;
use super::journals::Journals;
use super::limits::Limits;
use super::registry::{MemoryRequest, Refused, Registry};
use shmcast::control::RefusalCode;
use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;
use tokio::sync::watch;

/// The treatment of programs that were not attached before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Newcomers {
    /// New programs wait, because programs that were attached to a crashed daemon attach again first.
    Wait,
    /// New programs are let in.
    LetIn,
    /// New programs are refused: this daemon is stopping, and the programs of a crashed daemon have not yet had time to attach again.
    SentAway,
}

/// State that all connections share.
#[derive(Debug)]
pub struct ServerState {
    /// The registry. It is set when the memory of all channels is made.
    pub(super) opened: OnceLock<Mutex<Registry>>,
    pub(super) is_open: watch::Sender<bool>,
    /// The treatment of programs that were not attached before.
    pub(super) newcomers: watch::Sender<Newcomers>,
    pub(super) memory_turn: tokio::sync::Mutex<()>,
    pub(super) limits: Mutex<Limits>,
    pub(super) access: Access,
    /// The events: the log, and the programs that follow.
    pub events: Events,
    /// The bridges to other hosts.
    pub bridges: Bridges,
    /// The journals of channels.
    pub journals: Journals,
    /// A number that grows with each start of the daemon.
    pub instance: u64,
    /// The wall clock when this daemon started. It stays the same if somebody changes the clock afterwards.
    pub started: SystemTime,
}

impl ServerState {
    /// Ends the wait of new programs, if they still wait.
    pub(super) fn decide_on_newcomers(&self, what: Newcomers) {
        self.newcomers.send_if_modified(|now| {
            let waits = *now == Newcomers::Wait;
            if waits {
                *now = what;
            }
            waits
        });
    }

    /// The channels.
    ///
    /// # Panics
    /// If the memory of some channel is not made yet. A client cannot cause this panic, because clients are greeted only after the memory
    /// of all channels is made.
    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        // The lock is used even if it is poisoned: after a panic in a method, the registry is consistent.
        let registry =
            self.opened.get().expect("nobody is greeted before the memory of all channels is made");
        registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the channels available. From this time on, the daemon answers greetings of clients.
    pub(super) fn open(&self, registry: Registry) {
        let _ = self.opened.set(Mutex::new(registry));
        self.is_open.send_replace(true);
    }

    pub(super) fn limits(&self) -> MutexGuard<'_, Limits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes memory for a channel's next generation, and passes it to the registry. Another thread makes the memory, one request at a time.
    pub(super) async fn make_memory(&self, channel: &str, request: MemoryRequest) -> Result<(), Refused> {
        let _turn = self.memory_turn.lock().await;
        // The memory might exist by now, because another program needed it, too.
        if !self.registry().needs(channel, &request) {
            return Ok(());
        }
        let made = tokio::task::spawn_blocking(move || request.make()).await;
        let failed =
            |e: &dyn Display| Refused::new(RefusalCode::Failed, format!("make the next segment: {e}"));
        let made = made.map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
        self.registry().stock(channel, made);
        Ok(())
    }
}
