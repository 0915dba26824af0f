//! The counters of a captured feed. Each datagram is in exactly one of the counters that `accounted` adds up.

use crate::proto::counters::MalformedCounters;

/// Counts of the datagrams and messages of a capture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnwrapCounters {
    /// Datagrams of the capture that were handled.
    pub datagrams: u64,
    /// Packets with a message that had not been received before.
    pub packets: u64,
    /// Packets whose messages had all been received before.
    pub copies: u64,
    /// Packets without messages: heartbeats and ends.
    pub heartbeats: u64,
    /// Control datagrams between the sender and the receivers of a bridge.
    pub controls: u64,
    /// Requests of receivers.
    pub requests: u64,
    /// Native packets that cannot be opened without keys. Their messages are lost.
    pub sealed: u64,
    /// Packets of sessions that were not followed.
    pub other_sessions: u64,
    /// Packets with new messages of an earlier session, which the receiver no longer follows. Their messages are lost.
    pub stale: u64,
    /// Packets that were far ahead of all others, and that no other packet confirmed. Their messages are lost.
    pub implausible: u64,
    /// Packets whose messages had already been given up. Their messages are lost.
    pub late: u64,
    /// Datagrams that are not valid MoldUDP64, by reason.
    pub malformed: MalformedCounters,
    /// Malformed datagrams that begin like a packet of the feed. Their messages are lost.
    pub damaged: u64,
    /// Messages delivered.
    pub messages: u64,
    /// Messages that had been received before.
    pub duplicates: u64,
    /// Messages that arrived after they had been given up, or that precede the first message.
    pub late_messages: u64,
    /// Messages that were given up.
    pub missing: u64,
    /// Messages and fragments for which there was no room.
    pub refused: u64,
    /// Packets that filled a hole, because they arrived after later packets.
    pub reordered_packets: u64,
}

impl UnwrapCounters {
    /// Returns the number of datagrams that are in one of the counters. At the end of the capture, this is the number of all datagrams.
    #[cfg(test)]
    pub(crate) fn accounted(&self) -> u64 {
        let of_feed = self.packets + self.copies + self.heartbeats + self.late + self.implausible;
        let others = self.other_sessions + self.stale + self.controls + self.requests + self.sealed;
        of_feed + others + self.malformed.total()
    }

    /// Whether messages of the followed feed are missing.
    pub fn has_lost(&self) -> bool {
        let packets = self.sealed + self.stale + self.implausible + self.late + self.damaged;
        packets + self.missing + self.late_messages + self.refused > 0
    }
}
