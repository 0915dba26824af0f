//! Decides which sessions a receiver follows, and where it starts.
//!
//! | the followed session | another session | when the receiver follows the other session |
//! |---|---|---|
//! | there is none yet | any that [`Follow`] allows | at its first packet |
//! | alive | a higher epoch of the same channel | after three packets, the last at least 10 ms and at most a second after the first |
//! | alive | any other | never: its packets are dropped and counted |
//! | silent, or ended | any that [`Follow`] allows (on native lines, only of the same channel) | after three packets |
//!
//! On native lines, a session with another tag belongs to another channel, and the receiver must not mix the messages of two channels. So
//! the receiver never follows such a session, even if the followed session is silent. The only exception is a mirror of a feed of another
//! make, because the sessions of that feed have no tags.
//!
//! On plain lines, a session with another tag might be the same feed: senders of other makes can choose a new name for each day's session.
//!
//! A rival is a session that the receiver might follow later. The receiver stores the packets of a rival, and handles them once it follows
//! the rival. So no message of the rival is lost meanwhile.

use super::super::session::Session;
use super::super::wire::Downstream;
use super::super::{MAX_LINES, MILLISECOND_NS, SECOND_NS};
use super::{Delivery, Origin, Receiver};
use shmcast::hosting::fault;

/// With [`Follow::Channel`], a receiver follows a lower epoch of the channel only after the followed session has ended or was silent for
/// this time. With [`Follow::First`], this is the usual silence before a receiver follows another feed. Feeds send a heartbeat each second.
pub const DEFAULT_SILENCE_NS: u64 = 3 * SECOND_NS;

/// A receiver follows a new session only after this number of the session's packets.
const WITNESSES: u32 = 3;
/// If the followed session is still alive, a receiver changes to a new session only after the new session's packets have arrived over at
/// least this time, in nanoseconds.
const WITNESSED_NS: u64 = 10 * MILLISECOND_NS;
/// If the followed session is still alive, a receiver changes to a new session only if enough packets of the new session arrive within this
/// time, in nanoseconds.
const WITNESSES_WITHIN_NS: u64 = SECOND_NS;
/// A rival (a session that the receiver might follow later) is removed if it is silent for this time. The unit is nanoseconds. Feeds send a
/// heartbeat each second, and two heartbeats can be lost.
const FORGOTTEN_NS: u64 = 7 * SECOND_NS / 2;
/// The greatest number of rivals (sessions that the receiver might follow later) at a time.
const MAX_RIVALS: usize = 4;
/// The greatest number of bytes of packets that are stored for one rival (a session that the receiver might follow later).
const MAX_KEPT_BYTES: usize = 4 << 20;

/// The choice of the sessions that a receiver follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Sessions of the shmcast channel with this tag. The newest epoch that is alive is followed.
    Channel([u8; 4]),
    /// One session and no other.
    Only(Session),
    /// The first session on the line, and newer epochs of the same channel. Any other session is followed only after the followed session
    /// has ended, or has been silent for `silence_ns`.
    First {
        /// The time for which the followed session must have been silent, in nanoseconds.
        silence_ns: u64,
    },
}

/// The message at which a receiver starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// The receiver starts at the first sequence that arrives.
    FirstSeen,
    /// The receiver starts at this sequence of the first session, and requests messages that were sent before the receiver joined. 1 is the
    /// session's first sequence.
    From(u64),
    /// The receiver starts where an earlier receiver stopped.
    Resume {
        /// The session that the earlier receiver followed.
        session: Session,
        /// The first sequence that the earlier receiver did not deliver.
        next: u64,
    },
}

/// The decision about a packet of a session that the receiver does not follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Follow,
    /// If three packets of the session arrive over at least this many nanoseconds, the session is followed.
    Watch(u64),
    Stale,
    Foreign,
}

/// A session that the receiver might follow later.
#[derive(Debug)]
struct Rival {
    session: Session,
    packets: u32,
    since_ns: u64,
    heard_ns: u64,
    kept: Vec<(Origin, Vec<u8>)>,
    kept_bytes: usize,
}

/// The sessions that the receiver might follow later.
#[derive(Debug, Default)]
pub(super) struct Rivals(Vec<Rival>);

impl Rivals {
    // Notes a rival's packet. Once there are enough packets, returns all packets that were kept.
    fn note(
        &mut self,
        now_ns: u64,
        (origin, session, datagram): (Origin, Session, &[u8]),
        least_ns: u64,
    ) -> Option<Vec<(Origin, Vec<u8>)>> {
        self.0.retain(|rival| now_ns.saturating_sub(rival.heard_ns) < FORGOTTEN_NS);
        let at = self.0.iter().position(|rival| rival.session == session).unwrap_or_else(|| {
            if self.0.len() == MAX_RIVALS {
                // Drop the rival with the fewest packets, so that a forger who invents many sessions does not displace a real session.
                let least = (0..MAX_RIVALS).min_by_key(|&at| self.0[at].packets);
                self.0.swap_remove(least.unwrap_or(0));
            }
            let kept = Vec::new();
            self.0.push(Rival {
                session,
                packets: 0,
                since_ns: now_ns,
                heard_ns: now_ns,
                kept,
                kept_bytes: 0,
            });
            self.0.len() - 1
        });
        let rival = &mut self.0[at];
        if least_ns > 0 && now_ns.saturating_sub(rival.since_ns) > WITNESSES_WITHIN_NS {
            // A rival that sends only now and then is no reason to leave a session that is alive. But the rival's packets are kept, because
            // it might be the next session, which has been idle since its first messages.
            (rival.packets, rival.since_ns) = (0, now_ns);
            if fault!("idle_rivals_lose_what_came_first") {
                (rival.kept, rival.kept_bytes) = (Vec::new(), 0);
            }
        }
        rival.packets = rival.packets.saturating_add(1);
        rival.heard_ns = now_ns;
        let (is_over, is_due) =
            (rival.packets >= WITNESSES, now_ns.saturating_sub(rival.since_ns) >= least_ns);
        if is_over && is_due {
            return Some(self.0.swap_remove(at).kept);
        }
        if rival.kept_bytes + datagram.len() <= MAX_KEPT_BYTES && !fault!("rivals_lose_what_came_first") {
            rival.kept_bytes += datagram.len();
            rival.kept.push((origin, datagram.to_vec()));
        }
        None
    }
}

impl Receiver {
    // Decides about a packet of a session that the receiver does not follow. Returns whether the receiver now follows this session.
    pub(super) fn follow(
        &mut self,
        now_ns: u64,
        origin: Origin,
        (packet, datagram): (&Downstream<'_>, &[u8]),
        sink: &mut impl FnMut(Delivery<'_>),
    ) -> bool {
        let session = packet.session;
        // Only a line can introduce a session. An answer to a request concerns a session that we know.
        let verdict = match origin {
            Origin::Line(_) => self.judge(now_ns, session),
            Origin::Server(_) | Origin::Repair(_) => Verdict::Foreign,
        };
        if let (Verdict::Foreign, Origin::Line(_)) = (verdict, origin) {
            self.stranger = Some((session, now_ns));
        }
        match verdict {
            Verdict::Follow => {
                self.begin(now_ns, session, packet.sequence, sink);
                true
            }
            Verdict::Watch(least_ns) => {
                let Some(kept) = self.rivals.note(now_ns, (origin, session, datagram), least_ns) else {
                    self.counters.totals.packets_early += 1;
                    return false;
                };
                let first = kept.first().and_then(|(_, bytes)| self.parse(bytes).ok());
                self.begin(now_ns, session, first.map_or(packet.sequence, |(first, _)| first.sequence), sink);
                for (origin, bytes) in kept {
                    self.handle_datagram(now_ns, origin, &bytes, sink);
                }
                true
            }
            Verdict::Stale => {
                self.counters.totals.packets_stale += 1;
                false
            }
            Verdict::Foreign => {
                self.counters.totals.packets_foreign += 1;
                false
            }
        }
    }

    fn judge(&mut self, now_ns: u64, session: Session) -> Verdict {
        let (fits, silence_ns) = match self.config.follow {
            Follow::Channel(tag) => (session.tag() == tag && session.epoch().is_some(), DEFAULT_SILENCE_NS),
            Follow::Only(only) => (session == only, 0),
            Follow::First { silence_ns } => (true, silence_ns),
        };
        let Some(own) = self.session.filter(|_| fits) else {
            return if fits { Verdict::Follow } else { Verdict::Foreign };
        };
        // If a receiver resumes a session, the silence counts from the first packet that arrives.
        let heard_ns = *self.heard_ns.get_or_insert(now_ns);
        let is_quiet = self.end_announced || now_ns.saturating_sub(heard_ns) >= silence_ns;
        let are_ours = own.epoch().is_some() && session.epoch().is_some();
        let is_ours = are_ours && session.tag() == own.tag();
        if self.config.is_native && are_ours && !is_ours && !fault!("another_channel_follows_a_silent_one") {
            return Verdict::Foreign;
        }
        let is_newer = is_ours && session.epoch() > own.epoch();
        let is_followed = match self.config.follow {
            _ if fault!("only_newer_epochs_live") => is_newer,
            _ if fault!("newer_sessions_wait_for_silence") => is_quiet,
            Follow::Channel(_) if self.config.trusts => is_newer,
            _ => is_newer || is_quiet,
        };
        match (is_followed, is_ours) {
            (true, _) if self.config.trusts || fault!("one_packet_begins_a_session") => Verdict::Follow,
            (true, _) => Verdict::Watch(if is_quiet { 0 } else { WITNESSED_NS }),
            (false, true) => Verdict::Stale,
            (false, false) => Verdict::Foreign,
        }
    }

    fn begin(&mut self, now_ns: u64, session: Session, heard: u64, sink: &mut impl FnMut(Delivery<'_>)) {
        // Give up the missing messages of the old session, because they will not arrive any more. Its stored messages are still valid.
        self.give_up(sink);
        let previous = self.session.map(|session| (session, self.next));
        self.next = match (previous, self.config.join) {
            (None, Join::FirstSeen) => heard,
            (None, Join::From(sequence)) => sequence.max(1),
            _ => 1,
        };
        self.session = Some(session);
        self.gaps.begin(self.next);
        // The first packet of a session can be any distance ahead, because a receiver can join late.
        self.horizon = self.next;
        self.raise_horizon(now_ns, heard);
        (self.end, self.end_announced, self.jump, self.claim) = (None, false, None, None);
        (self.ahead, self.heard_ns, self.pulse) = (0, Some(now_ns), None);
        self.assembler.retain(0, 0);
        self.lines = [self.next; MAX_LINES];
        self.counters.totals.sessions += 1;
        sink(Delivery::NewSession { session, next: self.next, previous });
    }
}
