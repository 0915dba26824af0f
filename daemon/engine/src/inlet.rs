//! Publishes what the reader delivers into the local channel: messages, gaps, sessions and ends.

use shmcast::{Mark, PublishError, Publisher, PublisherBuilder};
use shmcast_bridge::origins::Origins;
use shmcast_bridge::proto::native::pulse::Pulse;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::Meta;
use shmcast_bridge::status::Phase;
use shmcast_bridge::times::OriginTimes;
use std::sync::Arc;

use crate::proto::block::UNKNOWN_ERROR;
use crate::proto::reader::Delivery;
use crate::receive::ReceiveState;

/// The local channel.
pub(crate) struct Inlet {
    /// `None` between the end of the channel and what comes next.
    publisher: Option<Publisher>,
    channel: PublisherBuilder,
    origins: Origins,
    times: OriginTimes,
    /// The error of the writer's clock, as the last block says it.
    clock_error: u16,
    /// The sequence due when the channel was closed.
    closed_at: u64,
    shared: Arc<ReceiveState>,
    /// The error after which nothing can be published any more.
    pub(crate) error: Option<String>,
    pub(crate) messages_published: u64,
    pub(crate) messages_missing: u64,
    pub(crate) messages_too_large: u64,
}

impl Inlet {
    pub(crate) fn new(
        publisher: Publisher,
        channel: PublisherBuilder,
        origins: Origins,
        times: OriginTimes,
        shared: Arc<ReceiveState>,
    ) -> Inlet {
        Inlet {
            publisher: Some(publisher),
            channel,
            origins,
            times,
            clock_error: UNKNOWN_ERROR,
            closed_at: 1,
            shared,
            error: None,
            messages_published: 0,
            messages_missing: 0,
            messages_too_large: 0,
        }
    }

    /// The sequence due.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.publisher.as_ref().map_or(self.closed_at, Publisher::next_sequence)
    }

    /// Notes the error of the writer's clock, and looks at the clocks of this host again.
    pub(crate) fn look_at_clocks(&mut self, clock_error: Option<u16>) {
        self.clock_error = clock_error.unwrap_or(self.clock_error);
        let known = Some(self.clock_error).filter(|error| *error != UNKNOWN_ERROR);
        let pulse =
            known.map(|error| Pulse { clock_error_ns: u32::from(error) * 10_000, ..Pulse::default() });
        self.times.refresh(self.publisher.as_ref().map(Publisher::clock), pulse.as_ref());
    }

    #[inline]
    pub(crate) fn take(&mut self, delivery: Delivery<'_>) {
        match delivery {
            Delivery::Message { sequence, data, meta } => self.publish(sequence, data, meta),
            Delivery::Gap { to, .. } => self.skip_to(to.saturating_add(1)),
            Delivery::Session { session, next } => self.begin(session, next),
            Delivery::End => {
                self.closed_at = self.next_sequence();
                if let Some(publisher) = self.publisher.take() {
                    publisher.close();
                }
                self.shared.life.enter(Phase::Ending);
            }
        }
    }

    /// Opens the channel again if it was closed. The servers keep what comes meanwhile.
    fn open(&mut self, channel: PublisherBuilder) {
        if self.publisher.is_some() || self.error.is_some() {
            return;
        }
        match channel.open() {
            Ok(publisher) => {
                self.publisher = Some(publisher);
                self.look_at_clocks(None);
                self.shared.life.enter(Phase::Running);
            }
            Err(e) => self.error = Some(e.to_string()),
        }
    }

    #[inline]
    fn publish(&mut self, sequence: u64, data: &[u8], meta: Meta) {
        if self.publisher.is_none() {
            self.open(self.channel.clone());
        }
        self.skip_to(sequence);
        let Some(publisher) = &mut self.publisher else { return };
        if publisher.next_sequence() > sequence {
            return;
        }
        let mark = Mark { tag: meta.tag, key: meta.key };
        let published = match self.times.ticks_of(meta.time_ns) {
            Some(time) => publisher.publish_at(data, mark, time),
            None => publisher.publish_with(data, mark),
        };
        match published {
            Ok(_) => self.messages_published += 1,
            // The local channel cannot take this message. Readers are told of it as of any other loss.
            Err(PublishError::TooLarge(_)) => {
                let told = publisher.gap(sequence);
                self.messages_too_large += 1;
                self.messages_missing += 1;
                self.check(told);
            }
            Err(e) => self.fail(&e),
        }
    }

    /// Tells readers that the messages before `next` that are not there yet will never come.
    #[inline]
    fn skip_to(&mut self, next: u64) {
        let Some(publisher) = &mut self.publisher else { return };
        if publisher.next_sequence() < next {
            self.messages_missing += next - publisher.next_sequence();
            let told = publisher.gap(next - 1);
            self.check(told);
        }
    }

    fn check(&mut self, told: Result<(), PublishError>) {
        if let Err(e) = told {
            self.fail(&e);
        }
    }

    #[cold]
    fn fail(&mut self, error: &PublishError) {
        self.error.get_or_insert_with(|| error.to_string());
        self.publisher = None;
    }

    #[cold]
    fn begin(&mut self, session: Session, next: u64) {
        if self.origins.contains(session) {
            self.error = Some(format!(
                "session {session} began on this host and has come back: a loop. Receive it on another host"
            ));
            self.publisher = None;
            return;
        }
        // The sequences of a channel only grow. A session whose sequences begin again needs a new segment.
        if self.next_sequence() > next {
            self.publisher = None;
            self.open(self.channel.clone().anew());
        } else {
            self.open(self.channel.clone());
        }
        if let Some(publisher) = &mut self.publisher {
            let known = publisher.remote_session() == Some(*session.as_bytes());
            let told = if known { Ok(()) } else { publisher.session(*session.as_bytes()) };
            self.check(told);
        }
        self.shared.life.note_session(session);
        self.skip_to(next);
    }
}
