//! The steps of an egress that shares a stream with others: it receives their packets, takes over, yields, and stands by.

use shmcast::{Event, LocateError, RecvError};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::failover::stream_of;
use super::live::{CatchUp, Live};
use crate::proto::claim::{Role, Step};
use crate::proto::session::Session;
use crate::proto::{MICROSECOND_NS, MILLISECOND_NS};
use crate::spec::WaitMode;

/// The time between two reads of the peers' sockets while this egress sends.
const HEAR_EVERY_NS: u64 = MILLISECOND_NS / 2;
/// Longest pause of a standby.
const REST_NS: u64 = 500 * MICROSECOND_NS;
/// The limit for the events of the ring that a standby skips in one turn.
const SKIP: usize = 4_096;

impl Live {
    /// Receives the claims (announcements of a role) and the packets of the peers. Then takes over from a peer or yields to a peer, if that
    /// is due. Returns whether this egress sends.
    pub(super) fn elect(&mut self) -> Result<bool, String> {
        let now_ns = self.outlet.clock.now_ns();
        let Some(failover) = &mut self.failover else { return Ok(true) };
        // The channel of a mirror can get another session while this egress reads the channel.
        let session = self.outlet.sender.session();
        if let Some(subscriber) = self.subscriber.as_ref().filter(|_| session != failover.election.session())
        {
            let (stream, is_mirror) = stream_of(subscriber);
            failover.election.note_ring(session, stream, is_mirror);
        }
        let has_stood = failover.election.note_turn(now_ns);
        let is_active = failover.election.role() == Role::Active;
        if has_stood || !is_active || now_ns.saturating_sub(failover.heard_ns) >= HEAR_EVERY_NS {
            failover.heard_ns = now_ns;
            failover.hear(now_ns, has_stood);
        }
        if self.outlet.shared.takes_over.swap(false, Ordering::Relaxed) {
            failover.election.order(now_ns);
        }
        let step = failover.election.poll(now_ns);
        match step {
            Some(Step::Take(session, from)) => self.take_over(now_ns, session, from)?,
            Some(Step::Yield(session, until)) => self.yield_to(session, until)?,
            None => {}
        }
        let Some(failover) = &mut self.failover else { return Ok(true) };
        failover.send_claim(now_ns, self.outlet.sender.next());
        let election = &failover.election;
        let counters = &mut self.outlet.counters;
        counters.role = failover.role();
        counters.claim = election.claim();
        (counters.takeovers, counters.yields) = election.changes();
        if let Some(native) = &mut self.outlet.native {
            native.note_place(election);
        }
        Ok(election.role() == Role::Active)
    }

    /// Begins to send at `from`. `None` means that no peer has sent anything; the egress then begins where it began to read the ring.
    #[cold]
    fn take_over(&mut self, now_ns: u64, session: Session, from: Option<u64>) -> Result<(), String> {
        let (Some(subscriber), Some(failover)) = (&mut self.subscriber, &self.failover) else {
            return Ok(());
        };
        let from = from.unwrap_or(failover.start_at).min(subscriber.next_sequence());
        // Do not seek if the reader is already at `from`. A seek skips the records before the message, for example the beginning of a
        // session.
        let sought = if from == subscriber.next_sequence() { Ok(()) } else { subscriber.seek(from) };
        match sought {
            Ok(()) => {}
            // The ring no longer has all of these messages.
            Err(LocateError::TooOld { oldest, .. }) => {
                subscriber.seek(oldest).map_err(|e| e.to_string())?;
                self.outlet.counters.messages_missed += oldest.saturating_sub(from);
            }
            Err(e) => return Err(format!("channel {:?}: {e}", self.spec.channel)),
        }
        let next = subscriber.next_sequence();
        self.outlet.note_clock(subscriber.clock());
        self.outlet.go_on(session, next);
        self.catch_up = CatchUp::from(now_ns);
        Ok(())
    }

    /// Sends the messages before `until`, and leaves all later ones to the peer.
    #[cold]
    fn yield_to(&mut self, session: Session, until: u64) -> Result<(), String> {
        while self.outlet.sender.next() < until && self.subscriber.is_some() {
            if !self.drain_ring()? {
                break;
            }
        }
        if session != self.outlet.sender.session() {
            self.outlet.go_on(session, self.outlet.sender.next());
        }
        Ok(())
    }

    /// Follows the ring without sending messages. Returns false if there is nothing more to do.
    pub(super) fn stand_by(&mut self) -> Result<bool, String> {
        let now_ns = self.outlet.clock.now_ns();
        self.show_at(now_ns);
        if self.leaving.is_some() {
            return Ok(false);
        }
        let Some(subscriber) = &mut self.subscriber else {
            if !self.attach_again()? {
                self.idle.wait(now_ns, Duration::from_nanos(REST_NS));
            }
            return Ok(true);
        };
        let Some(failover) = &mut self.failover else { return Ok(true) };
        // An egress that still listens might become the active one. It must then send the messages that are waiting in the ring, so it
        // skips no messages.
        let events = if failover.election.role() == Role::Listen { 0 } else { SKIP };
        let mut result = Ok(());
        for _ in 0..events {
            match subscriber.try_recv() {
                Ok(Some(Event::Restarted)) => result = Err(RecvError::Superseded),
                Ok(Some(event @ Event::Message(_))) => {
                    self.outlet.end.note(&event);
                    continue;
                }
                Ok(Some(event @ (Event::Lapped(_) | Event::Gap { .. }))) => {
                    self.outlet.note_hole(&event);
                    continue;
                }
                Ok(Some(event)) => {
                    self.outlet.take(event);
                    continue;
                }
                Ok(None) => {}
                Err(e) => result = Err(e),
            }
            break;
        }
        // A standby answers repairs from its own ring.
        self.outlet.shared.next.store(subscriber.next_sequence(), Ordering::Release);
        self.outlet.shared.note_sent(subscriber.next_sequence());
        if let Err(e) = result {
            return self.lose(e);
        }
        let has_ended = self.subscriber.as_ref().is_some_and(|ring| self.outlet.has_ended_since(ring));
        if has_ended && self.ends_with_channel {
            return Ok(false);
        }
        let Some(failover) = &self.failover else { return Ok(true) };
        let left_ns = failover.next_deadline(now_ns).saturating_sub(now_ns).min(REST_NS);
        let left = Duration::from_nanos(left_ns);
        match self.spec.wait {
            WaitMode::Block | WaitMode::Auto => failover.sleep(left),
            WaitMode::Spin | WaitMode::Yield => self.idle.wait(now_ns, left),
        }
        Ok(true)
    }
}
