//! Publishes the deliveries of the receiver in the local channel. A delivery is a message, a gap, a new session or an end.

use shmcast::hosting::fault;
use shmcast::{Publisher, PublisherBuilder};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use zerocopy::FromZeros;

use super::IngressState;
use super::maker::Maker;
use crate::BridgeError;
use crate::backlog::Backlog;
use crate::local::Local;
use crate::origins::{Origins, run_of};
use crate::promotion::{self, PromoteError, Promotion};
use crate::proto::receiver::Delivery;
use crate::proto::session::Session;
use crate::status::{Phase, ReceiveCounters};

/// Publishes deliveries into the local channel.
pub(super) struct Inlet {
    pub(super) local: Local,
    pub(super) channel: PublisherBuilder,
    pub(super) counters: ReceiveCounters,
    pub(super) shared: Arc<IngressState>,
    pub(super) origins: Origins,
    pub(super) maker: Maker,
    /// Deliveries that arrived while the channel was being opened, or while a gate of the channel held them up.
    pub(super) backlog: Backlog,
}

impl Inlet {
    /// Starts the thread that opens the channel when the channel restarts.
    pub(super) fn new(
        local: Local,
        channel: PublisherBuilder,
        origins: Origins,
        shared: Arc<IngressState>,
        title: &str,
    ) -> Result<Inlet, BridgeError> {
        Ok(Inlet {
            local,
            channel,
            counters: ReceiveCounters::new_zeroed(),
            shared,
            origins,
            maker: Maker::start(title)?,
            backlog: Backlog::default(),
        })
    }

    #[inline]
    pub(super) fn take(&mut self, delivery: Delivery<'_>) {
        if self.is_waiting() || !self.handle(&delivery) {
            self.backlog.push(&delivery);
        }
    }

    /// Whether the channel is being opened, or deliveries are in the backlog.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.maker.is_busy() || !self.backlog.is_empty()
    }

    /// Takes the channel from the maker once the channel is open. Then publishes the deliveries of the backlog, until a gate holds a
    /// delivery up. With `waits`, blocks until the channel is open.
    #[cold]
    pub(super) fn catch_up(&mut self, waits: bool) {
        loop {
            let made = if waits { self.maker.wait() } else { self.maker.take() };
            match made {
                Some(Ok(publisher)) => {
                    self.local.times.begin(publisher.clock());
                    self.local.publisher = Some(publisher);
                    self.shared.life.enter(Phase::Running);
                }
                Some(Err(e)) => self.local.error = Some(e.to_string()),
                None => {}
            }
            if self.local.error.is_some() {
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

    /// Repeats [`catch_up`](Self::catch_up) until the backlog is empty, but not longer than `limit`. The call can take longer if the
    /// channel must be opened first. Returns false if a gate still holds deliveries up.
    #[cold]
    pub(super) fn drain(&mut self, limit: Duration) -> bool {
        let start = Instant::now();
        self.catch_up(true);
        while !self.backlog.is_empty() && start.elapsed() < limit {
            sleep(self.local.try_again_after());
            self.catch_up(true);
        }
        self.backlog.is_empty()
    }

    /// Returns a sentence about messages, gaps and ends that were received and are not published. Returns `None` if there are none.
    #[cold]
    pub(super) fn unpublished(&self) -> Option<String> {
        let what = self.backlog.unpublished(self.local.held().map(|(gate, _)| gate))?;
        Some(format!("{what}. A bridge that continues asks for them again, if it has servers"))
    }

    /// Publishes a delivery. Returns false if the channel must be opened first, or if a gate holds the delivery up.
    #[inline]
    fn handle(&mut self, delivery: &Delivery<'_>) -> bool {
        match *delivery {
            Delivery::Message { sequence, data, meta } => {
                if self.is_closed() {
                    return false;
                }
                self.local.publish(sequence, data, meta)
            }
            Delivery::Gap { ref missing } => {
                if self.is_closed() {
                    return false;
                }
                self.local.skip_to(missing.end)
            }
            Delivery::NewSession { session, next, .. } => self.begin(session, next),
            Delivery::End { .. } => {
                let next = self.next_sequence();
                if !self.local.close() {
                    return false;
                }
                self.counters.host.next_sequence = next;
                self.shared.life.enter(Phase::Ending);
                true
            }
        }
    }

    /// Whether the channel is closed without an error. If so, orders the maker to open the channel.
    #[inline]
    fn is_closed(&mut self) -> bool {
        let is_closed = self.local.publisher.is_none() && self.local.error.is_none();
        if is_closed {
            self.open(self.channel.clone());
        }
        is_closed
    }

    #[cold]
    fn open(&mut self, channel: PublisherBuilder) {
        if self.local.error.is_some() {
            return;
        }
        self.maker.order(channel);
        if fault!("memory_is_made_on_the_way") {
            let made = self.maker.wait();
            self.local.publisher = made.and_then(Result::ok);
        }
    }

    /// The sequence of the next message in the local ring.
    pub(super) fn next_sequence(&self) -> u64 {
        self.local.publisher.as_ref().map_or(self.counters.host.next_sequence, Publisher::next_sequence)
    }

    /// Promotes the channel: it becomes a channel of this host, and a local program can publish on it. The channel stays open for this next
    /// publisher.
    #[cold]
    pub(super) fn promote(
        &mut self,
        came: (Session, u64),
        tag: &str,
        below: u64,
    ) -> Result<Promotion, PromoteError> {
        self.catch_up(true);
        if self.is_closed() {
            self.catch_up(true);
        }
        let Some(publisher) = &mut self.local.publisher else {
            let why = self.local.error.clone().unwrap_or_else(|| "the channel is closed".to_owned());
            return Err(PromoteError::Ended(why));
        };
        let promotion = promotion::promote(publisher, came, tag, below)?;
        // Only messages that are known to have been published count as missing. The other sequences of the promotion's gap do not count.
        self.local.counts.missing += came.1.saturating_sub(promotion.from);
        self.counters.host.next_sequence = publisher.next_sequence();
        self.origins.add(promotion.session, run_of(publisher.header()));
        self.shared.life.note_session(promotion.session);
        self.local.leave();
        // The gap of the promotion includes the messages that a gate still holds up.
        self.backlog = Backlog::default();
        Ok(promotion)
    }

    #[cold]
    fn begin(&mut self, session: Session, next: u64) -> bool {
        if self.origins.contains(session) {
            self.local.error = Some(format!(
                "session {session} began on this host and has come back: a loop. Receive from a host nearer to the source"
            ));
            self.local.leave();
            return true;
        }
        // The sequences of a segment only grow. A session whose sequences begin again needs a new segment.
        if self.next_sequence() > next {
            // The ring must not be closed. Its readers continue in the next ring, and an end would tell the readers that no messages
            // follow.
            self.local.leave();
            self.counters.host.next_sequence = 1;
            self.open(self.channel.clone().anew());
        } else if self.local.publisher.is_none() {
            self.open(self.channel.clone());
        }
        if self.local.publisher.is_none() && self.local.error.is_none() {
            return false;
        }
        self.shared.life.note_beginning(if self.local.has_no_session() && next > 1 { next } else { 0 });
        if !self.local.session(session) {
            return false;
        }
        self.shared.life.note_session(session);
        self.local.begin_at(next)
    }
}
