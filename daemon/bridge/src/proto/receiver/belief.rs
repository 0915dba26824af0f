//! Decides which announcements in packets a receiver believes, and when it no longer believes them.
//!
//! One packet alone never makes a receiver give up a message, because anybody can send one packet. The rules are:
//!
//! - A packet with messages announces its own messages and all messages before them. The receiver believes this announcement as soon as
//!   another packet arrives with the same sequence or a higher one.
//! - A heartbeat is only a claim. The receiver believes the claim when packets with messages confirm it, or when the heartbeat's line has
//!   sent nothing but this claim for [`REPEATED_NS`].
//! - A claim is withdrawn if the claim's line continues with lower sequences, or if servers say that none of the claimed messages is
//!   published.
//!
//! These rules do not help against a sender that forges many packets, or that forges the data of messages.

use super::super::{MICROSECOND_NS, MILLISECOND_NS, SECOND_NS};
use super::{Delivery, Origin, Receiver};
use shmcast::hosting::fault;

/// The number of packets that must agree with each other before a receiver believes a large jump of the sequences.
const JUMP_WITNESSES: u32 = 3;
/// Of the packets that announce a large jump of the sequences, the first and the last must be at least this time apart, in nanoseconds.
const JUMP_NS: u64 = MILLISECOND_NS;
/// A line's claim counts as contradicted after this many packets of the line. The sequences of these packets must be in order, and below
/// the claim.
const CONTRADICTIONS: u32 = 4;
/// If a line has repeated a claim for this time and sent nothing else, the claim is believed. The unit is nanoseconds.
const REPEATED_NS: u64 = SECOND_NS;
/// An announced end of the session is believed in two cases: it arrives from two lines or servers, or it arrives again after this time, in
/// nanoseconds. An earlier repetition might be a copy of the same packet.
const END_AGAIN_NS: u64 = 100 * MICROSECOND_NS;
/// An announced end of the session is also believed after this many packets with the same end, even if these packets arrive together. A
/// network is not expected to make so many copies of one packet.
const ENDS: u32 = 3;
/// A jump over N messages is plausible if the feed delivered at least N messages in the last period of this length, in nanoseconds.
const BELIEVED_NS: u64 = SECOND_NS / 4;

/// Packets that are far ahead of all others. The receiver believes them only if several of them agree with each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Jump {
    first: u64,
    last: u64,
    seen: u32,
    since_ns: u64,
}

/// A line's announcement of a sequence beyond the messages that have been shown to exist.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    at: u64,
    line: usize,
    since_ns: u64,
    below: u32,
    below_end: u64,
}

/// The end of the session, as the feed announced it.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) sequence: u64,
    since_ns: u64,
    origin: Origin,
    times: u32,
    is_sure: bool,
}

/// The number of messages that the feed delivered in the last [`BELIEVED_NS`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    since_ns: u64,
    next: u64,
    messages: u64,
}

impl Receiver {
    // Returns whether a packet that ends at `end` is accepted. One wrong packet must not make a receiver request a feed that does not
    // exist, so a long jump is accepted only if several packets agree.
    pub(super) fn is_plausible(&mut self, now_ns: u64, end: u64) -> bool {
        let believed = self.config.max_jump.max(self.pace.messages);
        if end <= self.horizon.saturating_add(believed) {
            self.jump = None;
            return true;
        }
        let agrees = |jump: &Jump| end >= jump.last && end - jump.last <= believed;
        let jump = match self.jump.filter(agrees) {
            Some(jump) => Jump { last: end, seen: jump.seen + 1, ..jump },
            None => Jump { first: end, last: end, seen: 1, since_ns: now_ns },
        };
        let is_over = jump.seen >= JUMP_WITNESSES
            && (self.config.trusts || now_ns.saturating_sub(jump.since_ns) >= JUMP_NS);
        self.jump = (!is_over).then_some(jump);
        if is_over {
            self.ahead = self.ahead.max(jump.first);
        }
        is_over
    }

    pub(super) fn note_pace(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.pace.since_ns) >= BELIEVED_NS {
            let messages = self.next.saturating_sub(self.pace.next);
            self.pace = Pace { since_ns: now_ns, next: self.next, messages };
        }
    }

    // Weighs a packet that ends at `end` as evidence of which messages exist.
    pub(super) fn weigh(&mut self, now_ns: u64, origin: Origin, end: u64, has_messages: bool) {
        let mut shown = self.next.max(end.min(self.ahead));
        match origin {
            Origin::Server(_) if has_messages => shown = shown.max(end),
            Origin::Line(_) | Origin::Repair(_) if has_messages => self.ahead = self.ahead.max(end),
            Origin::Server(_) | Origin::Line(_) | Origin::Repair(_) => {}
        }
        if self.config.trusts || fault!("one_packet_shows") {
            shown = self.horizon;
        }
        self.gaps.show(now_ns, shown);
        if self.horizon <= self.sure() {
            self.claim = None;
        } else if let Origin::Line(line) = origin {
            self.weigh_claim(now_ns, line, end);
        }
    }

    /// Returns the sequence before which all messages surely exist.
    pub(super) fn sure(&self) -> u64 {
        self.gaps.shown().max(self.next)
    }

    // Considers a packet as evidence about the claim. Only the line that made the claim can withdraw it, because another line might lag.
    fn weigh_claim(&mut self, now_ns: u64, line: usize, end: u64) {
        let at = self.horizon;
        let fresh = Claim { at, line, since_ns: now_ns, below: 0, below_end: 0 };
        let mut claim = self.claim.filter(|claim| claim.at == at).unwrap_or(fresh);
        if end < at && claim.line == line {
            claim.since_ns = now_ns;
            if end >= claim.below_end {
                (claim.below, claim.below_end) = (claim.below + 1, end);
            }
        } else if end >= at && now_ns.saturating_sub(claim.since_ns) >= REPEATED_NS {
            self.gaps.show(now_ns, at);
        }
        self.claim = Some(claim);
        if claim.below >= CONTRADICTIONS && !fault!("claims_stay") {
            self.retract(self.sure());
        }
    }

    // Removes the claims from `sequence` on, and all state that came from them.
    fn retract(&mut self, sequence: u64) {
        self.gaps.retract(sequence);
        self.counters.totals.messages_refused += self.store.truncate(sequence);
        self.assembler.retain(self.next, sequence);
        (self.horizon, self.ahead) = (sequence, self.ahead.min(sequence));
        self.lines.iter_mut().for_each(|line| *line = (*line).min(sequence));
        self.claim = None;
        self.end = self.end.filter(|end| end.sequence <= sequence);
        self.counters.totals.claims_contradicted += 1;
    }

    /// Handles a server's answer to the request that begins at `first`: no message is published yet with the sequence `first` or a higher
    /// one. `next` is the server's next sequence. If there is no request that begins at `first`, the answer shows at most that the server
    /// runs shmcast and is up.
    pub(crate) fn handle_held(
        &mut self,
        now_ns: u64,
        server: usize,
        (session, first, next): (super::Session, u64, u64),
        sink: &mut impl FnMut(Delivery<'_>),
    ) {
        self.gaps.note_ours(server);
        if self.session != Some(session) || next > first {
            return;
        }
        self.gaps.note_alive(now_ns, server);
        let Some(denied) = self.gaps.handle_held(now_ns, server, first, &mut self.counters) else { return };
        if let Some(counters) = self.counters.servers.get_mut(server) {
            counters.held += 1;
        }
        self.gaps.show(now_ns, next);
        let sure = self.sure().max(next);
        // The messages were requested after the claim arrived, and are still not published. So they were not published when the claim
        // arrived.
        if denied >= self.gaps.denials_needed() && sure <= first {
            self.retract(sure);
        }
        self.advance(sink);
    }

    // Notes that a packet announced the end of the session. A single packet is not believed.
    pub(super) fn note_end(&mut self, now_ns: u64, origin: Origin, sequence: u64) {
        let known = self.end.filter(|end| end.sequence == sequence);
        let is_sure = self.config.trusts;
        let mut end = known.unwrap_or(End { sequence, since_ns: now_ns, origin, times: 0, is_sure });
        end.times += 1;
        let is_later = now_ns.saturating_sub(end.since_ns) >= END_AGAIN_NS;
        let is_again = end.origin != origin || is_later || end.times >= ENDS;
        end.is_sure |= known.is_some() && is_again || fault!("one_end_is_enough");
        self.end = Some(end);
    }

    // Whether the session is over and all of its messages were delivered.
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some_and(|end| end.is_sure && end.sequence == self.next)
    }
}
