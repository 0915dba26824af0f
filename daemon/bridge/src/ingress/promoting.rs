//! Ends an ingress so that its channel becomes one of this host.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::IngressState;
use super::receiving::Receiving;
use crate::promotion::{PromoteError, Promotion, next_after};
use crate::proto::receiver::DEFAULT_SILENCE_NS;
use crate::status::Phase;

/// How long the caller waits for the receiving thread, which returns its leases first.
const PATIENCE: Duration = Duration::from_secs(5);

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

/// Promotes the channel of an ingress. It may outlive the ingress.
#[derive(Debug)]
pub struct Promoter(pub(super) Arc<IngressState>);

impl Promoter {
    /// Returns the sequence at which the channel would continue if it were promoted now. Changes nothing.
    ///
    /// # Errors
    /// [`PromoteError`], if the promotion would be refused regardless of what its journal has noted.
    pub fn next(&self, force: bool) -> Result<u64, PromoteError> {
        match self.promote(force, 0) {
            Err(PromoteError::BeyondJournal { next, .. }) => Ok(next),
            Err(refused) => Err(refused),
            Ok(Promotion { to, .. }) => Ok(to + 1), // 0 is below every sequence
        }
    }

    /// Promotes the channel to one of this host. The ingress delivers what it has, reports all else as a gap, leaves the channel without an
    /// end of the stream, and ends. Without `force` the promotion is refused if anything was heard on a line within the last three seconds.
    /// It is also refused if the channel would not continue below the sequence `below`, up to which its journal has noted that sequences
    /// may be used. Blocks until the thread is done.
    ///
    /// # Errors
    /// [`PromoteError`]. After an error the ingress continues, and nothing has changed.
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
            // An order that the thread has not taken must not be carried out later. An order that was taken is carried out, however long
            // that takes.
            Err(_) if self.0.orders.take().is_some() => Err(ended()),
            Err(_) => answered.recv().map_err(|_| ended())?,
        }
    }
}

impl Receiving {
    /// Carries out an order. Returns whether the ingress is over.
    #[cold]
    pub(super) fn obey(&mut self) -> bool {
        let Some(order) = self.shared.orders.take() else { return false };
        let promoted = self.promote(order.force, order.below);
        let is_over = promoted.is_ok();
        if is_over {
            self.show(true);
            self.shared.life.enter(Phase::Ended);
        }
        // A caller that no longer waits finds the bridge ended.
        let _ = order.answer.send(promoted);
        is_over
    }

    fn promote(&mut self, force: bool, below: u64) -> Result<Promotion, PromoteError> {
        let before = self.receiver.session().ok_or(PromoteError::NoMirror)?;
        let silence_ns = self.receiver.silence_ns(self.awake.at(self.clock.now_ns()));
        if silence_ns < DEFAULT_SILENCE_NS && !force {
            return Err(PromoteError::StillHeard { silence: Duration::from_nanos(silence_ns) });
        }
        // The same check is made here first, because the next steps cannot be undone.
        next_after(self.inlet.next_sequence().max(self.receiver.horizon()), below)?;
        self.leave();
        let inlet = &mut self.inlet;
        self.receiver.give_up(&mut |delivery| inlet.take(delivery));
        inlet.promote((before, self.receiver.horizon()), &self.tag, below)
    }
}
