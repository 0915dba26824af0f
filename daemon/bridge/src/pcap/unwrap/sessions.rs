//! Decides which session of a capture is followed, and what happens to packets of other sessions.

use super::packet::{Head, Parsed};
use super::{FAR_MESSAGES, Feed, HELD_PACKETS, LATE_PACKETS, Unwrap, WITNESSES, overlap};
use crate::proto::receiver::{Delivery, Join};
use crate::proto::session::Session;
use std::collections::VecDeque;
use std::ops::Range;

/// The limit for the earlier sessions that are remembered, and for the sessions that the report names.
const REMEMBERED: usize = 256;
/// The first packet of a session might have a sequence that is wrong and far off. So this sequence is compared with the sequences of this
/// many packets of the session.
const ASKED: usize = 64;

/// A packet of a session that is not followed.
#[derive(Debug)]
pub(super) struct Kept {
    head: Head,
    pub(super) datagram: Vec<u8>,
}

/// A session that was followed before.
#[derive(Debug)]
pub(super) struct Past {
    session: Session,
    is_native: bool,
    next: u64,
    given_up: Vec<Range<u64>>,
}

/// Sessions with packets that were left out or not read, and the number of these packets.
#[derive(Debug, Default)]
pub(super) struct Left(Vec<(Session, u64)>);

impl Left {
    pub(super) fn note(&mut self, session: Session) {
        if let Some((_, packets)) = self.0.iter_mut().find(|(known, _)| *known == session) {
            *packets += 1;
        } else if self.0.len() < REMEMBERED {
            self.0.push((session, 1));
        }
    }

    /// Counts a packet. If the list is full, forgets the oldest session for a new one.
    pub(super) fn note_latest(&mut self, session: Session) {
        let is_known = self.0.iter().any(|(known, _)| *known == session);
        if !is_known && self.0.len() == REMEMBERED {
            self.0.remove(0);
        }
        self.note(session);
    }

    /// Forgets a session, and returns the number of its packets.
    fn take(&mut self, session: Session) -> u64 {
        let at = self.0.iter().position(|(known, _)| *known == session);
        at.map_or(0, |at| self.0.remove(at).1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Session, u64)> + '_ {
        self.0.iter().copied()
    }
}

impl Unwrap {
    pub(super) fn is_native(&self, session: Session) -> Option<bool> {
        let feed = self.feed.as_ref().filter(|feed| feed.session == session).map(|feed| feed.is_native);
        feed.or_else(|| self.past_of(session).map(|past| past.is_native))
    }

    fn past_of(&self, session: Session) -> Option<&Past> {
        self.past.iter().rev().find(|past| past.session == session)
    }

    /// Follows the session of a packet, if no other session is followed.
    pub(super) fn begin<'a>(
        &mut self,
        head: &Head,
        ahead: &mut dyn Iterator<Item = &'a [u8]>,
        sink: &mut dyn FnMut(Delivery<'_>),
    ) {
        self.kept_since = 0;
        let Head { session, is_native, .. } = *head;
        self.counters.damaged += self.unread.take(session);
        if let Some(at) = self.past.iter().rposition(|past| past.session == session) {
            let Past { next, given_up, .. } = self.past.remove(at);
            self.feed =
                Some(Feed { given_up, ..Feed::new(session, is_native, Join::Resume { session, next }) });
            return sink(Delivery::NewSession { session, next, previous: None });
        }
        let first = first_of(head, ahead);
        let before = (first > 1).then_some(1..first);
        self.feed = Some(Feed {
            given_up: before.into_iter().collect(),
            ..Feed::new(session, is_native, Join::From(first))
        });
        sink(Delivery::NewSession { session, next: first, previous: None });
    }

    /// Stops following the session, and gives up its missing messages.
    pub(super) fn leave(&mut self, sink: &mut dyn FnMut(Delivery<'_>)) {
        let Some(mut feed) = self.feed.take() else { return };
        self.counters.implausible += feed.far.len() as u64;
        feed.run(&mut self.counters, sink, |receiver, mut sink| receiver.give_up(&mut sink));
        let Feed { session, is_native, given_up, receiver, .. } = feed;
        if self.past.len() == REMEMBERED {
            self.past.remove(0);
        }
        self.past.push(Past { session, is_native, next: receiver.next(), given_up });
    }

    /// Takes a packet of a session that is not followed. If the packet makes the receiver leave the followed session, returns the kept
    /// packets. The caller must then route the returned packets.
    pub(super) fn take_of_other(
        &mut self,
        head: &Head,
        datagram: &[u8],
        sink: &mut dyn FnMut(Delivery<'_>),
    ) -> Option<VecDeque<Kept>> {
        let feed = self.feed.as_ref()?;
        if let Some(past) = self.past_of(head.session)
            && head.end <= past.next
            && overlap(&past.given_up, head.first..head.end) == 0
        {
            if head.first == head.end {
                return self.count(|counters| &mut counters.heartbeats);
            }
            self.counters.duplicates += head.end - head.first;
            return self.count(|counters| &mut counters.copies);
        }
        let (own, other) = (feed.session, head.session);
        let is_newer = own.tag() == other.tag() && own.epoch().is_some() && other.epoch() > own.epoch();
        let patience = match feed.is_over {
            true => 1,
            false if is_newer || feed.has_said_end => LATE_PACKETS,
            false => HELD_PACKETS,
        };
        self.kept.push_back(Kept { head: *head, datagram: datagram.to_vec() });
        self.kept_since += 1;
        if self.kept_since >= patience {
            self.leave(sink);
            return Some(self.take_kept());
        }
        if self.kept.len() > HELD_PACKETS
            && let Some(oldest) = self.kept.pop_front()
        {
            self.leave_out(&oldest);
        }
        None
    }

    pub(super) fn take_kept(&mut self) -> VecDeque<Kept> {
        self.kept_since = 0;
        std::mem::take(&mut self.kept)
    }

    /// Counts a kept packet that is left out.
    pub(super) fn leave_out(&mut self, kept: &Kept) {
        self.left.note(kept.head.session);
        match self.past_of(kept.head.session) {
            Some(_) => self.counters.stale += 1,
            None => self.counters.other_sessions += 1,
        }
    }
}

// Returns the first message of a session. Packets can be out of order, and the first packet can be far off, so the packets after it are
// considered, too.
fn first_of(head: &Head, ahead: &mut dyn Iterator<Item = &[u8]>) -> u64 {
    let ahead = ahead.take(HELD_PACKETS).filter_map(|datagram| {
        match Parsed::of(datagram, |session| (session == head.session).then_some(head.is_native)) {
            Parsed::Packet(other) if other.session == head.session => Some(other.first),
            _ => None,
        }
    });
    let firsts: Vec<u64> = [head.first].into_iter().chain(ahead).collect();
    let asked = &firsts[..firsts.len().min(ASKED)];
    let agreeing = |first: &&u64| {
        asked.iter().filter(|other| other.abs_diff(**first) <= FAR_MESSAGES).count() >= WITNESSES
    };
    let sound = asked.iter().find(agreeing).copied().unwrap_or(head.first);
    firsts.into_iter().filter(|first| *first <= sound && sound - first <= FAR_MESSAGES).min().unwrap_or(sound)
}
