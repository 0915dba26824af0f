//! Decides which of several egresses of one stream sends.
//!
//! ```text
//! Listen  ── heard one that sends ──> Standby          ── nobody sends ──> Active
//! Standby ── the one that sends is silent for `takeover` + rank x 4 ms, or an order ──> Active
//! Listen  ── an order, and the claim of the one that sends, or none for 3 x `takeover` ──> Active
//! Active  ── hears a higher claim, and that egress's packets ──> Standby
//! ```
//! All egresses of a stream have the same messages under the same sequences. So two active egresses do no harm: they send the same
//! messages twice.
//!
//! An egress that takes over repeats the packets that might not have reached every receiver. Usually it begins 64 packets before the last
//! packet that it received on a line. If the other egress's claim states a sequence after all received packets, it begins at the claim's
//! sequence.
//!
//! An active egress stops only if it hears a higher claim and also packets of the egress that made the claim. The claim alone is not
//! enough, because anybody can forge one packet.
//!
//! A mirror is a host whose ring is published by a bridge. The egresses of a mirror yield to the egresses of the publisher's own host.

use std::net::IpAddr;

use super::session::Session;
use super::{MILLISECOND_NS, SECOND_NS};
use shmcast::hosting::fault;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

/// The number of packets by which one line can be ahead of another. Lines of one profile can differ by a batch of 32 packets, and lines of
/// different profiles by two batches.
const APART: usize = 64;
/// Each rank waits this much longer than the next lower rank before it takes over. The unit is nanoseconds.
const RANK_NS: u64 = 4 * MILLISECOND_NS;
/// After a silence of this length, in nanoseconds, an egress that sends no claims counts as dead. While it is alive, it sends a heartbeat
/// each second.
const SILENT_NS: u64 = 3 * SECOND_NS;
/// If we cannot receive an egress's packets, we yield to this egress after this many of its claims.
const CLAIMS: u32 = 3;

/// The role of an egress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The egress has just started, and listens for others.
    Listen,
    /// The egress is ready to take over.
    Standby,
    /// The egress sends.
    Active,
}

/// The announcement of an egress's role and progress. An egress sends its claims to the other egresses of its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The session that the egress sends or would send.
    pub session: Session,
    /// The number of the claim. The egress with the highest number sends.
    pub claim: u64,
    /// All messages before this sequence have been sent on all lines.
    pub next: u64,
    /// The egress's rank. The lowest rank takes over first.
    pub rank: u8,
    /// The egress's role.
    pub role: Role,
    /// Whether the egress's ring is a mirror: a bridge fills this ring with messages from another host.
    pub is_mirror: bool,
    /// 64 bits of the stream's identity.
    pub stream: u64,
    /// A random number that the egress chose at its start.
    pub sender: u64,
}

/// The configuration of an election.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ElectionConfig {
    /// The silence after which a standby of rank 0 takes over, in nanoseconds.
    pub takeover_ns: u64,
    /// Our rank.
    pub rank: u8,
    /// A random number that was chosen at the start.
    pub sender: u64,
}

/// The step that an egress must take next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The egress must send this session, beginning at this sequence. `None` means that no packet of the session has arrived. The egress
    /// then begins at the sequence from which it reads its ring.
    Take(Session, Option<u64>),
    /// The egress must stop when it has sent everything before this sequence of the session. Another egress sends the later messages.
    Yield(Session, u64),
}

/// The egress that sends, according to the claims and packets that arrived.
#[derive(Debug, Clone, Copy)]
struct Sending {
    claim: u64,
    rank: u8,
    sender: u64,
    from: IpAddr,
    session: Session,
    is_mirror: bool,
    /// The field `next` of the last two claims of the sending egress, the older one first.
    next: [u64; 2],
    claims: u32,
    heard_ns: u64,
    claimed_ns: u64,
}

/// The state of one egress among its peers.
#[derive(Debug, Clone)]
pub(crate) struct Election {
    config: ElectionConfig,
    role: Role,
    session: Session,
    stream: u64,
    is_mirror: bool,
    /// Our claim, and the highest claim of any egress.
    claim: u64,
    highest: u64,
    other: Option<Sending>,
    /// Whether another egress that listens or stands by takes precedence over this egress.
    better: bool,
    /// The time of the last packet of the session on a line, and the first sequence of each of the last [`APART`] packets.
    line_ns: Option<u64>,
    firsts: [u64; APART],
    packets: usize,
    seen: u64,
    started_ns: u64,
    turned_ns: u64,
    claim_due_ns: u64,
    /// The time until which an operator's order waits for the claim of the sending egress. Without that claim, this egress does not know
    /// what was sent on all lines.
    ordered_until_ns: Option<u64>,
    step: Option<Step>,
    takeovers: u64,
    yields: u64,
}

impl Election {
    /// Creates the state of an egress that begins to listen at `now_ns`.
    pub(crate) fn new(
        config: ElectionConfig,
        now_ns: u64,
        session: Session,
        stream: u64,
        is_mirror: bool,
    ) -> Election {
        Election {
            config,
            role: Role::Listen,
            session,
            stream,
            is_mirror,
            claim: 0,
            highest: 0,
            other: None,
            better: false,
            line_ns: None,
            firsts: [0; APART],
            packets: 0,
            seen: 0,
            started_ns: now_ns,
            turned_ns: now_ns,
            claim_due_ns: now_ns,
            ordered_until_ns: None,
            step: None,
            takeovers: 0,
            yields: 0,
        }
    }

    /// Notes the beginning of a turn of the sending loop. Returns whether the loop has paused for so long that another egress might have
    /// taken over. If so, the caller must read all waiting packets before it sends anything.
    pub(crate) fn note_turn(&mut self, now_ns: u64) -> bool {
        let stood_ns = now_ns.saturating_sub(self.turned_ns);
        self.turned_ns = now_ns;
        stood_ns >= self.config.takeover_ns / 2
    }

    /// Notes that our ring was replaced, or has another session.
    pub(crate) fn note_ring(&mut self, session: Session, stream: u64, is_mirror: bool) {
        if session != self.session {
            (self.packets, self.seen, self.line_ns) = (0, 0, None);
        }
        (self.session, self.stream, self.is_mirror) = (session, stream, is_mirror);
    }

    /// Takes a peer's claim. `hears` says whether we receive the peer's packets on a line.
    pub(crate) fn handle_claim(&mut self, now_ns: u64, from: IpAddr, claim: &Claim, hears: bool) {
        let is_ours = claim.session == self.session || claim.stream == self.stream;
        if claim.sender == self.config.sender || !is_ours {
            return;
        }
        // The limit prevents a forger from using up the numbers of claims.
        if claim.claim > self.highest.saturating_add(1 << 32) {
            return;
        }
        if claim.role != Role::Active {
            self.better |= (claim.is_mirror, claim.rank, claim.sender) < self.own();
            return;
        }
        let before = self.other.filter(|other| other.sender == claim.sender);
        let claims = before.map_or(0, |other| other.claims) + 1;
        let next = [before.map_or(claim.next, |other| other.next[1]), claim.next];
        let other = Sending {
            claim: claim.claim,
            rank: claim.rank,
            sender: claim.sender,
            from,
            session: claim.session,
            is_mirror: claim.is_mirror,
            next,
            claims,
            heard_ns: now_ns,
            claimed_ns: now_ns,
        };
        let is_better = self.other.is_none_or(|known| {
            known.sender == other.sender
                || now_ns.saturating_sub(known.heard_ns) >= self.config.takeover_ns
                || beats(&other, (known.claim, known.is_mirror, known.rank, known.sender))
        });
        if !is_better {
            return;
        }
        self.other = Some(other);
        match self.role {
            Role::Active if !hears && claims >= CLAIMS => self.yield_to(&other, claim.next),
            Role::Active => {}
            // The other egress is on a mirror. An egress on the publisher's host does not wait for a mirror, and takes over immediately.
            Role::Listen if other.is_mirror && !self.is_mirror => self.take(now_ns),
            Role::Listen | Role::Standby => self.stand_by(&other),
        }
    }

    /// Takes a packet that another egress sent on a line.
    pub(crate) fn handle_packet(
        &mut self,
        now_ns: u64,
        from: IpAddr,
        session: Session,
        (first, end): (u64, u64),
    ) {
        if session != self.session && self.other.is_none_or(|other| other.session != session) {
            return;
        }
        self.line_ns = Some(now_ns);
        if end > first {
            self.firsts[self.packets % APART] = first;
            self.packets += 1;
        }
        self.seen = self.seen.max(end);
        let of_other = self.other.filter(|other| other.from == from);
        if let Some(other) = &mut self.other
            && of_other.is_some()
        {
            other.heard_ns = now_ns;
        }
        match (self.role, of_other) {
            // A claim that is no longer repeated is ignored.
            (Role::Active, Some(other))
                if now_ns.saturating_sub(other.claimed_ns) < 2 * self.config.takeover_ns =>
            {
                self.yield_to(&other, first);
            }
            (Role::Listen, _) => self.role = Role::Standby,
            _ => {}
        }
    }

    fn own(&self) -> (bool, u8, u64) {
        (self.is_mirror, self.config.rank, self.config.sender)
    }

    fn yield_to(&mut self, other: &Sending, from: u64) {
        let (is_mirror, rank, sender) = self.own();
        if beats(other, (self.claim, is_mirror, rank, sender)) || fault!("claims_are_not_compared") {
            self.stand_by(other);
            self.yields += 1;
            self.step = Some(Step::Yield(other.session, from));
        }
    }

    fn stand_by(&mut self, other: &Sending) {
        self.highest = self.highest.max(other.claim);
        if other.session != self.session {
            self.note_ring(other.session, self.stream, self.is_mirror);
            self.step = Some(Step::Yield(other.session, 0));
        }
        self.role = Role::Standby;
    }

    /// Notes an operator's order to make this egress active. Does nothing if the egress is active already.
    ///
    /// If this egress knows the sequence up to which the active sender has sent, it becomes active immediately. Otherwise it waits for the
    /// active sender's claim. If no claim arrives within three times `takeover_ms`, it assumes that there is no active sender, and becomes
    /// active.
    pub(crate) fn order(&mut self, now_ns: u64) {
        if self.role != Role::Active && self.ordered_until_ns.is_none() {
            self.ordered_until_ns = Some(now_ns + 3 * self.config.takeover_ns);
        }
    }

    fn take(&mut self, now_ns: u64) {
        self.ordered_until_ns = None;
        if self.role == Role::Active {
            return;
        }
        let heard = self.other.map_or(0, |other| other.claim);
        self.claim = self.highest.max(heard).max(self.claim) + 1;
        self.highest = self.claim;
        self.role = Role::Active;
        self.takeovers += 1;
        self.claim_due_ns = now_ns;
        self.step = Some(Step::Take(self.session, self.resume_at()));
    }

    /// Returns the first sequence that might not have reached every receiver. Returns `None` if no egress has sent anything.
    fn resume_at(&self) -> Option<u64> {
        if fault!("takeover_from_the_live_end") {
            return Some(u64::MAX);
        }
        let claimed = self.other.filter(|other| other.session == self.session).map(|other| other.next[0]);
        let oldest = self.firsts[if self.packets < APART { 0 } else { self.packets % APART }];
        match (self.packets, claimed) {
            (0, claimed) => claimed.or((self.seen > 0).then_some(self.seen)),
            // The claim states a sequence at or after the end of all received packets. So this egress might have missed packets, and begins
            // at the claim's sequence.
            (_, Some(claimed)) if claimed >= self.seen => Some(claimed),
            // An egress that has just started might have received only the end of a batch. Another line might lack the beginning of this
            // batch. So the egress begins at the claim's sequence if this sequence is lower than that of the first received packet.
            (packets, Some(claimed)) if packets < APART => Some(claimed.min(oldest)),
            (_, _) => Some(oldest),
        }
    }

    /// If a takeover is due, takes over. Returns the step that the egress must take.
    pub(crate) fn poll(&mut self, now_ns: u64) -> Option<Step> {
        let is_known = self.other.is_some() || self.packets >= APART;
        let is_ordered = self.ordered_until_ns.is_some();
        if self.role != Role::Active && (now_ns >= self.take_due_ns() || is_ordered && is_known) {
            match self.role {
                Role::Listen if self.better && !is_ordered => {
                    // Another egress has also just started and takes precedence. This egress gives it some time to take over.
                    (self.role, self.started_ns, self.better) = (Role::Standby, now_ns, false);
                }
                _ => self.take(now_ns),
            }
        }
        self.step.take()
    }

    fn take_due_ns(&self) -> u64 {
        let takeover_ns = self.config.takeover_ns;
        let patience_ns = takeover_ns + u64::from(self.config.rank) * RANK_NS;
        let due_ns = match (self.role, self.other, self.line_ns) {
            (Role::Active, ..) => u64::MAX,
            (Role::Listen, ..) => self.started_ns + 3 * takeover_ns,
            (_, Some(other), line_ns) => {
                // The packets on the line also show that the egress that sends claims is alive.
                let heard_ns = other.heard_ns.max(line_ns.unwrap_or(0));
                heard_ns + patience_ns
            }
            (_, None, Some(line_ns)) => line_ns + SILENT_NS + patience_ns,
            (_, None, None) => self.started_ns + 3 * takeover_ns + patience_ns,
        };
        due_ns.min(self.ordered_until_ns.unwrap_or(u64::MAX))
    }

    /// Returns the claim to send to every peer, if it is due. `next` is the sequence before which everything has been sent on all lines.
    pub(crate) fn poll_claim(&mut self, now_ns: u64, next: u64) -> Option<Claim> {
        if now_ns < self.claim_due_ns {
            return None;
        }
        self.claim_due_ns = now_ns + self.config.takeover_ns / 3;
        Some(Claim {
            session: self.session,
            claim: self.claim,
            next,
            rank: self.config.rank,
            role: self.role,
            is_mirror: self.is_mirror,
            stream: self.stream,
            sender: self.config.sender,
        })
    }

    /// Returns the time at which [`poll`](Self::poll) or [`poll_claim`](Self::poll_claim) must be called next.
    pub(crate) fn next_deadline(&self) -> u64 {
        self.take_due_ns().min(self.claim_due_ns)
    }

    /// The session that we send, or would send.
    pub(crate) fn session(&self) -> Session {
        self.session
    }

    /// The role.
    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// Our rank.
    pub(crate) fn rank(&self) -> u8 {
        self.config.rank
    }

    /// Returns the claim of the active egress: our own claim if we are active, or else the highest claim that arrived.
    pub(crate) fn claim(&self) -> u64 {
        if self.role == Role::Active { self.claim } else { self.highest }
    }

    /// Returns two counts: how often this egress has begun to send, and how often this egress has yielded to another egress.
    pub(crate) fn changes(&self) -> (u64, u64) {
        (self.takeovers, self.yields)
    }
}

/// Whether `other` takes precedence over an egress with this claim, mirror flag, rank and random number. The mirror flag says whether the
/// messages of the egress's ring come from another host.
fn beats(other: &Sending, (claim, is_mirror, rank, sender): (u64, bool, u8, u64)) -> bool {
    other.claim > claim
        || (other.claim == claim && (other.is_mirror, other.rank, other.sender) < (is_mirror, rank, sender))
}
