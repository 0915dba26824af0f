//! The thread that reads the ring and writes the log. It cuts blocks, and executes the decisions of [`Writer`].

mod cutter;
mod gate;
mod identity;
pub(crate) mod mending;
mod ring;
mod showing;
#[cfg(test)]
mod tests;

use shmcast::{RecvError, Start, Subscriber, SubscriberBuilder};
use shmcast_bridge::KeysSeen;
use shmcast_bridge::egress::{Attached, attach};
use shmcast_bridge::gate::AttachWait;
use shmcast_bridge::origins::Origins;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::{MILLISECOND_NS, SECOND_NS};
use shmcast_bridge::spec::{BridgeSpec, WaitMode};
use shmcast_bridge::status::Phase;
use shmcast_bridge::thread::{Clock, Idle, SHOW_EVERY_NS, wall_ns};
use shmcast_bridge::waiting::Choice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zerocopy::FromZeros;

use crate::EngineError;
use crate::messages::{Order, Queues, Reply};
use crate::options::SenderOptions;
use crate::proto::block::{Carried, UNKNOWN_ERROR};
use crate::proto::writer::{LOOK_NS, State, Writer, WriterConfig};
use crate::state::SendState;
use crate::status::SendCounters;
use cutter::{Cutter, End, RingEvent};
pub(crate) use identity::random;
use identity::{clock_error, identity_of};

/// The limit for the events that one turn of the thread's loop takes from the ring.
const EVENTS_PER_TURN: usize = 1_024;
/// A sleeping thread wakes at least this often to check the stop flag.
const LOOK_UP: Duration = Duration::from_millis(20);
/// While answers are expected, a sleeping thread wakes at least this often.
const LOOK_FOR_ANSWERS: Duration = Duration::from_millis(2);
/// The interval at which an idle thread checks whether the channel was removed, if no daemon can wake the thread.
const LOOK_EVERY_NS: u64 = 5 * MILLISECOND_NS;
/// Pause between two attempts to attach to a channel that has disappeared.
const RETRY_NS: u64 = 20 * MILLISECOND_NS;
/// The interval at which the thread reads the error of the clock.
const CLOCK_EVERY_NS: u64 = SECOND_NS;
/// If the active writer is silent for this time, a waiting writer takes over. This is the length of four pulse intervals.
pub(crate) const SILENCE_NS: u64 = 4 * LOOK_NS;
/// When the thread must end, it spends at most this time on storing the rest of the ring.
const END_NS: u64 = 5 * SECOND_NS;

/// The state of the thread that reads the ring.
pub(crate) struct Outlet {
    spec: BridgeSpec,
    channel: SubscriberBuilder,
    /// `None` while the channel is gone.
    subscriber: Option<Subscriber>,
    /// Whether the channel has left this ring, and all messages of the ring were read. When all these messages are in the log, the thread
    /// attaches again. If a daemon owns the channel, the subscriber moves to the next ring by itself. The thread then drops the
    /// subscriber, because it can no longer read this ring.
    is_ring_over: bool,
    parks: bool,
    is_new: bool,
    ends_with_channel: bool,
    origins: Origins,
    writer: Writer,
    id: u64,
    cutter: Cutter,
    /// The ring's next session and its first sequence. They are stored here until all messages of the current session are in the log.
    next_session: Option<(Session, u64)>,
    end: End,
    queues: Queues,
    clock: Clock,
    idle: Idle,
    shared: Arc<SendState>,
    counters: SendCounters,
    clock_error: u16,
    keys: KeysSeen,
    retry_ns: u64,
    attach_wait: AttachWait,
    looked_ns: u64,
    shown_ns: u64,
    pulse_ns: u64,
    error_ns: u64,
    /// Whether the next pulse of this writer also checks how many servers keep the log. The flag is set whenever the clocks are read.
    looks: bool,
    end_ns: Option<u64>,
}

/// Chooses how the thread of an end waits. With [`WaitMode::Auto`], the thread always blocks: a server needs longer for an answer than
/// the thread needs to wake up.
pub(crate) fn choice_of(wait: WaitMode) -> Choice {
    Choice::or_block(wait, "the way through servers takes longer than a sleep")
}

impl Outlet {
    pub(crate) fn open(
        spec: &BridgeSpec,
        channel: SubscriberBuilder,
        options: SenderOptions,
        queues: Queues,
        clock: Clock,
        shared: Arc<SendState>,
    ) -> Result<Outlet, EngineError> {
        let choice = choice_of(spec.wait);
        let latest = spec.through_gate(&channel).start(Start::Latest);
        let Attached { subscriber, parks } = attach(&latest, choice.mode)?;
        let Carried { stream, session } = identity_of(spec, &subscriber)?;
        let id = random()?;
        let nats = spec.nats.clone().unwrap_or_default();
        let config = WriterConfig {
            stream,
            session,
            writer: id,
            in_flight: nats.in_flight,
            ack_ns: nats.ack_ms * MILLISECOND_NS,
            silence_ns: SILENCE_NS,
        };
        let mut outlet = Outlet {
            spec: spec.clone(),
            channel,
            subscriber: Some(subscriber),
            is_ring_over: false,
            parks,
            is_new: options.is_channel_new,
            ends_with_channel: options.ends_with_channel,
            origins: options.origins,
            writer: Writer::new(config),
            id,
            cutter: Cutter::new(nats.block_bytes),
            next_session: None,
            end: End::None,
            queues,
            clock,
            idle: Idle::new(choice),
            shared,
            counters: SendCounters::new_zeroed(),
            clock_error: UNKNOWN_ERROR,
            keys: KeysSeen::default(),
            retry_ns: 0,
            attach_wait: AttachWait::default(),
            looked_ns: 0,
            shown_ns: 0,
            pulse_ns: 0,
            error_ns: 0,
            looks: false,
            end_ns: None,
        };
        // No block is sent before its key is known.
        outlet.look_at_keys();
        Ok(outlet)
    }

    /// The random number of this thread's writer.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn run(mut self) {
        loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => match self.unsent() {
                    None => break self.shared.life.enter(Phase::Ended),
                    Some(why) => break self.shared.life.fail(why),
                },
                Err(why) => break self.shared.life.fail(why),
            }
        }
        self.show(self.clock.now_ns());
        self.shared.is_over.store(true, Ordering::Relaxed);
    }

    /// Describes the messages that were not stored when the thread ended. Returns `None` in three cases: all messages are stored, the
    /// thread did not end by `leave`, or another bridge writes.
    fn unsent(&mut self) -> Option<String> {
        if !self.shared.leave.load(Ordering::Relaxed) || matches!(self.writer.state(), State::Fenced(_)) {
            return None;
        }
        let (stored, published) = (self.writer.stored(), self.published());
        let known = self.shared.link.why().or_else(|| self.shared.shut_out());
        let why = known.unwrap_or_else(|| "the servers did not answer in time".to_owned());
        match stored {
            0 if published > 1 => Some(format!("it is not known what the stream has: {why}")),
            _ if published > stored => Some(format!(
                "{} messages are NOT STORED: {why}. Start the bridge again: it sends them as far as ring or journal have them",
                published - stored
            )),
            _ => None,
        }
    }

    fn turn(&mut self) -> Result<bool, String> {
        if self.shared.life.is_stopping() {
            return Ok(false);
        }
        let now_ns = self.clock.now_ns();
        self.run_timers(now_ns);
        while let Ok(reply) = self.queues.1.try_recv() {
            self.take_reply(reply)?;
        }
        self.poll_writer(now_ns)?;
        let found = self.drain_ring()?;
        if self.is_over(now_ns) {
            return Ok(false);
        }
        if found {
            self.idle.reset(now_ns);
        } else {
            self.park()?;
        }
        Ok(true)
    }

    /// Takes the keys if they have changed.
    fn look_at_keys(&mut self) {
        if let Some(ring) = self.keys.changed(&self.shared.keys) {
            self.writer.set_key(ring.as_ref().and_then(|ring| ring.sealing(wall_ns())));
        }
    }

    /// Performs timed work that is due.
    fn run_timers(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.shown_ns) >= SHOW_EVERY_NS {
            self.shown_ns = now_ns;
            self.show(now_ns);
            self.cutter.look_at_clocks(self.subscriber.as_ref().map(Subscriber::clock));
            self.look_at_keys();
        }
        if now_ns >= self.error_ns {
            self.error_ns = now_ns + CLOCK_EVERY_NS;
            self.clock_error = clock_error();
            self.looks = true;
        }
        if self.writer.state() == State::Run && now_ns >= self.pulse_ns {
            self.pulse_ns = now_ns + LOOK_NS;
            let looks = std::mem::take(&mut self.looks);
            self.order(Order::Pulse(self.id, looks));
        }
        if self.shared.takes_over.swap(false, Ordering::Relaxed) {
            self.writer.take_over(now_ns);
        }
    }

    fn order(&self, order: Order) {
        // This cannot fail: the thread that takes the orders lives as long as this one.
        let _ = self.queues.0.send(order);
    }

    /// The sequence after the last published message; 0 while the channel is absent. The messages of all its rings count.
    fn published(&mut self) -> u64 {
        let read = if self.is_ring_over { self.cutter.due() } else { 0 };
        self.subscriber.as_mut().map_or(read, Subscriber::published_end)
    }

    fn take_reply(&mut self, reply: Reply) -> Result<(), String> {
        let now_ns = self.clock.now_ns();
        match reply {
            Reply::Ack(round, at_ns, answer) => self.writer.handle_ack(at_ns, round, answer),
            Reply::Last(_, Some(last)) if self.is_left_behind(&last) => self.leave_ring(),
            Reply::Last(round, Some(last)) => {
                let published = self.published_for(&last);
                self.writer.handle_last(now_ns, round, last, published).map_err(|e| e.to_string())?;
                let again = self.writer.take_again();
                again.into_iter().for_each(|append| self.order(Order::Append(append)));
            }
            Reply::Last(round, None) => self.writer.handle_no_last(now_ns, round),
            Reply::Pulse(writer) => self.writer.handle_pulse(now_ns, writer),
        }
        Ok(())
    }

    /// If [`Writer::poll`] asks for the log's end, requests it. Then continues to read the ring where the writer resumes.
    fn poll_writer(&mut self, now_ns: u64) -> Result<(), String> {
        if let Some(round) = self.writer.poll(now_ns) {
            self.order(Order::Last(round, self.writer.stream()));
        }
        if self.writer.state() != State::Run && !self.is_ring_over {
            // The writer will resume at the end of the log. So waiting blocks are dropped, and their messages are read from the ring again.
            self.cutter.clear();
        }
        self.look_at_gate(now_ns);
        if (self.subscriber.is_some() || self.is_ring_over)
            && let Some(resume) = self.writer.take_resume()
        {
            self.go_to(resume).map_err(|e| e.to_string())?;
            self.note_session();
        }
        if self.is_ring_over && self.is_stored() {
            self.leave_ring();
        }
        match self.subscriber.is_none() && !self.is_ring_over {
            true => self.attach_again(now_ns),
            false => Ok(()),
        }
    }

    /// Whether the log has stored all messages that this thread has read from the ring.
    fn is_stored(&self) -> bool {
        self.writer.state() == State::Run && self.writer.in_flight() == 0 && !self.cutter.has_any()
    }

    /// Packs the ring's new messages into blocks, and appends them. Returns whether the ring had any event.
    fn drain_ring(&mut self) -> Result<bool, String> {
        let mut found = 0;
        while found < EVENTS_PER_TURN {
            self.flush();
            let is_waiting = self.is_ring_over || self.next_session.is_some();
            if self.cutter.is_blocked() || !self.writer.has_room() || is_waiting {
                break;
            }
            let Some(subscriber) = &mut self.subscriber else { break };
            let (cutter, mut news) = (&mut self.cutter, RingEvent::None);
            let messages = cutter.messages;
            let taken = if subscriber.is_in_ring() {
                cutter.set_clock(subscriber.clock());
                // If the publisher laps this subscriber within the batch, the rest of the batch comes from the journal of the same ring,
                // and has the same clock.
                subscriber.recv_batch(EVENTS_PER_TURN - found, |event| {
                    cutter.take(event).map_break(|said| news = said)
                })
            } else {
                cutter.take_past(subscriber, EVENTS_PER_TURN - found).map(|(taken, said)| {
                    news = said;
                    taken
                })
            };
            self.end = if cutter.messages == messages { self.end } else { End::None };
            if let Ok(0) = taken {
                self.cutter.close();
                self.end_with_channel();
                self.flush();
                break;
            }
            found += taken.as_ref().map_or(1, |taken| *taken);
            self.handle_event(taken.map_or_else(RingEvent::Error, |_| news))?;
        }
        if self.is_stored() {
            self.begin_next_session();
        }
        Ok(found > 0)
    }

    fn handle_event(&mut self, news: RingEvent) -> Result<(), String> {
        match news {
            RingEvent::None => {}
            RingEvent::End => self.end = End::Read,
            RingEvent::Restarted => {
                self.subscriber = None;
                self.end_ring();
            }
            RingEvent::Error(RecvError::Superseded) => self.end_ring(),
            RingEvent::Session(session) => {
                if self.spec.session.is_none() && session != self.writer.session() {
                    self.next_session = Some((session, self.cutter.due()));
                }
            }
            RingEvent::Lapped(next) => {
                let next = self.go_back(next);
                self.cutter.lapse(next);
            }
            // The journal's recorder is stalled. The next call waits again.
            RingEvent::Error(RecvError::Stalled { .. }) => {}
            RingEvent::Error(e) => return Err(format!("channel {:?}: {e}", self.spec.channel)),
        }
        Ok(())
    }

    /// Queues a block of the kind `End`. Called when it is certain that no further publisher follows.
    fn end_with_channel(&mut self) {
        if self.end == End::Read && self.subscriber.as_ref().is_some_and(Subscriber::is_at_end) {
            self.cutter.end();
            self.end = End::Said;
        }
    }

    fn flush(&mut self) {
        while let Some(buffer) = self.writer.take_spare() {
            self.cutter.give(buffer);
        }
        if let Some(append) = self.writer.take_takeover(self.clock.now_ns(), self.clock_error) {
            self.order(Order::Append(append));
        }
        while self.writer.has_room()
            && let Some(cut) = self.cutter.next_cut()
        {
            let append = self.writer.append(self.clock.now_ns(), cut, self.clock_error);
            self.order(Order::Append(append));
        }
    }

    /// Whether the thread can end. There are two cases. In the first case, `ends_with_channel` is set, the channel has ended, and
    /// everything is stored. In the second case, the sender was told to leave, and one of three things holds: everything is stored, the
    /// writer cannot write, or [`END_NS`] has passed.
    fn is_over(&mut self, now_ns: u64) -> bool {
        let is_stored = self.is_stored();
        if self.end == End::Said && is_stored && self.ends_with_channel {
            return true;
        }
        if !self.shared.leave.load(Ordering::Relaxed) {
            return false;
        }
        self.shared.life.enter(Phase::Leaving);
        let since_ns = *self.end_ns.get_or_insert(now_ns);
        let is_read = self.subscriber.as_mut().is_none_or(|ring| ring.lag() == 0 && !ring.is_between_rings());
        (is_stored && is_read)
            || !matches!(self.writer.state(), State::Run | State::Resync | State::Start)
            || now_ns.saturating_sub(since_ns) >= END_NS
    }

    /// Waits for the ring, or for an answer.
    fn park(&mut self) -> Result<(), String> {
        let now_ns = self.clock.now_ns();
        let due_ns = self.writer.next_deadline().saturating_sub(now_ns);
        let limit = Duration::from_nanos(due_ns).min(LOOK_UP);
        let waits_for_log = self.is_ring_over || self.next_session.is_some();
        let waits_for_room = !self.writer.has_room() || self.subscriber.is_none() || waits_for_log;
        if waits_for_room {
            if let Ok(reply) = self.queues.1.recv_timeout(limit) {
                self.take_reply(reply)?;
            }
            return Ok(());
        }
        let limit = if self.writer.in_flight() > 0 { limit.min(LOOK_FOR_ANSWERS) } else { limit };
        let looks = self.parks || now_ns.saturating_sub(self.looked_ns) >= LOOK_EVERY_NS;
        // `recv_deadline` does not return the times of messages from the journal, so it is called only for messages in the ring.
        let Some(subscriber) = self.subscriber.as_mut().filter(|ring| looks && ring.is_in_ring()) else {
            self.idle.wait(now_ns, limit);
            return Ok(());
        };
        self.looked_ns = now_ns;
        let deadline = self.clock.instant(now_ns) + if self.parks { limit } else { Duration::ZERO };
        let messages = self.cutter.messages;
        let news = match subscriber.recv_deadline(deadline) {
            Ok(Some(event)) => self.cutter.take(event).break_value().unwrap_or(RingEvent::None),
            Ok(None) => RingEvent::None,
            Err(e) => RingEvent::Error(e),
        };
        self.end = if self.cutter.messages == messages { self.end } else { End::None };
        self.handle_event(news)
    }
}
