//! The identity of the stream that a channel is sent as.

use shmcast::journal::JournalError;
use shmcast::{ChannelError, Start, Subscriber, SubscriberBuilder};
use shmcast_bridge::BridgeError;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::spec::BridgeSpec;
use shmcast_bridge::term_at;
use std::time::{Duration, Instant};

use crate::proto::block::Stream;

/// How long a recorder may take to name the ring in which its channel goes on.
const NAMED_WITHIN: Duration = Duration::from_secs(1);
/// Pause before the next look for that name.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The stream and the session that a channel is sent as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) stream: Stream,
    pub(super) session: Session,
    /// The names that the same stream had in blocks of earlier bridges.
    pub(super) also: Vec<Stream>,
}

impl Identity {
    /// The identity of a channel. One that came from another host keeps its session. One with a journal is the journal's stream,
    /// in whichever of its rings it goes on: after a reboot too. Without a journal the ring is the stream.
    pub(super) fn of(
        spec: &BridgeSpec,
        channel: &SubscriberBuilder,
        subscriber: &Subscriber,
    ) -> Result<Identity, BridgeError> {
        if let Some(session) = subscriber.remote_session().filter(|_| spec.session.is_none()) {
            let session = Session::from_bytes(session);
            return Ok(Identity { stream: Stream::of_session(session), session, also: Vec::new() });
        }
        let session = Session::of_channel(&spec.tag(), term_at(subscriber.header().created_ns))?;
        let Some((journal, rings)) = journal_of(channel) else {
            let stream = Stream::of_ring(subscriber.header().uuid);
            return Ok(Identity { stream, session, also: Vec::new() });
        };
        Ok(Identity {
            stream: Stream(journal),
            session,
            also: rings.into_iter().map(Stream::of_ring).collect(),
        })
    }
}

/// The identity of the channel's journal, and the rings that it was recorded from; `None` if the channel has none, or if that is the
/// journal of another stream.
fn journal_of(channel: &SubscriberBuilder) -> Option<([u8; 16], Vec<[u64; 2]>)> {
    let deadline = Instant::now() + NAMED_WITHIN;
    loop {
        let mut subscriber = channel.clone().page(false).start(Start::Latest).open().ok()?;
        let next = subscriber.next_sequence();
        match subscriber.take_journal()?.identity(next) {
            Ok(Some((identity, mut rings))) => {
                rings.push(subscriber.header().uuid);
                rings.dedup();
                return Some((identity, rings));
            }
            // The recorder is about to name the ring, or a disk or a daemon is slow.
            Ok(None) | Err(JournalError::Os { .. } | JournalError::Channel(ChannelError::Silent { .. })) => {}
            Err(_) => return None,
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}
