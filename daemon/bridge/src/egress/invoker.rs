//! An egress that runs on its caller's thread.

use shmcast::SubscriberBuilder;

use super::live::Live;
use super::{Egress, EgressOptions};
use crate::BridgeError;
use crate::spec::{BridgeSpec, WaitMode};

/// An egress that runs on its caller's thread, on which the caller also publishes to the channel. A message leaves without waiting until
/// another thread runs; the publisher pays for the system call. Repairs still have their own thread.
pub struct EgressInvoker {
    live: Live,
    egress: Egress,
    is_over: bool,
}

impl EgressInvoker {
    /// As [`Egress::start`], which may block, but nothing is sent except in [`invoke`](Self::invoke). The spec's
    /// `wait` and `cpu` have no effect.
    ///
    /// # Errors
    /// [`BridgeError`]; nothing is left running.
    pub fn open(
        spec: &BridgeSpec,
        channel: SubscriberBuilder,
        options: EgressOptions,
    ) -> Result<EgressInvoker, BridgeError> {
        let spec = BridgeSpec { wait: WaitMode::Spin, ..spec.clone() };
        let (egress, live) = Egress::assemble(&spec, channel, options)?;
        Ok(EgressInvoker { live, egress, is_over: false })
    }

    /// Sends what is waiting in the ring, at most 1024 events of it, and heartbeats that are due. It waits only while a socket's buffer is
    /// full or the share of the link is used up, or 100 us at a time while it catches up with the ring after attaching. Returns false if
    /// there is nothing more to do.
    #[inline]
    pub fn invoke(&mut self) -> bool {
        self.is_over = self.is_over || !self.live.turn();
        !self.is_over
    }

    /// The egress, for its counters and to end it.
    pub fn egress(&self) -> &Egress {
        &self.egress
    }
}
