//! Publishes the deliveries of the reader in the local channel. A delivery is a message, a gap, a new session or an end.

use shmcast::{Publisher, PublisherBuilder};
use shmcast_bridge::local::Local;
use shmcast_bridge::origins::Origins;
use shmcast_bridge::proto::native::pulse::Pulse;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::Meta;
use shmcast_bridge::status::Phase;
use std::sync::Arc;

use crate::proto::block::UNKNOWN_ERROR;
use crate::proto::reader::Delivery;
use crate::state::ReceiveState;

/// Publishes deliveries in the local channel.
pub(crate) struct Inlet {
    pub(crate) local: Local,
    channel: PublisherBuilder,
    origins: Origins,
    /// The error of the writer's clock, according to the last block.
    clock_error: u16,
    /// The sequence due when the channel was closed.
    closed_at: u64,
    /// Whether the log has more entries after the current one.
    has_more: bool,
    shared: Arc<ReceiveState>,
}

impl Inlet {
    pub(crate) fn new(
        local: Local,
        channel: PublisherBuilder,
        origins: Origins,
        shared: Arc<ReceiveState>,
    ) -> Inlet {
        Inlet { local, channel, origins, clock_error: UNKNOWN_ERROR, closed_at: 1, has_more: false, shared }
    }

    /// Notes whether the log has more entries after the entry that the caller is about to handle. Call this before each entry.
    pub(crate) fn note_more(&mut self, has_more: bool) {
        self.has_more = has_more;
    }

    /// The sequence due.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.local.publisher.as_ref().map_or(self.closed_at, Publisher::next_sequence)
    }

    /// Notes how far the writer's clock may be wrong, in units of 10 us. `None` leaves the noted value. Reads this host's clocks again.
    pub(crate) fn look_at_clocks(&mut self, clock_error: Option<u16>) {
        self.clock_error = clock_error.unwrap_or(self.clock_error);
        let known = Some(self.clock_error).filter(|error| *error != UNKNOWN_ERROR);
        let pulse =
            known.map(|error| Pulse { clock_error_ns: u32::from(error) * 10_000, ..Pulse::default() });
        self.local.times.refresh(self.local.publisher.as_ref().map(Publisher::clock), pulse.as_ref());
    }

    #[inline]
    pub(crate) fn take(&mut self, delivery: Delivery<'_>) {
        match delivery {
            Delivery::Message { sequence, data, meta } => self.publish(sequence, data, meta),
            Delivery::Gap { missing } => self.local.skip_to(missing.end),
            Delivery::Session { session, next } => self.begin(session, next),
            // Another publisher followed after this one.
            Delivery::End if self.has_more => {}
            Delivery::End => {
                self.closed_at = self.next_sequence();
                if let Some(publisher) = self.local.publisher.take() {
                    publisher.close();
                }
                self.shared.life.enter(Phase::Ending);
            }
        }
    }

    /// Opens the channel again if it was closed. Until it is open, arriving messages stay at the servers.
    fn open(&mut self, channel: PublisherBuilder) {
        if self.local.publisher.is_some() || self.local.error.is_some() {
            return;
        }
        match channel.open() {
            Ok(publisher) => {
                self.local.publisher = Some(publisher);
                self.look_at_clocks(None);
                self.shared.life.enter(Phase::Running);
            }
            Err(e) => self.local.error = Some(e.to_string()),
        }
    }

    #[inline]
    fn publish(&mut self, sequence: u64, data: &[u8], meta: Meta) {
        if self.local.publisher.is_none() {
            self.open(self.channel.clone());
        }
        self.local.publish(sequence, data, meta);
    }

    #[cold]
    fn begin(&mut self, session: Session, next: u64) {
        if self.origins.contains(session) {
            self.local.error = Some(format!(
                "session {session} began on this host and has come back: a loop. Receive it on another host"
            ));
            self.local.publisher = None;
            return;
        }
        // The sequences of a channel only grow. A session whose sequences begin again needs a new segment.
        if self.next_sequence() > next {
            // The ring is not closed: readers continue in the next one, and an end would tell them that nothing follows.
            if let Some(publisher) = self.local.publisher.take() {
                publisher.leave_open();
            }
            self.open(self.channel.clone().anew());
        } else {
            self.open(self.channel.clone());
        }
        if let Some(publisher) = &mut self.local.publisher {
            let known = publisher.remote_session() == Some(*session.as_bytes());
            let told = if known { Ok(()) } else { publisher.session(*session.as_bytes()) };
            self.local.check(told);
        }
        self.shared.life.note_session(session);
        self.local.skip_to(next);
    }
}
