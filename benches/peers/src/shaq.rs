//! `shaq`: a broadcast queue in a mapped file, with slots of a fixed type. A producer cannot overwrite a slot before every consumer has
//! read it. So nothing is lost in any question.

use anyhow::{Context, Result, bail};
use shaq::broadcast::{Broadcast, BroadcastConfig, Consumer, Producer, ProducerId};
use shmcast_bench::rig::publish::{self, Sender};
use shmcast_bench::rig::receive::{self, Receiver, Sink};
use shmcast_bench::rig::spec::{Spec, Task};
use std::fs::OpenOptions;
use std::num::NonZeroUsize;

/// The name of the transport.
pub(crate) const NAME: &str = "shaq";
/// The release in Cargo.toml.
pub(crate) const VERSION: &str = "4.1.0";

/// The greatest number of messages that one call takes.
const BATCH: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");

crate::play_by_size!();

struct Sending<const N: usize> {
    producer: Producer<[u8; N]>,
    slots: usize,
}

impl<const N: usize> Sending<N> {
    #[allow(unsafe_code, reason = "the peer's way to make a queue")]
    fn open(spec: &Spec) -> Result<Self> {
        let path = spec.dir.join(NAME);
        let hidden = spec.dir.join("shaq.new");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&hidden)?;
        let slots = (spec.ring_bytes / N as u64 + 1).next_power_of_two() as usize / 2;
        let config = BroadcastConfig { capacity: slots, producer_slots: 1, consumer_slots: spec.receivers };
        // SAFETY: the file is new, and only this process makes a queue of it. Bytes are valid in every process.
        let queue = unsafe { Broadcast::create(&file, config) }.context("make the queue")?;
        let producer = queue.producer(ProducerId::new(1)).context("take the lane")?;
        std::fs::rename(hidden, path)?;
        Ok(Self { producer, slots })
    }
}

impl<const N: usize> Sender for Sending<N> {
    #[inline(always)]
    fn send(&mut self, payload: &[u8], _: u64) -> Result<u64> {
        let message = payload.try_into().context("a message of another size than the slots")?;
        let mut retries = 0;
        while self.producer.try_write(message).is_err() {
            retries += 1;
            std::hint::spin_loop();
        }
        Ok(retries)
    }

    fn needs_gate(&self) -> bool {
        false
    }

    fn notes(&self) -> Vec<String> {
        vec![format!("shaq {VERSION}, broadcast, {} slots", self.slots)]
    }
}

struct Receiving<const N: usize>(Consumer<[u8; N]>);

impl<const N: usize> Receiving<N> {
    #[allow(unsafe_code, reason = "the peer's way to join a queue")]
    fn open(spec: &Spec) -> Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).open(spec.dir.join(NAME)).context("open the queue")?;
        // SAFETY: the file got this name when its queue was complete, and both ends use the same array of bytes.
        Ok(Self(unsafe { Consumer::join(&file) }.context("join the queue")?))
    }
}

impl<const N: usize> Receiver for Receiving<N> {
    #[inline]
    fn poll(&mut self, sink: &mut Sink) -> Result<bool> {
        let Some(batch) = self.0.try_reserve_read_batch(BATCH) else { return Ok(false) };
        let (first, second) = batch.as_slices();
        first.iter().chain(second).for_each(|message| sink.message(message));
        Ok(true)
    }

    fn needs_gate(&self) -> bool {
        false
    }
}
