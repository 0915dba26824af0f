//! shmcast itself, as any program would use it: by the public API, with a reader page, and with the library's own wait
//! strategies.

use crate::rig::names::{CHANNEL, SHMCAST_GATE};
use crate::rig::publish::Sender;
use crate::rig::receive::{LOOK, Receiver, Sink, poll_until_done};
use crate::rig::spec::{self, Spec};
use anyhow::{Context, Result, bail};
use shmcast::{
    Client, Event, Gate, Mark, Preparation, Publisher, PublisherBuilder, RecvError, Start, Subscriber, Wait,
};
use std::time::{Duration, Instant};

/// The publisher.
#[derive(Debug)]
pub struct ShmSender {
    publisher: Publisher,
    has_gates: bool,
}

impl ShmSender {
    /// Makes the round's channel.
    ///
    /// # Errors
    /// The channel's error.
    pub fn open(spec: &Spec) -> Result<Self> {
        let gates = (0..spec.receivers).filter(|_| has_gates(spec));
        let builder =
            gates.fold(publisher(spec)?, |builder, me| builder.gate(Gate::new(gate(me)).wait(GATE_WAIT)));
        Ok(Self { publisher: builder.open().context("open the channel")?, has_gates: has_gates(spec) })
    }
}

/// Whether the round's readers take gates of the channel. In rounds in which messages can be lost, the readers take no gates.
fn has_gates(spec: &Spec) -> bool {
    spec.gated && spec.contestant.transport_name() == SHMCAST_GATE
}

/// Returns the name of the gate of receiver number `me`.
fn gate(me: usize) -> String {
    format!("receiver-{me}")
}

/// Returns the options with which every publisher of a round opens its channel.
pub(super) fn publisher(spec: &Spec) -> Result<PublisherBuilder> {
    let builder = Publisher::builder(CHANNEL).prepare(Preparation::FULL);
    Ok(match daemon(spec)? {
        Some(client) => builder.client(&client),
        None => builder.dir(&spec.dir).capacity(spec.ring_bytes),
    })
}

impl Sender for ShmSender {
    #[inline(always)]
    fn send(&mut self, payload: &[u8], sent: u64) -> Result<u64> {
        // The rig has just read the clock for the payload. So the ring gets this time and does not read the clock again.
        self.publisher.publish_at(payload, Mark::default(), sent)?;
        Ok(0)
    }

    fn notes(&self) -> Vec<String> {
        self.publisher.preparation().iter().map(ToString::to_string).collect()
    }

    fn needs_gate(&self) -> bool {
        !self.has_gates
    }
}

/// A subscriber.
#[derive(Debug)]
pub struct ShmReceiver {
    subscriber: Subscriber,
    has_gates: bool,
}

/// The greatest number of messages in one batch.
const BATCH: usize = 64;
/// The time limit of a gate. The limit is longer than any time for which the system keeps a process from its CPU.
const GATE_WAIT: Duration = Duration::from_secs(10);

impl ShmReceiver {
    /// Subscribes to the round's channel, as receiver number `me`.
    ///
    /// # Errors
    /// The channel's error.
    pub fn open(spec: &Spec, me: usize) -> Result<Self> {
        Ok(Self { subscriber: subscriber(spec, me)?, has_gates: has_gates(spec) })
    }
}

/// Subscribes to the round's channel, as receiver number `me`.
pub(super) fn subscriber(spec: &Spec, me: usize) -> Result<Subscriber> {
    let wait = match spec.contestant.wait {
        spec::Wait::Spin => Wait::Spin,
        spec::Wait::Burst => Wait::Burst,
        spec::Wait::Yield => Wait::Yield,
        spec::Wait::SpinYield => Wait::SpinThenYield(1000),
        spec::Wait::Backoff => Wait::Backoff,
        spec::Wait::Sleep => Wait::Sleep(Duration::from_micros(50)),
        spec::Wait::Park => Wait::Park,
        other => bail!("shmcast does not wait by {}", other.name()),
    };
    // Every second visitor begins with the oldest message in the ring, and the others begin with the latest.
    let start = if me >= spec.receivers && me % 2 == 1 { Start::Latest } else { Start::Oldest };
    let builder = Subscriber::builder(CHANNEL).start(start).wait(wait);
    let builder = match daemon(spec)? {
        Some(client) => builder.client(&client),
        None => builder.dir(&spec.dir),
    };
    let builder = if has_gates(spec) && me < spec.receivers { builder.gate(gate(me)) } else { builder };
    builder.open().context("subscribe")
}

/// Connects to the round's daemon, if there is one.
fn daemon(spec: &Spec) -> Result<Option<Client>> {
    spec.daemon.as_ref().map(|_| Client::at(spec.socket()).context("find the round's daemon")).transpose()
}

#[inline(always)]
pub(super) fn hand(event: Event<'_>, sink: &mut Sink) {
    match event {
        Event::Message(message) => sink.message(message.payload),
        Event::Lapped(lapped) => sink.lost(lapped.missed),
        Event::Gap { .. }
        | Event::NewEpoch { .. }
        | Event::NewSession { .. }
        | Event::Restarted
        | Event::End => {}
        other => panic!("a round does not know what {other:?} means for its figures"),
    }
}

/// Passes a message to the sink. This is a separate function, so that the loop over a batch and the rig's check can each use all registers.
#[inline(never)]
fn take(sink: &mut Sink, payload: &[u8]) {
    sink.message(payload);
}

impl Receiver for ShmReceiver {
    fn needs_gate(&self) -> bool {
        !self.has_gates
    }

    #[inline]
    fn poll(&mut self, sink: &mut Sink) -> Result<bool> {
        let taken = self.subscriber.recv_batch(BATCH, |event| match event {
            Event::Message(message) => take(sink, message.payload),
            other => hand(other, sink),
        });
        Ok(taken? > 0)
    }

    fn run(&mut self, sink: &mut Sink, wait: spec::Wait) -> Result<()> {
        if wait == spec::Wait::Spin {
            return poll_until_done(self, sink, wait); // this loop notes the times at which the CPU was away
        }
        let mut deadline = Instant::now();
        while !sink.is_done() {
            // A receiver for high rates takes batches while messages are available.
            if wait == spec::Wait::Burst && self.poll(sink)? {
                continue;
            }
            match self.subscriber.recv_deadline(deadline) {
                Ok(Some(event)) => hand(event, sink),
                Ok(None) if sink.is_stopped() => break,
                Ok(None) => deadline = Instant::now() + LOOK,
                Err(e @ RecvError::Superseded) => bail!("the rig's own channel: {e}"),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}
