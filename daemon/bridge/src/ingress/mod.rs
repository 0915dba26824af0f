//! The ingress receives a channel from another host into a local channel, and is that channel's only publisher. It publishes the same
//! messages under the same sequences, each once and in order. Readers get a gap for messages that will never arrive.
//!
//! One thread receives every line, asks for missing messages, keeps the leases and publishes. A second thread opens the channel when the
//! channel restarts. The first thread has these sockets:
//!
//! - Each line has a socket.
//! - Requests are sent from a socket of their own, so that no other program receives the answers.
//! - A unicast feed has one more socket, so that live packets are not mistaken for repairs.
//!
//! After the start, the loop of the first thread usually makes only the system calls of the sockets and of its waits. It makes other system
//! calls when a session begins or ends. On native lines, it also makes one system call every 10 ms, which asks for the clock's error.

use shmcast::PublisherBuilder;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

mod anew;
mod control;
mod inlet;
mod maker;
mod merging;
mod native;
mod opening;
mod port;
mod promoting;
mod receiving;
mod silence;
mod stale;

use super::BridgeError;
use super::end::RunningEnd;
use super::local::Local;
use super::native::Keys;
use super::origins::Origins;
use super::pcap::Tap;
use super::proto::MAX_SERVERS;
use super::proto::awake::Awake;
use super::proto::counters::Histogram;
use super::proto::pace::Pace;
use super::proto::receiver::Receiver;
use super::proto::session::Session;
use super::renewal::{Renewal, Watch};
use super::socket::RefusedSettings;
use super::spec::{BridgeSpec, Direction, GapMode, TimeMode, WaitMode};
use super::status::{Board, Life, Phase, ReceiveCounters, SharedHistogram};
use super::thread::{Clock, try_cpu, wall_ns};
use super::times::{self, OriginTimes};
use super::waiting::{Choice, Waiting};
use inlet::Inlet;
use native::NativeReceiving;
use opening::{follow, locks_of, not_resumed, open_ports, receiver_config, receiver_id, repair_line};
use promoting::Orders;
pub use promoting::Promoter;
use receiving::Receiving;
use silence::{Places, Silence};
use stale::Stale;

/// Options that the bridge's owner sets. They are not part of the spec.
#[derive(Debug, Default)]
pub struct IngressOptions {
    /// The capture to which every sent and received packet is copied.
    pub tap: Option<Tap>,
    /// The sessions that began on this host. The ingress does not receive these sessions.
    pub origins: Origins,
}

/// State that the thread and its owner share.
#[derive(Debug)]
struct IngressState {
    orders: Orders,
    life: Arc<Life>,
    counters: Board<ReceiveCounters>,
    recovery: SharedHistogram,
    to_ring: SharedHistogram,
    /// The number of lines that were opened again, and the number of groups that were joined again.
    renewal: Renewal,
    /// The sentence about the silence of the feed; `None` if the feed is not silent.
    silent: Mutex<Option<String>>,
}

impl IngressState {
    fn new(refusals: RefusedSettings, waiting: Waiting) -> Self {
        Self {
            orders: Orders::default(),
            life: Arc::new(Life::new(refusals.0, waiting)),
            counters: Board::default(),
            recovery: SharedHistogram::default(),
            to_ring: SharedHistogram::default(),
            renewal: Renewal::default(),
            silent: Mutex::default(),
        }
    }
}

/// The durations that an ingress has measured.
#[derive(Debug)]
pub struct Latencies {
    /// The durations from noticing a loss to receiving the message, for messages that servers sent.
    pub recovery: Histogram,
    /// The durations from the kernel's time stamp on a live datagram until the datagram's messages are in the ring. Of the datagrams that
    /// arrive alone, only one in 16 is measured.
    pub to_ring: Histogram,
}

/// A running ingress. Dropping it stops it.
#[derive(Debug)]
pub struct Ingress {
    end: RunningEnd,
    shared: Arc<IngressState>,
}

impl Deref for Ingress {
    type Target = RunningEnd;

    fn deref(&self) -> &RunningEnd {
        &self.end
    }
}

impl DerefMut for Ingress {
    fn deref_mut(&mut self) -> &mut RunningEnd {
        &mut self.end
    }
}

impl Ingress {
    /// Opens the channel as its publisher, opens the sockets and starts the thread. If an earlier bridge received the same session, this
    /// bridge continues where that bridge stopped.
    ///
    /// # Errors
    /// [`BridgeError`]. After an error nothing is left running.
    pub fn start(
        spec: &BridgeSpec,
        channel: PublisherBuilder,
        options: IngressOptions,
    ) -> Result<Ingress, BridgeError> {
        // Try the CPU first. If the CPU cannot be used, the channel is not opened, and the channel's readers notice nothing.
        try_cpu(spec.cpu)?;
        let (mut ingress, receiving) = Ingress::assemble(spec, channel, options)?;
        let run = move || receiving.run();
        ingress.end.spawn(&format!("recv-{}", spec.title()), spec.cpu, run)?;
        Ok(ingress)
    }

    fn assemble(
        spec: &BridgeSpec,
        channel: PublisherBuilder,
        options: IngressOptions,
    ) -> Result<(Ingress, Receiving), BridgeError> {
        BridgeError::check(spec)?;
        let Some(Direction::Receive(receive)) = spec.direction() else {
            return Err(BridgeError::of(spec, "receive: this bridge sends"));
        };
        let choice = Choice::of(spec.wait);
        let follow = follow(spec)?;
        let mut refusals = RefusedSettings::default();
        let keys = Arc::new(Keys::open(spec)?);
        if spec.is_any_native() && receive.time == TimeMode::Origin {
            times::note_unknown_error(&mut refusals);
        }
        let native = NativeReceiving::of(spec, &keys)?;
        let id = receiver_id(spec, &channel)?;
        let clock = Clock::start();
        let watch = Watch::of(spec, repair_line(spec, receive));
        let ports = open_ports(spec, receive, id, &clock, &mut refusals)?;
        let publisher = channel.clone().open()?;
        refusals.0.extend(not_resumed(&publisher, receive.from));
        let (next, resumed) =
            (publisher.next_sequence(), publisher.remote_session().map(Session::from_bytes));
        let receiver = Receiver::new(receiver_config(spec, receive, follow, (next, resumed), id));
        let shared = Arc::new(IngressState::new(refusals, choice.shown.clone()));
        if let Some(session) = receiver.session() {
            shared.life.note_session(session);
        }
        let mut end = RunningEnd::new(shared.life.clone(), keys);
        anew::watch(spec, receive, (watch, &ports), &shared, &mut end)?;
        let local = Local::new(publisher, OriginTimes::of(receive));
        let inlet = Inlet::new(local, channel, options.origins, shared.clone(), spec.title())?;
        let receiving = Receiving {
            ports,
            servers: receive.servers.clone(),
            lines: spec.lines.len(),
            receiver,
            inlet,
            locks: locks_of(spec, receive, native.is_some()),
            native,
            pace: Pace::polling_for(choice.polls_for_ns()),
            choice,
            timeouts: [0; MAX_SERVERS],
            stale: Stale::default(),
            silence: Silence::default(),
            places: Places::of(spec, receive),
            never_skips: receive.gap == GapMode::Block,
            native_ns: None,
            stranger: None,
            to_ring: Histogram::default(),
            since_ns: wall_ns(),
            tap: options.tap,
            clock,
            awake: Awake::default(),
            left_out_ns: 0,
            shared: shared.clone(),
            turns: 0,
            tag: spec.tag(),
            has_found: false,
            shown_ns: 0,
            shows: 0,
        };
        Ok((Ingress { end, shared }, receiving))
    }

    /// Returns a handle that can promote the channel. A promoted channel belongs to this host, and a local program can publish on it.
    pub fn promoter(&self) -> Promoter {
        Promoter(self.shared.clone())
    }

    /// Returns a problem if a gate of the channel holds the messages up, if another feed arrives on the bridge's lines, if nothing of the
    /// feed arrives, or if the feed stands still. The bridge runs nevertheless.
    pub fn trouble(&self) -> Option<String> {
        self.life().held_up().or_else(|| self.stranger()).or_else(|| self.silent())
    }

    fn silent(&self) -> Option<String> {
        let silent = self.shared.silent.lock().unwrap_or_else(PoisonError::into_inner).clone();
        silent.filter(|_| self.life().phase() == Phase::Running)
    }

    fn stranger(&self) -> Option<String> {
        let stranger = self.life().stranger()?;
        let said = format!("another feed, session {stranger}, comes on the same lines and is not taken");
        Some(match self.life().session() {
            Some(session) => format!(
                "{said}: this one receives {session}. Send it to another address; or if it is the one that is wanted, remove the channel here \
                 and begin again"
            ),
            None => {
                format!("{said}: this bridge waits for another session. Give both ends the same, or none")
            }
        })
    }

    /// The counters, at most some milliseconds old.
    pub fn counters(&self) -> ReceiveCounters {
        self.shared.counters.read()
    }

    /// Returns the durations that the ingress has measured.
    pub fn latencies(&self) -> Latencies {
        Latencies { recovery: self.shared.recovery.read(), to_ring: self.shared.to_ring.read() }
    }
}

/// An ingress that runs on its caller's thread. The caller also reads the channel on this thread, so no switch between threads delays a
/// message. This matters on a host with fewer CPUs than busy threads.
pub struct IngressInvoker {
    receiving: Receiving,
    /// The ingress. It has the counters, and can be stopped.
    pub ingress: Ingress,
    is_over: bool,
}

impl IngressInvoker {
    /// Opens the ingress as [`Ingress::start`] does. Packets are received and sent only in [`invoke`](Self::invoke). The spec's `wait` and
    /// `cpu` have no effect.
    ///
    /// # Errors
    /// [`BridgeError`]; nothing is left open.
    pub fn open(
        spec: &BridgeSpec,
        channel: PublisherBuilder,
        options: IngressOptions,
    ) -> Result<IngressInvoker, BridgeError> {
        let spec = BridgeSpec { wait: WaitMode::Spin, ..spec.clone() };
        let (ingress, receiving) = Ingress::assemble(&spec, channel, options)?;
        Ok(IngressInvoker { receiving, ingress, is_over: false })
    }

    /// Takes at most one batch of datagrams from each socket, publishes their messages, and does the work that is due. Returns false once
    /// the ingress has ended.
    ///
    /// The call waits only when the ingress ends:
    ///
    /// - It waits up to half a second until the servers confirm that the leases are returned.
    /// - It waits up to half a second for messages that a gate of the channel holds up.
    /// - If the channel is just being opened, it waits until the channel is open.
    #[inline]
    pub fn invoke(&mut self) -> bool {
        self.is_over = self.is_over || !self.receiving.turn();
        !self.is_over
    }
}

impl Drop for IngressInvoker {
    fn drop(&mut self) {
        self.ingress.stop();
        self.invoke();
    }
}
