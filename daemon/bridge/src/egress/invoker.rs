//! An egress that runs on its caller's thread.

use shmcast::SubscriberBuilder;

use super::live::Live;
use super::{Egress, EgressOptions};
use crate::BridgeError;
use crate::spec::{BridgeSpec, WaitMode};

/// An egress that runs on its caller's thread. The caller also publishes to the channel on this thread, so a message does not wait for
/// another thread. In return, the caller's thread makes the system call that sends the message. Repairs still have a thread of their own.
pub struct EgressInvoker {
    live: Live,
    /// The egress. It has the counters, and can be stopped.
    pub egress: Egress,
    is_over: bool,
}

impl EgressInvoker {
    /// Opens the egress as [`Egress::start`] does, and can block for as long as that function. Packets are sent only in
    /// [`invoke`](Self::invoke). The spec's `wait` and `cpu` have no effect.
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

    /// Sends at most 1024 events that are waiting in the ring, and the heartbeats that are due. Returns false once the egress has ended.
    ///
    /// The call waits only in these cases:
    ///
    /// - The buffer of a socket is full.
    /// - The egress has used up its share of the link.
    /// - The egress still sends messages that were published before it attached. The rate of these messages is limited, and a call waits up
    ///   to 100 us.
    #[inline]
    pub fn invoke(&mut self) -> bool {
        self.is_over = self.is_over || !self.live.turn();
        !self.is_over
    }
}
