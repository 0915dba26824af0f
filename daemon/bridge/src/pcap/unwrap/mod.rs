//! Puts the packets of a captured feed in order, and counts each of them.
//!
//! The receiver of a bridge does this work. Here, the receiver's clock counts packets instead of time, because the time stamps of a capture
//! can be wrong. The receiver gives up a hole once [`HELD_PACKETS`] packets of the feed have arrived after the hole.
//!
//! A channel has one feed, so the receiver follows one session at a time. It keeps up to [`HELD_PACKETS`] packets of other sessions. If
//! more arrive, it leaves out the oldest ones and counts them. The receiver counts the packets that were kept since the followed session
//! last sent new messages. When this number reaches the limit of the following table, the receiver leaves the followed session. Then it
//! handles the kept packets in order.
//!
//! | the followed session | the other session | when the receiver leaves the followed session |
//! |---|---|---|
//! | there is none yet | any | the receiver follows the session of the first packet |
//! | has announced its end | any | after [`LATE_PACKETS`] kept packets, or after the first if no message is missing |
//! | is silent | a higher epoch of the same channel | after [`LATE_PACKETS`] kept packets |
//! | is silent | any other | after [`HELD_PACKETS`] kept packets |
//! | sends new messages | any | never |
//!
//! A packet that is more than [`FAR_MESSAGES`] messages ahead must wait. It is accepted together with two other waiting packets, if the
//! sequences of the other two differ from the packet's sequence by at most [`FAR_MESSAGES`]. A waiting packet is also accepted once it is
//! not so far ahead any more.
//!
//! Each datagram is in exactly one of the counters that `UnwrapCounters::accounted` adds up.

mod counters;
mod packet;
mod sessions;
#[cfg(test)]
mod tests;

pub use counters::UnwrapCounters;

use super::super::proto::gap::{GapConfig, GapPolicy};
use super::super::proto::receiver::{Delivery, Follow, Join, Origin, Receiver, ReceiverConfig};
use super::super::proto::session::Session;
use packet::{Head, Parsed};
use sessions::{Kept, Left, Past};
use shmcast::MAX_SEQUENCE;
use std::collections::VecDeque;
use std::ops::Range;

/// A missing message is given up after this many further packets of the feed. In a feed of 100,000 packets a second, this number of packets
/// takes ten milliseconds.
pub const HELD_PACKETS: usize = 1_024;
/// If the feed's next session has begun, the receiver leaves the followed session after it has kept this many packets of other sessions.
/// Until then, late packets of the followed session can still arrive.
pub const LATE_PACKETS: usize = 64;
/// A packet that is more than this number of messages ahead must wait. It is accepted together with two other waiting packets, if the
/// sequences of the other two differ from the packet's sequence by at most this number.
pub const FAR_MESSAGES: u64 = 1 << 16;

/// The receiver jumps to sequences that are far ahead only if this many packets have sequences close to each other.
const WITNESSES: usize = 3;
/// The size, in bytes, of the store for packets that arrive while earlier packets are missing. The store has room for more than
/// [`HELD_PACKETS`] packets of the largest size.
const EARLY_BYTES: usize = 128 << 20;

/// The feed that is followed.
#[derive(Debug)]
struct Feed {
    session: Session,
    receiver: Receiver,
    is_native: bool,
    /// The number of packets so far, which the receiver uses as its clock.
    packets: u64,
    has_said_end: bool,
    /// Whether all messages up to the end of the session were delivered.
    is_over: bool,
    /// The sequences that were given up, and the sequences before the first message. The ranges are in ascending order and do not touch.
    given_up: Vec<Range<u64>>,
    /// Packets that are far ahead and that no other packet confirms yet, each with the sequence after its last message.
    far: Vec<(u64, Vec<u8>)>,
}

/// Follows the feed of a capture.
#[derive(Debug, Default)]
pub struct Unwrap {
    only: Option<Session>,
    feed: Option<Feed>,
    /// Packets of sessions that are not followed, in the order of the capture.
    kept: VecDeque<Kept>,
    /// The number of packets that were kept since the followed session last sent new messages. Repeated messages and end packets are not
    /// new messages.
    kept_since: usize,
    past: Vec<Past>,
    left: Left,
    /// Malformed datagrams that begin like packets of sessions that are not followed. When the receiver begins to follow a session, the
    /// datagrams of this session count as damaged.
    unread: Left,
    /// The counters so far. Each datagram is in one of them after [`Unwrap::finish`].
    pub counters: UnwrapCounters,
}

impl Unwrap {
    /// Makes a state that has seen no packet. If `only` is a session, no other session is followed.
    pub fn new(only: Option<Session>) -> Unwrap {
        Unwrap { only, ..Unwrap::default() }
    }

    /// Takes the next datagram, and delivers the messages that become available. `ahead` has the next datagrams of the capture, of which at
    /// most [`HELD_PACKETS`] are used. These datagrams show with which message a session begins.
    pub fn take<'a>(
        &mut self,
        datagram: &[u8],
        ahead: &mut dyn Iterator<Item = &'a [u8]>,
        sink: &mut dyn FnMut(Delivery<'_>),
    ) {
        self.counters.datagrams += 1;
        if let Some(again) = self.route(datagram, ahead, sink) {
            self.route_all(again, sink);
        }
    }

    /// Ends the capture. Missing messages become gaps, and the messages after them are delivered. If the followed session has ended and
    /// another session began after it, that session is delivered as well.
    pub fn finish(&mut self, sink: &mut dyn FnMut(Delivery<'_>)) {
        loop {
            let has_ended = self.feed.as_ref().is_none_or(|feed| feed.has_said_end);
            self.leave(sink);
            let is_successor = has_ended || self.kept_since == self.kept.len();
            if self.kept.is_empty() || !is_successor {
                break;
            }
            let again = self.take_kept();
            self.route_all(again, sink);
        }
        for kept in std::mem::take(&mut self.kept) {
            self.leave_out(&kept);
        }
    }

    /// Returns the sessions whose packets were left out, each with the number of these packets. The list has room for a limited number of
    /// sessions.
    pub fn left_out(&self) -> impl Iterator<Item = (Session, u64)> + '_ {
        self.left.iter()
    }

    fn route_all(&mut self, mut again: VecDeque<Kept>, sink: &mut dyn FnMut(Delivery<'_>)) {
        while let Some(kept) = again.pop_front() {
            let mut ahead = again.iter().map(|kept| &kept.datagram[..]);
            if let Some(mut more) = self.route(&kept.datagram, &mut ahead, sink) {
                more.append(&mut again);
                again = more;
            }
        }
    }

    // Handles a datagram. If the receiver leaves the followed session, returns the kept packets, which must be routed next.
    fn route<'a>(
        &mut self,
        datagram: &[u8],
        ahead: &mut dyn Iterator<Item = &'a [u8]>,
        sink: &mut dyn FnMut(Delivery<'_>),
    ) -> Option<VecDeque<Kept>> {
        let head = match Parsed::of(datagram, |session| self.is_native(session)) {
            Parsed::Packet(head) => head,
            Parsed::Control => return self.count(|counters| &mut counters.controls),
            Parsed::Request => return self.count(|counters| &mut counters.requests),
            Parsed::Sealed => return self.count(|counters| &mut counters.sealed),
            Parsed::Malformed(reason) => {
                self.counters.malformed.count(reason);
                if let Some(session) = datagram.first_chunk().map(|name| Session::from_bytes(*name)) {
                    match self.feed.as_ref().is_some_and(|feed| feed.session == session) {
                        true => self.counters.damaged += 1,
                        false => self.unread.note_latest(session),
                    }
                }
                return None;
            }
        };
        if head.end > MAX_SEQUENCE {
            return self.count(|counters| &mut counters.implausible);
        }
        if self.only.is_some_and(|only| only != head.session) {
            self.left.note(head.session);
            return self.count(|counters| &mut counters.other_sessions);
        }
        match &self.feed {
            Some(feed) if feed.session == head.session => {
                self.take_of_feed(&head, datagram, sink);
                None
            }
            Some(_) => self.take_of_other(&head, datagram, sink),
            None => {
                self.begin(&head, ahead, sink);
                self.take_of_feed(&head, datagram, sink);
                None
            }
        }
    }

    fn count<T>(&mut self, counter: impl FnOnce(&mut UnwrapCounters) -> &mut u64) -> Option<T> {
        *counter(&mut self.counters) += 1;
        None
    }

    fn take_of_feed(&mut self, head: &Head, datagram: &[u8], sink: &mut dyn FnMut(Delivery<'_>)) {
        let Some(feed) = &mut self.feed else { return };
        feed.has_said_end |= head.is_end;
        if head.end > feed.receiver.horizon().saturating_add(FAR_MESSAGES) {
            return self.take_far(head.end, datagram, sink);
        }
        self.deliver(head, datagram, sink);
        self.take_near(sink);
    }

    // Keeps a packet that is far ahead, until other packets confirm it.
    fn take_far(&mut self, end: u64, datagram: &[u8], sink: &mut dyn FnMut(Delivery<'_>)) {
        let Some(feed) = &mut self.feed else { return };
        feed.far.push((end, datagram.to_vec()));
        let agrees = |other: u64| other.abs_diff(end) <= FAR_MESSAGES;
        if feed.far.iter().filter(|(other, _)| agrees(*other)).count() >= WITNESSES {
            self.take_far_if(agrees, sink);
        } else if feed.far.len() > HELD_PACKETS {
            feed.far.remove(0);
            self.counters.implausible += 1;
        }
    }

    // Takes the packets that were far ahead before, but are not far ahead any more.
    fn take_near(&mut self, sink: &mut dyn FnMut(Delivery<'_>)) {
        let Some(feed) = self.feed.as_ref().filter(|feed| !feed.far.is_empty()) else { return };
        let near = feed.receiver.horizon().saturating_add(FAR_MESSAGES);
        self.take_far_if(|end| end <= near, sink);
    }

    fn take_far_if(&mut self, is_due: impl Fn(u64) -> bool, sink: &mut dyn FnMut(Delivery<'_>)) {
        let Some(feed) = &mut self.feed else { return };
        let is_native = feed.is_native;
        for (_, datagram) in feed.far.extract_if(.., |(end, _)| is_due(*end)).collect::<Vec<_>>() {
            if let Parsed::Packet(head) = Parsed::of(&datagram, |_| Some(is_native)) {
                self.deliver(&head, &datagram, sink);
            }
        }
    }

    fn deliver(&mut self, head: &Head, datagram: &[u8], sink: &mut dyn FnMut(Delivery<'_>)) {
        let Some(feed) = &mut self.feed else { return };
        feed.packets += 1;
        let now_ns = feed.packets;
        let is_due = feed.receiver.next_deadline().is_some_and(|due_ns| due_ns <= now_ns);
        let late = overlap(&feed.given_up, head.first..head.end);
        let duplicates = self.counters.duplicates;
        let told = feed.run(&mut self.counters, sink, |receiver, mut sink| {
            if is_due {
                receiver.handle_timeout(now_ns, &mut sink);
            }
            receiver.handle_datagram(now_ns, Origin::Line(0), datagram, &mut sink);
        });
        self.counters.late_messages += late;
        self.counters.duplicates -= late.min(self.counters.duplicates - duplicates);
        if told > 0 {
            self.counters.packets += 1;
            self.kept_since = 0;
        } else if head.first == head.end {
            self.counters.heartbeats += 1;
            if !feed.has_said_end {
                self.kept_since = 0;
            }
        } else if late > 0 {
            self.counters.late += 1;
        } else {
            self.counters.copies += 1;
        }
    }
}

impl Feed {
    fn new(session: Session, is_native: bool, join: Join) -> Feed {
        let gaps = GapConfig {
            hold_ns: HELD_PACKETS as u64,
            hold_max_ns: HELD_PACKETS as u64,
            servers: 0,
            max_holes: 2 * HELD_PACKETS,
            policy: GapPolicy::Skip { give_up_ns: HELD_PACKETS as u64 },
            ..GapConfig::default()
        };
        let config = ReceiverConfig {
            gaps,
            join,
            trusts: true,
            max_jump: MAX_SEQUENCE,
            max_early_packets: 4 * HELD_PACKETS,
            max_early_bytes: EARLY_BYTES,
            is_native,
            ..ReceiverConfig::following(Follow::Only(session))
        };
        Feed {
            session,
            receiver: Receiver::new(config),
            is_native,
            packets: 0,
            has_said_end: false,
            is_over: false,
            given_up: Vec::new(),
            far: Vec::new(),
        }
    }

    // Calls the receiver, and counts what it did. Returns how many messages and fragments were new.
    fn run(
        &mut self,
        counters: &mut UnwrapCounters,
        sink: &mut dyn FnMut(Delivery<'_>),
        act: impl FnOnce(&mut Receiver, &mut dyn FnMut(Delivery<'_>)),
    ) -> u64 {
        let Feed { receiver, given_up, is_over, .. } = self;
        let before = Sums::of(receiver);
        act(receiver, &mut |delivery| {
            match delivery {
                Delivery::Gap { ref missing } => given_up.push(missing.clone()),
                Delivery::End { .. } => *is_over = true,
                Delivery::Message { .. } => {}
                // `begin` has reported the new session already.
                Delivery::NewSession { .. } => return,
            }
            sink(delivery);
        });
        let after = Sums::of(receiver);
        counters.messages += after.delivered - before.delivered;
        counters.missing += after.expired - before.expired;
        counters.duplicates += after.duplicate - before.duplicate;
        counters.refused += after.refused - before.refused;
        counters.reordered_packets += after.reordered - before.reordered;
        let old = (after.duplicate + after.refused) - (before.duplicate + before.refused);
        (after.received - before.received) - old + (after.parts - before.parts)
    }
}

/// Counters of a receiver.
struct Sums {
    received: u64,
    delivered: u64,
    duplicate: u64,
    refused: u64,
    expired: u64,
    reordered: u64,
    parts: u64,
}

impl Sums {
    fn of(receiver: &Receiver) -> Sums {
        let counters = receiver.counters();
        Sums {
            received: counters.totals.messages_received,
            delivered: counters.totals.messages_delivered,
            duplicate: counters.totals.messages_duplicate,
            refused: counters.totals.messages_refused + counters.totals.fragments_refused,
            expired: counters.totals.messages_expired,
            reordered: counters.totals.packets_reordered,
            parts: counters.totals.fragments - counters.totals.fragments_duplicate,
        }
    }
}

// Counts the sequences of `of` that lie in `ranges`, which ascend and do not touch.
fn overlap(ranges: &[Range<u64>], of: Range<u64>) -> u64 {
    let at = ranges.partition_point(|range| range.end <= of.start);
    let touched = ranges[at..].iter().take_while(|range| range.start < of.end);
    touched.map(|range| range.end.min(of.end) - range.start.max(of.start)).sum()
}
