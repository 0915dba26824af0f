//! The figures that the ring's thread publishes about itself.

use shmcast_bridge::proto::MILLISECOND_NS;
use std::sync::atomic::Ordering;

use super::Outlet;
use crate::proto::writer::State;
use crate::status::SendCounters;

impl Outlet {
    pub(super) fn show(&mut self, now_ns: u64) {
        let published = self.published();
        let (writer, link, cutter) = (&self.writer, &self.shared.link, &self.cutter);
        let counters = writer.counters();
        let [refused, silent, busy, disconnected, rival] = counters.resyncs;
        let age_ns = writer.oldest_in_flight().map_or(0, |at_ns| now_ns.saturating_sub(at_ns));
        let shut_out = if let State::Shut(why) = writer.state() { Some(why) } else { None };
        self.shared.note_shut_out(shut_out);
        self.counters = SendCounters {
            stored: writer.stored(),
            published,
            behind_ms: age_ns / MILLISECOND_NS,
            in_flight: writer.in_flight() as u64,
            messages: cutter.messages,
            blocks: counters.blocks,
            bytes: counters.bytes,
            messages_missed: cutter.messages_missed,
            gap_messages: cutter.gap_messages,
            resyncs_refused: refused,
            resyncs_silent: silent,
            resyncs_busy: busy,
            resyncs_disconnected: disconnected,
            resyncs_rival: rival,
            successions: counters.successions,
            fenced: counters.fenced,
            is_fenced: u64::from(matches!(writer.state(), State::Fenced(_))),
            shut_out: counters.shut_out,
            is_shut_out: u64::from(shut_out.is_some()),
            lost_by_engine: counters.lost_by_engine,
            losses: counters.losses,
            wanted: self.shared.wanted.load(Ordering::Relaxed),
            disconnects: link.disconnects(),
            is_connected: u64::from(link.is_connected()),
        };
        self.shared.counters.show(&self.counters);
        self.shared.acks.show(writer.acks());
    }
}
