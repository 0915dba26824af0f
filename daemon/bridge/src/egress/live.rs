//! The sending loop: reads the ring, wakes for heartbeats, and attaches again to a channel that was replaced.

use shmcast::hosting::fault;
use shmcast::{EndWatch, Event, RecvError, Start, Subscriber, SubscriberBuilder};
use std::time::Duration;

use super::failover::Failover;
use super::opening::{check_sizes, session_of};
use super::outlet::Outlet;
use super::{Attached, attach};
use crate::gate::AttachWait;
use crate::origins::Origins;
use crate::proto::claim::Role;
use crate::proto::limit::{Rate, TokenBucket};
use crate::proto::term::Terms;
use crate::spec::BridgeSpec;
use crate::status::Phase;
use crate::thread::{Idle, SHOW_EVERY_NS};
use crate::waiting::Choice;

/// The limit for the events that one turn of the loop takes from the ring.
const EVENTS_PER_TURN: usize = 1_024;
/// A sleeping thread wakes at least once in this time, to check the stop flag.
pub(super) const LOOK_UP: Duration = Duration::from_millis(20);
/// If no daemon can wake an idle thread, the thread checks at this interval, in nanoseconds, whether the channel was removed. Polls of an
/// empty ring do not show a removal.
const LOOK_EVERY_NS: u64 = 5_000_000;
/// After a silence of this length, a thread sleeps until the daemon wakes it. Before that, the thread chooses by itself how long it sleeps,
/// because only the thread knows when the next message is expected.
const PARK_AFTER_NS: u64 = 20_000_000;
/// Pause between two attempts to attach to a channel that went away.
const RETRY_NS: u64 = 20_000_000;

/// The rate limit while the loop catches up with a ring, in bytes a second: 2 Gbit/s. Receivers and repairs can keep up with this rate.
const CATCH_UP: Rate = Rate { per_second: 250_000_000, burst: 1 << 20 };
/// The number of events that one turn of the loop takes from the ring while the loop catches up.
const EVENTS_PER_STEP: usize = 64;
/// While the loop catches up, it sleeps for this time whenever the limit [`CATCH_UP`] does not permit a packet yet.
const STEP: Duration = Duration::from_micros(100);
/// The longest time for which the rate is limited, in nanoseconds. If the rate stayed limited, the loop would never catch up with a feed
/// that is faster than the limit.
const CATCH_UP_NS: u64 = 10_000_000_000;

/// Limits the rate of the messages that wait in the ring when the bridge attaches. Without the limit, all these messages would be sent in
/// one burst.
#[derive(Debug)]
pub(super) struct CatchUp {
    bucket: TokenBucket,
    since_ns: u64,
}

impl CatchUp {
    pub(super) fn from(now_ns: u64) -> Option<CatchUp> {
        Some(CatchUp { bucket: TokenBucket::default(), since_ns: now_ns })
    }
}

/// The progress of an egress that was told to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaving {
    /// The egress was told to leave. It still sends the messages that were published before the order.
    Sends { until: u64 },
    /// The egress has sent all messages that were published before the order. Since the time `since_ns`, it only serves repairs.
    Serves { since_ns: u64 },
}

/// The state of the sending loop.
pub(super) struct Live {
    /// `None` while the channel is gone.
    pub(super) subscriber: Option<Subscriber>,
    /// Whether the daemon wakes the thread.
    pub(super) parks: bool,
    pub(super) channel: SubscriberBuilder,
    pub(super) origins: Origins,
    pub(super) spec: BridgeSpec,
    pub(super) ends_with_channel: bool,
    /// `None` until the egress was told to leave.
    pub(super) leaving: Option<Leaving>,
    /// The time for which an egress still serves repairs after it was told to leave, in nanoseconds.
    pub(super) linger_ns: u64,
    pub(super) idle: Idle,
    pub(super) retry_ns: u64,
    pub(super) attach_wait: AttachWait,
    pub(super) looked_ns: u64,
    pub(super) shown_ns: u64,
    /// The limit of the rate. It is `Some` until the loop has reached the ring's end once, or until [`CATCH_UP_NS`] have passed.
    pub(super) catch_up: Option<CatchUp>,
    /// The election among the egresses of the stream; `None` if there are no other egresses.
    pub(super) failover: Option<Failover>,
    pub(super) outlet: Outlet,
}

impl Live {
    pub(super) fn new(
        spec: &BridgeSpec,
        channel: SubscriberBuilder,
        Attached { subscriber, parks }: Attached,
        origins: Origins,
        outlet: Outlet,
        choice: Choice,
    ) -> Self {
        Self {
            subscriber: Some(subscriber),
            parks,
            channel,
            origins,
            spec: spec.clone(),
            ends_with_channel: false,
            leaving: None,
            linger_ns: outlet.config.linger_ns,
            idle: Idle::new(choice),
            retry_ns: 0,
            attach_wait: AttachWait::default(),
            looked_ns: 0,
            shown_ns: 0,
            catch_up: CatchUp::from(outlet.clock.now_ns()),
            failover: None,
            outlet,
        }
    }

    pub(super) fn run(mut self) {
        while self.turn() {}
    }

    /// Sends the messages that wait in the ring. If there are none, waits. Returns false once the egress has ended.
    pub(super) fn turn(&mut self) -> bool {
        let result = match self.outlet.shared.life.is_stopping() {
            true => Ok(false),
            false => self.carry_or_rest(),
        };
        match result {
            Ok(true) => return true,
            Ok(false) => self.outlet.shared.life.enter(Phase::Ended),
            Err(why) => self.outlet.shared.life.fail(why),
        }
        self.outlet.show();
        // Stop the repair server, too. It serves the session of this egress, which has ended or is continued by another bridge.
        self.outlet.shared.life.stop();
        false
    }

    fn carry_or_rest(&mut self) -> Result<bool, String> {
        self.hear_order();
        if let Some(Leaving::Serves { since_ns }) = self.leaving {
            return Ok(self.serve_the_rest(since_ns));
        }
        if self.failover.is_some() && !self.elect()? {
            return self.stand_by();
        }
        let found = self.drain_ring()?;
        let now_ns = self.outlet.clock.now_ns();
        self.show_at(now_ns);
        self.look_at_rest(found);
        if found {
            self.idle.reset(now_ns);
            return Ok(true);
        }
        if let Some(pacer) = &mut self.outlet.pacer {
            pacer.note_empty(now_ns);
        }
        if let Some(subscriber) = &self.subscriber {
            self.outlet.end_with(subscriber, now_ns);
        }
        self.outlet.send_idle(now_ns);
        if self.outlet.sender.is_finished(now_ns) {
            if let Some(subscriber) = &self.subscriber
                && !self.outlet.has_ended_since(subscriber)
            {
                self.outlet.wait_for_publisher(subscriber);
            } else if self.ends_with_channel {
                return Ok(false);
            }
        }
        self.park(now_ns)?;
        Ok(true)
    }

    pub(super) fn show_at(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.shown_ns) >= SHOW_EVERY_NS {
            self.shown_ns = now_ns;
            self.renew_lines();
            self.outlet.show();
            self.outlet.look_up(self.subscriber.as_ref().map(Subscriber::clock));
            // Only an active egress sends pulses. If two standby egresses sent pulses, each would take the other for the active one, and
            // neither would ever take over.
            let serves = matches!(self.leaving, Some(Leaving::Serves { .. }));
            let sends = |failover: &Failover| failover.election.role() == Role::Active && !serves;
            if self.failover.as_ref().is_none_or(sends) || fault!("standbys_send_pulses") {
                self.outlet.send_pulse(now_ns);
            }
        }
    }

    /// Takes the messages that are waiting in the ring, and sends them. Returns whether there were any.
    pub(super) fn drain_ring(&mut self) -> Result<bool, String> {
        let Some(subscriber) = &mut self.subscriber else { return self.attach_again() };
        let outlet = &mut self.outlet;
        let mut result = Ok(());
        let mut events = 0;
        let most = if self.catch_up.is_some() { EVENTS_PER_STEP } else { EVENTS_PER_TURN };
        let sent_before = outlet.sender.counters().bytes;
        while events < most {
            match subscriber.try_recv() {
                Ok(Some(Event::Restarted)) => {
                    result = Err(RecvError::Superseded);
                    break;
                }
                Ok(Some(event)) => {
                    let is_message = matches!(event, Event::Message(_));
                    outlet.take(event);
                    // After an event that is no message, the next message might come from another ring, which can have another clock.
                    if !is_message {
                        outlet.note_clock(subscriber.clock());
                    }
                }
                Ok(None) => break,
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
            events += 1;
        }
        outlet.flush();
        if let Some(catch_up) = &mut self.catch_up {
            let (now_ns, sent) = (outlet.clock.now_ns(), outlet.sender.counters().bytes);
            catch_up.bucket.charge(now_ns, CATCH_UP, sent.saturating_sub(sent_before));
            let is_over = events < most || now_ns.saturating_sub(catch_up.since_ns) >= CATCH_UP_NS;
            if is_over {
                self.catch_up = None;
            } else if !catch_up.bucket.is_open(now_ns, CATCH_UP) {
                std::thread::sleep(STEP);
            }
        }
        match result {
            Ok(()) => Ok(events > 0),
            Err(e) => self.lose(e),
        }
    }

    pub(super) fn lose(&mut self, error: RecvError) -> Result<bool, String> {
        match error {
            // The channel was removed, or replaced.
            RecvError::Superseded => {
                self.subscriber = None;
                Ok(true)
            }
            e => Err(format!("channel {:?}: {e}", self.spec.channel)),
        }
    }

    #[cold]
    pub(super) fn attach_again(&mut self) -> Result<bool, String> {
        let now_ns = self.outlet.clock.now_ns();
        if now_ns < self.retry_ns {
            return Ok(false);
        }
        self.retry_ns = now_ns + RETRY_NS;
        // Start with the oldest message: messages that were published before this egress attached also belong to the new session.
        let channel = self.spec.through_gate(&self.channel).start(Start::Oldest);
        let Attached { subscriber, parks } = match attach(&channel, self.spec.wait) {
            Ok(attached) => attached,
            Err(e) => {
                return self
                    .attach_wait
                    .bear(&self.spec, &self.outlet.shared.life, now_ns, &e)
                    .map(|()| false);
            }
        };
        self.attach_wait.end(&self.outlet.shared.life);
        check_sizes(&self.spec, &subscriber).map_err(|e| e.to_string())?;
        // A feed from another host keeps its session. The receiving bridge writes the session to the channel before the first message, so
        // wait until the channel has the session.
        let is_passed_on =
            self.spec.session.is_none() && !self.origins.contains(self.outlet.sender.session());
        let is_empty = subscriber.next_sequence() == 1 && subscriber.lag() == 0;
        if is_passed_on && is_empty && subscriber.remote_session().is_none() {
            return Ok(false);
        }
        // The sequences of the new ring begin again, so the new session needs an epoch above `own`. The clock has another epoch only every
        // half second, so its epoch might not be above `own`.
        let own = self.outlet.sender.session().epoch();
        let terms = Terms { own, told: self.outlet.shared.told_term(), ..Terms::default() };
        // Receivers follow the previous session, and its term `own` is known. So the bridge need not listen for the terms of other senders.
        let session = session_of(&self.spec, &subscriber, &self.origins, terms, |_| Ok(None));
        let session = session.map_err(|e| e.to_string())?;
        self.outlet.begin_ring(&subscriber, session);
        self.outlet.end = EndWatch::default();
        self.outlet.note_ring(&subscriber);
        if let Some(failover) = &mut self.failover {
            failover.note_ring(session, &subscriber);
        }
        (self.subscriber, self.parks) = (Some(subscriber), parks);
        self.catch_up = CatchUp::from(now_ns);
        Ok(true)
    }

    /// Waits until the ring has a message or the next heartbeat is due.
    fn park(&mut self, now_ns: u64) -> Result<(), String> {
        let due_ns = self.outlet.sender.next_deadline(now_ns).unwrap_or(u64::MAX);
        let due_ns =
            due_ns.min(self.failover.as_ref().map_or(u64::MAX, |failover| failover.next_deadline(now_ns)));
        let limit = Duration::from_nanos(due_ns.saturating_sub(now_ns)).min(LOOK_UP);
        let parks = self.parks && self.idle.silence_ns(now_ns) >= PARK_AFTER_NS;
        let looks = parks || now_ns.saturating_sub(self.looked_ns) >= LOOK_EVERY_NS;
        let Some(subscriber) = self.subscriber.as_mut().filter(|_| looks) else {
            self.idle.wait(now_ns, limit);
            return Ok(());
        };
        self.looked_ns = now_ns;
        let deadline = self.outlet.clock.instant(now_ns) + if parks { limit } else { Duration::ZERO };
        match subscriber.recv_deadline(deadline) {
            Ok(Some(Event::Restarted)) => drop(self.lose(RecvError::Superseded)?),
            Ok(Some(event)) => {
                self.outlet.take(event);
                self.outlet.note_clock(subscriber.clock());
            }
            Ok(None) => {}
            Err(e) => drop(self.lose(e)?),
        }
        Ok(())
    }
}
