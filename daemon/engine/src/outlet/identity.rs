//! Determines the stream, the session and the oldest message of a sent channel, and the greatest possible error of this host's clock.

use shmcast::{Event, History, Start, Subscriber};
use shmcast_bridge::BridgeError;
use shmcast_bridge::origins::run_of;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::spec::BridgeSpec;
use shmcast_bridge::term_at;
use shmcast_bridge::times::own_error_ns;
use std::io;

use super::Outlet;
use crate::proto::block::{Carried, Stream, UNKNOWN_ERROR};

/// Returns the stream and session under which a channel is sent. A channel that came from another host keeps its session.
pub(super) fn identity_of(spec: &BridgeSpec, subscriber: &Subscriber) -> Result<Carried, BridgeError> {
    let ring = subscriber.header();
    match subscriber.remote_session().filter(|_| spec.session.is_none()) {
        Some(session) => {
            let session = Session::from_bytes(session);
            Ok(Carried { stream: Stream::of_session(session), session })
        }
        None => {
            let session = Session::of_channel(&spec.tag(), term_at(ring.created_ns))?;
            Ok(Carried { stream: Stream(ring.stream.to_bytes()), session })
        }
    }
}

/// Returns the first sequence of a session in a ring. The ring might also have messages of the previous session. `end` is the sequence after
/// the ring's last message, or an earlier sequence.
///
/// An earlier mistake: the function read up to the ring's number of unread messages, which can be too low. Messages of the previous session
/// were then sent in the next session.
pub(super) fn first_of(mut ring: Subscriber, session: Session, end: u64) -> u64 {
    let mut first = ring.next_sequence();
    while ring.next_sequence() <= end {
        match ring.try_recv() {
            Ok(Some(Event::NewSession { session: begun })) if begun == *session.as_bytes() => {
                first = ring.next_sequence();
            }
            Ok(Some(Event::Lapped(lapped))) => first = first.max(lapped.resumed_at),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => break,
        }
    }
    first
}

impl Outlet {
    /// Notes the stream and the session that the log has now, for the other threads.
    pub(super) fn note_session(&mut self) {
        let session = self.writer.session();
        if let Some(ring) = &self.subscriber {
            let carried = Carried { stream: self.writer.stream(), session };
            self.shared.note_carried(carried, ring.header().stream);
        }
        if self.shared.life.session() != Some(session) {
            self.shared.life.note_session(session);
        }
        // Only sessions that began on this host are added. The session of a feed from another host began there.
        if let Some(ring) = self.subscriber.as_ref().filter(|ring| ring.remote_session().is_none()) {
            self.origins.add(session, run_of(ring.header()));
        }
    }

    /// Goes back to the oldest unread message that the ring still has, and returns its sequence. Call this when the publisher has overtaken
    /// this thread, and the subscriber has continued at `next`. If the thread cannot go back, returns `next`.
    ///
    /// The subscriber itself skips more messages, up to half of the ring, if the publisher is fast. After a burst, these messages are still
    /// in the ring. Without this function, they would be reported as lost for no reason.
    pub(super) fn go_back(&mut self, next: u64) -> u64 {
        let oldest = self.channel.clone().page(false).history(History::Never).start(Start::Oldest).open();
        let oldest = oldest.map_or(next, |ring| ring.next_sequence()).max(self.cutter.due());
        let Some(subscriber) = self.subscriber.as_mut().filter(|_| oldest < next) else { return next };
        // The seek fails if the channel has another ring by now, or if the ring has overwritten the message.
        match subscriber.seek(oldest) {
            Ok(()) => subscriber.next_sequence().min(next),
            Err(_) => next,
        }
    }
}

/// Returns a random number, which identifies a sender or its answers.
pub(crate) fn random() -> Result<u64, BridgeError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|e| BridgeError::Start(io::Error::other(e)))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Returns the greatest possible error of this host's clock, as a block states it: in units of 10 us. Returns [`UNKNOWN_ERROR`] if the
/// error is unknown or too large for the field.
pub(super) fn clock_error() -> u16 {
    u16::try_from(own_error_ns().div_ceil(10_000)).unwrap_or(UNKNOWN_ERROR)
}
