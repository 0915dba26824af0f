//! A list of the sessions that began on this host. No bridge of this host receives such a session, because a feed that returns to its first
//! host would run in a circle.
//!
//! The bridges of one daemon share this list, and use it only when a session begins. A feed that is relayed from host to host keeps its
//! session, so the first host recognises a circle of any length.

use super::proto::session::Session;
use shmcast::Header;
use shmcast::hosting::fault;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The limit for the sessions in the list. Beyond the limit, the oldest sessions are removed. Each channel that is replaced adds a session,
/// so the list could otherwise grow without end.
const MAX_SESSIONS: usize = 4_096;

/// Returns the identity of the run to which a ring belongs. A run of a stream lasts until the stream's memory is lost, for example at a
/// reboot. Each session belongs to one run.
///
/// On a strict channel, each publisher has a ring of its own, but all these rings belong to one run. After a reboot, a stream with a
/// journal continues with other sequences. This is another run, with another session.
pub fn run_of(ring: &Header) -> [u64; 2] {
    let [first, second] = ring.stream.to_words();
    match fault!("each_ring_is_a_stream") {
        true => ring.uuid,
        false => [first ^ ring.created_ns, second],
    }
}

/// Sessions that began on this host, each with the identity of its ring. Clones share one list.
#[derive(Debug, Clone, Default)]
pub struct Origins(Arc<Mutex<Vec<Origin>>>);

/// A session, and the identity of its ring.
type Origin = (Session, [u64; 2]);

impl Origins {
    /// Notes that `session` began here, from `ring`.
    pub fn add(&self, session: Session, ring: [u64; 2]) {
        Self::note(&mut self.sessions(), session, ring);
    }

    fn note(sessions: &mut Vec<Origin>, session: Session, ring: [u64; 2]) {
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

    /// Returns the session of this tag under which `ring` was sent.
    ///
    /// # Errors
    /// If `ring` was not sent under this tag, the error is the lowest epoch that a new session of the ring is allowed to have. No earlier
    /// ring has a session with this epoch, even if the clock goes back.
    pub(crate) fn of_ring(&self, tag: [u8; 4], ring: [u64; 2]) -> Result<Session, u64> {
        Self::find(&self.sessions(), tag, ring)
    }

    /// Gives the result of [`of_ring`](Self::of_ring) to `choose`, and notes the session that `choose` returns. The list is locked during
    /// the call. So if two bridges begin at the same time, the second one sees the session of the first.
    ///
    /// # Errors
    /// The errors of `choose`. After an error nothing is noted.
    pub(crate) fn begin<E>(
        &self,
        tag: [u8; 4],
        ring: [u64; 2],
        choose: impl FnOnce(Result<Session, u64>) -> Result<Session, E>,
    ) -> Result<Session, E> {
        let mut sessions = self.sessions();
        let session = choose(Self::find(&sessions, tag, ring))?;
        Self::note(&mut sessions, session, ring);
        Ok(session)
    }

    fn find(sessions: &[Origin], tag: [u8; 4], ring: [u64; 2]) -> Result<Session, u64> {
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

    #[test]
    fn bridges_that_begin_together_share_a_session_by_ring_alone() {
        let origins = Origins::default();
        let tag = Session::of_channel("TICK", 0).unwrap().tag();
        let begin = |ring| {
            let choose = |known: Result<Session, u64>| {
                // The pause gives the other threads time to look at the list.
                std::thread::sleep(std::time::Duration::from_millis(1));
                known.or_else(|least| Session::of_channel("TICK", least))
            };
            origins.begin(tag, [ring, 0], choose).unwrap()
        };
        let sessions = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|at| scope.spawn(move || begin(at / 2))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<Session>>()
        });
        let mut different = sessions.clone();
        different.sort_by_key(Session::epoch);
        different.dedup();
        assert_eq!(different.len(), 4, "{sessions:?}");
        assert!(sessions.chunks(2).all(|pair| pair[0] == pair[1]), "{sessions:?}");
    }
}
