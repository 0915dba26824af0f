//! The gate of the thread that reads the ring. The publisher waits for this gate.
//!
//! A bridge that waits for another writer stores nothing in the log. Meanwhile the bridge's own publisher must not wait for the bridge, so
//! the bridge releases the gate. When the bridge continues to write, it takes the gate again. If another reader has taken the gate by then,
//! the bridge ends, and its owner restarts it.

use shmcast::{ChannelError, Start};
use shmcast_bridge::egress::{Attached, attach};

use super::{Outlet, choice_of};
use crate::proto::writer::State;

impl Outlet {
    /// Whether the bridge should read through a gate, but has none now.
    pub(super) fn lacks_gate(&self) -> bool {
        let is_gated = || self.subscriber.as_ref().is_some_and(|subscriber| subscriber.gate().is_some());
        self.spec.gate().is_some() && !is_gated()
    }

    /// Releases the gate while another bridge writes the stream.
    pub(super) fn look_at_gate(&mut self) {
        let is_gated = self.spec.gate().is_some() && !self.lacks_gate();
        if is_gated && matches!(self.writer.state(), State::Fenced(_)) {
            let next = self.subscriber.take().map_or(1, |subscriber| subscriber.next_sequence());
            let channel = self.channel.clone().start(Start::Sequence(next));
            // If the channel has disappeared, `attach_again` attaches to it later.
            if let Ok(Attached { subscriber, parks }) = attach(&channel, choice_of(self.spec.wait).mode) {
                (self.subscriber, self.parks) = (Some(subscriber), parks);
            }
        }
    }

    /// Continues to read at the sequence `first`. A bridge keeps its gate if the ring has this sequence. Otherwise the bridge attaches
    /// again. The publisher then waits for the bridge only after the bridge has caught up.
    pub(super) fn read_from(&mut self, first: u64) -> Result<(), ChannelError> {
        let is_gated = self.spec.gate().is_some() && !self.lacks_gate();
        if let Some(subscriber) = self.subscriber.as_mut().filter(|_| is_gated) {
            // A subscriber that reads the journal has no position in the ring.
            if subscriber.seek(first).is_ok() && subscriber.position() > 0 {
                return Ok(());
            }
            // A gate has one reader at a time, so close this subscriber first.
            self.subscriber = None;
        }
        let channel = self.spec.through_gate(&self.channel).start(Start::Sequence(first));
        let Attached { subscriber, parks } = attach(&channel, choice_of(self.spec.wait).mode)?;
        (self.subscriber, self.parks) = (Some(subscriber), parks);
        Ok(())
    }
}
