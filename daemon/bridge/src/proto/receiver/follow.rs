//! Which sessions a receiver follows, where it starts, and which claims of a packet it believes.

use super::super::session::Session;
use super::super::wire::Downstream;
use super::super::{MAX_LINES, SECOND_NS};
use super::{Delivery, Origin, Receiver};

/// How long a followed feed must be silent before [`Follow::First`] takes another, unless configured.
pub const DEFAULT_SILENCE_NS: u64 = 10 * SECOND_NS;

/// Which sessions a receiver follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// A shmcast channel by its tag: always the newest epoch.
    Channel([u8; 4]),
    /// One session and no other.
    Only(Session),
    /// Whoever is first on the line; another session only after the end of this one or a silence this long.
    First {
        /// How long the followed session must have been silent, in nanoseconds.
        silence_ns: u64,
    },
}

/// Where a receiver starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// At the first sequence that is heard of.
    FirstSeen,
    /// At this sequence of the first session, earlier ones being asked for. 1 is the beginning.
    From(u64),
    /// Where a receiver before us left off.
    Resume {
        /// The session that it followed.
        session: Session,
        /// The first sequence that it did not deliver.
        next: u64,
    },
}

/// A packet that was too far ahead to be believed alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Jump {
    sequence: u64,
    seen: u32,
}

/// How many packets in a row must agree on a jump.
const JUMP_WITNESSES: u32 = 3;

impl Receiver {
    // Decides about a packet of a session that is not the current one.
    pub(super) fn follow(
        &mut self,
        now_ns: u64,
        origin: Origin,
        packet: &Downstream<'_>,
        sink: &mut impl FnMut(Delivery<'_>),
    ) -> bool {
        let session = packet.session;
        let follows = match self.config.follow {
            Follow::Channel(tag) if session.tag() == tag => match (session.epoch(), self.session) {
                (None, _) => false,
                (Some(_), None) => true,
                (epoch, Some(own)) if epoch > own.epoch() => true,
                _ => {
                    self.counters.packets_stale += 1;
                    return false;
                }
            },
            Follow::Channel(_) => false,
            Follow::Only(only) => session == only,
            Follow::First { silence_ns } => {
                let finished = self.end == Some(self.next);
                self.session.is_none() || finished || now_ns.saturating_sub(self.heard_ns) >= silence_ns
            }
        };
        // Only a line can introduce a session: an answer to a request is about one that we know.
        if !follows || matches!(origin, Origin::Server(_)) {
            self.counters.packets_foreign += 1;
            return false;
        }
        // What is missing of the old session went with it; what is stored of it is still good.
        self.gaps.expire_all();
        self.advance(sink);
        let previous = self.session.map(|session| (session, self.next));
        self.next = match (previous, self.config.join) {
            (None, Join::FirstSeen) => packet.sequence,
            (None, Join::From(sequence)) => sequence.max(1),
            _ => 1,
        };
        self.session = Some(session);
        // The first packet of a session may be any distance ahead: that is what a late joiner sees.
        self.horizon = self.next;
        self.raise_horizon(now_ns, packet.sequence);
        (self.end, self.end_announced, self.jump) = (None, false, None);
        self.lines = [self.next; MAX_LINES];
        self.counters.sessions += 1;
        sink(Delivery::NewSession { session, next: self.next, previous });
        true
    }

    // One wrong packet must not make a receiver skip a feed, so a long jump needs witnesses.
    pub(super) fn is_plausible(&mut self, end: u64) -> bool {
        if end <= self.horizon.saturating_add(self.config.max_jump) {
            self.jump = None;
            return true;
        }
        let agrees = |jump: &Jump| end.abs_diff(jump.sequence) <= self.config.max_jump;
        let seen = self.jump.filter(agrees).map_or(1, |jump| jump.seen + 1);
        self.jump = (seen < JUMP_WITNESSES).then_some(Jump { sequence: end, seen });
        self.jump.is_none()
    }
}
