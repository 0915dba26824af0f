//! The identity of the stream that a channel is sent as.

use shmcast::Subscriber;
use shmcast_bridge::BridgeError;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::spec::BridgeSpec;
use shmcast_bridge::term_at;

use crate::proto::block::Stream;

/// The stream and the session that a channel is sent as. One that came from another host keeps its session.
pub(super) fn identity_of(
    spec: &BridgeSpec,
    subscriber: &Subscriber,
) -> Result<(Stream, Session), BridgeError> {
    let ring = subscriber.header();
    match subscriber.remote_session().filter(|_| spec.session.is_none()) {
        Some(session) => {
            let session = Session::from_bytes(session);
            Ok((Stream::of_session(session), session))
        }
        None => {
            let session = Session::of_channel(&spec.tag(), term_at(ring.created_ns))?;
            Ok((Stream(ring.stream.to_bytes()), session))
        }
    }
}
