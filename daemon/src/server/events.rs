//! What happens, told once to everybody who cares: the log, and the programs that follow.

use super::access::Identity;
use shmcast::control::Event;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast;

/// Where events go.
#[derive(Debug, Clone)]
pub struct Events {
    followers: broadcast::Sender<Event>,
}

impl Events {
    /// `queue` events are kept for a follower that is slow; then it loses the oldest, and is told how many.
    pub fn new(queue: usize) -> Self {
        Self { followers: broadcast::Sender::new(queue.max(1)) }
    }

    /// Follows from now on.
    pub fn follow(&self) -> broadcast::Receiver<Event> {
        self.followers.subscribe()
    }

    /// Tells an event. `who` and `channel` as far as it concerns one.
    pub fn tell(
        &self,
        event: &str,
        channel: Option<&str>,
        role: Option<&str>,
        who: Option<&Identity>,
        detail: &str,
    ) {
        match who {
            Some(who) => tracing::info!(
                event,
                channel,
                role,
                pid = who.pid,
                uid = who.uid,
                command = who.command.as_deref(),
                detail,
            ),
            None => tracing::info!(event, channel, role, detail),
        }
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Nobody following is no error.
        let _ = self.followers.send(Event {
            time_ns: since_1970.as_nanos() as u64,
            event: event.to_owned(),
            channel: channel.map(str::to_owned),
            role: role.map(str::to_owned),
            process: who.map(Identity::process),
            detail: Some(detail.to_owned()).filter(|detail| !detail.is_empty()),
        });
    }
}
