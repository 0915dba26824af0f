//! Handles the control datagrams of servers: answers to requests, and reports about the servers.

use std::ops::Range;

use super::super::session::Session;
use super::{Delivery, Receiver};
use shmcast::hosting::fault;

impl Receiver {
    /// Handles a server's answer to the request for the messages from sequence `first` on. The answer says that the server holds no message
    /// of the range `first..oldest`. If there is no such request, the answer shows at most that the server runs shmcast and is up.
    pub fn handle_gone(
        &mut self,
        now_ns: u64,
        server: usize,
        (session, first, oldest): (Session, u64, u64),
        sink: &mut impl FnMut(Delivery<'_>),
    ) {
        self.gaps.note_ours(server);
        if self.session != Some(session) {
            return;
        }
        self.gaps.note_alive(now_ns, server);
        if self.gaps.handle_gone(now_ns, server, first, oldest, &mut self.counters) {
            self.gaps.show(now_ns, oldest.min(self.horizon));
            if let Some(counters) = self.counters.servers.get_mut(server) {
                counters.gone += 1;
            }
            self.advance(sink);
        }
    }

    /// Handles a server's answer to the request for the messages from sequence `first` on. The server has answered that it holds these
    /// messages, but is not allowed to send them yet. If there is no such request, the answer shows only that the server runs shmcast.
    pub(crate) fn handle_later(&mut self, now_ns: u64, server: usize, (session, first): (Session, u64)) {
        self.gaps.note_ours(server);
        if self.session == Some(session)
            && self.gaps.handle_later(now_ns, server, first, &mut self.counters)
            && let Some(counters) = self.counters.servers.get_mut(server)
        {
            counters.later += 1;
        }
    }

    /// Notes that a server sent a control datagram that needs no other handling, for example one about a lease. The datagram shows that the
    /// server is up.
    pub(crate) fn note_alive(&mut self, now_ns: u64, server: usize) {
        self.gaps.note_ours(server);
        self.gaps.note_alive(now_ns, server);
    }

    /// Notes a server's round trip that was measured elsewhere, for example by a lease. This round trip replaces the initial guess.
    pub(crate) fn note_rtt(&mut self, server: usize, rtt_ns: u64) {
        self.gaps.note_rtt(server, rtt_ns);
    }

    /// Notes that a server has told all receivers to wait, because it will send nothing for a while. If the announced pause is too long, a
    /// shorter pause is noted.
    pub(crate) fn handle_pause(&mut self, now_ns: u64, server: usize, (session, wait_ns): (Session, u64)) {
        self.gaps.note_ours(server);
        if self.session == Some(session) {
            self.counters.totals.pauses += 1;
            self.gaps.handle_pause(now_ns, server, wait_ns);
        }
    }

    /// Notes the position of our lease in a server's order of leases (`place`, from 0), and how many leases this server has (`group`).
    pub(crate) fn note_place(&mut self, server: usize, place: u16, group: u16) {
        self.gaps.note_place(server, place, group);
    }

    /// Notes that our own socket dropped packets before the packet that is handled next.
    pub(crate) fn note_drop(&mut self) {
        self.gaps.note_drop();
    }

    // Notes a server's packet with messages. Returns whether its first message is missing here. Some servers label every packet of a long
    // answer with the first packet's sequence. Of such an answer, only the first packet has the right sequence.
    pub(super) fn note_reply(&mut self, now_ns: u64, server: usize, first: u64, size: usize) -> bool {
        if let Some(counters) = self.counters.servers.get_mut(server) {
            counters.packets += 1;
            counters.repair_bytes += size as u64;
        }
        self.gaps.handle_reply(now_ns, server, first, &mut self.counters);
        let is_asked_for = self.gaps.is_missing(first) || fault!("repairs_need_no_request");
        if !is_asked_for {
            self.counters.totals.repairs_unasked += 1;
            self.gaps.handle_needless(now_ns, server);
        }
        is_asked_for
    }

    // Notes a repair for all receivers. Returns whether it has any message that is missing here.
    pub(super) fn note_overheard(
        &mut self,
        now_ns: u64,
        server: usize,
        messages: Range<u64>,
        size: usize,
    ) -> bool {
        let is_missing = self.gaps.is_any_missing(messages);
        if !is_missing {
            self.counters.totals.repairs_overheard += 1;
        } else if let Some(counters) = self.counters.servers.get_mut(server) {
            counters.packets += 1;
            counters.repair_bytes += size as u64;
        }
        self.gaps.note_alive(now_ns, server);
        is_missing
    }
}
