//! Tells servers that a sender still sends an older session of the channel.

use crate::proto::SECOND_NS;
use crate::proto::control::{CONTROL_MAX_BYTES, ControlDatagram};
use crate::proto::receiver::Receiver;

/// The shortest time between two notices about an older session.
const EVERY_NS: u64 = SECOND_NS;

/// The state of the notices about older sessions.
#[derive(Debug, Default)]
pub(super) struct Stale {
    /// The number of packets of older sessions that were already reported to servers.
    told: u64,
    told_ns: u64,
}

impl Stale {
    /// Returns the datagram to send to every server, if packets of an older session have arrived since the last notice.
    #[inline]
    pub(super) fn poll(
        &mut self,
        now_ns: u64,
        receiver: &Receiver,
    ) -> Option<([u8; CONTROL_MAX_BYTES], usize)> {
        let stale = receiver.counters().totals.packets_stale;
        if stale == self.told || now_ns.saturating_sub(self.told_ns) < EVERY_NS {
            return None;
        }
        (self.told, self.told_ns) = (stale, now_ns);
        let session = receiver.session()?;
        let mut out = [0; CONTROL_MAX_BYTES];
        let size = ControlDatagram::Stale { session, next: receiver.next() }.encode(&mut out);
        Some((out, size))
    }
}
