//! Handles messages that arrive in fragments. A message counts as missing until all of its fragments have arrived. If a later message has
//! arrived, the incomplete message is in a hole. Otherwise the incomplete message does not yet count among the messages that are known to
//! exist.

use super::super::native::fragments::{Fragment, FragmentOutcome};
use super::super::wire::{Head, Malformed, Messages};
use super::{Delivery, Origin, Receiver};

impl Receiver {
    // Takes a fragment. Returns false if the rest of its packet must be ignored, because the packet is a repair that is not needed here.
    pub(super) fn handle_fragment(
        &mut self,
        now_ns: u64,
        origin: Origin,
        sequence: u64,
        fragment: &Fragment<'_>,
        sink: &mut impl FnMut(Delivery<'_>),
    ) -> bool {
        self.counters.totals.fragments += 1;
        let is_wanted = match origin {
            Origin::Line(_) => true,
            Origin::Server(server) => self.note_part_of_reply(now_ns, server, sequence, fragment),
            Origin::Repair(server) => {
                self.note_overheard(now_ns, server, sequence..sequence + 1, fragment.data.len())
            }
        };
        if !is_wanted {
            return false;
        }
        let is_there = sequence < self.next || self.store.next_missing(sequence, sequence + 1).is_none();
        if is_there {
            self.counters.totals.fragments_duplicate += 1;
            return true;
        }
        self.raise_horizon(now_ns, sequence);
        match self.assembler.take(sequence, fragment, sequence == self.next) {
            FragmentOutcome::Refused => self.counters.totals.fragments_refused += 1,
            FragmentOutcome::Known => self.counters.totals.fragments_duplicate += 1,
            FragmentOutcome::Part { is_last } => {
                if let Origin::Server(server) | Origin::Repair(server) = origin {
                    self.gaps.handle_part(now_ns, server, sequence, is_last);
                }
            }
            FragmentOutcome::Whole => self.complete(now_ns, origin, sequence, sink),
        }
        true
    }

    fn note_part_of_reply(
        &mut self,
        now_ns: u64,
        server: usize,
        sequence: u64,
        fragment: &Fragment<'_>,
    ) -> bool {
        if let Some(counters) = self.counters.servers.get_mut(server) {
            counters.packets += 1;
            counters.repair_bytes += fragment.data.len() as u64;
        }
        if self.assembler.begins_answer(sequence, fragment.offset) {
            self.gaps.handle_reply(now_ns, server, sequence, &mut self.counters);
        } else {
            self.gaps.note_alive(now_ns, server);
        }
        let is_asked_for = self.gaps.is_missing(sequence);
        if !is_asked_for {
            self.counters.totals.repairs_unasked += 1;
        }
        is_asked_for
    }

    fn complete(&mut self, now_ns: u64, origin: Origin, sequence: u64, sink: &mut impl FnMut(Delivery<'_>)) {
        let Some(whole) = self.assembler.take_whole(sequence) else { return };
        if sequence == self.next {
            self.handle_messages(now_ns, origin, whole.message(), sink);
            self.assembler.recycle(whole);
            return;
        }
        // The store has an entry for the message, while the message's bytes stay in the assembler.
        self.handle_messages(now_ns, origin, whole.apart(), sink);
        match self.store.next_missing(sequence, sequence + 1) {
            None => self.assembler.keep(whole),
            Some(_) => self.assembler.recycle(whole),
        }
    }

    // Delivers a message whose bytes the assembler has.
    pub(super) fn deliver_apart(&mut self, place: Messages<'_>, sink: &mut impl FnMut(Delivery<'_>)) {
        let Some(whole) = self.assembler.take_whole(place.first()) else {
            debug_assert!(false, "the message of a place in the store is not there");
            return;
        };
        self.deliver(whole.message(), sink);
        self.assembler.recycle(whole);
    }

    /// Notes a packet that was not opened, because none of its messages is needed. There are two cases: a copy of the packet was accepted
    /// before, or all its messages were delivered or given up. `head` has the sequences of these messages.
    pub(crate) fn note_copy(&mut self, now_ns: u64, origin: Origin, head: &Head) {
        let messages = u64::from(head.messages);
        self.counters.totals.copies += 1;
        if let Origin::Line(line) = origin {
            self.pass(now_ns, line, head.end().min(self.horizon));
            if let Some(counters) = self.counters.lines.get_mut(line) {
                counters.messages_duplicate += messages;
            }
        }
    }

    /// Counts a packet of another feed that was dropped before it reached this receiver.
    pub(crate) fn count_foreign(&mut self) {
        self.counters.totals.packets_foreign += 1;
    }

    /// Counts a malformed datagram that was dropped before it reached this receiver.
    pub(crate) fn count_malformed(&mut self, reason: Malformed) {
        self.counters.malformed.count(reason);
    }

    /// Whether a packet has only messages that were delivered or given up. Such a packet need not be opened.
    pub(crate) fn is_old(&self, session: super::Session, head: &Head) -> bool {
        head.messages > 0 && self.session == Some(session) && head.end() <= self.next
    }
}
