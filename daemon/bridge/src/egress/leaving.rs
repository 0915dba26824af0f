//! The steps of an egress that was told to leave (to end in an orderly way). The session continues, and no packet announces that the egress
//! leaves.

use shmcast::Subscriber;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::live::{LOOK_UP, Leaving, Live};
use crate::status::Phase;

impl Live {
    /// Enters [`Phase::Leaving`] if the egress was told to leave.
    pub(super) fn hear_order(&mut self) {
        if self.leaving.is_none() && self.outlet.shared.leave.load(Ordering::Relaxed) {
            let published = self.subscriber.as_mut().map(Subscriber::published_end);
            self.leaving = Some(Leaving::Sends { until: published.unwrap_or(0) });
            self.outlet.shared.life.enter(Phase::Leaving);
        }
    }

    /// Stops sending once the egress has sent all messages that were published before the order to leave.
    pub(super) fn look_at_rest(&mut self, has_found: bool) {
        let Some(Leaving::Sends { until }) = self.leaving else { return };
        let is_sent = self.outlet.sender.next() >= until;
        if is_sent || !has_found && !self.subscriber.as_mut().is_some_and(Subscriber::is_between_rings) {
            // Stop reading the ring: another bridge sends the messages that are published from now on.
            self.subscriber = None;
            self.leaving = Some(Leaving::Serves { since_ns: self.outlet.clock.now_ns() });
        }
    }

    /// Serves repairs for as long as the spec says. Returns false once this time is over.
    pub(super) fn serve_the_rest(&mut self, since_ns: u64) -> bool {
        let now_ns = self.outlet.clock.now_ns();
        self.show_at(now_ns);
        // If this egress is the only one, it still sends heartbeats and repeats the end of the session. If several egresses share the
        // stream, another egress sends by now, and this egress must not send.
        let speaks = self.failover.is_none();
        if speaks {
            self.outlet.send_idle(now_ns);
        }
        let lingers = match speaks && self.outlet.is_over {
            true => !self.outlet.sender.is_finished(now_ns),
            false => now_ns.saturating_sub(since_ns) < self.linger_ns,
        };
        if lingers {
            let due_ns = self.outlet.sender.next_deadline(now_ns).unwrap_or(u64::MAX).saturating_sub(now_ns);
            self.idle.wait(now_ns, LOOK_UP.min(Duration::from_nanos(due_ns)));
        }
        lingers
    }
}
