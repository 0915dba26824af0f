//! Promotes the channel of an ingress, and ends the ingress. A promoted channel belongs to this host, and a local program can publish on
//! it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::IngressState;
use super::receiving::Receiving;
use crate::promotion::{PromoteError, Promotion, next_after};
use crate::proto::receiver::DEFAULT_SILENCE_NS;
use crate::status::Phase;

/// The longest time for which the caller waits for the receiving thread. The thread returns its leases before it answers.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest time for which a promotion waits for messages that a gate of the channel holds up.
const HELD: Duration = Duration::from_secs(1);

/// An order to the receiving thread.
#[derive(Debug, Default)]
pub(super) struct Orders {
    is_given: AtomicBool,
    order: Mutex<Option<Order>>,
}

#[derive(Debug)]
struct Order {
    force: bool,
    below: u64,
    answer: SyncSender<Result<Promotion, PromoteError>>,
}

impl Orders {
    pub(super) fn is_given(&self) -> bool {
        self.is_given.load(Ordering::Relaxed)
    }

    fn take(&self) -> Option<Order> {
        self.is_given.store(false, Ordering::Relaxed);
        self.order.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Promotes the channel of an ingress. The promoter can outlive the ingress.
#[derive(Debug)]
pub struct Promoter(pub(super) Arc<IngressState>);

impl Promoter {
    /// Returns the sequence at which the channel would continue if it were promoted now. Changes nothing.
    ///
    /// # Errors
    /// [`PromoteError`] if the promotion would be refused for any reason except the journal's reserve.
    pub fn next(&self, force: bool) -> Result<u64, PromoteError> {
        match self.promote(force, 0) {
            Err(PromoteError::BeyondJournal { next, .. }) => Ok(next),
            Err(refused) => Err(refused),
            Ok(Promotion { to, .. }) => Ok(to + 1), // not reached: a reserve of 0 is always too low
        }
    }

    /// Makes the channel a channel of this host. The ingress delivers the messages that it has received, reports the missing messages as a
    /// gap, leaves the channel open for its next publisher, and ends. Blocks until the receiving thread has answered.
    ///
    /// The promotion is refused in three cases:
    ///
    /// - `force` is not set, and a line has received a packet within the last three seconds.
    /// - A gate of the channel holds up messages that were received.
    /// - `below`, the reserve of the channel's journal, leaves fewer than 2^32 sequences after the sequence at which the channel would
    ///   continue. The reserve limits the sequences of a publisher.
    ///
    /// # Errors
    /// [`PromoteError`]. After a refusal the ingress continues, and nothing has changed.
    pub fn promote(&self, force: bool, below: u64) -> Result<Promotion, PromoteError> {
        let (answer, answered) = sync_channel(1);
        let order = Some(Order { force, below, answer });
        *self.0.orders.order.lock().unwrap_or_else(PoisonError::into_inner) = order;
        self.0.orders.is_given.store(true, Ordering::Relaxed);
        let ended = || {
            let why = self.0.life.error();
            PromoteError::Ended(why.unwrap_or_else(|| "its thread does not answer".to_owned()))
        };
        match answered.recv_timeout(PATIENCE) {
            Ok(promoted) => promoted,
            // If the thread has not taken the order, withdraw the order, so that it is not carried out later. If the thread has taken the
            // order, wait for the answer, however long that takes.
            Err(_) if self.0.orders.take().is_some() => Err(ended()),
            Err(_) => answered.recv().map_err(|_| ended())?,
        }
    }
}

impl Receiving {
    /// Carries out the order to promote if there is one. Returns whether the ingress has ended.
    #[cold]
    pub(super) fn execute_order(&mut self) -> bool {
        let Some(order) = self.shared.orders.take() else { return false };
        let promoted = self.promote(order.force, order.below);
        let is_over = promoted.is_ok();
        if is_over {
            self.show(true);
            self.shared.life.enter(Phase::Ended);
        }
        // If the caller no longer waits, it will find that the bridge has ended.
        let _ = order.answer.send(promoted);
        is_over
    }

    fn promote(&mut self, force: bool, below: u64) -> Result<Promotion, PromoteError> {
        let before = self.receiver.session().ok_or(PromoteError::NoMirror)?;
        let silence_ns = self.receiver.silence_ns(self.awake.at(self.clock.now_ns()));
        if silence_ns < DEFAULT_SILENCE_NS && !force {
            return Err(PromoteError::StillHeard { silence: Duration::from_nanos(silence_ns) });
        }
        // The promotion repeats this check. Here the check comes first, because the next steps cannot be undone.
        next_after(self.inlet.next_sequence().max(self.receiver.horizon()), below)?;
        if !self.inlet.drain(HELD) {
            let gate = self.inlet.local.held().map(|(gate, _)| gate.to_string());
            return Err(PromoteError::Held { gate: gate.unwrap_or_default() });
        }
        self.leave();
        let inlet = &mut self.inlet;
        self.receiver.give_up(&mut |delivery| inlet.take(delivery));
        // From here on, nothing can be undone. The gap of the promotion includes the messages that a gate still holds up.
        inlet.drain(HELD);
        inlet.promote((before, self.receiver.horizon()), &self.tag, below)
    }
}
