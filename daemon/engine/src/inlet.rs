//! Publishes the deliveries of the reader in the local channel. A delivery is a message, a gap, a new session or an end.

use shmcast::{Publisher, PublisherBuilder};
use shmcast_bridge::backlog::Backlog;
use shmcast_bridge::local::Local;
use shmcast_bridge::origins::Origins;
use shmcast_bridge::proto::native::pulse::Pulse;
use shmcast_bridge::proto::receiver;
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
    /// The sequence that was due when the channel was last open.
    closed_at: u64,
    /// Whether the log has more entries after the current one.
    has_more: bool,
    /// Deliveries that a gate of the channel holds up. While the backlog has deliveries, no further entry is taken, so all its deliveries
    /// come from one entry.
    backlog: Backlog,
    shared: Arc<ReceiveState>,
}

impl Inlet {
    pub(crate) fn new(
        local: Local,
        channel: PublisherBuilder,
        origins: Origins,
        shared: Arc<ReceiveState>,
    ) -> Inlet {
        let (clock_error, backlog) = (UNKNOWN_ERROR, Backlog::default());
        Inlet { local, channel, origins, clock_error, closed_at: 1, has_more: false, backlog, shared }
    }

    /// Notes whether the log has more entries after the entry that the caller is about to handle. Call this before each entry.
    pub(crate) fn note_more(&mut self, has_more: bool) {
        self.has_more = has_more;
    }

    /// Returns the next sequence that is due.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.local.publisher.as_ref().map_or(self.closed_at, Publisher::next_sequence)
    }

    /// Checks once a second whether the channel's files were removed ([`Local::look_for_files`]), and keeps the sequence that is due.
    pub(crate) fn look_for_files(&mut self) {
        let next = self.next_sequence();
        self.local.look_for_files();
        self.closed_at = next;
    }

    /// Notes the possible error of the writer's clock, in units of 10 us. `None` keeps the noted value. Also reads this host's clocks
    /// again.
    pub(crate) fn look_at_clocks(&mut self, clock_error: Option<u16>) {
        self.clock_error = clock_error.unwrap_or(self.clock_error);
        let known = Some(self.clock_error).filter(|error| *error != UNKNOWN_ERROR);
        let pulse =
            known.map(|error| Pulse { clock_error_ns: u32::from(error) * 10_000, ..Pulse::default() });
        self.local.times.refresh(self.local.publisher.as_ref().map(Publisher::clock), pulse.as_ref());
    }

    #[inline]
    pub(crate) fn take(&mut self, delivery: Delivery<'_>) {
        let delivery = match delivery {
            Delivery::Message { sequence, data, meta } => {
                receiver::Delivery::Message { sequence, data, meta }
            }
            Delivery::Gap { missing } => receiver::Delivery::Gap { missing },
            Delivery::Session { session, next } => {
                receiver::Delivery::NewSession { session, next, previous: None }
            }
            // This is not the channel's end: another publisher followed after this one.
            Delivery::End if self.has_more => return,
            // Nobody reads the session and the sequence of this delivery, so both are dummies.
            Delivery::End => receiver::Delivery::End { session: Session::from_bytes([b' '; 10]), next: 0 },
        };
        if self.is_waiting() || !self.handle(&delivery) {
            self.backlog.push(&delivery);
        }
    }

    /// Whether a gate of the channel holds up deliveries.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Number of messages that a gate of the channel holds up.
    pub(crate) fn messages_held(&self) -> u64 {
        self.backlog.messages()
    }

    /// Returns a sentence about what has arrived and is not published. Returns `None` if there is nothing.
    #[cold]
    pub(crate) fn unpublished(&self) -> Option<String> {
        let what = self.backlog.unpublished(self.local.held().map(|(gate, _)| gate))?;
        Some(format!("{what}. A bridge that continues takes them from the stream"))
    }

    /// Publishes the deliveries of the backlog, until a gate holds one up.
    #[cold]
    pub(crate) fn catch_up(&mut self) {
        let mut backlog = std::mem::take(&mut self.backlog);
        while let Some(delivery) = backlog.front()
            && self.handle(&delivery)
        {
            backlog.pop();
        }
        self.backlog = backlog;
    }

    /// Publishes a delivery. Returns false if a gate holds the delivery up.
    #[inline]
    fn handle(&mut self, delivery: &receiver::Delivery<'_>) -> bool {
        match *delivery {
            receiver::Delivery::Message { sequence, data, meta } => self.publish(sequence, data, meta),
            receiver::Delivery::Gap { ref missing } => self.local.skip_to(missing.end),
            receiver::Delivery::NewSession { session, next, .. } => self.begin(session, next),
            receiver::Delivery::End { .. } => {
                let next = self.next_sequence();
                if !self.local.close() {
                    return false;
                }
                self.closed_at = next;
                self.shared.life.enter(Phase::Ending);
                true
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
    fn publish(&mut self, sequence: u64, data: &[u8], meta: Meta) -> bool {
        if self.local.publisher.is_none() {
            self.open(self.channel.clone());
        }
        self.local.publish(sequence, data, meta)
    }

    #[cold]
    fn begin(&mut self, session: Session, next: u64) -> bool {
        if self.origins.contains(session) {
            self.local.error = Some(format!(
                "session {session} began on this host and has come back: a loop. Receive it on another host"
            ));
            self.local.leave();
            return true;
        }
        // The sequences of a channel only grow. A session whose sequences begin again needs a new segment.
        if self.next_sequence() > next {
            // The ring is not closed: readers continue in the next ring, and an end would tell them that nothing follows.
            self.local.leave();
            self.open(self.channel.clone().anew());
        } else {
            self.open(self.channel.clone());
        }
        self.shared.life.note_beginning(if self.local.has_no_session() && next > 1 { next } else { 0 });
        if !self.local.session(session) {
            return false;
        }
        self.shared.life.note_session(session);
        self.local.begin_at(next)
    }
}
