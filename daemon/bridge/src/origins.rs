//! Which sessions began on this host, so that none of them is received here: a feed that comes back to where it began has
//! gone in a circle.
//!
//! Shared by the bridges of one daemon. Touched where sessions begin, which is rare, and never in between. What goes on
//! from host to host keeps its session, so a circle of any length is known by its first host.

use super::proto::session::Session;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sessions remembered; the oldest are forgotten. Each fresh start of a channel is one.
const MAX_SESSIONS: usize = 4_096;

/// Sessions that began on this host. Clones share one list.
#[derive(Debug, Clone, Default)]
pub struct Origins(Arc<Mutex<Vec<Session>>>);

impl Origins {
    /// Notes that `session` began here.
    pub fn add(&self, session: Session) {
        let mut sessions = self.sessions();
        if !sessions.contains(&session) {
            if sessions.len() == MAX_SESSIONS {
                sessions.remove(0);
            }
            sessions.push(session);
        }
    }

    /// Whether `session` began here.
    pub fn contains(&self, session: Session) -> bool {
        self.sessions().contains(&session)
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_without_end_are_not_remembered_without_end() {
        let origins = Origins::default();
        let session = |epoch| Session::of_channel("TICK", epoch).unwrap();
        for epoch in 0..2 * MAX_SESSIONS as u64 {
            origins.add(session(epoch));
            origins.add(session(epoch));
        }
        assert_eq!(origins.sessions().len(), MAX_SESSIONS);
        assert!(origins.contains(session(2 * MAX_SESSIONS as u64 - 1)) && !origins.contains(session(0)));
    }
}
