//! The sessions that began on this host. No bridge receives them here: a feed that comes back to its first
//! host has gone in a circle.
//!
//! The bridges of one daemon share this list. They use it only when a session begins, which is rare. A feed
//! that is passed on from host to host keeps its session, so the first host recognizes a circle of any
//! length.

use super::proto::session::Session;
use shmcast::hosting::fault;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most sessions that are remembered; the oldest are forgotten. Each channel that is made anew begins
/// one.
const MAX_SESSIONS: usize = 4_096;

/// Sessions that began on this host, each with the identity of its ring. Clones share one list.
#[derive(Debug, Clone, Default)]
pub struct Origins(Arc<Mutex<Vec<Origin>>>);

/// A session, and the identity of its ring.
type Origin = (Session, [u64; 2]);

impl Origins {
    /// Notes that `session` began here, from `ring`.
    pub fn add(&self, session: Session, ring: [u64; 2]) {
        let mut sessions = self.sessions();
        if !sessions.contains(&(session, ring)) {
            if sessions.len() == MAX_SESSIONS {
                sessions.remove(0);
            }
            sessions.push((session, ring));
        }
    }

    /// Whether `session` began here.
    pub fn contains(&self, session: Session) -> bool {
        self.sessions().iter().any(|(known, _)| *known == session)
    }

    /// The session of this tag that `ring` was sent as. If there is none, the error is the least epoch that
    /// its session may have. So no two rings share a session, however soon one is made after the other and
    /// whatever the clock does.
    ///
    /// # Errors
    /// The least epoch, if `ring` was not sent under this tag.
    pub fn of_ring(&self, tag: [u8; 4], ring: [u64; 2]) -> Result<Session, u64> {
        let sessions = self.sessions();
        let of_tag = || sessions.iter().filter(|(session, _)| session.tag() == tag);
        match of_tag().rfind(|(_, known)| *known == ring) {
            Some((session, _)) => Ok(*session),
            None if fault!("half_a_second_is_one_session") => Err(0),
            None => {
                Err(of_tag().filter_map(|(session, _)| session.epoch()).max().map_or(0, |epoch| epoch + 1))
            }
        }
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Origin>> {
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
            origins.add(session(epoch), [1, 2]);
            origins.add(session(epoch), [1, 2]);
        }
        assert_eq!(origins.sessions().len(), MAX_SESSIONS);
        assert!(origins.contains(session(2 * MAX_SESSIONS as u64 - 1)) && !origins.contains(session(0)));
    }

    #[test]
    fn no_two_rings_share_a_session() {
        let origins = Origins::default();
        let session = |tag, epoch| Session::of_channel(tag, epoch).unwrap();
        let tag = session("TICK", 0).tag();
        assert_eq!(origins.of_ring(tag, [1, 1]), Err(0));
        origins.add(session("TICK", 7), [1, 1]);
        origins.add(session("OTHR", 9), [3, 3]);
        assert_eq!(origins.of_ring(tag, [1, 1]), Ok(session("TICK", 7)));
        assert_eq!(origins.of_ring(tag, [2, 2]), Err(8));
    }
}
