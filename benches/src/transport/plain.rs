//! shmcast with the calls of a simple program. The publisher calls `publish` for each message. The receiver calls `try_recv_into`, which
//! copies one message into the receiver's buffer. [`shm`](super::shm) uses the fastest calls.

use super::shm::{hand, publisher, subscriber};
use crate::rig::names::SHMCAST_UNTIMED;
use crate::rig::publish::Sender;
use crate::rig::receive::{Receiver, Sink};
use crate::rig::spec::Spec;
use anyhow::{Context, Result};
use shmcast::{Publisher, Stamps, Subscriber};

/// The publisher.
#[derive(Debug)]
pub struct PlainSender(Publisher);

impl PlainSender {
    /// Makes the round's channel.
    ///
    /// # Errors
    /// The channel's error.
    pub fn open(spec: &Spec) -> Result<Self> {
        let stamps =
            if spec.contestant.transport_name() == SHMCAST_UNTIMED { Stamps::Given } else { Stamps::Each };
        Ok(Self(publisher(spec)?.stamps(stamps).open().context("open the channel")?))
    }
}

impl Sender for PlainSender {
    #[inline(always)]
    fn send(&mut self, payload: &[u8], _: u64) -> Result<u64> {
        self.0.publish(payload)?;
        Ok(0)
    }

    fn notes(&self) -> Vec<String> {
        self.0.preparation().iter().map(ToString::to_string).collect()
    }
}

/// A subscriber and its buffer.
#[derive(Debug)]
pub struct PlainReceiver {
    subscriber: Subscriber,
    buffer: Box<[u8]>,
}

impl PlainReceiver {
    /// Subscribes to the round's channel, as receiver number `me`.
    ///
    /// # Errors
    /// The channel's error.
    pub fn open(spec: &Spec, me: usize) -> Result<Self> {
        Ok(Self { subscriber: subscriber(spec, me)?, buffer: vec![0; spec.size].into() })
    }
}

impl Receiver for PlainReceiver {
    #[inline]
    fn poll(&mut self, sink: &mut Sink) -> Result<bool> {
        let event = self.subscriber.try_recv_into(&mut self.buffer)?;
        Ok(event.map(|event| hand(event, sink)).is_some())
    }
}
