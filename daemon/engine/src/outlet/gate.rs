//! The gate through which the thread reads the ring. At this gate, the publisher waits for the thread.
//!
//! While another bridge writes the stream, this bridge waits and stores nothing in the log. This host's publisher must not wait for it
//! meanwhile, so the bridge releases the gate. When the bridge writes again, it takes the gate again. If another reader has taken the gate
//! by then, the bridge ends, and its owner restarts it.

use shmcast::{ChannelError, Start};
use shmcast_bridge::egress::{Attached, attach};

use super::{Outlet, RETRY_NS, choice_of};
use crate::proto::writer::State;

impl Outlet {
    /// Whether the bridge should read through a gate, but has none now.
    pub(super) fn lacks_gate(&self) -> bool {
        let is_gated = || self.subscriber.as_ref().is_some_and(|subscriber| subscriber.gate().is_some());
        self.spec.gate().is_some() && !is_gated()
    }

    /// Releases the gate while another bridge writes the stream. If the channel has left this ring, keeps the gate, because no publisher
    /// waits at it any more.
    pub(super) fn look_at_gate(&mut self, now_ns: u64) {
        let is_gated = self.spec.gate().is_some() && !self.lacks_gate();
        let Some(ring) = self.subscriber.as_ref().filter(|_| is_gated && now_ns >= self.retry_ns) else {
            return;
        };
        if matches!(self.writer.state(), State::Fenced(_)) {
            self.retry_ns = now_ns + RETRY_NS;
            let of_ring = ring.header().stream;
            let channel = self.channel.clone().start(Start::Sequence(ring.next_sequence()));
            // If the channel has disappeared, no publisher waits at the gate, so the gate can stay.
            if let Ok(Attached { subscriber, parks }) = attach(&channel, choice_of(self.spec.wait).mode)
                && subscriber.header().stream == of_ring
            {
                (self.subscriber, self.parks) = (Some(subscriber), parks);
            }
        }
    }

    /// Continues to read the present ring at the sequence `first`. If this ring does not have the sequence, attaches again, because the
    /// channel's journal might have it. Also attaches again if the spec has a gate and the bridge has none now. With a new gate, the
    /// publisher waits for the bridge only after the bridge has caught up.
    ///
    /// An earlier mistake: the bridge attached by name, and did not compare the streams. If the channel had been created again, messages of
    /// the new ring went into the log under the session of the earlier ring.
    pub(super) fn read_from(&mut self, first: u64) -> Result<(), ChannelError> {
        let (is_replaced, lacks_gate) = (self.has_other_ring(), self.lacks_gate());
        let is_gated = self.spec.gate().is_some() && !lacks_gate;
        let Some(ring) = &mut self.subscriber else { return Ok(()) };
        let of_ring = ring.header().stream;
        // A subscriber that reads the journal has no position in the ring, and cannot keep a gate.
        let mut goes_on = |from: u64| ring.seek(from).is_ok() && (!is_gated || ring.position() > 0);
        // The event that begins a session can lie between the message `first - 1` and the message `first`. So the subscriber continues at
        // `first - 1`, if the ring has this message.
        if (!lacks_gate || is_replaced) && (first > 1 && goes_on(first - 1) || goes_on(first)) {
            return Ok(());
        }
        if is_replaced {
            self.stay_at(first);
            return Ok(());
        }
        if is_gated {
            // A gate has one reader at a time, so close this subscriber first.
            self.subscriber = None;
        }
        let channel = self.spec.through_gate(&self.channel).start(Start::Sequence(first));
        let Attached { subscriber, parks } = attach(&channel, choice_of(self.spec.wait).mode)?;
        if subscriber.header().stream == of_ring {
            (self.subscriber, self.parks) = (Some(subscriber), parks);
        } else {
            // The channel was created again after the check above, so the attachment leads to the new ring. The thread stays in the earlier
            // ring.
            self.stay_at(first);
        }
        Ok(())
    }
}
