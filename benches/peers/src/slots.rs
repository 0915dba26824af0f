//! `ringfire`: a ring in a mapped file, with slots of a fixed type. In rounds that must lose no message, the ring is in its lossless mode,
//! in which the producer waits for readers. In other rounds, the ring is in its default mode, which overwrites old messages.

use anyhow::{Context, Result, bail};
use ringfire::{FlowControl, RecvStatus, RingConsumer, RingProducer, RingProducerBuilder};
use shmcast_bench::rig::publish::{self, Sender};
use shmcast_bench::rig::receive::{self, Receiver, Sink};
use shmcast_bench::rig::spec::{Spec, Task};
use std::path::PathBuf;

/// The name of the transport.
pub(crate) const NAME: &str = "ringfire";
/// A ring in a mapped file (`ringfire`). Its readers receive one message with each call, as in a simple program.
pub(crate) const PLAIN: &str = "ringfire-plain";
/// The release in Cargo.toml.
pub(crate) const VERSION: &str = "0.5.2";

/// The size of a slot's sequence word in bytes.
const SEQUENCE: usize = 8;
/// The greatest number of messages that one call takes, in rounds without pauses between messages.
const BATCH: usize = 64;

crate::play_by_size!();

fn path(spec: &Spec) -> PathBuf {
    spec.dir.join("ringfire")
}

struct Sending<const N: usize> {
    producer: RingProducer<[u8; N]>,
    lossless: bool,
}

impl<const N: usize> Sending<N> {
    fn open(spec: &Spec) -> Result<Self> {
        let slots = (spec.ring_bytes / (SEQUENCE + N) as u64 + 1).next_power_of_two() / 2;
        let builder = RingProducerBuilder::new(slots);
        let builder = if spec.gated {
            builder.flow_control(FlowControl::LosslessBackpressure).max_readers(spec.receivers)
        } else {
            builder
        };
        let producer = builder.build(path(spec)).context("make the ring")?;
        Ok(Self { producer, lossless: spec.gated })
    }
}

impl<const N: usize> Sender for Sending<N> {
    #[inline(always)]
    fn send(&mut self, payload: &[u8], _: u64) -> Result<u64> {
        self.producer.push(payload.try_into().context("a message of another size than the slots")?);
        Ok(0)
    }

    fn needs_gate(&self) -> bool {
        false
    }

    fn notes(&self) -> Vec<String> {
        let mode = if self.lossless { "lossless" } else { "overwriting" };
        vec![format!("ringfire {VERSION}, {} slots, {mode}", self.producer.capacity())]
    }
}

struct Receiving<const N: usize> {
    consumer: RingConsumer<[u8; N]>,
    /// The buffer for a batch. Empty if each call receives one message.
    batch: Vec<[u8; N]>,
    lapped: u64,
}

impl<const N: usize> Receiving<N> {
    fn open(spec: &Spec) -> Result<Self> {
        let consumer = RingConsumer::attach(path(spec)).context("attach to the ring")?;
        let is_plain = spec.contestant.transport_name() == PLAIN;
        let batch = if spec.interval_ns == 0 && !is_plain { vec![[0; N]; BATCH] } else { Vec::new() };
        Ok(Self { consumer, batch, lapped: 0 })
    }

    fn poll_batch(&mut self, sink: &mut Sink) -> bool {
        let count = self.consumer.recv_batch(&mut self.batch);
        self.batch[..count].iter().for_each(|message| sink.message(message));
        let lapped = self.consumer.lapped_count();
        if lapped > self.lapped {
            sink.lost(lapped - self.lapped);
            self.lapped = lapped;
        }
        count > 0
    }
}

impl<const N: usize> Receiver for Receiving<N> {
    #[inline]
    fn poll(&mut self, sink: &mut Sink) -> Result<bool> {
        if !self.batch.is_empty() {
            return Ok(self.poll_batch(sink));
        }
        match self.consumer.recv_status() {
            RecvStatus::Ok(message) => sink.message(&message),
            RecvStatus::Lapped { skipped, item } => {
                sink.lost(skipped);
                sink.message(&item);
            }
            RecvStatus::Empty => return Ok(false),
        }
        Ok(true)
    }

    fn needs_gate(&self) -> bool {
        false
    }
}
