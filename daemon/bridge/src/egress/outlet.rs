//! Turns the ring's events into datagrams, sends them on every line and to every lease, and counts them.

use shmcast::hosting::fault;
use shmcast::{EndWatch, Event, Message, Start, Subscriber};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zerocopy::FromZeros;

use super::line::{Line, send_to_all};
use super::native::{NativeState, other, sender_config, sender_of};
use super::opening::Feeds;
use crate::BridgeError;
use crate::origins::run_of;
use crate::pcap::Tap;
use crate::proto::counters::SenderCounters;
use crate::proto::link::{FRAME_BYTES, Pacer};
use crate::proto::sender::{MAX_PULSE_BYTES, PushError, Sender, SenderConfig};
use crate::proto::session::Session;
use crate::proto::wire::Meta;
use crate::sending::{LiveCopy, Sending};
use crate::spec::{BridgeSpec, SendSpec};
use crate::status::{Phase, SendCounters};
use crate::thread::Clock;

/// A thread that waits for its share of the link spins during the last part of its wait. This is the length of that part in nanoseconds.
const SPIN_NS: u64 = 50_000;
/// A thread that waits for its share of the link checks the stop flag at least this often.
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// The lines and the sender of the second profile, if an egress sends both profiles (plain and native).
pub(super) struct Second {
    pub(super) sender: Sender,
    pub(super) lines: Vec<Line>,
}

/// The senders and sockets of an egress.
pub(super) struct Outlet {
    pub(super) sender: Sender,
    pub(super) second: Option<Second>,
    /// The state of native lines; `None` if all lines are plain.
    pub(super) native: Option<NativeState>,
    pub(super) config: SenderConfig,
    /// The counters of earlier sessions, added up.
    pub(super) earlier: SenderCounters,
    pub(super) counters: SendCounters,
    /// Limits live packets to their share of the link. `None` if the link's speed is not known.
    pub(super) pacer: Option<Pacer>,
    /// Whether the spec names the session. If so, the session stays the same when the ring is replaced.
    pub(super) keeps_session: bool,
    /// Whether the session has ended. If a later message arrives, the session continues.
    pub(super) is_over: bool,
    /// Distinguishes the end of the channel from the end of an earlier publisher.
    pub(super) end: EndWatch,
    /// The end of a channel that was closed when the bridge began: the publisher's epoch, and the sequence with which the bridge began.
    /// `None` if the channel was not closed.
    pub(super) closed: Option<(u64, u64)>,
    /// The sequence after the last gap or lap in the ring. A later session begins at this sequence or after it, and so does a later end.
    pub(super) gap_end: u64,
    pub(super) lines: Vec<Line>,
    /// The socket from which unicast leases are served.
    pub(super) leases: Option<Line>,
    /// The addresses of the leases that get live packets.
    pub(super) live: LiveCopy,
    pub(super) clock: Clock,
    pub(super) tap: Option<Tap>,
    pub(super) shared: Arc<Sending>,
}

impl Outlet {
    /// Makes an outlet that begins with the next message of `subscriber`.
    pub(super) fn new(
        spec: &BridgeSpec,
        send: &SendSpec,
        feeds: Feeds,
        subscriber: &Subscriber,
        leases: Option<Line>,
        clock: Clock,
        shared: Arc<Sending>,
    ) -> Result<Outlet, BridgeError> {
        let Feeds { session, profile, lines, others, link, keys } = feeds;
        let config = sender_config(spec, send, link.is_some());
        let begin = (session, subscriber.next_sequence(), clock.now_ns());
        let second = match others.is_empty() {
            true => None,
            false => Some(Second { sender: sender_of(other(profile), config, begin)?, lines: others }),
        };
        Ok(Outlet {
            sender: sender_of(profile, config, begin)?,
            second,
            native: spec.is_any_native().then(|| NativeState::new(keys)),
            config,
            earlier: SenderCounters::default(),
            counters: SendCounters {
                sessions: 1,
                link_bits: link.map_or(0, |link| link.bits_per_second()),
                ..SendCounters::new_zeroed()
            },
            pacer: link.map(|link| Pacer::of(link, clock.now_ns())),
            keeps_session: spec.session.is_some(),
            is_over: false,
            // If the channel is closed when the bridge begins, the bridge waits for the next publisher. The end of the earlier publisher
            // does not count, even if this egress takes over from a peer and therefore reads the end again.
            end: EndWatch::of(subscriber, Start::Latest),
            closed: closed(subscriber),
            gap_end: 0,
            lines,
            leases,
            live: LiveCopy::of(&shared.live),
            clock,
            tap: None,
            shared,
        })
    }

    pub(super) fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Message(message) => self.push(&message),
            Event::Lapped(lapped) => {
                self.counters.lapped += 1;
                self.counters.messages_missed += lapped.missed;
                self.note_hole(&event);
            }
            Event::Gap { from, to } => {
                self.counters.gap_messages += to - from + 1;
                self.note_hole(&event);
            }
            Event::NewSession { session } if !self.keeps_session => {
                self.end.note(&event);
                let session = Session::from_bytes(session);
                if session != self.sender.session() {
                    self.flush();
                    self.begin(session, self.sender.next().max(self.gap_end));
                }
            }
            // After a restart of the channel, the sending loop attaches to the channel again.
            Event::NewSession { .. } | Event::NewEpoch { .. } | Event::Restarted => self.end.note(&event),
            // The event might be the end of an earlier publisher. The egress decides this once no more events wait.
            Event::End => self.end.note(&event),
            // The library and the bridge are released together, so each kind of event that exists is handled above.
            other => debug_assert!(false, "bridges do not carry {other:?}"),
        }
    }

    /// Notes the sequence after a gap or a lap. A standby calls this function and not `take`. The function `take` would also count messages
    /// as missed, but the peer might have sent these messages.
    pub(super) fn note_hole(&mut self, event: &Event<'_>) {
        self.gap_end = match event {
            Event::Gap { to, .. } => to + 1,
            Event::Lapped(lapped) => lapped.resumed_at,
            _ => self.gap_end,
        };
    }

    #[inline]
    fn push(&mut self, message: &Message<'_>) {
        let (sequence, payload) = (message.sequence, message.payload);
        self.end.note(&Event::Message(*message));
        if self.is_over {
            self.begin(self.sender.session(), sequence);
        }
        let meta = self.native.as_ref().map_or(Meta::default(), |native| native.meta_of(message));
        let mut pushed = loop {
            match self.sender.push_with(sequence, payload, meta) {
                Err(PushError::BatchFull) => self.send_batch(),
                pushed => break pushed,
            }
        };
        while let (Ok(()), Some(second)) = (pushed, &mut self.second) {
            match second.sender.push_with(sequence, payload, meta) {
                Err(PushError::BatchFull) => self.send_second_batch(),
                Ok(()) => break,
                refused => pushed = refused,
            }
        }
        if let Err(refused) = pushed {
            self.note_unsent(refused);
        }
    }

    /// Counts a message that a sender refused.
    #[cold]
    fn note_unsent(&mut self, refused: PushError) {
        match refused {
            PushError::TooLong { .. } => self.counters.messages_too_long += 1,
            // Only a fault of the ring or of the bridge can cause these errors. The counter makes the fault visible.
            PushError::WentBack { .. } | PushError::BatchFull => self.counters.messages_missed += 1,
        }
    }

    /// Closes the open packets, and sends all packets of the batches.
    pub(super) fn flush(&mut self) {
        self.sender.close();
        self.send_batch();
        if let Some(second) = &mut self.second {
            second.sender.close();
            self.send_second_batch();
        }
        self.shared.note_sent(self.sender.next());
    }

    /// Sends the batch of the second feed.
    fn send_second_batch(&mut self) {
        let Some(second) = &mut self.second else { return };
        if second.sender.datagrams().next().is_none() {
            return;
        }
        self.shared.next.fetch_max(second.sender.next(), Ordering::Release);
        hold_back(self.pacer.as_ref(), &self.clock, &self.shared, &mut self.counters);
        send_to_all((&mut second.lines, None, &[], self.tap.as_ref()), &mut self.counters, || {
            second.sender.datagrams()
        });
        let now_ns = self.clock.now_ns();
        if let Some(pacer) = &mut self.pacer {
            charge(pacer, now_ns, &self.shared, copies(&second.lines), second.sender.datagrams());
        }
        second.sender.clear(now_ns);
    }

    fn send_batch(&mut self) {
        if self.sender.datagrams().next().is_none() {
            return;
        }
        // Store the next sequence before the datagrams are sent. Otherwise the server could refuse a fast receiver's request as too early.
        self.shared.next.store(self.sender.next(), Ordering::Release);
        hold_back(self.pacer.as_ref(), &self.clock, &self.shared, &mut self.counters);
        send_to_all(
            (&mut self.lines, self.leases.as_mut(), self.live.look(&self.shared.live), self.tap.as_ref()),
            &mut self.counters,
            || self.sender.datagrams(),
        );
        let now_ns = self.clock.now_ns();
        if let Some(pacer) = &mut self.pacer {
            let copies = copies(&self.lines) + self.live.look(&self.shared.live).len() as u64;
            charge(pacer, now_ns, &self.shared, copies, self.sender.datagrams());
        }
        self.sender.clear(now_ns);
    }

    /// Sends the heartbeat or end-of-session packet that is due.
    pub(super) fn send_idle(&mut self, now_ns: u64) {
        let mut out = [0; MAX_PULSE_BYTES];
        if let Some(size) =
            poll_idle(&mut self.sender, (self.native.as_ref(), &self.shared), now_ns, &mut out)
        {
            send_to_all(
                (&mut self.lines, self.leases.as_mut(), self.live.look(&self.shared.live), self.tap.as_ref()),
                &mut self.counters,
                || std::iter::once(&out[..size]),
            );
        }
        if let Some(second) = &mut self.second
            && let Some(size) =
                poll_idle(&mut second.sender, (self.native.as_ref(), &self.shared), now_ns, &mut out)
        {
            send_to_all((&mut second.lines, None, &[], self.tap.as_ref()), &mut self.counters, || {
                std::iter::once(&out[..size])
            });
        }
    }

    /// If a pulse is due, sends it. A pulse is a packet with the sender's state. Native lines send pulses even while messages flow.
    pub(super) fn send_pulse(&mut self, now_ns: u64) {
        if self.native.is_some() {
            self.send_idle(now_ns);
        }
    }

    /// Notes the ring whose messages are sent from now on.
    pub(super) fn note_ring(&mut self, subscriber: &Subscriber) {
        if let Some(native) = &mut self.native {
            native.set_stream(subscriber.header().stream);
        }
        self.look_up(Some(subscriber.clock()));
    }

    /// Notes the clock of the ring that is read. A later ring of the channel can have another clock.
    #[inline]
    pub(super) fn note_clock(&mut self, clock: shmcast::Clock) {
        if let Some(native) = &mut self.native {
            native.note_clock(clock);
        }
    }

    /// Reads the clocks and the keys again, for native lines. Call this every few milliseconds.
    pub(super) fn look_up(&mut self, clock: Option<shmcast::Clock>) {
        let Some(native) = &mut self.native else { return };
        native.look(clock);
        if let Some(key) = native.new_key() {
            let sealers = self
                .sender
                .sealer()
                .into_iter()
                .chain(self.second.iter_mut().filter_map(|s| s.sender.sealer()));
            sealers.for_each(|sealer| sealer.set_key(key.as_ref()));
        }
    }

    /// Ends the session if the channel has ended. The end names the sequence after the last gap, so that receivers notice this gap.
    ///
    /// An earlier mistake: the end named the sequence after the last message, and the receivers of a relay did not notice a gap before the
    /// end.
    pub(super) fn end_with(&mut self, subscriber: &Subscriber, now_ns: u64) {
        if !self.is_over && self.end.is_over(subscriber) {
            self.flush();
            self.is_over = true;
            self.sender.skip_to(self.gap_end);
            if let Some(second) = &mut self.second {
                second.sender.skip_to(self.gap_end);
                second.sender.end(now_ns);
            }
            // The repair server answers requests only for sequences before `shared.next`.
            self.shared.next.fetch_max(self.sender.next(), Ordering::Release);
            self.shared.note_sent(self.sender.next());
            self.sender.end(now_ns);
            self.shared.life.enter(Phase::Ending);
        }
    }

    /// Notes that this bridge continues the work of an earlier bridge. If the channel is closed, this bridge sends the end, because the
    /// earlier bridge might have stopped before it sent the end. Then this bridge waits for the next publisher.
    ///
    /// An earlier mistake: nobody sent the end of such a channel, and far readers waited for ever.
    pub(super) fn note_resumption(&mut self) {
        self.end = EndWatch::default();
    }

    /// Waits for the next publisher. The channel was closed before the bridge began, and the end has been repeated for long enough.
    #[cold]
    pub(super) fn wait_for_publisher(&mut self, subscriber: &Subscriber) {
        self.renew(self.sender.session(), self.sender.next());
        self.end = EndWatch::of(subscriber, Start::Latest);
        self.shared.life.enter(Phase::Running);
    }

    /// Whether the channel has ended since the bridge began. If the bridge began with messages of a closed channel, their end counts.
    ///
    /// An earlier mistake: the end of a closed channel never counted, and a bridge that started after a short-lived publisher waited for
    /// ever.
    pub(super) fn has_ended_since(&self, subscriber: &Subscriber) -> bool {
        let now = subscriber.publisher_state().map(|(epoch, _)| (epoch, subscriber.next_sequence()));
        self.end.is_over(subscriber) && now != self.closed
    }

    /// Begins `session` with another ring. The session's first message is the first message since the channel was made anew, even if it lies
    /// in an earlier ring or is overwritten: the journal might still have this message.
    #[cold]
    pub(super) fn begin_ring(&mut self, subscriber: &Subscriber, session: Session) {
        let begin = match fault!("a_session_begins_with_its_bridge") {
            true => subscriber.next_sequence(),
            false => subscriber.first_since_restart(),
        };
        (self.gap_end, self.closed) = (0, None);
        self.shared.begin_change();
        self.begin_in(Some(run_of(subscriber.header())), session, begin, subscriber.next_sequence());
        self.shared.end_change();
    }

    /// Begins `session` at the sequence `next`, or continues the session if it had ended.
    #[cold]
    pub(super) fn begin(&mut self, session: Session, next: u64) {
        self.begin_in(None, session, next, next);
    }

    fn begin_in(&mut self, ring: Option<[u64; 2]>, session: Session, begin: u64, next: u64) {
        self.counters.sessions += u64::from(session != self.sender.session());
        self.renew(session, next);
        self.shared.note_begin(ring, session, begin, next);
        self.shared.next.store(next, Ordering::Release);
        self.shared.note_sent(next);
        self.shared.set_session(session);
        self.shared.life.enter(Phase::Running);
    }

    /// Continues the stream at the sequence `next`, in place of another egress.
    #[cold]
    pub(super) fn go_on(&mut self, session: Session, next: u64) {
        if session != self.sender.session() {
            // The other egress has already sent messages of this session, and receivers can request them. So the session does not begin at
            // `next`.
            let begin = self.shared.begin.load(Ordering::Acquire).min(next);
            return self.begin_in(None, session, begin, next);
        }
        self.renew(session, next);
        self.shared.life.enter(Phase::Running);
    }

    fn renew(&mut self, session: Session, next: u64) {
        self.add_up();
        let now_ns = self.clock.now_ns();
        self.sender.begin_again(self.config, session, next, now_ns);
        if let Some(second) = &mut self.second {
            second.sender.begin_again(self.config, session, next, now_ns);
        }
        self.is_over = false;
    }

    fn add_up(&mut self) {
        let last = *self.sender.counters();
        self.earlier.packets += last.packets;
        self.earlier.messages += last.messages;
        self.earlier.bytes += last.bytes;
        self.earlier.heartbeats += last.heartbeats;
        self.earlier.ends += last.ends;
    }

    pub(super) fn show(&mut self) {
        self.counters.set_sender(&self.earlier, self.sender.counters());
        self.counters.next_sequence = self.sender.next();
        self.counters.state_errors = self.shared.state_errors.load(Ordering::Relaxed);
        self.counters.state_renewed = self.shared.state_renewed.load(Ordering::Relaxed);
        self.shared.counters.show(&self.counters);
    }
}

/// Waits while live packets have used up their share of the link. Messages that are published meanwhile wait in the ring.
#[inline]
fn hold_back(pacer: Option<&Pacer>, clock: &Clock, shared: &Sending, counters: &mut SendCounters) {
    let Some(pacer) = pacer.filter(|pacer| pacer.is_tight()) else { return };
    let began_ns = clock.now_ns();
    let mut now_ns = began_ns;
    loop {
        let wait_ns = pacer.wait_ns(now_ns);
        if wait_ns == 0 || shared.life.is_stopping() {
            break;
        }
        match wait_ns.checked_sub(SPIN_NS) {
            Some(sleep_ns) => std::thread::sleep(Duration::from_nanos(sleep_ns).min(LONGEST_WAIT)),
            None => std::hint::spin_loop(),
        }
        now_ns = clock.now_ns();
    }
    counters.link_waits += u64::from(now_ns > began_ns);
    counters.link_waited_ns += now_ns - began_ns;
}

/// Charges the pacer for `copies` copies of the datagrams.
fn charge<'a>(
    pacer: &mut Pacer,
    now_ns: u64,
    shared: &Sending,
    copies: u64,
    datagrams: impl Iterator<Item = &'a [u8]>,
) {
    let bytes = copies * datagrams.map(|datagram| datagram.len() as u64 + FRAME_BYTES).sum::<u64>();
    pacer.charge(now_ns, bytes);
    // Only this thread writes the counter.
    shared.live_bytes.store(shared.live_bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
}

/// Returns how many copies of a packet are sent from one address. All copies from one address use one link. If the addresses have different
/// numbers of copies, returns the largest number.
fn copies(lines: &[Line]) -> u64 {
    let by = |line: &Line| line.from.map(|from| from.ip());
    lines.iter().map(|line| lines.iter().filter(|other| by(other) == by(line)).count()).max().unwrap_or(0)
        as u64
}

/// Writes to `out` the heartbeat, end or pulse that is due, and returns its size. Returns `None` if nothing is due.
fn poll_idle(
    sender: &mut Sender,
    (native, shared): (Option<&NativeState>, &Sending),
    now_ns: u64,
    out: &mut [u8; MAX_PULSE_BYTES],
) -> Option<usize> {
    match native.filter(|_| sender.is_native()) {
        Some(native) => sender.poll_pulse(now_ns, || native.pulse(shared), out),
        None => {
            let packet = sender.poll_idle(now_ns)?;
            out[..packet.len()].copy_from_slice(&packet);
            Some(packet.len())
        }
    }
}

/// Returns the epoch of the publisher that has closed the channel, and the next sequence. Returns `None` if the channel is not closed, or
/// if the subscriber's builder waited until the channel existed.
fn closed(subscriber: &Subscriber) -> Option<(u64, u64)> {
    let is_closed = EndWatch::of(subscriber, Start::Latest) != EndWatch::default();
    subscriber.publisher_state().filter(|_| is_closed).map(|(epoch, _)| (epoch, subscriber.next_sequence()))
}
