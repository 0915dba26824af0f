//! Publishes deliveries into the local channel: messages, gaps, sessions and ends.

use shmcast::hosting::fault;
use shmcast::{Mark, PublishError, Publisher, PublisherBuilder};
use std::sync::Arc;

use super::IngressState;
use super::backlog::Backlog;
use super::maker::Maker;
use crate::origins::Origins;
use crate::promotion::{self, PromoteError, Promotion};
use crate::proto::receiver::Delivery;
use crate::proto::session::Session;
use crate::proto::wire::Meta;
use crate::status::{Phase, ReceiveCounters};
use crate::times::OriginTimes;

/// The local channel, into which deliveries are published.
pub(super) struct Inlet {
    /// `None` between the end of a session and what comes next.
    pub(super) publisher: Option<Publisher>,
    pub(super) channel: PublisherBuilder,
    pub(super) counters: ReceiveCounters,
    pub(super) shared: Arc<IngressState>,
    pub(super) origins: Origins,
    /// The error after which nothing can be published any more.
    pub(super) error: Option<String>,
    pub(super) maker: Maker,
    /// Whose times messages get.
    pub(super) times: OriginTimes,
    /// Deliveries that came while the channel was being opened.
    pub(super) backlog: Backlog,
}

impl Inlet {
    #[inline]
    pub(super) fn take(&mut self, delivery: Delivery<'_>) {
        if self.is_waiting() || !self.handle(&delivery) {
            self.backlog.push(&delivery);
        }
    }

    /// Whether the channel is being opened, or deliveries that came meanwhile still wait.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.maker.is_busy() || !self.backlog.is_empty()
    }

    /// Takes the channel over once it is open, and publishes the deliveries that waited for it. With `waits`,
    /// it waits until the channel is open.
    #[cold]
    pub(super) fn catch_up(&mut self, waits: bool) {
        loop {
            let made = if waits { self.maker.wait() } else { self.maker.take() };
            match made {
                Some(Ok(publisher)) => {
                    self.publisher = Some(publisher);
                    self.shared.life.enter(Phase::Running);
                }
                Some(Err(e)) => self.error = Some(e.to_string()),
                None => {}
            }
            if self.error.is_some() {
                self.backlog = Backlog::default();
            }
            let mut backlog = std::mem::take(&mut self.backlog);
            while !self.maker.is_busy()
                && let Some(delivery) = backlog.front()
                && self.handle(&delivery)
            {
                backlog.pop();
            }
            self.backlog = backlog;
            if !waits || !self.maker.is_busy() {
                return;
            }
        }
    }

    /// Carries out a delivery. Returns false if the channel has to be opened first.
    #[inline]
    fn handle(&mut self, delivery: &Delivery<'_>) -> bool {
        match *delivery {
            Delivery::Message { sequence, data, meta } => {
                if self.is_closed() {
                    return false;
                }
                self.publish(sequence, data, meta);
            }
            Delivery::Gap { from: _, to } => {
                if self.is_closed() {
                    return false;
                }
                self.skip_to(to);
            }
            Delivery::NewSession { session, next, .. } => return self.begin(session, next),
            Delivery::End { .. } => {
                if let Some(publisher) = self.publisher.take() {
                    self.counters.next_sequence = publisher.next_sequence();
                    publisher.close();
                }
                self.shared.life.enter(Phase::Ending);
            }
        }
        true
    }

    /// Whether the channel is closed and can be opened. If so, this orders it to be opened.
    #[inline]
    fn is_closed(&mut self) -> bool {
        let is_closed = self.publisher.is_none() && self.error.is_none();
        if is_closed {
            self.open(self.channel.clone());
        }
        is_closed
    }

    #[inline]
    fn publish(&mut self, sequence: u64, data: &[u8], meta: Meta) {
        self.skip_to(sequence);
        let Some(publisher) = &mut self.publisher else { return };
        if publisher.next_sequence() > sequence {
            self.counters.messages_behind += 1;
            return;
        }
        let mark = Mark { tag: meta.tag, key: meta.key };
        let published = match self.times.ticks_of(meta.time_ns) {
            Some(time) => publisher.publish_at(data, mark, time),
            None => publisher.publish_with(data, mark),
        };
        match published {
            Ok(_) => self.counters.messages_published += 1,
            // The local channel cannot take this message. Readers are told of it as of any other loss.
            Err(PublishError::TooLarge(_)) => {
                let told = publisher.gap(sequence);
                self.counters.messages_too_large += 1;
                self.counters.messages_missing += 1;
                self.check(told);
            }
            Err(error) => self.fail(&error),
        }
    }

    #[inline]
    fn check(&mut self, told: Result<(), PublishError>) {
        if let Err(error) = told {
            self.fail(&error);
        }
    }

    /// Notes that nothing can be published any more: another publisher took the channel, or it has no more
    /// sequences.
    #[cold]
    fn fail(&mut self, error: &PublishError) {
        self.error.get_or_insert_with(|| error.to_string());
        self.publisher = None;
    }

    /// Tells readers that the messages before `next` that are not there yet will never come.
    #[inline]
    fn skip_to(&mut self, next: u64) {
        let Some(publisher) = &mut self.publisher else { return };
        if publisher.next_sequence() < next {
            let missing = next - publisher.next_sequence();
            let told = publisher.gap(next - 1);
            self.counters.messages_missing += missing;
            self.check(told);
        }
    }

    #[cold]
    fn open(&mut self, channel: PublisherBuilder) {
        if self.error.is_some() {
            return;
        }
        self.maker.order(channel);
        if fault!("memory_is_made_on_the_way") {
            let made = self.maker.wait();
            self.publisher = made.and_then(Result::ok);
        }
    }

    /// Makes the channel one of this host, and leaves it to its next publisher.
    #[cold]
    pub(super) fn promote(&mut self, came: (Session, u64), tag: &str) -> Result<Promotion, PromoteError> {
        self.catch_up(true);
        if self.is_closed() {
            self.catch_up(true);
        }
        let Some(publisher) = &mut self.publisher else {
            let why = self.error.clone().unwrap_or_else(|| "the channel is closed".to_owned());
            return Err(PromoteError::Ended(why));
        };
        let promotion = promotion::promote(publisher, came, tag)?;
        // The rest of the gap is no message that anybody is known to have published.
        self.counters.messages_missing += came.1.saturating_sub(promotion.from);
        self.counters.next_sequence = publisher.next_sequence();
        self.origins.add(promotion.session, publisher.header().uuid);
        self.shared.life.note_session(promotion.session);
        if let Some(publisher) = self.publisher.take() {
            publisher.leave_open();
        }
        Ok(promotion)
    }

    #[cold]
    fn begin(&mut self, session: Session, next: u64) -> bool {
        if self.origins.contains(session) {
            self.error = Some(format!(
                "session {session} began on this host and has come back: a loop. Receive from a host nearer to the source"
            ));
            self.publisher = None;
            return true;
        }
        // The sequences of a channel only grow. A session whose sequences begin again needs a new segment.
        let ours = self.publisher.as_ref().map_or(self.counters.next_sequence, Publisher::next_sequence);
        if ours > next {
            self.publisher = None;
            self.counters.next_sequence = 1;
            self.open(self.channel.clone().anew());
        } else if self.publisher.is_none() {
            self.open(self.channel.clone());
        }
        if self.publisher.is_none() && self.error.is_none() {
            return false;
        }
        if let Some(publisher) = &mut self.publisher {
            let told = publisher.session(*session.as_bytes());
            self.check(told);
        }
        self.shared.life.note_session(session);
        self.skip_to(next);
        true
    }
}
