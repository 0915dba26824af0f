//! A channel that the bridge sends from one host to another. The publisher and the reader use the public API, as on one host. [The
//! rig](crate::rig::bridge) starts the bridge's processes.

use crate::rig::bridge::{BridgeMode, PAYLOAD_MAX, far_dir, near_dir};
use crate::rig::names::CHANNEL;
use crate::rig::publish::Sender;
use crate::rig::receive::{LOOK, Receiver, Sink};
use crate::rig::spec::{Spec, Wait};
use anyhow::{Context, Result};
use shmcast::{Event, Preparation, Publisher, Subscriber};
use shmcast_layout::counter::ticks;
use std::time::{Duration, Instant};

/// The sleep between two polls of a reader that needs only the time stamps in the ring.
const NAP: Duration = Duration::from_millis(2);

/// The publisher on the sending host.
#[derive(Debug)]
pub struct BridgeSender {
    publisher: Publisher,
    /// Whether the publisher yields its CPU to the bridge after each message, because both share one CPU.
    yields: bool,
}

impl BridgeSender {
    /// Makes the round's channel.
    ///
    /// # Errors
    /// The channel's error.
    pub fn open(spec: &Spec) -> Result<Self> {
        let builder = Publisher::builder(CHANNEL).dir(near_dir(spec)).prepare(Preparation::FULL);
        let builder = builder.capacity(spec.ring_bytes).max_message(PAYLOAD_MAX);
        let publisher = builder.open().context("open the channel")?;
        Ok(Self { publisher, yields: spec.interval_ns > 0 && BridgeMode::of(&spec.contestant).is_some() })
    }
}

impl Sender for BridgeSender {
    #[inline(always)]
    fn send(&mut self, payload: &[u8], _: u64) -> Result<u64> {
        self.publisher.publish(payload)?;
        if self.yields {
            std::thread::yield_now();
        }
        Ok(0)
    }

    fn notes(&self) -> Vec<String> {
        self.publisher.preparation().iter().map(ToString::to_string).collect()
    }
}

/// The reader on the receiving host.
#[derive(Debug)]
pub struct BridgeReceiver {
    subscriber: Subscriber,
    to_ring: bool,
}

impl BridgeReceiver {
    /// Subscribes to the channel into which the bridge publishes.
    ///
    /// # Errors
    /// The channel's error.
    pub fn open(spec: &Spec) -> Result<Self> {
        let to_ring = BridgeMode::of(&spec.contestant).is_some_and(|mode| mode.to_ring);
        let wait = match spec.contestant.wait {
            _ if to_ring => shmcast::Wait::Sleep(NAP),
            Wait::Spin => shmcast::Wait::Spin,
            Wait::Burst => shmcast::Wait::Burst,
            _ => shmcast::Wait::Yield,
        };
        let builder =
            Subscriber::builder(CHANNEL).dir(far_dir(spec)).start(shmcast::Start::Oldest).wait(wait);
        Ok(Self { subscriber: builder.open().context("subscribe")?, to_ring })
    }
}

impl Receiver for BridgeReceiver {
    #[inline]
    fn poll(&mut self, sink: &mut Sink) -> Result<bool> {
        let event = self.subscriber.try_recv()?;
        Ok(event.map(|event| hand(event, self.to_ring, sink)).is_some())
    }

    fn run(&mut self, sink: &mut Sink, _: Wait) -> Result<()> {
        let mut deadline = Instant::now();
        while !sink.is_done() {
            match self.subscriber.recv_deadline(deadline)? {
                Some(event) => hand(event, self.to_ring, sink),
                None if sink.is_stopped() => break,
                None => deadline = Instant::now() + LOOK,
            }
        }
        Ok(())
    }
}

#[inline]
fn hand(event: Event<'_>, to_ring: bool, sink: &mut Sink) {
    match event {
        Event::Message(message) if to_ring => {
            // A record has only the low 48 bits of the clock, which wrap after a day or more.
            let now = ticks();
            let ago = now.wrapping_sub(message.time) & ((1 << 48) - 1);
            sink.message_at(message.payload, now - ago);
        }
        Event::Message(message) => sink.message(message.payload),
        Event::Lapped(lapped) => sink.lost(lapped.missed),
        Event::Gap { from, to } => sink.lost(to - from + 1),
        Event::NewEpoch { .. } | Event::NewSession { .. } | Event::Restarted | Event::End => {}
        other => panic!("a round does not know what {other:?} means for its figures"),
    }
}
